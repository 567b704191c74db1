"""Inputs of a stream without tables: epochs of so many rows, read as often as one likes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from spark_upsert.streams.inputs.protocol import Backlog, Input, ReadPiece
from spark_upsert.streams.offsets.offset import Position
from spark_upsert.streams.reads.ordered import CountedStep, StreamStep

COLUMNS = pa.schema({"row": pa.string()})


def at(place: int) -> Position:
    """Return the position behind so many epochs."""
    return Position.of({"at": place})


def place_of(position: Position | None) -> int:
    """Return how many epochs are before a position."""
    return 0 if position is None else int(position.record["at"])


def _behind(epoch: int, steps: int = 1) -> Position:
    return at(epoch + steps)


class Told(Input):
    """An input of some epochs, each of which has so many rows: ``a1``, ``a2`` and so on.

    Parameters
    ----------
    name : str
    epochs : list of int
        Their rows; grows with the input.
    """

    def __init__(self, name: str, epochs: list[int]) -> None:
        self.name = name
        self.epochs = epochs

    def head(self) -> Position:
        return at(len(self.epochs))

    def identity(self) -> str:
        return self.name

    def backlog(self, position: Position | None, head: Position | None = None) -> Backlog:
        upper = len(self.epochs) if head is None else place_of(head)
        lower = place_of(position)
        end = at(max(lower, upper))
        pieces = [
            ReadPiece(steps=1, rows=self.epochs[epoch], epochs=1, after=partial(_behind, epoch))
            for epoch in range(lower, upper)
        ]
        return Backlog(start=at(lower), pieces=pieces, reach=lambda: end, end=lambda: end)

    def splits(self, start: Position | None, end: Position) -> list[int]:
        return [epoch for epoch in range(place_of(start), place_of(end)) if self.epochs[epoch]]

    def steps(self, start: Position | None, end: Position) -> Iterator[StreamStep]:
        for epoch in range(place_of(start), place_of(end)):
            step = self._step(epoch)
            yield StreamStep(rows=step.rows, split=step.split, after=partial(_behind, epoch))

    def _step(self, epoch: int) -> CountedStep:
        return CountedStep(
            rows=lambda: self.epochs[epoch],
            split=lambda: epoch if self.epochs[epoch] else None,
        )

    def read(self, split: int) -> Iterator[pa.RecordBatch]:
        before = sum(self.epochs[:split])
        names = [f"{self.name}{before + row + 1}" for row in range(self.epochs[split])]
        for start in range(0, len(names), 2):
            yield pa.record_batch([pa.array(names[start : start + 2])], schema=COLUMNS)

    def split_bytes(self, split: int) -> int:
        return self.epochs[split]

    def commit(self, position: Position) -> None:
        pass


class ToldRead:
    """The same as what a batch reads."""

    def __init__(self, told: Told) -> None:
        self._told = told

    def splits(self) -> Sequence[int]:
        return self._told.splits(None, self._told.head())

    def steps(self) -> Sequence[CountedStep]:
        return list(self._told.steps(None, self._told.head()))

    def read(self, split: Any) -> Iterator[pa.RecordBatch]:
        return self._told.read(split)

    def split_bytes(self, split: Any) -> int:
        return self._told.split_bytes(split)

    def identity(self) -> str:
        return self._told.identity()

    def explain(self, splits: Sequence[int]) -> str:
        return f"epochs {list(splits)}"


def told(inputs: Mapping[str, list[int]]) -> dict[str, Told]:
    """Return inputs by their names."""
    return {name: Told(name, epochs) for name, epochs in inputs.items()}
