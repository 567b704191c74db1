"""A lost version is named by each process that needs it; none takes the gap for the end."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.core.schema import TableSchema
from spark_upsert.delta.follow import default_mirror
from spark_upsert.delta.publish import check_mirror, mirror_consumer
from spark_upsert.errors import CorruptionError, OtherTableError, UpsertFlowError
from spark_upsert.metadata import summary
from spark_upsert.store.records import encode
from spark_upsert.table.log import reader, storage
from spark_upsert.table.log.codec import HINT_PATH, checkpoint_path, commit_path
from spark_upsert.table.retention.leases import lease_path
from spark_upsert.table.table import Table
from tests.support.clocked import ClockedStore, Now
from tests.support.lived import body
from tests.support.stores import FaultyStore, MemoryStore, Steps

NEWEST = 11
EVERY = 5
"""Versions between checkpoints."""

SCHEMA = TableSchema.of(pa.schema({"id": pa.int64(), "n": pa.int64()}), keys=["id"])


def append(table: Table, number: int) -> None:
    table.upsert(pa.table({"id": [number], "n": [number]}))


def written(*, every: int = 50, newest: int = NEWEST) -> ClockedStore:
    """Return a table with a row for each version, and checkpoints."""
    now = Now()
    store = ClockedStore(now)
    table = Table(store, clock=now)
    table.ensure(SCHEMA)
    with patch.object(storage, "CHECKPOINT_EVERY", every):
        for number in range(1, newest + 1):
            now.advance(10)
            append(table, number)
    return store


def opened(store: ClockedStore) -> Table:
    """Return the table as a process opens it that remembers nothing."""
    return Table(store, clock=store.now)


USES: dict[str, Callable[[Table], object]] = {
    "open": lambda table: table.log.head(),
    "snapshot": lambda table: table.snapshot(),
    "get": lambda table: table.get(3),
    "changes": lambda table: table.changes(2, 3),
    "append": lambda table: append(table, 99),
    "alter": lambda table: table.alter(SCHEMA, {"tombstoneRetention": "1 day"}),
    "delete": lambda table: table.delete([3]),
    "ensure": lambda table: table.ensure(SCHEMA),
    "restore": lambda table: table.restore(2),
    "compact": lambda table: table.compact(full=True),
    "expire": lambda table: table.expire(retain_versions=1, safety_ms=0),
    "vacuum": lambda table: table.vacuum(grace_ms=0),
    "hold": lambda table: table.hold("reader", 3),
    "check": lambda table: table.check(),
    "info": summary,
    "publish": lambda table: table.publish(),
}


@pytest.mark.parametrize("lost", [0, 1, 7, NEWEST - 1], ids="version {}".format)
@pytest.mark.parametrize("use", USES)
def test_new_process_names_a_lost_version_and_changes_nothing(use: str, lost: int) -> None:
    store = written()
    commit = store.read(commit_path(lost))
    store.delete(commit_path(lost))
    objects = dict(store.objects)
    with pytest.raises(UpsertFlowError, match=commit_path(lost)) as error:
        USES[use](opened(store))
    assert error.value.code == "CORRUPTION"
    assert store.objects == objects
    store.put(commit_path(lost), commit)
    USES[use](opened(store))
    assert opened(store).check().is_sound


def lose_version_7(store: ClockedStore) -> None:
    """Let another process commit versions 7 and 8, and lose version 7."""
    other = opened(store)
    append(other, 7)
    append(other, 8)
    store.delete(commit_path(7))


def test_open_table_that_ends_before_the_gap_is_not_altered() -> None:
    store = written(newest=6)
    table = opened(store)
    table.log.head()
    lose_version_7(store)
    log = {path: data for path, data in store.objects.items() if path.startswith("_log/")}
    for _ in range(2):
        with pytest.raises(CorruptionError, match=commit_path(7)):
            USES["alter"](table)
    assert {path: store.objects[path] for path in store.objects if path.startswith("_log/")} == log


def test_open_table_at_rest_lists_its_log_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "POLLS_PER_LISTING", 3)
    store = written(newest=6)
    table = opened(store)
    table.log.head()
    lose_version_7(store)
    assert [table.log.head().version for _ in range(3)] == [6, 6, 6]
    with pytest.raises(CorruptionError, match=commit_path(7)):
        table.log.head()


def test_process_that_named_a_gap_forgets_the_version_before_it() -> None:
    store = written(newest=6)
    process = FaultyStore(store, Steps(), process="the same")
    Table(process, clock=store.now).log.head()
    lose_version_7(store)
    assert Table(process, clock=store.now).log.head().version == 6
    with pytest.raises(CorruptionError, match=commit_path(7)):
        append(Table(process, clock=store.now), 9)
    with pytest.raises(CorruptionError, match=commit_path(7)):
        Table(process, clock=store.now).log.head()


@pytest.mark.parametrize("count", [1, 2, 3], ids="{} versions".format)
def test_versions_that_come_between_a_look_and_a_put_are_no_gap(count: int) -> None:
    store = written(newest=3)
    table, other = opened(store), opened(store)
    mark, visits = table.log.stored.mark, iter(range(count))

    def mark_late(version: int) -> object:
        for number in visits if version == 5 else ():
            append(other, 10 + number)
        return mark(version)

    with patch.object(table.log.stored, "mark", mark_late):
        append(table, 99)
    assert table.log.head().version == 3 + count + 1
    assert opened(store).check().is_sound


@pytest.mark.parametrize("use", ["head", "create"])
def test_table_that_another_process_creates_between_two_requests_is_no_rest(use: str) -> None:
    is_over, step = False, 0
    while not is_over:
        raw, steps = MemoryStore(), Steps()
        table = Table(FaultyStore(raw, steps, process=(use, step)))

        def create_at_step(raw: MemoryStore = raw, steps: Steps = steps, at: int = step) -> None:
            if len(steps.names) == at + 1:
                other = Table(raw)
                other.ensure(SCHEMA)
                append(other, 1)

        steps.begin_anew(watch=create_at_step)
        if use == "head":
            table.log.try_head()
        else:
            table.ensure(SCHEMA)
        is_over = len(steps.names) <= step
        if not is_over:
            assert table.log.head().version == 1
        step += 1
    assert step > 1


# -- checkpoints -------------------------------------------------------------------------


def test_version_below_the_last_checkpoint_is_needed_by_the_past_alone() -> None:
    """If no other version repeats it, as in a table of an earlier release."""
    store = written(every=EVERY)
    store.delete(commit_path(7))
    whole = opened(store)
    with patch.object(storage, "CHECKPOINT_EVERY", EVERY):
        assert whole.snapshot(8).num_rows == 8
    with pytest.raises(CorruptionError, match=commit_path(7)):
        whole.check()
    for path in [path for path in store.objects if path.startswith("_log/0")]:
        record = body(store.objects[path])
        record.pop("recent", None)
        store.objects[path] = encode(record)
    table = opened(store)
    assert table.snapshot().num_rows == NEWEST
    append(table, NEWEST + 1)
    assert opened(store).snapshot().num_rows == NEWEST + 1
    for needs in (
        lambda: table.snapshot(8),
        lambda: table.changes(6),
        lambda: table.log.at_timestamp(table.log.head().timestamp_ms - 45_000),
        lambda: opened(store).check(),
        lambda: table.vacuum(grace_ms=0),
    ):
        with pytest.raises(CorruptionError, match=commit_path(7)):
            needs()
    assert table.snapshot(6).num_rows == 6


def test_checkpoint_after_a_gap_is_found_whatever_the_hint_says() -> None:
    store = written(every=EVERY)
    store.delete(commit_path(7))
    store.delete(HINT_PATH)
    assert opened(store).snapshot().num_rows == NEWEST
    for version in (0, EVERY):
        store.put(HINT_PATH, encode({"version": version}))
        assert opened(store).snapshot().num_rows == NEWEST


@pytest.mark.parametrize(
    "path",
    [checkpoint_path(2 * EVERY), commit_path(2 * EVERY)],
    ids=["its checkpoint", "the commit of its checkpoint"],
)
def test_log_that_was_cut_names_a_beginning_that_is_lost(path: str) -> None:
    store = written(every=EVERY)
    with patch.object(storage, "CHECKPOINT_EVERY", EVERY):
        store.now.advance(86_400)
        table = opened(store)
        table.expire(retain_versions=0, safety_ms=0)
        table.vacuum(grace_ms=0)
    assert commit_path(3) not in store.objects
    store.delete(path)
    for use in ("open", "append", "check", "info"):
        with pytest.raises(CorruptionError, match=path):
            USES[use](opened(store))


# -- the newest version ------------------------------------------------------------------


def test_loss_of_the_newest_version_is_known_to_those_that_remember_it() -> None:
    store = written()
    table = opened(store)
    table.log.head()
    store.delete(commit_path(NEWEST))
    with pytest.raises(OtherTableError, match=f"ends at version {NEWEST - 1}"):
        append(table, 99)
    assert opened(store).snapshot().num_rows == NEWEST - 1


def test_check_names_what_remembers_a_version_that_is_lost() -> None:
    store = written()
    table = opened(store)
    table.hold("reader", NEWEST)
    mirror = mirror_consumer(table.publish().place)
    assert opened(store).check().is_sound
    store.delete(commit_path(NEWEST))
    findings = [*opened(store).check().findings, *check_mirror(default_mirror(opened(store)))]
    places = [finding.place.removeprefix(store.url + "/") for finding in findings]
    assert places == [lease_path(mirror), lease_path("reader"), "_delta"]
    for finding in findings:
        assert f"version {NEWEST} (newer versions were lost" in finding.found
    with pytest.raises(OtherTableError, match=f"has a version {NEWEST}"):
        opened(store).publish()
