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
from spark_upsert.core.schema import DIFF, TableSchema, is_live
from spark_upsert.table.log.manifest import Commit, Kind, Manifest, Slice
from spark_upsert.table.log.snapshot import Versions
from spark_upsert.table.run.rows import Part, Rows
from spark_upsert.table.state.reduce import ABSENT, Counters, LookUp, ReducedEntries, mechanism_of
from spark_upsert.table.state.resolve import arrange, epochs_by_part

Entries = Sequence[tuple[Part, int]]
"""Parts with their epochs, in the order of the epochs."""


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
    """The entry that made the change: the new row, or what took the old one away; `ABSENT` where
    contents are compared and it is missing from the newer ones."""


def changes_of_commands(
    commands: Entries, look_up: LookUp, *, schema: TableSchema, net: bool
) -> Changes:
    """Return what commands change in a state."""
    parts = Rows(schema, [part for part, _ in commands])
    if not commands:
        return Changes(parts, _NONE, _NONE, _NONE, _NONE)
    row_epochs = np.repeat([epoch for _, epoch in commands], np.diff(parts.starts))
    rows = parts.gathered(schema.run.names)

    def epoch_of(chosen: Positions) -> Words:
        return row_epochs[chosen].astype(np.uint64)

    history = mechanism_of(schema).history(rows, epoch_of, look_up)
    changes = Changes(*history[:4], made_by=history.new)
    return _of_rows(_net(changes, history.begins) if net else changes)


def changes_of_overwrite(
    before: Entries, after: Entries, *, schema: TableSchema, version: int
) -> Changes:
    """Return how one content differs from another; all changes are of one version."""
    sides = [_reduced(side, schema) for side in (before, after)]
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
    return _of_rows(Changes(rows, old, new, np.full(len(old), version, dtype=np.int64), new))


def _reduced(entries: Entries, schema: TableSchema) -> ReducedEntries:
    """Return one entry per key of one side of a comparison."""
    rows = Rows(schema, [part for part, _ in entries])
    epochs = epochs_by_part(rows, [epoch for _, epoch in entries])
    return mechanism_of(schema).reduce(rows, epochs=epochs)


# -- pairs ------------------------------------------------------------------------------


def _net(changes: Changes, begins: Mask) -> Changes:
    """Make one pair of all pairs of a key: the first old entry and the last new one."""
    firsts = np.flatnonzero(begins)
    lasts = np.append(firsts[1:], len(begins))[: len(firsts)] - 1
    new = changes.new[lasts]
    return Changes(changes.rows, changes.old[firsts], new, changes.epochs[lasts], new)


def _of_rows(changes: Changes) -> Changes:
    """Replace entries that are no rows by `ABSENT` and drop the pairs in which nothing is left."""
    old, new = _live_only(changes.rows, changes.old), _live_only(changes.rows, changes.new)
    real = (old != ABSENT) | (new != ABSENT)
    return Changes(changes.rows, old[real], new[real], changes.epochs[real], changes.made_by[real])


def _live_only(rows: Rows, chosen: Positions) -> Positions:
    hit = np.flatnonzero(chosen != ABSENT)
    live = chosen.copy()
    live[hit[~is_live(rows.take([DIFF], chosen[hit])[0])]] = ABSENT
    return live


_NONE = np.empty(0, dtype=np.int64)


class RangeBoundary(Enum):
    """Why a stretch begins where it does."""

    START = "start"
    """It holds the first epoch with rows that was asked for."""
    OVERWRITE = "overwrite"
    """Its one epoch is an overwrite."""
    BEHIND_OVERWRITE = "behind overwrite"
    """The epoch before it is an overwrite."""
    LATE_ROWS = "late rows"
    """Its first epoch applied rows below the low-water mark."""
    BEGINNING = "beginning"
    """It holds the whole contents with which a history begins."""
    NET = "net"
    """It stands for a whole range that holds a cut, and of which net changes are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Consecutive epochs that are computed in one pass."""

    before: Manifest
    """The table just before the first epoch."""
    times_ms: Mapping[int, int]
    """The epochs and their commit times."""
    after: tuple[Slice, ...]
    """Slices that the epochs added; where two contents are compared, all slices behind them."""
    cut: RangeBoundary
    """Why it begins where it does."""
    schema: TableSchema
    """The schema in which the changes are shown."""

    @property
    def is_comparison(self) -> bool:
        """Whether ``after`` replaces what was before, instead of being applied to it."""
        return self.cut in (RangeBoundary.OVERWRITE, RangeBoundary.BEGINNING, RangeBoundary.NET)


def read_through(stretches: Iterable[Stretch]) -> tuple[Slice, ...]:
    """Return the slices that are read to compute changes, each once; others are only searched."""
    sides = (
        (*stretch.after, *(stretch.before.slices if stretch.is_comparison else ()))
        for stretch in stretches
    )
    return tuple(dict.fromkeys(slice_ for side in sides for slice_ in side))


def cut_into_stretches(
    log: Versions, lower: int, upper: int, schema: TableSchema, *, net: bool = False
) -> list[Stretch]:
    """Cut the epochs ``lower <= e < upper`` of a table into stretches.

    An overwrite is a separate stretch, which compares two contents. An epoch with rows applied
    below the low-water mark begins a stretch: its state has forgotten deletes that the state of an
    earlier epoch may still have. For net changes such a cut makes the range one comparison.
    """
    if lower < upper:
        log.require_changes(lower)
    epochs = [commit for commit in log.commits(max(lower, 0), upper) if commit.is_epoch]
    if net and any(commit.kind is Kind.OVERWRITE or _has_late(commit) for commit in epochs):
        first, last = epochs[0], epochs[-1]
        return [
            _stretch(log, RangeBoundary.NET, first, [last], log.at(last.version).slices, schema)
        ]
    return [
        _stretch(log, cut, commits[0], commits, _added(commits), schema)
        for cut, commits in grouped(epochs)
    ]


def grouped(epochs: Iterable[Commit]) -> list[tuple[RangeBoundary, list[Commit]]]:
    """Group consecutive epochs that one pass can compute; those that added nothing are left out."""
    groups: list[tuple[RangeBoundary, list[Commit]]] = []
    for commit in epochs:
        if commit.kind is Kind.OVERWRITE:
            groups.append((RangeBoundary.OVERWRITE, [commit]))
        elif commit.added:
            previous = groups[-1][0] if groups else None
            if previous is None:
                groups.append((RangeBoundary.START, [commit]))
            elif previous is RangeBoundary.OVERWRITE:
                groups.append((RangeBoundary.BEHIND_OVERWRITE, [commit]))
            elif _has_late(commit):
                groups.append((RangeBoundary.LATE_ROWS, [commit]))
            else:
                groups[-1][1].append(commit)
    return groups


def _has_late(commit: Commit) -> bool:
    """Return whether an epoch has rows that count only where deletes before it are forgotten."""
    return Counters.from_json(commit.counters).late > 0


def _added(commits: Iterable[Commit]) -> tuple[Slice, ...]:
    return tuple(slice_ for commit in commits for slice_ in commit.slices())


def _stretch(
    log: Versions,
    cut: RangeBoundary,
    first: Commit,
    shown: Sequence[Commit],
    after: tuple[Slice, ...],
    schema: TableSchema,
) -> Stretch:
    return Stretch(
        before=log.before(first.version),
        times_ms={commit.version: commit.timestamp_ms for commit in shown},
        after=after,
        cut=cut,
        schema=schema,
    )
