"""Whatever shares an element, a graph gives the rows of its plan of width 1."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_upsert.flow import ArrowSource
from spark_upsert.flow.local import collect
from tests.support.flow_recipes import SOURCES, drawn, graph_of, model_of, plan_of
from tests.support.flow_runs import by_stages, rows_of, sorted_rows


@given(dice=st.randoms(use_true_random=False), count=st.integers(0, 20))
@settings(max_examples=max(1, settings().max_examples // 4), deadline=None)
def test_every_fusion_gives_the_rows_of_width_one(dice: Random, count: int) -> None:
    recipe = drawn(dice)
    rows = {name: rows_of(count + at) for at, name in enumerate(SOURCES.values())}
    sources = {name: ArrowSource(table) for name, table in rows.items()}
    expected = model_of(recipe, rows)
    narrow = collect(graph_of(recipe, sources, is_wide=False))
    plan = plan_of(graph_of(recipe, sources), dice)
    taken = {SOURCES[source]: rows[SOURCES[source]] for source in recipe.sources}
    for found in (
        narrow,
        collect(plan),
        by_stages(plan, taken, parts=3, turn=1),
        by_stages(plan, taken, numbered=lambda number: number // 2, is_woken=True),
    ):
        assert {sink: sorted_rows(table) for sink, table in found.items()} == expected
