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

from spark_upsert.cli.commands import upsertflow
from spark_upsert.core.merge_engines import Engine, MergeEngine
from spark_upsert.core.schema import ErrorPolicy, Scope, Ties
from spark_upsert.errors import OptionError, SchemaError, TableNotFoundError
from spark_upsert.flow import TableSink
from spark_upsert.flow.local import write as write_by
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.table.log.manifest import Commit, Transaction
from spark_upsert.table.table import Table
from tests.support.rounds import Gate
from tests.support.seeds import seeds
from tests.support.written import write

KEY = pa.table({"part": ["a"], "id": [1]})
COLUMNS = {"part": pa.string(), "id": pa.int64(), "v": pa.int64()}
ORDERED: dict[str, Any] = {"sequence_by": ["at"]}
PARTIAL: dict[str, Any] = {"engine": MergeEngine(Engine.PARTIAL_UPDATE)}
TABLES: dict[str, dict[str, Any]] = {
    "by arrival": {},
    "ordered by a column": ORDERED,
    "ordered by one that is not stored": {**ORDERED, "stored": False},
    "ordered within epochs": {**ORDERED, "scope": Scope.EPOCH},
    "quarantine": {**ORDERED, "on_error": ErrorPolicy.QUARANTINE},
    "partial updates": PARTIAL,
    "partial updates in order": {**ORDERED, **PARTIAL},
    "by prefix": {**ORDERED, "hash_prefix": 1, "stored": False},
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
        rows = pa.table({**{name: [0] for name in columns}, "part": ["a"]})
        write(folder, rows, "rows", **options)
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


def keys_of(*keys: tuple[str, int]) -> pa.Table:
    return pa.Table.from_pylist([{"part": part, "id": number} for part, number in keys])


@pytest.mark.parametrize("by", ["keys", "a write of keys"])
def test_rows_of_keys_are_deleted_and_no_others(
    lived: Lived, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    lived.write(("a", 1, 10, 5), ("a", 2, 20, 5), ("b", 1, 30, 7))
    keys = [("a", 1), ("b", 1), ("b", 9), ("a", 1)]
    left = {key: row for key, row in lived.rows.items() if key not in keys}
    with caplog.at_level(logging.WARNING):
        if by == "keys":
            commit = lived.table.delete(keys)
        else:
            more = keys_of(*keys).append_column("V", pa.nulls(4))
            more = more.append_column("why", pa.array(["x"] * 4))
            commit = lived.delete_by_options(more.rename_columns(["PART", "Id", "V", "why"]))
    assert commit is not None
    # A delete has the order of its row on purpose, and is tied with nothing.
    assert (commit.counters["deletes"], commit.counters["tied"]) == (2, 0)
    assert caplog.messages == []
    assert lived.rows == left
    names = ("part", "id", "v", "_change_type")
    changes = lived.table.changes(commit.version).to_pylist()
    assert sorted(tuple(change[name] for name in names) for change in changes) == [
        ("a", 1, 10, "delete"),
        ("b", 1, 30, "delete"),
    ]


def test_what_a_filter_is_true_for_is_deleted(lived: Lived) -> None:
    lived.write(("a", 1, 10, 5), ("a", 2, 20, 5), ("b", 1, 30, 7), ("b", 2, 40, 1))
    before = lived.rows
    assert lived.table.delete(filter="v > 10 AND part = 'b' OR v = 20") is not None
    assert lived.rows.keys() == before.keys() - {("a", 2), ("b", 1), ("b", 2)}
    assert lived.table.delete(filter="v = 1000") is None


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
    lived = Lived(tmp_path, **ORDERED)
    lived.write(("a", 1, 10, 5))
    table, append = lived.table, lived.table.upsert

    def behind_another(*args: Any, **how: Any) -> Any:
        later = KEY.append_column("v", [[11]]).append_column("at", [[6]])
        Table.open(table.store.url).upsert(later)
        return append(*args, **how)

    table.upsert = behind_another  # type: ignore[method-assign]
    commit = table.delete(("a", 1))
    assert lived.rows["a", 1]["v"] == 11
    assert commit is not None
    assert (commit.counters["stale"], commit.counters["tied"]) == (1, 0)


def test_a_delete_of_a_feed_with_the_order_of_its_row_is_tied(tmp_path: Path) -> None:
    """Nothing but the feed says which of the two is the later."""
    lived = Lived(tmp_path, **ORDERED)
    lived.write(("a", 1, 10, 5))
    gone = KEY.append_column("at", [[5]]).append_column("is_gone", [[True]])
    commit = lived.table.upsert(gone.append_column("v", [[0]]), deletes="is_gone")
    assert commit is not None
    assert (commit.counters["deletes"], commit.counters["tied"]) == (1, 1)


def test_deletes_by_key_share_a_version_with_their_like_alone(tmp_path: Path) -> None:
    lived = Lived(tmp_path, **ORDERED)
    lived.write(("a", 1, 10, 5), ("a", 2, 20, 5), ("a", 3, 30, 5))
    row = pa.table({"part": ["a"], "id": [3], "v": [31], "at": [5]})
    delete, append = lived.table.delete, lived.table.upsert
    keys = [("a", 1), [("a", 1), ("a", 2)]]
    calls = [*(partial(delete, each) for each in keys), partial(append, row)]
    first = partial(append, row.set_column(1, "id", [[9]]))
    commits = Gate(lived.table._appends.calls).meet(first, calls)
    assert [commit.version for commit in commits] == [2, 3, 3, 4]
    counted = [(each.counters["deletes"], each.counters["tied"]) for each in commits]
    assert counted == [(0, 0), (1, 0), (1, 0), (0, 1)]
    assert lived.table.log.commit(3).counters["tied"] == 0


def test_a_transaction_deletes_once(tmp_path: Path) -> None:
    lived = Lived(tmp_path)
    lived.write(("a", 1, 10, 0), ("a", 2, 10, 0))
    once = Transaction(writer="person", number=1)
    assert lived.table.delete(("a", 1), transaction=once) is not None
    assert lived.table.delete(("a", 2), transaction=once) is None
    assert lived.rows.keys() == {("a", 2)}


def test_a_delete_that_cannot_be_is_refused(tmp_path: Path) -> None:
    lived = Lived(tmp_path)
    for keys, condition in ((None, None), (("a", 1), "TRUE")):
        with pytest.raises(OptionError, match="keys or of a filter"):
            lived.table.delete(keys, filter=condition)
    first = Lived(tmp_path / "first", ties=Ties.FIRST, **ORDERED)
    with pytest.raises(OptionError, match="ties=first"):
        first.table.delete(("a", 1))
    with pytest.raises(OptionError, match="ties=first"):
        first.delete_by_options(KEY)
    with pytest.raises(TableNotFoundError):
        write_by(TableSink(str(tmp_path / "none"), {"operation": "delete"}), KEY)
    for name in ("operation", "table.shop.operation"):
        options = {"path": f"{tmp_path}/{{part}}", "keys": "id", name: "delete"}
        with pytest.raises(OptionError, match="operation"):
            RoutedOptions.parse(options)


@pytest.mark.parametrize(
    ("rows", "options", "error", "text"),
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
def test_a_write_of_other_columns_or_options_is_refused(
    tmp_path: Path, rows: pa.Table, options: dict[str, str], error: type[Exception], text: str
) -> None:
    lived = Lived(tmp_path)
    with pytest.raises(error, match=text):
        lived.delete_by_options(rows, **options)


def test_the_command_deletes(tmp_path: Path) -> None:
    lived = Lived(tmp_path)
    lived.write(("a", 1, 10, 0), ("a", 2, 20, 0), ("b", 1, 30, 0))
    path = str(tmp_path / "rows")
    for arguments, left in (
        (["a", "1"], {("a", 2), ("b", 1)}),
        (["--filter", "v = 30"], {("a", 2)}),
        (["b", "7"], {("a", 2)}),
    ):
        result = CliRunner().invoke(upsertflow, ["delete", path, *arguments, "--json"])
        assert result.exit_code == 0, result.output
        assert lived.rows.keys() == left
    assert CliRunner().invoke(upsertflow, ["delete", path]).exit_code != 0


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (["-5"], [-5]),
        (["7", "-5", "--version", "1"], [7, -5]),
        (["--version", "1", "-5"], [-5]),
        (["--version=1", "--", "-5", "7"], [-5, 7]),
        (["-1"], []),
    ],
)
def test_the_command_takes_negative_keys(
    tmp_path: Path, arguments: list[str], ids: list[int]
) -> None:
    path = str(tmp_path / "rows")
    table = Table.create(path, pa.schema({"id": pa.int64()}), keys=["id"])
    table.upsert(pa.table({"id": [-5, 7]}))
    result = CliRunner().invoke(upsertflow, ["get", "--json", path, *arguments])
    assert result.exit_code == (0 if ids else 1), result.output
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == ids
    assert CliRunner().invoke(upsertflow, ["delete", path, "-5"]).exit_code == 0
    assert table.snapshot().column("id").to_pylist() == [7]
    assert CliRunner().invoke(upsertflow, ["find", path, "-5"]).exit_code == 1


@pytest.mark.parametrize("argument", ["-x", "--versoin", "-"])
def test_a_mistyped_option_of_the_command_is_no_key(tmp_path: Path, argument: str) -> None:
    path = str(tmp_path / "rows")
    Table.create(path, pa.schema({"id": pa.string()}), keys=["id"])
    result = CliRunner().invoke(upsertflow, ["delete", path, argument])
    assert (result.exit_code == 2) is (argument != "-"), result.output
    assert CliRunner().invoke(upsertflow, ["delete", path, "--", argument]).exit_code == 0
