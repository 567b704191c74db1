"""The log of a mirror stays small: checkpoints, and what is removed behind the retention."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.core.schema import TableSchema
from spark_upsert.delta import publish, upkeep
from spark_upsert.delta.actions import DeltaState
from spark_upsert.delta.checkpoints import checksum_path
from spark_upsert.delta.follow import mirror_status
from spark_upsert.delta.log import DeltaLog, open_mirror_store
from spark_upsert.delta.publish import Mirror, check_mirror
from spark_upsert.errors import CorruptionError
from spark_upsert.metadata import VIEWS
from spark_upsert.options.read import Metadata
from spark_upsert.store import LocalStore
from spark_upsert.store.open import PrefixStore
from spark_upsert.table.log.manifest import Draft, Kind
from spark_upsert.table.table import Table
from tests.support.calls import raising
from tests.support.clocked import ClockedStore, Now
from tests.support.delta import DeltaTable
from tests.support.mirrored import KINDS, MirroredTable, canonical, require_copy

HOUR_MS = 3_600_000


class Lived:
    """A table that is written and published, on a storage that tells its time."""

    def __init__(self) -> None:
        self.now = Now()
        self.store = ClockedStore(self.now)
        columns = pa.schema({"id": pa.int64(), "x": pa.string()})
        self.table = Table(self.store, clock=self.now)
        self.table.ensure(TableSchema.of(columns, keys=["id"]))
        self.target = open_mirror_store(self.store, None)
        self.mirror = self.a_mirror()

    def a_mirror(self) -> Mirror:
        return Mirror(Table(self.store, clock=self.now).log, self.store, self.target)

    def go(self, commits: int, *, seconds: float = 1.0) -> None:
        for number in range(commits):
            self.now.advance(seconds)
            ids = [number % 7, number % 3 + 10]
            self.table.upsert(pa.table({"id": ids, "x": [f"{self.now()}"] * 2}))
            self.mirror.publish()

    def clean(self) -> None:
        """Remove all that may go."""
        now_ms = int(self.now() * 1000)
        self.mirror.upkeep.vacuum(now_ms=now_ms, retention_ms=6 * HOUR_MS, dry_run=False)

    def log(self) -> list[str]:
        return [info.path.removeprefix("_delta_log/") for info in self.target.list("_delta_log")]

    def files(self) -> set[str]:
        return {info.path for info in self.target.list("")}

    def rows_at(self, version: int) -> list[str]:
        return canonical(DeltaTable(self.target, version).rows())

    def require_copy(self) -> DeltaTable:
        return require_copy(self.table, self.target)


def name(version: int, kind: str = "json") -> str:
    return f"{version:020d}.{kind}"


def state_of(log: DeltaLog) -> DeltaState:
    state = log.follow()
    assert state is not None
    # A checkpoint changes no data.
    live = {path: {**add, "dataChange": False} for path, add in state.live.items()}
    return replace(state, checkpoint=None, removed=(), last_id="", live=live)


def test_45_a_checkpoint_is_the_state_of_its_log() -> None:
    lived = Lived()
    for _ in range(4):
        lived.go(8)
        lived.mirror = lived.a_mirror()
    checkpoints = [name(version, "checkpoint.parquet") for version in (9, 19, 29)]
    assert [n for n in lived.log() if "checkpoint" in n] == [*checkpoints, "_last_checkpoint"]
    hint = json.loads(lived.target.read("_delta_log/_last_checkpoint"))
    assert (hint["version"], hint["numOfAddFiles"]) == (29, len(DeltaTable(lived.target, 29).adds))
    new, whole = DeltaLog(lived.target), DeltaLog(lived.target)
    with (
        patch.object(whole, "_read_hint", lambda: 0),
        patch.object(whole, "_begin_at", lambda v: None),
    ):
        assert state_of(new) == state_of(whole)
    assert new.seen is not None
    assert new.seen.checkpoint == 29
    lived.require_copy()


@pytest.mark.parametrize(
    ("hint", "lost"),
    [
        (None, ()),
        (b"{", ()),
        (b'{"version": 9}', ()),
        (b'{"version": 4}', ()),
        (b'{"version": 99}', ()),
        pytest.param(b'{"version": 9}', range(10, 19), id="old, and commits behind it are gone"),
    ],
)
@pytest.mark.sweep(2)
def test_46_the_hint_may_be_absent_or_wrong(hint: bytes | None, lost: Sequence[int]) -> None:
    lived = Lived()
    lived.go(25)
    expected = state_of(DeltaLog(lived.target))
    lived.target.delete("_delta_log/_last_checkpoint")
    if hint is not None:
        lived.target.put("_delta_log/_last_checkpoint", hint)
    for version in lost:
        lived.target.delete(f"_delta_log/{name(version)}")
    assert state_of(DeltaLog(lived.target)) == expected


def test_tombstones_stay_for_the_retention() -> None:
    lived = Lived()

    def removed_ms(version: int) -> list[int]:
        removes = DeltaTable(lived.target).checkpoint(version).column("remove").drop_null()
        return [each["deletionTimestamp"] for each in removes.to_pylist()]

    lived.go(10)
    lived.now.advance(3 * 3600)
    lived.go(10)
    assert 0 < len(removed_ms(9)) < len(removed_ms(19))
    lived.now.advance(4 * 3600)
    lived.go(10)
    assert min(removed_ms(29)) >= lived.now() * 1000 - 6 * HOUR_MS
    assert not lived.mirror.upkeep.failures


def test_47_what_may_be_travelled_to_stays_and_the_rest_goes() -> None:
    lived = Lived()
    lived.go(60, seconds=600)
    before = len(lived.log())
    rows = {version: lived.rows_at(version) for version in range(30, 60)}
    lived.clean()
    names = lived.log()
    assert len(names) < before
    first = min(int(each[:20]) for each in names if each[0] == "0")
    # 36 commits are young; the cut is the checkpoint before the oldest of them.
    assert first == 19
    assert {name(19, "checkpoint.parquet"), name(19)} < set(names)
    assert {version: lived.rows_at(version) for version in rows} == rows
    lived.mirror = lived.a_mirror()
    lived.go(3)
    lived.require_copy()


def test_a_publisher_cleans_bit_by_bit_behind_its_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "REMOVALS_MAX", 5)
    lived = Lived()
    lived.go(40, seconds=60)
    count = len(lived.log())
    lived.now.advance(12 * 3600)
    lived.go(1)  # A commit and its checksum.
    assert len(lived.log()) == count + 2 - 5
    lived.go(1)
    assert len(lived.log()) == count + 4 - 10
    lived.go(20)
    first = min(int(each[:20]) for each in lived.log() if each[0] == "0")
    assert first == 39, "the cut is the last checkpoint before the hours that nothing was written"
    assert min(int(each[:20]) for each in lived.log() if each.endswith(".crc")) == 39
    lived.require_copy()


@pytest.mark.parametrize("wrong", [b"{", b"[]", b"{}", b'{"numFiles": 3}', None])
def test_check_finds_a_checksum_of_another_table(wrong: bytes | None) -> None:
    lived = Lived()
    lived.go(5)
    path = checksum_path(4)
    lived.target.put(path, wrong or lived.target.read(checksum_path(3)))
    findings = list(check_mirror(lived.a_mirror()))
    assert findings
    assert all(path in each.place for each in findings)
    lived.target.delete(path)
    lived.require_copy()


def test_a_checkpoint_that_another_publisher_removed_is_forgotten() -> None:
    lived = Lived()
    lived.go(15)
    lived.target.delete(f"_delta_log/{name(9, 'checkpoint.parquet')}")
    lived.go(8)
    assert lived.mirror.upkeep.failures == 0
    lived.require_copy()


def test_what_others_did_below_their_own_checkpoint_is_found(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    lived = MirroredTable(0, LocalStore(tmp_path))
    for _ in range(3):
        lived.append()
        lived.publish()
    last = max(lived.shown)
    actions = [
        {"commitInfo": {"inCommitTimestamp": 10**15, "operation": "WRITE"}},
        *({"remove": {"path": path, "dataChange": True}} for path in DeltaTable(lived.target).adds),
    ]
    commit = "\n".join(map(json.dumps, actions)).encode()
    lived.target.put(f"_delta_log/{name(last + 1)}", commit)
    deltalake.DeltaTable(str(tmp_path / "_delta")).create_checkpoint()
    state = lived.a_mirror().state()
    assert state is not None
    assert state.checkpoint == last + 1
    assert state.foreign is not None
    assert state.foreign.operation == "WRITE"


@pytest.mark.parametrize("life", range(len(KINDS)))
@pytest.mark.sweep(2)
def test_lives_with_many_checkpoints(life: int, tmp_path: Path) -> None:
    """What is live by a checkpoint is live by the commits, for us and for delta-rs."""
    deltalake = pytest.importorskip("deltalake")
    lived = MirroredTable(life, LocalStore(tmp_path))
    every = random.Random(life).choice([1, 2, 3])
    with patch.object(upkeep, "CHECKPOINT_EVERY", every):
        lived.live(14)
    lived.look()
    expected = lived.table.snapshot()
    table = deltalake.DeltaTable(str(tmp_path / "_delta"))
    rows = deltalake.QueryBuilder().register("t", table).execute("select * from t")
    found = pa.table(rows.read_all()).select(expected.column_names).cast(expected.schema)
    assert canonical(found) == canonical(expected)


def paused(lived: Lived, pause: Callable[[], None], *, is_before: bool = True) -> Mirror:
    """Return a publisher that is paused around its next commit."""
    place = PrefixStore(lived.store, "_delta")
    put = place.put_if_absent

    def put_paused(path: str, data: bytes) -> bool:
        place.put_if_absent = put  # type: ignore[method-assign]
        if is_before:
            pause()
        done = put(path, data)
        if not is_before:
            pause()
        return done

    place.put_if_absent = put_paused  # type: ignore[method-assign]
    return Mirror(Table(lived.store, clock=lived.now).log, lived.store, place)


@pytest.mark.parametrize("is_before", [True, False], ids=["before its put", "after its put"])
@pytest.mark.parametrize("commits", [0, 5], ids="from commit {}".format)
def test_a_publisher_that_is_paused_for_longer_than_the_retention(
    commits: int, is_before: bool
) -> None:
    lived = Lived()
    lived.go(commits)
    lived.table.upsert(pa.table({"id": [99], "x": ["before the pause"]}))

    def pause() -> None:
        lived.mirror = lived.a_mirror()
        lived.go(30)
        lived.now.advance(8 * 3600)
        lived.go(12)
        lived.clean()

    result = paused(lived, pause, is_before=is_before).publish()
    assert result.shown == lived.table.log.head().version
    assert name(commits) not in lived.log(), "a commit below the cut"
    lived.require_copy()
    lived.mirror = lived.a_mirror()
    lived.go(1)
    lived.require_copy()


def test_a_publisher_that_is_paused_while_a_checkpoint_is_made_of_its_commit() -> None:
    lived = Lived()
    lived.go(9)
    lived.table.upsert(pa.table({"id": [99], "x": ["before the pause"]}))

    def pause() -> None:
        lived.mirror = lived.a_mirror()
        lived.mirror.state()
        lived.mirror.upkeep.checkpoint(now_ms=int(lived.now() * 1000), retention_ms=6 * HOUR_MS)
        lived.go(2)
        lived.now.advance(8 * 3600)
        lived.clean()

    mirror = paused(lived, pause, is_before=False)
    with patch.object(upkeep, "CHECKPOINT_EVERY", 100):
        mirror.publish()
    assert lived.log()[0] == name(9, "checkpoint.parquet")
    assert name(9) in lived.log(), "the commit of a checkpoint has its time"
    lived.require_copy()


def test_a_cleaning_that_cannot_remove_an_object_removes_no_newer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep, "REMOVALS_MAX", 50)
    lived = Lived()
    lived.go(40, seconds=60)
    delete = lived.store.delete

    def failing(path: str) -> None:
        if path.endswith(name(3)):
            raise OSError("not allowed")
        delete(path)

    lived.now.advance(12 * 3600)
    monkeypatch.setattr(lived.store, "delete", failing)
    lived.go(3)
    assert lived.mirror.upkeep.failures == 1
    commits = [int(each[:20]) for each in lived.log() if each.endswith(".json")]
    assert commits == list(range(3, 43))
    monkeypatch.undo()
    lived.now.advance(2 * 3600)
    lived.go(4)
    assert lived.log()[0] == name(39, "checkpoint.parquet")


LOST = {
    "the first commit": (8, name(0)),
    "a commit": (8, name(5)),
    "a commit after a checkpoint": (18, name(14)),
    "the commit of a checkpoint": (18, name(9)),
}


@pytest.mark.parametrize(("commits", "lost"), LOST.values(), ids=LOST)
def test_a_commit_that_was_lost_is_named_and_not_made_again(commits: int, lost: str) -> None:
    lived = Lived()
    lived.go(commits)
    data = lived.target.read(f"_delta_log/{lost}")
    lived.target.delete(f"_delta_log/{lost}")
    lived.table.upsert(pa.table({"id": [99], "x": ["after the loss"]}))
    before = lived.log()
    for use in (Mirror.publish, Mirror.state, mirror_status):
        with pytest.raises(CorruptionError, match=lost):
            use(lived.a_mirror())
    [finding] = check_mirror(lived.a_mirror())
    assert lost in str(finding)
    assert lived.log() == before
    lived.target.put(f"_delta_log/{lost}", data)
    lived.a_mirror().publish()
    lived.require_copy()


def test_a_publisher_that_ends_before_the_gap_does_not_write_into_it() -> None:
    lived = Lived()
    lived.go(4)
    behind, lived.mirror = lived.mirror, lived.a_mirror()
    lived.go(2)
    lived.target.delete(f"_delta_log/{name(4)}")
    before = lived.log()
    for _ in range(2):
        with pytest.raises(CorruptionError, match=name(4)):
            behind.publish()
    assert lived.log() == before


def test_another_commit_of_the_same_number_is_not_the_one_that_is_remembered() -> None:
    lived = Lived()
    lived.go(4)
    remembers = lived.mirror
    lived.target.delete(f"_delta_log/{name(3)}")
    lived.mirror = lived.a_mirror()
    lived.go(1, seconds=5)
    lived.table.upsert(pa.table({"id": [0], "x": ["after the loss"]}))
    remembers.publish()
    lived.require_copy()


def test_a_vacuum_removes_files_of_a_mirror_a_day_after_nothing_names_them() -> None:
    lived = Lived()
    with patch.object(publish, "INLINE_BYTES_MAX", 0):
        lived.go(40, seconds=600)
        lived.table.compact(full=True)
        lived.mirror.publish()
    orphan, theirs = f"{'a' * 32}-00000000.parquet", {"theirs.parquet", "deletion_vector_x.bin"}
    for path in (orphan, *theirs):
        lived.target.put(path, b"x")
    data = {path for path in lived.files() if "/" not in path}
    assert sum(path.startswith("deletion_vector_") for path in data) > 5
    lived.now.advance(7 * 3600)
    log = lived.table.vacuum().log
    assert any(path.startswith("_delta/_delta_log/") for path in log)
    assert data <= lived.files()
    lived.now.advance(5 * 24 * 3600)
    rows, before = canonical(DeltaTable(lived.target).rows()), lived.files()
    plan = lived.table.vacuum(dry_run=True)
    assert lived.files() == before
    result = lived.table.vacuum()
    assert [info.path for info in plan.orphans] == [info.path for info in result.orphans]
    assert f"_delta/{orphan}" in [info.path for info in result.orphans]
    mirror = DeltaTable(lived.target)
    assert canonical(mirror.rows()) == rows
    # The mirror is at rest: live files and files of others stay, and nothing else.
    assert lived.files() == theirs | mirror.adds.keys()
    assert not lived.table.vacuum().orphans
    lived.go(1)
    lived.require_copy()


def test_a_clock_that_is_ahead_removes_nothing_young() -> None:
    """The storage's time counts for a vacuum, as its own machine may be days ahead."""
    lived = Lived()
    lived.go(30, seconds=600)
    lived.now.advance(24 * 3600)
    lived.go(12, seconds=600)
    rows = {version: lived.rows_at(version) for version in range(30, 42)}
    lived.mirror.upkeep.vacuum(
        now_ms=int(lived.now() * 1000) + 1000 * HOUR_MS, retention_ms=6 * HOUR_MS, dry_run=False
    )
    assert {version: lived.rows_at(version) for version in rows} == rows


def test_a_mirror_that_was_given_up_keeps_what_it_shows() -> None:
    lived = Lived()
    lived.go(30, seconds=600)
    lived.table.alter(lived.table.schema, {"publish": "none"})
    rows = canonical(DeltaTable(lived.target).rows())
    lived.now.advance(2 * 24 * 3600)
    lived.table.vacuum()
    assert canonical(DeltaTable(lived.target).rows()) == rows
    assert lived.files() == DeltaTable(lived.target).adds.keys()


def test_twins_of_a_mirror_that_never_came_go_a_day_later() -> None:
    lived = Lived()
    lived.go(2)
    for path in lived.log():
        lived.target.delete(f"_delta_log/{path}")
    lived.table.vacuum()
    assert lived.files()
    lived.now.advance(25 * 3600)
    assert lived.table.vacuum().orphans
    assert not lived.files()
    lived.go(1)
    lived.require_copy()


def test_a_vacuum_touches_nothing_of_another_mirror_or_of_other_files(tmp_path: Path) -> None:
    lived, other = Lived(), Lived()
    place = str(tmp_path / "place")
    other.go(3)
    other.table.publish(place)
    orphan = tmp_path / "place" / f"{'a' * 32}-00000000.parquet"
    orphan.write_bytes(b"x")
    os.utime(orphan, (1, 1))
    lived.go(3)
    head = lived.table.log.head()
    draft = Draft(
        kind=Kind.ALTER,
        schema=head.schema,
        properties={"publishPath": place},
        live_rows=head.live_rows,
    )
    lived.table.log.append(lambda _: draft)
    lived.table.vacuum()
    assert orphan.exists()
    for name in tmp_path.glob("place/_delta_log/*"):
        name.unlink()
    (tmp_path / "place" / "mine.csv").write_text("1")
    lived.table.vacuum()
    assert orphan.exists()


def test_a_vacuum_of_the_table_goes_on_without_a_mirror_that_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lived = Lived()
    lived.go(3)
    monkeypatch.setattr(publish.Mirror, "state", raising(OSError("the network is down")))
    lived.table.vacuum()
    assert "the network is down" in caplog.text


def facts(table: Table) -> list[dict[str, Any]]:
    return [row for each in VIEWS[Metadata.MIRROR].read(table) for row in each.to_pylist()]


def test_metadata_shows_how_far_a_mirror_is_behind_and_what_it_holds() -> None:
    lived = Lived()
    assert facts(lived.table) == []
    lived.go(3)
    lived.now.advance(5)
    lived.table.upsert(pa.table({"id": [1], "x": ["new"]}))
    lived.now.advance(2)
    [row] = facts(lived.table)
    expected = {
        "place": lived.target.url,
        "shows_version": 3,
        "versions_behind": 1,
        "ms_behind": 2000,
        "twins": 3,
        "rows": 6,
        "dead_rows": 0,
        "bytes": sum(info.bytes for info in lived.target.list("")),
        "log_bytes": sum(info.bytes for info in lived.target.list("_delta_log")),
        "vector_bytes": 0,
        "changed_by": None,
        "retention_ms": 6 * HOUR_MS,
        "has_feed": False,
        "is_guarded": True,
    }
    assert {name: row[name] for name in expected} == expected
    lived.mirror.publish()
    [row] = facts(lived.table)
    assert (row["versions_behind"], row["ms_behind"], row["dead_rows"]) == (0, 0, 1)
    assert row["vector_bytes"] > 0
