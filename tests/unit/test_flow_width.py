"""Another width of a region: what becomes of it, and when it is refused."""

from __future__ import annotations

import pytest

from spark_upsert.errors import WidthError
from spark_upsert.flow import Flow, Graph, Parallel, expanded
from spark_upsert.flow.fusion import Influence
from spark_upsert.flow.rescale import (
    WIDTH_MAX,
    change_of,
    changed_width,
    require_widths_kept,
    widths_kept,
)
from tests.support.flows import SAME, SINK, SOURCE, nested, one_region


def keeping_state(width: int = 2, *, other: int = 3) -> Graph:
    """Return ``Src -> [A]xother -> [B, which keeps state]xwidth -> Snk``."""
    flow = Flow()
    rows = flow.source("Src", SOURCE)
    rows = flow.operator("A", SAME, rows, parallel=Parallel(width=other))
    with flow.parallel("R", width, partition_by=["k"]):
        rows = flow.operator("B", SAME, rows, keeps_state=True)
    flow.sink("Snk", SINK, rows)
    return flow.graph()


@pytest.mark.parametrize("influence", [Influence.CHANNEL_ISOLATION, Influence.NONE])
def test_case_54_a_wider_region_has_one_more_channel(influence: Influence) -> None:
    graph = one_region()
    wider = changed_width(graph, "R", 3, influence=influence)
    before, after = expanded(graph), expanded(wider)
    assert change_of(before, after).added == ("R.A[2]", "R.B[2]")
    [splitter] = after.splitters
    assert splitter.width == 3
    assert splitter.targets == ("R.A[0]", "R.A[1]", "R.A[2]")
    assert changed_width(wider, "R", 2) == graph


def test_only_the_neighbours_of_the_region_start_again() -> None:
    graph = one_region()
    change = change_of(expanded(graph), expanded(changed_width(graph, "R", 1)))
    assert change.removed == ("R.A[1]", "R.B[1]")
    assert change.restarted == ("Src", "Snk")


def test_case_55_channels_that_are_kept_apart_keep_their_number() -> None:
    with pytest.raises(WidthError, match="channelExlocation"):
        changed_width(one_region(), "R", 3, influence=Influence.CHANNEL_EXLOCATION)


@pytest.mark.parametrize("pattern", ["R", "*"])
def test_case_56_what_keeps_state_keeps_its_width(pattern: str) -> None:
    with pytest.raises(WidthError, match=r"'R\.B' keeps state") as caught:
        changed_width(keeping_state(), pattern, 3)
    assert caught.value.fields["operator"] == "R.B"


def test_a_region_beside_what_keeps_state_gets_another_width() -> None:
    assert changed_width(keeping_state(), "A", 5) == keeping_state(other=5)


@pytest.mark.parametrize("width", [0, -1, 2**31, True, 1.5])
def test_case_57_a_width_is_a_number_of_32_bits(width: int) -> None:
    with pytest.raises(WidthError, match=rf"from 1 to {WIDTH_MAX}, found"):
        changed_width(one_region(), "R", width)


@pytest.mark.parametrize(
    ("pattern", "widths"),
    [
        ("outer", {"outer": 5, "outer.inner": 2}),
        ("outer.inner", {"outer": 2, "outer.inner": 5}),
        ("*", {"outer": 5, "outer.inner": 5}),
        ("*.inner", {"outer": 2, "outer.inner": 5}),
        ("out?r", {"outer": 5, "outer.inner": 2}),
    ],
)
def test_a_pattern_names_regions(pattern: str, widths: dict[str, int]) -> None:
    graph = changed_width(nested(), pattern, 5)
    assert {name: region.parallel.width for name, region in graph.regions.items()} == widths


def test_a_region_that_is_not_there_is_named_with_the_nearest() -> None:
    with pytest.raises(WidthError, match="Did you mean 'outer'"):
        changed_width(nested(), "outr", 3)


def test_state_goes_on_at_its_width_whatever_others_do() -> None:
    kept = widths_kept(keeping_state())
    assert kept == {"R.B": {"R": 2}}
    require_widths_kept(keeping_state(other=7), kept)


def test_state_does_not_go_on_at_another_width_or_in_another_region() -> None:
    kept = widths_kept(keeping_state())
    with pytest.raises(WidthError, match="width 2 of 'R', now it is to run with width 4 of 'R'"):
        require_widths_kept(keeping_state(4), kept)
    flow = Flow()
    with flow.composite("R"):
        rows = flow.operator("B", SAME, flow.source("Src", SOURCE), keeps_state=True)
    flow.sink("Snk", SINK, rows)
    with pytest.raises(WidthError, match="now it is to run with no region"):
        require_widths_kept(flow.graph(), kept)
