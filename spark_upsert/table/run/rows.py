"""Row addressing over several *parts*: runs, rows picked from runs, and batches in memory.

`Rows` concatenates parts, so one number addresses a row. Columns missing from a part are null;
narrower types are widened on read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.arrow_types import storage_type, widens
from spark_upsert.core.casts import convert
from spark_upsert.core.keys import Positions
from spark_upsert.core.names import has_column
from spark_upsert.core.schema import (
    HASH,
    ORDER_KNOWN,
    VALUE_RECARRIED,
    VALUE_SET,
    TableSchema,
    kept_column,
)
from spark_upsert.core.threads import Rounding
from spark_upsert.errors import CorruptionError
from spark_upsert.table.run.file import RUNS, Run, Span

_INT16_MAX = 1 << 15

_FEW_PARTS = 12
"""Up to this many parts, comparing with every boundary is faster than a binary search."""


class Part(Protocol):
    """Consecutive rows, readable by position, sorted by hash or not."""

    def __len__(self) -> int: ...

    @property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """Each row's key hash, verified."""
        ...

    @property
    def unverified_hashes(self) -> npt.NDArray[np.uint64]:
        """Unverified key hashes for a search, which reads few of them and verifies the results."""
        ...

    def hashes_at(self, positions: Positions) -> npt.NDArray[np.uint64]:
        """Return the verified hashes of the rows at given positions."""
        ...

    def insertion_points(self, probes: npt.NDArray[np.uint64]) -> Positions:
        """Return leftmost insertion positions for ascending hashes, by unverified hashes."""
        ...

    def candidates(self, probes: npt.NDArray[np.uint64]) -> Positions:
        """Return the positions of possibly present hashes, all within the part's hash range."""
        ...

    @property
    def first_and_last_hash(self) -> tuple[int, int]:
        """The first and the last row's hashes, verified."""
        ...

    @property
    def path(self) -> str:
        """The rows' location, for an error message."""
        ...

    def has(self, name: str) -> bool:
        """Return whether the part stores a column."""
        ...

    def take(self, names: Sequence[str], positions: Positions) -> list[pa.Array]:
        """Return columns for the rows at given positions."""
        ...

    def slice(self, names: Sequence[str], start: int, stop: int) -> list[pa.Array]:
        """Return columns for consecutive rows, without a copy."""
        ...


class RunPart:
    """Consecutive rows in a run."""

    def __init__(self, span: Span) -> None:
        self.run = span.run
        self._start = span.start
        self._count = len(span)

    def __len__(self) -> int:
        return self._count

    @property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """All rows' key hashes; the read verifies their checksums."""
        [column] = self.slice([HASH], 0, self._count)
        hashes: npt.NDArray[np.uint64] = column.to_numpy()
        return hashes

    @property
    def unverified_hashes(self) -> npt.NDArray[np.uint64]:
        return self.run.hashes[self._start : self._start + self._count]

    def in_run(self, positions: Positions) -> Positions:
        """Convert row positions in the part to positions in the run."""
        return positions + self._start

    def has(self, name: str) -> bool:
        return self.run.has(name)

    def take(self, names: Sequence[str], positions: Positions) -> list[pa.Array]:
        return self.run.take(names, positions + self._start)

    def slice(self, names: Sequence[str], start: int, stop: int) -> list[pa.Array]:
        return self.run.slice(names, self._start + start, self._start + stop)

    def hashes_at(self, positions: Positions) -> npt.NDArray[np.uint64]:
        self.run.verify_at([HASH], positions + self._start)
        return self.unverified_hashes[positions]

    def insertion_points(self, probes: npt.NDArray[np.uint64]) -> Positions:
        """Search the complete run, then clip the positions to this part."""
        indices = self.run.search.insertion_points(probes)
        if self._count == self.run.file.rows:
            return indices
        return np.clip(indices - self._start, 0, self._count)

    def candidates(self, probes: npt.NDArray[np.uint64]) -> Positions:
        return self.run.search.candidates(probes)

    @property
    def first_and_last_hash(self) -> tuple[int, int]:
        """The first and last row's hashes; for a whole run from the file's metadata."""
        if self._count == self.run.file.rows:
            return self.run.file.hash_range.first, self.run.file.hash_range.last
        first, last = self.hashes_at(np.array([0, self._count - 1])).tolist()
        return first, last

    @property
    def path(self) -> str:
        return self.run.file.path


class ChosenPart:
    """Base class of parts with few rows, whose hashes are searched without an index."""

    def __len__(self) -> int:
        raise NotImplementedError

    def hashes_at(self, positions: Positions) -> npt.NDArray[np.uint64]:
        """Return the verified hashes of the rows at given positions."""
        raise NotImplementedError

    @property
    def hashes(self) -> npt.NDArray[np.uint64]:
        return self.hashes_at(np.arange(len(self)))

    @property
    def unverified_hashes(self) -> npt.NDArray[np.uint64]:
        return self.hashes

    def insertion_points(self, probes: npt.NDArray[np.uint64]) -> Positions:
        return np.searchsorted(self.unverified_hashes, probes)

    def candidates(self, probes: npt.NDArray[np.uint64]) -> Positions:
        return np.arange(len(probes))

    @property
    def first_and_last_hash(self) -> tuple[int, int]:
        first, last = self.hashes_at(np.array([0, len(self) - 1])).tolist()
        return first, last

    @property
    def path(self) -> str:
        return "rows in memory"


class PickedPart(ChosenPart):
    """Rows at given ascending positions in a run, read on demand."""

    def __init__(self, run: Run, positions: Positions) -> None:
        self._run = run
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def unverified_hashes(self) -> npt.NDArray[np.uint64]:
        return self._run.hashes[self._positions]

    def hashes_at(self, positions: Positions) -> npt.NDArray[np.uint64]:
        picked = self._positions[positions]
        self._run.verify_at([HASH], picked)
        return self._run.hashes[picked]

    @property
    def path(self) -> str:
        return self._run.file.path

    def has(self, name: str) -> bool:
        return self._run.has(name)

    def take(self, names: Sequence[str], positions: Positions) -> list[pa.Array]:
        return self._run.take(names, self._positions[positions])

    def slice(self, names: Sequence[str], start: int, stop: int) -> list[pa.Array]:
        return self._run.take(names, self._positions[start:stop])


class BatchPart(ChosenPart):
    """Rows in an in-memory batch."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @property
    def hashes(self) -> npt.NDArray[np.uint64]:
        hashes: npt.NDArray[np.uint64] = self.batch.column(HASH).to_numpy()
        return hashes

    def hashes_at(self, positions: Positions) -> npt.NDArray[np.uint64]:
        return self.hashes[positions]

    def has(self, name: str) -> bool:
        return has_column(self.batch.schema, name)

    def take(self, names: Sequence[str], positions: Positions) -> list[pa.Array]:
        indices = pa.array(positions)
        return [self.batch.column(name).take(indices) for name in names]

    def slice(self, names: Sequence[str], start: int, stop: int) -> list[pa.Array]:
        return [self.batch.column(name).slice(start, stop - start) for name in names]


class Rows:
    """Rows of several parts, concatenated in part order.

    Parameters
    ----------
    schema : TableSchema
        Determines the types of the read columns.
    parts : sequence of Part
    """

    def __init__(self, schema: TableSchema, parts: Sequence[Part]) -> None:
        self.schema = schema
        self._marks = frozenset(map(kept_column, schema.unchanged))
        self.parts = tuple(parts)
        self.starts = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.starts[-1])

    @cached_property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """All rows' hashes; a copy if there is more than one part."""
        if len(self.parts) == 1:
            return self.parts[0].hashes
        return np.concatenate([np.empty(0, np.uint64), *(part.hashes for part in self.parts)])

    def part_of(self, rows: Positions) -> Positions:
        """Return each row's part index."""
        if len(self.parts) > _FEW_PARTS:
            return np.searchsorted(self.starts, rows, side="right") - 1
        owners = np.zeros(len(rows), dtype=np.int64)
        for start in self.starts[1:-1]:
            owners += rows >= start
        return owners

    def take(self, names: Sequence[str], rows: Positions) -> list[pa.Array]:
        """Return columns for the given rows, in the given order."""
        if not names:
            return []
        if not len(rows):
            return [pa.array([], type=self._type(name)) for name in names]
        owners = self.part_of(rows)
        if bool((owners == owners[0]).all()):
            return self.take_from(int(owners[0]), names, rows - self.starts[owners[0]])
        if bool((owners[1:] >= owners[:-1]).all()):
            pieces = self._pieces(names, rows, owners)
            return [pa.concat_arrays(columns) for columns in zip(*pieces, strict=True)]
        # Part numbers are small: NumPy sorts 16-bit integers by radix.
        small = owners.astype(np.int16) if len(self.parts) < _INT16_MAX else owners
        order = np.argsort(small, kind="stable")
        pieces = self._pieces(names, rows[order], owners[order])
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        indices = pa.array(back)
        return [pa.concat_arrays(columns).take(indices) for columns in zip(*pieces, strict=True)]

    def _pieces(
        self, names: Sequence[str], rows: Positions, owners: Positions
    ) -> list[list[pa.Array]]:
        """Return columns for rows in part order, one piece per part."""
        ends = np.searchsorted(owners, np.arange(len(self.parts) + 1))
        return [
            self.take_from(index, names, rows[ends[index] : ends[index + 1]] - self.starts[index])
            for index in range(len(self.parts))
            if ends[index] < ends[index + 1]
        ]

    def take_from(self, index: int, names: Sequence[str], positions: Positions) -> list[pa.Array]:
        """Return columns for the rows at given positions in one part."""
        part = self.parts[index]
        stored = [name for name in names if part.has(name)]
        column_by_name = dict(zip(stored, part.take(stored, positions), strict=True))
        RUNS.trim(len(positions))
        return [self._adapt(part, column_by_name.get(name), name, len(positions)) for name in names]

    def slice(self, index: int, names: Sequence[str], start: int, stop: int) -> list[pa.Array]:
        """Return columns for consecutive rows in one part, without a copy where possible."""
        part = self.parts[index]
        stored = [name for name in names if part.has(name)]
        column_by_name = dict(zip(stored, part.slice(stored, start, stop), strict=True))
        return [self._adapt(part, column_by_name.get(name), name, stop - start) for name in names]

    def gathered(self, names: Sequence[str]) -> Rows:
        """Return the given columns as one part in memory, which is cheap to address.

        The names must include the hash.
        """
        pieces = [self.slice(i, names, 0, len(part)) for i, part in enumerate(self.parts)]
        columns = [pa.concat_arrays(column) for column in zip(*pieces, strict=True)]
        batch = pa.RecordBatch.from_arrays(columns, names=list(names))
        return Rows(self.schema, [BatchPart(batch)])

    def _type(self, name: str) -> pa.DataType:
        return self.schema.run.field(name).type

    def _adapt(self, part: Part, column: pa.Array | None, name: str, count: int) -> pa.Array:
        """Return a part's column in the table's type, nulls if the part is older than it."""
        type_ = self._type(name)
        if column is None:
            if name in self.schema.keys:
                raise CorruptionError.in_file(part.path, f"the key column '{name}'", "none")
            if name == ORDER_KNOWN:
                return pa.repeat(pa.scalar(True), count)
            return pa.nulls(count, type=type_)
        if column.type == type_:
            if name in self._marks:
                _require_kinds(part, column, name)
            return column
        if not (is_earlier := storage_type(column.type) == type_) and not widens(
            column.type, type_
        ):
            raise CorruptionError.in_file(
                part.path, f"column '{name}' of type {type_}", str(column.type)
            )
        try:  # Of an earlier release, or before the column was widened.
            return convert(column, type_, Rounding.DOWN) if is_earlier else column.cast(type_)
        except pa.ArrowInvalid as error:
            raise CorruptionError.in_file(
                part.path, f"values of column '{name}' that fit {type_}", str(error)
            ) from error


def _require_kinds(part: Part, column: pa.Array, name: str) -> None:
    """Raise `CorruptionError` unless each mark of a column's values is one of `VALUE_SET` etc."""
    limits = pc.min_max(column).as_py()
    if limits["min"] is not None and not (
        limits["min"] >= VALUE_SET and limits["max"] <= VALUE_RECARRIED
    ):
        raise CorruptionError.in_file(
            part.path,
            f"marks of '{name}' from {VALUE_SET} to {VALUE_RECARRIED}",
            f"{limits['min']} to {limits['max']}",
        )
