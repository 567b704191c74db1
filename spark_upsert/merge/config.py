"""The configuration of a merge (`MergeConfig`): its mode, and the seed of its order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from spark_upsert.core.input_order import SEED_END, Concat, Order, RoundRobin, Seeded
from spark_upsert.errors import OptionError

_KEYS = ("mode", "interleave_seed")


class Mode(Enum):
    """How the rows of several inputs become one sequence."""

    CONCAT = "concat"
    """One input after the other."""
    INTERLEAVE = "interleave"
    """Live: whatever is ready first; with a seed, or where it cannot be live, in an exact order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeConfig:
    """The settings of a merge.

    Parameters
    ----------
    mode : Mode
        Default: concat.
    seed : int or None
        From 0 up to 2**64 - 1: the order is drawn from it. It has no effect on concat.
    """

    mode: Mode = Mode.CONCAT
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.seed is not None and (type(self.seed) is not int or not 0 <= self.seed < SEED_END):
            raise OptionError.invalid(
                "interleave_seed", self.seed, "a whole number from 0 up to 18446744073709551615"
            )

    @classmethod
    def parse(cls, record: Mapping[str, Any]) -> MergeConfig:
        """Return the settings of a mapping with the keys ``mode`` and ``interleave_seed``.

        Raises
        ------
        OptionError
            A key is unknown, or a value is none that it may have.
        """
        for key in record:
            if key not in _KEYS:
                raise OptionError.unknown(key, _KEYS)
        mode = record.get("mode", Mode.CONCAT.value)
        choices = [mode.value for mode in Mode]
        if mode not in choices:
            raise OptionError.not_one_of("mode", str(mode), choices)
        return cls(mode=Mode(mode), seed=record.get("interleave_seed"))

    def order(self, *, is_live: bool = True) -> Order | None:
        """Return the order that the merge begins with; None: rows come as they are ready.

        Parameters
        ----------
        is_live : bool
            Whether the merge could be live (`graph.fusion`). If not, it goes round robin.
        """
        if self.mode is Mode.CONCAT:
            return Concat()
        if self.seed is not None:
            return Seeded(state=self.seed)
        return None if is_live else RoundRobin()
