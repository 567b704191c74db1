"""Every record is decoded by the rule of its reader before its put."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import Scope
from spark_upsert.delta import checkpoints as delta_checkpoints
from spark_upsert.delta.actions import DeltaState
from spark_upsert.delta.log import DeltaLog
from spark_upsert.streams.offsets.delta import Bases, CompactOffsets
from spark_upsert.streams.offsets.offset import Offset, PlainOffsets, Position
from spark_upsert.table.log.manifest import Draft, Kind
from spark_upsert.table.log.storage import write_checkpoint, write_hint
from spark_upsert.table.retention.lag import PressureReport, report
from spark_upsert.table.retention.leases import Lease, hold
from spark_upsert.table.table import Table
from tests.support.model import Command
from tests.support.stores import MemoryStore
from tests.support.tables import append, schema_of
from tools.layers import ROOT, modules, tree_of

PUTS = frozenset({"put", "put_if_absent"})

PROBE = "an empty object, whose time or refusal the storage is tested for"

STORE_PUTS = {
    "cli.doctor:store.put": PROBE,
    "cli.doctor:store.put_if_absent": PROBE,
    "delta.publish:self._delta.put": "the put of `DeltaLog`, which checks the actions",
    "delta.upkeep:self._store.put": PROBE,
    "table.log.storage:store.put": PROBE,
    "table.retention.expiry:store.put": PROBE,
    "store.records:store.put": "the put of a checked record",
    "store.records:store.put_if_absent": "the put of a checked record",
}
"""The places where an object of a store is put, and why no reader can refuse it."""

NO_STORE_PUTS = {
    "flow.local:channels.put",
    "metrics:self._found.put",
    "metrics:self._queries.put",
    "delta.follow:self._mirrors.put",
    "core.lru:self.put",
    "core.lru:super().put",
    "pyspark_upsertflow.python_source:self._idle.put",
    "pyspark_upsertflow.metrics:self._queries.put",
    "pyspark_upsertflow.metrics:self._reports.put",
    "pyspark_upsertflow.metrics:self._written.put",
    "spark_upsert_sink.writers:_WARNED.put",
    "routed.router:self._kept.put",
    "streams.offsets.delta:self._cache.put",
    "table.log.reader:self._known.put",
    "table.log.reader:self._recalls.put",
    "table.log.storage:self._commits.put",
    "table.run.remote:self._runs.put",
    "table.run.remote:self._spent.put",
    "table.run.file:self._runs.put",
    "table.write.ties:_STREAKS.put",
    "task.task:self._idle.put",
}
"""Puts into maps and channels in memory."""

SINKS = {
    "delta.publish:self.target",
    "delta.parquet_files:target",
    "replication.spooled:self.store",
    "table.run.file:store",
}
"""The places where a data file is streamed into a store; a record never is."""


def _trees() -> Iterator[tuple[str, ast.AST]]:
    for module, path in modules().items():
        name = module.removeprefix("spark_upsert.")
        if not name.startswith("store.") or name == "store.records":
            yield name, tree_of(ROOT / path)


def puts_in(tree: ast.AST) -> Iterator[str]:
    """Yield each ``receiver.put``, but for calls with one argument: those of a checked record."""
    checked = {
        id(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in PUTS and id(node) not in checked:
            yield ast.unparse(node)


def test_only_checked_records_are_put() -> None:
    puts = {f"{module}:{put}" for module, tree in _trees() for put in puts_in(tree)}
    unknown = puts - STORE_PUTS.keys() - NO_STORE_PUTS
    assert not unknown, (
        f"{', '.join(sorted(unknown))} may put a record that no reader accepts. Make it by "
        "`checked_record` or `checked_data` of spark_upsert.store.records, which decode it by the "
        "reader's rule. List a put into a map in memory in NO_STORE_PUTS."
    )
    assert puts == STORE_PUTS.keys() | NO_STORE_PUTS, "remove the entries that have no put"


def test_only_data_files_are_streamed_into_a_store() -> None:
    sinks = {
        f"{module}:{ast.unparse(item.context_expr.func.value)}"
        for module, tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.With)
        for item in node.items
        if isinstance(item.context_expr, ast.Call)
        and isinstance(item.context_expr.func, ast.Attribute)
        and item.context_expr.func.attr == "create"
    }
    assert sinks == SINKS


def test_a_checked_record_has_one_maker() -> None:
    makers = [
        module
        for module, tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "CheckedRecord"
    ]
    assert makers == ["store.records"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("store.put(path, data)", ["store.put"]),
        ("self._store.put_if_absent(path, encode(record))", ["self._store.put_if_absent"]),
        ("put = store.put", ["store.put"]),
        ("partial(store.put, path)", ["store.put"]),
        ("checked_record(path, lease, record, build).put(store)", []),
    ],
)
def test_a_put_is_found_in(text: str, expected: list[str]) -> None:
    assert list(puts_in(ast.parse(text))) == expected


# -- each kind of record --------------------------------------------------------------------

FRACTION = Position('{"at":1.5}')
"""A position of an input whose text is not canonical."""


def _draft(**fields: Any) -> Callable[[Table], object]:
    draft = Draft(kind=Kind.ALTER, **{"live_rows": 1, **fields})
    return lambda table: table.log.append(lambda head: draft)


def _checkpoint(**fields: Any) -> Callable[[Table], object]:
    return lambda table: write_checkpoint(table.store, replace(table.log.head(), **fields))


def _offset(table: Table, position: Position) -> object:
    return PlainOffsets().write(Offset(positions={"a": position}), {})


def _compact_offset(table: Table) -> object:
    offsets = CompactOffsets(Bases(table.store))
    many = {f"input{index}": Position.of({"at": index}) for index in range(400)}
    start = offsets.write(Offset(positions=many), Offset().to_json())
    return offsets.write(Offset(positions={**many, "input7": FRACTION}), start)


UNREADABLE_RECORDS: dict[str, Callable[[Table], object]] = {
    "a version with a fraction": _draft(live_rows=1.5),
    "a version with a truth value": _draft(live_rows=True),
    "a version with NaN": _draft(counters={"rows": math.nan}),
    "a version with a number beyond 64 bits": _draft(counters={"rows": 2**63}),
    "a version with a value that JSON lacks": _draft(counters={"rows": object()}),
    "a version with a property that is no text": _draft(properties={"priority": 7}),
    "a version with a property of megabytes": _draft(properties={"priority": "x" * (2 << 20)}),
    "a version that restores a fraction": _draft(restored=0.5),
    "a checkpoint with a fraction": _checkpoint(live_rows=0.5),
    "a checkpoint with a writer's number beyond 64 bits": _checkpoint(
        transactions={"w": 2**63}, written_ms={"w": 1}
    ),
    "a hint with a truth value": lambda table: write_hint(table.store, True),
    "a lease of a year that no calendar has": lambda table: hold(
        table.store, table.log, Lease(consumer="c", version=0, renewed_ms=10**18, ttl_ms=1)
    ),
    "a report of pressure on a rung that there is not": lambda table: report(
        table.store, PressureReport(consumer="c", rung=9, pressure=0.5, reported_ms=1)
    ),
    "a base of offsets with a fraction": lambda table: Bases(table.store).write(
        "0" * 32, 1, {"a": FRACTION}
    ),
    "an offset with a fraction": lambda table: _offset(table, FRACTION),
    "an offset of many inputs with a fraction": _compact_offset,
    "a commit of the mirror with NaN": lambda table: DeltaLog(table.store).put(
        [{"add": {"path": "a", "size": math.nan}}], id_="x"
    ),
    "a commit of the mirror with two actions in a line": lambda table: DeltaLog(table.store).put(
        [{"add": {"path": "a"}, "remove": {"path": "b"}}], id_="x"
    ),
    "a checkpoint of the mirror without metadata": lambda table: delta_checkpoints.write_checkpoint(
        table.store,
        DeltaState(version=0, metadata={"format": {"provider": None}}),
        pa.array([], delta_checkpoints._REMOVE),
        now_ms=1,
    ),
}


@pytest.mark.parametrize("kind", UNREADABLE_RECORDS)
def test_a_record_that_its_reader_refuses_is_not_put(kind: str) -> None:
    store = MemoryStore()
    table = Table(store)
    table.ensure(schema_of(Scope.TABLE))
    append(table, [Command(1, 1, 1)])
    versions = {path for path in store.objects if path.startswith("_")}
    with pytest.raises(ValueError, match=r"was not written|no canonical JSON text"):
        UNREADABLE_RECORDS[kind](table)
    added = {path for path in store.objects if path.startswith("_")} - versions
    assert not {path for path in added if not path.startswith("_offsets")}
    assert Table(store).snapshot().num_rows == 1
