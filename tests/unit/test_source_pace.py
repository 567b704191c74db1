"""How far a batch goes: limits of rows, bytes and epochs, alone and together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pytest

from spark_upsert.source.input import Backlog, Piece
from spark_upsert.source.pace import Limits, pace
from spark_upsert.source.position import Position

Size = tuple[int, int, int]
"""Rows, bytes and epochs."""


def at(place: int) -> Position:
    return Position.of({"at": place})


def epochs(*sizes: Size, beyond: int = 100) -> Backlog:
    """Return a backlog of pieces of one step each; the end lies further than one batch reaches."""

    def pieces() -> Iterator[Piece]:
        for index, (rows, size, count) in enumerate(sizes, start=1):
            after = partial(lambda place, _: at(place), index)
            yield Piece(steps=1, rows=rows, bytes=size, epochs=count, after=after)

    return Backlog(
        start=at(0), pieces=pieces(), reach=lambda: at(len(sizes)), end=lambda: at(beyond)
    )


def divisible(*, steps: int, rows: int, size: int) -> Backlog:
    piece = Piece(steps=steps, rows=rows, bytes=size, after=at)
    return Backlog(start=at(0), pieces=[piece], reach=lambda: at(steps), end=lambda: at(999))


def reached(backlog: Backlog, limits: Limits | None) -> int:
    place = pace({"": backlog}, limits, {}).positions[""].record["at"]
    assert isinstance(place, int)
    return place


NO_EPOCH: Size = (0, 0, 0)
"""A version that is no epoch: a compaction."""


@pytest.mark.parametrize(
    ("limits", "sizes", "expected"),
    [
        pytest.param(Limits(rows=5), [(2, 9, 1), (3, 9, 1), (1, 9, 1)], 2, id="rows, exactly"),
        pytest.param(Limits(rows=4), [(2, 9, 1), (3, 9, 1), (1, 9, 1)], 1, id="rows, not a part"),
        pytest.param(Limits(rows=1), [(7, 9, 1), (1, 9, 1)], 1, id="the first is larger"),
        pytest.param(Limits(bytes=18), [(1, 9, 1)] * 5, 2, id="bytes"),
        pytest.param(Limits(epochs=3), [(1, 9, 1)] * 5, 3, id="epochs"),
        pytest.param(Limits(rows=4, epochs=3, bytes=18), [(1, 9, 1)] * 5, 2, id="the least, bytes"),
        pytest.param(
            Limits(rows=4, epochs=1, bytes=18), [(1, 9, 1)] * 5, 1, id="the least, epochs"
        ),
        pytest.param(Limits(rows=3, epochs=9, bytes=99), [(1, 9, 1)] * 5, 3, id="the least, rows"),
        pytest.param(
            Limits(epochs=1), [(1, 9, 1), NO_EPOCH, NO_EPOCH, (1, 9, 1)], 3, id="compactions behind"
        ),
        pytest.param(Limits(rows=1), [NO_EPOCH, (7, 9, 1), (1, 9, 1)], 2, id="compactions before"),
        pytest.param(Limits(rows=1), [(0, 0, 1), (7, 9, 1)], 1, id="an empty epoch before"),
        pytest.param(Limits(rows=1), [], 0, id="nothing"),
    ],
)
def test_a_batch_ends_behind_the_last_epoch_that_fits(
    limits: Limits, sizes: Sequence[Size], expected: int
) -> None:
    assert reached(epochs(*sizes), limits) == expected


def test_without_limits_a_batch_reaches_as_far_as_one_can() -> None:
    assert reached(epochs((10**9, 10**9, 1)), Limits()) == 1


def test_without_limits_no_piece_is_looked_at() -> None:
    looked_at = []

    def pieces() -> Iterator[Piece]:
        looked_at.append(1)
        yield Piece(steps=1, after=at)

    backlog = Backlog(start=at(0), pieces=pieces(), reach=lambda: at(1), end=lambda: at(2))
    assert reached(backlog, Limits()) == 1
    assert reached(backlog, None) == 2
    assert looked_at == [], "10 000 epochs would be read one by one"


def test_all_there_is_is_taken_whatever_is_larger() -> None:
    assert reached(epochs((10**9, 10**9, 1)), None) == 100
    assert reached(divisible(steps=64, rows=64, size=640), None) == 999


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param(Limits(rows=16), 16, id="a step a row"),
        pytest.param(Limits(bytes=50), 5, id="bytes"),
        pytest.param(Limits(rows=16, bytes=50), 5, id="the least"),
        pytest.param(Limits(rows=64), 64, id="all of it"),
        pytest.param(Limits(bytes=1), 1, id="one step at least"),
        pytest.param(Limits(epochs=1), 64, id="what is no epoch is not limited by their number"),
    ],
)
def test_what_is_divisible_is_cut_behind_a_step(limits: Limits, expected: int) -> None:
    assert reached(divisible(steps=64, rows=64, size=640), limits) == expected


def test_a_limit_counts_for_all_inputs_together_and_the_state_is_handed_on() -> None:
    backlogs = {name: epochs(*[(1, 9, 1)] * 3) for name in ("east", "west")}
    offset = pace(backlogs, Limits(rows=4), {"turn": "east"})
    assert {name: p.record["at"] for name, p in offset.positions.items()} == {"east": 3, "west": 1}
    assert offset.state == {"turn": "east"}
