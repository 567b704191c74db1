"""Dozens of seeded lakes, and proof that they notice what is broken."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest

from spark_upsert.errors import UpsertFlowError
from spark_upsert.options.query import Merge
from spark_upsert.source import compact_offsets, exact, pace, stream
from spark_upsert.source.bases import Bases
from spark_upsert.source.compact_offsets import CompactOffsets, difference
from spark_upsert.source.found_inputs import FoundInputs
from spark_upsert.source.position import Position
from tests.simulation.lake import Lake, live

LAKES = int(os.environ.get("SIMULATION_LAKES", "72"))
"""The long form lives more of them."""

SLICES = 12

LOOKED_AT = range(72)
"""Lakes of which the trace is looked at."""


@cache
def life(seed: int) -> tuple[str, ...]:
    """Return the trace of a lake."""
    return tuple(live(seed).trace)


@pytest.mark.parametrize("index", range(SLICES))
def test_every_lake_keeps_every_promise(index: int) -> None:
    for seed in range(index * LAKES // SLICES, (index + 1) * LAKES // SLICES):
        life(seed)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    assert tuple(live(seed).trace) == life(seed)


def test_lakes_are_of_every_kind() -> None:
    lakes = [Lake(seed).options for seed in range(200)]
    for merge in Merge:
        for is_found in (False, True):
            assert any(
                each.merge is merge and (each.pattern is not None) is is_found for each in lakes
            )
    asked = [each.of_query() for each in lakes]
    for name in (
        "columns",
        "computeUpdates",
        "consumerId",
        "ignoreDeletes",
        "interleaveSeed",
        "maxBytesPerTrigger",
        "maxEpochsPerTrigger",
        "maxRowsPerTrigger",
        "offsetsPath",
        "splits",
        "startingBoundInclusive",
        "startingTimestamp",
        "startingVersion",
    ):
        assert any(name in each for each in asked), f"no lake says {name}"
    for name in ("deduplicationMode", "failOnDataLoss", "mergeSchema", "readChangeFeed"):
        assert len({each[name] for each in asked}) > 1, f"all lakes say {name} alike"


def test_much_happens_in_lakes() -> None:
    text = "\n".join(line for seed in LOOKED_AT for line in life(seed))
    for event in (
        "dies by KilledError",
        "dies by BrokenError",
        "ends by OptionError",
        "ends by SchemaError",
        "is replayed",
        "is gone",
        "is back",
        "is made anew",
        "is named no more",
        "is named again",
        "is restored",
        "times, late",
        "is expired to",
        "'note'",
        "of csv",
        "of json",
        "of arrow",
        "of parquet",
        "t2 is made",
    ):
        assert event in text, f"no lake saw '{event}'"


# -- planted bugs --------------------------------------------------------------------------


def wrapped(owner: Any, name: str, around: Any) -> AbstractContextManager[Any]:
    original = getattr(owner, name)

    def replacement(*args: Any, **how: Any) -> Any:
        return around(original, *args, **how)

    return patch.object(owner, name, replacement)


def base_behind_the_offset() -> AbstractContextManager[Any]:
    def write(original: Any, self: Bases, stream: str, number: int, positions: Any) -> Any:
        store, self._store = self._store, _Nowhere()  # type: ignore[assignment]
        try:
            return original(self, stream, number, positions)
        finally:
            self._store = store

    return wrapped(Bases, "write", write)


class _Nowhere:
    """A store that keeps nothing."""

    url = "nowhere"

    def prepare(self, folder: str) -> None:
        """Do nothing."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        return True


def delta_without_an_input() -> AbstractContextManager[Any]:
    def leave_out(base: Mapping[str, Position], positions: Mapping[str, Position]) -> Any:
        found = difference(base, positions)
        return dict(sorted(found.items())[1:])

    return patch.object(compact_offsets, "difference", leave_out)


def cursor_in_memory() -> AbstractContextManager[Any]:
    def forget(original: Any, self: Any, *args: Any) -> Any:
        return replace(original(self, *args), order=self._first)

    return wrapped(exact.ExactOrder, "_before", forget)


def turn_forgotten() -> AbstractContextManager[Any]:
    def forget(backlogs: Any, limits: Any, state: Any, **how: Any) -> Any:
        return pace.pace(backlogs, limits, {}, **how)

    return patch.object(stream, "pace", forget)


def found_input_left_out() -> AbstractContextManager[Any]:
    def leave_out(original: Any, self: FoundInputs) -> Any:
        heads = original(self)
        return {name: heads[name] for name in sorted(heads)[:2]}

    return wrapped(FoundInputs, "look", leave_out)


def bases_removed_early() -> AbstractContextManager[Any]:
    def commit(original: Any, self: CompactOffsets, end: Any) -> None:
        if "bases" in end:
            end = {**end, "bases": end["bases"][-1:], "number": end["number"] + 1}
        original(self, end)

    return wrapped(CompactOffsets, "commit", commit)


def is_fair(lake: Lake) -> bool:
    """Return whether inputs have to be served in turn, one at a time."""
    how = lake.options
    return not how.is_exact and how.rows_max == 1 and bool(how.start)


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(base_behind_the_offset, id="a base is not durable before its offset is known"),
        pytest.param(delta_without_an_input, id="a delta omits an input"),
        pytest.param(cursor_in_memory, id="the cursor of an order is not in the offset"),
        pytest.param(turn_forgotten, id="whose turn it is is forgotten"),
        pytest.param(found_input_left_out, id="a table that is found is left out in silence"),
        pytest.param(bases_removed_early, id="a base is removed before its batches are done"),
    ],
)
def test_a_bug_of_streams_over_many_tables_is_caught(plant: Any) -> None:
    seeds: Sequence[int] = range(60)
    if plant is turn_forgotten:
        seeds = [seed for seed in range(400) if is_fair(Lake(seed))]

    def look() -> None:
        for seed in seeds:
            live(seed)

    with plant(), pytest.raises((AssertionError, UpsertFlowError)):
        look()
