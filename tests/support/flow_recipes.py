"""Random graphs that can run: recipes, the graph of each, and its rows by plain Python.

What a step does to rows does not depend on who gets which of them, or it needs all rows of a key
together, and its region sees to that. So every plan of a recipe, wide or narrow, gives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from random import Random
from typing import TypeAlias

import pyarrow as pa

from spark_upsert.flow import (
    ArrowSource,
    Automatic,
    CollectSink,
    Flow,
    FusedGraph,
    Graph,
    Influence,
    Legacy,
    Manual,
    Parallel,
    Physical,
    PythonFunction,
    Scheme,
    Work,
    expanded,
    fused,
    fusion,
    placement,
)
from spark_upsert.flow import placement as partitions
from spark_upsert.flow.builder import Output
from spark_upsert.flow.local import collect
from spark_upsert.task import (
    Aggregate,
    ArrowScan,
    Filter,
    Group,
    HashJoin,
    JoinKeys,
    JoinType,
    Node,
)
from tests.support.flow_runs import (
    ROWS,
    Rows,
    by_stages,
    evens,
    plus_one,
    rows_of,
    sorted_rows,
)

SCAN = ArrowScan(id="input", schema=ROWS)

ANYWHERE: dict[str, Work] = {
    "plus": PythonFunction(plus_one, ROWS),
    "evens": PythonFunction(evens, ROWS),
    "some": Filter(id="some", input=SCAN, where="v % 3 <> 1"),
}
"""Work that gives the same whoever gets which rows."""

PER_KEY: dict[str, Work] = {
    "sums": Group(id="sums", input=SCAN, keys=("k",), aggregates=(Aggregate.of("v", "sum", "v"),)),
}
"""Work that needs all rows of a key together."""

KNOWN = HashJoin(
    id="known",
    left=ArrowScan(id="left", schema=ROWS),
    right=ArrowScan(id="right", schema=ROWS),
    how=JoinType.SEMI,
    on=JoinKeys.pairs(("k",), ("k",)),
)
"""The left rows whose key the right ones have: needs both of a key together, or all right ones."""

WORKS: dict[str, Work] = {**ANYWHERE, **PER_KEY, "known": KNOWN}


@dataclass(frozen=True)
class Step:
    """An operator, what feeds it, and the regions around it."""

    work: str
    feeds: tuple[int, ...]
    """Steps, or -1 and -2 for the sources. What two give merges; in a join they are its ports."""
    width: int
    """0: it is in no region."""
    inner: int
    """The width of a region within that one; 0: there is none."""
    is_by_key: bool
    """Whether rows come to channels by their keys, else in turn, and to a join's right port all."""
    then: str | None = None
    """What follows in the same channel."""


@dataclass(frozen=True)
class Recipe:
    """A graph."""

    steps: tuple[Step, ...]
    source_width: int = 0
    """How many replicas a source has; 0: it is in no region."""
    is_one_sink: bool = False
    """Whether all that feeds no step goes to one sink."""

    @property
    def sources(self) -> tuple[int, ...]:
        """Those that feed a step."""
        return tuple(sorted({each for step in self.steps for each in step.feeds if each < 0}))

    @property
    def ends(self) -> dict[str, tuple[int, ...]]:
        """What comes to each sink."""
        fed = {each for step in self.steps for each in step.feeds}
        ends = [index for index in range(len(self.steps)) if index not in fed]
        return {"s": tuple(ends)} if self.is_one_sink else {f"s{end}": (end,) for end in ends}


def drawn(draw: Random, *, steps_max: int = 5) -> Recipe:
    """Draw a recipe."""
    steps = [_step(draw, index) for index in range(draw.randint(1, steps_max))]
    return Recipe(tuple(steps), draw.choice([0, 0, 1, 2, 3]), draw.random() < 0.3)


def _step(draw: Random, index: int) -> Step:
    work = draw.choice(sorted(ANYWHERE) if draw.random() < 0.4 else ["known", "sums"])
    # Mostly the one before, so that regions follow on each other.
    feeds = [draw.choice([max(-2, index - 1), draw.randrange(-2, index)]) for _ in range(2)]
    width = draw.choice([0, 1, 2, 2, 3])
    is_by_key = work in PER_KEY or draw.random() < 0.5
    behind = sorted(ANYWHERE if not is_by_key else {**ANYWHERE, **PER_KEY})
    return Step(
        work,
        tuple(feeds) if work == "known" else tuple(sorted(set(feeds))),
        width,
        draw.choice([0, 0, 1, 2]) if width else 0,
        is_by_key,
        draw.choice([None, None, *behind]),
    )


def rewidened(recipe: Recipe, draw: Random) -> Recipe:
    """Return the recipe with other widths, which change no row."""
    steps = (replace(step, width=draw.randint(1, 3)) for step in recipe.steps)
    return replace(recipe, steps=tuple(steps))


# -- graphs ----------------------------------------------------------------------------------

SOURCES = {-1: "rows", -2: "more"}

SinkOf: TypeAlias = Callable[[str], Work]


def _collected(name: str) -> Work:
    del name
    return CollectSink()


def graph_of(
    recipe: Recipe,
    sources: Mapping[str, Work],
    *,
    is_wide: bool = True,
    sink_of: SinkOf = _collected,
    ahead: Node | None = None,
) -> Graph:
    """Return the graph of a recipe.

    Parameters
    ----------
    sources : mapping of str to Work
        What the sources are, by their names (`SOURCES`).
    is_wide : bool
        Whether there are regions; else each operator is there once.
    sink_of : callable
        What a sink is, by its name.
    ahead : Node, optional
        A plan through which rows go before each sink.
    """
    flow = Flow()
    parallel = Parallel(width=recipe.source_width) if recipe.source_width and is_wide else None
    given = {
        source: flow.source(SOURCES[source], sources[SOURCES[source]], parallel=parallel)
        for source in recipe.sources
    }
    for index, step in enumerate(recipe.steps):
        given[index] = _operator(flow, f"o{index}", step, [given[i] for i in step.feeds], is_wide)
    for name, ends in recipe.ends.items():
        outputs = [given[end] for end in ends]
        if ahead is not None:
            outputs = [flow.operator(f"ahead_{name}", ahead, *outputs)]
        flow.sink(name, sink_of(name), *outputs)
    return flow.graph()


def _operator(flow: Flow, name: str, step: Step, inputs: list[Output], is_wide: bool) -> Output:
    if not is_wide or not step.width:
        return _works(flow, name, step, inputs)
    within = "inner." if step.inner else ""
    port = f"{name}.right"
    is_all = step.work == "known" and not step.is_by_key
    by = ["k"] if step.is_by_key else []
    broadcast = [within + port] if is_all else []
    with flow.parallel(f"r{name}", step.width, partition_by=by or None, broadcast=broadcast):
        if not step.inner:
            return _works(flow, name, step, inputs)
        broadcast = [port] if is_all else []
        with flow.parallel("inner", step.inner, partition_by=by or None, broadcast=broadcast):
            return _works(flow, name, step, inputs)


def _works(flow: Flow, name: str, step: Step, inputs: list[Output]) -> Output:
    if step.work == "known":
        left, right = inputs
        ports = {"left": left, "right": right}
        given = flow.operator(name, KNOWN, ports=ports, schema=ROWS)
    else:
        given = flow.operator(name, WORKS[step.work], *inputs, schema=ROWS)
    if step.then is None:
        return given
    return flow.operator(f"{name}_then", WORKS[step.then], given, schema=ROWS)


def plan_of(graph: Graph, draw: Random) -> FusedGraph:
    """Draw a plan of a graph: one of a scheme, or any."""
    physical = expanded(graph)
    influence = draw.choice(list(Influence))
    if draw.random() < 0.3:
        return drawn_plan(physical, draw, influence)
    automatic, manual = Automatic(draw.randint(1, 4)), Manual(draw.randint(1, 6))
    schemes: list[Scheme] = [Legacy(), automatic, manual]
    return fused(physical, draw.choice(schemes), influence)


def drawn_plan(physical: Physical, draw: Random, influence: Influence) -> FusedGraph:
    """Draw any plan that is allowed: PEs of one for each are joined at random."""
    finest = fused(physical, Manual(len(physical.replicas)), influence)
    units = fusion._shared_out(physical, placement.units_of(physical), influence)
    partition, count = tuple(range(units.count)), draw.randint(1, units.count)
    pairs = list(combinations(range(units.count), 2))
    for one, other in draw.sample(pairs, len(pairs)):
        if max(partition) < count:
            break
        into, element = partition[one], partition[other]
        joined = partitions.numbered(into if each == element else each for each in partition)
        if partitions.order_of(joined, units) is not None:
            partition = joined
    order = partitions.order_of(partition, units)
    assert order is not None, "each step was allowed"
    pes = fusion._pes(physical, placement.units_of(physical), partition, order)
    return replace(finest, pes=pes)


# -- the same in plain Python ----------------------------------------------------------------


def model_of(recipe: Recipe, sources: Mapping[str, pa.Table]) -> dict[str, Rows]:
    """Return the rows of each sink, sorted."""
    given = {source: sorted_rows(sources[SOURCES[source]]) for source in recipe.sources}
    for index, step in enumerate(recipe.steps):
        taken = [given[feed] for feed in step.feeds]
        merged = [row for each in taken for row in each]
        rows = _known(*taken) if step.work == "known" else _MODELS[step.work](merged)
        given[index] = rows if step.then is None else _MODELS[step.then](rows)
    return {
        name: sorted(row for end in ends for row in given[end])
        for name, ends in recipe.ends.items()
    }


def _known(left: Rows, right: Rows) -> Rows:
    keys = {k for k, _ in right}
    return [(k, v) for k, v in left if k in keys]


_MODELS: dict[str, Callable[[Rows], Rows]] = {
    "plus": lambda rows: [(k, v + 1) for k, v in rows],
    "evens": lambda rows: [(k, v) for k, v in rows if v % 2 == 0],
    "some": lambda rows: [(k, v) for k, v in rows if v % 3 != 1],
    "sums": lambda rows: [
        (key, sum(v for k, v in rows if k == key)) for key in {k for k, _ in rows}
    ],
}


def check_rows_of_fusions(recipe: Recipe, count: int, draw: Random) -> None:
    """Run a recipe at width 1, and fused in two ways, each in one place and by stages.

    Each way gives the rows of the model. ``count`` is how many rows the first source has.
    """
    rows = {name: rows_of(count + at) for at, name in enumerate(SOURCES.values())}
    sources = {name: ArrowSource(table) for name, table in rows.items()}
    taken = {SOURCES[source]: rows[SOURCES[source]] for source in recipe.sources}
    graph = graph_of(recipe, sources)
    found = [collect(graph_of(recipe, sources, is_wide=False))]
    for plan in (fused(expanded(graph), Legacy()), plan_of(graph, draw)):
        found += [
            collect(plan),
            by_stages(plan, taken),
            by_stages(plan, taken, parts=3, turn=1),
            by_stages(plan, taken, numbered=lambda number: number // 2, is_woken=True),
        ]
    expected = model_of(recipe, rows)
    for each in found:
        assert {sink: sorted_rows(table) for sink, table in each.items()} == expected
