"""Command outcomes (`classify`) against the entries of the version before, and their counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.key_hash import hash_keys
from spark_upsert.core.keys import Mask, Positions
from spark_upsert.core.merge_engines import FROM, MARKER_PART, PART, TO
from spark_upsert.core.precedence import Precedence
from spark_upsert.core.schema import DIFF, ERROR, PUT, TOMBSTONE, TableSchema, is_live
from spark_upsert.errors import DataError, OtherTableError
from spark_upsert.table.log.manifest import KeptPosition, Slice
from spark_upsert.table.log.properties import LateRows, is_at_or_below
from spark_upsert.table.run.rows import BatchPart, Rows
from spark_upsert.table.state.fold import without_sums
from spark_upsert.table.state.reduce import REPLACING, Counters, EntryMatches, merge_function_for
from spark_upsert.table.state.registers import (
    are_unknown,
    has_marks,
    know_nothing_below,
    says_below,
    shown_diffs,
    without_values,
)
from spark_upsert.table.state.snapshot import Snapshot

if TYPE_CHECKING:
    from spark_upsert.table.state.prepared import Preparation


class Outcome(IntEnum):
    """A command's outcome."""

    INSERT = 0
    UPDATE = 1
    DELETE = 2
    ABSENT = 3
    STALE = 4
    DUPLICATE = 5
    REJECTED = 6
    QUARANTINED = 7
    DISPLACED = 8


class Outcomes(NamedTuple):
    """Command outcomes, one row per command."""

    kinds: npt.NDArray[np.int8]
    """`Outcome` values."""
    are_tied: Mask
    """Whether the table's entry has an equal order key and another content."""
    are_late: Mask
    """Whether the key is unknown, and the order key not above the low-water mark.

    The same for a value below the entry, if nothing is known of that column below it.
    """
    are_filled: Mask
    """Whether the command sets a value below the table's newer entry (`state.registers`)."""
    become_unknown: Mask
    """Whether the command leaves a row with a value that no command has set, as it was not."""
    are_completed: Mask
    """Whether the command completes or deletes such a row."""
    are_strayed: Mask
    """Whether the key's row had moved to another key before, with older values."""
    late_values: npt.NDArray[np.bool_]
    """Values below the command's own order that are late by themselves, by column with marks.

    They come from an older command of the task, and are not stored.
    """

    @classmethod
    def joined(cls, pieces: Iterable[Outcomes]) -> Outcomes:
        """Return the outcomes concatenated from consecutive pieces."""
        return cls(*map(np.concatenate, zip(*pieces, strict=True)))


def classify(
    commands: Rows,
    chosen: Positions,
    found: EntryMatches,
    *,
    low_water: str | None = None,
    late_rows: LateRows = LateRows.REJECT,
    is_overwrite: bool = False,
    is_by_keys: bool = False,
) -> Outcomes:
    """Return each command's outcome; there is one command per key.

    ====================  =====  ===========  =================================
    order against old     new    old          outcome
    ====================  =====  ===========  =================================
    smaller               any    any entry    STALE, no effect
    equal, equal content  any    any entry    DUPLICATE, no effect
    greater, or no entry  put    row          UPDATE: retract old, insert new
    greater, or no entry  put    no row       INSERT
    greater, or no entry  tomb   row          DELETE: retract old
    greater, or no entry  tomb   no row       ABSENT, no effect
    greater, or no entry  error  row          DISPLACED: retract old
    greater, or no entry  error  no row       QUARANTINED
    below the low-water   any    no entry     REJECTED, not even stored
    ====================  =====  ===========  =================================

    A smaller or equal command that sets or resets a value of a row is an UPDATE, not STALE; an
    entry hidden because a value is unknown counts as an error (`state.registers`). Lines one, two
    and nine apply with `Scope.TABLE` only. A tie counts as greater, with `Ties.FIRST` as smaller.
    "No row" is no entry, a tombstone or an error entry.

    Source: Materialize, ``upsert_continual_feedback_v2.rs`` (lines three to six); ``upsert.rs`` and
    Spark's AUTO CDC (lines one and two).
    """
    can_be_late = low_water is not None and _can_be_late(commands.schema, low_water, is_overwrite)
    late_values = np.zeros((len(chosen), len(commands.schema.unchanged)), dtype=np.bool_)
    if can_be_late and late_rows is not LateRows.APPLY and has_marks(commands):
        assert low_water is not None
        late_values = _late_values(commands, chosen, found, low_water)
        if late_values.any():
            commands = without_values(commands, chosen, late_values)
            chosen = np.arange(len(chosen))
    sent = commands.take([DIFF], chosen)[0].to_numpy()
    hit = np.flatnonzero(found.present)
    mechanism = REPLACING if is_overwrite else merge_function_for(commands.schema)
    compared = mechanism.compare_with_stored(commands, chosen[hit], found.rows, found.at[hit])
    standing = compared.standing
    live = found.present
    live[hit] = is_live(compared.was)
    diffs = shown_diffs(commands, chosen).to_numpy().copy()
    diffs[hit] = compared.becomes.to_numpy()
    kinds = np.where(live, Outcome.UPDATE, Outcome.INSERT).astype(np.int8)
    are_tied, are_late = (np.zeros(len(chosen), dtype=np.bool_) for _ in range(2))
    for diff, with_row, without in (
        (TOMBSTONE, Outcome.DELETE, Outcome.ABSENT),
        (ERROR, Outcome.DISPLACED, Outcome.QUARANTINED),
    ):
        kinds[diffs == diff] = np.where(live[diffs == diff], with_row, without)
    # A late put below a delete: folded in, it leaves no row.
    kinds[(sent == PUT) & (diffs == TOMBSTONE) & ~live] = Outcome.STALE
    kinds[hit[~standing.win]] = Outcome.STALE
    kinds[hit[standing.are_duplicates]] = Outcome.DUPLICATE
    are_tied[hit] = standing.are_tied & (not is_by_keys)
    are_filled = np.zeros(len(chosen), dtype=np.bool_)
    are_filled[hit] = compared.are_filled
    become_unknown = are_unknown(commands, chosen)
    are_completed, are_strayed = (np.zeros(len(chosen), dtype=np.bool_) for _ in range(2))
    if not is_overwrite:  # Which no row of before survives.
        are_strayed[hit] = compared.are_strayed
        become_unknown[hit] = compared.becomes_unknown
        are_completed[hit] = compared.completes
    if can_be_late:
        assert low_water is not None
        unknown = ~found.present
        # An error without an order says nothing of deletes: any of them may be newer.
        unknown[hit] = ~are_ordered(found.rows, found.at[hit]) | compared.reaches_below
        rows_to_check = np.flatnonzero(unknown & are_ordered(commands, chosen))
        order_keys = commands.take(commands.schema.order_columns, chosen[rows_to_check])
        are_late[rows_to_check[is_at_or_below(order_keys, low_water, commands.schema)]] = True
        if late_rows is not LateRows.APPLY:
            kinds[are_late] = Outcome.REJECTED
            are_filled &= ~are_late
            become_unknown &= ~are_late
            are_completed &= ~are_late
    return Outcomes(
        kinds,
        are_tied,
        are_late,
        are_filled,
        become_unknown,
        are_completed,
        are_strayed,
        late_values,
    )


def _late_values(
    commands: Rows, chosen: Positions, found: EntryMatches, low_water: str
) -> npt.NDArray[np.bool_]:
    """Return the commands' values up to the low-water mark that nothing in the table is below.

    A delete after such a value may be forgotten, or it is older than a truncate.
    """
    hit = np.flatnonzero(found.present)
    late = np.zeros((len(chosen), len(commands.schema.unchanged)), dtype=np.bool_)
    for index, name in enumerate(commands.schema.unchanged):
        order, says = says_below(commands, chosen, name)
        if not says.any():
            continue
        is_low = np.zeros(len(chosen), dtype=np.bool_)
        rows = np.flatnonzero(says)
        at = [column.take(pa.array(rows)) for column in order]
        is_low[rows] = is_at_or_below(at, low_water, commands.schema)
        is_open = np.ones(len(chosen), dtype=np.bool_)
        is_open[hit] = know_nothing_below(found.rows, found.at[hit], name)
        late[:, index] = is_low & is_open
    return late


def may_reject(
    schema: TableSchema, *, low_water: str | None, late_rows: LateRows, is_overwrite: bool
) -> bool:
    """Return whether any command can be `Outcome.REJECTED`; parameters as in `classify`."""
    return _can_be_late(schema, low_water, is_overwrite) and late_rows is not LateRows.APPLY


def _can_be_late(schema: TableSchema, low_water: str | None, is_overwrite: bool) -> bool:
    reaches_back = Precedence.of(schema).compares_order_across_epochs and not is_overwrite
    return reaches_back and low_water is not None


def are_ordered(rows: Rows, chosen: Positions) -> Mask:
    """Return which entries have an order. No forgotten delete is newer than one without."""
    if not rows.schema.has_quarantine:
        return np.ones(len(chosen), dtype=np.bool_)
    [is_known] = rows.take(rows.schema.order_columns[:1], chosen)
    return np.asarray(is_known, dtype=np.bool_)


def count(outcomes: Outcomes) -> Counters:
    """Count outcomes, by `Counters` field name."""
    numbers = np.bincount(outcomes.kinds, minlength=len(Outcome)).tolist()
    return Counters(
        inserts=numbers[Outcome.INSERT],
        updates=numbers[Outcome.UPDATE],
        deletes=numbers[Outcome.DELETE],
        absent=numbers[Outcome.ABSENT],
        stale=numbers[Outcome.STALE],
        duplicates=numbers[Outcome.DUPLICATE],
        rejected=numbers[Outcome.REJECTED],
        quarantined=numbers[Outcome.QUARANTINED] + numbers[Outcome.DISPLACED],
        displaced=numbers[Outcome.DISPLACED],
        tied=int(outcomes.are_tied.sum()),
        late=int((outcomes.are_late & (outcomes.kinds != Outcome.REJECTED)).sum()),
        filled=int(outcomes.are_filled.sum()),
        unknown=int(outcomes.become_unknown.sum()),
        completed=int(outcomes.are_completed.sum()),
        strayed=int(outcomes.are_strayed.sum()),
    )


def outcomes_of(
    snapshot: Snapshot,
    rows: Rows,
    chosen: Positions,
    *,
    overwrite: bool,
    late_rows: LateRows,
    is_by_keys: bool,
    ahead: Preparation | None = None,
) -> Outcomes:
    """Return the effect on a snapshot of commands, one per key and sorted by hash.

    The mirror preparation receives the outcomes, too.
    """
    rows = Rows(without_sums(rows.schema), rows.parts)
    # The table may have gained columns since.
    manifest = replace(snapshot.manifest, schema=rows.schema)
    stored_rows = Snapshot(snapshot.store, manifest).find(
        rows.hashes[chosen], rows.take(rows.schema.identity, chosen), columns=()
    )
    outcomes = classify(
        rows,
        chosen,
        stored_rows,
        low_water=snapshot.manifest.low_water,
        late_rows=late_rows,
        is_overwrite=overwrite,
        is_by_keys=is_by_keys,
    )
    if ahead is not None:
        ahead.record_outcomes(rows, chosen, stored_rows, outcomes.kinds)
    return outcomes


def accepted(batch: pa.RecordBatch, outcomes: Outcomes, schema: TableSchema) -> pa.RecordBatch:
    """Return the commands except rejected ones and late values: these are never stored."""
    if outcomes.late_values.any():
        rows = without_values(
            Rows(schema, [BatchPart(batch)]), np.arange(batch.num_rows), outcomes.late_values
        )
        columns = rows.take(schema.run.names, np.arange(len(rows)))
        batch = pa.RecordBatch.from_arrays(columns, schema=schema.run)
    accepted = outcomes.kinds != Outcome.REJECTED
    return batch if bool(accepted.all()) else batch.filter(pa.array(accepted))


NOTHING = ""
"""A table's position before its first step."""


class Verdict(Enum):
    """The verdict on a step."""

    APPLY = "apply"
    SKIP = "skip"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A view step: the positions before and after it, from the marker."""

    lower: str
    upper: str

    def compare_with(self, recorded: str) -> Verdict:
        """Return the verdict on the step in a table at a position.

        ``lower`` equal to the position: apply. ``upper`` at or before it: skip. Otherwise refuse:
        steps are missing, or took another path through the inputs.
        """
        if self.lower == recorded:
            return Verdict.APPLY
        return Verdict.SKIP if is_reached(self.upper, recorded) else Verdict.REFUSE


def is_reached(position: str, recorded: str) -> bool:
    """Return whether a table at one position has everything up to another."""
    if position in (recorded, NOTHING):
        return True
    if recorded == NOTHING:
        return False
    return KeptPosition.read(recorded).covers(KeptPosition.read(position))


def recorded_position(snapshot: Snapshot) -> str:
    """Return a materialized table's position in its view."""
    manifest, schema = snapshot.manifest, snapshot.manifest.schema
    keys = [
        pa.array([MARKER_PART if name == PART else None], schema.columns.field(name).type)
        for name in schema.keys
    ]
    hashes = hash_keys(keys, seed=schema.hash_seed, prefix=schema.hash_prefix)
    # Each epoch brings a marker and the newest one holds: mostly one run is asked, however many.
    for slice_ in _newest_first(manifest.slices):
        alone = replace(manifest, slices=(slice_,))
        stored_rows = Snapshot(snapshot.store, alone).find(hashes, keys, [TO])
        if stored_rows.present[0]:
            [to] = stored_rows.rows.take([TO], stored_rows.at)
            return str(to[0].as_py())
    return NOTHING


def _newest_first(slices: Sequence[Slice]) -> Iterator[Slice]:
    """Yield slices by their first epoch, the newest first; others with the same one in order."""
    for _, several in groupby(reversed(slices), key=lambda each: each.epochs.lower):
        yield from reversed(list(several))


def read_move(entries: pa.RecordBatch) -> list[Move]:
    """Return the step in the marker entry, if present; there is one entry per key."""
    indices = np.flatnonzero(np.asarray(entries.column(PART)) == MARKER_PART)
    markers = entries.select([FROM, TO]).take(pa.array(indices)).to_pylist()
    return [Move(lower=marker[FROM], upper=marker[TO]) for marker in markers]


def require_move(moves: Iterable[Move | None], url: str) -> Move:
    """Return a write's step, which all its tasks must agree on."""
    distinct_moves = {move for move in moves if move is not None}
    if len(distinct_moves) != 1:
        raise DataError(
            f"the table at '{url}' is of contributions: a write into it is one step of its view "
            f"and brings one marker; found {len(distinct_moves)}. Nothing was committed.",
            hint="let the query of the view write it ('keep'), and no other writer.",
        )
    return next(iter(distinct_moves))


def refused(move: Move, recorded: str, url: str) -> OtherTableError:
    """Return the error for a step neither following the table's position nor in it."""
    return OtherTableError(
        f"the table at '{url}' is at {recorded or 'nothing'} of its view, and the write goes from "
        f"{move.lower or 'nothing'} to {move.upper}. Nothing was committed.",
        hint="is this the checkpoint of a query that kept another table, or was the table restored "
        "or made anew? Give the query a new checkpoint: it begins where the table is.",
        path=url,
    )
