"""A stream over a table, without Spark: batches, snapshots in pieces, replays, leases, expiry."""

from __future__ import annotations

import json
import logging
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import Scope
from spark_upsert.errors import ContentionError, DataLossError, OptionError, SchemaError
from spark_upsert.options.inputs import UNNAMED
from spark_upsert.store import LocalStore
from spark_upsert.streams.inputs.inputs import NamedInputs
from spark_upsert.streams.inputs.table import TableInput
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.streams.reads.read_split import refuse_own_epochs, splits_of
from spark_upsert.streams.reads.splits import ChangesSplit, RowsSplit
from spark_upsert.table.log.codec import commit_path
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.table import Table
from tests.support.clocked import HOUR_S
from tests.support.leases import before_leases
from tests.support.model import Command
from tests.support.stores import FaultyStore, Steps, forget_runs_and_logs
from tests.support.streams import (
    Lived,
    Query,
    folded,
    options_of,
    ordered,
    read,
    stream_of,
    version_1,
    versions,
)
from tests.support.tables import append, make_table, plan_epoch, rows_at, schema_of


@pytest.fixture
def lived() -> Lived:
    return Lived()


FIVE: tuple[dict[int, int | None], ...] = (
    {1: 1, 2: 1, 3: 1},
    {1: 2},
    {4: 1},
    {},
    dict.fromkeys(range(10), 3),
)


@pytest.mark.parametrize(
    ("start", "first"),
    [
        pytest.param({}, [3], id="the table itself"),
        pytest.param({"startingVersion": 2}, [2, 3], id="a number"),
        pytest.param({"startingVersion": "earliest"}, [1, 2, 3], id="earliest"),
        pytest.param({"startingVersion": "Latest"}, [], id="latest"),
        pytest.param({"startingVersion": 4}, [], id="the next version"),
        pytest.param({"startingTimestamp": None}, [3], id="a time"),
    ],
)
def test_a_stream_begins_where_it_is_told_and_the_replay_of_its_first_batch_too(
    lived: Lived, start: dict[str, Any], first: list[int]
) -> None:
    epochs: list[dict[int, int | None]] = [{1: 1, 2: 2}, {2: 3, 3: 4}, {1: None, 3: 4}]
    for epoch in epochs:
        lived.now.advance(1)
        lived.write(epoch)
    if "startingTimestamp" in start:
        start = {"startingTimestamp": lived.table.log.commit(3).timestamp_ms}
    query = lived.query(**start)
    assert query.plan(), "a stream notes where it begins, rows or none"
    once = query.deliver()
    assert sorted({row["_commit_version"] for row in once}) == first

    lived.write({1: 5, 2: None}, {4: 6})
    lived.table.compact(full=True)
    query.restart()
    assert ordered(query.replayed(0)) == ordered(once)
    query.drain()
    assert sorted({row["_commit_version"] for row in query.rows}) == [*first, 4, 5]


def test_all_that_is_available_is_one_batch_whatever_the_limits_even_within_a_snapshot(
    lived: Lived,
) -> None:
    lived.write(dict.fromkeys(range(40), 0))
    query = lived.query(maxRowsPerTrigger=10, maxBytesPerTrigger=10**9)
    query.plan()
    query.deliver()
    frozen = lived.query()
    frozen.stream.freeze()
    lived.write({1: None, 50: 1}, {50: 2})
    assert query.plan(everything=True)
    query.deliver()
    assert versions(query.batches) == [[1], [1, 2, 3]]
    assert folded(query.rows) == lived.rows
    assert not query.plan(everything=True)
    end = json.loads(query.noted[-1])
    assert frozen.stream.latest(end) == end, "a stream beyond its end does not go back"


def test_an_idle_poll_keeps_the_offset_and_costs_one_look_at_the_end_of_the_log(
    lived: Lived,
) -> None:
    lived.write(*FIVE)
    steps = Steps()
    table = Table(FaultyStore(lived.store, steps), clock=lived.now)
    query = Query(lambda: stream_of(table))
    query.drain()
    start = json.loads(query.noted[-1])
    del steps.names[:]
    assert query.stream.latest(start) is start
    head = lived.table.log.head()
    assert steps.names == [f"read {commit_path(head.upper)}", f"read {commit_path(head.version)}"]
    query.restart()
    assert query.stream.latest(start) is start
    lived.table.restore(2)
    query.drain()
    assert folded(query.rows) == lived.rows
    assert query.stream.report()["positions"][""]["upper"] == lived.table.log.head().upper


@pytest.mark.parametrize(
    ("limits", "pieces"), [({"maxRowsPerTrigger": 30}, 2), ({}, 1)], ids=["limit", "no limit"]
)
def test_a_snapshot_is_never_in_one_batch_with_changes(
    lived: Lived, limits: dict[str, int], pieces: int
) -> None:
    lived.write({key: key for key in range(40)})
    query = lived.query(**limits)
    query.plan()
    query.deliver()
    lived.write({1: 5})
    query.drain()
    assert versions(query.batches) == [[1]] * pieces + [[2]]


def test_splits_are_small_and_a_function_of_the_offsets_alone(lived: Lived) -> None:
    query = lived.query(splits=2)
    query.drain()
    assert query.rows == [], "an empty table is a batch without rows"
    for key in range(30):
        lived.write({key: key})
    lived.table.compact(full=True)
    query = lived.query(splits=2)
    query.drain()
    lived.write(*FIVE)
    query.drain()
    ends = [(json.loads(a), json.loads(b)) for a, b in pairwise(query.noted)]
    planned = [query.stream.splits(*pair) for pair in ends]
    assert max(len(pickle.dumps(work)) for batch in planned for work in batch) < 4_000
    lived.write({77: 7})
    lived.table.compact(full=True)
    query.restart()
    assert [query.stream.splits(*pair) for pair in ends] == planned
    kinds = [[type(split) for work in batch for split in splits_of(work)] for batch in planned]
    assert kinds == [[RowsSplit, RowsSplit], [ChangesSplit, ChangesSplit]]
    assert [query.stream.splits(end, end) for _, end in ends] == [[], []]


def test_a_stream_travels_to_its_tasks_without_what_it_keeps_open(tmp_path: Path) -> None:
    table = make_table(LocalStore(tmp_path), schema_of(Scope.ARRIVAL))
    append(table, [Command(1, 1)])
    stream = stream_of(table, path=str(tmp_path))
    start = stream.initial()
    [split] = stream.splits(start, stream.latest(start))
    [batch] = pickle.loads(pickle.dumps(stream)).read(split)
    assert batch.column("k").to_pylist() == [1]
    assert len(pickle.dumps(stream)) < 3_000


def test_a_snapshot_that_is_half_delivered_is_gone_on_with_in_the_columns_of_a_restart(
    lived: Lived,
) -> None:
    lived.write({key: key for key in range(40)})
    query = lived.query(maxRowsPerTrigger=15)
    query.plan()
    query.deliver()
    schema = lived.table.log.head().schema
    wider = schema.columns.append(pa.field("w", pa.string()))
    lived.table.alter(schema.accept(wider, merge=True))
    query.restart()
    query.drain()
    assert folded(query.rows) == lived.rows
    assert {row["w"] for row in query.batches[1]} == {None}


def test_a_checkpoint_of_version_1_is_replayed_and_keeps_its_text_at_rest(lived: Lived) -> None:
    lived.write({key: key for key in range(60)})
    query = lived.query(maxRowsPerTrigger=20)
    query.drain()
    query.noted = [version_1(text) for text in query.noted]
    query.restart()
    for number, rows in enumerate(query.batches):
        assert ordered(query.replayed(number)) == ordered(rows)
    assert not query.plan(), "another text would be a batch"
    lived.write({1: 7, 2: None})
    query.drain()
    assert folded(query.rows) == lived.rows
    assert "format" not in json.loads(query.noted[-1])


@pytest.mark.parametrize("is_snapshot", [False, True], ids=["changes", "snapshot"])
def test_a_query_that_reads_what_it_writes_is_refused(lived: Lived, is_snapshot: bool) -> None:
    query = lived.query(splits=2)
    if not is_snapshot:
        query.drain()
    transaction = Transaction(writer="query:7f", number=0)
    lived.table.commit(plan_epoch(lived.table, [[[Command(2, 2)]]], transaction=transaction))
    if is_snapshot:
        lived.write({1: 1})
    query.plan()
    works = query.stream.splits(*map(json.loads, query.noted[-2:]))
    assert len(works) == 2
    for work in works:
        refuse_own_epochs(splits_of(work), None)
        refuse_own_epochs(splits_of(work), "another")
        with pytest.raises(OptionError, match="the query reads what it writes") as caught:
            refuse_own_epochs(splits_of(work), "7f")
        assert ("version 2 or one before it is its own" in str(caught.value)) == is_snapshot
        assert "write into another table" in caught.value.hint


def lease_of(lived: Lived) -> int | None:
    held = [lease for lease in lived.table.consumers() if lease.is_live(lived.table.log.now_ms())]
    return held[0].version if held else None


@pytest.mark.parametrize(
    ("start", "expiries", "error"),
    [
        pytest.param({"startingVersion": "2"}, 1, DataLossError, id="a version"),
        pytest.param({}, 1_000, ContentionError, id="expiries that are always faster"),
    ],
)
def test_a_start_that_an_expiry_takes_is_an_error(
    lived: Lived,
    monkeypatch: pytest.MonkeyPatch,
    start: dict[str, str],
    expiries: int,
    error: type[Exception],
) -> None:
    def expire(number: int) -> None:
        lived.write({number: 7}, {50 + number: 7})
        lived.table.compact(full=True)
        lived.expire()

    lived.write(*FIVE[:2])
    before_leases(monkeypatch, expire, times=expiries)
    with pytest.raises(error, match=r"version 2|100 expiries"):
        lived.query(consumerId="sums", **start).plan()


def test_a_lease_follows_what_spark_reports_committed(lived: Lived) -> None:
    lived.write(*FIVE[:2])
    lived.query().drain()
    assert lived.table.consumers() == [], "no consumer, no lease"
    query = lived.query(consumerId="sums")
    query.drain()
    lived.write({5: 5})
    query.plan()
    assert lease_of(lived) == 2, "the end of the batch before"
    query.deliver()
    assert lease_of(lived) == 2, "whether the sink has it is not reported yet"
    query.plan()
    assert lease_of(lived) == 3


def test_a_replay_after_a_restart_takes_the_lease_where_the_batch_begins(lived: Lived) -> None:
    lived.write(*FIVE[:2])
    query = lived.query(consumerId="sums")
    query.drain()
    lived.write({5: 5}, {6: 6})
    query.plan()
    lived.table.release("sums")
    query.restart()
    query.deliver()
    assert lease_of(lived) == 2


def test_a_lease_does_not_go_back_to_versions_that_are_expired_and_changed_no_rows(
    lived: Lived,
) -> None:
    """Spark reports the batch before as done behind the plan of the one that goes on further."""
    lived.write(*FIVE[:2])
    query = lived.query(consumerId="sums")
    query.drain()
    lived.table.compact(full=True)
    lived.table.release("sums")
    assert lived.expire() == 3
    lived.write({5: 5})
    query.restart()
    query.drain()
    assert folded(query.rows) == rows_at(lived.table, lived.table.log.head().version)
    assert lease_of(lived) == lived.table.log.head().version


def test_an_idle_stream_renews_its_lease_a_few_times_before_it_would_lapse(lived: Lived) -> None:
    lived.write(*FIVE)
    query = lived.query(consumerId="sums", consumerTtl="8 hours")
    query.drain()
    writes = [lived.store.objects["_consumers/sums.json"]]
    lived.now.advance(60)
    assert not query.plan()
    assert lived.store.objects["_consumers/sums.json"] == writes[0]
    for _ in range(20):
        lived.now.advance(HOUR_S)
        assert not query.plan()
        assert lease_of(lived) == 5, "it lapsed under a stream that is alive"
        writes.append(lived.store.objects["_consumers/sums.json"])
    assert 6 <= len(set(writes)) <= 20


def test_a_stream_behind_expired_changes_fails_or_warns_and_goes_on_behind_the_gap(
    lived: Lived, caplog: pytest.LogCaptureFixture
) -> None:
    lived.write(*FIVE[:2])
    strict, lenient = lived.query(), lived.query(failOnDataLoss="false")
    for query in (strict, lenient):
        query.drain()
    lived.write({1: 7}, {5: 5}, {6: 6})
    assert lived.expire() == 5
    for _ in range(2):
        with pytest.raises(DataLossError, match="the change feed from version 3 on") as caught:
            strict.plan()
        assert "new checkpointLocation" in caught.value.hint
        strict.restart()
    lived.write({8: 8})
    with caplog.at_level(logging.WARNING, logger="spark_upsert.table.log.snapshot"):
        lenient.drain()
    assert versions(lenient.batches)[1:] == [[7]]
    warning, *_ = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert "gap_from=3 gap_to=5" in warning.getMessage()
    assert "is not the table" in warning.getMessage()


def test_an_expired_snapshot_is_an_error_or_another_takes_over_for_what_is_not_delivered(
    lived: Lived,
) -> None:
    lived.write({key: key for key in range(100)})
    strict = lived.query(maxRowsPerTrigger=30)
    query = lived.query(maxRowsPerTrigger=30, failOnDataLoss="false")
    for each in (strict, query):
        each.plan()
        each.deliver()
    lived.write({key: -key for key in range(100)})
    assert lived.expire() == 2
    with pytest.raises(DataLossError):
        strict.plan()
    query.drain()
    keys = [row["k"] for batch in query.batches for row in batch]
    assert sorted(keys) == list(range(100))
    assert versions(query.batches)[0] == [1]
    assert {shown for batch in versions(query.batches)[1:] for shown in batch} == {2}


def test_a_file_that_is_removed_under_a_running_read_is_an_expiry_and_no_damage(
    lived: Lived,
) -> None:
    lived.write(*FIVE)
    query = lived.query()
    query.plan()
    start, end = map(json.loads, query.noted)
    splits = query.stream.splits(start, end)
    lived.write({1: 9})
    lived.table.compact(full=True)
    lived.expire()
    forget_runs_and_logs()
    with pytest.raises(DataLossError, match="read while an expiry removed it"):
        list(query.stream.read(splits[0]))


def test_columns_that_have_another_type_in_the_table_stop_the_stream(lived: Lived) -> None:
    options = options_of()
    columns = lived.table.log.head().schema.changelog
    other = columns.set(1, columns.field("v").with_type(pa.string()))
    stream = Stream(
        NamedInputs({UNNAMED: TableInput(options, other, table=lived.table)}), options.query
    )
    with pytest.raises(SchemaError, match="'v' is string in the read, and int64 in the table"):
        stream.splits(stream.initial(), stream.latest(stream.initial()))


def test_an_input_that_the_checkpoint_knows_and_the_query_does_not_is_named(lived: Lived) -> None:
    lived.write(*FIVE)
    query = lived.query()
    query.drain()
    record = json.loads(query.noted[-1])
    record["positions"]["east"] = record["positions"].pop(UNNAMED)
    with pytest.raises(OptionError, match=r"inputs \['east'\]"):
        query.stream.latest(record)


def test_new_values_come_without_what_they_replace(lived: Lived) -> None:
    lived.write({1: 1, 2: 1}, {1: 2})
    stream = stream_of(lived.open(), readChangeFeed="false", startingVersion=1)
    start = stream.initial()
    rows = read(stream, start, stream.latest(start))
    assert sorted((row["k"], row["v"]) for row in rows) == [(1, 1), (1, 2), (2, 1)]
