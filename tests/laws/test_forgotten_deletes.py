"""Forgetting deletes may reject a late row, and never brings a key back or shows a wrong row."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.schema import TableSchema
from spark_upsert.state.compaction import merge
from spark_upsert.state.tombstones import PROPERTY
from spark_upsert.table import Table
from spark_upsert.upsert.counters import Counters
from tests.support.stores import MemoryStore

COLUMNS = pa.schema({"id": pa.int64(), "seq": pa.int64()})
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
        merges = [merge(table.store, head, j) for j in table.compaction_jobs(full=full)]
        if when == "before":
            table.commit_merges(merges)
        commit = table.append(rows(commands, index), deletes="deleted")
        assert commit is not None
        if when == "after":
            table.commit_merges(merges)
        rejected += Counters.from_json(commit.counters).rejected
        for key, order, deleted in commands:
            mine = (order * 16 + index, deleted)
            if key not in best or mine[0] > best[key][0]:
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
                assert folded.pop(row["id"]) == row["seq"]
            else:
                assert row["id"] not in folded
                folded[row["id"]] = row["seq"]
        assert folded == shown


def test_a_late_row_of_a_forgotten_key_is_counted_and_not_applied() -> None:
    table = make("0 epochs")
    table.append(rows([(1, 1, False), (2, 1, False)], 0), deletes="deleted")
    table.append(rows([(1, 5, True)], 0), deletes="deleted")
    table.compact(full=True)
    assert sum(part.file.tombstones for part in table.log.head().slices) == 0
    late = table.append(rows([(1, 3, False)], 0), deletes="deleted")
    assert late is not None
    assert late.counters["rejected"] == 1
    assert late.added == ()
    assert [row["id"] for row in table.snapshot().to_pylist()] == [2]


def test_a_delete_is_kept_while_its_retention_lasts() -> None:
    table = make("forever")
    table.append(rows([(1, 1, False)], 0), deletes="deleted")
    table.append(rows([(1, 5, True)], 0), deletes="deleted")
    table.compact(full=True)
    assert table.log.head().low_water is None
    late = table.append(rows([(1, 3, False)], 0), deletes="deleted")
    assert late is not None
    assert late.counters["stale"] == 1
    assert table.snapshot().num_rows == 0
