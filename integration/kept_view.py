"""A view of two tables, kept in a table and written out, to be killed by `chaos` as `chain` is.

One query keeps groups over a left join, the other writes down what is retracted and inserted of the
join itself, into files, each once. Both tables change meanwhile; now and then the first query loses
its checkpoint, too.

    <folder>/orders, customers  the tables of the view
    <folder>/kept               revenue per country
    <folder>/changes            what happened to the joined rows
    <folder>/checkpoints/...
    <folder>/started            appears when the queries start
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from integration.chain import program
from integration.promises import assert_sound
from pyspark_upsertflow import agg, view
from pyspark_upsertflow.views import SparkView
from spark_upsert.table.log.manifest import KeptPosition
from spark_upsert.table.table import Table
from spark_upsert.table.write.outcomes import recorded_position
from spark_upsert.views.materialized import MaterializedView

ORDERS = pa.schema({"id": pa.int64(), "customer": pa.int64(), "amount": pa.int64()})
CUSTOMERS = pa.schema({"id": pa.int64(), "country": pa.string()})

KEYS = 40
COUNTRIES = ["NO", "SE", "FI", None]
EPOCHS_PER_BATCH = 2
"""Fewer than a round adds, so that it takes several micro-batches."""

LOST_CHECKPOINTS = 0.15
"""How often a round begins without the checkpoint of the kept table."""

Row = tuple[Any, ...]
At = dict[str, int]


def add_epochs(folder: Path, seed: int, *, epochs: int) -> None:
    """Append epochs of random changes to both tables; the first time make them."""
    for name, schema in (("orders", ORDERS), ("customers", CUSTOMERS)):
        path = folder / name
        if not path.exists():
            indexed = {"indexBy": "customer"} if schema is ORDERS else {}
            Table.create(str(path), schema, keys=["id"], properties=indexed)
        table = Table.open(str(path))
        for _ in range(epochs):
            dice = random.Random(f"{seed}/{name}/{table.log.head().version}")
            table.upsert(_drawn(dice, schema), deletes="gone", overwrite=dice.random() < 0.05)
            if dice.random() < 0.15:
                table.compact(full=True)


def _drawn(dice: random.Random, schema: pa.Schema) -> pa.Table:
    keys = dice.sample(range(KEYS), dice.randrange(1, KEYS // 2))
    values: dict[str, list[Any]] = {
        "customer": [*range(KEYS), None],
        "amount": [None, *range(-2, 9)],
        "country": COUNTRIES,
    }
    rows = [
        {"id": key, **{name: dice.choice(values[name]) for name in schema.names[1:]}}
        for key in keys
    ]
    given = pa.Table.from_pylist(rows, schema=schema)
    return given.append_column("gone", pa.array([dice.random() < 0.3 for _ in keys]))


def lose_a_checkpoint(folder: Path, dice: random.Random) -> None:
    """Now and then remove the checkpoint of the query that keeps the groups."""
    if dice.random() < LOST_CHECKPOINTS:
        shutil.rmtree(folder / "checkpoints" / "kept", ignore_errors=True)


def joined(folder: Path) -> SparkView:
    """Return the orders, each with the country of its customer."""
    orders, customers = view(str(folder / "orders")), view(str(folder / "customers"))
    return orders.join(customers, on={"customer": "id"}, how="left")


def revenue(folder: Path) -> SparkView:
    """Return what the orders of each country come to."""
    wanted = {"n": agg.count(), "revenue": agg.sum("amount"), "top": agg.max("amount")}
    return joined(folder).group_by("country").agg(**wanted)


def run(spark: SparkSession, folder: Path) -> None:
    """Bring the groups and the changes up to both tables, however much is added meanwhile."""
    limit = str(EPOCHS_PER_BATCH)
    changes = joined(folder).stream(spark, maxEpochsPerTrigger=limit, splits="2")
    written = changes.writeStream.format("parquet")
    written = written.option("path", str(folder / "changes"))
    written = written.option("checkpointLocation", str(folder / "checkpoints" / "changes"))
    (folder / "started").write_text(type(spark).__module__)
    paths = str(folder / "kept"), str(folder / "checkpoints" / "kept")
    keeping = revenue(folder).keep(spark, *paths, maxEpochsPerTrigger=limit, splits="2")
    queries = [written.start(), keeping]
    for query in queries:
        query.processAllAvailable()
    for query in queries:
        query.stop()


def commits(folder: Path) -> int:
    """Return how many commits of the kept table, and how many of the files there are."""
    return len([*(folder / "kept" / "_log").glob("*.json"), *_batches(folder / "changes")])


# -- what is to be there ---------------------------------------------------------------------


def check(folder: Path) -> str:
    """Check every version of the kept table, and each change; returns how many there were."""
    newest = {}
    for name in ("orders", "customers"):
        table = assert_sound(folder / name)
        newest[name] = table.log.head().version
    versions = _check_groups(folder, newest)
    count = _check_changes(folder, newest)
    return f"{versions} micro-batches kept, {count} changes written"


def rows_at(folder: Path, at: At) -> dict[int, Row]:
    """Return the joined rows at a position by their keys: the batch query in plain Python."""
    orders, customers = (
        Table.open(str(folder / name)).snapshot(at[name]).to_pylist()
        for name in ("orders", "customers")
    )
    country = {row["id"]: row["country"] for row in customers}
    return {
        row["id"]: (row["id"], row["customer"], row["amount"], country.get(row["customer"]))
        for row in orders
    }


def groups_at(folder: Path, at: At) -> dict[str | None, Row]:
    """Return the groups at a position."""
    found: dict[str | None, list[Any]] = {}
    for *_, amount, country in rows_at(folder, at).values():
        found.setdefault(country, []).append(amount)
    groups: dict[str | None, Row] = {}
    for country, amounts in found.items():
        known = [amount for amount in amounts if amount is not None]
        groups[country] = (len(amounts), sum(known) if known else None, max(known, default=None))
    return groups


def _check_groups(folder: Path, newest: At) -> int:
    """Check the groups of each version at the position that it names; returns how many."""
    table = assert_sound(folder / "kept")
    kept, count, at = MaterializedView.open(table), 0, {}
    for commit in table.log.commits(1, table.log.head().upper):
        if not commit.is_epoch:
            continue
        position = KeptPosition.read(recorded_position(table.at(commit.version)))
        assert position.snapshot is None, "no limit cuts the first rows"
        at = {Path(path).name: place.version for path, place in position.at.items()}
        shown = {
            row["country"]: (row["n"], row["revenue"], row["top"])
            for row in kept.rows(commit.version).to_pylist()
        }
        assert shown == groups_at(folder, at), f"version {commit.version} is not the view at {at}"
        count += 1
    assert rows_at(folder, at) == rows_at(folder, newest), "it stopped before the end"
    return count


def _check_changes(folder: Path, newest: At) -> int:
    """Fold all changes: what is retracted must be there, what is inserted must not."""
    changes = pa.concat_tables([pq.read_table(path) for path in _files(folder / "changes")])
    ordered = changes.sort_by([("_commit_version", "ascending"), ("_diff", "ascending")])
    found: dict[int, Row] = {}
    for row in ordered.to_pylist():
        shown = row["id"], row["customer"], row["amount"], row["country"]
        if row["_diff"] < 0:
            assert found.pop(row["id"], None) == shown, f"{shown} is retracted and was not there"
        else:
            assert found.setdefault(row["id"], shown) is shown, f"{shown} is inserted twice"
    assert found == rows_at(folder, newest), "a change is lost"
    return changes.num_rows


def _files(folder: Path) -> list[Path]:
    """Return the files that Spark's file sink has committed; others may lie beside."""
    found = set()
    for batch in _batches(folder):
        for line in batch.read_text().splitlines()[1:]:
            found.add(Path(unquote(urlsplit(json.loads(line)["path"]).path)).name)
    return [folder / name for name in sorted(found)]


def _batches(folder: Path) -> list[Path]:
    """Return what Spark's file sink has noted of its batches; of some once more with all before."""
    return [log for log in (folder / "_spark_metadata").glob("*") if log.name[0].isdigit()]


if __name__ == "__main__":
    program(__doc__, run)
