"""Hundreds of seeded worlds, and proof that the simulation itself is what it claims to be."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from unittest.mock import patch

import pytest

from spark_upsert.core.merge_engines import Engine
from spark_upsert.core.schema import ErrorPolicy, Scope, Ties
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.state.reduce import EMPTY, Counters
from spark_upsert.table.write import write_set
from tests.planted import BUGS
from tests.simulation.world import RETENTIONS, World, simulate

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "240"))
"""The long form lives more of them: `make chaos`."""

SLICES = 20


LOOKED_AT = range(60)
"""Worlds of which the trace is asked for again."""


def simulate_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        simulate(seed)


def worlds_from(first: int, count: int) -> Iterable[int]:
    """Return so many worlds, beginning with one of which it is known what happens there."""
    return (*range(first, count), *range(first))


@cache
def life(seed: int) -> tuple[tuple[str, ...], Counters]:
    """Return the trace of a world and the sum of its counters."""
    world = simulate(seed)
    return tuple(world.trace), world.observer.totals


@pytest.mark.parametrize("index", range(SLICES))
@pytest.mark.sweep(3)
def test_every_world_keeps_every_promise(index: int) -> None:
    for seed in range(index * SEEDS // SLICES, (index + 1) * SEEDS // SLICES):
        life(seed) if seed in LOOKED_AT else simulate(seed)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
@pytest.mark.sweep(1)
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    assert tuple(simulate(seed).trace) == life(seed)[0]


def test_worlds_are_of_every_kind() -> None:
    worlds = [World(seed) for seed in range(200)]
    for scope in Scope:
        assert any(world.schema.scope is scope for world in worlds)
    for engine in Engine:
        assert any(world.schema.engine.kind is engine for world in worlds)
    for policy in ErrorPolicy:
        assert any(world.schema.on_error is policy for world in worlds)
    for retention in RETENTIONS:
        assert any(world.retention == retention for world in worlds)
    kinds = {(world.has_prefix, world.is_indexed) for world in worlds}
    assert kinds == {(a, b) for a in (True, False) for b in (True, False)}
    for ties in Ties:
        assert any(world.schema.ties is ties for world in worlds)
    assert any(world.has_ties and not world.ties_stay_in_tasks for world in worlds)


@pytest.mark.slow
def test_worlds_differ_and_much_happens_in_them() -> None:
    traces, totals = zip(*map(life, LOOKED_AT), strict=True)
    assert len(set(traces)) == len(traces)
    text = "\n".join(line for trace in traces for line in trace)
    for event in (
        "KilledError BEFORE",
        "KilledError AFTER",
        "BrokenError AFTER",
        "met BrokenError",
        "compactor merged 1",
        "sweeper merged 1",
        "overwrite",
        "alter",
        "expired to",
        "time passes",
        "restored",
        "source.2 is through",
        "found durable",
        "follower has",
        "historian has step",
        "ager expired 1 rows",
        "mends late rows",
        "is stopped",
        "is refused: OPTION",
        "is refused: SCHEMA",
        "ties=fail",
        "ties=last",
        "onError=quarantine",
        "sequenceScope=",
        "tombstoneRetention=",
        "maxBacklogEpochs=",
        "indexBy=",
    ):
        assert event in text, f"no world saw '{event}'"
    happened = asdict(sum(totals, EMPTY))
    del happened["skipped"]  # Of envelopes, which no world has.
    assert all(happened.values()), f"something never happened: {happened}"


def test_a_table_that_forgets_its_transactions_is_caught() -> None:
    with (
        patch.object(Manifest, "has", lambda *_: False),
        pytest.raises(AssertionError, match="P1: a transaction came twice"),
    ):
        simulate_all(worlds_from(17, 200))


def test_a_seal_that_does_not_look_at_other_writers_is_caught() -> None:
    with (
        patch.object(write_set.WriteSet, "_contested", lambda *_: iter(())),
        pytest.raises(AssertionError, match="P5"),
    ):
        simulate_all(range(200))


ONCE_MISSED = {
    "late commands are judged again only if the mark moved": 223,
    "late commands are not judged again at the commit": 105,
    "a file of deletes that newer runs hold is written again and again": 121,
    "the rows of a timestamp are given up before its commit": 47,
    "tied rows of two tasks are decided by their place": 213,
}
"""Bugs that the worlds of one scope and the default retention did not see; a world that does."""

OF_STREAMS = {
    "a replay looks at the head": 2,
    "the pieces of a snapshot overlap": 14,
    "a limit cuts an epoch": 8,
}


OF_LIVES = {"what the first write has fixed is another thing in the next life": 0}

OF_HISTORIES = {
    "a step of a kept history does not look up which rows are open": 19,
    "a step of a kept history begins a version too late": 6,
}

OF_AGES = {"by commits, rows go that were written since": 1}

PLANTED = ONCE_MISSED | OF_STREAMS | OF_LIVES | OF_HISTORIES | OF_AGES


@pytest.mark.parametrize(("name", "first"), PLANTED.items(), ids=str)
@pytest.mark.slow
def test_a_planted_bug_is_caught(name: str, first: int) -> None:
    [planted] = [each for each in BUGS if each.name == name]
    with planted.plant(), pytest.raises(AssertionError, match=r"P\d"):
        simulate_all(worlds_from(first, 700))
