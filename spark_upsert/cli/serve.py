"""``upsertflow serve``: many tables' state on one page in a browser; read only.

A refresh costs each table a bounded number of requests, and happens at most once in `REST_S`
however many pages are open.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from itertools import accumulate
from typing import Any

import numpy as np

from spark_upsert.core.threads import map_in_order
from spark_upsert.delta.follow import measure_mirror_lag
from spark_upsert.delta.log import open_published_mirror
from spark_upsert.delta.publish import mirror_consumer
from spark_upsert.errors import UpsertFlowError, masked, require_plain
from spark_upsert.options.declare import path_below
from spark_upsert.options.inputs import Pattern
from spark_upsert.routed.dead_letter import DeadLetterTable
from spark_upsert.scheduler.scheduler import bands_of, priority_in
from spark_upsert.store import Store
from spark_upsert.store.open import open_store
from spark_upsert.streams.inputs.discovered import Discovery
from spark_upsert.table.compaction import due_jobs
from spark_upsert.table.log.codec import commit_path
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.log.properties import heeds_pressure
from spark_upsert.table.published import is_published
from spark_upsert.table.retention.lag import reports
from spark_upsert.table.retention.leases import Lease, readable_leases
from spark_upsert.table.table import Table

VERSIONS_MAX = 256
"""Maximum versions read for lag totals; a longer lag shows only the version count."""

_THREADS = 16

_NOT_THERE = "not there: its rows are parked, see 'upsertflow dead-letters'"

_DISCOVERS_EVERY = 10
"""Polls between two table discoveries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Lag of a consumer with a live lease."""

    consumer: str
    versions: int
    epochs: int | None
    """None if more versions lag than are read."""
    bytes: int | None
    """File bytes added by these epochs; None as for `epochs`."""
    waiting_ms: int | None = None
    """Time since the oldest lagging epoch's commit; None without any."""
    is_mirror: bool = False
    """Whether the lease belongs to the table's mirror, which is shown separately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLine:
    """A table's state at one time; unknown values are None."""

    table: str
    version: int | None = None
    fresh: int | None = None
    """Versions since the previous poll."""
    rows: int | None = None
    bytes: int | None = None
    runs: int | None = None
    age_ms: int | None = None
    """Time since the last commit, by this machine's clock."""
    lags: tuple[Lag, ...] = ()
    """Consumer lags, slowest first."""
    priority: int | None = None
    band: int | None = None
    mirror_versions: int | None = None
    """Versions not yet in the mirror; None without a mirror."""
    mirror_ms: int | None = None
    """Waiting time for the first change among them."""
    parked_rows: int | None = None
    """Dead-letter rows; None if the table belongs to no routed write."""
    pressure: float | None = None
    """Maximum pressure reported by consumers; None if the table ignores it."""
    problem: str | None = None
    """Read error."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


class TableLines:
    """Polls tables repeatedly.

    Parameters
    ----------
    paths : sequence of str
        Paths to tables, or to folders containing tables.
    pattern : str
        Possible table folders below a folder (`Pattern`).
    limit : int
        Maximum tables polled; the others are only counted.
    storage : mapping
        Object store options.
    clock : callable, optional
        Returns seconds since 1970.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        pattern: str = "*",
        limit: int = 100,
        storage: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        for path in paths:
            require_plain(path)  # Before a server answers with an error it cannot show.
        self._paths = paths
        self._pattern = Pattern.parse(pattern)
        self._limit = limit
        self._storage = storage
        self._clock = clock
        self._tables: dict[str, Table] = {}
        self._found: frozenset[str] = frozenset()
        """All table names, including unpolled tables."""
        self._roots: dict[str, DeadLetterTable] = {}
        """Dead-letter tables below routed roots, by URL."""
        self._versions: dict[str, int] = {}
        self._looks = 0
        self.left_out = 0
        """Unpolled tables."""

    def poll(self) -> list[TableLine]:
        """Poll each table; returns lines sorted by name, then dead-letter rows without a table."""
        if self._looks % _DISCOVERS_EVERY == 0:
            # Once tables are known, a failed search may be repeated later.
            with suppress(*((UpsertFlowError, OSError) if self._tables else ())):
                self._discover()
        self._looks += 1
        names = list(self._tables)
        lines = list(map_in_order(self._poll_table, names, min(_THREADS, len(names))))
        parked = self._parked()
        homeless = [
            TableLine(table=name, parked_rows=rows, problem=_NOT_THERE)
            for name, rows in sorted(parked.items())
            if name not in self._found and rows
        ]
        return [replace(line, parked_rows=parked.get(line.table)) for line in lines] + homeless

    def _parked(self) -> Mapping[str, int]:
        """Return dead-letter row counts below routed roots, by table name."""
        parked: dict[str, int] = {}
        for url, root in self._roots.items():
            # The tables themselves can be seen without it; then theirs are unknown.
            with suppress(UpsertFlowError, OSError):
                counts = root.counts()
                parked |= {name: 0 for name in self._found if name.startswith(f"{url}/")}
                parked |= {f"{url}/{folder}": rows for folder, rows in counts.items()}
        return parked

    def table(self, name: str) -> Table:
        """Return a table from the last poll by its line's name."""
        return self._tables[name]

    def _discover(self) -> None:
        stores = {url: store for path in self._paths for url, store in self._iter_below(path)}
        self._found = frozenset(stores)
        self.left_out = max(0, len(stores) - self._limit)
        tables = self._tables
        names = sorted(stores)[: self._limit]
        self._tables = {name: tables.get(name) or Table(stores[name]) for name in names}

    def _iter_below(self, path: str) -> Iterator[tuple[str, Store]]:
        """Yield the table at a path, or the tables below it."""
        root = open_store(path, self._storage)
        if _is_table(root):
            yield root.url, root
            return
        self._roots.setdefault(root.url, DeadLetterTable(root))
        discovery = Discovery(root, self._pattern, threads=_THREADS)
        for folder in discovery.tables(discovery.folders()):
            store = open_store(path_below(path, folder), self._storage)
            yield store.url, store

    def _poll_table(self, name: str) -> TableLine:
        try:
            return self._read_line(name, self._tables[name])
        except (UpsertFlowError, OSError) as error:
            first, *_ = masked(str(error)).splitlines() or [type(error).__name__]
            return TableLine(table=name, problem=first)

    def _read_line(self, name: str, table: Table) -> TableLine:
        head, now_ms = table.log.head(), int(self._clock() * 1000)
        before = self._versions.get(name, head.version)
        self._versions[name] = head.version
        priority = priority_in(head.properties)
        lags = tuple(_iter_lags(table, head, now_ms))
        has_mirror = is_published(head.properties) or any(lag.is_mirror for lag in lags)
        mirror = measure_mirror_lag(table) if has_mirror else None
        return TableLine(
            table=name,
            version=head.version,
            fresh=head.version - before,
            rows=head.live_rows,
            bytes=head.bytes,
            runs=head.run_count,
            age_ms=max(0, now_ms - head.time_ms(head.version, head.timestamp_ms)),
            lags=lags,
            priority=priority,
            band=None if priority is None else int(bands_of(np.array([priority]))[0]),
            mirror_versions=None if mirror is None else mirror[0],
            mirror_ms=None if mirror is None else mirror[1],
            pressure=_pressure(table.store, head, now_ms),
        )


def _is_table(store: Store) -> bool:
    try:
        store.read(commit_path(0))
    except FileNotFoundError:
        return False
    return True


def _iter_lags(table: Table, head: Manifest, now_ms: int) -> Iterator[Lag]:
    """Yield consumer lags, slowest first."""
    live = [lease for lease in readable_leases(table.store) if lease.is_live(now_ms)]
    if not live:
        return
    slowest = min(lease.version for lease in live)
    lower = max(slowest + 1, head.since, head.upper - VERSIONS_MAX)
    newest_first = list(table.log.commits(lower, head.upper))[::-1]
    epochs = [0, *accumulate(int(commit.is_epoch) for commit in newest_first)]
    sizes = [0, *accumulate(sum(f.bytes for f in commit.added) for commit in newest_first)]
    times_ms: list[int | None] = [None]
    """At index n: commit time for the oldest epoch among the n newest versions."""
    mirror = mirror_consumer(open_published_mirror(table.store, head.properties).url)
    for commit in newest_first:
        time_ms = head.time_ms(commit.version, commit.timestamp_ms)
        times_ms.append(time_ms if commit.is_epoch else times_ms[-1])

    def lag_of(lease: Lease) -> Lag:
        versions = max(0, head.version - lease.version)
        if versions >= len(epochs):
            return Lag(
                consumer=lease.consumer,
                versions=versions,
                epochs=None,
                bytes=None,
                is_mirror=lease.consumer == mirror,
            )
        oldest_ms = times_ms[versions]
        return Lag(
            consumer=lease.consumer,
            versions=versions,
            is_mirror=lease.consumer == mirror,
            epochs=epochs[versions],
            bytes=sizes[versions],
            waiting_ms=None if oldest_ms is None else max(0, now_ms - oldest_ms),
        )

    yield from (lag_of(lease) for lease in sorted(live, key=lambda each: each.version))


def _pressure(store: Store, head: Manifest, now_ms: int) -> float | None:
    if not heeds_pressure(head.properties):
        return None
    return max((report.pressure for report in reports(store, now_ms)), default=0.0)


EPOCHS_SHOWN = 60
"""Plotted epochs; also the maximum versions read for them."""

REST_S = 1.0
"""Cache time for a poll: pages within it share the result."""

_PAGE = "serve.html"

_SECURITY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:"
)
"""Restricts the page to its own content, whatever a table is called."""


class CachedPoll:
    """Polls tables on page requests; thread-safe.

    Parameters
    ----------
    lines : TableLines
    clock : callable, optional
        Returns seconds; they only increase.
    """

    def __init__(self, lines: TableLines, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lines = lines
        self._clock = clock
        self._lock = threading.Lock()
        self._cached: tuple[float, bytes] | None = None

    def data(self) -> bytes:
        """Return the newest poll as JSON; cached for `REST_S`."""
        with self._lock:
            if self._cached is None or self._clock() >= self._cached[0] + REST_S:
                lines = [self._render_line(line) for line in self._lines.poll()]
                payload = {"tables": lines, "left_out": self._lines.left_out}
                self._cached = self._clock(), json.dumps(payload).encode()
            return self._cached[1]

    def _render_line(self, line: TableLine) -> dict[str, Any]:
        fields = line.to_json()
        if line.problem is not None:
            return fields
        try:
            return fields | _read_details(self._lines.table(line.table))
        except (UpsertFlowError, OSError) as error:
            return fields | {"problem": str(error).partition("\n")[0]}


def _read_details(table: Table) -> dict[str, Any]:
    """Return details for one table: oldest readable version, debt, and epoch counters."""
    with table.log.cached_snapshot() as look:
        head = look.head()
        lower = max(head.since, head.upper - EPOCHS_SHOWN)
        epochs = [commit for commit in look.commits(lower, head.upper) if commit.is_epoch]
        debt = len(due_jobs(look, table.log.now_ms()))
    history = [{"version": epoch.version, **epoch.counters} for epoch in epochs]
    return {"since": head.since, "debt": debt, "history": history}


def server_of(poll: CachedPoll, host: str, port: int) -> ThreadingHTTPServer:
    """Return an HTTP server for the page; port 0 selects a free port."""
    page = files(__name__.rpartition(".")[0]).joinpath(_PAGE).read_bytes()

    class Handler(BaseHTTPRequestHandler):
        """Serves the page and its data."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            match self.path.partition("?")[0]:
                case "/":
                    self._answer(page, "text/html; charset=utf-8")
                case "/data.json":
                    self._answer(poll.data(), "application/json")
                case _:
                    self.send_error(HTTPStatus.NOT_FOUND)

        def _answer(self, body: bytes, kind: str) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", _SECURITY)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: a page sends a request every two seconds."""

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    return server
