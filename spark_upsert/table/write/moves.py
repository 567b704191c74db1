"""View steps in a materialized table: each is applied exactly once (docs/adr/0037).

A write's marker has the positions before and after its step; the recorded position decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import pyarrow as pa

from spark_upsert.core.key_hash import hash_keys
from spark_upsert.core.merge_engines import FROM, MARKER_PART, PART, TO
from spark_upsert.errors import DataError, OtherTableError
from spark_upsert.table.log.manifest import Slice
from spark_upsert.table.log.view_position import KeptPosition
from spark_upsert.table.state.snapshot import Snapshot

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

    def judged(self, recorded: str) -> Verdict:
        """Return the verdict on the step in a table at a position.

        ``lower`` equal to the position: apply. ``upper`` at or before it: skip. Otherwise refuse:
        steps are missing, or took another path through the inputs.
        """
        if self.lower == recorded:
            return Verdict.APPLY
        return Verdict.SKIP if is_reached(self.upper, recorded) else Verdict.REFUSE


def is_reached(position: str, recorded: str) -> bool:
    """Return whether a table at one position has all that is up to another."""
    if position in (recorded, NOTHING):
        return True
    if recorded == NOTHING:
        return False
    return KeptPosition.read(recorded).has(KeptPosition.read(position))


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
        stored_rows = Snapshot(snapshot.store, alone).find(hashes, keys)
        if stored_rows.present[0]:
            [to] = stored_rows.rows.take([TO], stored_rows.at)
            return str(to[0].as_py())
    return NOTHING


def _newest_first(slices: Iterable[Slice]) -> list[Slice]:
    return sorted(slices, key=lambda each: each.epochs.lower, reverse=True)


def moves_in(entries: pa.RecordBatch) -> list[Move]:
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
    """Return the error for a step that neither follows the table's position nor is in it."""
    return OtherTableError(
        f"the table at '{url}' is at {recorded or 'nothing'} of its view, and the write goes from "
        f"{move.lower or 'nothing'} to {move.upper}. Nothing was committed.",
        hint="is this the checkpoint of a query that kept another table, or was the table restored "
        "or made anew? Give the query a new checkpoint: it begins where the table is.",
        path=url,
    )
