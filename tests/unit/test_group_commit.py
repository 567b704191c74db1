"""Appends of several threads on one table. What their rows do: `tests/laws/test_group_commit.py`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import Scope
from spark_upsert.errors import DataError, OtherTableError, SchemaError, TableFullError
from spark_upsert.store import Store
from spark_upsert.table.log.manifest import Commit, Transaction
from spark_upsert.table.retention.lag import PressureReport, report
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.table import Table
from spark_upsert.table.write import group_commit
from tests.support.rounds import Gate
from tests.support.stores import BrokenError, Fault, FaultyStore, MemoryStore, Moment, Steps
from tests.support.tables import make_table, rows_at, schema_of

ROWS = pa.schema({"k": pa.int64(), "v": pa.int64()})


def new_table(*, store: Store | None = None) -> Table:
    return make_table(store or MemoryStore(), schema_of(Scope.ARRIVAL))


def rows(*pairs: tuple[int, int]) -> pa.Table:
    columns = list(zip(*pairs, strict=True)) or [(), ()]
    return pa.table([pa.array(column, pa.int64()) for column in columns], schema=ROWS)


def append(table: Table, *pairs: tuple[int, int], **how: Any) -> Callable[[], Commit | None]:
    return partial(table.upsert, rows(*pairs), **how)


def by(writer: str, number: int, *, is_consecutive: bool = False) -> Transaction:
    return Transaction(writer=writer, number=number, is_consecutive=is_consecutive)


def meet(table: Table, *others: Callable[[], Any]) -> list[Any]:
    """Let appends meet behind one that is being committed; return the result of each."""
    return Gate(table._appends.calls).meet(append(table, (0, 0)), others)[1:]


def counters(commit: Commit) -> dict[str, int]:
    return {name: count for name, count in commit.counters.items() if count}


def struck(table: Table, strike: Callable[[], object]) -> Gate:
    """Return a gate that does something before it carries out a round of several appends."""
    gate = Gate(table._appends.calls)
    carry_out = gate._carry_out

    def carry_out_struck(round_: Any) -> Any:
        if len(round_) > 1:
            strike()
        return carry_out(round_)

    gate._carry_out = carry_out_struck
    return gate


# -- what is shared ----------------------------------------------------------------------


def test_appends_that_meet_share_one_version_and_are_told_their_own_counters() -> None:
    table = new_table()
    first, second, third = meet(
        table,
        append(table, (0, 1), (2, 2), transaction=by("a", 3)),
        append(table, (2, 3), transaction=by("b", 5)),
        append(table),
    )
    assert [commit.version for commit in (first, second, third)] == [2, 2, 2]
    assert (first.transactions, second.transactions) == ((by("a", 3),), (by("b", 5),))
    assert counters(first) == {"rows": 2, "inserts": 1, "updates": 1}
    assert (counters(second), counters(third)) == ({"rows": 1, "updates": 1}, {})
    commit = table.log.commit(2)
    assert commit.transactions == (by("a", 3), by("b", 5))
    assert counters(commit) == {"rows": 3, "inserts": 1, "updates": 1, "superseded": 1}
    assert rows_at(table) == {0: 1, 2: 3}
    assert len(commit.added) == 1, "one run, not one for each"
    assert table.changes(2, 3).num_rows == 3


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
    commits = meet(table, *(append(table, (n, n)) for n in range(1, 6)))
    assert [commit.version for commit in commits] == [2, 2, 3, 3, 4]


@pytest.mark.parametrize(
    ("pressure", "window_ms"), [(0.0, 0.5), (0.4, 0.5), (0.7, 5.25), (1.0, 10.0)]
)
def test_the_window_follows_the_pressure(pressure: float, window_ms: float) -> None:
    table = Table(MemoryStore(), pressure=lambda: pressure)
    assert table._appends.window_s() == pytest.approx(window_ms / 1000)
    table = new_table()
    table.upsert(rows((1, 1)))
    assert table._appends.window_s() == 0.0005, "without reports"
    table.alter(table.schema, {"backpressure": "true"})
    now_ms = table.log.now_ms()
    pressed = PressureReport(consumer="etl", rung=2, pressure=pressure, reported_ms=now_ms)
    report(table.store, pressed)
    table.upsert(rows((1, 1)))
    assert table._appends.window_s() == pytest.approx(window_ms / 1000)


# -- transactions ------------------------------------------------------------------------


def test_of_a_transaction_that_comes_twice_at_once_one_is_applied() -> None:
    table = new_table()
    twice = append(table, (1, 1), transaction=by("a", 0))
    first, second, other = meet(table, twice, twice, append(table, (2, 2)))
    assert (first.version, second, other.version) == (2, None, 3)
    assert counters(table.log.commit(2)) == {"rows": 1, "inserts": 1}


def test_two_numbers_of_one_writer_are_two_versions() -> None:
    table = new_table()
    commits = meet(
        table,
        append(table, (1, 1), transaction=by("a", 0, is_consecutive=True)),
        append(table, (2, 2), transaction=by("b", 7)),
        append(table, (1, 2), transaction=by("a", 1, is_consecutive=True)),
    )
    assert [commit.version for commit in commits] == [2, 2, 3]
    assert rows_at(table) == {0: 0, 1: 2, 2: 2}


# -- failures ----------------------------------------------------------------------------


def test_rows_that_are_wrong_in_themselves_are_their_callers_error() -> None:
    table = new_table()
    bad = pa.table({"k": pa.array([None], pa.int64()), "v": pa.array([1], pa.int64())})
    with pytest.raises(DataError):
        table.upsert(bad)
    with pytest.raises(SchemaError):
        table.upsert(pa.table({"other": [1]}))
    assert table.log.head().version == 0


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
    store, steps = MemoryStore(), Steps()
    new_table(store=store)
    table = Table(FaultyStore(store, steps))
    calls = [append(table, (n, n), transaction=by(f"w{n}", 0)) for n in (1, 2, 3)]

    def fail() -> None:
        steps._fault = Fault(len(steps.names) + 3, Moment.BEFORE, BrokenError)

    first, *errors = struck(table, fail).meet(append(table, (0, 0)), calls)
    assert isinstance(first, Commit)
    assert [type(error) for error in errors] == [BrokenError] * 3
    assert len({id(error) for error in errors}) == 3
    for call in calls:
        assert call() is not None
    assert rows_at(table) == {0: 0, 1: 1, 2: 2, 3: 3}


def test_where_there_is_no_room_each_is_told_by_itself_and_a_replay_is_done() -> None:
    store = MemoryStore()
    table = new_table(store=store)
    table.upsert(rows((9, 9)), transaction=by("a", 0))
    table.alter(table.schema, {"maxBacklogEpochs": "2", "onFull": "reject"})
    table.hold("slow", table.log.head().version)
    commits = meet(
        table,
        append(table, (1, 1)),
        append(table, (9, 0), transaction=by("a", 0)),
        append(table, (2, 2)),
    )
    assert commits[1] is None
    assert [commits[0].version, commits[2].version] == [4, 4], "the second epoch that fits"
    commits = meet(table, append(table, (3, 3)), append(table, (4, 4)))
    assert [type(error) for error in commits] == [TableFullError] * 2
    assert rows_at(table) == {0: 0, 1: 1, 2: 2, 9: 9}


# -- others ------------------------------------------------------------------------------


def commit_behind(table: Table, rows_: int, other: Callable[[], object]) -> None:
    """Let another process commit before the first epoch of a number of rows."""
    commit, pending = table.commit, [other]

    def commit_behind_another(epoch: Any, **how: Any) -> Commit | None:
        if epoch.staged and epoch.staged[0].counters.rows == rows_ and pending:
            pending.pop()()
        return commit(epoch, **how)

    table.commit = commit_behind_another  # type: ignore[method-assign]


def test_who_lost_a_race_counts_against_what_the_winner_left() -> None:
    store = MemoryStore()
    table, other = new_table(store=store), Table(store)
    commit_behind(table, 2, append(other, (1, 7)))
    first, second = meet(table, append(table, (1, 1)), append(table, (2, 2)))
    assert (first.version, second.version) == (3, 3)
    assert counters(first) == {"rows": 1, "updates": 1}
    assert counters(second) == {"rows": 1, "inserts": 1}
    assert rows_at(table) == {0: 0, 1: 1, 2: 2}


def test_a_transaction_that_another_process_brings_in_meanwhile_is_done_already() -> None:
    store = MemoryStore()
    table, other = new_table(store=store), Table(store)
    commit_behind(table, 3, append(other, (1, 7), transaction=by("a", 0)))
    done, *others = meet(
        table,
        append(table, (1, 1), transaction=by("a", 0)),
        append(table, (2, 2), transaction=by("b", 0)),
        append(table, (3, 3)),
    )
    assert done is None
    assert all(isinstance(commit, Commit) for commit in others)
    assert rows_at(table) == {0: 0, 1: 7, 2: 2, 3: 3}


def test_after_another_process_altered_the_table_each_is_planned_anew() -> None:
    store, narrow = MemoryStore(), schema_of(Scope.ARRIVAL, value=pa.int32())
    table, other = make_table(store, narrow), Table(store)
    gate = struck(table, lambda: other.alter(schema_of(Scope.ARRIVAL, value=pa.int64())))
    small = [rows((key, 2)).set_column(1, "v", pa.array([2], pa.int32())) for key in range(3)]
    first, *others = (partial(table.upsert, each) for each in small)
    commits = gate.meet(first, others)
    assert sorted(commit.version for commit in commits) == [1, 3, 4]
    assert table.schema.columns.field("v").type == pa.int64()
    assert rows_at(table) == {0: 2, 1: 2, 2: 2}


# -- many threads ------------------------------------------------------------------------


def test_what_many_threads_append_is_there_once_and_that_of_a_thread_in_order() -> None:
    table, threads, appends = new_table(), 8, 20
    barrier = threading.Barrier(threads)

    def work(number: int) -> list[Commit]:
        barrier.wait(300)
        commits = []
        for index in range(appends):
            pairs = rows((number, index), (100 + index, number))
            commits.append(table.upsert(pairs, transaction=by(f"w{number}", index)))
        return [commit for commit in commits if commit is not None]

    with ThreadPoolExecutor(threads) as pool:
        commits = list(pool.map(work, range(threads)))
    for versions in ([commit.version for commit in of_thread] for of_thread in commits):
        assert versions == sorted(set(versions)), "each of a thread is a later version"
    values = rows_at(table)
    assert {key: values[key] for key in range(threads)} == dict.fromkeys(
        range(threads), appends - 1
    )
    assert table.log.head().transactions == {f"w{n}": appends - 1 for n in range(threads)}
    total = sum((Counters.from_json(c.counters) for of in commits for c in of), Counters())
    assert total.rows == 2 * threads * appends
    assert total.live_delta == len(values) == table.log.head().live_rows
    assert table.check().is_sound
