"""Appends of several threads on one table: what they share, and what is each caller's own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import Scope, TableSchema, Ties
from spark_upsert.errors import DataError, OtherTableError, SchemaError, TableFullError
from spark_upsert.store import Store
from spark_upsert.table.log.manifest import Commit, Transaction
from spark_upsert.table.retention.lag import PressureReport, report
from spark_upsert.table.state.counters import Counters
from spark_upsert.table.table import Table
from spark_upsert.table.write import group_commit
from tests.support.rounds import Gate
from tests.support.stores import BrokenError, Fault, FaultyStore, MemoryStore, Moment, Steps
from tests.support.tables import make_table, rows_at, schema_of

ROWS = pa.schema({"k": pa.int64(), "v": pa.int64()})


def new_table(
    scope: Scope = Scope.ARRIVAL, *, ties: Ties | None = None, store: Store | None = None
) -> Table:
    schema = schema_of(scope)
    schema = TableSchema.of(
        schema.columns, keys=["k"], order=schema.order, scope=scope, ties=ties, hash_seed=7
    )
    return make_table(store or MemoryStore(), schema)


def rows(*pairs: tuple[int, int], seq: int | None = None) -> pa.Table:
    keys, values = zip(*pairs, strict=True) if pairs else ((), ())
    columns = {"k": pa.array(keys, pa.int64()), "v": pa.array(values, pa.int64())}
    if seq is not None:
        columns["seq"] = pa.array([seq] * len(pairs), pa.int64())
    return pa.table(columns)


def append(
    table: Table, *pairs: tuple[int, int], seq: int | None = None, **how: Any
) -> Callable[[], Commit | None]:
    return partial(table.upsert, rows(*pairs, seq=seq), **how)


def by(writer: str, number: int, *, is_consecutive: bool = False) -> Transaction:
    return Transaction(writer=writer, number=number, is_consecutive=is_consecutive)


def meet(table: Table, *others: Callable[[], Any]) -> list[Any]:
    """Let appends meet behind one that is being committed; return what each was told."""
    return Gate(table._appends.calls).meet(append(table, (0, 0)), others)[1:]


def counters(commit: Commit) -> dict[str, int]:
    return {name: count for name, count in commit.counters.items() if count}


# -- what is shared ----------------------------------------------------------------------


def test_a_lone_append_has_a_version_of_its_own() -> None:
    table = new_table()
    commit = table.upsert(rows((1, 1)), transaction=by("a", 0))
    assert commit == table.log.commit(1)


def test_appends_that_meet_share_one_version_with_all_their_transactions() -> None:
    table = new_table()
    told = meet(
        table,
        append(table, (1, 1), transaction=by("a", 3)),
        append(table, (2, 2), transaction=by("b", 5)),
        append(table, (3, 3)),
    )
    assert [each.version for each in told] == [2, 2, 2]
    assert table.log.commit(2).transactions == (by("a", 3), by("b", 5))
    assert rows_at(table) == {0: 0, 1: 1, 2: 2, 3: 3}
    assert len(table.log.commit(2).added) == 1, "one run, not one for each"


def test_each_is_told_its_own_transaction_and_what_its_own_rows_did() -> None:
    table = new_table()
    table.upsert(rows((1, 1)))
    first, second = meet(
        table,
        append(table, (1, 2), (2, 2), transaction=by("a", 0)),
        append(table, (3, 3)),
    )
    assert (first.transactions, second.transactions) == ((by("a", 0),), ())
    assert counters(first) == {"rows": 2, "inserts": 1, "updates": 1}
    assert counters(second) == {"rows": 1, "inserts": 1}
    assert counters(table.log.commit(3)) == {"rows": 3, "inserts": 2, "updates": 1}


def test_of_one_key_the_append_that_came_last_wins_and_each_is_counted_in_its_turn() -> None:
    table = new_table()
    told = meet(table, append(table, (1, 1)), append(table, (1, 2)), append(table, (1, 3)))
    assert rows_at(table) == {0: 0, 1: 3}
    assert [counters(each) for each in told] == [
        {"rows": 1, "inserts": 1},
        {"rows": 1, "updates": 1},
        {"rows": 1, "updates": 1},
    ]
    assert counters(table.log.commit(2)) == {"rows": 3, "inserts": 1, "superseded": 2}
    assert [c["_change_type"] for c in table.changes(2, 3).to_pylist()] == ["insert"]


@pytest.mark.parametrize(
    ("scope", "value"),
    [
        pytest.param(Scope.TABLE, 1, id="over all epochs the greatest order key wins"),
        pytest.param(Scope.EPOCH, 2, id="of two epochs the later wins and so of two appends"),
    ],
)
def test_appends_in_one_version_are_compared_as_those_in_two(scope: Scope, value: int) -> None:
    table = new_table(scope)
    first = partial(table.upsert, rows((0, 0), seq=0))
    Gate(table._appends.calls).meet(
        first, [append(table, (1, 1), seq=9), append(table, (1, 2), seq=3)]
    )
    assert table.log.head().version == 2
    assert rows_at(table) == {0: 0, 1: value}


def test_an_overwrite_and_a_large_append_come_by_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = new_table()
    monkeypatch.setattr("spark_upsert.table.write.group_commit.BYTES_MAX", 40)
    gate = Gate(table._appends.calls)
    large = append(table, (1, 1), (2, 2), (3, 3))
    gate.meet(append(table, (0, 0)), [])
    assert large() is not None
    assert table.upsert(rows((5, 5)), overwrite=True) is not None
    assert gate.rounds == [1]
    assert rows_at(table) == {5: 5}


def test_a_version_holds_no_more_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table()
    monkeypatch.setattr(group_commit, "MEMBERS_MAX", 2)
    told = meet(table, *(append(table, (n, n)) for n in range(1, 6)))
    assert [each.version for each in told] == [2, 2, 3, 3, 4]


def test_empty_appends_are_epochs_of_their_transactions() -> None:
    table = new_table()
    told = meet(table, append(table, transaction=by("a", 0)), append(table))
    assert [counters(each) for each in told] == [{}, {}]
    assert table.log.head().transactions == {"a": 0}
    assert table.log.commit(2).added == ()


@pytest.mark.parametrize(
    ("pressure", "window_ms"), [(0.0, 0.5), (0.4, 0.5), (0.7, 5.25), (1.0, 10.0)]
)
def test_the_window_follows_the_pressure(pressure: float, window_ms: float) -> None:
    given = Table(MemoryStore(), pressure=lambda: pressure)
    assert given._appends.window_s() == pytest.approx(window_ms / 1000)
    table = new_table()
    table.alter(table.schema, {"backpressure": "true"})
    now_ms = table.log.now_ms()
    said = PressureReport(
        consumer="etl", rung=2, pressure=pressure, reported_ms=now_ms, ttl_ms=60_000
    )
    report(table.store, said)
    table.upsert(rows((1, 1)))
    assert table._appends.window_s() == pytest.approx(window_ms / 1000)


def test_without_reports_the_window_is_the_least() -> None:
    table = new_table()
    table.upsert(rows((1, 1)))
    assert table._appends.window_s() == 0.0005


# -- transactions ------------------------------------------------------------------------


def test_a_replay_is_answered_as_done_and_its_company_is_committed() -> None:
    table = new_table()
    table.upsert(rows((1, 1)), transaction=by("a", 0))
    replay, other = meet(
        table, append(table, (1, 9), transaction=by("a", 0)), append(table, (2, 2))
    )
    assert replay is None
    assert other.version == 3
    assert rows_at(table) == {0: 0, 1: 1, 2: 2}


def test_of_a_transaction_that_comes_twice_at_once_one_is_applied() -> None:
    table = new_table()
    twice = append(table, (1, 1), transaction=by("a", 0))
    first, second, other = meet(table, twice, twice, append(table, (2, 2)))
    assert (first.version, second, other.version) == (2, None, 3)
    assert counters(table.log.commit(2)) == {"rows": 1, "inserts": 1}


def test_two_numbers_of_one_writer_are_two_versions() -> None:
    table = new_table()
    told = meet(
        table,
        append(table, (1, 1), transaction=by("a", 0, is_consecutive=True)),
        append(table, (2, 2), transaction=by("b", 7)),
        append(table, (1, 2), transaction=by("a", 1, is_consecutive=True)),
    )
    assert [each.version for each in told] == [2, 2, 3]
    assert rows_at(table) == {0: 0, 1: 2, 2: 2}


# -- failures ----------------------------------------------------------------------------


def test_rows_that_are_wrong_in_themselves_are_their_callers_error() -> None:
    table = new_table()
    bad = pa.table({"k": pa.array([None], pa.int64()), "v": pa.array([1], pa.int64())})
    good, null_key, no_column = (
        append(table, (1, 1)),
        partial(table.upsert, bad),
        partial(table.upsert, pa.table({"other": [1]})),
    )
    [told] = meet(table, good)
    with pytest.raises(DataError):
        null_key()
    with pytest.raises(SchemaError):
        no_column()
    assert told.version == 2


def test_rows_that_the_table_refuses_are_their_callers_error_and_the_others_are_applied() -> None:
    table = new_table(Scope.TABLE, ties=Ties.FAIL)
    table.upsert(rows((1, 1), seq=5))
    first = partial(table.upsert, rows((0, 0), seq=0))
    _, good, tied, also_good = Gate(table._appends.calls).meet(
        first,
        [
            append(table, (2, 2), seq=5),
            append(table, (1, 9), (3, 3), seq=5),
            append(table, (4, 4), seq=5),
        ],
    )
    assert isinstance(tied, DataError)
    assert "1 rows have the order key of another row" in str(tied)
    assert (good.version, also_good.version) == (3, 3)
    assert rows_at(table) == {0: 0, 1: 1, 2: 2, 4: 4}


def test_rows_that_an_append_before_them_rules_out_are_their_callers_error() -> None:
    table = new_table(Scope.TABLE, ties=Ties.FAIL)
    first = partial(table.upsert, rows((0, 0), seq=0))
    _, good, tied = Gate(table._appends.calls).meet(
        first, [append(table, (1, 1), seq=5), append(table, (1, 2), seq=5)]
    )
    assert good.version == 2
    assert isinstance(tied, DataError)
    assert rows_at(table) == {0: 0, 1: 1}


def test_a_gap_in_the_batches_of_a_writer_is_its_own_error() -> None:
    table = new_table()
    gap, other = meet(
        table,
        append(table, (1, 1), transaction=by("a", 5, is_consecutive=True)),
        append(table, (2, 2)),
    )
    assert isinstance(gap, OtherTableError)
    assert other.version == 2


def test_a_storage_error_is_told_to_each_and_each_may_try_again() -> None:
    store = MemoryStore()
    new_table(store=store)
    steps = Steps()
    table = Table(FaultyStore(store, steps))

    calls = [append(table, (n, n), transaction=by(f"w{n}", 0)) for n in (1, 2, 3)]
    gate = Gate(table._appends.calls)
    carry_out = gate._carry_out

    def struck(round_: Any) -> Any:
        if len(round_) > 1:
            steps._fault = Fault(len(steps.names) + 3, Moment.BEFORE, BrokenError)
        return carry_out(round_)

    gate._carry_out = struck
    told = gate.meet(append(table, (0, 0)), calls)
    assert isinstance(told[0], Commit)
    assert [type(each) for each in told[1:]] == [BrokenError] * 3
    assert len({id(each) for each in told[1:]}) == 3
    for call in calls:
        assert call() is not None
    assert rows_at(table) == {0: 0, 1: 1, 2: 2, 3: 3}


def test_where_there_is_no_room_each_is_told_by_itself_and_a_replay_is_done() -> None:
    store = MemoryStore()
    table = new_table(store=store)
    table.upsert(rows((9, 9)), transaction=by("a", 0))
    table.alter(table.schema, {"maxBacklogEpochs": "2", "onFull": "reject"})
    table.hold("slow", table.log.head().version)
    told = meet(
        table,
        append(table, (1, 1)),
        append(table, (9, 0), transaction=by("a", 0)),
        append(table, (2, 2)),
    )
    assert told[1] is None
    assert [each.version for each in (told[0], told[2])] == [4, 4], "the second epoch that fits"
    told = meet(table, append(table, (3, 3)), append(table, (4, 4)))
    assert [type(each) for each in told] == [TableFullError] * 2
    assert rows_at(table) == {0: 0, 1: 1, 2: 2, 9: 9}


# -- others ------------------------------------------------------------------------------


def test_who_lost_a_race_counts_against_what_the_winner_left() -> None:
    store = MemoryStore()
    table, other = new_table(store=store), Table(store)
    commit, interfered = table.commit, list[int]()

    def commit_behind_another(epoch: Any, **how: Any) -> Commit | None:
        if len(epoch.staged[0].files) and epoch.staged[0].counters.rows == 2 and not interfered:
            interfered.append(1)
            other.upsert(rows((1, 7)))
        return commit(epoch, **how)

    table.commit = commit_behind_another  # type: ignore[method-assign]
    first, second = meet(table, append(table, (1, 1)), append(table, (2, 2)))
    assert interfered
    assert (first.version, second.version) == (3, 3)
    assert counters(first) == {"rows": 1, "updates": 1}
    assert counters(second) == {"rows": 1, "inserts": 1}
    assert rows_at(table) == {0: 0, 1: 1, 2: 2}


def test_a_transaction_that_another_process_brings_in_meanwhile_is_done_already() -> None:
    store = MemoryStore()
    table, other = new_table(store=store), Table(store)
    commit, interfered = table.commit, list[int]()

    def commit_behind_another(epoch: Any, **how: Any) -> Commit | None:
        if epoch.staged and epoch.staged[0].counters.rows == 3 and not interfered:
            interfered.append(1)
            other.upsert(rows((1, 7)), transaction=by("a", 0))
        return commit(epoch, **how)

    table.commit = commit_behind_another  # type: ignore[method-assign]
    told = meet(
        table,
        append(table, (1, 1), transaction=by("a", 0)),
        append(table, (2, 2), transaction=by("b", 0)),
        append(table, (3, 3)),
    )
    assert interfered
    assert told[0] is None
    assert all(isinstance(each, Commit) for each in told[1:])
    assert rows_at(table) == {0: 0, 1: 7, 2: 2, 3: 3}


def test_after_another_process_altered_the_table_each_is_planned_anew() -> None:
    store, narrow = MemoryStore(), schema_of(Scope.ARRIVAL, value=pa.int32())
    table, other = make_table(store, narrow), Table(store)
    gate = Gate(table._appends.calls)
    carry_out = gate._carry_out

    def altered(round_: Any) -> Any:
        if len(round_) > 1:
            other.alter(schema_of(Scope.ARRIVAL, value=pa.int64()))
        return carry_out(round_)

    gate._carry_out = altered
    small = [rows((key, 2)).set_column(1, "v", pa.array([2], pa.int32())) for key in range(3)]
    first, *others = (partial(table.upsert, each) for each in small)
    told = gate.meet(first, others)
    assert sorted(each.version for each in told) == [1, 3, 4]
    assert table.schema.columns.field("v").type == pa.int64()
    assert rows_at(table) == {0: 2, 1: 2, 2: 2}


def test_columns_that_another_process_added_are_known_to_the_next_append() -> None:
    store = MemoryStore()
    table, other = new_table(store=store), Table(store)
    table.upsert(rows((1, 1)))
    other.alter(
        TableSchema.of(
            ROWS.append(pa.field("w", pa.int64())),
            keys=["k"],
            scope=Scope.ARRIVAL,
            hash_seed=other.schema.hash_seed,
        )
    )
    commit = table.upsert(rows((2, 2)).append_column("w", pa.array([3], pa.int64())))
    assert commit is not None
    assert table.snapshot().sort_by("k").column("w").to_pylist() == [None, 3]


# -- many threads ------------------------------------------------------------------------


def test_what_many_threads_append_is_there_once_and_that_of_a_thread_in_order() -> None:
    table = new_table()
    count, each = 8, 20
    barrier = threading.Barrier(count)
    told: list[list[Commit]] = [[] for _ in range(count)]

    def work(number: int) -> None:
        barrier.wait(300)
        for index in range(each):
            commit = table.upsert(
                rows((number, index), (100 + index, number)), transaction=by(f"w{number}", index)
            )
            assert commit is not None
            told[number].append(commit)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    versions = [[commit.version for commit in own] for own in told]
    assert all(own == sorted(set(own)) for own in versions), "each of a thread is a later version"
    found = rows_at(table)
    assert {key: found[key] for key in range(count)} == dict.fromkeys(range(count), each - 1)
    assert table.log.head().transactions == {f"w{n}": each - 1 for n in range(count)}
    own = sum((Counters.from_json(c.counters) for of in told for c in of), Counters())
    assert own.rows == 2 * count * each
    assert own.live_delta == len(found) == table.log.head().live_rows
    assert table.check().is_sound
