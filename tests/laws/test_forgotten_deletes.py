"""Forgetting deletes may reject a late row, and never brings a key back or shows a wrong row."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.core.merge_engines import Engine, MergeEngine
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import DataError
from spark_upsert.table.compaction import compact_runs
from spark_upsert.table.log.properties import PROPERTY, LateRows
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.table import Table
from spark_upsert.table.write.form import envelope_of_rows
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.support.stores import MemoryStore

COLUMNS = pa.schema({"id": pa.int64(), "seq": pa.int64()})
DELETED = pa.field("deleted", pa.bool_())
COMMANDS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30), st.booleans()), max_size=4)
STEPS = st.lists(
    st.tuples(COMMANDS, st.sampled_from(["no", "before", "after"]), st.booleans()), max_size=9
)


def rows(commands: list[tuple[int, int, bool]], index: int) -> pa.Table:
    # Order keys of different epochs differ, so that the greatest one of a key is one command.
    return pa.table(
        {
            "id": pa.array([key for key, _, _ in commands], pa.int64()),
            "seq": pa.array([order * 16 + index for _, order, _ in commands], pa.int64()),
            "deleted": pa.array([deleted for _, _, deleted in commands], pa.bool_()),
        }
    )


def make(retention: str) -> Table:
    table = Table(MemoryStore())
    schema = TableSchema.of(COLUMNS, keys=["id"], order=[COLUMNS.field("seq")])
    table.ensure(schema, {PROPERTY: retention})
    return table


@given(steps=STEPS, retention=st.integers(0, 2))
def test_what_is_shown_is_the_greatest_command_of_each_key(
    steps: list[tuple[list[tuple[int, int, bool]], str, bool]], retention: int
) -> None:
    table = make(f"{retention} epochs")
    best: dict[int, tuple[int, bool]] = {}
    rejected = 0
    for index, (commands, when, full) in enumerate(steps):
        head = table.log.head()
        merges = [compact_runs(table.store, head, j) for j in table.compaction_jobs(full=full)]
        if when == "before":
            table.commit_compactions(merges)
        commit = table.upsert(rows(commands, index), deletes="deleted", late_rows=LateRows.REJECT)
        assert commit is not None
        if when == "after":
            table.commit_compactions(merges)
        rejected += Counters.from_json(commit.counters).rejected
        for key, order, deleted in commands:
            mine = (order * 16 + index, deleted)
            if key not in best or mine[0] >= best[key][0]:
                best[key] = mine
        shown = {row["id"]: row["seq"] for row in table.snapshot().to_pylist()}
        alive = {key: order for key, (order, deleted) in best.items() if not deleted}
        assert shown.items() <= alive.items()
        assert rejected or shown == alive
        assert table.log.head().live_rows == len(shown)
        folded: dict[int, int] = {}
        changes = table.changes(1, emit_unchanged=True).to_pylist()
        for row in sorted(changes, key=lambda row: row["_commit_version"]):
            if row["_diff"] < 0:
                assert folded.pop(row["id"], "no row") == row["seq"]
            else:
                assert row["id"] not in folded
                folded[row["id"]] = row["seq"]
        assert folded == shown


def forgetful() -> Table:
    """Return a table that has forgotten a delete of key 1 and of nothing else."""
    table = make("0 epochs")
    table.upsert(rows([(1, 1, False), (2, 1, False)], 0), deletes="deleted")
    table.upsert(rows([(1, 5, True)], 0), deletes="deleted")
    table.compact(full=True)
    assert sum(part.file.tombstones for part in table.log.head().slices) == 0
    return table


def test_a_late_row_of_a_forgotten_key_is_counted_warned_of_and_not_applied(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = forgetful()
    late = table.upsert(rows([(1, 3, False)], 0), deletes="deleted", late_rows=LateRows.REJECT)
    assert late is not None
    assert late.counters["rejected"] == 1
    assert late.added == ()
    assert [row["id"] for row in table.snapshot().to_pylist()] == [2]
    [warning] = caplog.messages
    for part in ("1 rows were left out (lateRows)", "up to seq=80", "id=1"):
        assert part in warning


def test_a_late_row_fails_a_batch_write_unless_told_otherwise() -> None:
    table = forgetful()
    before = table.log.head().version
    with pytest.raises(DataError, match=r"1 rows are late \(for example id=1\)"):
        table.upsert(rows([(1, 3, False), (3, 9, False)], 0), deletes="deleted")
    assert table.log.head().version == before


def test_a_late_delete_has_no_effect_and_is_no_error() -> None:
    table = forgetful()
    late = table.upsert(rows([(1, 3, True), (3, 2, True)], 0), deletes="deleted")
    assert late is not None
    assert (late.counters["rejected"], late.added) == (2, ())


def test_late_rows_of_a_backfill_are_rows_of_the_table_and_of_the_changelog(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = forgetful()
    late = table.upsert(
        rows([(1, 3, False), (3, 2, False), (4, 9, False)], 0),
        deletes="deleted",
        late_rows=LateRows.APPLY,
    )
    assert late is not None
    assert (late.counters["inserts"], late.counters["late"], late.counters["rejected"]) == (3, 2, 0)
    assert "2 rows were applied (lateRows)" in caplog.messages[0]
    shown = {row["id"] for row in table.snapshot().to_pylist()}
    assert shown == {1, 2, 3, 4}
    # In one read with the epochs whose deletes are forgotten since, too.
    for first in range(1, table.log.head().upper):
        known = {row["id"] for row in table.snapshot(first - 1).to_pylist()}
        for row in table.changes(first).to_pylist():
            known = known | {row["id"]} if row["_diff"] > 0 else known - {row["id"]}
        assert known == shown
    assert table.check().is_sound


@given(steps=STEPS)
def test_applied_late_rows_leave_the_changelog_and_the_numbers_exact(
    steps: list[tuple[list[tuple[int, int, bool]], str, bool]],
) -> None:
    table = make("0 epochs")
    for index, (commands, when, full) in enumerate(steps):
        # Staged before the compaction, committed behind it.
        base = table.at()
        columns = rows(commands, index).schema
        envelope = envelope_of_rows(base.manifest.schema, columns, deletes="deleted")
        batches = [envelope.commands(b) for b in rows(commands, index).to_batches()]
        staged = stage(base, batches, late_rows=LateRows.APPLY)
        if when != "no":
            table.compact(full=full)
        table.commit(WriteSet(base=base, staged=(staged,), late_rows=LateRows.APPLY))
    shown = {row["id"]: row["seq"] for row in table.snapshot().to_pylist()}
    assert table.log.head().live_rows == len(shown)
    for first in range(1, table.log.head().upper):
        known = {row["id"]: row["seq"] for row in table.snapshot(first - 1).to_pylist()}
        changes = table.changes(first, emit_unchanged=True).to_pylist()
        for row in sorted(changes, key=lambda row: row["_commit_version"]):
            if row["_diff"] < 0:
                assert known.pop(row["id"], "no row") == row["seq"]
            else:
                known[row["id"]] = row["seq"]
        assert known == shown
    assert table.check().is_sound


def test_a_delete_is_kept_while_its_retention_lasts() -> None:
    table = make("forever")
    table.upsert(rows([(1, 1, False)], 0), deletes="deleted")
    table.upsert(rows([(1, 5, True)], 0), deletes="deleted")
    table.compact(full=True)
    assert table.log.head().low_water is None
    late = table.upsert(rows([(1, 3, False)], 0), deletes="deleted")
    assert late is not None
    assert late.counters["stale"] == 1
    assert table.snapshot().num_rows == 0


def test_a_delete_of_a_partial_update_is_not_forgotten_before_older_values_of_columns() -> None:
    columns = pa.schema({"id": pa.int64(), "a": pa.int64(), "b": pa.int64()})
    table = Table(MemoryStore())
    engine = MergeEngine(Engine.PARTIAL_UPDATE)
    order = [pa.field("seq", pa.int64())]
    schema = TableSchema.of(columns, keys=["id"], order=order, engine=engine)
    table.ensure(schema, {PROPERTY: "0 epochs"})
    for a, b, seq, deleted in ((7, None, 1, False), (None, None, 5, True), (None, 2, 9, False)):
        row = {"id": [1], "a": [a], "b": [b], "seq": [seq], "deleted": [deleted]}
        table.upsert(
            pa.table(row, schema=pa.schema([*columns, *order, DELETED])), deletes="deleted"
        )
        table.compact(full=True)
    row = {"id": [1], "a": [3], "b": [None], "seq": [4], "deleted": [False]}
    table.upsert(pa.table(row, schema=pa.schema([*columns, *order, DELETED])), deletes="deleted")
    assert table.snapshot().to_pylist() == [{"id": 1, "a": None, "b": 2}]
