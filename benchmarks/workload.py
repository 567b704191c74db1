"""The rows that everybody gets: a pure function of a workload and a number.

A table begins with the keys ``0 .. table_rows``, spelt as the workload asks. A batch draws its
keys from a space that is a tenth larger, so that about one command in eleven is an insert until
the space is full. ``seq`` grows from batch to batch; a late command has the ``seq`` of two batches
ago.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

CHUNK_ROWS = 1_000_000
"""Rows of one file of the initial table."""

_ODD = 0x9E3779B1
"""Scatters the popular keys of a skewed draw over the table; prime to any space we use."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What rows a table and its batches have."""

    table_rows: int
    batch_rows: int
    keys: str = "int"
    """``int``, ``string`` or ``composite``."""
    draw: str = "uniform"
    """``uniform`` or ``zipf``."""
    wide: int = 0
    """Further columns of doubles."""
    deletes: float = 0.0
    """Share of the commands."""
    late: float = 0.0
    """Share of the commands."""
    seed: int = 7

    @property
    def name(self) -> str:
        """Return what tells it apart, fit for a file name."""
        parts = [self.table_name, f"by{self.batch_rows}", self.draw]
        parts += [f"deletes{self.deletes:g}"] if self.deletes else []
        parts += [f"late{self.late:g}"] if self.late else []
        return "-".join(parts)

    @property
    def table_name(self) -> str:
        """Return what tells the initial table apart."""
        wide = f"-wide{self.wide}" if self.wide else ""
        return f"{self.table_rows}-{self.keys}{wide}-seed{self.seed}"

    @property
    def key_names(self) -> list[str]:
        """Return the columns that identify a row."""
        return ["tenant", "id"] if self.keys == "composite" else ["k"]

    @property
    def columns(self) -> pa.Schema:
        """Return the columns of the table; ``seq`` is one of them."""
        keys = {
            "int": [("k", pa.int64())],
            "string": [("k", pa.string())],
            "composite": [("tenant", pa.int32()), ("id", pa.string())],
        }[self.keys]
        wide = [(f"w{index}", pa.float64()) for index in range(self.wide)]
        return pa.schema([*keys, ("seq", pa.int64()), ("v", pa.int64()), ("s", pa.string()), *wide])

    @property
    def commands(self) -> pa.Schema:
        """Return the columns of a batch: the table's, and ``gone`` if there are deletes."""
        gone = [pa.field("gone", pa.bool_())] if self.deletes else []
        return pa.schema([*self.columns, *gone])

    def to_json(self) -> dict[str, Any]:
        """Return the fields, to be given to the constructor."""
        return asdict(self)

    def initial(self) -> Iterator[pa.Table]:
        """Yield the rows that the table begins with."""
        for lower in range(0, self.table_rows, CHUNK_ROWS):
            keys = np.arange(lower, min(lower + CHUNK_ROWS, self.table_rows), dtype=np.int64)
            dice = np.random.default_rng((self.seed, 0, lower))
            yield self._rows(keys, np.zeros(len(keys), np.int64), dice).select(self.columns.names)

    def batch(self, number: int) -> pa.Table:
        """Return the commands of a batch, numbered from 1."""
        dice = np.random.default_rng((self.seed, 1, number))
        space = max(1, self.table_rows + self.table_rows // 10)
        if self.draw == "zipf":
            # The exponent of word frequencies, and of most logs of clicks, is a little above 1.
            keys = (dice.zipf(1.1, self.batch_rows) - 1) % space * _ODD % space
        else:
            keys = dice.integers(0, space, self.batch_rows)
        # Punctual commands are even and late ones odd: no two have the same order.
        seq = 2 * ((number + 2) * self.batch_rows + np.arange(self.batch_rows, dtype=np.int64))
        if self.late:
            late = dice.random(self.batch_rows) < self.late
            seq = np.where(late, seq - 4 * self.batch_rows + 1, seq)
        return self._rows(keys, seq, dice)

    def _rows(self, keys: Numbers, seq: Numbers, dice: np.random.Generator) -> pa.Table:
        count = len(keys)
        values = dice.integers(0, 1 << 40, count)
        arrays = [*self._spelt(keys), pa.array(seq), pa.array(values), _text(values % 1_000_003)]
        arrays += [pa.array(dice.random(count)) for _ in range(self.wide)]
        if self.deletes:
            arrays.append(pa.array(dice.random(count) < self.deletes))
        return pa.table(arrays, schema=self.commands)

    def _spelt(self, keys: Numbers) -> list[pa.Array]:
        if self.keys == "int":
            return [pa.array(keys)]
        if self.keys == "string":
            return [_text(keys)]
        return [pa.array((keys % 97).astype(np.int32)), _text(keys // 97)]


def _text(numbers: Numbers) -> pa.Array:
    return pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 12, "0")


def latest(rows: pa.Table, keys: list[str]) -> pa.Table:
    """Return the newest command of each key: what a MERGE needs and does not do itself."""
    order = pc.sort_indices(rows, [(name, "ascending") for name in (*keys, "seq")])
    ordered = rows.take(order)
    if len(ordered) < 2:
        return ordered
    differs = np.zeros(len(ordered) - 1, dtype=bool)
    for name in keys:
        column = ordered.column(name).combine_chunks()
        differs |= pc.not_equal(column[:-1], column[1:]).to_numpy(zero_copy_only=False)
    return ordered.filter(pa.array(np.append(differs, True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The rows of a workload as Parquet, made once and given to all."""

    cache: Path
    workload: Workload

    @classmethod
    def make(cls, cache: Path, workload: Workload) -> Files:
        """Write the initial rows, unless they are there."""
        files = cls(cache=cache, workload=workload)
        table = files.cache / workload.table_name
        if not table.exists():
            making = table.with_suffix(".making")
            making.mkdir(parents=True, exist_ok=True)
            for index, rows in enumerate(workload.initial()):
                pq.write_table(rows, making / f"{index:04d}.parquet")
            making.rename(table)
        return files

    def initial(self) -> list[Path]:
        """Return the files of the initial rows."""
        return sorted((self.cache / self.workload.table_name).iterdir())

    def batch(self, number: int, parts: int) -> Path:
        """Return the folder of a batch, written in this many files."""
        folder = self.cache / self.workload.name / f"batch-{number:05d}-{parts}"
        if not folder.exists():
            rows = self.workload.batch(number)
            step = -(-len(rows) // parts)
            making = folder.with_suffix(".making")
            making.mkdir(parents=True, exist_ok=True)
            for index in range(parts):
                pq.write_table(rows.slice(index * step, step), making / f"{index}.parquet")
            making.rename(folder)
        return folder
