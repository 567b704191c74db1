"""A stream over a table, without Spark: batches, snapshots in pieces, replays, leases, expiry."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import Scope
from spark_upsert.errors import (
    ContentionError,
    DataLossError,
    OptionError,
    OtherTableError,
    SchemaError,
)
from spark_upsert.options.inputs import UNNAMED
from spark_upsert.store import LocalStore
from spark_upsert.streams.inputs.inputs import NamedInputs
from spark_upsert.streams.inputs.table import TableInput
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.streams.reads.splits import ChangesSplit, RowsSplit
from spark_upsert.streams.reads.work import refuse_own_epochs, splits_of
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
    position_in,
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


# -- where a stream begins -----------------------------------------------------------


EPOCHS: tuple[dict[int, int | None], ...] = ({1: 1, 2: 2}, {2: 3, 3: 4}, {1: None, 3: 4})
LATER: tuple[dict[int, int | None], ...] = ({1: 5, 2: None}, {4: 6})

STARTS: dict[str, tuple[Callable[[Table], dict[str, Any]], list[int]]] = {
    "the table itself": (lambda _: {}, [3]),
    "a number": (lambda _: {"startingVersion": 2}, [2, 3]),
    "earliest": (lambda _: {"startingVersion": "earliest"}, [1, 2, 3]),
    "latest": (lambda _: {"startingVersion": "Latest"}, []),
    "the next version": (lambda _: {"startingVersion": 4}, []),
    "a time": (lambda table: {"startingTimestamp": table.log.commit(3).timestamp_ms}, [3]),
}


@pytest.mark.parametrize(("start", "first"), STARTS.values(), ids=STARTS)
def test_a_stream_begins_where_it_is_told_and_the_replay_of_its_first_batch_too(
    lived: Lived, start: Callable[[Table], dict[str, Any]], first: list[int]
) -> None:
    for epoch in EPOCHS:
        lived.now.advance(1)
        lived.write(epoch)
    query = lived.query(**start(lived.table))
    assert query.plan(), "a stream notes where it begins, rows or none"
    once = query.deliver()
    assert sorted({row["_commit_version"] for row in once}) == first

    lived.write(*LATER)
    lived.table.compact(full=True)
    query.restart()
    assert ordered(query.replayed(0)) == ordered(once)
    query.drain()
    assert sorted({row["_commit_version"] for row in query.rows}) == [*first, 4, 5]


# -- how far a batch goes ------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param({"maxEpochsPerTrigger": 2}, [[1, 2], [3], [5]], id="epochs"),
        pytest.param({"maxRowsPerTrigger": 4}, [[1], [2, 3], [5]], id="rows"),
        pytest.param({"maxRowsPerTrigger": 1}, [[1], [2], [3], [5]], id="fewer than an epoch has"),
        pytest.param({"maxBytesPerTrigger": 1}, [[1], [2], [3], [5]], id="bytes"),
        pytest.param(
            {"maxRowsPerTrigger": 5, "maxEpochsPerTrigger": 3, "maxBytesPerTrigger": 10**9},
            [[1, 2], [3], [5]],
            id="the least of several",
        ),
        pytest.param({}, [[1, 2, 3, 5]], id="none"),
    ],
)
def test_a_limit_never_cuts_an_epoch(
    lived: Lived, limits: dict[str, int], expected: list[list[int]]
) -> None:
    lived.write(*FIVE)
    query = lived.query(startingVersion="earliest", **limits)
    query.drain()
    assert [shown for shown in versions(query.batches) if shown] == expected
    assert folded(query.rows) == lived.rows


def test_all_that_is_available_is_one_batch_whatever_the_limits_even_within_a_snapshot(
    lived: Lived,
) -> None:
    lived.write(dict.fromkeys(range(40), 0))
    query = lived.query(maxRowsPerTrigger=10)
    query.plan()
    query.deliver()
    lived.write({1: None, 50: 1}, {50: 2})
    assert query.plan(everything=True)
    query.deliver()
    assert versions(query.batches) == [[1], [1, 2, 3]]
    assert folded(query.rows) == lived.rows
    assert not query.plan(everything=True)


def test_a_frozen_stream_ends_where_the_table_ended_however_far_it_goes(lived: Lived) -> None:
    lived.write(*FIVE[:3])
    query = lived.query(startingVersion=1, maxEpochsPerTrigger=1)
    query.stream.freeze()
    while query.plan():
        query.deliver()
        lived.write({100 + len(query.batches): 0})
        assert len(query.batches) < 5, "the target moves along with the table"
    assert versions(query.batches) == [[1], [2], [3]]
    query.restart()
    query.drain()
    assert folded(query.rows) == lived.rows


def test_a_frozen_stream_that_stands_beyond_its_end_does_not_go_back(lived: Lived) -> None:
    lived.write(*FIVE[:3])
    query = lived.query(startingVersion=1)
    late = lived.query()
    late.stream.freeze()
    lived.write({7: 7})
    query.drain()
    assert late.stream.latest(json.loads(query.noted[-1])) == json.loads(query.noted[-1])


def test_a_stream_at_rest_stays_at_its_very_offset(lived: Lived) -> None:
    lived.write(*FIVE)
    query = lived.query()
    query.drain()
    start = json.loads(query.noted[-1])
    assert query.stream.latest(start) is start
    query.restart()
    assert query.stream.latest(start) is start


def test_an_idle_poll_costs_one_look_at_the_end_of_the_log(lived: Lived) -> None:
    lived.write(*FIVE)
    steps = Steps()
    table = Table(FaultyStore(lived.store, steps), clock=lived.now)
    query = Query(lambda: stream_of(table))
    query.drain()
    start = json.loads(query.noted[-1])
    del steps.names[:]
    assert query.stream.latest(start) is start
    head = lived.table.log.head().version
    assert steps.names == [f"read {commit_path(head + 1)}", f"read {commit_path(head)}"]


def test_a_compaction_is_a_batch_without_rows_and_moves_the_offset(lived: Lived) -> None:
    lived.write(*FIVE)
    query = lived.query(maxEpochsPerTrigger=1)
    query.drain()
    lived.table.compact(full=True)
    assert query.plan()
    assert query.deliver() == []
    assert position_in(query.noted[-1]).upper == lived.table.log.head().upper


def test_a_stream_may_begin_behind_the_next_version(lived: Lived) -> None:
    lived.write(*FIVE[:1])
    query = lived.query(startingVersion=2, startingBoundInclusive="false")
    query.drain()
    lived.write({8: 8})
    assert not query.plan(), "version 2 is left out"
    lived.write({9: 9})
    query.drain()
    assert [row["k"] for row in query.rows] == [9]


def test_the_report_says_where_the_table_ends(lived: Lived) -> None:
    lived.write(*FIVE)
    query = lived.query(startingVersion=1, maxEpochsPerTrigger=1)
    query.plan()
    assert position_in(query.noted[-1]).upper == 2
    assert query.stream.report()["positions"][""]["upper"] == 6


# -- snapshots in pieces, and replays -------------------------------------------------


def test_a_limit_cuts_a_snapshot_into_pieces_that_share_no_row_and_leave_none_out(
    lived: Lived,
) -> None:
    lived.write({key: key for key in range(200)}, {7: None})
    query = lived.query(maxRowsPerTrigger=50)
    query.drain()
    assert 4 <= len(query.batches) <= 6
    keys = [row["k"] for batch in query.batches for row in batch]
    assert len(keys) == len(set(keys)), "a row is in two pieces"
    assert folded(query.rows) == lived.rows


def test_a_snapshot_is_never_in_one_batch_with_changes(lived: Lived) -> None:
    lived.write({key: key for key in range(40)})
    query = lived.query(maxRowsPerTrigger=30)
    query.plan()
    query.deliver()
    lived.write({1: 5})
    query.drain()
    assert versions(query.batches) == [[1], [1], [2]]


def test_without_limits_a_snapshot_is_one_batch(lived: Lived) -> None:
    lived.write({key: key for key in range(40)})
    query = lived.query()
    query.drain()
    assert versions(query.batches) == [[1]]


def test_an_empty_table_is_a_batch_without_rows(lived: Lived) -> None:
    query = lived.query(maxRowsPerTrigger=1)
    query.drain()
    assert query.rows == []
    lived.write({1: 1})
    query.drain()
    assert folded(query.rows) == lived.rows


@pytest.mark.parametrize("start", [{}, {"startingVersion": 1}], ids=["snapshot", "changes"])
def test_a_replayed_batch_has_the_same_rows_whatever_the_table_and_the_options_are_by_then(
    lived: Lived, start: dict[str, Any]
) -> None:
    lived.write({key: key for key in range(40)}, {1: 5, 2: None})
    query = lived.query(maxRowsPerTrigger=15, **start)
    query.drain()
    lived.write({1: 6, 100: 1}, {2: 8})
    query.drain()
    lived.write({3: 6, 101: 1})
    lived.table.compact(full=True)
    for others in ({}, {"splits": 3}, {"maxEpochsPerTrigger": 1}):
        again = lived.query(**start, **others)
        again.noted = query.noted
        for number, rows in enumerate(query.batches):
            assert ordered(again.replayed(number)) == ordered(rows)


def test_splits_are_a_function_of_the_offsets_alone(lived: Lived) -> None:
    lived.write({key: key for key in range(40)})
    query = lived.query(splits=2)
    query.drain()
    lived.write(*FIVE)
    query.drain()
    ends = [(json.loads(a), json.loads(b)) for a, b in pairwise(query.noted)]
    planned = [query.stream.splits(*pair) for pair in ends]
    lived.write({77: 7})
    lived.table.compact(full=True)
    query.restart()
    assert [query.stream.splits(*pair) for pair in ends] == planned
    kinds = [[type(split) for work in batch for split in splits_of(work)] for batch in planned]
    assert kinds == [[RowsSplit, RowsSplit], [ChangesSplit, ChangesSplit]]


def test_a_batch_without_way_has_no_splits(lived: Lived) -> None:
    lived.write(*FIVE)
    query = lived.query()
    query.drain()
    for text in query.noted:
        assert query.stream.splits(json.loads(text), json.loads(text)) == []


def test_a_split_is_small_however_many_writers_and_files_the_table_has(lived: Lived) -> None:
    for key in range(30):
        lived.write({key: key})
    lived.table.compact(full=True)
    query = lived.query(splits=4)
    query.drain()
    start, end = map(json.loads, query.noted)
    assert max(len(pickle.dumps(split)) for split in query.stream.splits(start, end)) < 4_000


def test_a_stream_travels_to_its_tasks_without_what_it_keeps_open(tmp_path: Path) -> None:
    table = make_table(LocalStore(tmp_path), schema_of(Scope.ARRIVAL))
    append(table, [Command(1, 1)])
    options = options_of(path=str(tmp_path))
    columns = table.log.head().schema.changelog
    stream = Stream(
        NamedInputs({UNNAMED: TableInput(options, columns, table=table)}), options.query
    )
    end = stream.latest(stream.initial())
    [split] = stream.splits(stream.initial(), end)
    in_task = pickle.loads(pickle.dumps(stream))
    [batch] = in_task.read(split)
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


# -- version 1 ------------------------------------------------------------------------


def test_a_checkpoint_of_version_1_is_gone_on_with_and_replayed(lived: Lived) -> None:
    lived.write({key: key for key in range(60)})
    query = lived.query(maxRowsPerTrigger=20)
    for _ in range(2):
        query.plan()
        query.deliver()
    query.noted = [version_1(text) for text in query.noted]
    query.restart()
    for number, rows in enumerate(query.batches):
        assert ordered(query.replayed(number)) == ordered(rows)
    lived.write({1: 7, 2: None})
    query.drain()
    assert folded(query.rows) == lived.rows
    assert "format" not in json.loads(query.noted[-1])


def test_a_stream_at_rest_keeps_the_text_of_version_1(lived: Lived) -> None:
    lived.write(*FIVE)
    query = lived.query()
    query.drain()
    query.noted[-1] = version_1(query.noted[-1])
    query.restart()
    assert not query.plan(), "another text would be a batch"


# -- a table that is its own sink -------------------------------------------------------------


def test_a_query_that_reads_what_it_writes_is_told_so(lived: Lived) -> None:
    lived.write({1: 1})
    query = lived.query()
    query.drain()
    transaction = Transaction(writer="query:7f", number=0)
    lived.table.commit(plan_epoch(lived.table, [[[Command(2, 2)]]], transaction=transaction))
    query.plan()
    start, end = map(json.loads, query.noted[-2:])
    [work] = query.stream.splits(start, end)
    refuse_own_epochs(splits_of(work), None)
    refuse_own_epochs(splits_of(work), "another")
    with pytest.raises(OptionError, match="the query reads what it writes") as caught:
        refuse_own_epochs(splits_of(work), "7f")
    assert "write into another table" in caught.value.hint


def test_a_query_that_comes_to_read_all_that_it_wrote_is_told_so(lived: Lived) -> None:
    transaction = Transaction(writer="query:7f", number=0)
    lived.table.commit(plan_epoch(lived.table, [[[Command(2, 2)]]], transaction=transaction))
    lived.write({1: 1})
    query = lived.query(splits=2)
    query.plan()
    start, end = map(json.loads, query.noted)
    works = query.stream.splits(start, end)
    assert len(works) == 2
    for work in works:
        refuse_own_epochs(splits_of(work), "another")
        with pytest.raises(OptionError, match="version 2 or one before it is its own"):
            refuse_own_epochs(splits_of(work), "7f")


# -- leases ---------------------------------------------------------------------------


def lease_of(lived: Lived) -> int | None:
    held = [lease for lease in lived.table.consumers() if lease.is_live(lived.table.log.now_ms())]
    return held[0].version if held else None


def test_the_lease_is_held_before_the_offset_is_handed_out(lived: Lived) -> None:
    lived.write(*FIVE[:2])
    query = lived.query(consumerId="sums")
    assert lease_of(lived) is None
    query.plan()
    assert lease_of(lived) == 2
    lived.write({5: 5}, {6: 6})
    lived.table.compact(full=True)
    assert lived.expire() == 2
    query.deliver()
    assert folded(query.rows) == rows_at(lived.table, 2)


def expire_before_holds(lived: Lived, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let writes, a compaction and an expiry come before each of the first leases is taken."""

    def act(number: int) -> None:
        lived.write({number: 7}, {50 + number: 7})
        lived.table.compact(full=True)
        lived.expire()

    before_leases(monkeypatch, act, times=times)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("start", [None, "latest", "earliest"])
def test_a_stream_begins_anew_where_an_expiry_comes_before_its_lease(
    lived: Lived, monkeypatch: pytest.MonkeyPatch, start: str | None, times: int
) -> None:
    lived.write(*FIVE[:2])
    expire_before_holds(lived, monkeypatch, times)
    given = {} if start is None else {"startingVersion": start}
    query = lived.query(consumerId="sums", **given)
    query.plan()
    begun = lived.table.log.head().since
    assert lease_of(lived) == begun
    lived.write({5: 5}, {0: 6})
    lived.table.compact(full=True)
    assert lived.expire() == begun
    query.drain()
    before = None if start is None else rows_at(lived.table, begun)
    assert folded(query.rows, before) == lived.rows


def test_a_start_that_an_expiry_takes_is_lost(
    lived: Lived, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived.write(*FIVE[:2])
    expire_before_holds(lived, monkeypatch, 1)
    with pytest.raises(DataLossError, match="version 2"):
        lived.query(consumerId="sums", startingVersion="2").plan()


def test_expiries_that_are_always_faster_are_told(
    lived: Lived, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived.write(*FIVE[:2])
    expire_before_holds(lived, monkeypatch, 1_000)
    with pytest.raises(ContentionError, match="100 expiries"):
        lived.query(consumerId="sums").plan()


def test_a_lease_follows_what_spark_reports_committed(lived: Lived) -> None:
    lived.write(*FIVE[:2])
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
    writes: list[bytes] = []
    for _ in range(20):
        lived.now.advance(HOUR_S)
        assert not query.plan()
        assert lease_of(lived) == 5, "it lapsed under a stream that is alive"
        writes.append(lived.store.objects["_consumers/sums.json"])
    assert 6 <= len(set(writes)) <= 20


def test_a_poll_within_the_hour_leaves_the_lease_alone(lived: Lived) -> None:
    lived.write(*FIVE)
    stream = lived.query(consumerId="sums", consumerTtl="8 hours").stream
    stream.latest(stream.initial())
    written = lived.store.objects["_consumers/sums.json"]
    lived.now.advance(60)
    stream.latest(stream.initial())
    assert lived.store.objects["_consumers/sums.json"] == written


def test_without_a_consumer_there_is_no_lease(lived: Lived) -> None:
    lived.write(*FIVE)
    lived.query().drain()
    assert lived.table.consumers() == []


def test_a_lease_holds_the_snapshot_that_is_half_delivered(lived: Lived) -> None:
    lived.write({key: key for key in range(100)}, {0: 1})
    query = lived.query(consumerId="sums", maxRowsPerTrigger=30)
    query.plan()
    query.deliver()
    lived.write({1: 9})
    lived.table.compact(full=True)
    assert lived.expire() == 2
    query.drain()
    assert folded(query.rows) == lived.rows


# -- expiry under a running stream ----------------------------------------------------


def left_behind(lived: Lived, **given: Any) -> Query:
    """Return a query that stands where changes are expired."""
    lived.write(*FIVE[:2])
    query = lived.query(**given)
    query.drain()
    lived.write({1: 7}, {5: 5}, {6: 6})
    assert lived.expire() == 5
    return query


def test_a_stream_that_is_left_behind_says_what_to_do(lived: Lived) -> None:
    query = left_behind(lived)
    with pytest.raises(DataLossError, match="the change feed from version 3 on") as caught:
        query.plan()
    assert "new checkpointLocation" in caught.value.hint
    query.restart()
    with pytest.raises(DataLossError):
        query.plan()


def test_a_stream_that_may_lose_data_goes_on_behind_the_gap_and_says_so(
    lived: Lived, caplog: pytest.LogCaptureFixture
) -> None:
    query = left_behind(lived, failOnDataLoss="false")
    lived.write({8: 8})
    with caplog.at_level(logging.WARNING, logger="spark_upsert.table.versions"):
        query.drain()
    assert versions(query.batches)[1:] == [[7]]
    warning, *_ = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert "gap_from=3 gap_to=5" in warning.getMessage()
    assert "is not the table" in warning.getMessage()


def test_a_snapshot_that_is_expired_half_delivered_is_an_error(lived: Lived) -> None:
    lived.write({key: key for key in range(100)})
    query = lived.query(maxRowsPerTrigger=30)
    query.plan()
    query.deliver()
    lived.write({1: 9})
    lived.expire()
    with pytest.raises(DataLossError):
        query.plan()


def test_with_data_loss_allowed_another_snapshot_takes_over_for_what_is_not_delivered(
    lived: Lived,
) -> None:
    lived.write({key: key for key in range(100)})
    query = lived.query(maxRowsPerTrigger=30, failOnDataLoss="false")
    query.plan()
    query.deliver()
    lived.write({key: -key for key in range(100)})
    assert lived.expire() == 2
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


# -- another table under an offset ----------------------------------------------------


def made_anew(lived: Lived) -> None:
    lived.store.objects.clear()
    make_table(lived.store, schema_of(Scope.ARRIVAL))
    Lived.write(lived, *FIVE, *FIVE)


def put_back(lived: Lived) -> None:
    head = lived.table.log.head()
    del lived.store.objects[f"_log/{head.version:020d}.json"]
    lived.table = lived.open()
    lived.write({99: 99})


@pytest.mark.parametrize("accident", [made_anew, put_back])
@pytest.mark.parametrize("given", [{}, {"failOnDataLoss": "false"}], ids=str)
def test_another_table_under_an_offset_is_an_error(
    lived: Lived, accident: Callable[[Lived], None], given: dict[str, str]
) -> None:
    lived.write(*FIVE)
    query = lived.query(**given)
    query.drain()
    lived.table = lived.open()
    accident(lived)
    query.restart()
    with pytest.raises(OtherTableError, match="the checkpoint of this query") as caught:
        query.plan()
    assert "new checkpointLocation" in caught.value.hint
    with pytest.raises(OtherTableError):
        query.replayed(0)


def test_a_version_that_restores_the_table_is_an_epoch_like_others(lived: Lived) -> None:
    lived.write(*FIVE)
    query = lived.query()
    query.drain()
    lived.table.restore(2)
    query.drain()
    assert folded(query.rows) == lived.rows


# -- what was planned -----------------------------------------------------------------


def test_columns_that_the_table_has_no_more_of_that_type_stop_the_stream(lived: Lived) -> None:
    lived.write(*FIVE)
    options = options_of()
    columns = lived.table.log.head().schema.changelog
    other = columns.set(1, columns.field("v").with_type(pa.string()))
    stream = Stream(
        NamedInputs({UNNAMED: TableInput(options, other, table=lived.open())}), options.query
    )
    end = stream.latest(stream.initial())
    with pytest.raises(SchemaError, match="'v' is string in the read, and int64 in the table"):
        stream.splits(stream.initial(), end)


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
