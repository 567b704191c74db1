"""Backlog caps: who is refused, what that leaves behind, and what it costs those without caps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import BatchTooLargeError, OptionError, TableFullError
from spark_upsert.store.records import encode
from spark_upsert.table.log.codec import commit_path
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.log.properties import Caps
from spark_upsert.table.retention.leases import lease_path
from spark_upsert.table.table import Table
from spark_upsert.table.write.guards import PAUSE_S, PAUSE_S_MAX
from tests.support.stores import FaultyStore, MemoryStore, Steps
from tests.support.streams import stream_of

COLUMNS = pa.schema({"id": pa.int64(), "n": pa.int64()})
READER = "reader"
REJECT = {"onFull": "reject"}


class Capped:
    """A table with caps and a consumer that has read all there is, and what waits for it."""

    def __init__(
        self, properties: Mapping[str, str] | None = None, *, has_consumer: bool = True
    ) -> None:
        self._due: list[tuple[str, Callable[[], object]]] = []
        self.steps = Steps(watch=self._watch)
        self.store = MemoryStore()
        self.now_s = 1_000_000.0
        self.slept: list[float] = []
        self.when_slept: Callable[[], object] = lambda: None
        self.table = self.opened(FaultyStore(self.store, self.steps))
        self.table.ensure(TableSchema.of(COLUMNS, keys=["id"]), properties)
        if has_consumer:
            self.read_all()

    def opened(self, store: MemoryStore | FaultyStore) -> Table:
        """Return the table as another process opens it."""
        return Table(store, clock=lambda: self.now_s, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.when_slept()

    def behind(self, step: str, do: Callable[[], object]) -> None:
        """Do something once, behind a step of some name."""
        self._due.append((step, do))

    def _watch(self) -> None:
        if self._due and self.steps.names[-1].startswith(self._due[0][0]):
            self._due.pop()[1]()

    def other_appends(self) -> None:
        """Let another process append."""
        self.opened(self.store).upsert(pa.table({"id": [9], "n": [9]}), full_wait_ms=0)

    def read_all(self, consumer: str = READER, *, ttl_ms: int = 3_600_000) -> None:
        """Let a consumer have read all there is."""
        self.table.hold(consumer, self.table.log.head().version, ttl_ms=ttl_ms)

    def append(self, number: int = 0, *, rows: int = 1, full_wait_ms: int = 0) -> int | None:
        """Append rows as a transaction; return its version."""
        data = pa.table({"id": list(range(rows)), "n": [number] * rows})
        transaction = Transaction(writer="w", number=number)
        done = self.table.upsert(data, transaction=transaction, full_wait_ms=full_wait_ms)
        return None if done is None else done.version


def epoch_bytes() -> int:
    """Return the bytes of an epoch of one row."""
    capped = Capped()
    capped.append()
    return sum(file.bytes for file in capped.table.log.commit(1).added)


EPOCH_BYTES = epoch_bytes()


FITS: dict[str, tuple[dict[str, str], int]] = {
    "case 29: a cap of one epoch": ({"maxBacklogEpochs": "1"}, 1),
    "a cap of three epochs": ({"maxBacklogEpochs": "3"}, 3),
    "a byte less than two": ({"maxBacklogBytes": str(2 * EPOCH_BYTES - 1)}, 1),
    "bytes of exactly two": ({"maxBacklogBytes": str(2 * EPOCH_BYTES)}, 2),
    "the lesser": ({"maxBacklogEpochs": "3", "maxBacklogBytes": str(2 * EPOCH_BYTES)}, 2),
}


@pytest.mark.parametrize(("properties", "fits"), FITS.values(), ids=FITS.keys())
def test_a_write_beyond_a_cap_is_refused_and_leaves_nothing(
    properties: dict[str, str], fits: int
) -> None:
    capped = Capped({**REJECT, **properties})
    for number in range(fits):
        assert capped.append(number) is not None
    before = dict(capped.store.objects)
    with pytest.raises(TableFullError) as refused:
        capped.append(fits)
    assert capped.store.objects == before
    assert refused.value.code == "TABLE_FULL"
    fields = refused.value.fields
    assert (fields["epochs"], fields["bytes"]) == (fits, fits * EPOCH_BYTES)
    assert (fields["consumer"], fields["version"], fields["upper"]) == (READER, 0, fits + 1)
    caps = Caps.of(properties)
    assert (fields["epochs_max"], fields["bytes_max"]) == (caps.epochs, caps.bytes)
    assert READER in refused.value.hint
    assert capped.slept == []
    capped.read_all()
    assert capped.append(fits) == fits + 1


def test_case_30_a_batch_beyond_the_whole_cap_is_refused_for_good() -> None:
    capped = Capped({"maxBacklogBytes": str(EPOCH_BYTES), "onFull": "wait"})
    before = dict(capped.store.objects)
    with pytest.raises(BatchTooLargeError) as refused:
        capped.append(rows=5000, full_wait_ms=10_000)
    assert capped.store.objects == before
    assert refused.value.fields["bytes"] > refused.value.fields["bytes_max"] == EPOCH_BYTES
    assert capped.slept == [], "no wait makes room for it"
    assert capped.append() == 1


def test_case_33_what_was_committed_is_answered_as_done_although_the_table_is_full() -> None:
    capped = Capped({"maxBacklogEpochs": "1", **REJECT})
    capped.append(7)
    before = dict(capped.store.objects)
    assert capped.append(7) is None
    assert capped.append(6) is None
    assert capped.store.objects == before
    with pytest.raises(TableFullError):
        capped.append(8)


@pytest.mark.parametrize("cap", ["maxBacklogEpochs", "maxBacklogBytes"])
def test_case_36_zero_is_no_cap(cap: str) -> None:
    capped = Capped({cap: "1", **REJECT})
    capped.table.alter(capped.table.schema, {cap: "0"})
    for number in range(5):
        assert capped.append(number) is not None


def test_the_slowest_consumer_with_a_live_lease_counts() -> None:
    capped = Capped({"maxBacklogEpochs": "1", **REJECT}, has_consumer=False)
    for number in range(3):
        assert capped.append(number) is not None
    capped.read_all(ttl_ms=1000)
    capped.append(3)
    capped.read_all("fast")
    with pytest.raises(TableFullError) as refused:
        capped.append(4)
    assert (refused.value.fields["consumer"], refused.value.fields["version"]) == (READER, 3)
    capped.now_s += 1.0
    assert capped.append(4) is not None
    with pytest.raises(TableFullError) as refused:
        capped.append(5)
    assert (refused.value.fields["consumer"], refused.value.fields["version"]) == ("fast", 4)


def test_versions_that_are_no_epochs_take_no_room_and_a_raised_cap_makes_some() -> None:
    capped = Capped({"maxBacklogEpochs": "2"})
    capped.append(0)
    capped.table.alter(capped.table.schema, {"tombstoneRetention": "1 day"})
    capped.append(1)
    assert capped.table.compact(full=True) == 1
    with pytest.raises(TableFullError) as refused:
        capped.append(2)
    assert refused.value.fields["epochs"] == 2
    other = capped.opened(capped.store)
    capped.when_slept = lambda: other.alter(other.schema, {"maxBacklogEpochs": "3"})
    assert capped.append(2, full_wait_ms=60_000) is not None
    assert len(capped.slept) == 1


def test_a_consumer_whose_place_is_expired_is_counted_from_there() -> None:
    capped = Capped({"maxBacklogEpochs": "3", **REJECT})
    stale = capped.store.objects[lease_path(READER)]
    capped.table.release(READER)
    for number in range(6):
        capped.append(number)
    capped.now_s += 60
    capped.table.expire(retain_versions=0, safety_ms=0)
    assert capped.table.log.head().since == 6
    capped.store.objects[lease_path(READER)] = stale
    for number in range(6, 9):
        capped.append(number)
    with pytest.raises(TableFullError) as refused:
        capped.append(9)
    assert (refused.value.fields["epochs"], refused.value.fields["version"]) == (3, 0)


@pytest.mark.parametrize(
    "data", [b"{", encode({"format": 99}), encode({"format": 1})], ids=["half", "newer", "earlier"]
)
def test_a_lease_that_cannot_be_read_is_passed_by_with_a_warning(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    capped = Capped({"maxBacklogEpochs": "1", **REJECT})
    capped.append(0)
    capped.store.objects[lease_path(READER)] = data
    with caplog.at_level(logging.WARNING):
        assert capped.append(1) == 2
    assert lease_path(READER) in caplog.text


def test_a_stream_that_has_read_all_makes_room_although_spark_reports_no_last_batch() -> None:
    capped = Capped({"maxBacklogEpochs": "1", **REJECT}, has_consumer=False)
    stream = stream_of(capped.opened(capped.store), consumerId=READER)
    start: Mapping[str, Any] = stream.initial()
    for number in range(3):
        start = stream.latest(start)  # It takes the lease.
        assert capped.append(number) is not None
        with pytest.raises(TableFullError):
            capped.append(number + 1)
        stream.splits(start, stream.latest(start))
        start = stream.latest(start)
        assert stream.latest(start) == start, "the batch is done, and nothing came"
    assert capped.append(3) is not None


# -- with ``onFull=wait`` a write waits for consumers, in growing pauses, up to a bound ----------


def waiting() -> Capped:
    """Return a full table that lets writes wait."""
    capped = Capped({"maxBacklogEpochs": "1"})
    capped.append(0)
    return capped


def test_a_write_that_waits_goes_on_when_there_is_room() -> None:
    capped = waiting()

    def read() -> None:
        if len(capped.slept) == 3:
            capped.read_all()

    capped.when_slept = read
    assert capped.append(1, full_wait_ms=60_000) == 2
    assert capped.slept == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S]


def test_a_write_that_waits_gives_up_at_the_bound() -> None:
    capped = waiting()
    before = dict(capped.store.objects)
    with pytest.raises(TableFullError):
        capped.append(1, full_wait_ms=5000)
    assert sum(capped.slept) == pytest.approx(5.0)
    assert max(capped.slept) <= PAUSE_S_MAX
    assert capped.store.objects == before


def test_a_write_waits_for_who_takes_the_room_before_the_commit() -> None:
    capped = Capped({"maxBacklogEpochs": "1"})
    capped.behind("close data/", capped.other_appends)
    capped.when_slept = capped.read_all
    assert capped.append(1, full_wait_ms=60_000) == 2
    assert capped.slept == [PAUSE_S]


def test_an_epoch_counts_once_although_a_consumer_was_ahead_of_what_the_writer_had_seen() -> None:
    capped = Capped({"maxBacklogEpochs": "3", **REJECT})

    def others_write_and_read() -> None:
        for _ in range(2):
            capped.other_appends()
        other = capped.opened(capped.store)
        other.hold(READER, 2)
        # Behind the look of the commit at once, a slower consumer comes.
        capped.behind("list _consumers", lambda: other.hold("slow", 0))

    capped.behind("close data/", others_write_and_read)
    assert capped.append(1) == 3


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"maxBacklogEpochs": "-1"}, "whole number"),
        ({"maxBacklogEpochs": "1.5"}, "whole number"),
        ({"maxBacklogBytes": "64 MiB"}, "whole number"),
        ({"maxBacklogBytes": "9" * 30}, "whole number"),
        ({"onFull": "drop"}, "one of wait, reject"),
        ({"maxBacklogRows": "1"}, "Did you mean 'maxBacklog"),
    ],
    ids=str,
)
def test_a_cap_that_cannot_be_is_refused_when_it_is_set(
    properties: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        Capped(properties)


# -- requests ------------------------------------------------------------------------------------


def requests(capped: Capped) -> list[str]:
    """Return the requests of one append."""
    del capped.steps.names[:]
    capped.append(100)
    return list(capped.steps.names)


def test_leases_are_looked_at_with_caps_alone() -> None:
    plain, capped = requests(Capped()), requests(Capped({"maxBacklogEpochs": "9"}))
    assert len(plain) == len(requests(Capped(has_consumer=False)))
    assert not any("_consumers" in name for name in plain)
    of_leases = [name for name in capped if "_consumers" in name]
    assert [name.partition(" ")[0] for name in of_leases] == ["list", "read"] * 2
    assert len(capped) == len(plain) + 4


def test_the_epochs_of_a_backlog_are_read_once() -> None:
    capped = Capped({"maxBacklogEpochs": "40"})
    for number in range(20):
        capped.append(number)
    steps = Steps()
    other = capped.opened(FaultyStore(capped.store, steps))
    row = pa.table({"id": [1], "n": [1]})
    other.upsert(row)
    backlog = {f"read {commit_path(version)}" for version in range(1, 21)}
    assert backlog <= set(steps.names)
    del steps.names[:]
    other.upsert(row)
    assert not backlog & set(steps.names)
