"""Laws of streams: offsets have one text, limits choose a longest prefix, replays repeat."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_upsert.core.key_hash import HASH_END
from spark_upsert.streams.inputs.protocol import Backlog, ReadPiece
from spark_upsert.streams.inputs.table import TablePosition
from spark_upsert.streams.offsets.offset import Offset, Position, canonical
from spark_upsert.streams.planner.rate_limit import Limits, plan_limited_batch
from spark_upsert.table.log.manifest import TableVersion
from tests.support.streams import Lived, folded, ordered

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
RECORDS = st.dictionaries(st.text(max_size=3), JSON, max_size=4)
PLACES = st.builds(
    TableVersion, table_id=st.text(max_size=4), version=st.integers(0, 9), token=st.text(max_size=4)
)
TABLE_POSITIONS = st.builds(
    TablePosition,
    origin=st.integers(0, 2**40),
    hash=st.integers(0, HASH_END),
    upper=st.integers(0, 2**40),
    place=st.none() | PLACES,
)


def shuffled(value: Any) -> Any:
    """Return the same JSON value with the keys of all objects in another order."""
    if isinstance(value, dict):
        return {name: shuffled(each) for name, each in reversed(value.items())}
    return [shuffled(each) for each in value] if isinstance(value, list) else value


@given(RECORDS)
def test_a_record_has_one_text_whatever_the_order_of_its_keys(record: dict[str, Any]) -> None:
    position = Position.of(record)
    assert Position.of(shuffled(record)) == position
    assert position.record == record
    assert canonical(position.record) == position.text


@given(RECORDS, RECORDS)
def test_different_records_have_different_texts(one: dict[str, Any], other: dict[str, Any]) -> None:
    is_same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (Position.of(one) == Position.of(other)) == is_same


@given(st.dictionaries(st.text(max_size=4), RECORDS, max_size=4), RECORDS)
def test_an_offset_comes_back_from_sparks_text_as_it_was(
    records: dict[str, Any], state: dict[str, Any]
) -> None:
    positions = {name: Position.of(record) for name, record in records.items()}
    offset = Offset(positions=positions, state=state)
    text = json.dumps(offset.to_json())
    again = Offset.from_json(json.loads(text))
    assert again == offset
    assert json.dumps(again.to_json()) == text
    swapped = Offset(positions=dict(reversed(positions.items())), state=shuffled(state))
    assert json.dumps(swapped.to_json()) == text


@given(TABLE_POSITIONS)
def test_a_position_in_a_table_comes_back_as_it_was(position: TablePosition) -> None:
    again = TablePosition.from_position(position.to_position())
    assert (again, again.place) == (position, position.place)


# -- pace ---------------------------------------------------------------------------------

BOUNDS = st.none() | st.integers(1, 12)
LIMITS = st.builds(Limits, rows=BOUNDS, bytes=BOUNDS, epochs=BOUNDS)
SIZES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 1)), max_size=8)


def at(place: int) -> Position:
    return Position.of({"at": place})


def fits(sizes: Sequence[tuple[int, int, int]], limits: Limits) -> bool:
    """Return whether a batch of these is within its limits."""
    bounds = (limits.rows, limits.bytes, limits.epochs)
    totals = [sum(column) for column in zip(*sizes, strict=True)] or [0, 0, 0]
    return all(most is None or total <= most for most, total in zip(bounds, totals, strict=True))


@given(SIZES, LIMITS)
def test_a_batch_is_the_longest_prefix_that_fits_or_holds_one_epoch_only(
    sizes: list[tuple[int, int, int]], limits: Limits
) -> None:
    pieces = [
        ReadPiece(steps=1, rows=r, bytes=b, epochs=e, after=partial(lambda n, _: at(n), index))
        for index, (r, b, e) in enumerate(sizes, start=1)
    ]
    whole = at(len(sizes))
    backlog = Backlog(start=at(0), pieces=pieces, reach=lambda: whole, end=lambda: whole)
    taken = plan_limited_batch({"": backlog}, limits, {}).positions[""].record["at"]
    prefixes = (sizes[:count] for count in range(len(sizes) + 1))
    allowed = [p for p in prefixes if fits(p, limits) or sum(map(any, p)) <= 1]
    assert taken == max(map(len, allowed))


@given(st.integers(1, 100), st.integers(0, 200), st.integers(0, 200), LIMITS)
def test_of_what_is_divisible_as_many_steps_are_taken_as_fit_and_at_least_one(
    steps: int, rows: int, size: int, limits: Limits
) -> None:
    piece = ReadPiece(steps=steps, rows=rows, bytes=size, after=at)
    whole = at(steps)
    backlog = Backlog(start=at(0), pieces=[piece], reach=lambda: whole, end=lambda: whole)
    taken = plan_limited_batch({"": backlog}, limits, {}).positions[""].record["at"]
    fitting = [
        count
        for count in range(1, steps + 1)
        if (limits.rows is None or rows * count <= limits.rows * steps)
        and (limits.bytes is None or size * count <= limits.bytes * steps)
    ]
    assert taken == max(fitting, default=1)


AHEAD = st.dictionaries(st.sampled_from("abcd"), SIZES, min_size=1, max_size=4)


def backlog_of(sizes: Sequence[tuple[int, int, int]], taken: int) -> Backlog:
    """Return what is left of some epochs."""
    left = range(taken, len(sizes))
    pieces = [
        ReadPiece(steps=1, rows=r, bytes=b, epochs=e, after=partial(lambda n, _: at(n), index + 1))
        for index, (r, b, e) in zip(left, sizes[taken:], strict=True)
    ]
    whole = at(len(sizes))
    return Backlog(start=at(taken), pieces=pieces, reach=lambda: whole, end=lambda: whole)


@given(AHEAD, LIMITS)
def test_of_several_inputs_each_is_served_within_as_many_batches_as_there_are_inputs(
    ahead: dict[str, list[tuple[int, int, int]]], limits: Limits
) -> None:
    taken = dict.fromkeys(ahead, 0)
    waits = dict.fromkeys(ahead, 0)
    state: Any = {}
    for _ in range(100):
        backlogs = {name: backlog_of(sizes, taken[name]) for name, sizes in ahead.items()}
        offset = plan_limited_batch(backlogs, limits, state)
        state = offset.state
        reached = {name: p.record["at"] for name, p in offset.positions.items()}
        batch = [size for name in ahead for size in ahead[name][taken[name] : reached[name]]]
        assert fits(batch, limits) or sum(map(any, batch)) == 1
        if reached == taken:
            break
        for name, sizes in ahead.items():
            is_served = reached[name] > taken[name] or reached[name] == len(sizes)
            waits[name] = 0 if is_served else waits[name] + 1
            assert waits[name] < len(ahead), "it starves"
        taken = reached
    assert taken == {name: len(sizes) for name, sizes in ahead.items()}


# -- streams over a table -----------------------------------------------------------------

EPOCHS = st.lists(
    st.dictionaries(st.integers(0, 8), st.none() | st.integers(0, 2), max_size=4), max_size=5
)
GIVEN = st.fixed_dictionaries(
    {},
    optional={
        "maxRowsPerTrigger": st.integers(1, 6),
        "maxEpochsPerTrigger": st.integers(1, 3),
        "maxBytesPerTrigger": st.integers(1, 5000),
        "splits": st.integers(1, 3),
        "startingVersion": st.just("earliest"),
    },
)


@settings(max_examples=40, deadline=None)
@given(EPOCHS, EPOCHS, GIVEN, GIVEN)
def test_a_stream_folds_to_the_table_and_any_batch_repeats(
    first: list[dict[int, int | None]],
    later: list[dict[int, int | None]],
    given: dict[str, Any],
    others: dict[str, Any],
) -> None:
    lived = Lived()
    lived.write(*first)
    query = lived.query(**given)
    query.plan()
    lived.write(*later)
    query.drain()
    assert folded(query.rows) == lived.rows
    lived.write({1: 99})
    lived.table.compact(full=True)
    # Where a stream begins is no option of pace: a checkpoint belongs to it.
    start = {name: each for name, each in given.items() if name == "startingVersion"}
    others = {name: each for name, each in others.items() if name != "startingVersion"}
    again = lived.query(**start, **others)
    again.noted = query.noted
    for number, rows in enumerate(query.batches):
        assert ordered(again.replayed(number)) == ordered(rows)
