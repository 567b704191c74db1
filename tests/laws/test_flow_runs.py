"""Whatever shares an element, a graph gives the rows of its plan of width 1."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_upsert.flow import (
    ArrowSource,
    Automatic,
    Fused,
    Graph,
    Influence,
    Legacy,
    Manual,
    expanded,
    fused,
)
from spark_upsert.flow.local import collect
from tests.support.flow_runs import (
    ANYWHERE,
    PER_KEY,
    Step,
    by_stages,
    graph_of,
    model_of,
    rows_of,
    sorted_rows,
)


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    found: list[Step] = []
    for index in range(draw(st.integers(1, 5))):
        feeds = draw(st.sets(st.integers(-1, index - 1), min_size=1, max_size=2))
        work = draw(st.sampled_from([*ANYWHERE, *PER_KEY]))
        found.append(
            Step(
                work,
                tuple(sorted(feeds)),
                draw(st.integers(1, 3)),
                draw(st.integers(0, 2)),
                work in PER_KEY or draw(st.booleans()),
            )
        )
    return found


def plans(graph: Graph) -> st.SearchStrategy[Fused]:
    physical = expanded(graph)
    schemes = st.one_of(
        st.just(Legacy()), st.just(Automatic(slots=2)), st.integers(1, 6).map(Manual)
    )
    return st.builds(lambda s, i: fused(physical, s, i), schemes, st.sampled_from(Influence))


@given(steps=steps(), count=st.integers(0, 20), data=st.data())
@settings(max_examples=max(1, settings().max_examples // 4), deadline=None)
def test_every_fusion_gives_the_rows_of_width_one(
    steps: list[Step], count: int, data: st.DataObject
) -> None:
    rows = rows_of(count)
    expected = model_of(steps, rows)
    narrow = collect(graph_of(steps, ArrowSource(rows), is_wide=False))
    plan = data.draw(plans(graph_of(steps, ArrowSource(rows), is_wide=True)))
    for found in (narrow, collect(plan), by_stages(plan, {"rows": rows}, parts=3, turn=1)):
        assert {sink: sorted_rows(table) for sink, table in found.items()} == expected
