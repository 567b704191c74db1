"""Which replicas share a processing element: each row of the table of fusions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_upsert.errors import OptionError, PlacementError
from spark_upsert.flow import Flow, Graph, Parallel, Placement, by_channel, by_replica, expanded
from spark_upsert.flow.fusion import Automatic, FusedGraph, Influence, Legacy, Manual, Scheme, fused
from spark_upsert.task import ArrowScan, Filter
from tests.support.flows import SAME, SINK, SOURCE, adjacent_pairs, chain, nested, one_region

INPUT = ArrowScan(id="input", schema=SOURCE.rows.schema)
WITH_CHANNEL = Placement(colocate=(by_channel(),))
WITH_REPLICAS = Placement(colocate=(by_replica(),))
ALONE = Placement(isolate=True)


def together(*ids: str) -> Placement:
    return Placement(colocate=ids)


def apart(*ids: str) -> Placement:
    return Placement(exlocate=ids)


def said(plan: FusedGraph) -> str:
    """Return the PEs in the notation of the cases: ``{Src} {A0,B0}``, without composites."""
    return " ".join(sorted("{" + ",".join(sorted(map(_short, pe.names))) + "}" for pe in plan.pes))


def _short(name: str) -> str:
    return name.rpartition(".")[2].replace("[", "").replace("]", "")


def pes(text: str) -> str:
    """Return PEs in that notation in the order of `said`."""
    return " ".join(
        sorted("{" + ",".join(sorted(each.strip("{}").split(","))) + "}" for each in text.split())
    )


def region_with_all(**placement: Placement) -> Graph:
    """Return ``[Src -> A]x2 -> Snk`` or, with a placement of Snk, ``[Src -> A -> Snk]x2``."""
    flow = Flow()
    with flow.parallel("R", 2, placement=WITH_CHANNEL):
        rows = chain(flow, "A", flow.source("Src", SOURCE))
        if "Snk" in placement:
            flow.sink("Snk", SINK, rows)
    if "Snk" not in placement:
        flow.sink("Snk", SINK, rows)
    return flow.graph()


def no_region(**placement: Placement) -> Graph:
    flow = Flow()
    rows = chain(flow, "A B C", flow.source("Src", SOURCE), **placement)
    flow.sink("Snk", SINK, rows)
    return flow.graph()


def three_widths() -> Graph:
    flow = Flow()
    rows = flow.source("Src", SOURCE)
    for name, width in (("A", 2), ("B", 5), ("C", 4)):
        rows = flow.operator(name, SAME, rows, parallel=Parallel(width=width))
    flow.sink("Snk", SINK, rows)
    return flow.graph()


LEGACY: dict[str, tuple[Graph, str]] = {
    "33: no configs, one per operator": (one_region(), "{Src} {A0} {A1} {B0} {B1} {Snk}"),
    "34: colocated by channel": (
        one_region(A=WITH_CHANNEL, B=WITH_CHANNEL),
        "{Src} {A0,B0} {A1,B1} {Snk}",
    ),
    "34: the same, said of the composite": (
        one_region(R=WITH_CHANNEL),
        "{Src} {A0,B0} {A1,B1} {Snk}",
    ),
    "35: a plain id puts all replicas together": (
        one_region(A=together("AB"), B=together("AB")),
        "{Src} {A0,A1,B0,B1} {Snk}",
    ),
    "35: the same by replica": (one_region(R=WITH_REPLICAS), "{Src} {A0,A1,B0,B1} {Snk}"),
    "36: a plain id of what is outside, too": (
        one_region(Src=together("SrcAB"), R=together("SrcAB")),
        "{Src,A0,A1,B0,B1} {Snk}",
    ),
    "38: adjacent regions, each by channel": (
        adjacent_pairs(R=WITH_CHANNEL, S=WITH_CHANNEL),
        "{Src} {A0,B0} {A1,B1} {C0,D0} {C1,D1} {Snk}",
    ),
    "39: adjacent regions, the first with what is outside": (
        adjacent_pairs(Src=together("x"), R=together("x"), S=WITH_CHANNEL),
        "{Src,A0,A1,B0,B1} {C0,D0} {C1,D1} {Snk}",
    ),
    "40: the source is in the region": (region_with_all(), "{Src0,A0} {Src1,A1} {Snk}"),
    "41: all is in the region": (
        region_with_all(Snk=WITH_CHANNEL),
        "{Src0,A0,Snk0} {Src1,A1,Snk1}",
    ),
    "43: nested, by channel of the inner region": (
        nested(inner=WITH_CHANNEL),
        "{Src} {A0} {A1} {B0,C0} {B1,C1} {B2,C2} {B3,C3} {Snk}",
    ),
    "nested, by channel of the outer region, which is what it is written on": (
        nested(outer=WITH_CHANNEL),
        "{Src} {A0,B0,B1,C0,C1} {A1,B2,B3,C2,C3} {Snk}",
    ),
    "46: ids are joined transitively": (
        no_region(A=together("x"), B=together("x", "y"), C=together("y")),
        "{Src} {A,B,C} {Snk}",
    ),
    "47: exlocated by a plain id, replicas are apart": (
        one_region(A=apart("e")),
        "{Src} {A0} {A1} {B0} {B1} {Snk}",
    ),
    "by channel is the bare name outside of regions": (
        no_region(A=WITH_CHANNEL, B=together("A")),
        "{Src} {A,B} {C} {Snk}",
    ),
}


@pytest.mark.parametrize(("graph", "expected"), LEGACY.values(), ids=LEGACY)
def test_legacy_gives_a_pe_to_each_unit(graph: Graph, expected: str) -> None:
    plan = fused(expanded(graph), Legacy())
    assert said(plan) == pes(expected)
    assert plan.warnings == ()


def test_case_51_each_replica_of_several_regions_has_a_pe() -> None:
    assert len(fused(expanded(three_widths()), Legacy()).pes) == 13


# -- conflicts


CONTRADICTIONS: dict[str, tuple[Any, ...]] = {
    "44: colocated and isolated": (
        no_region(A=Placement(colocate=("x",), isolate=True), B=together("x")),
        ("A", "B"),
        ("colocated by 'x'", "'A' is isolated"),
    ),
    "45: colocated and exlocated": (
        no_region(
            A=Placement(colocate=("x",), exlocate=("y",)),
            B=Placement(colocate=("x",), exlocate=("y",)),
        ),
        ("A", "B"),
        ("colocated by 'x'", "exlocated by 'y'"),
    ),
    "45: colocated through another and exlocated": (
        no_region(
            A=Placement(colocate=("x",), exlocate=("e",)),
            B=together("x", "y"),
            C=Placement(colocate=("y",), exlocate=("e",)),
        ),
        ("A", "C"),
        ("colocated by 'x' and 'y'", "exlocated by 'e'"),
    ),
    "a plain id puts isolated replicas together": (
        one_region(A=Placement(colocate=("x",), isolate=True)),
        ("R.A[0]", "R.A[1]"),
        ("colocated by 'x'", "'R.A' is isolated"),
    ),
    "isolation of a composite is one of each operator": (
        one_region(R=Placement(colocate=(by_channel(),), isolate=True)),
        ("R.A[0]", "R.B[0]"),
        ("colocated by 'R_0'", "'R' is isolated"),
    ),
    "isolated on the way between what is colocated": (
        no_region(A=together("x"), B=ALONE, C=together("x")),
        ("A", "B"),
        ("rows go from what is colocated by 'x' to others and back", "'B' is isolated"),
    ),
    "exlocated on the way between what is colocated": (
        one_region(Src=together("x"), A=apart("e"), Snk=together("x")),
        ("R.A[0]", "R.A[1]"),
        ("rows go from what is colocated by 'x'", "exlocated by 'e'"),
    ),
}


@pytest.mark.parametrize(("graph", "names", "words"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
@pytest.mark.parametrize(
    "scheme", [Legacy(), Manual(2), Automatic(2)], ids=lambda s: type(s).__name__
)
def test_placement_that_contradicts_itself_is_refused_by_both_names_and_reasons(
    graph: Graph, names: tuple[str, str], words: tuple[str, ...], scheme: Scheme
) -> None:
    with pytest.raises(PlacementError) as caught:
        fused(expanded(graph), scheme)
    error = caught.value
    assert {error.fields["one"], error.fields["other"]} == set(names)
    for each in (*(f"'{name}'" for name in names), *words):
        assert each in str(error)


def test_what_lies_between_colocated_operators_shares_their_pe() -> None:
    plan = fused(expanded(no_region(A=together("x"), C=together("x"))), Legacy())
    assert said(plan) == pes("{Src} {A,B,C} {Snk}")
    assert plan.warnings == (
        "A, B, C share a PE: rows go from those of them that are colocated to the others and back.",
    )


def test_units_that_wait_for_each_other_share_a_pe() -> None:
    flow = Flow()
    for name, first, second in (("one", "x", "y"), ("other", "y", "x")):
        rows = flow.source(f"{name}_source", SOURCE)
        rows = flow.operator(f"{name}_a", SAME, rows, placement=together(first))
        flow.sink(f"{name}_b", SINK, rows, placement=together(second))
    plan = fused(expanded(flow.graph()), Legacy())
    assert said(plan) == pes("{one_source} {other_source} {one_a,one_b,other_a,other_b}")


# -- manual


@pytest.mark.parametrize(
    ("graph", "count", "expected", "warning"),
    [
        pytest.param(one_region(), 3, 3, None, id="48: 3 of six units"),
        pytest.param(one_region(), 10, 6, "no more than 6 units", id="49: 10 of six units"),
        pytest.param(one_region(), 1, 1, None, id="all in one"),
        pytest.param(one_region(A=ALONE), 1, 4, "no two more", id="what is isolated has its own"),
        pytest.param(
            one_region(A=apart("e"), B=apart("e")), 1, 4, "no two more", id="four are apart"
        ),
    ],
)
def test_manual_gives_as_many_pes_as_asked_for_where_that_can_be(
    graph: Graph, count: int, expected: int, warning: str | None
) -> None:
    plan = fused(expanded(graph), Manual(count))
    assert len(plan.pes) == expected
    if warning is None:
        assert plan.warnings == ()
    else:
        [text] = plan.warnings
        assert text.startswith(f"{count} PEs were asked for, there are {expected}: ")
        assert warning in text


@pytest.mark.parametrize("make", [Manual, Automatic])
def test_a_scheme_of_no_pes_is_refused(make: Callable[[int], Scheme]) -> None:
    with pytest.raises(OptionError, match="at least 1, found 0"):
        make(0)


# -- automatic


def row_by_row() -> Graph:
    """Return ``Src -> F -> [A]x2 -> G -> Snk``: F looks at one row at a time, G at all rows."""
    flow = Flow()
    rows = flow.source("Src", SOURCE)
    rows = flow.operator("F", Filter(id="f", input=INPUT, where="k > 1"), rows)
    rows = flow.operator("A", SAME, rows, parallel=Parallel(width=2))
    flow.sink("Snk", SINK, chain(flow, "G", rows))
    return flow.graph()


def two_ways() -> Graph:
    """Return ``Src -> A -> Snk`` and ``Src -> B -> Snk``."""
    flow = Flow()
    rows = flow.source("Src", SOURCE)
    ways = [flow.operator(name, SAME, rows) for name in "AB"]
    flow.sink("Snk", SINK, *ways)
    return flow.graph()


AUTOMATIC: dict[str, tuple[Graph, int, str]] = {
    "all in one PE for one slot": (one_region(), 1, "{Src,A0,A1,B0,B1,Snk}"),
    "a PE for each channel": (one_region(), 2, "{Src} {A0,B0} {A1,B1} {Snk}"),
    "slots that stay idle": (one_region(), 9, "{Src} {A0,B0} {A1,B1} {Snk}"),
    "a chain is not cut": (no_region(), 2, "{Src} {A,B,C,Snk}"),
    "two ways side by side": (two_ways(), 2, "{Src} {A} {B} {Snk}"),
    "two ways for one slot": (two_ways(), 1, "{Src,A,B,Snk}"),
    "row by row where the rows are": (row_by_row(), 2, "{Src,F} {A0} {A1} {G,Snk}"),
    "neighbouring channels share a PE where slots are few": (
        nested(),
        2,
        "{Src} {A0} {A1} {B0,B1,C0,C1} {B2,B3,C2,C3} {Snk}",
    ),
    "nested": (nested(), 4, "{Src} {A0} {A1} {B0,C0} {B1,C1} {B2,C2} {B3,C3} {Snk}"),
    "what is exlocated is apart in a chain": (
        no_region(A=apart("e"), C=apart("e")),
        2,
        "{Src} {A,B} {C,Snk}",
    ),
    "colocation wins": (one_region(R=together("x")), 4, "{Src} {A0,A1,B0,B1,Snk}"),
}


@pytest.mark.parametrize(("graph", "slots", "expected"), AUTOMATIC.values(), ids=AUTOMATIC)
def test_automatic_fuses_chains_and_gives_each_slot_a_channel(
    graph: Graph, slots: int, expected: str
) -> None:
    assert said(fused(expanded(graph), Automatic(slots))) == pes(expected)


@pytest.mark.parametrize("slots", [1, 2])
def test_automatic_keeps_channels_apart_where_their_influence_says_so(slots: int) -> None:
    plan = fused(expanded(one_region()), Automatic(slots), Influence.CHANNEL_ISOLATION)
    assert said(plan) == pes("{Src} {A0,B0} {A1,B1} {Snk}")


@pytest.mark.sweep(1)
@pytest.mark.parametrize("width", [1_000])
def test_wide_regions_are_fused_fast(width: int) -> None:
    flow = Flow()
    rows = flow.source("Src", SOURCE)
    with flow.parallel("R", width):
        rows = chain(flow, "A B C", rows)
    flow.sink("Snk", SINK, rows)
    assert len(fused(expanded(flow.graph()), Automatic(8)).pes) == 10


# -- influence


def test_case_52_no_pe_mixes_channels_or_a_channel_with_what_is_outside() -> None:
    plan = fused(expanded(one_region()), Manual(4), Influence.CHANNEL_ISOLATION)
    assert said(plan) == pes("{Src} {A0,B0} {A1,B1} {Snk}")


def test_case_53_channels_are_apart_and_share_with_what_is_outside() -> None:
    plan = fused(expanded(one_region()), Manual(2), Influence.CHANNEL_EXLOCATION)
    assert said(plan) in {
        pes("{Src,A0,B0} {A1,B1,Snk}"),
        pes("{Src,A1,B1} {A0,B0,Snk}"),
    }


@pytest.mark.parametrize("influence", [Influence.CHANNEL_ISOLATION, Influence.CHANNEL_EXLOCATION])
def test_what_spans_channels_by_its_placement_wins_and_has_a_pe_of_its_own(
    influence: Influence,
) -> None:
    plan = fused(expanded(one_region(A=together("x"))), Manual(1), influence)
    assert "{R.A[0], R.A[1]}" in {str(pe) for pe in plan.pes}


def test_what_is_colocated_with_what_is_outside_has_a_pe_of_its_own_under_isolation() -> None:
    graph = one_region(Src=together("R_0"), A=WITH_CHANNEL)
    plan = fused(expanded(graph), Manual(1), Influence.CHANNEL_ISOLATION)
    assert "{Src, R.A[0]}" in {str(pe) for pe in plan.pes}
