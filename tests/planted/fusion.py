"""Bugs in fusion: who is together, who is apart, who waits for whom, and idle slots."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from spark_upsert.flow import fusion, placement, rescale
from spark_upsert.flow import placement as partitions
from spark_upsert.flow.placement import Separations
from tests.planted.bug import Patch, bug, together, wrapped
from tests.promises import test_fusion_promises as promises

PLACED = promises.test_p4_placement_is_refused_where_no_partition_has_it_and_the_two_names_clash
MANUAL = promises.test_p4_manual_gives_the_number_that_was_asked_for_where_any_partition_has_it
SLOTS = promises.test_p4_automatic_is_allowed_and_leaves_no_slot_idle_that_any_partition_uses
MANY = promises.test_p4_of_many_replicas_no_more_run_side_by_side_than_there_are_slots
KEPT = promises.test_p6_state_goes_on_only_at_its_widths


@bug("a plain id is another one in each channel", PLACED)
def _() -> Patch:
    def by_channel(original: Any, given: Any, on: str, place: Any, channel: Any) -> str:
        return f"{original(given, on, place, channel)}_{channel.index}"

    return wrapped(placement, "_expand_id", by_channel)


@bug("by channel means the innermost region, whatever it is written on", PLACED)
def _() -> Patch:
    def innermost(original: Any, given: Any, on: str, place: Any, channel: Any) -> str:
        found: str = original(given, place.name if place.regions else on, place, channel)
        return found

    return wrapped(placement, "_expand_id", innermost)


@bug("replicas that share their second id are apart", PLACED)
def _() -> Patch:
    def first_only(original: Any, *given: Any) -> Any:
        ids = original(*given)
        return replace(ids, colocate=ids.colocate[:1])

    return wrapped(placement, "_ids", first_only)


@bug("what waits for each other is apart", PLACED)
def _() -> Patch:
    return patch.object(placement, "_components", lambda count, _: ([at] for at in range(count)))


@bug("an isolated replica shares its element", MANUAL)
def _() -> Patch:
    def sociable(original: Any, unit: Any, influence: Any) -> Separations:
        found: Separations = original(replace(unit, is_isolated=False), influence)
        return found

    return wrapped(fusion, "_bounds", sociable)


@bug("exlocated replicas share an element", MANUAL)
def _() -> Patch:
    def together_again(original: Any, unit: Any, influence: Any) -> Separations:
        found: Separations = original(replace(unit, exlocate=frozenset()), influence)
        return found

    return wrapped(fusion, "_bounds", together_again)


@bug("channels mean nothing", MANUAL)
def _() -> Patch:
    return patch.object(fusion, "_channel", lambda replica, influence: {})


@bug("what spans channels shares its element", MANUAL)
def _() -> Patch:
    return wrapped(fusion, "_channels", lambda original, *given: original(*given) or {})


@bug("elements may wait for each other", MANUAL)
def _() -> Patch:
    def any_order(partition: Any, units: Any) -> list[int] | None:
        apart = units.is_unbounded or partitions._are_apart(partition, units)
        return list(range(max(partition) + 1)) if apart else None

    return together(
        patch.object(partitions, "order_of", any_order),
        patch.object(fusion, "order_of", any_order),
    )


@bug("channels share an element while a slot is idle", SLOTS)
def _() -> Patch:
    return wrapped(
        partitions._Joins,
        "join_levels",
        lambda original, self, slots, **how: original(self, max(1, slots // 2), **how),
    )


@bug("each channel of a wide region has an element, whatever slots there are", MANY)
def _() -> Patch:
    return patch.object(partitions._Joins, "join_levels", lambda self, slots, **how: None)


@bug("a manual fusion is done when chains and levels are joined", MANUAL)
def _() -> Patch:
    return patch.object(partitions._Joins, "join_any", lambda self: None)


@bug("only the innermost region of what keeps state keeps its width", KEPT)
def _() -> Patch:
    def innermost(original: Any, graph: Any) -> Any:
        return (replace(place, regions=place.regions[:1]) for place in original(graph))

    return wrapped(rescale, "_stateful_operators", innermost)
