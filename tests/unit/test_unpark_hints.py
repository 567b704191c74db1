"""Every reason for which a table is parked has a way on, and it is the one that is told.

Each case parks a table, does literally what ``upsertflow dead-letters`` tells, and runs ``upsertflow
replay``: the table then is what it would be had it taken its rows at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from spark_upsert.cli.commands import upsertflow
from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.schema import TableSchema
from spark_upsert.routed.dead_letter import _PERMANENT_ERRORS, DeadLetterTable
from spark_upsert.routed.plan import table_below
from spark_upsert.routed.replay import replay_dead_letters
from spark_upsert.store import LocalStore
from spark_upsert.table.table import Table
from tests.support.own_schemas import INLINE, inline, member, struct
from tests.support.stores import MemoryStore, forget_runs_and_logs
from tests.unit.test_parking import write as write_rows
from tests.unit.test_routed_schemas import KEY, Sent, message
from tests.unit.test_routed_schemas import write as write_records

PARK = {"onTableError": "park"}
NARROW = pa.schema({"id": pa.int64()})
WIDE = pa.schema({"id": pa.int64(), "v": pa.int64(), "w": pa.int64()})
SMALL = pa.schema({"id": pa.int64(), "v": pa.int32()})
LONG = pa.schema({"id": pa.int64(), "v": pa.int64()})
TEXT = pa.schema({"id": pa.int64(), "v": pa.string()})
_SET = re.compile(r"--set (?:'([^']*)'|([^\s;]*[^\s,;.]))")
_UNSET = re.compile(r"--unset ([\w.]*\w)")

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A table that cannot take its rows."""

    poison: Callable[[Path], None]
    """Writes batches of which that of the table ``a`` is parked."""
    expected: Rows
    """What the table is to hold."""
    only: tuple[str, ...] | None = None
    """Of several ways that the hint names: the options of the one that is gone here."""
    code: str = "SCHEMA"
    quarantined: int = 0
    says: str = ""
    """What the hint says beside the options; mended by ``mend``."""
    mend: Callable[[Path], None] = lambda _: None
    chosen: Mapping[str, str] = field(default_factory=dict)
    """Where the hint gives an example, or a choice: what a person puts in its place."""


def create(root: Path, schema: pa.Schema, **more: Any) -> None:
    Table.create(str(root / "a"), schema, keys=["id"], **more)


def rows(*tasks: list[tuple[Any, ...]], **given: str) -> Callable[[Path], None]:
    def poison(root: Path) -> None:
        write_rows(LocalStore(str(root)), 0, *tasks, **given)

    return poison


def upon(schema: pa.Schema, poison: Callable[[Path], None], **more: Any) -> Callable[[Path], None]:
    def both(root: Path) -> None:
        create(root, schema, **more)
        poison(root)

    return both


def records(*batches: list[Sent], **more: str) -> Callable[[Path], None]:
    given = {name.lower(): text for name, text in {**INLINE, **PARK, **more}.items()}  # As Spark.

    def poison(root: Path) -> None:
        for number, batch in enumerate(batches):
            write_records(LocalStore(str(root)), number, batch, **given)

    return poison


def damaged(root: Path) -> None:
    write_rows(LocalStore(str(root)), 0, [("a", 1, 1), ("b", 1, 1)])
    for path in (root / "a" / "data").iterdir():
        path.with_suffix(".kept").write_bytes(path.read_bytes())
        path.write_bytes(b"")
    forget_runs_and_logs()
    write_rows(LocalStore(str(root)), 1, [("a", 1, 2), ("b", 1, 2)])


def restored(root: Path) -> None:
    for path in (root / "a" / "data").glob("*.kept"):
        target = next(p for p in path.parent.iterdir() if p.stem == path.stem and p != path)
        target.write_bytes(path.read_bytes())
        path.unlink()


def replaced(root: Path) -> None:
    write_rows(LocalStore(str(root)), 0, [("a", 1, 1), ("b", 1, 1)])
    (root / "a").rename(root / ".kept")
    create(root, WIDE)
    write_rows(LocalStore(str(root)), 1, [("a", 1, 2), ("b", 1, 2)])


def put_back(root: Path) -> None:
    (root / "a").rename(root / ".other")
    (root / ".kept").rename(root / "a")


def widened(root: Path) -> None:
    table = Table.open(str(root / "a"))
    table.alter(TableSchema.of(LONG, keys=["id"], engine=table.schema.engine))


FLAG = message("a", 1, flag=("boolean", True))
AS_TEXT = message("a", 2, flag=("string", "yes"))
PLAIN: Sent = ("a", inline(KEY, {"id": 2}), b'{"flag": true}')
MAP_AND_INT = struct(member("m", "map"), member("v", "int32"))
MAP: Sent = ("a", inline(KEY, {"id": 1}), inline(MAP_AND_INT, {"v": 7}))
SURROGATE = inline(struct(member("v", "int32"), member("\ud800", "int32")), {"v": 7, "\ud800": 1})

NEW = upon(NARROW, rows([("a", 1, 1)]))
SUMS = MergeEngine.chosen(Engine.AGGREGATION, {"v": Rule.SUM}, {})
TWO_TYPES = records([message("a", 3, n=("int32", 7)), message("a", 2, n=("double", 1.5))])
LATER_TYPE = records([FLAG], [message("a", 3, flag=("boolean", False)), AS_TEXT])
HALF = records([FLAG, ("a", inline(KEY, {"id": 2}), SURROGATE)])
FLAGGED = {"id": 1, "flag": True}
TIED = rows([("a", 1, 1), ("a", 1, 2)], sequenceBy="id", ties="fail")
TOO_LARGE = upon(SMALL, rows([("a", 1, 1), ("a", 1, 2**31 - 1)]), engine=SUMS)
OTHER_OPTION = rows([("a", 1, 1)], **{"table.a.sequenceBy": "v"})
CONTRADICTION = {"table.a*.mergeSchema": "true", "table.*a.mergeSchema": "false"}

CASES: dict[str, Case] = {
    "a column that the table lacks": Case(NEW, [{"id": 1, "v": 1}], ("mergeSchema",)),
    "a column that it is not to have": Case(NEW, [{"id": 1}], ("columnList",)),
    "a wider type": Case(upon(SMALL, rows([("a", 1, 2**40)])), [{"id": 1, "v": 2**40}]),
    "a column that the rows lack": Case(
        upon(WIDE, rows([("a", 1, 1)])), [{"id": 1, "v": 1, "w": None}]
    ),
    "a column of another type": Case(upon(TEXT, rows([("a", 1, 1)])), [{"id": 1, "v": None}]),
    "a column of another type, among all": Case(
        upon(TEXT, rows([("a", 1, 1)], columnList="", exceptColumnList="topic")),
        [{"id": 1, "v": None}],
    ),
    "boolean became text, and such rows are kept apart": Case(
        records([FLAG], [AS_TEXT]), [FLAGGED], ("onError",), quarantined=1
    ),
    "boolean became text, and the column is left out": Case(
        records([FLAG], [AS_TEXT]),
        [FLAGGED, {"id": 2, "flag": None}],
        ("exceptColumnList", "mergeSchema"),
    ),
    "two types in one batch, and one that holds both is declared": Case(
        TWO_TYPES,
        [{"id": 2, "n": 1.5}, {"id": 3, "n": 7.0}],
        chosen={"valueSchema": "n DOUBLE"},
    ),
    "two types in one batch for a table": Case(
        LATER_TYPE, [FLAGGED, {"id": 3, "flag": False}], ("onError",), quarantined=1
    ),
    "a type that no column has": Case(
        records([MAP]), [{"id": 1, "v": 7}], ("valueSchema",), chosen={"valueSchema": "v INT"}
    ),
    "a field that is left out": Case(records([MAP]), [{"id": 1, "v": 7}], ("exceptColumnList",)),
    "payloads without a schema": Case(
        records([FLAG, PLAIN]), [FLAGGED], code="DATA", quarantined=1
    ),
    "a name that is half of a character": Case(HALF, [FLAGGED], code="DATA", quarantined=1),
    "a key that is null": Case(
        rows([("a", 1, 1), ("a", None, 2)]), [{"id": 1, "v": 1}], code="DATA", quarantined=1
    ),
    "values of one key in two tasks": Case(
        rows([("a", 1, 1)], [("a", 1, 2)]), [{"id": 1, "v": 2}], ("allowUnordered",), "DATA"
    ),
    "ties in a table that refuses them": Case(TIED, [{"id": 1, "v": 2}], ("ties",), "DATA"),
    "a sum that is too large": Case(TOO_LARGE, [{"id": 1, "v": 2**31}], mend=widened),
    "an option that is not the table's": Case(
        upon(LONG, OTHER_OPTION), [{"id": 1, "v": 1}], code="OPTION"
    ),
    "options that contradict each other": Case(
        upon(NARROW, rows([("a", 1, 1), ("b", 1, 1)], **CONTRADICTION)),
        [{"id": 1, "v": 1}],
        code="OPTION",
        chosen={"mergeSchema": "true"},
    ),
    "a damaged file": Case(
        damaged,
        [{"id": 1, "v": 2}],
        code="CORRUPTION",
        says="restore this file from a copy",
        mend=restored,
    ),
    "another table in its place": Case(
        replaced,
        [{"id": 1, "v": 2}],
        code="OTHER_TABLE",
        says="put back what was there",
        mend=put_back,
    ),
}


def run(*arguments: str) -> str:
    result = CliRunner().invoke(upsertflow, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def options_of(hint: str, case: Case) -> Iterable[str]:
    """Yield the options of the command that a hint names, as they stand there."""
    for quoted, bare in _SET.findall(hint):
        name, _, value = (quoted or bare).partition("=")
        if case.only is not None and name not in case.only:
            continue
        if name in case.chosen:
            value = case.chosen[name]
        if value:
            yield from ("--set", f"{name}={value}")
    for name in _UNSET.findall(hint):
        if name not in case.chosen:
            yield from ("--unset", name)


ELSEWHERE = {
    "NEWER_FORMAT": "tells to install another release",
    "EARLIER_FORMAT": "tells to install another release",
    "TABLE_EXISTS": "is of `Table.create`, which a write does not call",
    "DATA_LOSS": "is of a version that expired while the batch was committed: nothing is to mend",
}
"""Errors for which a table is parked, and why no case follows their hints."""


def test_each_error_for_which_a_table_is_parked_has_a_case() -> None:
    known = {case.code for case in CASES.values()} | ELSEWHERE.keys()
    assert {each.code for each in _PERMANENT_ERRORS} <= known


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.sweep(5)
def test_what_is_told_of_parked_rows_works(case: Case, tmp_path: Path) -> None:
    case.poison(tmp_path)
    lines = [json.loads(line) for line in run("dead-letters", str(tmp_path), "--json").splitlines()]
    [parked] = [line for line in lines if line["name"] == "a"]
    assert parked["error"] == case.code
    assert case.says in parked["hint"]
    if case.says:
        result = CliRunner().invoke(upsertflow, ["replay", str(tmp_path), "a"])
        assert f"[{case.code}]" in result.stderr
    case.mend(tmp_path)
    run("replay", str(tmp_path), "a", *options_of(parked["hint"], case))
    root = LocalStore(str(tmp_path))
    assert DeadLetterTable(root).counts() == {}
    table = table_below(root, "a")
    assert sorted(table.snapshot().to_pylist(), key=repr) == case.expected
    assert sum(batch.num_rows for batch in table.quarantine()) == case.quarantined


def test_p1_what_unpark_declares_is_read_out_of_messages_with_a_schema() -> None:
    root = MemoryStore()
    write_records(root, 0, [MAP], **INLINE, **PARK)
    replay_dead_letters(root, options={"VALUE_SCHEMA": "v INT"})
    assert table_below(root, "a").snapshot().to_pylist() == [{"id": 1, "v": 7}]


@pytest.mark.parametrize("schema", [None, {"type": "struct", "fields": []}], ids=str)
def test_messages_are_read_as_they_stand_where_their_payload_is_a_column(
    schema: Any, tmp_path: Path
) -> None:
    sent = ("a", b'{"id": 1}', inline(schema, {"v": 7}))
    given = {"keySchema": "id BIGINT", "valueSchema": "payload STRUCT<v: INT>"}
    write_records(LocalStore(str(tmp_path)), 0, [sent], **{**INLINE, **given})
    [row] = table_below(LocalStore(str(tmp_path)), "a").snapshot().to_pylist()
    assert row == {"id": 1, "payload": {"v": 7}}


def test_declared_values_are_read_out_of_messages_of_any_form(tmp_path: Path) -> None:
    said = struct(
        member("v", "int32"), {"field": "t", "type": "int64", "name": "io.debezium.time.Timestamp"}
    )
    values = [
        b'{"v": 1, "t": "1970-01-01T00:00:01"}',
        inline(None, {"v": 2, "t": "1970-01-01T00:00:01"}),
        inline(said, {"v": 3, "t": 1000}),
        inline({"type": "struct"}, None),
        inline({"no": "schema"}, {"v": 5}),
    ]
    keys = [b"1", inline(None, 2), inline({"type": "int64"}, 3), b"4", b"5"]
    sent: list[Sent] = [("a", key, value) for key, value in zip(keys, values, strict=True)]
    given = {"keySchema": "BIGINT", "valueSchema": "v INT, t TIMESTAMP_NTZ"}
    root = LocalStore(str(tmp_path))
    write_records(root, 0, sent, **{**INLINE, **given, "onError": "quarantine"})
    columns = table_below(root, "a").snapshot().sort_by("key").to_pydict()
    assert (columns["key"], columns["v"]) == ([1, 2, 3], [1, 2, 3])
    assert len(set(columns["t"])) == 1
    bad = [row for batch in table_below(root, "a").quarantine() for row in batch.to_pylist()]
    assert sorted(row["key"] for row in bad) == [4, 5]
