"""Epochs, intervals of them, and how a stash that feeds a table compares them with frontiers.

An **epoch** is logical time: the version of the table that made the changes visible. The **upper**
of a table is the first epoch that is not sealed, always exclusive; ``since`` is the first epoch
with a state that can still be read exactly. At all times

    0 <= since <= upper,   and both only advance.

For a stash that feeds the table, with input frontier ``i`` and persisted frontier ``p``, a
command at ``ts`` is *eligible* exactly when ``ts == p < i``. A command with ``ts < p`` is
already durable and must be dropped; putting it back would hold the frontier for ever.

Source: Materialize, ``upsert_continual_feedback_v2.rs``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NewType

Epoch = NewType("Epoch", int)


class Fate(Enum):
    """The fate of a stashed command at a seal."""

    DROP = "drop"
    EMIT = "emit"
    KEEP = "keep"


def fate_of(epoch: Epoch, *, state_upper: Epoch, input_upper: Epoch) -> Fate:
    """Decide the fate of a stashed command; pure, total, and the only copy of the rule."""
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
