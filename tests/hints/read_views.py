"""Hints of views that are read."""

from __future__ import annotations

from spark_upsert.options.inputs import InputOptions
from spark_upsert.streams.inputs.view import ViewKind
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan
from tests.hints.hint import Told, follows
from tests.hints.reads import Query, batch, lake


def view_of(*paths: str) -> dict[str, str]:
    first, *others = (Plan.of_table(path) for path in paths)
    for number, other in enumerate(others):
        first = first.join(other.select("id", **{f"n{number}": "n"}), on="id")
    return {"plan": first.to_json()}


@follows("streams.inputs.view:require_bounds")
def _(told: Told) -> None:
    paths = lake(told.folder, "east", "west", indexBy="")
    both = view_of(*paths.values())
    with told:
        batch({**both, "versionAsOf": "0"})
    told("use 'timestampAsOf'")
    now_ms = max(Table.open(path).log.commit(0).timestamp_ms for path in paths.values())
    assert len(batch({**both, "timestampAsOf": str(now_ms)})) == 1
    told("or pin one by at_version()")
    pinned = Plan.of_table(paths["west"]).at_version(0).select("id", n2="n")
    plan = Plan.of_table(paths["east"]).join(pinned, on="id")
    assert len(batch({"plan": plan.to_json(), "versionAsOf": "0"})) == 1


@follows("streams.inputs.view:ViewPosition.unpacked")
def _(told: Told) -> None:
    path = lake(told.folder, "table")["table"]
    query = Query()
    query.run({"path": path})
    with told:
        query.run(view_of(path))
    told("give the query a new checkpointLocation")
    assert Query().run(view_of(path))


@follows("streams.inputs.view:ViewPosition.unpacked:2")
def _(told: Told) -> None:
    path = lake(told.folder, "table")["table"]
    query = Query()
    query.run(view_of(path))
    other = {"plan": Plan.of_table(path).filter("n > 0").to_json()}
    with told:
        query.run(other)
    told("run the plan that it was begun with")
    query.run(view_of(path))
    told("give the query a new checkpointLocation")
    assert Query().run(other)


@follows("streams.inputs.view:ViewKind.describe")
def _(told: Told) -> None:
    path = lake(told.folder, "table")["table"]
    with told:
        ViewKind().describe(InputOptions(name="v", format="view", own=view_of(path)))
    told("join within one plan")
    assert len(batch(view_of(path))) == 1
