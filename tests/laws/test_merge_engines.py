"""Merge engines are semigroups: however commands are cut into tasks, epochs and merges.

Each engine has an obvious model that looks at all commands of a key at once. Order keys are
distinct, few keys collide, and the table is compacted at random moments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import DataError
from spark_upsert.table.state.fold import as_collected
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.commands import UpsertEnvelope
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.support.stores import MemoryStore

COLUMNS = {"id": pa.int64(), "a": pa.int64(), "b": pa.int64(), "seq": pa.int64()}


@dataclass(frozen=True)
class Sent:
    """One command; ``own`` is the order key of column b where it has its own."""

    key: int
    a: int | None
    b: int | None
    seq: int
    own: int
    is_delete: bool = False


Rows = dict[int, tuple[Any, Any]]


def partial_update(commands: Sequence[Sent], *, ordered: bool, own: bool) -> tuple[Any, Any] | None:
    if not ordered:
        last = max((i for i, c in enumerate(commands) if c.is_delete), default=-1)
        rest = commands[last + 1 :]
        values = [[getattr(c, n) for c in rest if getattr(c, n) is not None] for n in "ab"]
        row = tuple(v[-1] if v else None for v in values)
        return row if rest else None  # type: ignore[return-value]
    dead = max((c.seq for c in commands if c.is_delete), default=-1)
    puts = [c for c in commands if not c.is_delete]
    if not any(c.seq > dead for c in puts):
        return None
    a = max(((c.seq, c.a) for c in puts if c.a is not None and c.seq > dead), default=(0, None))
    left = [(i, c) for i, c in enumerate(puts) if c.b is not None and c.seq > dead]
    b = max(((c.own if own else c.seq, -i, c.b) for i, c in left), default=(0, 0, None))
    return a[1], b[2]


AGGREGATES: dict[Rule, Callable[[list[tuple[int, int]]], Any]] = {
    Rule.SUM: lambda values: sum(v for _, v in values),
    Rule.MAX: lambda values: max(v for _, v in values),
    Rule.MIN: lambda values: min(v for _, v in values),
    Rule.COLLECT: lambda values: sorted({v for _, v in values}),
    Rule.LAST: lambda values: max(values)[1],
}


def expected(engine: MergeEngine, commands: Sequence[Sent], *, ordered: bool) -> Rows:
    """Return the rows of a table after all commands, each key on its own."""
    rows: Rows = {}
    for key in {c.key for c in commands}:
        mine = [c for c in commands if c.key == key]
        by_order = sorted(mine, key=lambda c: c.seq) if ordered else mine
        row: tuple[Any, Any] | None
        if engine.kind is Engine.DEDUPLICATE:
            last = by_order[-1]
            row = None if last.is_delete else (last.a, last.b)
        elif engine.kind is Engine.FIRST_ROW:
            row = (by_order[0].a, by_order[0].b)
        elif engine.kind is Engine.PARTIAL_UPDATE:
            row = partial_update(mine, ordered=ordered, own=bool(engine.column_order))
        else:
            cells = []
            for name in "ab":
                values = [
                    (c.seq if ordered else i, getattr(c, name))
                    for i, c in enumerate(mine)
                    if getattr(c, name) is not None
                ]
                cells.append(AGGREGATES[engine.rule(name)](values) if values else None)
            row = (cells[0], cells[1])
        if row is not None:
            rows[key] = row
    return rows


ENGINES = st.one_of(
    st.just(MergeEngine()),
    st.just(MergeEngine(Engine.FIRST_ROW)),
    st.just(MergeEngine(Engine.PARTIAL_UPDATE)),
    st.just(MergeEngine(Engine.PARTIAL_UPDATE, {}, {"b": "own"})),
    st.builds(
        lambda a, b: MergeEngine(Engine.AGGREGATION, {"a": a, "b": b}),
        st.sampled_from(Rule),
        st.sampled_from(Rule),
    ),
)
SENT = st.builds(
    Sent,
    key=st.integers(0, 3),
    a=st.none() | st.integers(1, 3),
    b=st.none() | st.integers(4, 6),
    seq=st.just(0),
    own=st.just(0),
    is_delete=st.sampled_from([False, False, False, True]),
)
EPOCHS = st.lists(
    st.tuples(st.lists(st.lists(SENT, max_size=4), min_size=1, max_size=3), st.sampled_from("-cC")),
    min_size=1,
    max_size=5,
)


def batch(commands: Sequence[Sent]) -> pa.RecordBatch:
    columns = {
        "id": [c.key for c in commands],
        "a": [c.a for c in commands],
        "b": [c.b for c in commands],
        "seq": [c.seq for c in commands],
        "own": [c.own for c in commands],
    }
    arrays = [pa.array(values, pa.int64()) for values in columns.values()]
    deleted = pa.array([c.is_delete for c in commands], pa.bool_())
    return pa.RecordBatch.from_arrays([*arrays, deleted], names=[*columns, "deleted"])


@given(engine=ENGINES, epochs=EPOCHS, ordered=st.booleans(), data=st.data())
def test_a_table_is_what_all_of_its_commands_make_it(
    engine: MergeEngine,
    epochs: list[tuple[list[list[Sent]], str]],
    ordered: bool,
    data: st.DataObject,
) -> None:
    ordered = ordered or bool(engine.column_order)
    count = sum(len(task) for tasks, _ in epochs for task in tasks)
    seqs = iter(data.draw(st.permutations(range(count))))
    owns = iter(data.draw(st.permutations(range(count))))
    table = _table(engine, ordered=ordered)
    sent: list[Sent] = []
    versions: list[tuple[int, Rows]] = []
    for tasks, compaction in epochs:
        numbered = [[_numbered(c, seqs, owns, engine) for c in task] for task in tasks]
        counters = _apply(table, numbered, ordered=ordered)
        sent += [c for task in numbered for c in task]
        rows = expected(engine, sent, ordered=ordered)
        versions.append((table.log.head().version, rows))
        assert counters.is_balanced
        assert counters.rows == sum(map(len, numbered))
        assert table.log.head().live_rows == len(rows)
        if compaction != "-":
            table.compact(full=compaction == "C")
    for version, rows in versions:
        assert _pairs(table.snapshot(version)) == rows
        assert _folded(table, version) == rows
        counters = Counters.from_json(table.log.commit(version).counters)
        changes = table.changes(version, version + 1, emit_unchanged=True)
        assert counters.output_count == changes.num_rows


@given(engine=ENGINES, commands=st.lists(SENT, max_size=8), data=st.data())
def test_with_an_order_key_neither_batching_nor_arrival_matters(
    engine: MergeEngine, commands: list[Sent], data: st.DataObject
) -> None:
    seqs, owns = iter(range(100)), iter(range(100))
    numbered = [_numbered(c, seqs, owns, engine) for c in commands]
    shuffled = data.draw(st.permutations(numbered))
    cut = data.draw(st.integers(0, len(numbered)))
    one, other = _table(engine, ordered=True), _table(engine, ordered=True)
    _apply(one, [numbered], ordered=True)
    for part in (shuffled[:cut], shuffled[cut:]):
        _apply(other, [part], ordered=True)
    assert _pairs(one.snapshot()) == _pairs(other.snapshot())


@pytest.mark.parametrize("kind", [Engine.FIRST_ROW, Engine.AGGREGATION])
def test_an_engine_that_cannot_delete_refuses_deletes(kind: Engine) -> None:
    table = _table(MergeEngine(kind), ordered=True)
    with pytest.raises(DataError, match="1 rows are deletes"):
        _apply(table, [[Sent(1, 1, 1, 1, 1, is_delete=True)]], ordered=True)
    assert table.log.head().version == 0


def _numbered(sent: Sent, seqs: Any, owns: Any, engine: MergeEngine) -> Sent:
    is_delete = sent.is_delete and engine.takes_deletes
    return Sent(sent.key, sent.a, sent.b, next(seqs), next(owns), is_delete)


def _table(engine: MergeEngine, *, ordered: bool) -> Table:
    table = Table(MemoryStore())
    columns = as_collected(pa.schema(list(COLUMNS.items())), engine)
    order = [columns.field("seq")] if ordered else []
    table.ensure(TableSchema.of(columns, keys=["id"], order=order, engine=engine))
    return table


def _apply(table: Table, tasks: Sequence[Sequence[Sent]], *, ordered: bool) -> Counters:
    schema = table.log.head().schema
    envelope = UpsertEnvelope(
        schema=schema,
        sources={name: name for name in schema.columns.names},
        order=("seq",) if ordered else (),
        own_order=schema.engine.column_order,
        deletes="deleted",
    )
    snapshot = Snapshot(table.store, table.log.head())
    staged = tuple(stage(snapshot, [envelope.commands(batch(task))]) for task in tasks)
    epoch = WriteSet(base=snapshot, staged=staged, allow_unordered=True)
    commit = table.commit(epoch)
    assert commit is not None
    return Counters.from_json(commit.counters)


def _pairs(rows: pa.Table) -> Rows:
    return {row["id"]: (row["a"], row["b"]) for row in rows.to_pylist()}


def _folded(table: Table, version: int) -> Rows:
    changes = table.changes(1, version + 1, emit_unchanged=True).to_pylist()
    rows: Rows = {}
    for row in sorted(changes, key=lambda row: row["_commit_version"]):
        if row["_diff"] < 0:
            assert rows.pop(row["id"], "no row") == (row["a"], row["b"])
        else:
            assert row["id"] not in rows
            rows[row["id"]] = (row["a"], row["b"])
    return rows
