"""Offsets that somebody has altered: whatever stands in a field, what is raised says what to do."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import Scope
from spark_upsert.errors import OptionError, UpsertFlowError
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.streams.inputs.inputs import NamedInputs
from spark_upsert.streams.inputs.protocol import Input
from spark_upsert.streams.inputs.table import TableInput
from spark_upsert.streams.planner.ordered import STATE, OrderProgress
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.streams.reads.columns import read_columns
from spark_upsert.table.table import Table
from tests.support.alterations import Record, alterations
from tests.support.clocked import Now
from tests.support.fuzz import FUZZ_TIMES
from tests.support.model import Command
from tests.support.notebooks import few_are_many, offsets_over
from tests.support.stores import MemoryStore
from tests.support.streams import Query, options_of, read
from tests.support.tables import append, make_table, schema_of

COLUMNS = pa.schema({"k": pa.int64(), "v": pa.int64()})

ORDERS = {
    "ready first": {},
    "round robin": {"merge": "roundrobin"},
    "seeded": {"interleaveSeed": "7"},
    "concat": {"merge": "concat"},
}


@dataclass
class World:
    """Two tables whose epochs have three rows."""

    order: str
    is_compact: bool = False
    stores: dict[str, MemoryStore] = field(
        default_factory=lambda: {"t": MemoryStore(), "f": MemoryStore()}
    )
    bases: MemoryStore = field(default_factory=MemoryStore)

    def __post_init__(self) -> None:
        for store in self.stores.values():
            make_table(store, schema_of(Scope.ARRIVAL))
            for first in range(0, 12, 3):
                append(Table(store), [Command(first + each, 1) for each in range(3)])

    def start(self) -> Stream:
        """Return the stream as a process finds it that has seen nothing."""
        given = {"inputs": "t,f", "maxRowsPerTrigger": "2", **ORDERS[self.order]}
        options = options_of(startingVersion="earliest", readChangeFeed="false")
        tables = {name: Table(store) for name, store in self.stores.items()}
        inputs: dict[str, Input] = {
            name: TableInput(options, read_columns(table.log, options), table=table)
            for name, table in tables.items()
        }
        return Stream(
            NamedInputs(inputs),
            ReadPlan.parse(given).query,
            columns=COLUMNS,
            offsets=offsets_over(self.bases) if self.is_compact else None,
            clock=Now(),
        )


@cache
def noted(order: str, *, is_compact: bool = False) -> tuple[World, list[Record]]:
    """Return a world, and the offsets of a query that has read it to the end."""
    world = World(order, is_compact)
    query = Query(world.start)
    query.drain()
    assert sum(map(len, query.batches)) == 24
    return world, [json.loads(text) for text in query.noted]


def failures(world: World, start: Record, end: Record, altered_ones: Any) -> list[str]:
    """Return what is raised that is not ours, or does not say what to do."""
    found = []
    for what, record in altered_ones:
        for who, act in (
            ("planning from there", lambda s, r=record: s.latest(r)),
            ("a batch up to there", lambda s, r=record: read(s, start, r)),
            ("a batch from there", lambda s, r=record: read(s, r, end)),
            ("a commit", lambda s, r=record: s.commit(r)),
        ):
            try:
                act(world.start())
            except UpsertFlowError as error:
                if not error.hint:
                    found.append(f"{who}, {what}: no hint in {error}")
            except Exception as error:  # noqa: BLE001
                found.append(f"{who}, {what}: {error!r}")
    return found


CASES = [
    *(pytest.param(order, False, id=order) for order in ORDERS),
    *(pytest.param(order, True, id=f"{order}, compact") for order in ("ready first", "seeded")),
]

AT_RANDOM = 20 * FUZZ_TIMES
"""Of some thousand alterations: each of them is a few looks at a table."""


@pytest.mark.parametrize(("order", "is_compact"), CASES)
@pytest.mark.sweep(2)
def test_an_altered_offset_is_another_one_or_an_error_with_a_hint(
    order: str, is_compact: bool
) -> None:
    with few_are_many(inputs=1):
        world, offsets = noted(order, is_compact=is_compact)
        before, altered_one, behind = offsets[2:5]
        some = random.Random(order).sample(list(alterations(altered_one)), AT_RANDOM)
        assert failures(world, before, behind, some) == []


def built_or_refused(build: Callable[[], Any]) -> Any:
    """Return what is built; None if it is refused, with a hint that names the checkpoint."""
    try:
        return build()
    except OptionError as error:
        hint = error.hint
    assert "checkpoint" in hint
    return None


@pytest.mark.parametrize("order", ["round robin", "seeded", "concat"])
def test_whatever_stands_in_the_state_of_an_order_is_a_state_or_refused(order: str) -> None:
    _, offsets = noted(order)
    for _, record in alterations(offsets[3]["state"][STATE]):
        found = built_or_refused(partial(OrderProgress.from_json, record))
        if found is not None:
            assert OrderProgress.from_json(found.to_json()) == found
            assert all(found.partial_step_end(name) for name in found.skip)


def cut_in_an_epoch() -> tuple[World, Record, Record]:
    """Return a world, and the offsets of a batch that ends within an epoch of `f`."""
    world, offsets = noted("round robin")
    cut = next(n for n, each in enumerate(offsets) if n and "f" in each["state"][STATE]["skip"])
    return world, offsets[cut - 1], offsets[cut]


def changed(offset: Record, **state: Any) -> Record:
    """Return an offset with another state of its order."""
    return {**offset, "state": {STATE: {**offset["state"][STATE], **state}}}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"skip": {"f": 9}}, "input 'f': .* 9 rows of a step are delivered"),
        ({"ahead": {}}, "no state of an exact order"),
        ({"names": ["t", "t"]}, "no state of an exact order"),
        ({"names": []}, "no state of an exact order"),
        ({"rows": 0}, "no state of an exact order"),
        ({"given": {"t": 2**63 - 1}}, "no state of an exact order"),
    ],
    ids=str,
)
def test_a_wrong_state_says_what_is_wrong_with_it(state: dict[str, Any], message: str) -> None:
    world, _, offset = cut_in_an_epoch()
    with pytest.raises(OptionError, match=message) as caught:
        world.start().latest(changed(offset, **state))
    assert "new checkpointLocation" in caught.value.hint


def test_a_step_that_is_begun_ends_at_the_next_bound_of_steps() -> None:
    world, _, offset = cut_in_an_epoch()
    ahead = offset["state"][STATE]["ahead"]
    last = noted("round robin")[1][-1]["positions"]["t"]
    record = changed(offset, ahead={**ahead, "t": last}, skip={"t": 1})
    with pytest.raises(OptionError, match=r"input 't': .* one step of the input is begun, and"):
        world.start().latest(record)


def test_an_order_of_more_inputs_than_have_positions_is_refused() -> None:
    world, before, offset = cut_in_an_epoch()
    with pytest.raises(OptionError, match="exact order of \\['t', 'f', 'x'\\], and positions of"):
        read(world.start(), before, changed(offset, names=["t", "f", "x"]))


def test_a_batch_that_gives_other_rows_than_its_order_names_the_input() -> None:
    world, offsets = noted("round robin")
    # Whose turn it is was t's, and by what each gave, f had two rows in a row.
    record = changed(offsets[1], given={"f": 2})
    with pytest.raises(OptionError, match="input 't' gives 0 rows") as caught:
        read(world.start(), offsets[0], record)
    assert "new checkpointLocation" in caught.value.hint
