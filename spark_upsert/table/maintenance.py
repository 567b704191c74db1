"""Table and index maintenance: compaction in any process, the check, and repairs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import pyarrow as pa

from spark_upsert.core.key_hash import HashRange
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import CorruptionError, UpsertFlowError
from spark_upsert.store import Store
from spark_upsert.store.records import (
    FORMAT_VERSION,
    MALFORMED,
    UNREADABLE,
    checked_record,
    read_record,
    whole,
)
from spark_upsert.table.compaction import CompactionResult, Job, compact_runs, due_jobs
from spark_upsert.table.compaction.policy import JOB_FILES_MAX
from spark_upsert.table.compaction.worker import VERSION_JOBS_MAX
from spark_upsert.table.index.index import Index, check_index
from spark_upsert.table.log.codec import (
    CHECKPOINT_FORMAT,
    TIME_MS_MAX,
    checkpoint_from_json,
    commit_from_json,
    entries,
)
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Draft, Kind, Manifest, is_applicable
from spark_upsert.table.log.properties import INTERNAL, heeds_pressure
from spark_upsert.table.retention.lag import REFUSES_FROM, TTL_MS_MAX, PressureReport, report
from spark_upsert.table.retention.leases import FOLDER as LEASES
from spark_upsert.table.retention.leases import lease_in
from spark_upsert.table.schema_changes import with_dropped_names
from spark_upsert.table.state.check import Report
from spark_upsert.table.state.check import check as check_entries

JsonRecord = dict[str, Any]

Runner: TypeAlias = Callable[[Manifest, Sequence[Job]], int]
"""Runs and commits compaction jobs on a version, in any process; returns how many."""

Commits: TypeAlias = Callable[[Iterable[CompactionResult]], int]
"""Commits compactions and returns how many (`Table.commit_compactions`)."""


def compact(log: Log, store: Store, *, full: bool, run: Runner | None, commit: Commits) -> int:
    """Compact runs until nothing is due (`Table.compact`)."""

    def here(base: Manifest, jobs: Sequence[Job]) -> int:
        return commit(compact_runs(store, base, job) for job in jobs)

    run = run or here
    # A full compaction of very many runs would read tiny ranges of each.
    is_deep = full and log.head().run_count > JOB_FILES_MAX
    count = 0
    for is_full in (False, True) if is_deep else (full,):
        # The output may be due again. If nothing was committed, other compactions are faster.
        while jobs := due_jobs(log, log.now_ms(), full=is_full):
            done_count = run(log.head(), jobs)
            count += done_count
            if is_full or not done_count:
                break
    return count


# -- leases of ranges ----------------------------------------------------------------------

RANGES = "_leases"

RANGE_TTL_MS = 15 * 60_000
"""Lease duration: a task's group of jobs takes a few minutes; after a kill, its ranges wait."""

RUNS_MAX = 1024
"""Run count above which a compactor reports pressure: eight times what one job merges."""

COMPACTOR = "compaction"
"""The consumer name in a compactor's pressure reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeLease:
    """A compactor's claim to a hash range; a hint, which avoids work done twice."""

    hash_range: HashRange
    until_ms: int
    """Expiration time, in ms since 1970, by the compactor's clock."""

    @property
    def path(self) -> str:
        return f"{RANGES}/{'-'.join(self.hash_range.to_json())}.json"

    def to_json(self) -> JsonRecord:
        """Return the stored form."""
        record = {"hashes": self.hash_range.to_json(), "until_ms": self.until_ms}
        return {"format": FORMAT_VERSION, **record}

    @classmethod
    def from_json(cls, record: JsonRecord) -> RangeLease:
        """Parse the stored form."""
        until_ms = whole(record["until_ms"], most=TIME_MS_MAX)
        return cls(hash_range=HashRange.from_json(record["hashes"]), until_ms=until_ms)

    def try_take(self, store: Store, now_ms: int) -> bool:
        """Return whether the range is taken: nobody else holds it, or the other lease lapsed."""
        record = checked_record(self.path, self, self.to_json(), self.from_json)
        if record.put_if_absent(store):
            return True
        try:
            held = read_record(store, self.path, self.from_json)
        except UNREADABLE:
            held = None
        if held is not None and now_ms < held.until_ms <= now_ms + RANGE_TTL_MS:
            return False
        store.delete(self.path)
        return record.put_if_absent(store)


def compact_leased(
    log: Log, store: Store, base: Manifest, jobs: Iterable[Job], commit: Commits
) -> int:
    """Run and commit jobs whose ranges no other compactor has leased; return how many.

    Groups of `VERSION_JOBS_MAX` jobs are one version. Done jobs are skipped, so after a kill the
    same jobs can be run again; a compaction by others is found at the commit at the latest.
    """
    store.prepare(RANGES)
    remaining, count = iter(jobs), 0
    while group := list(islice(remaining, VERSION_JOBS_MAX)):
        leases: list[RangeLease] = []
        results: list[CompactionResult] = []
        try:
            for job in group:
                head, now_ms = log.head(), log.now_ms()
                _report_runs(store, head, now_ms)
                lease = RangeLease(hash_range=job.hash_range, until_ms=now_ms + RANGE_TTL_MS)
                if is_applicable(head, job.taken) and lease.try_take(store, now_ms):
                    leases.append(lease)
                    results.append(compact_runs(store, base, job))
            count += commit(results) if results else 0
        finally:
            for lease in leases:
                store.delete(lease.path)
    return count


def _report_runs(store: Store, head: Manifest, now_ms: int) -> None:
    """Report pressure if writers are faster than compactions (`table.retention.lag`)."""
    if heeds_pressure(head.properties) and head.run_count > RUNS_MAX:
        pressure = PressureReport(
            consumer=COMPACTOR,
            rung=REFUSES_FROM,
            pressure=1.0,
            reported_ms=now_ms,
            ttl_ms=TTL_MS_MAX,
        )
        report(store, pressure)


def serve(log: Log, compact: Callable[[], int], sleep: Callable[[float], object]) -> Iterator[int]:
    """Compact after each new version, for ever; yield how many compactions were done each time."""
    while True:
        if count := compact():
            yield count
        while not log.has_newer():
            sleep(SERVE_POLL_S)


SERVE_POLL_S = 1.0
"""Poll interval for new versions, one request each."""


def compact_once(log: Log, store: Store, commit: Commits) -> None:
    """Run one due compaction, if any, in an index."""
    for job in due_jobs(log, log.now_ms())[:1]:
        commit([compact_runs(store, log.head(), job)])


def check(
    log: Log,
    store: Store,
    indexes: Iterable[Index],
    progress: Callable[[int, int], object] | None,
) -> Report:
    """Verify a table and its indexes (`Table.check`)."""
    report = check_entries(store, log, progress)
    index_findings = [finding for index in indexes for finding in check_index(index)]
    return replace(report, findings=(*report.findings, *index_findings))


@dataclass(frozen=True, slots=True, kw_only=True)
class Repairs:
    """A repair's changes; empty if the table needed none."""

    version: int
    """The newest version: the repair's, if it committed one."""
    columns: Mapping[str, str]
    """Dropped columns' types, by name."""
    properties: tuple[str, ...]
    """Removed properties."""
    records: tuple[str, ...]
    """Corrected records' paths."""

    @property
    def has_changed(self) -> bool:
        """Whether the table needed a repair."""
        return bool(self.columns or self.properties or self.records)


def repair(store: Store, log: Log) -> Repairs:
    """Make a table readable (`Table.repair`).

    The next version lacks columns with a type that no reader accepts, and user-set properties in
    `INTERNAL`; no run is rewritten. Records with an invalid number are replaced.
    """
    records = _correct_records(store)
    head = log.head()

    def propose(newest: Manifest) -> Draft | None:
        nonlocal head
        head = newest
        names = head.schema.unreadable
        properties = _without_foreign(head.properties)
        if not names and properties == head.properties:
            return None
        if names:
            properties = with_dropped_names(properties, names)
        schema = without_columns(head.schema, names)
        return Draft(
            kind=Kind.ALTER, schema=schema, properties=properties, live_rows=head.live_rows
        )

    log.append(propose)
    types = {name: head.schema.columns.field(name).type for name in head.schema.unreadable}
    return Repairs(
        version=log.head().version,
        columns={name: str(types[name]) for name in sorted(types)},
        properties=tuple(sorted(head.properties.keys() - _without_foreign(head.properties).keys())),
        records=tuple(records),
    )


def without_columns(schema: TableSchema, names: frozenset[str]) -> TableSchema:
    """Return a schema without the given columns and their rules."""
    engine = schema.engine
    rules = {name: rule for name, rule in engine.rules.items() if name not in names}
    order = {
        name: order_name for name, order_name in engine.column_order.items() if name not in names
    }
    return replace(
        schema,
        columns=pa.schema([field for field in schema.columns if field.name not in names]),
        engine=replace(engine, rules=rules, column_order=order),
    )


def _without_foreign(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties without internal ones set by a user: those are invalid JSON."""
    return {
        name: text for name, text in properties.items() if name not in INTERNAL or _is_json(text)
    }


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


# -- records -----------------------------------------------------------------------------


def _correct_records(store: Store) -> list[str]:
    """Correct the records that no reader accepts; return their paths."""
    corrected = [
        entry.path
        for entry in entries(store)
        if _correct(
            store,
            entry.path,
            checkpoint_from_json if entry.is_checkpoint else commit_from_json,
            _corrected_version,
        )
    ]
    leases = [info.path for info in store.list(LEASES)]
    corrected += [
        path for path in leases if _correct(store, path, partial(lease_in, path), _corrected_lease)
    ]
    return corrected


def _correct(
    store: Store,
    path: str,
    build: Callable[[JsonRecord], object],
    corrected: Callable[[JsonRecord], JsonRecord],
) -> bool:
    """Replace a record by a form accepted by its reader; return False if nothing was written.

    A record with a wrong checksum is damaged and remains.
    """
    try:
        record = read_record(store, path, dict, format_max=CHECKPOINT_FORMAT)
    except CorruptionError:
        return False
    if record is None or _is_accepted(build, record):
        return False
    record = corrected(record)
    if not _is_accepted(build, record):
        return False
    checked_record(path, build(record), record, build).put(store)
    return True


def _is_accepted(build: Callable[[JsonRecord], object], record: JsonRecord) -> bool:
    try:
        build(record)
    except (*MALFORMED, UpsertFlowError):
        return False
    return True


def _corrected_version(record: JsonRecord) -> JsonRecord:
    """Return a version's or checkpoint's record with transactions accepted by a reader.

    Fractions are rounded down; transactions beyond 64 bits are dropped.
    """
    transactions = {}
    for writer, entry in record.get("transactions", {}).items():
        number, *time_ms = entry if isinstance(entry, list) else [entry]
        floor = _floor(number)
        if floor is not None:
            transactions[writer] = [floor, *time_ms] if time_ms else floor
    corrected = {**record, "transactions": transactions}
    schema = record.get("schema")
    if (
        schema is not None
        and record.get("version")
        and not _is_accepted(TableSchema.from_json, schema)
    ):
        del corrected["schema"]
    return corrected


def _corrected_lease(record: JsonRecord) -> JsonRecord:
    names = ("version", "renewed_ms", "ttl_ms")
    return {**record, **{name: _floor(record.get(name)) for name in names}}


def _floor(number: Any) -> int | None:
    """Return a number rounded down; None if a record cannot hold it."""
    try:
        return whole(math.floor(number))
    except (TypeError, ValueError, OverflowError):
        return None
