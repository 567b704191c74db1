"""Hints of a table: other writers, damaged files, clocks, expiries and mirrors."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
from click.testing import CliRunner

from spark_upsert.cli.commands import upsertflow
from spark_upsert.core.schema import Scope, TableSchema
from spark_upsert.delta.place import place_of
from spark_upsert.delta.publish import Mirror
from spark_upsert.envelopes.write_plan import plan_upon
from spark_upsert.options.read import ReadOptions
from spark_upsert.options.write import WriteOptions
from spark_upsert.store.open import open_store
from spark_upsert.store.records import encode, read_record
from spark_upsert.table.changelog.render import new_values
from spark_upsert.table.log import storage
from spark_upsert.table.log.codec import commit_path
from spark_upsert.table.log.manifest import Commit, Transaction
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.hints.told import Told
from tests.support.clocked import DAY_S, HOUR_S, ClockedStore, Now
from tests.support.column_types import ROWS, TYPES, earlier_release
from tests.support.delta import DeltaTable
from tests.support.lived import EVERY, dreamt
from tests.support.model import Command
from tests.support.stores import FaultyStore, Steps, forget_runs_and_logs
from tests.support.tables import append, rows_at, schema_of
from tests.support.written import ROW, Rows, rows_of, write, write_and_open

YEARS_S = 80 * 365 * DAY_S
DAY_MS = int(1000 * DAY_S)
RECORDS = pa.schema({"key": pa.binary(), "value": pa.binary(), "offset": pa.int64()})
FLATTENED: Rows = {**ROW, "__deleted": ["false"]}
UNSENT: Rows = {**FLATTENED, "v": ["__debezium_unavailable_value"]}
TIME = pa.timestamp("us", "UTC")
TTL = {"rowTtl": "1 day", "rowTtlBy": "at"}
OLD = datetime(2020, 1, 1, tzinfo=UTC)
DEBEZIUM = {"envelope": "debezium", "valueFormat": "json", "valueSchema": "id BIGINT, v STRING"}


def by(writer: str, number: int, *, is_consecutive: bool = False) -> Transaction:
    return Transaction(writer=writer, number=number, is_consecutive=is_consecutive)


def record(event: dict[str, object]) -> pa.Table:
    """Return a change event as one record of Kafka, whose key is the ``id`` 1."""
    columns = {"key": [b'{"id": 1}'], "value": [json.dumps(event).encode()], "offset": [1]}
    return pa.table(columns, schema=RECORDS)


def rows_with(values: pa.Array) -> pa.Table:
    return pa.table({"id": range(len(values)), "w": ["a"] * len(values), "v": values})


def table_in(folder: Path, name: str = "table", **types: pa.DataType) -> Table:
    columns = pa.schema({"id": pa.int64(), **types})
    table = Table.create(str(folder / name), columns, keys=["id"])
    table.upsert(pa.table({"id": [1], **{n: pa.nulls(1, type_) for n, type_ in types.items()}}))
    return table


def require_copy(table: Table, to: str | None = None) -> None:
    rows = DeltaTable(place_of(table.store, to)).rows()
    assert rows.num_rows == table.snapshot().num_rows


def test_times_that_are_yet_to_come(told: Told) -> None:
    now = Now()
    store = ClockedStore(now)
    table = Table(store, clock=now)
    table.ensure(schema_of(Scope.EPOCH))
    now.advance(HOUR_S)
    append(table, [Command(1, 1, 1)])
    path = commit_path(1)
    record = json.loads(store.objects[path])
    del record["crc"]
    store.objects[path] = encode(
        {**record, "timestamp_ms": record["timestamp_ms"] + int(1000 * YEARS_S)}
    )
    with told:
        Table(store, clock=now).expire(retain_ms=DAY_MS)
    told("run 'upsertflow repair-clock' on the table")
    assert "repair-clock" in upsertflow.commands
    Table(store, clock=now).repair_clock()
    Table(store, clock=now).expire(retain_ms=DAY_MS)


def test_a_writer_that_was_forgotten(told: Told) -> None:
    now = Now()
    table = Table(ClockedStore(now), clock=now)
    table.ensure(schema_of(Scope.EPOCH))
    for writer in ("old", "new"):
        now.advance(100 * DAY_S)
        append(table, [Command(1, 1, 0)], transaction=by(writer, 4))
    table.expire(retain_ms=DAY_MS)
    with told:
        append(table, [Command(2, 2, 0)], transaction=by("old", 5))
    told("write under another name")
    assert append(table, [Command(2, 2, 0)], transaction=by("other", 0))


def test_missing_batches(told: Told) -> None:
    query = Transaction.writer_of_query("one")
    table = write_and_open(told.folder)
    rows = rows_of(ROW)
    with told:
        table.upsert(rows, transaction=by(query, 7, is_consecutive=True))
    told("give the query a new checkpointLocation, so that it begins anew")
    anew = Transaction.writer_of_query("two")
    assert table.upsert(rows, transaction=by(anew, 0, is_consecutive=True))
    told("give allow_missing_batches=true")
    assert table.upsert(rows, transaction=by(query, 7))


def test_late_rows(told: Told) -> None:
    options = {"sequenceBy": "n", "applyAsDeletes": "gone", "tombstoneRetention": "1 ms"}
    path = told.folder / "table"

    def written(key: int, n: int, *, gone: bool = False) -> None:
        rows = {"id": [key], "n": [n], "v": ["a"], "gone": [gone]}
        write(told.folder, rows, **options)

    for n in range(1, 5):
        written(1, n)
    written(1, 9, gone=True)
    table = Table.open(str(path))
    for _ in range(8):
        if table.log.head().low_water is not None:
            break
        table.compact(full=True)
        written(2, 10)
    late = rows_of({"id": [3], "n": [2], "v": ["late"]})
    with told:
        table.upsert(late)
    told("give late_rows=apply")
    shutil.copytree(path, told.folder / "copy")
    assert table.upsert(late, late_rows=LateRows.APPLY)
    told("late_rows=reject leaves them out")
    forget_runs_and_logs()
    shutil.rmtree(path)
    shutil.copytree(told.folder / "copy", path)
    assert Table.open(str(path)).upsert(late, late_rows=LateRows.REJECT)


def test_a_record_of_an_earlier_release(told: Told) -> None:
    table = write_and_open(told.folder)
    record = read_record(table.store, commit_path(0), dict)
    assert record is not None
    table.store.put(commit_path(0), encode({**record, "transactions": {"w": time.time()}}))
    forget_runs_and_logs()
    with told:
        Table.open(table.store.url)
    told("run 'upsertflow repair' with the path of the table")
    assert CliRunner().invoke(upsertflow, ["repair", table.store.url]).exit_code == 0
    assert Table.open(table.store.url).snapshot().num_rows == 1


def test_a_damaged_file(told: Told) -> None:
    table = write_and_open(told.folder)
    write(told.folder, {**ROW, "id": [2]})
    [run] = (told.folder / "table" / "data").rglob(
        Path(table.at(1).manifest.slices[-1].file.path).name
    )
    whole = run.read_bytes()
    run.write_bytes(whole[:-1])
    forget_runs_and_logs()
    with told:
        Table.open(str(told.folder / "table")).snapshot()
    told("read an older version that does not use it")
    assert Table.open(str(told.folder / "table")).snapshot(0).num_rows == 1
    told("restore this file from a copy")
    run.write_bytes(whole)
    forget_runs_and_logs()
    assert Table.open(str(told.folder / "table")).snapshot().num_rows == 2


def test_a_gap_in_the_log(told: Told) -> None:
    for number in range(3):
        write(told.folder, {**ROW, "id": [number]})
    lost = told.folder / "table" / commit_path(1)
    data = lost.read_bytes()
    lost.unlink()
    forget_runs_and_logs()
    with told:
        Table.open(str(told.folder / "table"))
    told("restore this file from a copy")
    lost.write_bytes(data)
    assert Table.open(str(told.folder / "table")).snapshot().num_rows == 3


def test_the_rest_of_a_table(told: Told) -> None:
    path = told.folder / "table"
    write(told.folder)
    write(told.folder, {**ROW, "id": [2]})
    lost = path / commit_path(0)
    data = lost.read_bytes()
    lost.unlink()
    forget_runs_and_logs()
    with told:
        Table.create(str(path), rows_of(ROW).schema, keys=["id"])
    told("choose another path")
    Table.create(str(told.folder / "other"), rows_of(ROW).schema, keys=["id"])
    told(f"restore '{lost}' from a copy")
    lost.write_bytes(data)
    assert Table.open(str(path)).snapshot().num_rows == 2
    told("finish the copy or the removal of that table")
    shutil.rmtree(path)
    forget_runs_and_logs()
    Table.create(str(path), rows_of(ROW).schema, keys=["id"])


def test_a_damaged_lease(told: Told) -> None:
    table = write_and_open(told.folder)
    table.hold("me", 0)
    [lease] = (told.folder / "table" / "_consumers").iterdir()
    lease.write_text("{")
    with told:
        table.expire(retain_versions=0, safety_ms=0)
    told("restart that consumer, which writes its lease anew")
    table.hold("me", 0)
    table.expire(retain_versions=0, safety_ms=0)
    lease.write_text("{")
    told("delete the file if the consumer is no more")
    lease.unlink()
    table.expire(retain_versions=0, safety_ms=0)


def test_another_table_in_its_place(told: Told) -> None:
    table = write_and_open(told.folder)
    path = told.folder / "table"
    shutil.move(path, told.folder / "before")
    write(told.folder)
    with told:
        table.upsert(rows_of(ROW))
    told("else open the table anew")
    assert Table.open(str(path)).upsert(rows_of({**ROW, "id": [5]}))
    told("put back what was there")
    shutil.rmtree(path)
    shutil.move(told.folder / "before", path)
    assert table.upsert(rows_of({**ROW, "id": [6]}))


def staged_then(told: Told, between: Callable[[], None], **options: str) -> None:
    """Stage an epoch, let others act, commit it, and be told; then write it again."""
    given = {"keys": "id", "path": str(told.folder / "table"), **options}
    parsed = WriteOptions.parse(given)
    table = Table(open_store(parsed.path))
    plan = plan_upon(table, parsed, rows_of(ROW).schema)
    base = Snapshot(table.store, plan.base)
    commands = (plan.envelope.commands(batch) for batch in rows_of(ROW).to_batches())
    staged = (stage(base, commands, late_rows=LateRows.FAIL),)
    between()
    with told:
        table.commit(WriteSet(base=base, staged=staged, late_rows=LateRows.FAIL))
    told("write it again")
    write(told.folder, ROW, **options)


def test_other_properties_since_the_plan(told: Told) -> None:
    write(told.folder)
    staged_then(told, lambda: void(write(told.folder, {**ROW, "id": [9]}, onError="quarantine")))


def test_files_that_a_vacuum_removed(told: Told) -> None:
    write(told.folder)

    def expire() -> None:
        for number in range(2, 5):
            write(told.folder, {**ROW, "id": [number]})
        table = Table.open(str(told.folder / "table"))
        table.expire(retain_versions=0, safety_ms=0)
        table.vacuum(grace_ms=0)

    staged_then(told, expire)


def void(_: object) -> None:
    """Return nothing of what a write returns."""


def test_rows_of_a_key_in_two_tasks(told: Told) -> None:
    def tasks(*values: str, **options: str) -> None:
        given = {"keys": "id", "path": str(told.folder / "table"), **options}
        parsed = WriteOptions.parse(given)
        table = Table(open_store(parsed.path))
        plan = plan_upon(table, parsed, rows_of(ROW).schema)
        base = Snapshot(table.store, plan.base)
        staged = tuple(
            stage(
                base,
                [plan.envelope.commands(rows_of({**ROW, "v": [value]}).to_batches()[0])],
                late_rows=LateRows.FAIL,
            )
            for value in values
        )
        epoch = WriteSet(
            base=base,
            staged=staged,
            late_rows=LateRows.FAIL,
            allow_unordered=parsed.allow_unordered,
        )
        table.commit(epoch)

    with told:
        tasks("a", "b")
    told("accept any of them by allow_unordered=true")
    tasks("a", "b", **told.options)
    told("or repartition the rows by key before the write")
    tasks("b")


def test_one_of_two_transactions_again(told: Told) -> None:
    table = write_and_open(told.folder)
    table.upsert(rows_of(ROW), transaction=by("a", 1))

    def commit(*writers: str) -> Commit | None:
        options = WriteOptions.parse({"keys": "id", "path": str(told.folder / "table")})
        plan = plan_upon(table, options, rows_of(ROW).schema)
        base = Snapshot(table.store, plan.base)
        commands = [plan.envelope.commands(batch) for batch in rows_of(ROW).to_batches()]
        staged = (stage(base, commands, late_rows=LateRows.FAIL),)
        transactions = tuple(by(writer, 1) for writer in writers)
        return table.commit(WriteSet(base=base, staged=staged, transactions=transactions))

    with told:
        commit("a", "b")
    told("stage the others again without the rows of those")
    assert commit("b")


def test_a_truncate_in_a_batch_with_late_rows(told: Told) -> None:
    truncates = {**DEBEZIUM, "sequenceBy": "source.lsn", "onTruncate": "overwrite"}
    event = record({"before": None, "after": None, "op": "t", "source": {"lsn": 9}})
    write(
        told.folder,
        record({"after": {"id": 1, "v": "a"}, "op": "c", "source": {"lsn": 1}}),
        **truncates,
    )
    options = WriteOptions.parse({**truncates, "path": str(told.folder / "table")})
    table = Table.open(options.path)
    envelope = plan_upon(table, options, event.schema).envelope
    with told:
        table.upsert(event, envelope=envelope, late_rows=LateRows.APPLY)
    told("use mode 'append' and no lateRows=apply")
    table.upsert(event, envelope=envelope)
    assert table.snapshot().num_rows == 0


def test_a_commit_whose_outcome_is_unknown(told: Told) -> None:
    row = [Command(1000, 1, 1)]
    with patch.object(storage, "CHECKPOINT_EVERY", EVERY):
        _, sleeper = dreamt(7, before=False)
        with told:
            append(sleeper, row)
        told("look at the table before you write these rows again")
        assert rows_at(sleeper)[1000] == 1
        told("give writes a transaction ('txnAppId' and 'txnVersion')")
        _, sleeper = dreamt(7, before=False)
        assert append(sleeper, row, transaction=by("w", 1))


def test_a_folder_that_is_not_empty(told: Told) -> None:
    for name in ("theirs", "theirs too"):
        (told.folder / name).mkdir()
        (told.folder / name / "part-0.parquet").write_bytes(b"")
    with told:
        write(told.folder, name="theirs")
    told("choose an empty folder")
    write(told.folder, name="empty")
    told("allow_non_empty_path=true")
    write(told.folder, name="theirs", **told.options)
    path = str(told.folder / "theirs too")
    told("'Table.create' and a write also take")
    Table.create(path, rows_of(ROW).schema, keys=["id"], allow_non_empty_path=True)


def test_another_order(told: Told) -> None:
    write(told.folder, sequenceBy="n")
    with told:
        write(told.folder, sequenceBy="v")
    told("write into a new table")
    write(told.folder, name="new", sequenceBy="v")


def test_a_column_that_no_release_reads(told: Told) -> None:
    path = str(told.folder / "table")
    with earlier_release():
        write(told.folder, rows_with(TYPES["dense_union"].given))
    forget_runs_and_logs()
    with told:
        Table.open(path).snapshot()
    told("run 'upsertflow repair' with the path of the table")
    assert CliRunner().invoke(upsertflow, ["repair", path]).exit_code == 0
    assert Table.open(path).snapshot().num_rows == ROWS
    told("name the other columns (columns=...)")
    assert Table.open(path).snapshot(0, columns=["id", "w"]).num_rows == ROWS


def with_past(told: Told) -> Table:
    """Return a table with versions 0 to 2, of which only the last can be read."""
    path = str(told.folder / "table")
    for n in (1, 2, 3):
        write(told.folder, {**ROW, "n": [n]})
    table = Table.open(path)
    table.expire(retain_versions=0, safety_ms=0)
    return Table.open(path)


def test_expired_changes(told: Told) -> None:
    table = with_past(told)
    with told:
        table.changes(0)
    told("(1) begin anew: a stream with a new checkpointLocation and without a starting version")
    assert table.snapshot().num_rows == 1


def test_deletes_in_a_stream_of_values(told: Told) -> None:
    table = write_and_open(told.folder, {**ROW, "gone": [False]}, applyAsDeletes="gone")
    write(told.folder, {**ROW, "gone": [True]}, applyAsDeletes="gone")
    changes = table.changes(0).to_batches()
    with told:
        list(new_values(changes, ReadOptions.parse({"path": "/"}), keys=["id"]))
    told("(2) ignore_deletes=true leaves deletes out")
    wanted = ReadOptions.parse({"path": "/", "ignoreDeletes": "true"})
    [batch] = new_values(changes, wanted, keys=["id"])
    [row] = batch.to_pylist()
    assert row["_change_type"] == "insert"
    told("(1) read_change_feed=true delivers deletes")
    assert [row["_change_type"] for row in table.changes(0).to_pylist()] == ["insert", "delete"]


def full(told: Told, **caps: str) -> Table:
    table = write_and_open(told.folder, ROW, **caps)
    table.hold("slow", 0)
    return table


def test_a_full_table(told: Told) -> None:
    table = full(told, maxBacklogEpochs="1")
    write(told.folder, {**ROW, "v": ["b"]})
    with told:
        write(told.folder, {**ROW, "v": ["c"]}, onFullTimeout="1 ms")
    told(
        "raise the table's max_backlog_epochs"
        if "max_backlog" in told.hint
        else "maxBacklogEpochs=..."
    )
    write(told.folder, {**ROW, "v": ["c"]}, maxBacklogEpochs="2")
    with told:
        write(told.folder, {**ROW, "v": ["d"]}, onFullTimeout="1 ms")
    told("run 'upsertflow consumers --release slow'")
    table.release("slow")
    write(told.folder, {**ROW, "v": ["d"]})


def test_a_value_that_was_not_sent(told: Told) -> None:
    with told:
        write(told.folder, UNSENT, applyAsDeletes="__deleted")
    told("a table made with mergeEngine=partial-update keeps the old value")
    options = {"applyAsDeletes": "__deleted", "mergeEngine": "partial-update"}
    for rows in (FLATTENED, UNSENT):
        write(told.folder, rows, "partial", **options)
    assert Table.open(str(told.folder / "partial")).snapshot()["v"].to_pylist() == ["a"]


def test_a_type_that_delta_lacks(told: Told) -> None:
    with told:
        table_in(told.folder, "old", at=pa.time64("us")).publish()
    told("write the values as int64, of microseconds, in a column of another name")
    told("or in a new table")
    table = table_in(told.folder, "new", at_us=pa.int64())
    table.publish()
    require_copy(table)
    told("end the publication with publish=none")
    wide = pa.schema([*table.schema.columns, pa.field("at", pa.time64("us"))])
    table.alter(table.schema, {"publish": "none"})
    table.alter(replace(table.schema, columns=wide), {"publish": "none"})


def test_a_mirror_that_another_program_changed(told: Told) -> None:
    table = table_in(told.folder)
    table.publish()
    actions = [
        {"commitInfo": {"operation": "WRITE", "inCommitTimestamp": 1}},
        {"remove": {"path": "x.parquet"}},
    ]
    path = told.folder / "table" / "_delta" / "_delta_log" / f"{1:020d}.json"
    path.write_text("\n".join(map(json.dumps, actions)))
    with told:
        table.publish()
    told("publish(rebuild=True)")
    table.publish(rebuild=True)
    Mirror(table.log, table.store, place_of(table.store, None))
    assert table.publish().delta_version == 2


def test_the_mirror_of_another_table(told: Told) -> None:
    one, other = (table_in(told.folder, name) for name in ("one", "other"))
    place = str(told.folder / "place")
    one.publish(place)
    with told:
        other.publish(place)
    told("publish to another place")
    other.publish(str(told.folder / "another place"))
    require_copy(other, str(told.folder / "another place"))
    told("rebuild it (publish(rebuild=True)")
    other.publish(place, rebuild=True)
    require_copy(other, place)


def test_an_expiry_of_rows_that_writers_overtake(told: Told) -> None:
    now = Now()
    store = ClockedStore(now)
    table = Table(store, clock=now)
    columns = pa.schema({"id": pa.int64(), "at": TIME})
    table.ensure(TableSchema.of(columns, keys=["id"]), TTL)

    def append(*keys: int) -> None:
        rows = {"id": keys, "at": pa.array([OLD] * len(keys), TIME)}
        table.upsert(pa.table(rows, schema=columns))

    def overtake() -> None:
        if fast.names[-1].startswith("create "):  # The deletes of each try are being written.
            append(2)

    append(1)
    fast = Steps(watch=overtake)
    with told:
        Table(FaultyStore(store, fast), clock=now).expire_rows()
    assert table.snapshot().num_rows == 2
    told("try again when fewer write")
    table.expire_rows()
    assert not table.snapshot().num_rows
    append(1)
    told("the next expiry does")
    table.expire_rows()
    assert not table.snapshot().num_rows
