"""Epoch ranges: epochs divided into *stretches*, each of which one pass computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from spark_upsert.core.schema import TableSchema
from spark_upsert.table.log.manifest import Commit, Kind, Manifest, Slice
from spark_upsert.table.log.snapshot import Versions
from spark_upsert.table.state.counters import Counters


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
