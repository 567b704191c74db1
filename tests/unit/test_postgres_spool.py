"""The spool of a PostgreSQL stream: offsets, replays, limits and tasks, without a server."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle

from pyspark_upsertflow.postgres import PostgresSource
from pyspark_upsertflow.postgres_reader import change_columns
from pyspark_upsertflow.registration import by_value
from spark_upsert.core.lsn import format_lsn
from spark_upsert.errors import CorruptionError, DataLossError, OptionError, OtherTableError
from spark_upsert.options.postgres import PostgresOptions
from spark_upsert.postgres.catalog import SourceTable
from spark_upsert.postgres.copies import Visibility
from spark_upsert.postgres.feed import BatchEnd
from spark_upsert.postgres.messages import COMMIT_LSN, EMPTY, OP, PUT, REASON, SEQUENCE, XID
from spark_upsert.postgres.spool import RowsByTable
from spark_upsert.replication.rows import SourcePart, Target
from spark_upsert.replication.spooled import (
    BATCHES_AHEAD,
    SourceOffset,
    SpoolDestination,
    decode_rows,
)
from spark_upsert.replication.state import CopiedTable, FollowerState, read_state
from spark_upsert.replication.stream import SourceStream, SourceTask
from spark_upsert.replication.target import PlannedBatch
from spark_upsert.routed.group import SourcePosition
from spark_upsert.store.open import open_store

ROWS_MAX = 10
FIRST = SourceOffset(system="7", database="shop", slot="lake", lsn=100)
STATE = FollowerState(
    system="7", database="shop", slot="lake", publication="p", start=100, lower=100, upper=100
)
TABLE = SourceTable(1, "s", "a", ("id",), (), (), 0, None, 5, (), (), ("s", "a"))
OPTIONS = {
    "url": "postgresql://me:hunter2@db/shop",
    "slotName": "lake",
    "maxRowsPerTrigger": str(ROWS_MAX),
    "parallelism": "4",
}


class StillStream(SourceStream):
    """A stream whose thread ends at once: the test writes its batches."""

    def _run(self) -> None:
        self._has_ended = True


def rows_of(first: int, count: int, lsn: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "id": pa.array(np.arange(first, first + count)),
            OP: pa.repeat(PUT, count),
            COMMIT_LSN: pa.repeat(lsn, count),
            SEQUENCE: pa.array(np.arange(count)),
            XID: pa.nulls(count, pa.int64()),
            REASON: pa.nulls(count, pa.string()),
        }
    )


def write(
    spool: SpoolDestination,
    number: int,
    counts: dict[str, int],
    *,
    is_copy: bool = False,
    is_cut: bool = False,
) -> SourceOffset:
    """Write a batch with so many rows of each table."""
    upper = 100 + 10 * number
    copied = CopiedTable(source=TABLE, visibility=Visibility(0, 0, ()), lsn=100)
    state = replace(STATE, number=number, lower=upper - 10, upper=upper, tables={1: copied})
    with RowsByTable() as rows:
        for table, count in counts.items():
            rows.add(table, rows_of(0, count, upper))
        spool.write(
            state,
            PlannedBatch(
                rows=rows,
                targets={("s", t): Target(("id",), [SourcePart(t, None, False)]) for t in counts},
                end=BatchEnd(
                    lower=state.lower,
                    upper=upper,
                    transaction_count=1,
                    committed_us=7,
                    is_cut=is_cut,
                ),
                is_copy=is_copy,
                is_consistent=True,
            ),
        )
    newest = spool.newest
    assert newest is not None
    return newest


@pytest.fixture
def options(tmp_path: Path) -> PostgresOptions:
    return PostgresOptions.parse({**OPTIONS, "spool": str(tmp_path / "spool")})


@pytest.fixture
def spool(options: PostgresOptions) -> SpoolDestination:
    spool = SpoolDestination(open_store(options.spool), ROWS_MAX)
    spool.begin(FIRST)
    return spool


def opened(options: PostgresOptions, start: SourceOffset) -> SourceStream:
    """Return a stream that was started again at an offset."""
    stream = StillStream(options)
    assert stream.latest(start) is not None
    return stream


def plan(spool: SpoolDestination, number: int) -> None:
    """Note a batch as planned, as the thread does before it writes it."""
    upper = 100 + 10 * number
    state = read_state(spool.store) or STATE
    replace(state, number=number, lower=upper - 10, upper=upper).put(spool.store)


def values(options: PostgresOptions, tasks: Sequence[SourceTask]) -> list[tuple[Any, ...]]:
    """Return the rows of tasks, sorted."""
    store = open_store(options.spool)
    rows = []
    for task in tasks:
        for chunk in task.chunks:
            decoded, keys = decode_rows(chunk.read(store))
            assert keys == ("id",)
            assert decoded.num_rows == chunk.rows
            ids = decoded.select(["id", OP, COMMIT_LSN]).to_pylist()
            rows += [(chunk.table, *row.values()) for row in ids]
    return sorted(rows, key=repr)


def test_offsets_have_one_text_and_no_secret() -> None:
    offset = SourceOffset(
        system="7", database="shop", slot="lake", lsn=(2 << 32) + 255, number=3, copy=1, tables="ab"
    )
    text = json.dumps(offset.to_json())
    assert text == (
        '{"copy": 1, "database": "shop", "lsn": "2/FF", "number": 3, "slot": "lake", '
        '"system": "7", "tables": "ab", "version": 1}'
    )
    assert SourceOffset.from_json(json.loads(text)) == offset
    for wrong in ({}, {**offset.to_json(), "version": 2}, {**offset.to_json(), "lsn": "no"}):
        with pytest.raises(CorruptionError, match="no position in the log"):
            SourceOffset.from_json(wrong)


def test_a_batch_that_was_planned_has_the_same_rows_after_a_restart(
    options: PostgresOptions, spool: SpoolDestination
) -> None:
    write(spool, 0, {"a": 3, "b": 2})
    end = write(spool, 1, {"a": 4})
    plan(spool, 1)
    tasks = opened(options, FIRST).tasks(FIRST, end)
    assert len(values(options, tasks)) == 9
    # More has come, and the stream is asked for the batch before anything else.
    write(spool, 2, {"b": 5})
    plan(spool, 2)
    again = StillStream(options)
    assert values(options, again.tasks(FIRST, end)) == values(options, tasks)
    assert [t.position for t in again.tasks(FIRST, end)] == [t.position for t in tasks]
    [empty] = again.tasks(end, end)
    assert (empty.chunks, empty.position) == ((), SourcePosition(lsn=format_lsn(end.lsn)))
    [empty] = again.tasks(FIRST, FIRST)
    assert empty.position == SourcePosition(lsn="0/64", is_whole=False)


def test_a_batch_ends_at_the_limit_and_copies_are_alone(
    options: PostgresOptions, spool: SpoolDestination
) -> None:
    ends = [
        write(spool, 0, {"a": 2}, is_copy=True),
        write(spool, 1, {"a": 4}),
        write(spool, 2, {"a": 6}),
        write(spool, 3, {"a": 1}),
        write(spool, 4, {"a": 50}),
        write(spool, 5, {"b": 0}, is_copy=True),
        write(spool, 6, {"a": 1}, is_cut=True),
        write(spool, 7, {"a": 1}),
    ]
    plan(spool, 7)
    stream = opened(options, FIRST)
    reached, steps = FIRST, []
    while (end := stream.latest(reached)) != reached:
        steps.append(end.number)
        reached = end
    assert steps == [0, 2, 3, 4, 5, 6, 7]
    assert reached == ends[-1]
    assert stream.latest(reached) == reached
    assert (ends[0].copy, ends[4].copy, ends[5].copy) == (0, 0, 5)


@dataclass
class Ending:
    """A replicator that ends, perhaps by an error, while the stream waits for it."""

    error: Exception | None
    until: int | None = 1
    may_end: threading.Event = field(default_factory=threading.Event)

    def run(self, report: object) -> None:
        self.may_end.wait()
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [None, DataLossError("gone")], ids=["at its end", "by an error"])
def test_a_stream_that_ends_waits_for_its_thread(
    options: PostgresOptions, spool: SpoolDestination, error: Exception | None
) -> None:
    plan(spool, 0)
    end = write(spool, 0, {"a": 3})
    stream = SourceStream(options)
    ending = Ending(error)
    stream.__dict__["_replicator"] = ending
    assert stream.latest(FIRST) == end
    threading.Timer(0.01, ending.may_end.set).start()
    if error is None:
        assert stream.latest(end) == end
    else:
        with pytest.raises(DataLossError, match="gone"):
            stream.latest(end)
        with pytest.raises(DataLossError, match="gone"):
            stream.tasks(FIRST, end)


def test_the_slot_is_confirmed_after_a_commit_and_no_file_remains(
    options: PostgresOptions, spool: SpoolDestination
) -> None:
    first = write(spool, 0, {"a": 3})
    second = write(spool, 1, {"a": 3})
    state = replace(STATE, number=1, upper=second.lsn)
    assert spool.confirmable(state, second.lsn) == FIRST.lsn
    spool.take(second)
    assert spool.confirmable(state, second.lsn) == FIRST.lsn
    assert spool.releases(state, 16 << 20)
    assert not spool.releases(state, 1)
    assert not spool.releases(replace(state, number=2), 16 << 20)
    spool.remove(first)
    assert spool.confirmable(state, second.lsn) == first.lsn
    assert [batch.end for batch in spool.after(0)] == [second]
    spool.remove(second)
    left = [*spool.store.list("rows"), *spool.store.list("batches")]
    assert (left, spool.confirmable(state, second.lsn)) == ([], second.lsn)


def test_the_spool_holds_some_batches_and_no_more(spool: SpoolDestination) -> None:
    assert spool._has_room()
    last = FIRST
    for number in range(BATCHES_AHEAD):
        last = write(spool, number, {"a": ROWS_MAX})
    assert not spool._has_room()
    spool.take(last)
    assert spool._has_room()


def test_tasks_have_each_chunk_once_and_a_table_is_not_divided(
    monkeypatch: pytest.MonkeyPatch, options: PostgresOptions, spool: SpoolDestination
) -> None:
    monkeypatch.setattr("spark_upsert.replication.stream._TASK_BYTES", 1)
    monkeypatch.setattr("spark_upsert.replication.spooled.CHUNK_BYTES", 1)
    monkeypatch.setattr("spark_upsert.replication.spooled.FILE_BYTES", 1)
    write(spool, 0, {"a": 3, "b": 2, "c": 1})
    end = write(spool, 1, {"a": 1, "b": 1})
    plan(spool, 1)
    tasks = opened(options, FIRST).tasks(FIRST, end)
    assert len(tasks) == 3
    assert [task.position is not None for task in tasks] == [True, False, False]
    assert all(len({chunk.table for chunk in task.chunks}) == 1 for task in tasks)
    assert len(values(options, tasks)) == 8
    assert len({chunk.file for task in tasks for chunk in task.chunks}) == 5


def test_each_chunk_of_a_copy_empties_the_table_before_its_rows(
    monkeypatch: pytest.MonkeyPatch, options: PostgresOptions, spool: SpoolDestination
) -> None:
    monkeypatch.setattr("spark_upsert.replication.spooled.CHUNK_BYTES", 1)
    state = replace(STATE, number=0)
    with RowsByTable() as rows:
        for first in (0, 5):
            batch = rows_of(first, 5, 0).to_pydict()
            batch[COMMIT_LSN], batch[SEQUENCE] = ([n] * 5 for n in state.copy_place)
            rows.add("a", pa.RecordBatch.from_pydict(batch, rows_of(0, 0, 0).schema))
        target = Target(("id",), [SourcePart("a", None, False)])
        end = BatchEnd(lower=100, upper=100, transaction_count=0, committed_us=0)
        planned = PlannedBatch(
            rows=rows, targets={("s", "a"): target}, end=end, is_copy=True, is_consistent=False
        )
        spool.write(state, planned)
    [batch] = spool.after(-1)
    assert (batch.end.tables, batch.end.lsn) == ("", 100)
    assert len(batch.chunks) == 2
    for chunk in batch.chunks:
        decoded, _ = decode_rows(chunk.read(spool.store))
        order = decoded.select([OP, COMMIT_LSN, SEQUENCE]).to_pylist()
        assert [*order[0].values()] == [EMPTY, 99, 0]
        assert {tuple(row.values()) for row in order[1:]} == {(PUT, 99, 1)}


def test_a_lost_copy_is_data_loss_with_both_positions(
    options: PostgresOptions, spool: SpoolDestination
) -> None:
    first = write(spool, 0, {"a": 3}, is_copy=True)
    second = write(spool, 1, {"a": 3}, is_copy=True)
    plan(spool, 1)
    spool.clear()
    with pytest.raises(DataLossError, match=r"from 0/64 to 0/64, with copies"):
        StillStream(options).tasks(FIRST, first)
    with pytest.raises(DataLossError, match=r"from 0/64 to 0/6E, with copies"):
        StillStream(options).tasks(first, second)


@pytest.mark.parametrize(("missing", "names"), [("rows", 1), ("batches", 1)])
def test_a_batch_without_all_its_files_is_lost(
    options: PostgresOptions, spool: SpoolDestination, missing: str, names: int
) -> None:
    end = write(spool, 0, {"a": 3})
    plan(spool, 0)
    [path] = [info.path for info in spool.store.list(missing)]
    spool.store.delete(path)
    with pytest.raises(DataLossError, match="has lost"):
        StillStream(options).tasks(FIRST, end)


def test_a_checkpoint_of_another_source_is_refused(
    options: PostgresOptions, spool: SpoolDestination
) -> None:
    write(spool, 0, {"a": 3})
    plan(spool, 0)
    with pytest.raises(OtherTableError, match="slot 'other', and the option 'slotName' is 'lake'"):
        StillStream(options).latest(replace(FIRST, slot="other"))
    with pytest.raises(OtherTableError, match="database 'shop' in system 8"):
        StillStream(options).latest(replace(FIRST, system="8"))


def test_no_secret_leaves_the_driver(options: PostgresOptions) -> None:
    given = {**OPTIONS, "spool": options.spool}
    for source in (
        PostgresSource(dict(given)),
        by_value(None, 2, "upsertflow.postgres", "pyspark_upsertflow_postgres")(dict(given)),
    ):
        assert "hunter2" in str(source.options)
        reader = source.streamReader(change_columns())
        assert b"hunter2" not in cloudpickle.dumps((source, reader))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"url": ""}, "'url' is required"),
        ({"spool": ""}, "'spool' is required"),
        ({"tableIncludeList": "a,("}, "'tableIncludeList'"),
        ({"tableIncludeList": "a", "tableExcludeList": "b"}, "contradict"),
        ({"maxRowsPerTrigger": "0"}, "'maxRowsPerTrigger'"),
        ({"tableincludelists": "a"}, "Did you mean 'tableIncludeList'"),
    ],
)
def test_options_are_checked_without_their_secrets(
    tmp_path: Path, given: dict[str, str], words: str
) -> None:
    with pytest.raises(OptionError, match=words) as error:
        PostgresOptions.parse({**OPTIONS, "spool": str(tmp_path), **given})
    assert "hunter2" not in str(error.value)
