"""Consumer lag: the backlog of the slowest consumer, and pressure reports (docs/adr/0031).

The backlog counts epochs and their added bytes; compactions do not change it. A report is a hint
and expires automatically; an invalid one counts as no pressure.
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

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerLag:
    """The backlog of the slowest consumer."""

    consumer: str
    version: int
    """The last version read by the consumer."""
    epochs: int
    bytes: int
    """Backlog size. Both counts may be too low: counting ends beyond the caps."""


def slowest(leases: Iterable[Lease], now_ms: int) -> Lease | None:
    """Return the live lease with the lowest version, ties by consumer name; None without one."""
    live = (lease for lease in leases if lease.is_live(now_ms))
    return min(live, key=lambda lease: (lease.version, lease.consumer), default=None)


class BacklogCounter:
    """Counts one table's backlog; thread-safe.

    It caches the counted epochs, so each version is read once, and few above the caps.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reset(-1)

    def _reset(self, version: int) -> None:
        self._lower = self._last = version
        """Exclusive lower bound for the counted versions; ``_last`` is the inclusive upper bound.
        """
        self._epochs: deque[tuple[int, int]] = deque()
        """Version and bytes per counted epoch."""
        self._bytes = 0

    def count(self, lease: Lease, log: Log, head: Manifest, caps: Caps) -> ConsumerLag:
        """Return a lease's backlog at a version, counted until it exceeds the caps."""
        with self._lock:
            if not max(lease.version, head.since) <= self._last <= head.version:
                self._reset(head.version)
            for commit in log.commits(self._last + 1, head.upper):
                self._add(commit)
            self._last = head.version
            self._drop(lease.version)
            # Newest first: beyond the caps, older epochs need not be counted.
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
        # A consumer may be ahead of this writer's head: later versions are not counted yet.
        self._lower = min(max(self._lower, version), self._last)


FOLDER = "_pressure"

TTL_MS = 5_000
"""Default report lifetime. A consumer reports each second, so four reports may be lost."""

TTL_MS_MAX = 60_000
"""Maximum report lifetime: a crashed consumer blocks writers no longer than this."""

RUNG_MAX = 4
REFUSES_FROM = 4
"""The rung on the load ladder (`scheduler.governor`) at which writes are refused."""

POLL_MS = 1_000
"""Minimum time between two listings."""

_REPORTS_MAX = 64
"""Maximum reports read, newest first: crashed consumers leave reports."""

_BYTES_MAX = 4_096

_THOUSANDTHS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureReport:
    """A consumer's reported pressure."""

    consumer: str
    rung: int
    pressure: float
    """From 0 to 1, stored in thousandths."""
    reported_ms: int
    """Report time, in ms since 1970, by the consumer's clock."""
    ttl_ms: int = TTL_MS
    retry_after_ms: int = 1_000
    """Time after which a refused writer should retry."""

    def __post_init__(self) -> None:
        require_name(self.consumer)

    def is_live(self, now_ms: int) -> bool:
        """Return whether the report counts: its time differs from now by less than its lifetime."""
        return abs(now_ms - self.reported_ms) < self.ttl_ms

    @property
    def refuses(self) -> bool:
        """Whether it causes writes to be refused."""
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
    """Return the path for a consumer's report."""
    return f"{FOLDER}/{require_name(consumer)}.json"


def report(store: Store, reported: PressureReport) -> None:
    """Write a consumer's pressure report, replacing its previous one."""
    path, record = report_path(reported.consumer), reported.to_json()
    stored = replace(reported, pressure=record["pressure"] / _THOUSANDTHS)
    checked_record(path, stored, record, partial(_report_in, path), bytes_max=_BYTES_MAX).put(store)


def withdraw(store: Store, consumer: str) -> None:
    """Remove a consumer's report, if any."""
    store.delete(report_path(consumer))


def reports(store: Store, now_ms: int) -> list[PressureReport]:
    """Return all consumers' live reports, sorted by consumer.

    An unreadable report is skipped with a warning; a crashed consumer's report has lapsed.
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
    """Parse a report file's record."""
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
    """One table's pressure, listed about once a second; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listed_ms: int | None = None
        self._reports: list[PressureReport] = []

    def refusing(self, store: Store, now_ms: int) -> PressureReport | None:
        """Return the first report, by consumer, refusing writes; None if there is none."""
        with self._lock:
            # After the clock went back, list immediately, not when the old time is reached again.
            if self._listed_ms is None or not 0 <= now_ms - self._listed_ms < POLL_MS:
                self._reports = reports(store, now_ms)
                self._listed_ms = now_ms
            live = (
                seen_report
                for seen_report in self._reports
                if seen_report.is_live(now_ms) and seen_report.refuses
            )
            return next(live, None)

    def pressure(self, now_ms: int) -> float:
        """Return the greatest live cached pressure, without a listing; else 0."""
        with self._lock:
            return max(
                (
                    seen_report.pressure
                    for seen_report in self._reports
                    if seen_report.is_live(now_ms)
                ),
                default=0.0,
            )
