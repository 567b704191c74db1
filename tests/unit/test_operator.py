"""The loop with explicit frontiers, case by case; numbers are those of the specification.

`materialize` is the conformance list of the upsert operator. A command is written
``key=value@ts#order``, a tombstone ``key=@ts#order``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest

from spark_upsert.core.schema import ErrorPolicy, Scope, TableSchema
from spark_upsert.errors import ContentionError, DataError
from spark_upsert.feedback import FeedbackUpsert
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Commit, Draft, Kind, Manifest
from spark_upsert.table.state.counters import Counters
from spark_upsert.table.table import Table
from spark_upsert.table.write import stash as stash_module
from spark_upsert.table.write.commands import UpsertEnvelope
from tests.support.stores import BrokenError, Fault, FaultyStore, MemoryStore, Moment, Steps

T = TypeVar("T")
COLUMNS = pa.schema({"key": pa.string(), "value": pa.string(), "seq": pa.int64()})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    # Materialize's own rule: the order decides inside one timestamp only.
    return Table.create(
        str(tmp_path / "table"), COLUMNS, keys=["key"], sequence_by=["seq"], scope=Scope.EPOCH
    )


def start(table: Table, writer: str = "source") -> FeedbackUpsert:
    envelope = UpsertEnvelope(
        schema=table.log.head().schema,
        sources={name: name for name in COLUMNS.names},
        order=("seq",),
        deletes="deleted",
    )
    return FeedbackUpsert(table, writer, envelope.commands)


def rows(*commands: tuple[str, str | None, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "key": [key for key, _, _ in commands],
            "value": pa.array([value for _, value, _ in commands], pa.string()),
            "seq": [order for _, _, order in commands],
            "deleted": [value is None for _, value, _ in commands],
        }
    )


def send(loop: FeedbackUpsert, *commands: str) -> None:
    for command in commands:
        match = re.fullmatch(r"(\w+)=(\w*)@(\d+)(?:#(\d+))?", command)
        assert match, command
        key, value, ts, order = match.groups()
        loop.ingest(rows((key, value or None, int(order or 0))), int(ts))


def contents(table: Table) -> dict[str, str]:
    found = table.snapshot()
    return dict(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True))


def output(table: Table, lower: int = 1) -> list[tuple[str, str, int]]:
    changes = table.changes(lower, emit_unchanged=True).to_pylist()
    changes.sort(key=lambda row: row["_commit_version"])
    return [(row["key"], row["value"], row["_diff"]) for row in changes]


def totals(commits: Sequence[object]) -> Counters:
    counters = (Counters.from_json(c.counters) for c in commits)  # type: ignore[attr-defined]
    return sum(counters, Counters())


@pytest.mark.parametrize(
    ("commands", "upper", "expected", "left"),
    [
        pytest.param(["k=a@0#1"], 1, [("k", "a", 1)], {"k": "a"}, id="1 an insert"),
        pytest.param(
            ["k=a@0#1", "k=b@0#2"], 1, [("k", "b", 1)], {"k": "b"}, id="2 the greatest order wins"
        ),
        pytest.param(
            ["k=b@0#2", "k=a@0#1"], 1, [("k", "b", 1)], {"k": "b"}, id="3 arrival does not matter"
        ),
        pytest.param(["k=a@0#1", "k=@0#2"], 1, [], {}, id="4 a tombstone wins in its timestamp"),
        pytest.param(
            ["k=@0#1", "k=a@0#2"], 1, [("k", "a", 1)], {"k": "a"}, id="5 a value after a tombstone"
        ),
        pytest.param(
            ["k=a@0", "k=b@1"],
            2,
            [("k", "a", 1), ("k", "a", -1), ("k", "b", 1)],
            {"k": "b"},
            id="6 an update retracts",
        ),
        pytest.param(
            ["k=a@0", "k=a@1"],
            2,
            [("k", "a", 1), ("k", "a", -1), ("k", "a", 1)],
            {"k": "a"},
            id="7 an equal value is still an update",
        ),
        pytest.param(["k=@0"], 1, [], {}, id="8 a delete of nothing"),
        pytest.param(
            ["k0=v1@0", "k1=@2", "k0=v3@3#3", "k0=v4@3#4"],
            4,
            [("k0", "v1", 1), ("k0", "v1", -1), ("k0", "v4", 1)],
            {"k0": "v4"},
            id="10 gaps between timestamps",
        ),
        pytest.param(
            ["k=a@0#5", "k=b@0#5"],
            1,
            [("k", "b", 1)],
            {"k": "b"},
            id="20b a tie goes to the later one, unlike Materialize's",
        ),
    ],
)
def test_materialize(
    table: Table,
    commands: list[str],
    upper: int,
    expected: list[tuple[str, str, int]],
    left: dict[str, str],
) -> None:
    loop = start(table)
    send(loop, *commands)
    loop.advance(upper)
    commits = loop.run()
    assert output(table) == expected
    assert contents(table) == left
    assert loop.persist_upper == upper
    counted = totals(commits)
    assert counted.is_balanced
    assert counted.output_count == len(expected)


def test_12_a_replay_below_the_resume_upper_is_dropped(table: Table) -> None:
    first = start(table)
    send(first, "k=old@0")
    first.advance(1)
    first.run()
    again = start(table)
    send(again, "k=old@0", "k=new@1")
    again.advance(2)
    again.run()
    assert output(table, 2) == [("k", "old", -1), ("k", "new", 1)]
    assert again.frontiers.dropped_rows == 1


def test_15_only_the_timestamp_at_the_persist_upper_is_emitted(table: Table) -> None:
    loop = start(table)
    loop.advance(3)
    loop.run()
    send(loop, "a=x@3", "b=x@4", "c=x@5")
    loop.advance(6)
    loop.step()
    assert contents(table) == {"a": "x"}
    assert loop.frontiers.buffered == (4, 5)
    loop.run()
    assert contents(table) == {"a": "x", "b": "x", "c": "x"}


def test_16_equal_frontiers_emit_nothing(table: Table) -> None:
    loop = start(table)
    loop.advance(4)
    loop.run()
    send(loop, "k=a@4")
    assert loop.run() == []
    assert contents(table) == {}
    loop.advance(5)
    loop.run()
    assert contents(table) == {"k": "a"}


def test_17_many_keys_are_retracted_exactly_once(table: Table) -> None:
    loop = start(table)
    for ts, value in ((0, "a"), (1, "b")):
        loop.ingest(rows(*((f"k{i}", value, 0) for i in range(1500))), ts)
    loop.advance(2)
    commits = loop.run()
    assert totals(commits).inserts == totals(commits).updates == 1500
    assert sorted(output(table, 2)) == sorted(
        (f"k{i}", value, diff) for i in range(1500) for value, diff in (("a", -1), ("b", 1))
    )


@pytest.mark.parametrize("diff", [0, -1])
def test_18_a_command_is_never_a_retraction(table: Table, diff: int) -> None:
    loop = start(table)
    with pytest.raises(ValueError, match="'diff' expects a whole number from 1"):
        loop.ingest(rows(("k", "a", 0)), 0, diff=diff)


def test_20d_closing_the_input_does_not_flush_the_rest(table: Table) -> None:
    loop = start(table)
    loop.advance(3)
    loop.run()
    send(loop, "a=x@3", "b=x@5")
    loop.close()
    loop.run()
    assert contents(table) == {"a": "x"}


def test_a_lagging_incarnation_drops_what_another_made_durable(table: Table) -> None:
    slow, fast = start(table), start(table)
    for loop in (slow, fast):
        send(loop, "k=a@0", "k=b@1")
        loop.advance(2)
    fast.run()
    versions = table.log.head().version
    slow.run()
    assert table.log.head().version == versions
    assert slow.frontiers.dropped_rows == 2
    assert contents(table) == {"k": "b"}


def test_two_incarnations_step_by_step_apply_each_timestamp_once(table: Table) -> None:
    loops = [start(table), start(table)]
    for loop in loops:
        send(loop, *(f"k={value}@{ts}" for ts, value in enumerate("abcdef")))
        loop.advance(6)
    while any(loop.persist_upper < 6 for loop in loops):
        for loop in loops:
            loop.step()
    expected = [("k", "a", 1)]
    for old, new in zip("abcde", "bcdef", strict=True):
        expected += [("k", old, -1), ("k", new, 1)]
    assert output(table) == expected


def test_what_is_abandoned_leaves_no_files(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"settle_bytes": 1, "spill_bytes": 1}
    monkeypatch.setattr(stash_module.Stash.__init__, "__kwdefaults__", sizes)
    with start(table) as loop:
        send(loop, "k=a@0", "k=b@0", "k=c@0")
        [stash] = loop._stashes.values()
        assert stash._folder is not None
        folder = Path(stash._folder.path)
        assert list(folder.iterdir())
    assert not folder.exists()


# -- errors that pass ------------------------------------------------------------------------


def test_a_failed_commit_keeps_the_rows_for_the_next_step(table: Table) -> None:
    loop = start(table)
    send(loop, "k=a@0")
    loop.advance(1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Table, "commit", _no_space)
        with pytest.raises(OSError, match="no space"):
            loop.step()
    assert loop.frontiers.buffered == (0,)
    commit = loop.step()
    assert commit is not None
    assert commit.counters["rows"] == 1
    assert contents(table) == {"k": "a"}


def test_timestamps_that_the_source_leaves_out_cost_no_version(table: Table) -> None:
    loop = start(table)
    for ts in (99, 250, 4000):
        send(loop, f"k={ts}@{ts}")
        loop.advance(ts + 1)
        before = table.log.head().version
        assert [commit.version for commit in loop.run()] == [before + 1]
        assert loop.persist_upper == ts + 1
    assert contents(table) == {"k": "4000"}


def _no_space(self: Table, epoch: object) -> Commit | None:
    raise OSError("no space left on device")


def test_a_commit_that_is_refused_as_too_old_is_staged_again(table: Table) -> None:
    loop = start(table)
    send(loop, "k=a@0")
    loop.advance(1)
    has = type(table.log).has

    def fenced(log: Log, head: Manifest) -> bool:
        """Be asked whether the version is there that the commit is to stand upon."""
        patched.undo()
        send(other, "x=x@0")
        other.advance(1)
        other.step()
        table.log.append(
            lambda head: Draft(
                kind=Kind.EXPIRE,
                live_rows=head.live_rows,
                fence=head.version,
            )
        )
        return has(log, head)

    other = start(table, "another source")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(table.log), "has", fenced)
        with pytest.raises(ContentionError, match="planned on version 0"):
            loop.step()
    assert loop.step() is not None
    assert contents(table) == {"k": "a", "x": "x"}
    assert table.check().is_sound


def test_the_loser_of_a_race_counts_the_rows_that_it_drops(table: Table) -> None:
    """The other one commits between this one's judging and its commit."""
    slow, fast = start(table), start(table)
    for loop in (slow, fast):
        send(loop, "k=a@0", "j=a@0")
        loop.advance(1)
    commit = Table.commit

    def overtaken(self: Table, epoch: object) -> Commit | None:
        patched.undo()
        assert fast.step() is not None
        return commit(self, epoch)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Table, "commit", overtaken)
        assert slow.step() is None
    assert slow.frontiers.dropped_rows == 2
    assert slow.frontiers.buffered == ()
    assert fast.frontiers.dropped_rows == 0


def test_rows_that_cannot_be_applied_leave_no_trace(table: Table) -> None:
    loop = start(table)
    bad = rows(("k", "a", 1)).set_column(2, "seq", pa.nulls(1, pa.int64()))
    with pytest.raises(ValueError, match="is null"):
        loop.ingest(bad, 0)
    assert loop.frontiers.buffered == ()


@pytest.mark.slow
@pytest.mark.parametrize("moment", Moment, ids=lambda moment: moment.value)
@pytest.mark.parametrize("spills", [False, True], ids=["in memory", "spilled"])
def test_a_fault_at_any_step_and_a_retry_apply_each_row_once(
    spills: bool, moment: Moment, monkeypatch: pytest.MonkeyPatch
) -> None:
    stride = 1
    if spills:
        sizes = {"settle_bytes": 100, "spill_bytes": 300}
        monkeypatch.setattr(stash_module.Stash.__init__, "__kwdefaults__", sizes)
        stride = 23  # Each seal writes a dozen files.
    step = 0
    while _survives(Fault(step, moment, BrokenError)):
        step += stride
    assert step > 20


def _survives(fault: Fault) -> bool:
    """Apply a source with one fault, repeating what failed; False if the fault lies behind."""
    store, steps = MemoryStore(), Steps(fault)
    order = [COLUMNS.field("seq")]
    schema = TableSchema.of(COLUMNS, keys=["key"], order=order, scope=Scope.EPOCH)
    Table(store).ensure(schema)
    table = Table(FaultyStore(store, steps))
    loop = _retry(lambda: start(table))
    batches = {
        ts: [rows(*((f"k{i}", value, i) for i in range(at, at + 9))) for at in (0, 5)]
        for ts, value in enumerate("ab")
    }
    for ts, each in batches.items():
        for batch in each:
            _retry(partial(loop.ingest, batch, ts))
    loop.advance(2)
    made = [commit for _ in range(4) if (commit := _retry(loop.step)) is not None]
    frontiers = _retry(lambda: loop.frontiers)
    assert contents(Table(store)) == {f"k{i}": "b" for i in range(14)}, str(fault)
    assert totals(made).rows + frontiers.dropped_rows == 36, str(fault)
    assert frontiers.buffered == ()
    for commit in Table(store).log.commits(1, 3):
        counters = Counters.from_json(commit.counters)
        assert counters == replace(counters, rows=18, duplicates=4), str(fault)
    named = {file.path for commit in Table(store).log.commits(1, 3) for file in commit.added}
    # A file whose opening failed after its effect is empty, and its name is unknown.
    left = {path for path, data in store.objects.items() if path.startswith("data/") and data}
    assert left == named, str(fault)
    return steps.struck


def _retry(action: Callable[[], T]) -> T:
    try:
        return action()
    except BrokenError:
        return action()


def keep_errors(table: Table) -> None:
    schema = table.log.head().schema
    table.alter(replace(schema, on_error=ErrorPolicy.QUARANTINE))


def test_an_operator_goes_on_where_the_table_has_come_to_keep_errors(table: Table) -> None:
    with start(table) as loop:
        loop.ingest(rows(("a", "1", 1)), 0)
        keep_errors(table)
        loop.ingest(rows(("b", "1", 1)), 0)
        loop.ingest(rows(("c", "1", 1), ("a", None, 2)), 1)
        loop.advance(2)
        assert len(loop.run()) == 2
    found = {row["key"] for batch in table.scan() for row in batch.to_pylist()}
    assert found == {"b", "c"}


def test_rows_of_one_timestamp_are_judged_by_one_policy(table: Table) -> None:
    bad = pa.RecordBatch.from_pydict({"key": ["b"], "value": ["1"], "seq": pa.array([None], "i8")})
    with FeedbackUpsert(table, "source") as loop:
        loop.ingest(rows(("a", "1", 1)).drop_columns("deleted"), 0)
        keep_errors(table)
        with pytest.raises(DataError):
            loop.ingest(bad, 0)
        loop.ingest(bad, 1)
        loop.advance(2)
        loop.run()
    [error] = [row for batch in table.quarantine() for row in batch.to_pylist()]
    assert error["_reason"] is not None
