"""How far a batch goes: limits of rows, bytes and epochs, alone and together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from spark_upsert.errors import OptionError
from spark_upsert.scheduler.scheduler import Urgency
from spark_upsert.streams.inputs.protocol import Backlog, ReadPiece
from spark_upsert.streams.offsets.offset import Offset, Position
from spark_upsert.streams.planner.rate_limit import Limits, plan_limited_batch

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


def reached(backlog: Backlog, limits: Limits | None) -> int:
    place = plan_limited_batch({"": backlog}, limits, {}).positions[""].record["at"]
    assert isinstance(place, int)
    return place


"""A version that is no epoch: a compaction."""


def test_without_limits_no_piece_is_looked_at() -> None:
    pieces = (pytest.fail("10 000 epochs would be read one by one") for _ in range(1))
    backlog = Backlog(start=at(0), pieces=pieces, reach=lambda: at(1), end=lambda: at(2))
    assert reached(backlog, Limits()) == 1
    assert reached(backlog, None) == 2


def waiting_in(state: Mapping[str, Any]) -> list[str]:
    """Return who waits behind a batch, in order."""
    found = state.get("schedule", {"dirty": []})["dirty"]
    return [name for _, *names in found for name in names]


EMPTY_EPOCH: Size = (0, 0, 1)
SMALL: Size = (1, 9, 1)
LARGE: Size = (9, 9, 1)


SIZES = {"s": SMALL, "L": LARGE, "-": EMPTY_EPOCH}


@pytest.mark.parametrize(
    ("limits", "ahead", "turn", "expected", "waiting"),
    [
        pytest.param(Limits(rows=4), "a:sss b:sss", None, "a2 b2", "a b", id="shares"),
        pytest.param(Limits(rows=5), "a:sssssssss b:s", None, "a4 b1", "a", id="what is left"),
        pytest.param(Limits(rows=2), "a:s b:s c:s", None, "a1 b1 c0", "c", id="who is next"),
        pytest.param(Limits(rows=2), "a:s b:s c:s", "c", "a1 b0 c1", "b", id="whose turn it is"),
        pytest.param(Limits(rows=2), "a:s b:s c:s", "bb", "a1 b0 c1", "b", id="its turn, but gone"),
        pytest.param(
            Limits(rows=4), "a:s b:L c:ss", None, "a1 b0 c2", "b", id="who does not fit is next"
        ),
        pytest.param(
            Limits(rows=4), "a:s b:L c:ss", "b", "a0 b1 c0", "c a", id="too large for others"
        ),
        pytest.param(Limits(epochs=2), "a:--- b:s", "b", "a1 b1", "a", id="epochs"),
        pytest.param(Limits(rows=9), "a:s b:s", "b", "a1 b1", "", id="all of it fits"),
        pytest.param(Limits(rows=9), "a: b:", None, "a0 b0", "", id="nothing"),
        pytest.param(Limits(rows=1), ":sss", None, "1", "", id="one input without a name"),
    ],
)
def test_inputs_are_served_in_turn(
    limits: Limits, ahead: str, turn: str | None, expected: str, waiting: str
) -> None:
    backlogs = {
        name: epochs(*[SIZES[size] for size in sizes])
        for name, _, sizes in (each.partition(":") for each in ahead.split())
    }
    offset = plan_limited_batch(backlogs, limits, {} if turn is None else {"turn": turn})
    assert places_in(offset) == expected
    assert " ".join(waiting_in(offset.state)) == waiting


def test_what_else_the_state_holds_is_handed_on() -> None:
    backlogs = {name: epochs(SMALL, SMALL) for name in ("a", "b")}
    state = plan_limited_batch(backlogs, Limits(rows=1), {"other": 1, "turn": "b"}, now_ms=7).state
    assert state == {"other": 1, "schedule": {"band": 1, "credit": 0, "dirty": [[7, "a", "b"]]}}
    assert plan_limited_batch(backlogs, Limits(), state).state == {"other": 1}
    assert plan_limited_batch(backlogs, None, state).state == {"other": 1}
    assert plan_limited_batch({"a": epochs(), "b": epochs()}, Limits(rows=1), state).state == {
        "other": 1
    }


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
    offset = plan_limited_batch(backlogs, Limits(rows=rows), {}, urgencies=urgencies(**manuals))
    assert places_in(offset) == expected


def test_snapshots_that_share_a_limit_come_to_it_whatever_their_sizes() -> None:
    steps, sizes = 1 << 16, {"a": 100, "b": 100_000}
    backlogs = {
        name: Backlog(
            start=at(0),
            pieces=[ReadPiece(steps=steps, rows=rows, bytes=0, after=at)],
            reach=lambda: at(steps),
            end=lambda: at(steps),
        )
        for name, rows in sizes.items()
    }
    positions = plan_limited_batch(backlogs, Limits(rows=50), {}).positions
    rows = [positions[name].record["at"] * sizes[name] >> 16 for name in sizes]
    assert 49 <= sum(rows) <= 50
    assert min(rows) >= 24


def test_who_waits_grows_more_urgent() -> None:
    places = {"a": 0, "b": 0}
    state: Mapping[str, Any] = {}
    order = ""
    for now_ms in range(0, 9_000, 1_000):
        backlogs = {name: epochs(*[SMALL] * 99, taken=place) for name, place in places.items()}
        offset = plan_limited_batch(
            backlogs, Limits(rows=1), state, now_ms=now_ms, urgencies=urgencies(a=800)
        )
        ends = {name: each.record["at"] for name, each in offset.positions.items()}
        order += "".join(name for name in places if ends[name] > places[name])
        places, state = ends, offset.state
    assert order == "aaaaaaaab", "at 7.5 s b stands before a in the highest band"


def test_a_deferred_input_waits_and_the_others_take_its_part() -> None:
    backlogs = {name: epochs(*[SMALL] * 9) for name in "ab"}
    least = urgencies(b=-1)
    deferred = plan_limited_batch(backlogs, Limits(rows=4), {}, urgencies=least, defers_lowest=True)
    assert (places_in(deferred), waiting_in(deferred.state)) == ("a4 b0", ["b", "a"])
    alone = plan_limited_batch(
        {"b": epochs(SMALL)}, Limits(rows=4), {}, urgencies=least, defers_lowest=True
    )
    assert places_in(alone) == "b0"


@pytest.mark.parametrize(
    "record",
    [
        {},
        [],
        {"band": 1, "credit": 0, "dirty": [[0, "a"], [1, "a"]]},
        {"band": 1, "credit": 0, "dirty": [[1, "a"], [0, "b"]]},
        {"band": 1, "credit": 0, "dirty": [["a"]]},
        {"band": 1, "credit": 0, "dirty": [[]]},
        {"band": 1, "credit": 0, "dirty": [[0, 7]]},
        {"band": 5, "credit": 0, "dirty": []},
        {"band": 1, "credit": 2, "dirty": []},
        {"band": True, "credit": 0, "dirty": []},
    ],
    ids=str,
)
def test_a_state_that_was_altered_is_refused(record: Any) -> None:
    with pytest.raises(OptionError, match="no offset of this source"):
        plan_limited_batch({"a": epochs(SMALL)}, Limits(rows=1), {"schedule": record})
