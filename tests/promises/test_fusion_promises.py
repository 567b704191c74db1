"""What runs together is what a judge allows who tries every partition, and no slot is idle."""

from __future__ import annotations

from random import Random

import pytest

from spark_upsert.errors import PlacementError, WidthError
from spark_upsert.flow import (
    Automatic,
    Flow,
    Graph,
    Influence,
    Legacy,
    Manual,
    Physical,
    changed_width,
    expanded,
    fused,
)
from spark_upsert.flow.rescale import require_widths_kept, widths_kept
from tests.support.flows import SAME, SINK, SOURCE
from tests.support.fusion_judge import (
    Judge,
    drawn_graph,
    partition_of,
    side_by_side,
    wide_graph,
)
from tests.support.seeds import seeds

SEEDS = seeds(8, quick=2)
GRAPHS = 12
"""Of each seed."""

REPLICAS_MAX = 7
"""Of a drawn graph: 877 partitions."""


def drawn(seed: int, *, placed: bool = True) -> list[Physical]:
    """Return some graphs that a judge can try every partition of."""
    random = Random(seed)
    found: list[Physical] = []
    while len(found) < GRAPHS:
        physical = expanded(drawn_graph(random, placed=placed))
        if len(physical.replicas) <= REPLICAS_MAX:
            found.append(physical)
    return found


def consistent(seed: int) -> list[Physical]:
    """Return those of which the placement can be had."""
    return [each for each in drawn(seed) if Judge(each).allowed]


@SEEDS
def test_p4_placement_is_refused_where_no_partition_has_it_and_the_two_names_clash(
    seed: int,
) -> None:
    for physical in drawn(seed):
        judge = Judge(physical)
        try:
            plan = fused(physical, Legacy())
        except PlacementError as error:
            assert not judge.allowed
            one, other = error.fields["one"], error.fields["other"]
            assert judge.apart(one, other)
            together = [{one, other} <= e for p in judge.possible for e in p if one in e]
            assert all(together)
        else:
            assert judge.allowed
            assert partition_of(plan) == frozenset(judge.finest)


@SEEDS
def test_p4_manual_gives_the_number_that_was_asked_for_where_any_partition_has_it(
    seed: int,
) -> None:
    for at, physical in enumerate(consistent(seed)):
        influence = list(Influence)[at % 3]
        allowed = {frozenset(each) for each in Judge(physical, influence).allowed}
        counts = {len(each) for each in allowed}
        for count in range(1, len(physical.replicas) + 2):
            plan = fused(physical, Manual(count), influence)
            assert partition_of(plan) in allowed
            assert len(plan.pes) == min(counts, key=lambda have: abs(have - count))
            missed = [each for each in plan.warnings if "asked for" in each]
            assert bool(missed) == (count not in counts)


@SEEDS
def test_p4_automatic_is_allowed_and_leaves_no_slot_idle_that_any_partition_uses(
    seed: int,
) -> None:
    random = Random(seed)
    for at, physical in enumerate([*consistent(seed), *drawn(seed, placed=False)]):
        influence, slots = list(Influence)[at % 3], random.choice((1, 2, 4))
        allowed = Judge(physical, influence).allowed
        plan = partition_of(fused(physical, Automatic(slots), influence))
        assert plan in {frozenset(each) for each in allowed}
        most = max(side_by_side(physical, each) for each in allowed)
        assert side_by_side(physical, plan) >= min(slots, most)


@SEEDS
def test_p4_of_many_replicas_no_more_run_side_by_side_than_there_are_slots(seed: int) -> None:
    random = Random(seed)
    for _ in range(2):
        physical = expanded(wide_graph(random))
        influence, slots = random.choice(list(Influence)), random.choice((1, 2, 4))
        plan = partition_of(fused(physical, Automatic(slots), influence))
        judge = Judge(physical, influence)
        assert not any(map(judge.clash, plan))
        assert judge.has_order(tuple(plan))
        assert all(map(judge.agrees, plan))
        if influence is Influence.NONE:
            assert side_by_side(physical, plan) == slots


@SEEDS
def test_p4_pes_hold_each_replica_once_and_feed_only_later_ones(seed: int) -> None:
    for physical in consistent(seed):
        for scheme in (Legacy(), Manual(2), Automatic(2)):
            plan = fused(physical, scheme)
            names = [name for pe in plan.pes for name in pe.names]
            assert sorted(names) == sorted(physical.replica)
            assert [pe.index for pe in plan.pes] == list(range(len(plan.pes)))
            assert all(first < second for first, second in plan.streams)


def test_p6_state_goes_on_only_at_its_widths() -> None:
    graph, widths = keeping_state(), {"outer": 2, "outer.inner": 2}
    assert widths_kept(graph) == {"outer.inner.B": widths}
    for region in widths:
        with pytest.raises(WidthError):
            changed_width(graph, region, 3)
        with pytest.raises(WidthError):
            require_widths_kept(graph, {"outer.inner.B": {**widths, region: 3}})


def keeping_state() -> Graph:
    """Return ``Src -> [[B, which keeps state]x2]x2 -> Snk``."""
    flow = Flow()
    rows = flow.source("Src", SOURCE)
    with flow.parallel("outer", 2), flow.parallel("inner", 2):
        rows = flow.operator("B", SAME, rows, keeps_state=True)
    flow.sink("Snk", SINK, rows)
    return flow.graph()
