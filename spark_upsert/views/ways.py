"""The way in which a step is computed: look-ups of what changed, or both snapshots compared.

    pairs by look-ups  =  pairs by snapshots,  for every step

so that nothing depends on the choice but time. Look-ups cost by what changed, and scans by what
there is. Where nearly all rows changed, look-ups touch nearly all blocks, one row at a time: then
the rows before the step and behind it are read as they lie, range by range, and compared.

The number of changed rows is known before anything is read: the counters of the epochs tell it. A
row of a plan over several tables may have changed if one of the rows that it is made of did:

    share  =  1 - (1 - changed of one / rows of one) * (1 - changed of another / ...) * ...

Each operator says from which share on snapshots are worth it (`Relation.worth_scanning`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from spark_upsert.model.arrays import Positions
from spark_upsert.model.hash_range import ALL_HASHES, HashRange
from spark_upsert.views.pairs import Pairs
from spark_upsert.views.relation import Relation, Step, timed_changes_of

STEP_ROWS_MIN = 10_000
"""A step that changes fewer rows is looked up, whatever else there is: it costs little either way,
and its tables need not be asked for how large they are."""

PIECE_ROWS = 1 << 17
"""Changed rows that are looked at at once, as long as hashes part them."""


class Way(Enum):
    """How it is found out what a step changed."""

    LOOK_UPS = "look-ups"
    SNAPSHOTS = "both snapshots"


@dataclass(frozen=True, slots=True)
class Choice:
    """A way, and why."""

    way: Way = Way.LOOK_UPS
    share: float = 0.0
    """How many of the rows that may have changed; 0 where it was not asked for."""
    worth_scanning: float = 1.0
    """The share from which on snapshots are compared."""

    def __str__(self) -> str:
        return (
            f"{self.share:.0%} of the rows may have changed, and both snapshots are compared from "
            f"{self.worth_scanning:.0%} on"
        )


LOOK_UPS = Choice()


def chosen(relation: Relation, changed: Mapping[str, int], live: Mapping[str, int]) -> Choice:
    """Return the way of a step.

    Parameters
    ----------
    relation : Relation
    changed, live : mapping of str to int
        By table: the rows that the step changed, and those that there are.
    """
    same = 1.0
    for path, rows in changed.items():
        same *= 1 - min(1.0, rows / max(1, live[path]))
    share = 1 - same
    way = Way.SNAPSHOTS if share >= relation.worth_scanning else Way.LOOK_UPS
    return Choice(way, share, relation.worth_scanning)


def pairs_by_piece(
    relation: Relation, step: Step, way: Way, *, rows: int, hash_range: HashRange = ALL_HASHES
) -> Iterator[Pairs]:
    """Yield what a step changed in a range of hashes (`timed_pairs_by_piece`)."""
    found = timed_pairs_by_piece(relation, step, way, rows=rows, hash_range=hash_range)
    return (pairs for pairs, _ in found)


def timed_pairs_by_piece(
    relation: Relation, step: Step, way: Way, *, rows: int, hash_range: HashRange = ALL_HASHES
) -> Iterator[tuple[Pairs, Positions]]:
    """Yield what a step changed in a range of hashes, so much at once as fits in memory.

    Parameters
    ----------
    rows : int
        About how many rows the step changed in the range.
    hash_range : HashRange
        A range of the key hashes of the table that moved, if each row depends on one row of it and
        look-ups are the way; else of the driving table's. The first step, from nothing, has all
        rows.

    Yields
    ------
    tuple of Pairs and numpy.ndarray of int64
        The pairs, and the time of the step at which each is.
    """
    if not step.before:
        for piece in relation.driving.chunks(step.after, hash_range):
            yield _at_the_end(step, Pairs.of_inserts(relation.scan(step.after, piece)))
    elif way is Way.SNAPSHOTS:
        for pairs in _compared(relation, step, hash_range):
            yield _at_the_end(step, pairs)
    else:
        for piece in hash_range.cut(1 + rows // PIECE_ROWS):
            yield from timed_changes_of(relation, cut(relation, step, piece))


def _at_the_end(step: Step, pairs: Pairs) -> tuple[Pairs, Positions]:
    return pairs, np.full(len(pairs), step.times)


def cut(relation: Relation, step: Step, hash_range: HashRange) -> Step:
    """Return the part of a step that has some hashes; parts of all hashes are the step."""
    moved = [path for path, version in step.after.items() if step.before.get(path) != version]
    if len(moved) == 1 and relation.depends_on_one_row(moved[0]):
        return replace(step, hash_range=hash_range)
    return replace(step, within=hash_range)


def _compared(relation: Relation, step: Step, hash_range: HashRange) -> Iterator[Pairs]:
    """Yield what differs between the rows before a step and those behind it."""
    chunks = [relation.driving.chunks(at, hash_range) for at in (step.before, step.after)]
    for piece in max(chunks, key=len):
        old, new = (relation.scan(at, piece) for at in (step.before, step.after))
        assert relation.key is not None
        yield Pairs.aligned(old, new, relation.key).changed()
