"""The results of a look-up: the places of the entries of some keys, and the rows of some keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.keys import Mask, Positions
from spark_upsert.core.precedence import NONE
from spark_upsert.table.run.rows import Rows

ABSENT = NONE


@dataclass(frozen=True, slots=True)
class EntryMatches:
    """The place of the table's entry of each probed key."""

    rows: Rows
    """The rows of the searched state."""
    at: Positions
    """For each key, the row number in ``rows``, or `ABSENT`."""

    @property
    def present(self) -> Mask:
        """Whether the table has an entry: a row, a tombstone or an error."""
        return self.at != ABSENT


class RowsByKey(NamedTuple):
    """The rows of some keys."""

    rows: pa.RecordBatch
    """Each row that was found, once, in the order of the hashes of their keys."""
    at: Positions
    """For each key, the place of its row, or `ABSENT`."""


LookUp = Callable[[npt.NDArray[np.uint64], Sequence[pa.Array]], EntryMatches]
"""Finds the entries of keys, given their hashes, ascending (`table.state.lookup`)."""
