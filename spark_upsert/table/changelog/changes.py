"""Epoch changes as old and new entry pairs; pure, one pass for many epochs.

Invariant: the changes of ``[0, e]``, folded from empty, give the snapshot at ``e``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from spark_upsert.core.keys import Mask, Positions, Words
from spark_upsert.core.schema import TableSchema
from spark_upsert.table.log.manifest import Commit, Kind, Manifest, Slice
from spark_upsert.table.log.snapshot import Versions
from spark_upsert.table.run.rows import Part, Rows
from spark_upsert.table.state.reduce import (
    ABSENT,
    Counters,
    LookUp,
    ReducedEntries,
    merge_function_for,
)
from spark_upsert.table.state.registers import are_rows
from spark_upsert.table.state.resolve import arrange, epochs_by_part

Entries = Sequence[tuple[Part, int]]
"""Parts with their epochs, in epoch order."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Pairs of old and new entries; row numbers into ``rows``, or `ABSENT`."""

    rows: Rows
    old: Positions
    """The row to retract."""
    new: Positions
    """The row to insert."""
    epochs: npt.NDArray[np.int64]
    made_by: Positions
    """The entry causing the change: the new row or a delete. `ABSENT` for rows missing from a
    comparison's newer contents.
    """


def changes_of_commands(
    commands: Entries, look_up: LookUp, *, schema: TableSchema, net: bool
) -> Changes:
    """Return the changes caused by commands in a state, one pair per key if ``net``."""
    parts = Rows(schema, [part for part, _ in commands])
    if not commands:
        return Changes(parts, _NONE, _NONE, _NONE, _NONE)
    row_epochs = np.repeat([epoch for _, epoch in commands], np.diff(parts.starts))
    rows = parts.gathered(schema.run.names)

    def epoch_of(chosen: Positions) -> Words:
        return row_epochs[chosen].astype(np.uint64)

    history = merge_function_for(schema).history(rows, epoch_of, look_up)
    changes = Changes(*history[:4], made_by=history.new)
    return _drop_absent(_net_pairs(changes, history.begins) if net else changes)


def changes_of_overwrite(
    before: Entries, after: Entries, *, schema: TableSchema, version: int
) -> Changes:
    """Compare two contents; every change belongs to one version."""
    sides = [_reduce_side(side, schema) for side in (before, after)]
    rows = Rows(schema, [part for side in sides for part in side.rows.parts])
    border = len(sides[0].rows)

    def side_of(members: Positions) -> list[Words]:
        return [(members >= border).astype(np.uint64)]

    entries = np.concatenate([sides[0].at, sides[1].at + border])
    order, begins = arrange(rows, np.sort(entries), side_of)
    key_index = np.cumsum(begins) - 1
    old, new = (np.full(int(begins.sum()), ABSENT, dtype=np.int64) for _ in range(2))
    is_new = order >= border
    old[key_index[~is_new]] = order[~is_new]
    new[key_index[is_new]] = order[is_new]
    return _drop_absent(Changes(rows, old, new, np.full(len(old), version, dtype=np.int64), new))


def _reduce_side(entries: Entries, schema: TableSchema) -> ReducedEntries:
    """Return one entry per key for one side of a comparison."""
    rows = Rows(schema, [part for part, _ in entries])
    epochs = epochs_by_part(rows, [epoch for _, epoch in entries])
    return merge_function_for(schema).reduce(rows, epochs=epochs)


# -- pairs ------------------------------------------------------------------------------


def _net_pairs(changes: Changes, begins: Mask) -> Changes:
    """Combine each key's pairs into one: the first old entry and the last new one."""
    firsts = np.flatnonzero(begins)
    lasts = np.append(firsts[1:], len(begins))[: len(firsts)] - 1
    new = changes.new[lasts]
    return Changes(changes.rows, changes.old[firsts], new, changes.epochs[lasts], new)


def _drop_absent(changes: Changes) -> Changes:
    """Replace entries other than rows by `ABSENT`; drop pairs without any row."""
    old, new = _live_only(changes.rows, changes.old), _live_only(changes.rows, changes.new)
    real = (old != ABSENT) | (new != ABSENT)
    return Changes(changes.rows, old[real], new[real], changes.epochs[real], changes.made_by[real])


def _live_only(rows: Rows, chosen: Positions) -> Positions:
    hit = np.flatnonzero(chosen != ABSENT)
    live = chosen.copy()
    live[hit[~are_rows(rows, chosen[hit])]] = ABSENT
    return live


_NONE = np.empty(0, dtype=np.int64)


class RangeBoundary(Enum):
    """The reason for an epoch range's start."""

    START = "start"
    """The first requested epoch with rows."""
    OVERWRITE = "overwrite"
    """An overwrite, alone in its range."""
    AFTER_OVERWRITE = "behind overwrite"
    """The epoch after an overwrite."""
    LATE_ROWS = "late rows"
    """An epoch with rows applied below the low-water mark."""
    BEGINNING = "beginning"
    """The complete contents with which a history begins."""
    NET = "net"
    """One comparison in place of several ranges, for net changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRange:
    """An epoch range computed in one pass."""

    before: Manifest
    """The table just before the first epoch."""
    times_ms: Mapping[int, int]
    """Commit time per epoch, in ms since 1970."""
    after: Sequence[Slice]
    """Slices added by the epochs; in a comparison, all slices after them."""
    cut: RangeBoundary
    """The reason for its start."""
    schema: TableSchema
    """The schema for the changes."""

    @property
    def is_comparison(self) -> bool:
        """Whether ``after`` replaces the previous contents, instead of being applied to them."""
        return self.cut in (RangeBoundary.OVERWRITE, RangeBoundary.BEGINNING, RangeBoundary.NET)


def fully_scanned_slices(epoch_ranges: Iterable[EpochRange]) -> tuple[Slice, ...]:
    """Return each slice scanned completely by a change read; others are only searched."""
    sides = (
        (*epoch_range.after, *(epoch_range.before.slices if epoch_range.is_comparison else ()))
        for epoch_range in epoch_ranges
    )
    return tuple(dict.fromkeys(slice_ for side in sides for slice_ in side))


def cut_into_ranges(
    log: Versions, lower: int, upper: int, schema: TableSchema, *, net: bool = False
) -> list[EpochRange]:
    """Divide the epochs ``lower <= e < upper`` into ranges, each computed in one pass.

    An overwrite is a separate range, which compares two contents. An epoch with rows applied below
    the low-water mark begins a range: its state has lost deletes possibly still in an earlier
    epoch's state. For net changes, such a boundary makes all epochs one comparison.
    """
    if lower < upper:
        log.require_changes(lower)
    commits = list(log.commits(max(lower, 0), upper))
    epochs = [commit for commit in commits if commit.is_epoch]
    # A reader that began before a command left a column unchanged goes on with its own columns.
    for altered in (commit.schema for commit in commits if commit.schema is not None):
        schema = schema.with_unchanged(altered.unchanged, has_moves=altered.has_moves)
    if net and any(commit.kind is Kind.OVERWRITE or _has_late(commit) for commit in epochs):
        first, last = epochs[0], epochs[-1]
        return [
            _make_range(log, RangeBoundary.NET, first, [last], log.at(last.version).slices, schema)
        ]
    return [
        _make_range(log, cut, commits[0], commits, _added_slices(commits), schema)
        for cut, commits in grouped(epochs)
    ]


def grouped(epochs: Iterable[Commit]) -> list[tuple[RangeBoundary, list[Commit]]]:
    """Group consecutive epochs computable in one pass; epochs without additions are left out."""
    groups: list[tuple[RangeBoundary, list[Commit]]] = []
    for commit in epochs:
        if commit.kind is Kind.OVERWRITE:
            groups.append((RangeBoundary.OVERWRITE, [commit]))
        elif commit.added:
            previous = groups[-1][0] if groups else None
            if previous is None:
                groups.append((RangeBoundary.START, [commit]))
            elif previous is RangeBoundary.OVERWRITE:
                groups.append((RangeBoundary.AFTER_OVERWRITE, [commit]))
            elif _has_late(commit):
                groups.append((RangeBoundary.LATE_ROWS, [commit]))
            else:
                groups[-1][1].append(commit)
    return groups


def _has_late(commit: Commit) -> bool:
    """Return whether an epoch applied rows below the low-water mark (`Counters.late`)."""
    return Counters.from_json(commit.counters).late > 0


def _added_slices(commits: Iterable[Commit]) -> tuple[Slice, ...]:
    return tuple(slice_ for commit in commits for slice_ in commit.slices())


def _make_range(
    log: Versions,
    cut: RangeBoundary,
    first: Commit,
    shown: Sequence[Commit],
    after: Sequence[Slice],
    schema: TableSchema,
) -> EpochRange:
    before = log.before(first.version)
    return EpochRange(
        before=before,
        times_ms={commit.version: commit.timestamp_ms for commit in shown},
        after=after,
        cut=cut,
        schema=schema.with_unchanged(before.schema.unchanged, has_moves=before.schema.has_moves),
    )
