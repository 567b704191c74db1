"""The loop with explicit frontiers, case by case; numbers are those of the specification.

`materialize` is the conformance list of the upsert operator. A command is written
``key=value@ts#order``, a tombstone ``key=@ts#order``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.core.schema import ErrorPolicy, Scope
from spark_upsert.errors import ContentionError, DataError
from spark_upsert.feedback import FeedbackUpsert
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Commit, Draft, Kind, Manifest
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.table import Table
from spark_upsert.table.write import stage as stash_module
from spark_upsert.table.write.commands import UpsertEnvelope

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


def send(loop: FeedbackUpsert, commands: str) -> None:
    for command in commands.split():
        match = re.fullmatch(r"(\w+)=(\w*)@(\d+)(?:#(\d+))?", command)
        assert match, command
        key, value, ts, order = match.groups()
        loop.ingest(rows((key, value or None, int(order or 0))), int(ts))


def started(table: Table, commands: str, upper: int) -> FeedbackUpsert:
    """Return a loop that has its input up to a timestamp."""
    loop = start(table)
    send(loop, commands)
    loop.advance(upper)
    return loop


def contents(table: Table) -> dict[str, str]:
    snapshot = table.snapshot()
    return dict(zip(snapshot["key"].to_pylist(), snapshot["value"].to_pylist(), strict=True))


def output(table: Table, lower: int = 1) -> str:
    changes = table.changes(lower, emit_unchanged=True).to_pylist()
    changes.sort(key=lambda row: row["_commit_version"])
    return " ".join(f"{'+-'[row['_diff'] < 0]}{row['key']}={row['value']}" for row in changes)


def totals(commits: Sequence[object]) -> Counters:
    counters = (Counters.from_json(c.counters) for c in commits)  # type: ignore[attr-defined]
    return sum(counters, Counters())


MATERIALIZE: dict[str, tuple[str, int, str, dict[str, str]]] = {
    "1 an insert": ("k=a@0#1", 1, "+k=a", {"k": "a"}),
    "2 the greatest order wins": ("k=a@0#1 k=b@0#2", 1, "+k=b", {"k": "b"}),
    "3 arrival does not matter": ("k=b@0#2 k=a@0#1", 1, "+k=b", {"k": "b"}),
    "4 a tombstone wins in its timestamp": ("k=a@0#1 k=@0#2", 1, "", {}),
    "5 a value after a tombstone": ("k=@0#1 k=a@0#2", 1, "+k=a", {"k": "a"}),
    "6 an update retracts": ("k=a@0 k=b@1", 2, "+k=a -k=a +k=b", {"k": "b"}),
    "7 an equal value is an update": ("k=a@0 k=a@1", 2, "+k=a -k=a +k=a", {"k": "a"}),
    "8 a delete of nothing": ("k=@0", 1, "", {}),
    "10 gaps between timestamps": (
        "k0=v1@0 k1=@2 k0=v3@3#3 k0=v4@3#4",
        4,
        "+k0=v1 -k0=v1 +k0=v4",
        {"k0": "v4"},
    ),
    "20b a tie goes to the later, unlike Materialize's": (
        "k=a@0#5 k=b@0#5",
        1,
        "+k=b",
        {"k": "b"},
    ),
}


@pytest.mark.parametrize(
    ("commands", "upper", "changes", "left"), MATERIALIZE.values(), ids=MATERIALIZE
)
def test_materialize(
    table: Table, commands: str, upper: int, changes: str, left: dict[str, str]
) -> None:
    loop = started(table, commands, upper)
    counted = totals(loop.run())
    assert output(table) == changes
    assert contents(table) == left
    assert loop.persist_upper == upper
    assert counted.is_balanced
    assert counted.output_count == len(changes.split())


def test_12_replay_below_the_resume_upper_is_dropped(table: Table) -> None:
    started(table, "k=old@0", 1).run()
    again = started(table, "k=old@0 k=new@1", 2)
    again.run()
    assert output(table, 2) == "-k=old +k=new"
    assert again.frontiers.dropped_rows == 1


def test_15_only_the_timestamp_at_the_persist_upper_is_emitted(table: Table) -> None:
    loop = started(table, "", 3)
    loop.run()
    send(loop, "a=x@3 b=x@4 c=x@5")
    loop.advance(6)
    loop.step()
    assert contents(table) == {"a": "x"}
    assert loop.frontiers.buffered == (4, 5)
    loop.run()
    assert contents(table) == {"a": "x", "b": "x", "c": "x"}


def test_16_equal_frontiers_emit_nothing(table: Table) -> None:
    loop = started(table, "", 4)
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
    assert sorted(output(table, 2).split()) == sorted(
        change for i in range(1500) for change in (f"-k{i}=a", f"+k{i}=b")
    )


@pytest.mark.parametrize("diff", [0, -1])
def test_18_command_is_never_a_retraction(table: Table, diff: int) -> None:
    loop = start(table)
    with pytest.raises(ValueError, match="'diff' expects a whole number from 1"):
        loop.ingest(rows(("k", "a", 0)), 0, diff=diff)


def test_20d_close_of_the_input_does_not_flush_the_rest(table: Table) -> None:
    loop = started(table, "", 3)
    loop.run()
    send(loop, "a=x@3 b=x@5")
    loop.close()
    loop.run()
    assert contents(table) == {"a": "x"}


def test_abandoned_loop_leaves_no_files(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"compact_bytes": 1, "spill_bytes": 1}
    monkeypatch.setattr(stash_module.Stash.__init__, "__kwdefaults__", sizes)
    with start(table) as loop:
        send(loop, "k=a@0 k=b@0 k=c@0")
        [stash] = loop._stashes.values()
        assert stash._folder is not None
        folder = Path(stash._folder.path)
        assert list(folder.iterdir())
    assert not folder.exists()


# -- errors that pass ------------------------------------------------------------------------


def test_failed_commit_keeps_the_rows_for_the_next_step(table: Table) -> None:
    loop = started(table, "k=a@0", 1)
    failing = patch.object(Table, "commit", side_effect=OSError("no space left on device"))
    with failing, pytest.raises(OSError, match="no space"):
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


def test_commit_that_is_refused_as_too_old_is_staged_again(table: Table) -> None:
    loop, other = started(table, "k=a@0", 1), start(table, "another source")
    send(other, "x=x@0")
    other.advance(1)
    has = type(table.log).has

    def fenced(log: Log, head: Manifest) -> bool:
        """Be asked whether the version is there that the commit is to stand upon."""
        patched.stop()
        other.step()
        table.log.append(
            lambda head: Draft(kind=Kind.EXPIRE, live_rows=head.live_rows, fence=head.version)
        )
        return has(log, head)

    patched = patch.object(type(table.log), "has", fenced)
    patched.start()
    with pytest.raises(ContentionError, match="planned on version 0"):
        loop.step()
    assert loop.step() is not None
    assert contents(table) == {"k": "a", "x": "x"}
    assert table.check().is_sound


def test_loser_of_a_race_counts_the_rows_that_it_drops(table: Table) -> None:
    """The other one commits between this one's judging and its commit."""
    slow, fast = (started(table, "k=a@0 j=a@0", 1) for _ in range(2))
    commit = Table.commit

    def overtaken(self: Table, epoch: Any) -> Commit | None:
        patched.stop()
        assert fast.step() is not None
        return commit(self, epoch)

    patched = patch.object(Table, "commit", overtaken)
    patched.start()
    assert slow.step() is None
    assert (slow.frontiers.dropped_rows, slow.frontiers.buffered) == (2, ())
    assert fast.frontiers.dropped_rows == 0


@pytest.mark.parametrize("is_enveloped", [True, False], ids=["an envelope", "plain rows"])
def test_rows_of_one_timestamp_are_judged_by_one_policy(table: Table, is_enveloped: bool) -> None:
    def plain(*commands: tuple[str, str | None, int]) -> pa.RecordBatch:
        return rows(*commands).drop_columns([] if is_enveloped else ["deleted"])

    bad = plain(("b", "1", 1)).set_column(2, "seq", pa.nulls(1, pa.int64()))
    with start(table) if is_enveloped else FeedbackUpsert(table, "source") as loop:
        loop.ingest(plain(("a", "1", 1)), 0)
        table.alter(replace(table.log.head().schema, on_error=ErrorPolicy.QUARANTINE))
        with pytest.raises(DataError, match="is null"):
            loop.ingest(bad, 0)
        loop.ingest(plain(("c", "1", 1)), 1)
        if not is_enveloped:  # The rules of an envelope are those of its schema.
            loop.ingest(bad, 1)
        loop.advance(2)
        assert len(loop.run()) == 2
    assert contents(table) == {"a": "1", "c": "1"}
    errors = [row["_reason"] for batch in table.quarantine() for row in batch.to_pylist()]
    assert len(errors) == (0 if is_enveloped else 1)
