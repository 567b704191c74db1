"""How far a batch goes: limits of rows, bytes and epochs, alone and together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from spark_upsert.errors import OptionError
from spark_upsert.scheduler.scheduler import Urgency
from spark_upsert.streams.inputs.protocol import Backlog, ReadPiece
from spark_upsert.streams.offsets.offset import Offset, Position
from spark_upsert.streams.planner.rate_limit import Limits, pace

Size = tuple[int, int, int]
"""Rows, bytes and epochs."""


def at(place: int) -> Position:
    return Position.of({"at": place})


def epochs(*sizes: Size, taken: int = 0, beyond: int = 100) -> Backlog:
    """Return a backlog of pieces of one step each; the end lies further than one batch reaches."""

    def pieces() -> Iterator[ReadPiece]:
        for index, (rows, size, count) in enumerate(sizes[taken:], start=taken + 1):
            after = partial(lambda place, _: at(place), index)
            yield ReadPiece(steps=1, rows=rows, bytes=size, epochs=count, after=after)

    return Backlog(
        start=at(taken), pieces=pieces(), reach=lambda: at(len(sizes)), end=lambda: at(beyond)
    )


def divisible(*, steps: int, rows: int, size: int) -> Backlog:
    piece = ReadPiece(steps=steps, rows=rows, bytes=size, after=at)
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

    def pieces() -> Iterator[ReadPiece]:
        looked_at.append(1)
        yield ReadPiece(steps=1, after=at)

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


# -- several inputs -----------------------------------------------------------------------


def waiting_in(state: Mapping[str, Any]) -> list[str]:
    """Return who waits behind a batch, in order."""
    found = state.get("schedule", {"dirty": []})["dirty"]
    return [name for _, *names in found for name in names]


EMPTY_EPOCH: Size = (0, 0, 1)
SMALL: Size = (1, 9, 1)
LARGE: Size = (9, 9, 1)


@pytest.mark.parametrize(
    ("limits", "ahead", "turn", "expected", "waiting"),
    [
        pytest.param(
            Limits(rows=4), {"a": [SMALL] * 3, "b": [SMALL] * 3}, None, "a2 b2", "a b", id="shares"
        ),
        pytest.param(
            Limits(rows=5), {"a": [SMALL] * 9, "b": [SMALL]}, None, "a4 b1", "a", id="what is left"
        ),
        pytest.param(
            Limits(rows=2),
            {"a": [SMALL], "b": [SMALL], "c": [SMALL]},
            None,
            "a1 b1 c0",
            "c",
            id="the next begins with who was not served",
        ),
        pytest.param(
            Limits(rows=2),
            {"a": [SMALL], "b": [SMALL], "c": [SMALL]},
            "c",
            "a1 b0 c1",
            "b",
            id="it begins with whose turn it is",
        ),
        pytest.param(
            Limits(rows=2),
            {"a": [SMALL], "b": [SMALL], "c": [SMALL]},
            "bb",
            "a1 b0 c1",
            "b",
            id="whose turn it was is gone",
        ),
        pytest.param(
            Limits(rows=4),
            {"a": [SMALL], "b": [LARGE], "c": [SMALL] * 2},
            None,
            "a1 b0 c2",
            "b",
            id="who does not fit is next, and does not hold up the others",
        ),
        pytest.param(
            Limits(rows=4),
            {"a": [SMALL], "b": [LARGE], "c": [SMALL] * 2},
            "b",
            "a0 b1 c0",
            "c a",
            id="an epoch that is too large is a batch of its own",
        ),
        pytest.param(
            Limits(epochs=2), {"a": [EMPTY_EPOCH] * 3, "b": [SMALL]}, "b", "a1 b1", "a", id="epochs"
        ),
        pytest.param(
            Limits(rows=9), {"a": [SMALL], "b": [SMALL]}, "b", "a1 b1", "", id="all of it fits"
        ),
        pytest.param(Limits(rows=9), {"a": [], "b": []}, None, "a0 b0", "", id="nothing"),
        pytest.param(
            Limits(rows=1), {"": [SMALL] * 3}, None, "1", "", id="one input without a name"
        ),
    ],
)
def test_inputs_are_served_in_turn(
    limits: Limits,
    ahead: dict[str, list[Size]],
    turn: str | None,
    expected: str,
    waiting: str,
) -> None:
    backlogs = {name: epochs(*sizes) for name, sizes in ahead.items()}
    offset = pace(backlogs, limits, {} if turn is None else {"turn": turn})
    places = {name: position.record["at"] for name, position in offset.positions.items()}
    assert " ".join(f"{name}{place}" for name, place in sorted(places.items())) == expected
    assert " ".join(waiting_in(offset.state)) == waiting


def test_a_snapshot_is_no_larger_for_being_taken_in_small_shares() -> None:
    backlogs = {
        "a": divisible(steps=1 << 16, rows=100, size=0),
        "b": divisible(steps=1 << 16, rows=100_000, size=0),
    }
    offset = pace(backlogs, Limits(rows=50), {})
    rows = {
        name: offset.positions[name].record["at"] * size >> 16
        for name, size in (("a", 100), ("b", 100_000))
    }
    assert 49 <= sum(rows.values()) <= 50
    assert min(rows.values()) >= 24


def test_what_else_the_state_holds_is_handed_on() -> None:
    backlogs = {name: epochs(SMALL, SMALL) for name in ("a", "b")}
    state = pace(backlogs, Limits(rows=1), {"other": 1, "turn": "b"}, now_ms=7).state
    assert state == {
        "other": 1,
        "schedule": {"band": 1, "credit": 0, "dirty": [[7, "a", "b"]]},
    }
    assert pace(backlogs, Limits(), state).state == {"other": 1}
    assert pace(backlogs, None, state).state == {"other": 1}
    assert pace({"a": epochs(), "b": epochs()}, Limits(rows=1), state).state == {"other": 1}


# -- priorities -----------------------------------------------------------------------------


def urgencies(**manuals: int) -> dict[str, Urgency]:
    return {name: Urgency(manual=value) for name, value in manuals.items()}


def places_in(offset: Offset) -> str:
    places = {name: position.record["at"] for name, position in offset.positions.items()}
    return " ".join(f"{name}{place}" for name, place in sorted(places.items()))


@pytest.mark.parametrize(
    ("rows", "manuals", "ahead", "expected"),
    [
        pytest.param(9, {"b": 800}, "a9 b9", "a1 b8", id="a share is by weight"),
        pytest.param(6, {"b": 300, "c": 500}, "a9 b9 c9", "a1 b2 c3", id="three shares"),
        pytest.param(9, {"b": 800}, "a9 b2", "a7 b2", id="what one leaves the other takes"),
        pytest.param(1, {"b": 800}, "a9 b9", "a0 b1", id="the highest comes first"),
        pytest.param(1, {"a": -1}, "a9 b9", "a0 b1", id="the lowest comes last"),
        pytest.param(2, {"a": -1}, "a9 b9 c9", "a1 b1 c0", id="each band has its turn"),
        pytest.param(3, {"b": 0}, "a9 b9 c9", "a1 b1 c1", id="none is as good as 0"),
    ],
)
def test_who_is_more_urgent_gets_more(
    rows: int, manuals: dict[str, int], ahead: str, expected: str
) -> None:
    backlogs = {each[0]: epochs(*[SMALL] * int(each[1:])) for each in ahead.split()}
    offset = pace(backlogs, Limits(rows=rows), {}, urgencies=urgencies(**manuals))
    assert places_in(offset) == expected


def test_who_waits_grows_more_urgent() -> None:
    taken: dict[str, int] = {"a": 0, "b": 0}
    state: Mapping[str, Any] = {}
    order = []
    for now_ms in range(0, 9_000, 1_000):
        backlogs = {name: epochs(*[SMALL] * 99, taken=place) for name, place in taken.items()}
        offset = pace(backlogs, Limits(rows=1), state, now_ms=now_ms, urgencies=urgencies(a=800))
        reached = {name: each.record["at"] for name, each in offset.positions.items()}
        [served] = [name for name in taken if reached[name] > taken[name]]
        order.append(served)
        taken, state = reached, offset.state
    # At 7.5 s it stands before the other in the highest band.
    assert "".join(order) == "aaaaaaaab"


def test_a_deferred_input_waits_and_the_others_take_its_part() -> None:
    backlogs = {name: epochs(*[SMALL] * 9) for name in "ab"}
    least = urgencies(b=-1)
    deferred = pace(backlogs, Limits(rows=4), {}, urgencies=least, defers_lowest=True)
    assert (places_in(deferred), waiting_in(deferred.state)) == ("a4 b0", ["b", "a"])
    alone = pace({"b": epochs(SMALL)}, Limits(rows=4), {}, urgencies=least, defers_lowest=True)
    assert places_in(alone) == "b0"


@pytest.mark.parametrize(
    "record",
    [
        pytest.param({}, id="empty"),
        pytest.param([], id="a list"),
        pytest.param({"band": 1, "credit": 0, "dirty": [[0, "a"], [1, "a"]]}, id="one twice"),
        pytest.param({"band": 1, "credit": 0, "dirty": [[1, "a"], [0, "b"]]}, id="not in order"),
        pytest.param({"band": 1, "credit": 0, "dirty": [["a"]]}, id="no time"),
        pytest.param({"band": 1, "credit": 0, "dirty": [[]]}, id="nothing in a group"),
        pytest.param({"band": 1, "credit": 0, "dirty": [[0, 7]]}, id="no name"),
        pytest.param({"band": 5, "credit": 0, "dirty": []}, id="no such band"),
        pytest.param({"band": 1, "credit": 2, "dirty": []}, id="too much credit"),
        pytest.param({"band": True, "credit": 0, "dirty": []}, id="a truth value"),
    ],
)
def test_a_state_that_was_altered_is_told(record: Any) -> None:
    with pytest.raises(OptionError, match="no offset of this source"):
        pace({"a": epochs(SMALL)}, Limits(rows=1), {"schedule": record})
