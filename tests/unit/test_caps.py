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
from spark_upsert.table.log.properties import Caps, OnFull
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
        self._due: list[tuple[str, int, Callable[[], object]]] = []
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

    def behind(self, step: str, do: Callable[[], object], *, after: int = 0) -> None:
        """Do something once, behind a step of some name, and so many of them before."""
        self._due.append((step, after, do))

    def _watch(self) -> None:
        if not self._due or not self.steps.names[-1].startswith(self._due[0][0]):
            return
        step, after, do = self._due.pop()
        if after:
            self._due.append((step, after - 1, do))
        else:
            do()

    def other_appends(self) -> None:
        """Let another process append."""
        self.opened(self.store).upsert(pa.table({"id": [9], "n": [9]}), full_wait_ms=0)

    def read_all(self, consumer: str = READER, *, ttl_ms: int = 3_600_000) -> None:
        """Let a consumer have read all there is."""
        self.table.hold(consumer, self.table.log.head().version, ttl_ms=ttl_ms)

    def append(self, number: int = 0, *, rows: int = 1, full_wait_ms: int = 0) -> int | None:
        """Append rows as a transaction; return its version."""
        ids = list(range(rows))
        done = self.table.upsert(
            pa.table({"id": ids, "n": [number] * rows}),
            transaction=Transaction(writer="w", number=number),
            full_wait_ms=full_wait_ms,
        )
        return None if done is None else done.version

    @property
    def epoch_bytes(self) -> int:
        """The bytes of the newest epoch."""
        head = self.table.log.head()
        return sum(file.bytes for file in self.table.log.commit(head.version).added)


def one_epoch_bytes() -> int:
    capped = Capped()
    capped.append()
    return capped.epoch_bytes


EPOCH_BYTES = one_epoch_bytes()


@pytest.mark.parametrize(
    ("properties", "fits"),
    [
        pytest.param({"maxBacklogEpochs": "1"}, 1, id="case 29: a cap of one epoch"),
        pytest.param({"maxBacklogEpochs": "3"}, 3, id="a cap of three epochs"),
        pytest.param({"maxBacklogBytes": str(EPOCH_BYTES)}, 1, id="bytes of exactly one epoch"),
        pytest.param({"maxBacklogBytes": str(2 * EPOCH_BYTES - 1)}, 1, id="a byte less than two"),
        pytest.param({"maxBacklogBytes": str(2 * EPOCH_BYTES)}, 2, id="bytes of exactly two"),
        pytest.param(
            {"maxBacklogEpochs": "3", "maxBacklogBytes": str(2 * EPOCH_BYTES)}, 2, id="the lesser"
        ),
    ],
)
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
    caps = Caps.of(properties)
    assert refused.value.fields == {
        "path": capped.store.url,
        "epochs": fits,
        "bytes": fits * EPOCH_BYTES,
        "epochs_max": caps.epochs,
        "bytes_max": caps.bytes,
        "upper": fits + 1,
        "consumer": READER,
        "version": 0,
    }
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


def test_without_a_live_lease_there_is_nothing_to_wait_for() -> None:
    capped = Capped({"maxBacklogEpochs": "1", "maxBacklogBytes": "1", **REJECT}, has_consumer=False)
    for number in range(3):
        assert capped.append(number) is not None
    capped.read_all(ttl_ms=1000)
    with pytest.raises(BatchTooLargeError):
        capped.append(3)
    capped.now_s += 1.0
    assert capped.append(3) is not None


def test_the_slowest_consumer_counts() -> None:
    capped = Capped({"maxBacklogEpochs": "2", **REJECT})
    capped.append(0)
    capped.read_all("fast")
    capped.append(1)
    with pytest.raises(TableFullError) as refused:
        capped.append(2)
    assert refused.value.fields["consumer"] == READER
    capped.table.release(READER)
    capped.append(2)
    with pytest.raises(TableFullError) as refused:
        capped.append(3)
    assert (refused.value.fields["consumer"], refused.value.fields["version"]) == ("fast", 1)


def test_what_is_no_epoch_takes_no_room() -> None:
    capped = Capped({"maxBacklogEpochs": "2", **REJECT})
    capped.append(0)
    capped.table.alter(capped.table.schema, {"tombstoneRetention": "1 day"})
    capped.append(1)
    assert capped.table.compact(full=True) == 1
    with pytest.raises(TableFullError) as refused:
        capped.append(2)
    assert refused.value.fields["epochs"] == 2


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
    "data",
    [b"{", encode({"format": 99}), encode({"format": 1})],
    ids=["half of it", "of a newer format", "of an earlier format"],
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


class TestWaiting:
    """With ``onFull=wait`` a write waits for consumers, in growing pauses, up to a bound."""

    def test_it_goes_on_when_there_is_room(self) -> None:
        capped = Capped({"maxBacklogEpochs": "1"})
        capped.append(0)
        pauses = iter([None, None, capped.read_all])

        def read() -> None:
            step = next(pauses)
            if step is not None:
                step()

        capped.when_slept = read
        assert capped.append(1, full_wait_ms=60_000) == 2
        assert capped.slept == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S]

    def test_it_gives_up_at_the_bound(self) -> None:
        capped = Capped({"maxBacklogEpochs": "1"})
        capped.append(0)
        before = dict(capped.store.objects)
        with pytest.raises(TableFullError):
            capped.append(1, full_wait_ms=5000)
        assert sum(capped.slept) == pytest.approx(5.0)
        assert max(capped.slept) <= PAUSE_S_MAX
        assert capped.store.objects == before

    def test_a_cap_that_is_raised_meanwhile_makes_room(self) -> None:
        capped = Capped({"maxBacklogEpochs": "1"})
        capped.append(0)
        other = capped.opened(capped.store)
        capped.when_slept = lambda: other.alter(other.schema, {"maxBacklogEpochs": "2"})
        assert capped.append(1, full_wait_ms=60_000) == 3
        assert len(capped.slept) == 1

    def test_who_takes_the_room_before_the_commit_is_waited_for(self) -> None:
        capped = Capped({"maxBacklogEpochs": "1"})
        capped.behind("close data/", capped.other_appends)
        capped.when_slept = capped.read_all
        assert capped.append(1, full_wait_ms=60_000) == 2
        assert capped.slept == [PAUSE_S]


def test_who_takes_the_room_before_the_commit_leaves_nothing_of_the_other() -> None:
    capped = Capped({"maxBacklogEpochs": "1", **REJECT})
    capped.behind("close data/", capped.other_appends)
    with pytest.raises(TableFullError):
        capped.append(1)
    head = capped.table.log.head()
    assert head.version == 1, "the other writer came between"
    files = {path for path in capped.store.objects if path.startswith("data/")}
    assert files == {slice_.file.path for slice_ in head.slices}


def test_who_takes_the_room_within_the_commit_is_seen() -> None:
    capped = Capped({"maxBacklogEpochs": "1", **REJECT})
    capped.behind("list _consumers", capped.other_appends, after=1)
    with pytest.raises(TableFullError):
        capped.append(1)
    assert capped.table.log.head().version == 1


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
    ("given", "message"),
    [
        pytest.param({"maxBacklogEpochs": "-1"}, "whole number", id="a negative number of epochs"),
        pytest.param({"maxBacklogEpochs": "1.5"}, "whole number", id="a part of an epoch"),
        pytest.param({"maxBacklogBytes": "64 MiB"}, "whole number", id="a unit"),
        pytest.param({"maxBacklogBytes": "9" * 30}, "whole number", id="more than there can be"),
        pytest.param({"onFull": "drop"}, "one of wait, reject", id="another word"),
        pytest.param({"maxBacklogRows": "1"}, "Did you mean 'maxBacklog", id="an unknown cap"),
    ],
)
def test_a_cap_that_cannot_be_is_refused_when_it_is_set(
    given: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        Capped(given)


def test_caps_of_properties() -> None:
    assert Caps.of({}).is_none
    assert Caps.of({"onFull": "reject"}).is_none
    assert Caps.of({"maxBacklogEpochs": "3", "onFull": " Reject "}) == Caps(
        epochs=3, on_full=OnFull.REJECT
    )


class TestRequests:
    """A table without caps is not asked one thing more."""

    @staticmethod
    def asked(capped: Capped) -> list[str]:
        del capped.steps.names[:]
        capped.append(100)
        return list(capped.steps.names)

    def test_without_caps_nobody_looks_at_leases(self) -> None:
        with_consumer, without = Capped(), Capped(has_consumer=False)
        names = self.asked(with_consumer)
        assert len(names) == len(self.asked(without))
        assert not any("_consumers" in name for name in names)

    def test_with_caps_leases_are_looked_at_twice(self) -> None:
        plain, capped = self.asked(Capped()), self.asked(Capped({"maxBacklogEpochs": "9"}))
        of_leases = [name for name in capped if "_consumers" in name]
        assert [name.partition(" ")[0] for name in of_leases] == ["list", "read"] * 2
        assert len(capped) == len(plain) + 4

    def test_the_epochs_of_a_backlog_are_read_once(self) -> None:
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
