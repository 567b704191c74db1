"""A stream over its inputs: what Spark's reader is asked, answered without Spark.

The planner's stream lives as long as the query; another copy is pickled into the tasks and only
reads. `Stream.latest` decides how far a micro-batch goes, and `Stream.splits` is a pure function
of two offsets and of the inputs' logs: a replay plans the same batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from spark_upsert.errors import OptionError, about_input
from spark_upsert.options.inputs import UNNAMED
from spark_upsert.options.query import QueryOptions
from spark_upsert.source.input import Backlog, Input
from spark_upsert.source.offset import Offset, Offsets, PlainOffsets
from spark_upsert.source.pace import Limits, pace
from spark_upsert.source.packs import InputSplit, Pack, packed, read_pack
from spark_upsert.source.position import Position


class Stream:
    """All inputs of a stream; that of one table is a merge of one.

    Parameters
    ----------
    inputs : mapping of str to Input
        By their names, which a checkpoint remembers.
    query : QueryOptions
        What is said of all of them.
    offsets : Offsets, optional
        Their form; by default they hold all positions.
    """

    def __init__(
        self,
        inputs: Mapping[str, Input],
        query: QueryOptions,
        *,
        offsets: Offsets | None = None,
    ) -> None:
        self._inputs = inputs
        self._query = query
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
        backlogs = {name: self._backlog(name, offset.positions.get(name)) for name in self._inputs}
        limits = None if everything else Limits.of(self._query)
        reached = pace(backlogs, limits, offset.state)
        return start if reached == offset else self._offsets.write(reached, start)

    def _backlog(self, name: str, position: Position | None) -> Backlog:
        head = None if self._frozen is None else self._frozen[name]
        with about_input(name):
            return self._inputs[name].backlog(position, head)

    def head(self) -> dict[str, Any]:
        """Return the offset behind all there is, for a report."""
        return Offset(positions=self._heads()).to_json()

    def splits(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Pack]:
        """Return the work of the batch between two offsets: what each task reads.

        That of a table without a name is one split for each task; the splits of named inputs are
        packed by their bytes.
        """
        first, last = self._read(start), self._read(end)
        found: list[tuple[InputSplit, int]] = []
        for name, position in last.positions.items():
            before = first.positions.get(name)
            if position == before:
                continue
            each = self._inputs[name]
            with about_input(name):
                splits = each.splits(before, position)
                found += [(InputSplit(name, split), each.split_bytes(split)) for split in splits]
        return packed(found, len(found) if UNNAMED in self._inputs else self._query.slots)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Let go of what is before an offset: Spark begins no batch there any more."""
        for name, position in self._read(end).positions.items():
            with about_input(name):
                self._inputs[name].commit(position)
        self._offsets.commit(end)

    def _heads(self) -> dict[str, Position]:
        found: dict[str, Position] = {}
        for name, each in self._inputs.items():
            with about_input(name):
                found[name] = each.head()
        return found

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

    def read(self, pack: Pack) -> Iterator[pa.RecordBatch]:
        """Yield the rows that one task reads."""
        yield from read_pack(self._inputs, pack, self._query.merge_columns)
