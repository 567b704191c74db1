"""What a stream in an exact order promises, on seeded random inputs, limits and restarts.

Plain functions of a seed, as those of `test_promises`, and for the same reason. The orders
themselves are promised in `test_merge_promises`; here it is what a checkpoint keeps of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count

import pytest

from spark_upsert.core.input_order import Order
from spark_upsert.errors import DataLossError, OptionError
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.options.read import QueryOptions
from spark_upsert.streams.inputs.inputs import NamedInputs
from spark_upsert.streams.planner.stream import Stream
from tests.support.clocked import Now
from tests.support.inputs import Told, told
from tests.support.merging import picks_of
from tests.support.seeds import seeds
from tests.support.streams import Query

SEEDS = seeds(3)

HISTORIES = 12
"""So many of each order."""

BATCHES_MAX = 250
"""A round has fewer rows."""

Inputs = dict[str, Told]


def exact(dice: random.Random) -> Iterator[dict[str, str]]:
    for _ in range(HISTORIES):
        yield {"merge": "concat"}
        yield {"merge": "roundrobin"}
        yield {"interleaveSeed": str(dice.getrandbits(64))}


def asked(given: Mapping[str, str], **more: str) -> QueryOptions:
    return ReadPlan.parse({"inputs": "a", **given, **more}).query


def drawn_inputs(dice: random.Random) -> Inputs:
    return told({name: drawn_epochs(dice) for name in "abcd"[: dice.randint(2, 4)]})


def drawn_epochs(dice: random.Random) -> list[int]:
    return [dice.choice([0, 1, 2, 5]) for _ in range(dice.randint(0, 4))]


def over(inputs: Inputs, given: Mapping[str, str], dice: random.Random) -> Callable[[], Stream]:
    """Return what makes a stream anew, each time under another limit."""

    def start() -> Stream:
        limits = dice.choice([{}, {"maxRowsPerTrigger": str(dice.randint(1, 6))}])
        query = asked(given, mergeColumns="_merge_seq", **limits)
        return Stream(NamedInputs(inputs), query, clock=Now())

    return start


def drain(query: Query) -> None:
    """Read until there is nothing more; each step of it is that of a new process."""
    for _ in range(BATCHES_MAX):
        if not query.plan():
            return
        query.restart()
        deliver(query)
        query.restart()
    raise AssertionError(f"{BATCHES_MAX} batches, and no end")


def deliver(query: Query) -> None:
    """Read the batch that was planned: its order asks for the rows that it has, and no other."""
    try:
        query.deliver()
    except ValueError as error:
        raise AssertionError("a task has another order than was planned") from error


def named(query: Query) -> list[str]:
    return [row["row"] for batch in query.batches for row in batch]


def told_row_by_row(rounds: list[list[list[int]]], order: Order) -> list[str]:
    """Return the rows of inputs that grow, round after round, each of which is read to its end."""
    numbers = [count(1) for _ in rounds[0]]
    rows: list[str] = []
    for grown in rounds:
        picks, order = picks_of(order, [sum(epochs) for epochs in grown], None)
        rows += [f"{'abcd'[pick]}{next(numbers[pick])}" for pick in picks]
    return rows


@SEEDS
def test_p4_a_stream_has_the_order_told_row_by_row_wherever_it_stops(seed: int) -> None:
    dice = random.Random(seed)
    for given in exact(dice):
        inputs = drawn_inputs(dice)
        query = Query(over(inputs, given, dice))
        rounds = [[[*each.epochs] for each in inputs.values()]]
        drain(query)
        for _ in range(2):
            rounds.append([drawn_epochs(dice) for _ in inputs])
            for each, epochs in zip(inputs.values(), rounds[-1], strict=True):
                each.epochs += epochs
            drain(query)
        order = asked(given).order
        assert order is not None
        assert named(query) == told_row_by_row(rounds, order)
        numbers = [row["_merge_seq"] for batch in query.batches for row in batch]
        assert numbers == list(range(len(numbers)))


@SEEDS
def test_p1_a_batch_that_was_planned_repeats_whatever_the_inputs_have_grown_to(seed: int) -> None:
    dice = random.Random(seed)
    for given in exact(dice):
        inputs = drawn_inputs(dice)
        query = Query(over(inputs, given, dice))
        drain(query)
        for each in inputs.values():
            each.epochs += drawn_epochs(dice)
        drain(query)
        query.restart()
        assert [query.replayed(n) for n in range(len(query.batches))] == query.batches


@SEEDS
def test_p5_an_input_that_is_named_no_more_is_no_silent_loss(seed: int) -> None:
    dice = random.Random(seed)
    for given in ({"merge": "roundrobin"}, {"merge": "interleave"}):
        inputs = told({name: [dice.randint(1, 5)] for name in "abc"})
        query = Query(partial(made_of, inputs, given))
        query.drain()
        gone = inputs.pop(dice.choice("abc"))
        query.restart()
        with pytest.raises(OptionError, match=rf"knows inputs \['{gone.name}'\]"):
            query.plan()


@SEEDS
def test_p5_rows_that_an_exact_order_has_counted_do_not_go_with_their_input(seed: int) -> None:
    dice = random.Random(seed)
    inputs = told({name: [dice.randint(1, 5)] for name in "abc"})
    query = Query(lambda: made_of(inputs, {"merge": "roundrobin"}, allowInputRemoval="true"))
    query.plan()
    gone = inputs.pop(dice.choice("abc"))
    query.restart()
    with pytest.raises(DataLossError, match=f"input '{gone.name}': it was removed"):
        query.deliver()


def made_of(inputs: Inputs, given: Mapping[str, str], **more: str) -> Stream:
    query = asked(given, **more)
    return Stream(NamedInputs(inputs, may_lack=query.allow_input_removal), query, clock=Now())


class Moded(Told):
    """An input whose options decide how many rows an epoch has."""

    mode = "none"

    def row_options(self) -> dict[str, str]:
        return {"deduplicationMode": self.mode}


def test_p1_other_options_do_not_pass_rows_by_that_an_exact_order_has_counted() -> None:
    for merge in ("concat", "roundrobin"):
        inputs = {"a": Moded("a", [4]), "b": Moded("b", [4])}
        options = {"inputs": "a,b", "merge": merge, "maxRowsPerTrigger": "1"}
        query = ReadPlan.parse(options).query
        stream = Stream(NamedInputs(inputs), query, clock=Now())
        start = stream.initial()
        end = stream.latest(start)
        inputs["a"].mode = "dropCarryovers"
        for plan in (partial(stream.splits, start, end), partial(stream.latest, end)):
            with pytest.raises(OptionError, match="'deduplicationMode' was"):
                plan()
        there = dict(reversed(inputs.items()))
        inputs["a"].mode = "none"
        with pytest.raises(OptionError, match="in another order"):
            Stream(NamedInputs(there), query, clock=Now()).latest(end)
