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
from spark_upsert.delta.log import open_mirror_store
from spark_upsert.delta.publish import Mirror
from spark_upsert.envelopes.write_plan import plan_table_write
from spark_upsert.options.read import ReadOptions
from spark_upsert.options.write import WriteOptions
from spark_upsert.store.open import open_store
from spark_upsert.store.records import encode, read_record
from spark_upsert.table.changelog.read import new_values
from spark_upsert.table.log import storage
from spark_upsert.table.log.codec import commit_path
from spark_upsert.table.log.manifest import Commit, Transaction
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.hints.followed_hint import FollowedHint
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
    rows = DeltaTable(open_mirror_store(table.store, to)).rows()
    assert rows.num_rows == table.snapshot().num_rows


def test_times_that_are_yet_to_come(hint: FollowedHint) -> None:
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
    with hint:
        Table(store, clock=now).expire(retain_ms=DAY_MS)
    hint("run 'upsertflow repair-clock' on the table")
    assert "repair-clock" in upsertflow.commands
    Table(store, clock=now).repair_clock()
    Table(store, clock=now).expire(retain_ms=DAY_MS)


def test_a_writer_that_was_forgotten(hint: FollowedHint) -> None:
    now = Now()
    table = Table(ClockedStore(now), clock=now)
    table.ensure(schema_of(Scope.EPOCH))
    for writer in ("old", "new"):
        now.advance(100 * DAY_S)
        append(table, [Command(1, 1, 0)], transaction=by(writer, 4))
    table.expire(retain_ms=DAY_MS)
    with hint:
        append(table, [Command(2, 2, 0)], transaction=by("old", 5))
    hint("write under another name")
    assert append(table, [Command(2, 2, 0)], transaction=by("other", 0))


def test_missing_batches(hint: FollowedHint) -> None:
    query = Transaction.writer_of_query("one")
    table = write_and_open(hint.folder)
    rows = rows_of(ROW)
    with hint:
        table.upsert(rows, transaction=by(query, 7, is_consecutive=True))
    hint("give the query a new checkpointLocation, so that it begins anew")
    anew = Transaction.writer_of_query("two")
    assert table.upsert(rows, transaction=by(anew, 0, is_consecutive=True))
    hint("give allow_missing_batches=true")
    assert table.upsert(rows, transaction=by(query, 7))


def test_late_rows(hint: FollowedHint) -> None:
    options = {"sequenceBy": "n", "applyAsDeletes": "gone", "tombstoneRetention": "1 ms"}
    path = hint.folder / "table"

    def written(key: int, n: int, *, gone: bool = False) -> None:
        rows = {"id": [key], "n": [n], "v": ["a"], "gone": [gone]}
        write(hint.folder, rows, **options)

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
    with hint:
        table.upsert(late)
    hint("give late_rows=apply")
    shutil.copytree(path, hint.folder / "copy")
    assert table.upsert(late, late_rows=LateRows.APPLY)
    hint("late_rows=reject leaves them out")
    forget_runs_and_logs()
    shutil.rmtree(path)
    shutil.copytree(hint.folder / "copy", path)
    assert Table.open(str(path)).upsert(late, late_rows=LateRows.REJECT)


def test_a_record_of_an_earlier_release(hint: FollowedHint) -> None:
    table = write_and_open(hint.folder)
    record = read_record(table.store, commit_path(0), dict)
    assert record is not None
    table.store.put(commit_path(0), encode({**record, "transactions": {"w": time.time()}}))
    forget_runs_and_logs()
    with hint:
        Table.open(table.store.url)
    hint("run 'upsertflow repair' with the path of the table")
    assert CliRunner().invoke(upsertflow, ["repair", table.store.url]).exit_code == 0
    assert Table.open(table.store.url).snapshot().num_rows == 1


def test_a_damaged_file(hint: FollowedHint) -> None:
    table = write_and_open(hint.folder)
    write(hint.folder, {**ROW, "id": [2]})
    [run] = (hint.folder / "table" / "data").rglob(
        Path(table.at(1).manifest.slices[-1].file.path).name
    )
    whole = run.read_bytes()
    run.write_bytes(whole[:-1])
    forget_runs_and_logs()
    with hint:
        Table.open(str(hint.folder / "table")).snapshot()
    hint("read an older version that does not use it")
    assert Table.open(str(hint.folder / "table")).snapshot(0).num_rows == 1
    hint("restore this file from a copy")
    run.write_bytes(whole)
    forget_runs_and_logs()
    assert Table.open(str(hint.folder / "table")).snapshot().num_rows == 2


def test_a_gap_in_the_log(hint: FollowedHint) -> None:
    for number in range(3):
        write(hint.folder, {**ROW, "id": [number]})
    lost = hint.folder / "table" / commit_path(1)
    data = lost.read_bytes()
    lost.unlink()
    forget_runs_and_logs()
    with hint:
        Table.open(str(hint.folder / "table"))
    hint("restore this file from a copy")
    lost.write_bytes(data)
    assert Table.open(str(hint.folder / "table")).snapshot().num_rows == 3


def test_the_rest_of_a_table(hint: FollowedHint) -> None:
    path = hint.folder / "table"
    write(hint.folder)
    write(hint.folder, {**ROW, "id": [2]})
    lost = path / commit_path(0)
    data = lost.read_bytes()
    lost.unlink()
    forget_runs_and_logs()
    with hint:
        Table.create(str(path), rows_of(ROW).schema, keys=["id"])
    hint("choose another path")
    Table.create(str(hint.folder / "other"), rows_of(ROW).schema, keys=["id"])
    hint(f"restore '{lost}' from a copy")
    lost.write_bytes(data)
    assert Table.open(str(path)).snapshot().num_rows == 2
    hint("finish the copy or the removal of that table")
    shutil.rmtree(path)
    forget_runs_and_logs()
    Table.create(str(path), rows_of(ROW).schema, keys=["id"])


def test_a_damaged_lease(hint: FollowedHint) -> None:
    table = write_and_open(hint.folder)
    table.hold("me", 0)
    [lease] = (hint.folder / "table" / "_consumers").iterdir()
    lease.write_text("{")
    with hint:
        table.expire(retain_versions=0, safety_ms=0)
    hint("restart that consumer, which writes its lease anew")
    table.hold("me", 0)
    table.expire(retain_versions=0, safety_ms=0)
    lease.write_text("{")
    hint("delete the file if the consumer is no more")
    lease.unlink()
    table.expire(retain_versions=0, safety_ms=0)


def test_another_table_in_its_place(hint: FollowedHint) -> None:
    table = write_and_open(hint.folder)
    path = hint.folder / "table"
    shutil.move(path, hint.folder / "before")
    write(hint.folder)
    with hint:
        table.upsert(rows_of(ROW))
    hint("else open the table anew")
    assert Table.open(str(path)).upsert(rows_of({**ROW, "id": [5]}))
    hint("put back what was there")
    shutil.rmtree(path)
    shutil.move(hint.folder / "before", path)
    assert table.upsert(rows_of({**ROW, "id": [6]}))


def staged_then(hint: FollowedHint, between: Callable[[], None], **options: str) -> None:
    """Stage an epoch, let others act, commit it, and be hint; then write it again."""
    given = {"keys": "id", "path": str(hint.folder / "table"), **options}
    parsed = WriteOptions.parse(given)
    table = Table(open_store(parsed.path))
    plan = plan_table_write(table, parsed, rows_of(ROW).schema)
    base = Snapshot(table.store, plan.base)
    commands = (plan.envelope.commands(batch) for batch in rows_of(ROW).to_batches())
    staged = (stage(base, commands, late_rows=LateRows.FAIL),)
    between()
    with hint:
        table.commit(WriteSet(base=base, staged=staged, late_rows=LateRows.FAIL))
    hint("write it again")
    write(hint.folder, ROW, **options)


def test_other_properties_since_the_plan(hint: FollowedHint) -> None:
    write(hint.folder)
    staged_then(hint, lambda: void(write(hint.folder, {**ROW, "id": [9]}, onError="quarantine")))


def test_files_that_a_vacuum_removed(hint: FollowedHint) -> None:
    write(hint.folder)

    def expire() -> None:
        for number in range(2, 5):
            write(hint.folder, {**ROW, "id": [number]})
        table = Table.open(str(hint.folder / "table"))
        table.expire(retain_versions=0, safety_ms=0)
        table.vacuum(grace_ms=0)

    staged_then(hint, expire)


def void(_: object) -> None:
    """Return nothing of what a write returns."""


def test_rows_of_a_key_in_two_tasks(hint: FollowedHint) -> None:
    def tasks(*values: str, **options: str) -> None:
        given = {"keys": "id", "path": str(hint.folder / "table"), **options}
        parsed = WriteOptions.parse(given)
        table = Table(open_store(parsed.path))
        plan = plan_table_write(table, parsed, rows_of(ROW).schema)
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

    with hint:
        tasks("a", "b")
    hint("accept any of them by allow_unordered=true")
    tasks("a", "b", **hint.options)
    hint("or repartition the rows by key before the write")
    tasks("b")


def test_one_of_two_transactions_again(hint: FollowedHint) -> None:
    table = write_and_open(hint.folder)
    table.upsert(rows_of(ROW), transaction=by("a", 1))

    def commit(*writers: str) -> Commit | None:
        options = WriteOptions.parse({"keys": "id", "path": str(hint.folder / "table")})
        plan = plan_table_write(table, options, rows_of(ROW).schema)
        base = Snapshot(table.store, plan.base)
        commands = [plan.envelope.commands(batch) for batch in rows_of(ROW).to_batches()]
        staged = (stage(base, commands, late_rows=LateRows.FAIL),)
        transactions = tuple(by(writer, 1) for writer in writers)
        return table.commit(WriteSet(base=base, staged=staged, transactions=transactions))

    with hint:
        commit("a", "b")
    hint("stage the others again without the rows of those")
    assert commit("b")


def test_a_truncate_in_a_batch_with_late_rows(hint: FollowedHint) -> None:
    truncates = {**DEBEZIUM, "sequenceBy": "source.lsn", "onTruncate": "overwrite"}
    event = record({"before": None, "after": None, "op": "t", "source": {"lsn": 9}})
    write(
        hint.folder,
        record({"after": {"id": 1, "v": "a"}, "op": "c", "source": {"lsn": 1}}),
        **truncates,
    )
    options = WriteOptions.parse({**truncates, "path": str(hint.folder / "table")})
    table = Table.open(options.path)
    envelope = plan_table_write(table, options, event.schema).envelope
    with hint:
        table.upsert(event, envelope=envelope, late_rows=LateRows.APPLY)
    hint("use mode 'append' and no lateRows=apply")
    table.upsert(event, envelope=envelope)
    assert table.snapshot().num_rows == 0


def test_a_commit_whose_outcome_is_unknown(hint: FollowedHint) -> None:
    row = [Command(1000, 1, 1)]
    with patch.object(storage, "CHECKPOINT_EVERY", EVERY):
        _, sleeper = dreamt(7, before=False)
        with hint:
            append(sleeper, row)
        hint("look at the table before you write these rows again")
        assert rows_at(sleeper)[1000] == 1
        hint("give writes a transaction ('txnAppId' and 'txnVersion')")
        _, sleeper = dreamt(7, before=False)
        assert append(sleeper, row, transaction=by("w", 1))


def test_a_folder_that_is_not_empty(hint: FollowedHint) -> None:
    for name in ("theirs", "theirs too"):
        (hint.folder / name).mkdir()
        (hint.folder / name / "part-0.parquet").write_bytes(b"")
    with hint:
        write(hint.folder, name="theirs")
    hint("choose an empty folder")
    write(hint.folder, name="empty")
    hint("allow_non_empty_path=true")
    write(hint.folder, name="theirs", **hint.options)
    path = str(hint.folder / "theirs too")
    hint("'Table.create' and a write also take")
    Table.create(path, rows_of(ROW).schema, keys=["id"], allow_non_empty_path=True)


def test_another_order(hint: FollowedHint) -> None:
    write(hint.folder, sequenceBy="n")
    with hint:
        write(hint.folder, sequenceBy="v")
    hint("write into a new table")
    write(hint.folder, name="new", sequenceBy="v")


def test_a_column_that_no_release_reads(hint: FollowedHint) -> None:
    path = str(hint.folder / "table")
    with earlier_release():
        write(hint.folder, rows_with(TYPES["dense_union"].given))
    forget_runs_and_logs()
    with hint:
        Table.open(path).snapshot()
    hint("run 'upsertflow repair' with the path of the table")
    assert CliRunner().invoke(upsertflow, ["repair", path]).exit_code == 0
    assert Table.open(path).snapshot().num_rows == ROWS
    hint("name the other columns (columns=...)")
    assert Table.open(path).snapshot(0, columns=["id", "w"]).num_rows == ROWS


def with_past(hint: FollowedHint) -> Table:
    """Return a table with versions 0 to 2, of which only the last can be read."""
    path = str(hint.folder / "table")
    for n in (1, 2, 3):
        write(hint.folder, {**ROW, "n": [n]})
    table = Table.open(path)
    table.expire(retain_versions=0, safety_ms=0)
    return Table.open(path)


def test_expired_changes(hint: FollowedHint) -> None:
    table = with_past(hint)
    with hint:
        table.changes(0)
    hint("(1) begin anew: a stream with a new checkpointLocation and without a starting version")
    assert table.snapshot().num_rows == 1


def test_deletes_in_a_stream_of_values(hint: FollowedHint) -> None:
    table = write_and_open(hint.folder, {**ROW, "gone": [False]}, applyAsDeletes="gone")
    write(hint.folder, {**ROW, "gone": [True]}, applyAsDeletes="gone")
    changes = table.changes(0).to_batches()
    with hint:
        list(new_values(changes, ReadOptions.parse({"path": "/"}), keys=["id"]))
    hint("(2) ignore_deletes=true leaves deletes out")
    wanted = ReadOptions.parse({"path": "/", "ignoreDeletes": "true"})
    [batch] = new_values(changes, wanted, keys=["id"])
    [row] = batch.to_pylist()
    assert row["_change_type"] == "insert"
    hint("(1) read_change_feed=true delivers deletes")
    assert [row["_change_type"] for row in table.changes(0).to_pylist()] == ["insert", "delete"]


def full(hint: FollowedHint, **caps: str) -> Table:
    table = write_and_open(hint.folder, ROW, **caps)
    table.hold("slow", 0)
    return table


def test_a_full_table(hint: FollowedHint) -> None:
    table = full(hint, maxBacklogEpochs="1")
    write(hint.folder, {**ROW, "v": ["b"]})
    with hint:
        write(hint.folder, {**ROW, "v": ["c"]}, onFullTimeout="1 ms")
    hint(
        "raise the table's max_backlog_epochs"
        if "max_backlog" in hint.text
        else "maxBacklogEpochs=..."
    )
    write(hint.folder, {**ROW, "v": ["c"]}, maxBacklogEpochs="2")
    with hint:
        write(hint.folder, {**ROW, "v": ["d"]}, onFullTimeout="1 ms")
    hint("run 'upsertflow consumers --release slow'")
    table.release("slow")
    write(hint.folder, {**ROW, "v": ["d"]})


def test_a_value_that_was_not_sent(hint: FollowedHint) -> None:
    with hint:
        write(hint.folder, UNSENT, applyAsDeletes="__deleted")
    hint("begin with a snapshot of the source, so that each row comes whole once")
    for rows in (FLATTENED, UNSENT):
        write(hint.folder, rows, "whole", applyAsDeletes="__deleted")
    assert Table.open(str(hint.folder / "whole")).snapshot()["v"].to_pylist() == ["a"]
    hint("keep such rows apart until their values come (on_unknown=quarantine)")
    hint("or show null there (on_unknown=null)")
    for policy, shown in (("quarantine", []), ("null", [None])):
        write(hint.folder, UNSENT, policy, applyAsDeletes="__deleted", onUnknown=policy)
        assert Table.open(str(hint.folder / policy)).snapshot()["v"].to_pylist() == shown


def test_a_type_that_delta_lacks(hint: FollowedHint) -> None:
    with hint:
        table_in(hint.folder, "old", at=pa.time64("us")).publish()
    hint("write the values as int64, of microseconds, in a column of another name")
    hint("or in a new table")
    table = table_in(hint.folder, "new", at_us=pa.int64())
    table.publish()
    require_copy(table)
    hint("end the publication with publish=none")
    wide = pa.schema([*table.schema.columns, pa.field("at", pa.time64("us"))])
    table.alter(table.schema, {"publish": "none"})
    table.alter(replace(table.schema, columns=wide), {"publish": "none"})


def test_a_mirror_that_another_program_changed(hint: FollowedHint) -> None:
    table = table_in(hint.folder)
    table.publish()
    actions = [
        {"commitInfo": {"operation": "WRITE", "inCommitTimestamp": 1}},
        {"remove": {"path": "x.parquet"}},
    ]
    path = hint.folder / "table" / "_delta" / "_delta_log" / f"{1:020d}.json"
    path.write_text("\n".join(map(json.dumps, actions)))
    with hint:
        table.publish()
    hint("publish(rebuild=True)")
    table.publish(rebuild=True)
    Mirror(table.log, table.store, open_mirror_store(table.store, None))
    assert table.publish().delta_version == 2


def test_the_mirror_of_another_table(hint: FollowedHint) -> None:
    one, other = (table_in(hint.folder, name) for name in ("one", "other"))
    place = str(hint.folder / "place")
    one.publish(place)
    with hint:
        other.publish(place)
    hint("publish to another place")
    other.publish(str(hint.folder / "another place"))
    require_copy(other, str(hint.folder / "another place"))
    hint("rebuild it (publish(rebuild=True)")
    other.publish(place, rebuild=True)
    require_copy(other, place)


def test_an_expiry_of_rows_that_writers_overtake(hint: FollowedHint) -> None:
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
    with hint:
        Table(FaultyStore(store, fast), clock=now).expire_rows()
    assert table.snapshot().num_rows == 2
    hint("try again when fewer write")
    table.expire_rows()
    assert not table.snapshot().num_rows
    append(1)
    hint("the next expiry does")
    table.expire_rows()
    assert not table.snapshot().num_rows
