"""Hints of exact orders: what has none, and what an order was begun with."""

from __future__ import annotations

import json

from spark_upsert.options.inputs import ReadPlan
from spark_upsert.streams.planner.formats import plan_columns, stream_inputs
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.streams.reads.ordered import steps_of
from tests.hints.hint import Told, follows
from tests.hints.options import changed
from tests.hints.reads import (
    CHANGES,
    TURNS,
    Alter,
    Query,
    batch,
    inputs_of,
    lake,
    replayed,
    state,
    stream,
)
from tests.hints.tables import write


@follows("streams.planner.ordered:_require_mode")
@follows("streams.planner.ordered:of_exact_order")
def _(told: Told) -> None:
    paths = lake(told.folder, "east", "west")
    query = Query()
    exact = inputs_of(paths, merge="concat")
    query.run(exact, batches_max=1)
    before = query.checkpoint
    other = {"merge": "roundrobin"} if "_require_mode" in told.site.name else {"merge": None}
    with told:
        query.run(changed(exact, other))
    told("give 'merge' and 'interleaveSeed' as they were")
    query.checkpoint = before
    query.run(exact)
    told("a new checkpointLocation")
    assert len(Query().run(changed(exact, other))) == 2


@follows("streams.planner.ordered:_not_exact")
def _(told: Told) -> None:
    paths = lake(told.folder, "east", "west")
    query = Query()
    live = inputs_of(paths)
    query.run(live)
    exact = {**live, "interleaveSeed": "7"}
    with told:
        query.run(exact)
    told("leave out 'merge' and 'interleaveSeed'")
    query.run(live)
    told("give the query a new checkpointLocation")
    assert len(Query().run(exact)) == 2


@follows("streams.planner.ordered:_require_order_of")
def _(told: Told) -> None:
    paths = lake(told.folder, "east", "west")
    query = Query()
    exact = inputs_of(paths, merge="roundrobin")
    query.run({**exact, "maxRowsPerTrigger": "1"}, batches_max=1)
    other = {**exact, "inputs": "west,east"}
    with told:
        query.run(other)
    told("give 'inputs' in that order: east,west")
    assert len(query.run({**exact, "inputs": "east,west"})) == 1
    told("give the query a new checkpointLocation")
    assert len(Query().run(other)) == 2


@follows("streams.planner.formats:require_same_reads")
def _(told: Told) -> None:
    paths = lake(told.folder, "east", "west")
    query = Query()
    exact = inputs_of(paths, merge="concat", readChangeFeed="true")
    query.run({**exact, "maxRowsPerTrigger": "1"}, batches_max=1)
    with told:
        query.run({**exact, "emitUnchanged": "true"})
    told("give 'deduplicationMode' as it was")
    assert len(query.run({**exact, "deduplicationMode": "dropCarryovers"})) == 1
    told("give the query a new checkpointLocation")
    assert len(Query().run({**exact, "emitUnchanged": "true"})) == 2


@follows("streams.planner.formats:require_same_beginning")
def _(told: Told) -> None:
    paths = lake(told.folder, "east", "west")
    exact = inputs_of(paths, merge="concat")
    query = Query()
    query.run(exact)
    assert query.checkpoint is not None
    altered = json.loads(query.checkpoint)
    altered["state"]["began"] = {"east": 3}
    plan = ReadPlan.parse(exact)
    columns = plan_columns(plan)
    stream = Stream(stream_inputs(plan, columns), plan.query, columns=columns)
    with told:
        stream.splits(stream.initial(), altered)
    told("give the query a new checkpointLocation")
    assert len(Query().run(exact)) == 2


@follows("streams.planner.formats:require_same_beginning:2")
def _(told: Told) -> None:
    given = {"path": lake(told.folder, "east")["east"]}
    query = Query()
    planned = query.planned(given)
    later = {**given, "startingVersion": "0"}
    with told:
        query.replay(later, *planned)
    told("give 'startingVersion' as it was, at least until that batch is delivered")
    assert len(query.replay(given, *planned)) == 1
    query.checkpoint = json.dumps(planned[1])
    query.run(later)
    told("give the query a new checkpointLocation")
    assert len(Query().run(later)) == 1


@follows("streams.planner.ordered:ExactOrder._standing")
def _(told: Told) -> None:
    paths = lake(told.folder, "east", "west")
    query = Query()
    exact = inputs_of(paths, merge="concat")
    query.run(exact, batches_max=1)
    counted = {**exact, "mergeColumns": "_merge_seq"}
    with told:
        query.run(counted)
    told("drop '_merge_seq'")
    query.run(exact)
    told("give the query a new checkpointLocation")
    assert [row["_merge_seq"] for row in Query().run(counted)] == [0, 1]


EXACT = {"merge": "concat"}

for _wrong, _quoted in (
    ({"deduplicationMode": "netChanges", **CHANGES}, "use another mode"),
    ({"failOnDataLoss": "false", **CHANGES}, "drop it"),
):

    def of_exact(wrong: dict[str, str], quoted: str) -> None:
        option = next(iter(wrong))
        site = (
            "streams.inputs.table:TableSteps.__init__"
            if "dedup" in option
            else "streams.reads.ordered:refuse_gaps"
        )

        @follows(site)
        def _(told: Told) -> None:
            given = inputs_of(lake(told.folder, "east"), **EXACT, **wrong)
            with told:
                stream(given)
            told(quoted)
            stream(changed(given, {option: None}))
            told("leave out 'merge' and 'interleaveSeed'")
            stream(changed(given, {"merge": None}))

    of_exact(_wrong, _quoted)


def altered(site: str, alter: Alter) -> None:
    """Follow the hint about an exact order whose checkpoint was altered within a step."""

    @follows(site)
    def _(told: Told) -> None:
        rows = {"id": [1, 2, 3], "n": [1, 2, 3], "v": ["a", "b", "c"]}
        for name in ("east", "west"):
            write(told.folder, rows, name)
        paths = {name: str(told.folder / name) for name in ("east", "west")}
        given = inputs_of(paths, merge="roundrobin", maxRowsPerTrigger="3")
        query = Query()
        query.run(given, batches_max=1)
        offset = json.loads(query.checkpoint or "")
        alter(offset)
        query.checkpoint = json.dumps(offset)
        with told:
            query.run(given)
        told("give the query a new checkpointLocation")
        assert len(Query().run(given)) == 6


altered("streams.planner.ordered:OrderProgress.from_json", lambda o: state(o).update(rows=-1))
altered(
    "streams.planner.ordered:_Front.count", lambda o: state(o).update(skip={"east": 9, "west": 9})
)
altered("streams.planner.ordered:_finished", lambda o: state(o).update(ahead=dict(o["positions"])))

replayed(
    "streams.planner.ordered:ExactOrder.passages", lambda o: o["positions"].pop("west"), **TURNS
)


@follows("streams.inputs.inputs:RemovedInput.steps")
def _(told: Told) -> None:
    paths = lake(told.folder, "east", "west")
    given = inputs_of(paths, **TURNS)
    query = Query()
    start, end = query.planned(given)
    fewer = inputs_of({"east": paths["east"]}, **TURNS, allowInputRemoval="true")
    with told:
        query.replay(fewer, start, end)
    told("name it again until that batch is done")
    assert len(query.replay(given, start, end)) == 2
    query.checkpoint = json.dumps(end)
    told("and remove it then")
    assert query.run(fewer) == []


@follows("streams.reads.ordered:without_order")
def _(told: Told) -> None:
    path = lake(told.folder, "east")["east"]
    with told:
        steps_of("east", object())
    told("leave out 'merge' and 'interleaveSeed' to take what is ready first")
    assert len(batch(inputs_of({"east": path}))) == 1
