"""The cases of incremental views: what each step gives, over real tables."""

from __future__ import annotations

from typing import Any

import pytest

from spark_upsert.errors import PlanError
from spark_upsert.views.relation import changes_of
from spark_upsert.views.view import TableEpoch, bind, net_step, sort_epochs, steps
from tests.support.view_cases import Case, Changed, between
from tests.support.view_plays import World, canonical, changes, plan_of
from tests.support.view_tables import RealWorld

ALGEBRA = [*between(1, 28), *between(42, 43)]
WORLDS = {"dictionaries": World, "tables": RealWorld}


def shown(given: Any) -> list[str]:
    """Return changes as texts that are equal where the engine finds the rows equal."""
    pairs = [(each.old, each.new) if isinstance(each, Changed) else each for each in given]
    return sorted(f"{canonical(old)} > {canonical(new)}" for old, new in pairs)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("case", ALGEBRA, ids=lambda case: case.id)
@pytest.mark.sweep(20)
def test_a_case_gives_what_it_says(case: Case, world: str) -> None:
    tables = WORLDS[world]()
    relation = bind(plan_of(case.plan), tables.open)
    places = list(dict.fromkeys(relation.paths))
    at = dict.fromkeys(places, 0)
    for number, (epochs, expected) in enumerate(zip(case.batches, case.given, strict=True)):
        moved = [
            TableEpoch(
                100 * number + (place if epoch.time is None else epoch.time),
                places.index(epoch.table),
                tables.apply(epoch),
                epoch.table,
            )
            for place, epoch in enumerate(epochs)
        ]
        take = net_step if case.mode == "net" else steps
        found = take(at, sort_epochs(moved), {})
        given = [shown(changes(changes_of(relation, each.step))) for each in found]
        assert given == [shown(each) for each in expected]
        at = dict(found[-1].step.after)


@pytest.mark.parametrize("case", between(44, 47), ids=lambda case: case.id)
def test_a_plan_is_refused(case: Case) -> None:
    with pytest.raises(PlanError, match=case.refused):
        bind(plan_of(case.plan), World().open)
