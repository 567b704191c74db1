"""The merge, told slowly: one row at a time, and numbers of any length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from spark_upsert.core.input_order import Concat, Order, RoundRobin, Seeded, advance

ROWS = pa.schema({"input": pa.string(), "row": pa.int64()})

Row = tuple[str, int]
"""The name of the input that it came from, and its place there, from 1."""


class Generator:
    """WyRand as its source tells it."""

    def __init__(self, state: int) -> None:
        self.state = state
        self.consumed = 0

    def raw(self) -> int:
        self.consumed += 1
        self.state = (self.state + 0x2D358DCCAA6C78A5) % 2**64
        product = self.state * (self.state ^ 0x8BB84B93962EACC9)
        return (product % 2**64) ^ (product >> 64)

    def below(self, bound: int) -> int:
        product = self.raw() * bound
        if product % 2**64 < bound:
            threshold = (2**64 - bound) % bound
            while product % 2**64 < threshold:
                product = self.raw() * bound
        return product >> 64


def picks_of(order: Order, remaining: Sequence[int], limit: int | None) -> tuple[list[int], Order]:
    """Do what `advance` does, row by row."""
    left = list(remaining)
    picks: list[int] = []
    while any(left) and (limit is None or len(picks) < limit):
        ready = [index for index, rows in enumerate(left) if rows]
        match order:
            case Concat():
                pick = ready[0]
            case RoundRobin(cursor=cursor):
                while not left[pick := cursor % len(left)]:
                    cursor = pick + 1
                order = RoundRobin(cursor=(pick + 1) % len(left))
            case Seeded(state=state):
                generator = Generator(state)
                pick = ready[generator.below(len(ready))]
                order = Seeded(state=generator.state)
        left[pick] -= 1
        picks.append(pick)
    return picks, order


def check_picks(order: Order, remaining: Sequence[int], limit: int | None) -> None:
    """Take an order's picks, and the order behind them: both are those that are told row by row."""
    picks, behind = advance(order, remaining, limit)
    assert (picks.tolist(), behind) == picks_of(order, remaining, limit)


def batches_of(name: str, sizes: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield the rows 1, 2, ... of an input, in batches of some sizes."""
    row = 1
    for size in sizes:
        yield pa.record_batch({"input": [name] * size, "row": range(row, row + size)}, schema=ROWS)
        row += size


def rows_in(batches: Iterator[pa.RecordBatch] | Sequence[pa.RecordBatch]) -> list[Row]:
    """Return the rows of some batches, in their order."""
    table = pa.Table.from_batches(batches, ROWS)
    return list(zip(table["input"].to_pylist(), table["row"].to_pylist(), strict=True))
