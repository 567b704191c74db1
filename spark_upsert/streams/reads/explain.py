"""A planned read, as text: versions and stretches, look-ups, files, splits, and why.

The text is a pure function of the splits that the tasks will get, so that it tells what will be
done. It estimates nothing anew: sizes are those in the log, and hashes are uniform. Whether a
look-up is dense or sparse is decided by the very rule that the task uses (`lookup.is_sparse`), with
the number of commands in place of the number of their keys, which is known only when they are read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from spark_upsert.model.hash_range import ALL_HASHES, HashRange
from spark_upsert.model.log_fields import Fields
from spark_upsert.options.read import ReadOptions
from spark_upsert.streams.reads.explain_words import SHOWN, columns_field, counted, field, more
from spark_upsert.streams.reads.serve import plan_of
from spark_upsert.streams.reads.splits import (
    ChangesSplit,
    QuarantineSplit,
    RowsSplit,
    Split,
    read_by,
    together,
)
from spark_upsert.table.changes.modes import Deduplication
from spark_upsert.table.changes.stretches import Cut, Stretch
from spark_upsert.table.entries.lookup import HASHES_PER_BLOCK, is_sparse
from spark_upsert.table.log.manifest import Slice

_LOGGER = logging.getLogger(__name__)

_CUTS: Mapping[Cut, str] = {
    Cut.START: "the first epoch with rows that is asked for",
    Cut.OVERWRITE: "an overwrite, which compares the rows before it with those behind it",
    Cut.BEHIND_OVERWRITE: "the epoch before it is an overwrite",
    Cut.LATE_ROWS: "an epoch with late rows, which count against the state right before it",
    Cut.BEGINNING: "the whole contents with which the history begins",
    Cut.NET: "net changes over an overwrite or late rows compare what was with what is",
}

_EPOCH_BY_EPOCH = "an exact order takes epoch by epoch"
"""Why a stretch begins that is not the first of a read, but the first of a step."""

_MODES: Mapping[Deduplication, str] = {
    Deduplication.NONE: "every change, those included that leave all values as they were",
    Deduplication.DROP_CARRYOVERS: "updates that leave all values as they were are left out",
    Deduplication.NET_CHANGES: "at most one change per key, at the last of its epochs",
}


def explain(splits: Sequence[Split], options: ReadOptions, columns: Sequence[str]) -> str:
    """Return what a planned read will do.

    Parameters
    ----------
    splits : sequence of Split
        All that the read was cut into; for a batch of a stream, that of the batch.
    options : ReadOptions
    columns : sequence of str
        The table's columns that are read.
    """
    rows = [split for split in splits if isinstance(split, RowsSplit)]
    errors = [split for split in splits if isinstance(split, QuarantineSplit)]
    changes = [split for split in splits if isinstance(split, ChangesSplit)]
    lines: list[str] = []
    if rows:
        as_inserts = ", shown as insertions" if options.change_feed else ""
        lines += _contents("rows", rows, as_inserts, columns)
    if errors:
        lines += _contents("error entries", errors, "", columns)
    if changes:
        lines += _changes(changes, options, columns)
    if not lines:
        return "nothing to read: no epoch that is asked for has rows"
    lines += _splits(splits)
    return "\n".join(lines)


def tell(splits: Sequence[Split], options: ReadOptions, columns: Sequence[str]) -> None:
    """Tell the program's log of a planned read: in one line, and at debug all of `explain`."""
    if _LOGGER.isEnabledFor(logging.INFO):
        _LOGGER.info("read planned: %s", _fields(splits, options))
    if _LOGGER.isEnabledFor(logging.DEBUG):
        _LOGGER.debug("read planned:\n%s", explain(splits, options, columns))


def _fields(splits: Sequence[Split], options: ReadOptions) -> Fields:
    contents = [split for split in splits if not isinstance(split, ChangesSplit)]
    stretches = next((s.stretches for s in splits if isinstance(s, ChangesSplit)), ())
    read = _Amount.of(together(slices for split in splits for slices in read_by(split)))
    return Fields(
        path=options.path,
        snapshot=contents[0].manifest.version if contents else None,
        lower=stretches[0].before.version + 1 if stretches else None,
        upper=max(stretches[-1].times_ms) + 1 if stretches else None,
        stretches=len(stretches) or None,
        splits=len(splits),
        files=read.files,
        rows=read.entries,
        bytes=read.bytes,
    )


# -- the contents of a version ----------------------------------------------------------


def _contents(
    what: str,
    splits: Sequence[RowsSplit | QuarantineSplit],
    note: str,
    columns: Sequence[str],
) -> list[str]:
    manifest = splits[0].manifest
    slices = together(split.manifest.slices for split in splits)
    read = HashRange(splits[0].hash_range.first, splits[-1].hash_range.end)
    runs = len({slice_.epochs for slice_ in slices})
    how = "read through" if runs < 2 else "entries of one key are compared, the winner is read"
    return [
        f"{what} of version {manifest.version}{note}",
        *columns_field(columns),
        *field("files", str(_Amount.of(slices, read))),
        *field("runs", f"{runs}: {how}"),
        *field("plan", _plan(splits[0], "the rows of a split")),
    ]


# -- changes ----------------------------------------------------------------------------


def _changes(
    splits: Sequence[ChangesSplit], options: ReadOptions, columns: Sequence[str]
) -> list[str]:
    stretches = list(_stretches(splits))
    first = stretches[0].before.version + 1
    last = max(stretches[-1].times_ms)
    mode = options.deduplication
    count = counted(len(stretches), "stretch", "stretches")
    told = [line for each in enumerate(stretches[:SHOWN], 1) for line in _stretch(*each)]
    if splits[0].history is not None:
        what, as_told = "history", [("valid", f"by {splits[0].history.by.value}")]
    else:
        what = "changes"
        as_told = [("mode", f"{mode.value}: {_MODES[mode]}"), ("shown", _shown(options))]
    of = "all stretches" if splits[0].history is not None else "each stretch"
    return [
        f"{what} of {_versions(first, last)}, in {count}",
        *columns_field(columns),
        *(line for each in as_told for line in field(*each)),
        *field("plan", _plan(splits[0], f"{of} of a split")),
        *told,
        *more(len(stretches)),
    ]


def _plan(split: Split, what: str) -> str:
    """Return the plan of the tasks that read splits, and what ends with a barrier."""
    return f"{plan_of(split).kind}, a barrier behind {what}"


def _shown(options: ReadOptions) -> str:
    if not options.change_feed:
        deletes = "left out" if options.ignore_deletes else "an error"
        return f"the new values alone; a delete is {deletes}"
    if options.compute_updates:
        return "an update as update_preimage and update_postimage"
    return "an update as delete and insert"


def _stretches(splits: Sequence[ChangesSplit]) -> Iterator[Stretch]:
    """Yield the stretches of a read; in an exact order each step has its own."""
    for _, step in groupby(splits, lambda split: split.stretches[0].before.version):
        yield from map(_whole, zip(*(split.stretches for split in step), strict=True))


def _whole(pieces: Sequence[Stretch]) -> Stretch:
    """Return a stretch of which each split has what lies in its range."""
    slices = together(piece.before.slices for piece in pieces)
    return replace(pieces[0], before=replace(pieces[0].before, slices=slices))


def _stretch(number: int, stretch: Stretch) -> list[str]:
    versions = _versions(stretch.before.version + 1, max(stretch.times_ms))
    is_step = number > 1 and stretch.cut is Cut.START
    before, after = _Amount.of(stretch.before.slices), _Amount.of(stretch.after)
    return [
        f"stretch {number}: {versions}",
        *field("because", _EPOCH_BY_EPOCH if is_step else _CUTS[stretch.cut]),
        *field("before", f"version {stretch.before.version}: {before}"),
        *field("after" if stretch.is_comparison else "commands", str(after)),
        *field("look-ups", *_look_ups(stretch)),
    ]


def _look_ups(stretch: Stretch) -> Iterator[str]:
    """Yield how the state before a stretch is searched for the keys of its commands."""
    if stretch.is_comparison:
        yield "none: both are read through and compared"
        return
    if not stretch.before.slices:
        yield "none: there is nothing before"
    dense: list[Slice] = []
    sparse: list[Slice] = []
    for slice_ in stretch.before.slices:
        commands = sum(each.rows_within(slice_.occupied) for each in stretch.after)
        is_few = is_sparse(commands, slice_.rows_within(slice_.occupied))
        (sparse if is_few else dense).append(slice_)
    if dense:
        yield (
            f"dense in {_Amount.of(dense)}: a command or more for {HASHES_PER_BLOCK} entries, a "
            "block of hashes, so that all blocks are read"
        )
    if sparse:
        yield (
            f"sparse in {_Amount.of(sparse)}: less than a command for {HASHES_PER_BLOCK} entries, "
            "a block of hashes, so that only blocks are read that a search meets"
        )


# -- splits -----------------------------------------------------------------------------


def _splits(splits: Sequence[Split]) -> list[str]:
    told = [f"  {split.hash_range} {_within(split)}" for split in splits[:SHOWN]]
    return [counted(len(splits), "split"), *told, *more(len(splits))]


def _within(split: Split) -> str:
    read = f"reads {_Amount.of(together(read_by(split)), split.hash_range)}"
    if not isinstance(split, ChangesSplit):
        return read
    searched = (s.before.slices for s in split.stretches if not s.is_comparison)
    return f"{read}; searches {_Amount.of(together(searched), split.hash_range)}"


# -- words ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Amount:
    """How much some slices hold in a range of hashes; where a file is cut, about so much."""

    files: int
    entries: int
    bytes: int

    @classmethod
    def of(cls, slices: Sequence[Slice], hash_range: HashRange = ALL_HASHES) -> _Amount:
        """Measure slices within a range."""
        there = [slice_ for slice_ in slices if slice_.overlaps(hash_range)]
        return cls(
            files=len({slice_.file.path for slice_ in there}),
            entries=sum(slice_.rows_within(hash_range) for slice_ in there),
            bytes=sum(slice_.bytes_within(hash_range) for slice_ in there),
        )

    def __str__(self) -> str:
        if not self.files:
            return "nothing"
        entries = counted(self.entries, "entry", "entries")
        return f"{counted(self.files, 'file')}, {entries}, {self.bytes:,} bytes"


def _versions(first: int, last: int) -> str:
    return f"version {last}" if first == last else f"versions {first} to {last}"
