"""A table as Arrow: streams, pieces, DuckDB, and a lazy frame of Polars."""

from __future__ import annotations

import operator
import pickle
import random
from collections import Counter
from functools import reduce
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from integration.pages import code_of
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from tests.support.seeds import seeds

COLUMNS = pa.schema(
    {"region": pa.string(), "id": pa.int64(), "n": pa.int32(), "rate": pa.float64()}
)


def rows(table: pa.Table | pl.DataFrame) -> Counter[str]:
    records = table.to_pylist() if isinstance(table, pa.Table) else table.to_dicts()
    return Counter(map(repr, records))


@pytest.fixture(params=[0, 1], ids=["hashed whole", "hashed by region"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    dice = random.Random(request.param)
    table = Table.create(
        str(tmp_path / "rows"),
        COLUMNS,
        keys=["region", "id"],
        hash_prefix=request.param,
        properties={"indexBy": "n"},
    )
    fields = pa.schema([*COLUMNS, pa.field("gone", pa.bool_())])
    for _ in range(3):
        records = [
            {
                "region": region,
                "id": number,
                "n": dice.choice([None, 0, 1, 2]),
                "rate": dice.choice([None, 0.0, -0.0, 1.0, 2.5]),
                "gone": dice.random() < 0.2,
            }
            for region in ("eu", "us")
            for number in dice.sample(range(8), 5)
        ]
        table.upsert(pa.Table.from_pylist(records, schema=fields), deletes="gone")
    return table


def test_a_table_is_a_stream_of_arrow_that_duckdb_reads_by_its_name(table: Table) -> None:
    lake, whole = table, table.snapshot()
    assert rows(pa.table(table)) == rows(whole)
    assert rows(pl.DataFrame(table)) == rows(whole)
    counts = duckdb.sql("SELECT count(*), sum(id) FROM lake").fetchall()
    assert counts == [(whole.num_rows, sum(whole.column("id").to_pylist()))]
    european = duckdb.from_arrow(lake).filter("region = 'eu'").fetchall()
    assert len(european) == whole.column("region").to_pylist().count("eu")


@pytest.mark.parametrize("condition", [None, "region = 'eu'", "region = 'eu' AND id = 1", "n = 1"])
@pytest.mark.sweep(3)
def test_pieces_have_each_row_once(table: Table, condition: str | None) -> None:
    whole = table.snapshot(filter=condition, columns=["id", "region"])
    pieces = table.pieces(4, filter=condition, columns=["id", "region"])
    assert len(pieces) >= 4 or condition == "n = 1"
    sent = pickle.loads(pickle.dumps(pieces))
    joined = pa.concat_tables([pa.table(piece) for piece in sent])
    assert rows(joined) == rows(whole)
    assert all(piece.schema == whole.schema for piece in sent)


def test_changes_are_read_as_they_are_pulled(table: Table) -> None:
    reader = table.scan_changes(2, columns=["id"])
    assert reader.schema.names[:2] == ["id", "_change_type"]
    assert rows(reader.read_all()) == rows(table.changes(2).select(reader.schema.names))
    assert rows(pl.DataFrame(table.scan_changes())) == rows(pl.DataFrame(table.changes()))


def predicate(dice: random.Random, depth: int = 2) -> pl.Expr:
    """Return a random predicate, many of which pin columns."""
    if depth and dice.random() < 0.6:
        joined = dice.choice([operator.and_, operator.and_, operator.or_])
        return reduce(joined, [predicate(dice, depth - 1) for _ in range(2)])
    name = dice.choice(["region", "id", "n", "rate"])
    column = pl.col(name)
    literals: list[Any] = ["eu", "us", "mars"] if name == "region" else [0, 1, 2, 7]
    one, other = dice.choices(literals, k=2)
    return dice.choice(
        [
            column == one,
            column == pl.lit(None),
            pl.lit(one) == column,
            column.is_in([float(one), 2.5] if name == "rate" else [one, other, None]),
            column.eq_missing(one),
            column != one,
            column > one,
            ~(column == one),
            column.is_null(),
            column == pl.col("n").cast(pl.String if name == "region" else pl.Float64),
            column == 2.5 if name != "region" else column.str.len_bytes() == 2,
        ]
    )


@seeds(6, quick=2)
@pytest.mark.sweep(2)
def test_a_lazy_frame_has_what_polars_would_choose(table: Table, seed: int) -> None:
    dice, whole = random.Random(seed), pl.DataFrame(table)
    for number in range(40):
        condition = predicate(dice)
        lazy = table.to_polars().filter(condition).select("id", "region", "rate")
        expected = whole.filter(condition).select("id", "region", "rate")
        assert rows(lazy.collect()) == rows(expected), f"{number}: {condition}"


def test_keys_that_a_query_compares_are_looked_up(table: Table) -> None:
    whole = pl.DataFrame(table)
    by_key = (pl.col("region") == "eu") & pl.col("id").is_in([1, 2, 3]) & (pl.col("rate") > 0)
    by_index = pl.col("n") == 1
    frame = table.to_polars()
    with patch.object(Snapshot, "read", side_effect=AssertionError("all rows are read")):
        for condition in (by_key, by_index):
            assert rows(frame.filter(condition).collect()) == rows(whole.filter(condition))
        assert frame.filter((pl.col("id") == 1) & (pl.col("id") == 2)).collect().is_empty()
        with pytest.raises(Exception, match="all rows are read"):
            frame.filter(pl.col("rate") == 1).collect()


def test_a_lazy_frame_is_of_one_version(table: Table) -> None:
    frame, before = table.to_polars(), table.log.head().version
    expected = rows(table.snapshot())
    table.upsert(pa.Table.from_pylist([], schema=COLUMNS), overwrite=True)
    assert rows(frame.collect()) == expected
    assert table.to_polars().collect().is_empty()
    assert rows(table.to_polars(version=before).collect()) == expected
    assert frame.head(3).collect().height == 3
    assert frame.select(pl.len()).collect().item() == sum(expected.values())


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    runner = "tests/unit/test_arrow_out.py"
    [code] = code_of("docs/without-spark.md", "python", runner=runner)
    exec(code.replace('"/lake/', f'"{tmp_path}/'), {})
