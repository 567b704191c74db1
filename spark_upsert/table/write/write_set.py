"""The write set: all tasks' staged work for one epoch, which fits after any version.

Only keys in several tasks, or changed by another writer since, are decided again at the commit
(docs/adr/0004).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.casts import convert
from spark_upsert.core.key_hash import ALL_HASHES, HashRange, order_of
from spark_upsert.core.keys import Mask, Positions, ordered_words
from spark_upsert.core.precedence import Epoch, Interval
from spark_upsert.core.schema import (
    DIFF,
    HASH,
    PUT,
    VALUE_DELETED,
    VALUE_SET,
    VALUE_UNCHANGED,
    TableSchema,
    at_column,
    kept_column,
)
from spark_upsert.core.source_positions import with_logs
from spark_upsert.errors import DataError
from spark_upsert.store import Store
from spark_upsert.table.compaction.worker import with_epochs
from spark_upsert.table.log.manifest import (
    HISTORY_OF,
    Commit,
    Draft,
    Kind,
    Manifest,
    Slice,
    TableVersion,
    Transaction,
    stores_rows,
)
from spark_upsert.table.log.properties import (
    LateRows,
    decode_mark,
    encode_mark,
    higher_mark,
    is_at_or_below,
)
from spark_upsert.table.run.file import RUNS, RunFile, Span, new_run_path, write_run
from spark_upsert.table.run.remote import REMOTE_RUNS, Access
from spark_upsert.table.run.rows import BatchPart, Rows, RunPart
from spark_upsert.table.state.reduce import EMPTY, Counters, merge_function_for
from spark_upsert.table.state.registers import are_rows, are_unknown, has_marks, without_values
from spark_upsert.table.state.resolve import epochs_by_part
from spark_upsert.table.state.snapshot import Snapshot, cut_by_files
from spark_upsert.table.write.outcomes import (
    Move,
    Outcome,
    Outcomes,
    accepted,
    are_ordered,
    count,
    outcomes_of,
)
from spark_upsert.table.write.ties import (
    Examples,
    count_losers,
    examples_of,
    require_known,
    require_order,
)

if TYPE_CHECKING:
    from spark_upsert.table.state.prepared import Preparation, PreparedFiles


class Scratch:
    """Writes runs, and removes them if its block ends with an error.

    Parameters
    ----------
    store : Store
    ahead : Preparation, optional
        Prepares the table's mirror for each run.
    """

    def __init__(self, store: Store, ahead: Preparation | None = None) -> None:
        self._store = store
        self._ahead = ahead
        self._written: list[RunFile] = []

    def write(self, rows: pa.RecordBatch) -> RunFile:
        """Write a run durably."""
        file = write_run(self._store, new_run_path(), rows)
        self._written.append(file)
        if self._ahead is not None:
            self._ahead.write(file, rows)
        return file

    def keep(self, paths: Set[str]) -> None:
        """Remove the runs written so far except those given, which now have an owner."""
        remove_runs(self._store, (file for file in self._written if file.path not in paths))
        self.leave()

    def leave(self) -> None:
        """Leave the runs written so far to a vacuum: whether a version uses them is not known."""
        self._written.clear()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            self.keep(frozenset())


def remove_runs(store: Store, files: Iterable[RunFile]) -> None:
    """Remove unused runs as far as possible."""
    for file in files:
        with suppress(Exception):
            store.delete(file.path)


SEAL_ROWS = 1 << 20
"""Hashes compared per seal step: 8 MiB per task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRuns:
    """One task's runs, durable but not yet visible."""

    base: TableVersion
    """The version against which the commands were counted."""
    files: tuple[RunFile, ...] = ()
    counters: Counters = EMPTY
    examples: Examples = field(default_factory=dict)
    """Example keys for user-facing warnings (`write.ties`)."""
    truncated: str | None = None
    """The mark of the youngest truncate among the commands (`truncate`)."""
    is_by_keys: bool = False
    """Whether the commands are deletes by keys alone (`commands.are_by_keys`)."""
    logs: frozenset[str] = frozenset()
    """The binlogs ordering the commands (`core.source_positions`)."""
    move: Move | None = None
    """The step from the marker among contributions (`moves`)."""
    ahead: PreparedFiles | None = None
    """The preparation for the table's mirror."""
    unchanged: tuple[str, ...] = ()
    """Columns that commands left unchanged; the commit adds them to the table's schema."""
    has_moves: bool = False
    """Whether rows moved to other keys with their values; the commit adds that, too."""
    moved: pa.RecordBatch | None = None
    """The deletes of these rows' old keys, with the new keys (`table.write.moves`)."""
    carried: pa.RecordBatch | None = None
    """What each move took along, and the values carried to keys to which several rows moved.

    The runs have the newest alone.
    """

    @property
    def base_version(self) -> int:
        return self.base.version


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSet:
    """All tasks' staged work for one epoch; it fits after any version."""

    base: Snapshot
    """The oldest version used for a task's counts."""
    staged: tuple[StagedRuns, ...]
    """In task order."""
    bases: Mapping[int, Snapshot] = field(default_factory=dict)
    """The base versions, if tasks have counted against different ones."""
    transactions: tuple[Transaction, ...] = ()
    """Transactions made idempotent by the commit, all of them or none."""
    overwrite: bool = False
    allow_unordered: bool = False
    late_rows: LateRows = LateRows.REJECT

    @property
    def truncated(self) -> str | None:
        """The mark of the youngest truncate in the epoch."""
        schema, youngest = self.base.manifest.schema, None
        for staged_task in self.staged:
            youngest = higher_mark(youngest, staged_task.truncated, schema)
        return youngest

    @property
    def files(self) -> tuple[RunFile, ...]:
        """The files written by the tasks, in task order."""
        return tuple(file for staged_task in self.staged for file in staged_task.files)

    def marked(self, schema: TableSchema) -> TableSchema:
        """Return a table's schema with the columns that these commands left unchanged."""
        for staged_task in self.staged:
            schema = schema.with_unchanged(staged_task.unchanged, has_moves=staged_task.has_moves)
        return schema

    @property
    def logs(self) -> frozenset[str]:
        """The binlogs ordering the commands."""
        return frozenset().union(*(staged_task.logs for staged_task in self.staged))

    def is_lateness_decided_for(self, head: Manifest) -> bool:
        """Return whether lateness was already decided for every command when the tasks staged them.

        It was not if deletes have been forgotten since.
        """
        return self.overwrite or head.forgot <= self.base.manifest.version

    def without_late(self, head: Manifest, scratch: Scratch) -> WriteSet:
        """Return the write set without commands that are late since deletes were forgotten.

        Rare. Runs with late commands are written again without them; the others stay.
        """
        newest = Snapshot(self.base.store, head)
        staged = tuple(
            self._without_late(newest, staged_task, scratch) for staged_task in self.staged
        )
        return replace(self, staged=staged)

    def seal(self, head: Manifest, between: Iterable[Commit]) -> SealedDraft:
        """Return the draft making the epoch visible immediately after ``head``."""
        newest = Snapshot(self.base.store, head)
        counters = sum((staged_task.counters for staged_task in self.staged), EMPTY)
        examples = {k: v for staged_task in self.staged for k, v in staged_task.examples.items()}
        for rows, counted_by, chosen in self._contested(head, between):
            correction, recounted = self._recount(newest, rows, counted_by, chosen)
            counters += correction
            examples |= recounted
        if self.overwrite:
            counters += Counters(retracted=head.live_rows - counters.result_count)
        assert counters.is_balanced, counters
        require_known(counters, examples, head.schema)
        draft = Draft(
            kind=Kind.OVERWRITE if self.overwrite else Kind.APPEND,
            transactions=self.transactions,
            added=self.files,
            counters=counters.to_json(),
            live_rows=head.live_rows + counters.live_delta,
            unknown_rows=_unknown_rows(head, counters, is_overwrite=self.overwrite),
            properties=with_logs(head.properties, self.logs),
        )
        return SealedDraft(draft, examples)

    def _contested(
        self, head: Manifest, between: Iterable[Commit]
    ) -> Iterator[tuple[Rows, list[StagedRuns], npt.NDArray[np.int64]]]:
        """Yield the commands whose counts do not simply add up, by hash range.

        Each item has the range's complete commands, the task counting each of their parts, and the
        positions of the commands to recount. Only files with overlapping hash ranges are opened.
        """
        writing = [staged_task for staged_task in self.staged if staged_task.files]
        if not writing:
            return
        epochs = [commit for commit in between if commit.is_epoch]
        slices = tuple(slice_ for commit in epochs for slice_ in commit.slices())
        # Where the past was replaced, or late rows are applied, it may be any key.
        is_all = (
            self.truncated is not None
            or any(commit.kind is Kind.OVERWRITE for commit in epochs)
            or (self.late_rows is LateRows.APPLY and not self.is_lateness_decided_for(head))
        )
        # A command without order is never late: it comes after a delete forgotten since.
        is_any_unordered = head.schema.has_quarantine and not self.is_lateness_decided_for(head)
        staged = [(staged_task, file) for staged_task in writing for file in staged_task.files]
        if is_all or is_any_unordered:
            groups = [(ALL_HASHES, staged)]
        else:
            ranges = [file.hash_range for _, file in staged]
            newer_ranges = [slice_.occupied for slice_ in slices]
            groups = [
                (hash_range, [staged[index] for index in indices])
                for hash_range, indices in overlaps(ranges, newer_ranges)
            ]
        newer = Snapshot(self.base.store, replace(head, slices=slices))
        for hash_range, pairs in _pieces(groups):
            access = Access(
                columns=None if is_all else [HASH],
                hash_range=hash_range,
                has_hot_prefixes=head.schema.hash_prefix > 0,
            )
            rows = self._rows(head, [file for _, file in pairs], access)
            if is_all:
                chosen = np.arange(len(rows))
            else:
                others = [part.hashes for part, _ in newer.parts(hash_range, access)]
                contested = shared_hashes(rows.hashes, others)
                if is_any_unordered:
                    contested |= ~are_ordered(rows, np.arange(len(rows)))
                chosen = np.flatnonzero(contested)
            if len(chosen):
                yield rows, [staged_task for staged_task, _ in pairs], chosen

    def _rows(self, head: Manifest, files: Sequence[RunFile], access: Access) -> Rows:
        """Return the staged commands with hashes in a range, one part per file."""
        runs = REMOTE_RUNS.open_all(self.base.store, files, access)
        return Rows(head.schema, [RunPart(Span.within(run, access.hash_range)) for run in runs])

    def _base_of(self, staged: StagedRuns) -> Snapshot:
        """Return the version used for a task's counts."""
        return self.bases.get(staged.base_version, self.base)

    def _recount(
        self, newest: Snapshot, rows: Rows, counted_by: Sequence[StagedRuns], chosen: Positions
    ) -> tuple[Counters, Examples]:
        """Return by how much the tasks' counts are wrong for contested commands."""
        counted = EMPTY
        owners = rows.part_of(chosen)
        for owner in np.unique(owners):
            base = self._base_of(counted_by[owner])
            counted += count(self._outcomes_of(base, rows, chosen[owners == owner]))
        reduced = merge_function_for(rows.schema).reduce(rows, chosen=chosen)
        if not self.allow_unordered:
            require_order(rows, reduced)
        lost, examples = count_losers(rows, reduced)
        outcomes = self._outcomes_of(newest, reduced.rows, reduced.at)
        others = examples_of(reduced.rows, reduced.at, outcomes, self.late_rows)
        return count(outcomes) + lost - counted, {**examples, **others}

    def _outcomes_of(self, snapshot: Snapshot, rows: Rows, chosen: Positions) -> Outcomes:
        return outcomes_of(
            snapshot,
            rows,
            chosen,
            overwrite=self.overwrite,
            late_rows=self.late_rows,
            is_by_keys=any(staged_task.is_by_keys for staged_task in self.staged),
        )

    def _without_late(self, newest: Snapshot, staged: StagedRuns, scratch: Scratch) -> StagedRuns:
        schema = newest.manifest.schema
        files, counters, examples = [], staged.counters, dict(staged.examples)
        for file in staged.files:
            run = RUNS.open(newest.store, file)
            rows = Rows(schema, [RunPart(Span.within(run))])
            everything = np.arange(len(rows))
            outcomes = self._outcomes_of(newest, rows, everything)
            late = np.flatnonzero(outcomes.kinds == Outcome.REJECTED)
            changed = np.flatnonzero(outcomes.late_values.any(axis=1))
            if not len(late) and not len(changed):
                files.append(file)
                continue
            examples |= examples_of(rows, everything, outcomes, self.late_rows)
            # The table did know some of these keys when the task counted them.
            was = count(self._outcomes_of(self._base_of(staged), rows, late))
            counters += Counters(rejected=len(late)) - was
            counters += self._without_values(staged, rows, changed, outcomes)
            batch = rows.gathered(schema.run.names).parts[0]
            assert isinstance(batch, BatchPart)
            accepted_rows = accepted(batch.batch.cast(schema.run), outcomes, schema)
            if accepted_rows.num_rows:
                files.append(scratch.write(accepted_rows))
        return replace(staged, files=tuple(files), counters=counters, examples=examples)

    def _without_values(
        self, staged: StagedRuns, rows: Rows, changed: Positions, outcomes: Outcomes
    ) -> Counters:
        """Return by how much the task's counts change if some commands lose late values."""
        changed = changed[outcomes.kinds[changed] != Outcome.REJECTED]
        if not len(changed):
            return EMPTY
        base = self._base_of(staged)
        left = without_values(rows, changed, outcomes.late_values[changed])
        now = count(self._outcomes_of(base, left, np.arange(len(left))))
        return now - count(self._outcomes_of(base, rows, changed))


def _unknown_rows(head: Manifest, counters: Counters, *, is_overwrite: bool) -> int:
    """Return the rows with an unknown value after an epoch."""
    before = 0 if is_overwrite else head.unknown_rows
    return before + counters.unknown - counters.completed


class SealedDraft(NamedTuple):
    """A seal's result."""

    draft: Draft
    examples: Examples
    """Example keys for user-facing warnings (`write.ties`)."""


_StagedFile = tuple[StagedRuns, RunFile]


def _pieces(
    groups: Iterable[tuple[HashRange, Sequence[_StagedFile]]],
) -> Iterator[tuple[HashRange, list[_StagedFile]]]:
    """Cut each range with its files into pieces with about `SEAL_ROWS` rows, by the log alone."""
    epochs = Interval(lower=Epoch(0), upper=Epoch(1))
    for hash_range, pairs in groups:
        slices = [Slice(file=file, epochs=epochs) for _, file in pairs]
        count = 1 + sum(slice_.rows_within(hash_range) for slice_ in slices) // SEAL_ROWS
        for piece in cut_by_files(hash_range, slices, count, is_uniform=False):
            within = [pair for pair in pairs if pair[1].hash_range.overlaps(piece)]
            if within:
                yield piece, within


def overlaps(
    ranges: Sequence[HashRange], others: Iterable[HashRange]
) -> Iterator[tuple[HashRange, list[int]]]:
    """Yield the maximal hash ranges in which a range overlaps another one of either sequence.

    Each has the indices of the overlapping ``ranges``, ascending; ``others`` alone do not count.
    """
    bounds: list[tuple[int, bool, int]] = []
    for index, hash_range in enumerate([*ranges, *others]):
        if not hash_range.is_empty:
            bounds += [(hash_range.first, True, index), (hash_range.end, False, index)]
    active: set[int] = set()
    active_count = first = 0
    overlapping: set[int] = set()
    for bound, changes in groupby(sorted(bounds), key=itemgetter(0)):
        opened = set[int]()
        for _, is_first, index in changes:
            active_count += 1 if is_first else -1
            if index < len(ranges):
                (opened.add if is_first else active.discard)(index)
        active |= opened
        if active and active_count > 1:
            if not overlapping:
                first = bound
            overlapping |= opened if overlapping else active
        elif overlapping:
            yield HashRange(first, bound), sorted(overlapping)
            overlapping = set()


def shared_hashes(own: npt.NDArray[np.uint64], others: Sequence[npt.NDArray[np.uint64]]) -> Mask:
    """Return a mask: the hashes occurring twice among their own, or among the others."""
    order = order_of(own)
    ordered = own[order]
    same = ordered[1:] == ordered[:-1]
    shared = np.zeros(len(own), dtype=np.bool_)
    shared[order[1:][same]] = True
    shared[order[:-1][same]] = True
    for other_hashes in others:
        indices = np.minimum(np.searchsorted(other_hashes, own), len(other_hashes) - 1)
        shared |= other_hashes[indices] == own
    return shared


_FIELD = b"upsertflow.truncated"
"""Metadata field on a command batch with its youngest truncate's mark."""


def with_truncates(
    commands: pa.RecordBatch, order: Sequence[pa.Array], schema: TableSchema
) -> pa.RecordBatch:
    """Return commands with their truncates attached."""
    columns = [
        convert(c, order_field.type) for c, order_field in zip(order, schema.order, strict=True)
    ]
    words = [word for column in columns for word in ordered_words(column)]
    youngest = pa.array(np.lexsort(words[::-1])[-1:])
    known_columns = [pa.array([True])] * (len(schema.order_fields) - len(schema.order))
    mark = encode_mark([*known_columns, *(column.take(youngest) for column in columns)], schema)
    return with_truncate(commands, mark)


def with_truncate(commands: pa.RecordBatch, mark: str | None) -> pa.RecordBatch:
    """Attach a truncate mark to commands, which may be empty; None: no truncate."""
    if mark is None:
        return commands
    return commands.replace_schema_metadata(
        {**(commands.schema.metadata or {}), _FIELD: mark.encode()}
    )


def truncated_at(commands: pa.RecordBatch) -> str | None:
    """Return the youngest truncate's mark among the commands, or None."""
    recorded = (commands.schema.metadata or {}).get(_FIELD)
    return None if recorded is None else recorded.decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedVersion:
    """A version, and its contents after a truncate."""

    before: Manifest
    after: Manifest
    """The table after the truncate, against which the epoch's rows are decided."""
    unknown: int = 0
    """Rows that lose a value which no later command has set."""

    @property
    def is_needed(self) -> bool:
        """Whether it changes anything."""
        return (self.before.slices, self.before.low_water) != (
            self.after.slices,
            self.after.low_water,
        )

    def with_rows(self, rows: Draft) -> Draft:
        """Return an epoch's draft, made on ``after``, with the truncate included.

        A retained row changed by a command is counted once, by the command's outcome.
        """
        if not self.is_needed:
            return rows
        counters = Counters.from_json(rows.counters)
        met = counters.result_count
        contents = Counters(
            retracted=self.before.live_rows - met,
            restored=self.after.live_rows - met,
            unknown=self.unknown,
        )
        return replace(
            rows,
            kind=Kind.OVERWRITE,
            compacted=tuple(self.after.slices),
            low_water=self.after.low_water,
            counters=(counters + contents).to_json(),
        )


def truncated(snapshot: Snapshot, mark: str, scratch: Scratch) -> TruncatedVersion:
    """Return a truncate's result: the entries above its mark.

    One pass over the complete table, piece by piece. Pieces with removed entries are rewritten; the
    others are reused. The mark keeps out late rows of unknown keys, which deletes per key would
    not.
    """
    head = snapshot.manifest
    pieces = [_above(snapshot, chunk, mark, scratch) for chunk in snapshot.chunks()]
    slices = tuple(slice_ for piece in pieces for slice_ in piece.slices)
    after = replace(
        head,
        slices=slices if any(piece.is_cut for piece in pieces) else head.slices,
        live_rows=sum(piece.live_rows for piece in pieces),
        unknown_rows=sum(piece.unknown_rows for piece in pieces),
        low_water=higher_mark(mark, head.low_water, head.schema),
        forgot=head.upper,
    )
    return TruncatedVersion(before=head, after=after, unknown=sum(p.newly_unknown for p in pieces))


class _Piece(NamedTuple):
    """The remainder of a hash range after a truncate."""

    slices: tuple[Slice, ...]
    live_rows: int
    unknown_rows: int
    newly_unknown: int
    """Rows that lose a value which no later command has set."""
    is_cut: bool
    """Whether any entries are removed or changed."""


def _above(snapshot: Snapshot, hashes: HashRange, mark: str, scratch: Scratch) -> _Piece:
    schema = snapshot.manifest.schema
    slices = snapshot.manifest.slice_list.within(hashes)
    parts = snapshot.parts(hashes)
    rows = Rows(schema, [part for part, _ in parts])
    if not len(rows):
        return _Piece((), 0, 0, 0, is_cut=False)
    epochs = epochs_by_part(rows, [epoch for _, epoch in parts])
    reduced = merge_function_for(schema).reduce(rows, epochs=epochs)
    rows, winners = reduced.rows, reduced.at
    remaining = winners[~is_at_or_below(rows.take(schema.order_columns, winners), mark, schema)]
    live_rows, unknown, newly_unknown = int(are_rows(rows, remaining).sum()), 0, 0
    is_cut = len(remaining) < len(winners)
    batch: pa.RecordBatch | None = None
    if len(remaining) and has_marks(rows):
        batch = _with_resets(_batch(rows, remaining), mark, schema)
        after, everything = Rows(schema, [BatchPart(batch)]), np.arange(len(remaining))
        live_rows = int(are_rows(after, everything).sum())
        are_incomplete = are_unknown(after, everything)
        unknown = int(are_incomplete.sum())
        newly_unknown = int((are_incomplete & ~are_unknown(rows, remaining)).sum())
        is_cut = True
    if not is_cut:
        untouched = (replace(slice_, live=slice_.live.intersect(hashes)) for slice_ in slices)
        return _Piece(tuple(untouched), live_rows, unknown, newly_unknown, is_cut=False)
    if not len(remaining):
        return _Piece((), 0, 0, 0, is_cut=True)
    batch = batch or _batch(rows, remaining)
    if schema.has_quarantine:
        came = np.array([*(epoch for _, epoch in parts), 0], dtype=np.uint64)
        batch = with_epochs(batch, came[rows.part_of(remaining)])
    covered = Interval(
        lower=min(slice_.epochs.lower for slice_ in slices),
        upper=max(slice_.epochs.upper for slice_ in slices),
    )
    slice_ = Slice(file=scratch.write(batch), epochs=covered)
    return _Piece((slice_,), live_rows, unknown, newly_unknown, is_cut=True)


def _batch(rows: Rows, chosen: Positions) -> pa.RecordBatch:
    schema = rows.schema.run
    return pa.RecordBatch.from_arrays(rows.take(schema.names, chosen), schema=schema)


def _with_resets(batch: pa.RecordBatch, mark: str, schema: TableSchema) -> pa.RecordBatch:
    """Return entries above a truncate's mark, without the values that were set up to it."""
    own_order = [batch.column(name) for name in schema.order_columns]
    top = decode_mark(mark, schema)
    is_put = np.asarray(batch.column(DIFF)) == PUT
    for name in schema.unchanged:
        kinds = np.asarray(batch.column(kept_column(name)).fill_null(VALUE_SET))
        at = batch.column(at_column(name))
        order = [pc.coalesce(*pair) for pair in zip(at.flatten(), own_order, strict=True)]
        is_reset = is_put & ((kinds == VALUE_UNCHANGED) | is_at_or_below(order, mark, schema))
        if not is_reset.any():
            continue
        where = pa.array(is_reset)
        limit = [column.take(pa.array(np.zeros(batch.num_rows, np.int64))) for column in top]
        reset_at = pa.StructArray.from_arrays(limit, fields=list(at.type))
        for column, values in (
            (name, batch.column(name).take(pa.array(np.arange(len(kinds)), mask=is_reset))),
            (
                kept_column(name),
                pc.if_else(where, pa.scalar(VALUE_DELETED, pa.int8()), pa.array(kinds)),
            ),
            (at_column(name), pc.if_else(where, reset_at, at)),
        ):
            index = batch.schema.get_field_index(column)
            batch = batch.set_column(index, batch.schema.field(index), values)
    return batch


def restoration(head: Manifest, old: Manifest, url: str) -> Draft | None:
    """Return the draft restoring ``old``'s contents on top of ``head``; pure.

    None if they are the same. Slices keep their epochs and the low-water mark is that of ``old``,
    so all rules work as they did then. Transactions and schema stay. A materialized view is not
    restored: its query would skip the batches between.
    """
    if (head.slices, head.low_water) == (old.slices, old.low_water):
        return None
    if stores_rows(head.properties) or HISTORY_OF in head.properties:
        raise DataError(
            f"the table at '{url}' keeps the rows of a view or a history, and cannot be restored "
            f"to version {old.version}: what writes it would go on with its next batch, and what "
            "came of those between would be missing. Nothing was committed.",
            hint=f"read version {old.version} (versionAsOf), or keep the view in a new path.",
        )
    counters = Counters(retracted=head.live_rows, restored=old.live_rows)
    return Draft(
        kind=Kind.OVERWRITE,
        compacted=tuple(old.slices),
        restored=old.version,
        low_water=old.low_water,
        counters=counters.to_json(),
        live_rows=old.live_rows,
        unknown_rows=old.unknown_rows,
    )
