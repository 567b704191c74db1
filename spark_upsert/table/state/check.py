"""Table verification (`check`): files, entry order, counters and leases. Changes nothing.

Damage is returned as findings. Data removed meanwhile by an expiry or a vacuum is no finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.key_hash import hash_keys
from spark_upsert.core.keys import sort_words
from spark_upsert.core.schema import DIFF, HASH, TableSchema
from spark_upsert.errors import CorruptionError, VersionNotFoundError
from spark_upsert.store import Store
from spark_upsert.table.log.manifest import Commit, Manifest, apply
from spark_upsert.table.log.reader import LogReader
from spark_upsert.table.retention.expiry import retry_after_expiry
from spark_upsert.table.retention.leases import lease_path, readable_leases
from spark_upsert.table.run.file import Run, RunFile, Span
from spark_upsert.table.run.rows import Rows, RunPart
from spark_upsert.table.state.fold import describe_entry, impossible
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.state.snapshot import Snapshot, count_unknown

_CHUNK_ROWS = 1 << 17
"""Entries checked per chunk."""

_FIRST = np.zeros(1, dtype=np.int64)
"""The first row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A deviation from the expected state."""

    place: str
    """A file, or a version."""
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.place}: expected {self.expected}, found {self.found}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Findings and coverage of a table check."""

    since: int
    newest: int
    file_count: int
    entry_count: int
    bytes: int
    live_rows: int
    findings: tuple[Finding, ...]

    @property
    def is_sound(self) -> bool:
        return not self.findings


def check(
    store: Store, log: LogReader, on_progress: Callable[[int, int], object] | None = None
) -> Report:
    """Verify everything required by a table's readable versions.

    Notes
    -----
    Checks file lengths, checksums and entry counts; ascending hashes, each key once; balanced
    counters and ``live_rows`` per version; the newest row count; contributions; leases. Reads every
    file once, including log files, regardless of earlier reads. Memory is bounded by the largest
    file's mapping.
    """
    log = log.without_cache()
    readable = retry_after_expiry(lambda: _Readable.of(log), store.url)
    head, files = readable.head, readable.files
    of_files: list[Finding] = []
    for done, file in enumerate(files.values()):
        if on_progress is not None:
            on_progress(done, len(files))
        of_files += _check_file(store, head.schema, file)
    if of_files and log.head().since > head.since:
        needed = retry_after_expiry(lambda: _Readable.of(log), store.url).files
        of_files = [of_file for of_file in of_files if of_file.place in needed]
    of_rows = retry_after_expiry(lambda: _check_newest(store, log), store.url)
    return Report(
        since=head.since,
        newest=head.version,
        file_count=len(files),
        entry_count=sum(file.rows for file in files.values()),
        bytes=sum(file.bytes for file in files.values()),
        live_rows=head.live_rows,
        findings=(*_check_counts(readable), *of_files, *of_rows, *_check_leases(store, log)),
    )


@dataclass(frozen=True, slots=True)
class _Readable:
    """A table's readable history: the state before the first changes, and the commits since.

    It is held in memory, so a concurrent expiry does not affect it.
    """

    head: Manifest
    base: Manifest
    commits: tuple[Commit, ...]

    @classmethod
    def of(cls, log: LogReader) -> _Readable:
        """Return the currently readable history."""
        look = log.refresh()
        head = look.head()
        base = look.before(head.first_changes)
        return cls(head, base, tuple(look.commits(head.first_changes, head.upper)))

    @property
    def files(self) -> dict[str, RunFile]:
        """The required run files, by path."""
        slices = [*self.base.slices, *(slice_ for c in self.commits for slice_ in c.slices())]
        return {slice_.file.path: slice_.file for slice_ in slices}


def newer_than_the_log(place: str, version: int, newest: int) -> Finding:
    """Return the finding for a recorded version newer than the newest one."""
    return Finding(
        place=place,
        expected=f"a version up to {newest}, the newest in the log",
        found=f"version {version} (newer versions were lost, or this is an older copy)",
    )


def _check_leases(store: Store, log: LogReader) -> list[Finding]:
    held = readable_leases(store)
    newest = log.head().version  # After the leases, which do not go ahead of it.
    return [
        newer_than_the_log(lease_path(lease.consumer), lease.version, newest)
        for lease in held
        if lease.version > newest
    ]


def _check_counts(readable: _Readable) -> Iterator[Finding]:
    manifest = readable.base
    for commit in readable.commits:
        counters = Counters.from_json(commit.counters)
        if not counters.is_balanced:
            yield Finding(
                place=f"version {commit.version}",
                expected=f"counters that account for {counters.rows} rows",
                found=repr(counters),
            )
        live_rows = manifest.live_rows + counters.live_delta
        if commit.live_rows != live_rows:
            yield Finding(
                place=f"version {commit.version}",
                expected=f"{live_rows} live rows, by its counters and the version before",
                found=f"{commit.live_rows}",
            )
        manifest = apply(manifest, commit)


@runtime_checkable
class _KeepsCopies(Protocol):
    """A store mapping local copies; the check wants the originals."""

    def forget(self, path: str) -> None: ...


def _check_file(store: Store, schema: TableSchema, file: RunFile) -> Iterator[Finding]:
    if isinstance(store, _KeepsCopies):
        store.forget(file.path)
    try:
        # Opened again: an open run does not verify its blocks a second time.
        run = Run(file, store.map(file.path))
        run.verify()
        # Types and columns are compared where rows of several runs are put together.
        Rows(schema, [RunPart(Span.within(run))]).take(schema.run.names, _FIRST)
    except FileNotFoundError:
        yield Finding(place=file.path, expected=f"{file.bytes} bytes", found="no such file")
        return
    except CorruptionError as error:
        yield Finding(place=file.path, expected="an intact file", found=error.message)
        return
    diffs = run.slice([DIFF], 0, len(run.hashes))[0].to_numpy()
    tombstones = int((diffs < 0).sum())
    if (len(run.hashes), tombstones) != (file.rows, file.tombstones):
        yield Finding(
            place=file.path,
            expected=f"{file.rows} entries, {file.tombstones} of them tombstones",
            found=f"{len(run.hashes)} and {tombstones}",
        )
    bounds = (int(run.hashes[0]), int(run.hashes[-1]))
    if bounds != (file.hash_range.first, file.hash_range.last):
        yield Finding(
            place=file.path,
            expected=f"hashes from {file.hash_range.first:016x} to {file.hash_range.last:016x}",
            found=f"{bounds[0]:016x} to {bounds[1]:016x}",
        )
    yield from _check_order(schema, run)


def _check_order(schema: TableSchema, run: Run) -> Iterator[Finding]:
    path, hashes = run.file.path, run.hashes
    falling = np.flatnonzero(hashes[1:] < hashes[:-1])
    if len(falling):
        yield Finding(
            place=path, expected=f"{HASH} ascending", found=f"it falls behind entry {falling[0]}"
        )
    for start in range(0, len(hashes), _CHUNK_ROWS):
        stop = min(start + _CHUNK_ROWS, len(hashes))
        # An undecodable key is hashed by its bytes, so only plain tables are tried.
        if not schema.has_quarantine:
            keys = run.slice(schema.keys, start, stop)
            expected_hashes = hash_keys(keys, seed=schema.hash_seed, prefix=schema.hash_prefix)
            wrong = np.flatnonzero(expected_hashes != hashes[start:stop])
            if len(wrong):
                yield Finding(
                    place=path,
                    expected=f"{HASH} of its own key in each entry",
                    found=f"another in entry {start + wrong[0]} and {len(wrong) - 1} more",
                )
                return
    equal = np.flatnonzero(hashes[1:] == hashes[:-1])
    if len(equal):
        names = [name for name in schema.identity if run.has(name)]
        before = run.take(names, equal)
        after = run.take(names, equal + 1)
        twice = ~_is_less(before, after)
        if bool(twice.any()):
            yield Finding(
                place=path,
                expected="each key once, in order",
                found=f"a key again, or out of order, behind entry {equal[twice][0]}",
            )


def _is_less(left: list[pa.Array], right: list[pa.Array]) -> npt.NDArray[np.bool_]:
    """Return a mask: whether each left row precedes the right row in run order."""
    count = len(left[0])
    both = [
        pa.concat_arrays([one, right_column]) for one, right_column in zip(left, right, strict=True)
    ]
    less = np.zeros(count, dtype=np.bool_)
    same = np.ones(count, dtype=np.bool_)
    for word in sort_words(both):
        less |= same & (word[:count] < word[count:])
        same &= word[:count] == word[count:]
    return less


def _check_newest(store: Store, log: LogReader) -> list[Finding]:
    """Check the newest version's rows."""
    head = log.head()
    findings = [*_check_snapshot(store, head)]
    newest = log.head()
    if findings and head.version < newest.since:
        raise VersionNotFoundError.expired(
            f"version {head.version}, checked while an expiry removed it,",
            since=newest.since,
            newest=newest.version,
        )
    return findings


def _check_snapshot(store: Store, head: Manifest) -> Iterator[Finding]:
    if head.schema.engine.multiplicity is not None:  # An overflowing sum is no damage.
        engine = replace(head.schema.engine, has_null_for_overflow=True)
        head = replace(head, schema=replace(head.schema, engine=engine))
    location, schema = f"version {head.version}", head.schema
    of_no_rows, first, rows = 0, "", 0
    counts_rows = schema.engine.multiplicity is not None
    try:
        for batch in Snapshot(store, head).read(schema.columns.names if counts_rows else []):
            rows += batch.num_rows
            if counts_rows:
                columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                wrong = np.flatnonzero(impossible(schema, columns))
                if len(wrong) and not of_no_rows:
                    first = describe_entry(schema, columns, int(wrong[0]))
                of_no_rows += len(wrong)
    except CorruptionError as error:
        yield Finding(place=location, expected="its rows", found=error.message)
        return
    if of_no_rows:
        yield Finding(
            place=location,
            expected="contributions of one row or more in each entry",
            found=f"{of_no_rows} entries of none or fewer (the first: {first})",
        )
    if rows != head.live_rows:
        yield Finding(
            place=location, expected=f"{head.live_rows} rows, by its live_rows", found=f"{rows}"
        )
    unknown = count_unknown(Snapshot(store, head))
    if unknown != head.unknown_rows:
        yield Finding(
            place=location,
            expected=f"{head.unknown_rows} rows with an unknown value, by its unknown_rows",
            found=f"{unknown}",
        )
