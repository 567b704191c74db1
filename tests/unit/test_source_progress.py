"""What a stream tells of itself: how far it is behind the inputs, small whatever they are."""

from __future__ import annotations

import json

import pytest

from spark_upsert.options.read import QueryOptions
from spark_upsert.scheduler.governor import Governor
from spark_upsert.streams.inputs.inputs import NamedInputs
from spark_upsert.streams.planner.poller import InputHeads, PollBounds, PollSchedule
from spark_upsert.streams.planner.stream import NAMED_MAX, POSITIONS_MAX, Stream, report
from tests.support.clocked import Now
from tests.support.inputs import Told
from tests.support.streams import Lived


def test_a_report_tells_what_a_batch_leaves_behind_and_since_when_it_waits() -> None:
    lived = Lived()
    lived.write(dict.fromkeys(range(50), 0))
    snapshot = lived.query(maxRowsPerTrigger=10)
    snapshot.plan()
    assert snapshot.stream.report()["lag"]["versions"] == 1
    lived.write({1: 2}, {1: 3}, {1: 4})
    query = lived.query(startingVersion="earliest", maxEpochsPerTrigger=1)
    for left in (3, 2, 1, 0):
        query.plan()
        report = query.stream.report()
        assert (report["inputs"], report["dirty"]) == (1, int(left > 0))
        assert report["lag"]["most"] == ({"": left} if left else {})
        assert report["lag"]["versions"] == left
        since = {"": lived.table.log.commit(5 - left).timestamp_ms} if left else {}
        assert report["lag"]["since_ms"] == since
        query.deliver()
    assert not query.plan()
    assert query.stream.report()["dirty"] == 0


def test_a_report_counts_the_versions_of_a_batch_that_waits_for_more_rows() -> None:
    lived = Lived()
    lived.write({1: 1})
    query = lived.query(startingVersion="earliest", minRowsPerTrigger=100)
    query.plan()
    query.deliver()
    lived.write({1: 2}, {1: 3})
    assert not query.plan()
    assert query.stream.report()["lag"]["versions"] == 2


def test_who_waits_is_counted_by_band() -> None:
    inputs = {name: Told(name, [1] * 3) for name in ("high", "low", "none", "served")}
    priorities = {"high": 800, "low": -1000, "served": 1000}
    wall = Now()
    stream = Stream(
        NamedInputs(inputs),
        QueryOptions(rows_max=1, parallelism=1, priority_by_input=priorities),
        clock=Now(0.0),
        wall=wall,
    )
    start = stream.latest(stream.initial())  # Where each begins is noted.
    assert stream.report()["waiting"] == {"B4": 2, "B1": 1, "B0": 1}
    wall.advance(10.0)
    stream.latest(start)  # The one without a priority is served, as it has waited longest.
    assert stream.report()["waiting"] == {"B4": 2, "B1": 2}
    everything = stream.latest(start, everything=True)
    assert stream.report()["waiting"] == {}
    assert stream.latest(everything) is everything


def test_the_newest_epoch_is_told_with_what_became_of_its_rows() -> None:
    lived = Lived()
    lived.write({1: 1, 2: 1}, {1: None, 3: 1})
    query = lived.query(startingVersion="earliest")
    query.plan()
    assert query.stream.report()["newest"] == {
        "": {"deletes": 1, "inserts": 1, "rows": 2, "version": 2}
    }
    query.deliver()
    lived.table.compact()
    lived.write({1: 5})
    query.plan()
    told = query.stream.report()["newest"][""]
    assert (told["rows"], told["inserts"]) == (1, 1)
    assert told["version"] == lived.table.log.head().version


def test_of_many_inputs_few_are_named() -> None:
    count = 4_000
    inputs = {f"{number:05}" * 60: Told(str(number), [1] * (number % 7)) for number in range(count)}
    stream = Stream(
        NamedInputs(inputs),
        QueryOptions(epochs_max=1, parallelism=1),
        heads=InputHeads(NamedInputs(inputs), clock=Now(0.0)),
        clock=Now(0.0),
        wall=Now(),
    )
    stream.latest(stream.initial())
    report = stream.report()
    assert report["inputs"] == count
    assert report["dirty"] > count // 2
    assert len(report["lag"]["most"]) == NAMED_MAX
    assert "positions" not in report
    assert len(json.dumps(report)) < 2_000


@pytest.mark.parametrize("count", [POSITIONS_MAX, POSITIONS_MAX + 1])
def test_the_ends_of_few_inputs_are_told(count: int) -> None:
    inputs = {f"t{number}": Told(f"t{number}", [1] * number) for number in range(count)}
    heads = {name: each.head() for name, each in inputs.items()}
    told = report(
        NamedInputs(inputs), heads, None, schedule=None, governor=Governor(target_ms=1000)
    )
    assert ("positions" in told) == (count <= POSITIONS_MAX)
    assert told["inputs"] == count


def test_discovery_tells_what_it_asked() -> None:
    schedule = PollSchedule(PollBounds(most_s=30.0))
    schedule.add_all(["a"], 0.0)
    schedule.take_due(40.0, 1)
    schedule.record_poll("a", 40.0, has_moved=False, requests=2)
    told = report(NamedInputs({}), {}, None, schedule=schedule, governor=Governor(target_ms=1000))
    assert told["discovery"] == {"looks": 1, "requests": 2, "rest_ms": 30_000}
    assert json.loads(json.dumps(told)) == told
