"""A stream over its inputs: what Spark's reader is asked, answered without Spark.

The planner's stream lives as long as the query; another copy is pickled into the tasks and only
reads. `Stream.latest` decides how far a micro-batch goes, and `Stream.splits` is a pure function
of two offsets and of the inputs' logs: a replay plans the same batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_upsert.errors import OptionError
from spark_upsert.source.input import Input
from spark_upsert.source.offset import Offset, Offsets, PlainOffsets
from spark_upsert.source.pace import Limits, pace
from spark_upsert.source.position import Position


@dataclass(frozen=True, slots=True)
class InputSplit:
    """A split of one of the inputs."""

    name: str
    split: Any


class Stream:
    """All inputs of a stream; that of one table is a merge of one.

    Parameters
    ----------
    inputs : mapping of str to Input
        By their names, which a checkpoint remembers.
    limits : Limits
        Of one batch.
    offsets : Offsets, optional
        Their form; by default they hold all positions.
    """

    def __init__(
        self, inputs: Mapping[str, Input], limits: Limits, *, offsets: Offsets | None = None
    ) -> None:
        self._inputs = inputs
        self._limits = limits
        self._offsets = offsets or PlainOffsets()
        self._frozen: Mapping[str, Position] | None = None

    # -- planning --------------------------------------------------------------------

    def initial(self) -> dict[str, Any]:
        """Return the offset before the first batch.

        Constant: on replay Spark asks again, when the inputs may have grown.
        """
        return Offset().to_json()

    def freeze(self) -> None:
        """Let the stream end at what there is now, whatever comes."""
        self._frozen = self._heads()

    def latest(self, start: Mapping[str, Any], *, everything: bool = False) -> Mapping[str, Any]:
        """Return where a batch ends that begins at an offset; the very offset if it is empty.

        Parameters
        ----------
        everything : bool
            Whether the batch is to hold all there is, whatever the limits.
        """
        offset = self._read(start)
        heads = self._frozen or {}
        backlogs = {
            name: each.backlog(offset.positions.get(name), heads.get(name))
            for name, each in self._inputs.items()
        }
        reached = pace(backlogs, None if everything else self._limits, offset.state)
        return start if reached == offset else self._offsets.write(reached, start)

    def head(self) -> dict[str, Any]:
        """Return the offset behind all there is, for a report."""
        return Offset(positions=self._heads()).to_json()

    def splits(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputSplit]:
        """Return the work of the batch between two offsets."""
        first, last = self._read(start), self._read(end)
        return [
            InputSplit(name, split)
            for name, position in last.positions.items()
            if position != first.positions.get(name)
            for split in self._inputs[name].splits(first.positions.get(name), position)
        ]

    def commit(self, end: Mapping[str, Any]) -> None:
        """Let go of what is before an offset: Spark begins no batch there any more."""
        for name, position in self._read(end).positions.items():
            self._inputs[name].commit(position)
        self._offsets.commit(end)

    def _heads(self) -> dict[str, Position]:
        return {name: each.head() for name, each in self._inputs.items()}

    def _read(self, record: Mapping[str, Any]) -> Offset:
        offset = self._offsets.read(record)
        unknown = offset.positions.keys() - self._inputs.keys()
        if unknown:
            raise OptionError(
                f"the checkpoint knows inputs {sorted(unknown)} that the query does not name.",
                hint="name them again, or give the query a new checkpointLocation.",
            )
        return offset

    # -- reading, in the tasks -------------------------------------------------------

    def read(self, split: InputSplit) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split."""
        yield from self._inputs[split.name].read(split.split)
