"""Precedence: the one rule that decides which entry of a key wins; and epoch intervals.

It is a total order for one task's entries, and for one entry per task. Over several tasks' rows it
may form a circle, so each task reduces its rows first (docs/adr/0007, 0016).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, NewType

import numpy as np
import pyarrow as pa

from spark_upsert.core.keys import Mask, Positions, Signs, Words, keep_greatest, ordered_words
from spark_upsert.core.merge_engines import Engine
from spark_upsert.core.schema import Scope, TableSchema, Ties

NONE = -1
"""In place of a position: there is none."""

OrderOf = Callable[[Positions], Sequence[pa.Array]]
"""Gives the columns of the order keys of some entries."""

EpochOf = Callable[[Positions], Words]
"""Gives the epochs of some entries."""

ContentOf = Callable[[Positions], Sequence[Words]]
"""Gives words by which the contents of some entries are put in order."""

Same = Callable[[Positions], Mask]
"""Tells which of some pairs have equal contents."""


class Criterion(Enum):
    """A criterion by which entries are compared."""

    ORDER = "order"
    EPOCH = "epoch"
    PLACE = "place"


class Equals(NamedTuple):
    """Verdicts on pairs of entries by content; neither holds where their order keys differ."""

    are_duplicates: Mask
    """Pairs with equal contents, too."""
    are_tied: Mask
    """Pairs with different contents."""


class Standing(NamedTuple):
    """How entries stand against older ones of their keys."""

    win: Mask
    """Entries that take effect. An entry that neither does nor is a duplicate is *stale*."""
    are_duplicates: Mask
    """Entries that repeat the older one: no effect."""
    are_tied: Mask
    """Entries with the order key of the older entry and another content, whichever wins."""


@dataclass(frozen=True, slots=True)
class Precedence:
    """The rule of one table; the first criterion that differs decides.

    ========  ===============  ==================================================================
    scope     compared by      the winner of a key
    ========  ===============  ==================================================================
    table     order, epoch     the greatest order key; of equal ones that of the latest epoch
    epoch     epoch, order     that of the latest epoch; in it the greatest order key
    arrival   place            the latest entry by (epoch, task, position)
    ========  ===============  ==================================================================

    Equal entries of one task: the later row wins; of several tasks: the greater content, by an
    arbitrary fixed order. With `Ties.FIRST` the earlier epoch or row wins a tie. With ``first-row``
    the smallest order key wins, then the earliest epoch or place.
    """

    scope: Scope
    ties: Ties
    first_row: bool
    """Whether the engine is ``first-row``."""

    @classmethod
    def of(cls, schema: TableSchema) -> Precedence:
        """Return the rule of a table."""
        return cls(schema.scope, schema.ties, schema.engine.kind is Engine.FIRST_ROW)

    @property
    def criteria(self) -> tuple[tuple[Criterion, bool], ...]:
        """The criteria, each with whether the greater wins; the first that differs decides."""
        last = not self.first_row
        match self.scope:
            case Scope.TABLE:
                return (Criterion.ORDER, last), (Criterion.EPOCH, self.later_wins_ties)
            case Scope.EPOCH:
                return (Criterion.EPOCH, last), (Criterion.ORDER, last)
            case Scope.ARRIVAL:
                return ((Criterion.PLACE, last),)

    @property
    def later_wins_ties(self) -> bool:
        """Whether the later of two entries with equal order keys wins."""
        return self.ties is not Ties.FIRST

    @property
    def has_order(self) -> bool:
        """Whether there are order keys: otherwise nothing is tied or a duplicate."""
        return self.scope is not Scope.ARRIVAL

    @property
    def order_reaches_back(self) -> bool:
        """Whether order keys are compared with those of earlier epochs."""
        return self.scope is Scope.TABLE

    @property
    def newest_wins(self) -> bool:
        """Whether an entry wins over all of earlier epochs, whatever the two say."""
        return not (self.order_reaches_back or self.first_row)

    # -- many entries ------------------------------------------------------------------

    def best_of_groups(
        self,
        members: Positions,
        firsts: Positions,
        *,
        order: OrderOf,
        epochs: EpochOf | None = None,
        contents: ContentOf | None = None,
    ) -> Positions:
        """Return the winner of each group of entries."""
        best = keep_greatest(self._ranks(members, order, epochs), firsts)
        if np.count_nonzero(best) == len(firsts):
            decided: Positions = members[best]
            return decided
        if contents is None:
            return self.one_of_tied(members, best, firsts)
        _keep_greatest_contents(members, firsts, best, contents)
        return _earliest(members, best, firsts)

    def _ranks(self, members: Positions, order: OrderOf, epochs: EpochOf | None) -> Iterator[Words]:
        """Yield words, most significant first; of two entries that with the greater ones wins."""
        for by, greater_wins in self.criteria:
            for word in _words(by, members, order, epochs):
                yield word if greater_wins else ~word

    def one_of_tied(self, places: Positions, candidate: Mask, firsts: Positions) -> Positions:
        """Return the latest candidate of each group, or the earliest, as ties say; or `NONE`."""
        if self.later_wins_ties:
            latest: Positions = np.maximum.reduceat(np.where(candidate, places, NONE), firsts)
            return latest
        return _earliest(places, candidate, firsts)

    # -- two entries -------------------------------------------------------------------

    def compare(self, *, order: Signs, epoch: Signs | int, place: Signs | int) -> Signs:
        """Return +1 where the first of two entries wins, -1 where the other does, 0 in a tie."""
        signs = {Criterion.ORDER: order, Criterion.EPOCH: epoch, Criterion.PLACE: place}
        result = np.zeros(len(order), dtype=np.int8)
        for by, greater_wins in self.criteria:
            sign = signs[by] if greater_wins else -signs[by]
            result = np.where(result == 0, sign, result)
        return result

    def against_older(self, order: Signs, same: Same, arrived: Same | None = None) -> Standing:
        """Return how entries stand against ones of earlier epochs."""
        win = self.compare(order=order, epoch=1, place=1) > 0
        if not self.order_reaches_back:
            nothing = np.zeros(len(order), dtype=np.bool_)
            return Standing(win, nothing, nothing)
        duplicates, tied = self.equals(order, same, arrived)
        return Standing(win & ~duplicates, duplicates, tied)

    def equals(self, order: Signs, same: Same, arrived: Same | None = None) -> Equals:
        """Tell duplicates from ties, where order keys are equal."""
        duplicates, tied = (np.zeros(len(order), dtype=np.bool_) for _ in range(2))
        equal = np.flatnonzero(order == 0)
        if self.has_order and len(equal):
            duplicates[equal] = same(equal)
            others = equal[~duplicates[equal]]
            tied[others] = True if arrived is None else ~arrived(others)
        return Equals(duplicates, tied)


NEW_CONTENTS = Precedence(Scope.ARRIVAL, Ties.LAST, first_row=False)
"""The rule by which an overwrite meets what it replaces: all of it wins."""


def _words(
    by: Criterion, members: Positions, order: OrderOf, epochs: EpochOf | None
) -> Iterator[Words]:
    match by:
        case Criterion.ORDER:
            for column in order(members):
                yield from ordered_words(column)
        case Criterion.EPOCH:
            if epochs is not None:
                yield epochs(members)
        case Criterion.PLACE:
            yield members.astype(np.uint64)


def _keep_greatest_contents(
    members: Positions, firsts: Positions, candidate: Mask, contents: ContentOf
) -> None:
    """Leave the candidates with the greatest content of each group."""
    counts = np.diff(firsts, append=len(members))
    rivals = np.add.reduceat(candidate.astype(np.int64), firsts) > 1
    tied = np.flatnonzero(np.repeat(rivals, counts) & candidate)
    if len(tied):
        group = np.repeat(np.arange(len(firsts)), counts)[tied]
        begins = np.flatnonzero(np.diff(group, prepend=-1))
        candidate[tied] = keep_greatest(contents(members[tied]), begins)


def _earliest(places: Positions, candidate: Mask, firsts: Positions) -> Positions:
    beyond = np.iinfo(np.int64).max
    earliest: Positions = np.minimum.reduceat(np.where(candidate, places, beyond), firsts)
    return np.where(earliest == beyond, NONE, earliest)


Epoch = NewType("Epoch", int)


class Fate(Enum):
    """The fate of a stashed command at a seal."""

    DROP = "drop"
    EMIT = "emit"
    KEEP = "keep"


def fate_of(epoch: Epoch, *, state_upper: Epoch, input_upper: Epoch) -> Fate:
    """Decide the fate of a stashed command; pure, total, and the only copy of the rule.

    An epoch before ``state_upper`` is already durable, so keeping it would stop the frontier.

    Source: Materialize, ``upsert_continual_feedback_v2.rs``.
    """
    if epoch < state_upper:
        return Fate.DROP
    if epoch == state_upper and epoch < input_upper:
        return Fate.EMIT
    return Fate.KEEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Epochs ``lower <= epoch < upper``."""

    lower: Epoch
    upper: Epoch

    def __post_init__(self) -> None:
        if self.upper < self.lower:
            raise ValueError(f"upper {self.upper} is before lower {self.lower}")

    def __contains__(self, epoch: Epoch) -> bool:
        return self.lower <= epoch < self.upper

    def __repr__(self) -> str:
        return f"[{self.lower}, {self.upper})"

    @classmethod
    def at(cls, epoch: int) -> Interval:
        """Return the interval that holds one epoch."""
        return cls(lower=Epoch(epoch), upper=Epoch(epoch + 1))
