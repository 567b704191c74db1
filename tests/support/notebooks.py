"""Offsets of many inputs without inputs: a notebook takes positions, as a checkpoint does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from spark_upsert.store import Store
from spark_upsert.streams.offsets import delta as compact_offsets
from spark_upsert.streams.offsets.delta import Bases, CompactOffsets
from spark_upsert.streams.offsets.offset import Offset, Position

STREAM = "5" * 32

Numbers = Mapping[str, int]
"""The position of each input, as a number."""


@contextmanager
def few_are_many(*, inputs: int = 2, delta: int = 2, kept: int = 3) -> Iterator[None]:
    """Let a handful of inputs be too many for plain offsets."""
    with (
        patch.object(compact_offsets, "INPUTS_MAX", inputs),
        patch.object(compact_offsets, "DELTA_MAX", delta),
        patch.object(compact_offsets, "BATCHES_KEPT", kept),
    ):
        yield


def offsets_over(store: Store, *, stream: str = STREAM) -> CompactOffsets:
    """Return what a fresh process makes offsets with."""
    return CompactOffsets(Bases(store), new_stream=lambda: stream)


def offset_of(numbers: Numbers) -> Offset:
    return Offset(positions={name: Position.of({"n": n}) for name, n in numbers.items()})


def numbers_of(offset: Offset) -> dict[str, int]:
    return {name: position.record["n"] for name, position in offset.positions.items()}


class Notebook:
    """The offsets of a query, batch by batch; its process may begin anew at any time.

    Parameters
    ----------
    start : callable
        Returns what a fresh process makes offsets with.
    """

    def __init__(self, start: Callable[[], CompactOffsets]) -> None:
        self._start = start
        self.offsets = start()
        self.noted = [json.dumps(Offset().to_json())]
        """The texts of the offsets: the first, then the end of each batch."""

    def restart(self) -> None:
        self.offsets = self._start()

    def plan(self, numbers: Numbers) -> str:
        """Return the text of the next offset without noting it."""
        return json.dumps(self.offsets.write(offset_of(numbers), json.loads(self.noted[-1])))

    def note(self, numbers: Numbers) -> None:
        """Note the next offset; then, as Spark does, tell that the batch before is done."""
        self.noted.append(self.plan(numbers))
        self.offsets.commit(json.loads(self.noted[-2]))

    def read(self, text: str) -> dict[str, int]:
        return numbers_of(self.offsets.read(json.loads(text)))

    def note_all(self, history: Sequence[Numbers]) -> None:
        """Note what of a history is not noted yet."""
        for numbers in history[len(self.noted) - 1 :]:
            self.note(numbers)
