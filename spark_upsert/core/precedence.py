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
"""Placeholder for a missing position."""

OrderOf = Callable[[Positions], Sequence[pa.Array]]
"""Returns the order key columns for some entries."""

EpochOf = Callable[[Positions], Words]
"""Returns the epochs for some entries."""

ContentOf = Callable[[Positions], Sequence[Words]]
"""Returns words that sort some entries by content."""

Same = Callable[[Positions], Mask]
"""Returns a mask of pairs with equal contents."""


class Criterion(Enum):
    """A criterion for comparing entries."""

    ORDER = "order"
    EPOCH = "epoch"
    PLACE = "place"


class Equals(NamedTuple):
    """Entry pairs with equal order keys, by content; both masks are false elsewhere."""

    are_duplicates: Mask
    """Pairs with equal contents."""
    are_tied: Mask
    """Pairs with different contents."""


class PrecedenceResult(NamedTuple):
    """Results for entries compared with older entries for their keys."""

    win: Mask
    """Entries that take effect; others are *stale* unless they are duplicates."""
    are_duplicates: Mask
    """Entries that repeat the older entry, without effect."""
    are_tied: Mask
    """Entries with the older entry's order key and different contents, whichever wins."""


@dataclass(frozen=True, slots=True)
class Precedence:
    """A table's precedence rule; the first criterion that differs decides.

    ========  ===============  ==================================================================
    scope     compared by      the winner for a key
    ========  ===============  ==================================================================
    table     order, epoch     the greatest order key; among equal keys the latest epoch
    epoch     epoch, order     the latest epoch; within it the greatest order key
    arrival   place            the latest entry by (epoch, task, position)
    ========  ===============  ==================================================================

    Among equal entries from one task, the later row wins; from several tasks, the greater content
    in an arbitrary fixed order. With `Ties.FIRST` the earlier epoch or row wins a tie. With
    ``first-row`` the smallest order key wins, then the earliest epoch or position.
    """

    scope: Scope
    ties: Ties
    first_row: bool
    """Whether the engine is ``first-row``."""

    @classmethod
    def of(cls, schema: TableSchema) -> Precedence:
        """Return a table's precedence rule."""
        return cls(schema.scope, schema.ties, schema.engine.kind is Engine.FIRST_ROW)

    @property
    def criteria(self) -> tuple[tuple[Criterion, bool], ...]:
        """The criteria in order, each with whether the greater value wins."""
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
        """Whether the later entry wins among equal order keys."""
        return self.ties is not Ties.FIRST

    @property
    def has_order(self) -> bool:
        """Whether there are order keys: without them, nothing is tied or a duplicate."""
        return self.scope is not Scope.ARRIVAL

    @property
    def compares_order_across_epochs(self) -> bool:
        """Whether order keys are compared across epochs."""
        return self.scope is Scope.TABLE

    @property
    def newest_wins(self) -> bool:
        """Whether an entry always wins over entries from earlier epochs."""
        return not (self.compares_order_across_epochs or self.first_row)

    # -- many entries ------------------------------------------------------------------

    def pick_winners(
        self,
        members: Positions,
        firsts: Positions,
        *,
        order: OrderOf,
        epochs: EpochOf | None = None,
        contents: ContentOf | None = None,
    ) -> Positions:
        """Return each group's winner."""
        best = keep_greatest(self.rank_words(members, order, epochs), firsts)
        if np.count_nonzero(best) == len(firsts):
            decided: Positions = members[best]
            return decided
        if contents is None:
            return self.pick_among_tied(members, best, firsts)
        _keep_greatest_contents(members, firsts, best, contents)
        return _earliest(members, best, firsts)

    def rank_words(
        self, members: Positions, order: OrderOf, epochs: EpochOf | None
    ) -> Iterator[Words]:
        """Yield words, most significant first; the entry with the greater words wins."""
        for by, greater_wins in self.criteria:
            for word in _words(by, members, order, epochs):
                yield word if greater_wins else ~word

    def pick_among_tied(self, places: Positions, candidate: Mask, firsts: Positions) -> Positions:
        """Return each group's latest candidate, with `Ties.FIRST` the earliest; `NONE` if none."""
        if self.later_wins_ties:
            latest: Positions = np.maximum.reduceat(np.where(candidate, places, NONE), firsts)
            return latest
        return _earliest(places, candidate, firsts)

    # -- two entries -------------------------------------------------------------------

    def compare(self, *, order: Signs, epoch: Signs | int, place: Signs | int) -> Signs:
        """Return +1 where the first entry wins, -1 where the second wins, 0 for a tie."""
        signs = {Criterion.ORDER: order, Criterion.EPOCH: epoch, Criterion.PLACE: place}
        result = np.zeros(len(order), dtype=np.int8)
        for by, greater_wins in self.criteria:
            sign = signs[by] if greater_wins else -signs[by]
            result = np.where(result == 0, sign, result)
        return result

    def compare_with_older(
        self, order: Signs, same: Same, arrived: Same | None = None
    ) -> PrecedenceResult:
        """Compare entries with entries from earlier epochs; arguments as in `equals`."""
        win = self.compare(order=order, epoch=1, place=1) > 0
        if not self.compares_order_across_epochs:
            nothing = np.zeros(len(order), dtype=np.bool_)
            return PrecedenceResult(win, nothing, nothing)
        duplicates, tied = self.equals(order, same, arrived)
        return PrecedenceResult(win & ~duplicates, duplicates, tied)

    def equals(self, order: Signs, same: Same, arrived: Same | None = None) -> Equals:
        """Separate duplicates from ties, where order keys are equal.

        ``arrived`` returns a mask of pairs that never count as tied.
        """
        duplicates, tied = (np.zeros(len(order), dtype=np.bool_) for _ in range(2))
        equal = np.flatnonzero(order == 0)
        if self.has_order and len(equal):
            duplicates[equal] = same(equal)
            others = equal[~duplicates[equal]]
            tied[others] = True if arrived is None else ~arrived(others)
        return Equals(duplicates, tied)


NEW_CONTENTS = Precedence(Scope.ARRIVAL, Ties.LAST, first_row=False)
"""Rule for an overwrite: its entries always win."""


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
    """Keep the candidates with the greatest content per group, in place."""
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


class SealDecision(Enum):
    """Decision about a stashed command at a seal."""

    DROP = "drop"
    EMIT = "emit"
    KEEP = "keep"


def decide_at_seal(epoch: Epoch, *, state_upper: Epoch, input_upper: Epoch) -> SealDecision:
    """Decide whether a seal drops, emits or keeps a stashed command.

    Pure, total, and the only copy of this rule. An epoch before ``state_upper`` is already durable,
    so keeping it would stop the frontier.

    Source: Materialize, ``upsert_continual_feedback_v2.rs``.
    """
    if epoch < state_upper:
        return SealDecision.DROP
    if epoch == state_upper and epoch < input_upper:
        return SealDecision.EMIT
    return SealDecision.KEEP


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
        """Return the interval with a single epoch."""
        return cls(lower=Epoch(epoch), upper=Epoch(epoch + 1))
