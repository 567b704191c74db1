"""Deletes by keys alone, or by a filter: the rows go, exactly, whatever the table."""

from __future__ import annotations

import json
import logging
import random
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from spark_upsert.cli.main import upsertflow
from spark_upsert.core.merge_engines import Engine, MergeEngine
from spark_upsert.core.schema import ErrorPolicy, Scope, Ties
from spark_upsert.errors import OptionError, SchemaError, TableNotFoundError
from spark_upsert.flow import TableSink
from spark_upsert.flow.local import write as write_by
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.table.arguments import deletes_of
from spark_upsert.table.log.manifest import Commit, Transaction
from spark_upsert.table.table import Table
from spark_upsert.table.write.commands import GONE as DELETES
from spark_upsert.table.write.group_commit import commands_of
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.hints.tables import write
from tests.support.rounds import Gate
from tests.support.seeds import seeds

KEY = pa.table({"part": ["a"], "id": [1]})
COLUMNS = {"part": pa.string(), "id": pa.int64(), "v": pa.int64()}
TABLES: dict[str, dict[str, Any]] = {
    "by arrival": {},
    "ordered by a column": {"sequence_by": ["at"]},
    "ordered by one that is not stored": {"sequence_by": ["at"], "stored": False},
    "ordered within epochs": {"sequence_by": ["at"], "scope": Scope.EPOCH},
    "quarantine": {"sequence_by": ["at"], "on_error": ErrorPolicy.QUARANTINE},
    "partial updates": {"engine": MergeEngine(Engine.PARTIAL_UPDATE)},
    "partial updates in order": {
        "engine": MergeEngine(Engine.PARTIAL_UPDATE),
        "sequence_by": ["at"],
    },
    "by prefix": {"hash_prefix": 1, "sequence_by": ["at"], "stored": False},
}


class Lived:
    """A table, and rows for it."""

    def __init__(self, folder: Path, *, stored: bool = True, **how: Any) -> None:
        self.is_ordered = "sequence_by" in how
        columns = {**COLUMNS, **({"at": pa.int64()} if self.is_ordered else {})}
        path = str(folder / "rows")
        if stored:
            self.table = Table.create(path, pa.schema(columns), keys=["part", "id"], **how)
            return
        # As a write with options makes it: the order is no column of the table.
        options = {"keys": "part,id", "sequenceBy": "at", "exceptColumnList": "at"}
        options["hashPrefix"] = str(how.get("hash_prefix", 0))
        write(
            folder, pa.table({**{name: [0] for name in columns}, "part": ["a"]}), "rows", **options
        )
        self.table = Table.open(path)

    def write(self, *rows: tuple[str, int, int, int]) -> None:
        names = ["part", "id", "v", "at"] if self.is_ordered else ["part", "id", "v"]
        records = [dict(zip(names, row, strict=False)) for row in rows]
        self.table.upsert(pa.Table.from_pylist(records))

    def delete_by_options(self, rows: pa.Table, **options: str) -> Commit | None:
        """Write keys as Spark and flows do."""
        sink = TableSink(self.table.store.url, {"operation": "delete", **options})
        return write_by(sink, rows)

    @property
    def rows(self) -> dict[tuple[str, int], Any]:
        return {(r["part"], r["id"]): r for r in self.table.snapshot().to_pylist()}


@pytest.fixture(params=TABLES, ids=str)
def lived(request: pytest.FixtureRequest, tmp_path: Path) -> Lived:
    return Lived(tmp_path, **TABLES[request.param])


def test_deleted_rows_are_gone_and_no_others(lived: Lived) -> None:
    lived.write(("a", 1, 10, 5), ("a", 2, 20, 5), ("b", 1, 30, 7))
    before = lived.rows
    commit = lived.table.delete([("a", 1), ("b", 1), ("b", 9)])
    assert commit is not None
    assert commit.counters["deletes"] == 2
    assert lived.rows == {key: row for key, row in before.items() if key not in GONE}
    changes = lived.table.changes(commit.version)
    told = {(r["part"], r["id"]): r["_change_type"] for r in changes.to_pylist()}
    assert told == {("a", 1): "delete", ("b", 1): "delete"}
    assert {k: r["v"] for k, r in _by_key(changes).items()} == {("a", 1): 10, ("b", 1): 30}


def test_a_write_of_keys_takes_their_rows_and_no_others(lived: Lived) -> None:
    lived.write(("a", 1, 10, 5), ("a", 2, 20, 5), ("b", 1, 30, 7))
    before = lived.rows
    more = pa.nulls(4), pa.array(["x"] * 4)
    keys = keys_of(("a", 1), ("b", 1), ("b", 9), ("a", 1))
    renamed = keys.append_column("V", more[0]).append_column("why", more[1])
    commit = lived.delete_by_options(renamed.rename_columns(["PART", "Id", "V", "why"]))
    assert commit is not None
    assert commit.counters["deletes"] == 2
    assert lived.rows == {key: row for key, row in before.items() if key not in GONE}
    changes = _by_key(lived.table.changes(commit.version))
    assert {key: (r["_change_type"], r["v"]) for key, r in changes.items()} == {
        ("a", 1): ("delete", 10),
        ("b", 1): ("delete", 30),
    }


def keys_of(*keys: tuple[str, int]) -> pa.Table:
    return pa.Table.from_pylist([{"part": part, "id": number} for part, number in keys])


GONE = {("a", 1), ("b", 1)}


def _by_key(rows: pa.Table) -> dict[tuple[str, int], Any]:
    return {(r["part"], r["id"]): r for r in rows.to_pylist()}


def test_what_a_filter_is_true_for_is_deleted(lived: Lived) -> None:
    lived.write(("a", 1, 10, 5), ("a", 2, 20, 5), ("b", 1, 30, 7), ("b", 2, 40, 1))
    before = lived.rows
    assert lived.table.delete(filter="v > 10 AND part = 'b' OR v = 20") is not None
    assert lived.rows.keys() == before.keys() - {("a", 2), ("b", 1), ("b", 2)}
    assert lived.table.delete(filter="v = 1000") is None


def test_a_row_comes_back_as_its_order_says(lived: Lived) -> None:
    lived.write(("a", 1, 10, 5))
    lived.table.delete(("a", 1))
    lived.write(("a", 1, 11, 4))
    is_stale = lived.is_ordered and lived.table.schema.scope is Scope.TABLE
    assert (("a", 1) in lived.rows) is not is_stale
    lived.write(("a", 1, 12, 6))
    assert lived.rows["a", 1]["v"] == 12


@seeds(4)
@pytest.mark.sweep(2)
def test_random_deletes(lived: Lived, seed: int) -> None:
    dice, at = random.Random(seed), 10
    for _ in range(6):
        at += 1
        keys = [(part, number) for part in ("a", "b") for number in range(4)]
        lived.write(*((*key, dice.randrange(9), at) for key in dice.sample(keys, 3)))
        before, chosen = lived.rows, dice.sample(keys, 3)
        if dice.random() < 0.5:
            lived.table.delete(chosen)
        else:
            lived.delete_by_options(keys_of(*chosen))
        assert lived.rows == {key: row for key, row in before.items() if key not in chosen}
        if dice.random() < 0.4:
            lived.table.compact(full=True)
    assert lived.table.check().findings == ()


def test_a_later_row_that_comes_meanwhile_stays(tmp_path: Path) -> None:
    """The delete was decided by an older version, and has the order of the row that it saw."""
    lived = Lived(tmp_path, sequence_by=["at"])
    lived.write(("a", 1, 10, 5))
    table, append = lived.table, lived.table.upsert

    def behind_another(*args: Any, **how: Any) -> Any:
        Table.open(str(tmp_path / "rows")).upsert(
            pa.table({"part": ["a"], "id": [1], "v": [11], "at": [6]})
        )
        return append(*args, **how)

    table.upsert = behind_another  # type: ignore[method-assign]
    commit = table.delete(("a", 1))
    assert lived.rows["a", 1]["v"] == 11
    assert commit is not None
    assert (commit.counters["stale"], commit.counters["tied"]) == (1, 0)


def test_a_delete_by_key_is_tied_with_nothing(
    lived: Lived, caplog: pytest.LogCaptureFixture
) -> None:
    """It has the order of its row on purpose."""
    lived.write(("a", 1, 10, 5), ("a", 2, 20, 5), ("b", 1, 30, 7))
    with caplog.at_level(logging.WARNING):
        done = lived.table.delete(("a", 1)), lived.delete_by_options(keys_of(("b", 1), ("b", 1)))
    counted = [commit.counters for commit in done if commit is not None]
    assert [(each["deletes"], each["tied"]) for each in counted] == [(1, 0), (1, 0)]
    assert caplog.messages == []


def test_a_delete_by_key_that_lost_a_race_is_counted_anew(tmp_path: Path) -> None:
    lived = Lived(tmp_path, sequence_by=["at"])
    lived.write(("a", 1, 10, 5), ("a", 2, 20, 5))
    base = lived.table.at()
    rows = deletes_of(base, keys_of(("a", 1), ("a", 2)).to_batches()[0])
    staged = stage(base, commands_of(base.manifest, rows, DELETES, None))
    lived.write(("a", 1, 11, 6))
    commit = lived.table.commit(WriteSet(base=base, staged=(staged,)))
    assert commit is not None
    counted = [commit.counters[name] for name in ("deletes", "stale", "tied")]
    assert counted == [1, 1, 0]


def test_a_delete_of_a_feed_with_the_order_of_its_row_is_tied(tmp_path: Path) -> None:
    """Nothing but the feed says which of the two is the later."""
    lived = Lived(tmp_path, sequence_by=["at"])
    lived.write(("a", 1, 10, 5))
    gone = pa.table({"part": ["a"], "id": [1], "v": [0], "at": [5], "is_gone": [True]})
    commit = lived.table.upsert(gone, deletes="is_gone")
    assert commit is not None
    assert (commit.counters["deletes"], commit.counters["tied"]) == (1, 1)


def test_deletes_by_key_share_a_version_with_their_like_alone(tmp_path: Path) -> None:
    lived = Lived(tmp_path, sequence_by=["at"])
    lived.write(("a", 1, 10, 5), ("a", 2, 20, 5), ("a", 3, 30, 5))
    row = pa.table({"part": ["a"], "id": [3], "v": [31], "at": [5]})
    delete, append = lived.table.delete, lived.table.upsert
    calls = [
        partial(delete, ("a", 1)),
        partial(delete, [("a", 1), ("a", 2)]),
        partial(append, row),
    ]
    first = partial(append, row.set_column(1, "id", [[9]]))
    told = Gate(lived.table._appends.calls).meet(first, calls)
    assert [commit.version for commit in told] == [2, 3, 3, 4]
    counted = [(each.counters["deletes"], each.counters["tied"]) for each in told]
    assert counted == [(0, 0), (1, 0), (1, 0), (0, 1)]
    assert lived.table.log.commit(3).counters["tied"] == 0


def test_a_transaction_deletes_once(tmp_path: Path) -> None:
    lived = Lived(tmp_path)
    lived.write(("a", 1, 10, 0), ("a", 2, 10, 0))
    once = Transaction(writer="person", number=1)
    assert lived.table.delete(("a", 1), transaction=once) is not None
    assert lived.table.delete(("a", 2), transaction=once) is None
    assert lived.rows.keys() == {("a", 2)}


def test_what_is_no_delete(tmp_path: Path) -> None:
    lived = Lived(tmp_path)
    for keys, condition in ((None, None), (("a", 1), "TRUE")):
        with pytest.raises(OptionError, match="keys or of a filter"):
            lived.table.delete(keys, filter=condition)
    first = Lived(tmp_path / "first", sequence_by=["at"], ties=Ties.FIRST)
    with pytest.raises(OptionError, match="ties=first"):
        first.table.delete(("a", 1))


@pytest.mark.parametrize(
    ("rows", "options", "error", "told"),
    [
        (pa.table({"part": ["a"]}), {}, SchemaError, "key column 'id'"),
        (KEY, {"keys": "id"}, OptionError, "'keys' is 'id'"),
        (KEY, {"sequenceBy": "v"}, OptionError, "'sequenceBy' says how rows are stored"),
        (KEY, {"aggregate.v": "sum"}, OptionError, "operation=delete stores none"),
        (KEY, {"envelope": "kafka"}, OptionError, "'envelope' says how"),
        (KEY, {"indexBy": "v"}, OptionError, "'indexBy' says how"),
        (KEY, {"operation": "remove"}, OptionError, "one of upsert, delete"),
        (pa.table({"part": ["a"], "id": ["x"]}), {}, SchemaError, "'id' has no such value"),
    ],
)
def test_what_is_no_write_of_keys(
    tmp_path: Path, rows: pa.Table, options: dict[str, str], error: type[Exception], told: str
) -> None:
    lived = Lived(tmp_path)
    lived.write(("a", 1, 10, 0))
    with pytest.raises(error, match=told):
        lived.delete_by_options(rows, **options)
    assert lived.rows


def test_a_write_of_keys_is_of_one_table_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError):
        write_by(TableSink(str(tmp_path / "none"), {"operation": "delete"}), KEY)
    first = Lived(tmp_path / "first", sequence_by=["at"], ties=Ties.FIRST)
    with pytest.raises(OptionError, match="ties=first"):
        first.delete_by_options(KEY)
    for name in ("operation", "table.shop.operation"):
        given = {"path": f"{tmp_path}/{{part}}", "keys": "id", name: "delete"}
        with pytest.raises(OptionError, match="operation"):
            RoutedOptions.parse(given)


def test_the_command_deletes(tmp_path: Path) -> None:
    lived = Lived(tmp_path)
    lived.write(("a", 1, 10, 0), ("a", 2, 20, 0), ("b", 1, 30, 0))
    path = str(tmp_path / "rows")
    for arguments, left in (
        (["a", "1"], {("a", 2), ("b", 1)}),
        (["--filter", "v = 30"], {("a", 2)}),
        (["b", "7"], {("a", 2)}),
    ):
        found = CliRunner().invoke(upsertflow, ["delete", path, *arguments, "--json"])
        assert found.exit_code == 0, found.output
        assert lived.rows.keys() == left
    assert CliRunner().invoke(upsertflow, ["delete", path]).exit_code != 0


@pytest.mark.parametrize(
    ("command", "arguments", "shown"),
    [
        ("get", ["-5"], [-5]),
        ("get", ["7", "-5", "--version", "1"], [7, -5]),
        ("get", ["--version", "1", "-5"], [-5]),
        ("get", ["--version=1", "--", "-5", "7"], [-5, 7]),
        ("get", ["-1"], []),
    ],
)
def test_the_command_takes_negative_keys(
    tmp_path: Path, command: str, arguments: list[str], shown: list[int]
) -> None:
    path = str(tmp_path / "rows")
    table = Table.create(path, pa.schema({"id": pa.int64()}), keys=["id"])
    table.upsert(pa.table({"id": [-5, 7]}))
    found = CliRunner().invoke(upsertflow, [command, "--json", path, *arguments])
    assert found.exit_code == 0, found.output
    assert [json.loads(line)["id"] for line in found.stdout.splitlines()] == shown
    assert CliRunner().invoke(upsertflow, ["delete", path, "-5"]).exit_code == 0
    assert table.snapshot().column("id").to_pylist() == [7]
    assert CliRunner().invoke(upsertflow, ["find", path, "-5"]).exit_code == 1


@pytest.mark.parametrize("argument", ["-x", "--versoin", "-"])
def test_a_mistyped_option_of_the_command_is_no_key(tmp_path: Path, argument: str) -> None:
    path = str(tmp_path / "rows")
    Table.create(path, pa.schema({"id": pa.string()}), keys=["id"])
    found = CliRunner().invoke(upsertflow, ["delete", path, argument])
    assert (found.exit_code == 2) is (argument != "-"), found.output
    assert CliRunner().invoke(upsertflow, ["delete", path, "--", argument]).exit_code == 0
