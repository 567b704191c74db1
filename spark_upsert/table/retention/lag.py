"""Consumer lag: the backlog of the slowest consumer, and pressure reports (docs/adr/0031).

The backlog counts epochs and the bytes that they added; compactions do not change it. A report is a
hint that expires by itself; an invalid one counts as no pressure.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from heapq import nlargest
from operator import attrgetter
from typing import Any

from spark_upsert.store import Store
from spark_upsert.store.records import (
    FORMAT_VERSION,
    UNREADABLE,
    checked_record,
    read_record,
    text,
    whole,
)
from spark_upsert.table.log.codec import TIME_MS_MAX
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Commit, Manifest
from spark_upsert.table.log.properties import Caps
from spark_upsert.table.retention.leases import Lease, require_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerLag:
    """The backlog of the slowest consumer."""

    consumer: str
    version: int
    """The last version that it has read."""
    epochs: int
    bytes: int
    """Bytes of its backlog. Both counts may be too low: counting ends beyond the caps."""


def slowest(leases: Iterable[Lease], now_ms: int) -> Lease | None:
    """Return the live lease that is furthest behind; names decide between equals."""
    live = (lease for lease in leases if lease.is_live(now_ms))
    return min(live, key=lambda lease: (lease.version, lease.consumer), default=None)


class BacklogCounter:
    """Counts the backlog of one table; safe for threads.

    It remembers the epochs that it has counted, so that each version is read once, and few of
    those that do not fit into the caps.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begin_anew(-1)

    def _begin_anew(self, version: int) -> None:
        self._lower = self._last = version
        """The lower bound, exclusive, of the counted versions, which go up to ``last``."""
        self._epochs: deque[tuple[int, int]] = deque()
        """The version of each counted epoch, and its bytes."""
        self._bytes = 0

    def behind(self, lease: Lease, log: Log, head: Manifest, caps: Caps) -> ConsumerLag:
        """Return the backlog between a lease and a version, counted until it exceeds the caps."""
        with self._lock:
            if not max(lease.version, head.since) <= self._last <= head.version:
                self._begin_anew(head.version)
            for commit in log.commits(self._last + 1, head.upper):
                self._add(commit)
            self._last = head.version
            self._drop(lease.version)
            # The newest first: once there is no room, the rest need not be counted.
            while self._lower > max(lease.version, head.since) and caps.admits(
                epochs=len(self._epochs), bytes=self._bytes
            ):
                self._add(log.commit(self._lower), older=True)
                self._lower -= 1
            return ConsumerLag(
                consumer=lease.consumer,
                version=lease.version,
                epochs=len(self._epochs),
                bytes=self._bytes,
            )

    def _add(self, commit: Commit, *, older: bool = False) -> None:
        if not commit.is_epoch:
            return
        size = sum(file.bytes for file in commit.added)
        self._bytes += size
        (self._epochs.appendleft if older else self._epochs.append)((commit.version, size))

    def _drop(self, version: int) -> None:
        while self._epochs and self._epochs[0][0] <= version:
            self._bytes -= self._epochs.popleft()[1]
        # A consumer may be ahead of what this writer has seen: what comes there is not counted yet.
        self._lower = min(max(self._lower, version), self._last)


_LOGGER = logging.getLogger(__name__)

FOLDER = "_pressure"

TTL_MS = 5_000
"""The life of a report. A consumer reports each second; four lost reports mean nothing."""

TTL_MS_MAX = 60_000
"""The longest life of a report: a dead consumer holds up no writer for longer."""

RUNG_MAX = 4
REFUSES_FROM = 4
"""The rung of the ladder (`scheduler.governor`) at which writes are refused."""

LOOK_MS = 1_000
"""The time for which a look counts."""

_REPORTS_MAX = 64
"""The most reports that are read, the newest ones: dead consumers leave reports behind."""

_BYTES_MAX = 4_096

_THOUSANDTHS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureReport:
    """The pressure that a consumer reports."""

    consumer: str
    rung: int
    pressure: float
    """The pressure, from 0 to 1, in thousandths."""
    reported_ms: int
    """The time of the report, in ms since 1970, by the consumer's clock."""
    ttl_ms: int = TTL_MS
    retry_after_ms: int = 1_000
    """The time after which a refused writer should come again."""

    def __post_init__(self) -> None:
        require_name(self.consumer)

    def is_live(self, now_ms: int) -> bool:
        """Return whether the report counts: its time is at most its life before or after now."""
        return abs(now_ms - self.reported_ms) < self.ttl_ms

    @property
    def refuses(self) -> bool:
        """Whether writes are refused because of it."""
        return self.rung >= REFUSES_FROM

    def to_json(self) -> dict[str, Any]:
        """Return the stored form."""
        return {
            "format": FORMAT_VERSION,
            "consumer": self.consumer,
            "rung": self.rung,
            "pressure": round(self.pressure * _THOUSANDTHS),
            "reported_ms": self.reported_ms,
            "ttl_ms": self.ttl_ms,
            "retry_after_ms": self.retry_after_ms,
        }


def report_path(consumer: str) -> str:
    """Return where a consumer's report lies."""
    return f"{FOLDER}/{require_name(consumer)}.json"


def report(store: Store, said: PressureReport) -> None:
    """Write the report of a consumer's pressure; replaces its report before."""
    path, record = report_path(said.consumer), said.to_json()
    stored = replace(said, pressure=record["pressure"] / _THOUSANDTHS)
    checked_record(path, stored, record, partial(_report_in, path), bytes_max=_BYTES_MAX).put(store)


def withdraw(store: Store, consumer: str) -> None:
    """Remove a consumer's report; it is no error if there is none."""
    store.delete(report_path(consumer))


def reports(store: Store, now_ms: int) -> list[PressureReport]:
    """Return the live reports of all consumers, sorted by consumer.

    A report that cannot be read is left out with a warning; that of a dead consumer is out of date.
    """
    valid_reports: list[PressureReport] = []
    for info in nlargest(_REPORTS_MAX, store.list(FOLDER), key=attrgetter("modified_s")):
        try:
            valid_report = _read(store, info.path)
        except UNREADABLE as error:
            _LOGGER.warning("a report of pressure is passed by: %s", error.message)
            continue
        if valid_report is not None and valid_report.is_live(now_ms):
            valid_reports.append(valid_report)
    return sorted(valid_reports, key=attrgetter("consumer"))


def _report_in(path: str, record: Mapping[str, Any]) -> PressureReport:
    """Return the report in the record of a file."""
    stored = PressureReport(
        consumer=text(record["consumer"]),
        rung=whole(record["rung"], most=RUNG_MAX),
        pressure=whole(record["pressure"], most=_THOUSANDTHS) / _THOUSANDTHS,
        reported_ms=whole(record["reported_ms"], most=TIME_MS_MAX),
        ttl_ms=whole(record["ttl_ms"], least=1, most=TTL_MS_MAX),
        retry_after_ms=whole(record["retry_after_ms"], most=TTL_MS_MAX),
    )
    if report_path(stored.consumer) != path:
        raise ValueError(f"it is the report of '{stored.consumer}'")
    return stored


def _read(store: Store, path: str) -> PressureReport | None:
    return read_record(store, path, partial(_report_in, path), bytes_max=_BYTES_MAX)


class PressureGauge:
    """Tells the pressure on one table, and looks about once a second; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looked_ms: int | None = None
        self._seen: list[PressureReport] = []

    def refusing(self, store: Store, now_ms: int) -> PressureReport | None:
        """Return the report because of which writes are refused, the first by consumer; or None."""
        with self._lock:
            # After a clock went back, a look is due at once, not when the old time comes again.
            if self._looked_ms is None or not 0 <= now_ms - self._looked_ms < LOOK_MS:
                self._seen = reports(store, now_ms)
                self._looked_ms = now_ms
            live = (
                seen_report
                for seen_report in self._seen
                if seen_report.is_live(now_ms) and seen_report.refuses
            )
            return next(live, None)

    def pressure(self, now_ms: int) -> float:
        """Return the greatest pressure that was seen and still counts, without a look; else 0."""
        with self._lock:
            return max(
                (seen_report.pressure for seen_report in self._seen if seen_report.is_live(now_ms)),
                default=0.0,
            )
