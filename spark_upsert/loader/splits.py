"""The protocol of what is loaded: splits, with their rows counted before any is read.

A *source* says where rows are; planned, it is `Splits`: a value that knows which state of what it
means, how many rows each split has, and how to read one. A record of it stands in each checkpoint,
and a source that is given the record plans the very same splits again, or refuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

Record = Mapping[str, Any]
"""The record of splits in a checkpoint: JSON."""


class Splits(Protocol):
    """The splits of an epoch; immutable, and travels to other processes by pickle."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of all rows."""
        ...

    @property
    def counts(self) -> Sequence[int]:
        """How many rows each split has."""
        ...

    @property
    def is_forkable(self) -> bool:
        """Whether a forked process may read them: the client of a bucket does not survive that."""
        ...

    def read(self, index: int) -> pa.Table:
        """Return the rows of a split: always the same ones, in the same order.

        It is called by several threads at once.

        Raises
        ------
        DataLossError
            They are gone, or others lie in their place.
        """
        ...

    def record(self) -> Record:
        """Return what names these splits in a checkpoint."""
        ...


class RowSource(Protocol):
    """A source of rows."""

    @property
    def kind(self) -> str:
        """The kind of source that its records are of, in a word."""
        ...

    def plan(self) -> Splits:
        """Return the splits that are there."""
        ...

    def plan_again(self, record: Record) -> Splits:
        """Return the splits that a checkpoint names, without reading them.

        Raises
        ------
        DataLossError
            They are gone, or others lie in their place.
        OtherTableError
            The checkpoint is of another source.
        OptionError
            The source was asked for something else, or no `Splits` has made the record.
        """
        ...
