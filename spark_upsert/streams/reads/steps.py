"""The steps of an input: exact orders count their rows, and cut an input wherever a step ends.

One task reads a step as a whole, and neither its rows nor their order depend on where a batch
begins or ends. A step of a table is an epoch, or a hash range of the snapshot that a stream begins
with; the bounds of such ranges follow from that version alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spark_upsert.errors import OptionError
from spark_upsert.streams.offsets.position import Position

SNAPSHOT_STEPS = 1 << 16
"""A snapshot is cut at multiples of 1/65536 of the hashes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedStep:
    """The steps that an exact order takes rows of; each is found out where it is asked for."""

    rows: Callable[[], int]
    """How many rows reading it yields."""
    split: Callable[[], Any]
    """The one split that has them; None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStep(CountedStep):
    """A step of a stream."""

    after: Callable[[], Position]
    """The position behind it."""


def refuse_gaps(*, fail_on_data_loss: bool) -> None:
    """Refuse to leave out rows where other rows are counted.

    Raises
    ------
    OptionError
        What is lost is to be passed over.
    """
    if not fail_on_data_loss:
        raise OptionError(
            "failOnDataLoss=false has no meaning in an exact order, which a gap would change.",
            hint="drop it, or leave out 'merge' and 'interleaveSeed'.",
            option="failOnDataLoss",
        )
