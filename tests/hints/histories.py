"""Hints of what befalls a table: other writers, other clocks, files that are gone."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
from click.testing import CliRunner

from spark_upsert.cli.main import upsertflow
from spark_upsert.core.schema import CHANGELOG_FIELDS, Scope
from spark_upsert.envelopes.write_plan import plan_upon
from spark_upsert.flow import Placement, expanded, fused
from spark_upsert.flow.fusion import Legacy
from spark_upsert.merge.graph import (
    MergeGraph,
    MergeNode,
    SourceNode,
    Transform,
    TransformWork,
    UnmappedPolicy,
)
from spark_upsert.merge.readers import OneSchema
from spark_upsert.merge.spill import MemoryPressure, Relief, SpillingStore
from spark_upsert.options.write import WriteOptions
from spark_upsert.store.open import open_store
from spark_upsert.store.records import encode, read_record
from spark_upsert.table.index import upkeep
from spark_upsert.table.log import storage
from spark_upsert.table.log.codec import commit_path
from spark_upsert.table.log.manifest import Commit, Transaction
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.log.view_position import KeptPosition
from spark_upsert.table.state.fold import require_possible
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.moves import Move, refused
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from spark_upsert.views.materialized import made_for_rows
from tests.hints.envelopes import DEBEZIUM, record
from tests.hints.flow import graph, same, sink, source
from tests.hints.hint import Told, follows
from tests.hints.tables import ROW, rows_of, write, write_and_open
from tests.hints.views import World, count
from tests.support.clocked import DAY_S, HOUR_S, ClockedStore, Now
from tests.support.lived import EVERY, dreamt
from tests.support.model import Command
from tests.support.stores import forget_runs_and_logs
from tests.support.tables import append, rows_at, schema_of
from tests.unit.test_stream_pressure import Flood

YEARS_S = 80 * 365 * DAY_S
DAY_MS = int(1000 * DAY_S)


# Clocks -------------------------------------------------------------------------------------


@follows("errors:ClockError.ahead")
def _(told: Told) -> None:
    now = Now()
    store = ClockedStore(now)
    table = Table(store, clock=now)
    table.ensure(schema_of(Scope.EPOCH))
    ahead = Table(store, clock=lambda: now() + YEARS_S)
    with told:
        append(ahead, [Command(1, 1, 1)])
    told("set the clock of this machine")
    append(Table(store, clock=now), [Command(1, 1, 1)])


@follows("errors:ClockError.in_log")
def _(told: Told) -> None:
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


# Other writers ------------------------------------------------------------------------------


def by(writer: str, number: int, *, is_consecutive: bool = False) -> Transaction:
    return Transaction(writer=writer, number=number, is_consecutive=is_consecutive)


@follows("table.write.guards:_require_remembered")
def _(told: Told) -> None:
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


@follows("table.write.guards:require_no_gap")
def _(told: Told) -> None:
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


@follows("table.write.ties:_late_error")
def _(told: Told) -> None:
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


# Files --------------------------------------------------------------------------------------


@follows("store.records:read_record")
def _(told: Told) -> None:
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


@follows("errors:CorruptionError.in_file")
def _(told: Told) -> None:
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


@follows("errors:CorruptionError.gap")
def _(told: Told) -> None:
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


@follows("table.log.codec:require_no_rest")
def _(told: Told) -> None:
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


@follows("table.retention.leases:_read")
def _(told: Told) -> None:
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


@follows("errors:OtherTableError.at")
def _(told: Told) -> None:
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


# Graphs of merges ---------------------------------------------------------------------------


@follows("merge.graph:MergeGraph.__init__")
def _(told: Told) -> None:
    with told:
        MergeGraph([SourceNode(name="a"), SourceNode(name="a")])
    told("rename one of them")
    MergeGraph([SourceNode(name="a"), SourceNode(name="b")])


@follows("merge.graph:MergeGraph.__init__:2")
def _(told: Told) -> None:
    with told:
        MergeGraph([SourceNode(name="east"), MergeNode(name="m", inputs=("eest",))])
    MergeGraph([SourceNode(name="east"), MergeNode(name="m", inputs=(told.meant,))])


@follows("merge.graph:_check_that_inputs_agree")
def _(told: Told) -> None:
    one = SourceNode(name="a", unmapped=UnmappedPolicy.DROP)
    merge = MergeNode(name="m", inputs=("a", "b"))
    with told:
        MergeGraph([one, SourceNode(name="b", unmapped=UnmappedPolicy.REJECT), merge])
    told("declare them alike in all inputs")
    MergeGraph([one, replace(one, name="b"), merge])


@follows("merge.graph:_check_root")
def _(told: Told) -> None:
    one, two = SourceNode(name="a"), SourceNode(name="b")
    merge = MergeNode(name="m", inputs=("a", "b"))
    with told:
        MergeGraph([one, two, merge, Transform(name="w", inputs=("m",), work=TransformWork.WINDOW)])
    told("root it at a source")
    MergeGraph([one, two, merge, Transform(name="w", inputs=("a",), work=TransformWork.WINDOW)])


@follows("merge.readers:OneSchema.check")
def _(told: Told) -> None:
    schema = OneSchema()
    columns = pa.schema({"id": pa.int64(), "v": pa.string()})
    schema.check("a", columns)
    with told:
        schema.check("b", pa.schema({"v": pa.string(), "id": pa.int64()}))
    told("give all inputs the same columns, in the same order and of the same types")
    schema.check("b", columns)


# Placement ----------------------------------------------------------------------------------


@follows("errors:PlacementError.clash")
def _(told: Told) -> None:
    def placed(*, together: bool, apart: bool) -> None:
        ids = ("x",) if together else ()
        placement = Placement(colocate=ids, exlocate=("y",) if apart else ())
        members = [
            source(placement=placement),
            same("A", placement=placement),
            sink(),
        ]
        fused(expanded(graph(members, "Src > A", "A > Snk")), Legacy())

    with told:
        placed(together=True, apart=True)
    told("take one of the two back: colocate, or exlocate")
    placed(together=True, apart=False)
    placed(together=False, apart=True)


# Epochs that are staged while others write --------------------------------------------------


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


@follows("table.write.commit:_commit_first")
def _(told: Told) -> None:
    staged_then(told, lambda: void(write(told.folder, {**ROW, "id": [9]})))


@follows("table.write.guards:is_due")
def _(told: Told) -> None:
    write(told.folder)
    staged_then(told, lambda: void(write(told.folder, {**ROW, "id": [9]}, onError="quarantine")))


def void(_: object) -> None:
    """Return nothing of what a write returns."""


@follows("table.write.ties:require_order")
def _(told: Told) -> None:
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


# Tables that keep the rows of a view --------------------------------------------------------

KEPT = {
    "envelope": "changelog",
    "keys": "id",
    "sequenceBy": "_commit_version",
    "sequenceScope": "table",
}
CHANGES = pa.schema(
    {"id": pa.int64(), "v": pa.string(), **{f.name: f.type for f in CHANGELOG_FIELDS}}
)


def keeper(folder: Path, plan: str = "a plan") -> Table:
    table = Table(open_store(str(folder)))
    options = WriteOptions.parse({**KEPT, "path": str(folder)})
    made_for_rows(table, plan, options, CHANGES)
    return table


def take(table: Table, query: str | None, number: int) -> bool:
    """Append a row as a batch of a query, or of none."""
    diff = pa.array([1], pa.int8())
    rows = pa.table({"id": [number], "v": ["a"], "_commit_version": [number], "_diff": diff})
    writer = None if query is None else by(Transaction.writer_of_query(query), number)
    return table.upsert(rows, transaction=writer) is not None


@follows("table.write.guards:_require_keeper")
def _(told: Told) -> None:
    table = keeper(told.folder / "kept")
    with told:
        take(table, None, 0)
    told("or into another table")
    write(told.folder)
    told("write to the tables of the view")


@follows("table.write.guards:_require_keeper:2")
def _(told: Told) -> None:
    table = keeper(told.folder / "kept")
    take(table, "one", 0)
    with told:
        take(table, "two", 0)
    told("go on with the checkpoint of that query")
    assert take(table, "one", 1)
    told("keep the view in a new path")
    assert take(keeper(told.folder / "new"), "two", 0)


@follows("table.write.truncate:restoration")
def _(told: Told) -> None:
    table = keeper(told.folder / "kept")
    for number in range(2):
        take(table, "one", number)
    with told:
        table.restore(1)
    told("read version 1 (versionAsOf)")
    assert table.snapshot(1).num_rows == 1


@follows("views.materialized:made_for_rows")
def _(told: Told) -> None:
    keeper(told.folder / "kept")
    with told:
        keeper(told.folder / "kept", "another plan")
    told("keep this view in another path")
    keeper(told.folder / "other", "another plan")


@follows("table.log.view_position:KeptPosition.read")
@follows("table.write.guards:is_next_move")
@follows("table.write.moves:require_move")
@follows("table.write.moves:refused")
def _(told: Told) -> None:
    world = World(told.folder)
    view = count(world.orders, "customer")
    world.kept(view)
    path = str(told.folder / "kept")
    table = Table.open(path)
    entries = pa.Table.from_batches(table.scan())
    with told:
        if "is_next_move" in told.site.name:
            table.upsert(entries, overwrite=True)
        elif "require_move" in told.site.name:
            table.upsert(entries.slice(0, 0))
        elif "read" in told.site.name:
            KeptPosition.read("a place")
        else:
            raise refused(Move(lower="elsewhere", upper="there"), "here", path)
    if "is_next_move" in told.site.name:
        told("keep the view in another path")
        world.kept(view, "other")
    else:
        told("the query of the view" if "refused" not in told.site.name else "a new checkpoint")
        write(told.folder, {"id": [3], "customer": [7], "amount": [1], "tags": [["x"]]}, "orders")
        assert view.refresh(path)


@follows("table.write.guards:require_placed")
def _(told: Told) -> None:
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


# Consumers and memory -----------------------------------------------------------------------


@follows("errors:ThrottledError.of")
def _(told: Told) -> None:
    flood = Flood()
    flood.keep_up()
    flood.write(50)
    for _ in range(30):
        flood.batch()
    row = pa.table({"id": [1]})
    with told:
        flood.table.upsert(row)
    told("give disable_backpressure=true")
    assert flood.table.upsert(row, disable_backpressure=True)
    told("write again, unchanged, in")
    flood.keep_up()
    flood.now.advance(1)
    assert flood.table.upsert(row)


@follows("errors:MemoryLimitError.of")
def _(told: Told) -> None:
    batch = pa.record_batch({"n": list(range(1000))})

    def hold(bytes_max: int, relief: Relief) -> None:
        pressure = MemoryPressure(limit_bytes=bytes_max, relief=relief)
        with SpillingStore(pressure, folder=told.folder) as held:
            for _ in range(3):
                held.add("a", batch)

    with told:
        hold(batch.nbytes, Relief.PAUSE)
    told("allow more")
    hold(9 * batch.nbytes, Relief.PAUSE)
    told("or allow to spill to disk")
    hold(batch.nbytes, Relief.SPILL)


@follows("store.open:open_store")
def _(told: Told) -> None:
    with patch.dict(sys.modules, {"spark_upsert.store.object_store": None}), told:
        open_store("s3://bucket/lake")
    told("pip install 'upsertflow[objectstore]'")
    open_store("s3://bucket/lake")


@follows("table.log.log:Log._settle")
def _(told: Told) -> None:
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


@follows("table.write.guards:_require_unfenced")
def _(told: Told) -> None:
    write(told.folder)

    def expire() -> None:
        for number in range(2, 5):
            write(told.folder, {**ROW, "id": [number]})
        table = Table.open(str(told.folder / "table"))
        table.expire(retain_versions=0, safety_ms=0)
        table.vacuum(grace_ms=0)

    staged_then(told, expire)


@follows("table.write.guards:is_new")
def _(told: Told) -> None:
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


@follows("table.state.fold:require_possible")
def _(told: Told) -> None:
    world = World(told.folder)
    view = count(world.orders, "customer")
    world.kept(view)
    kept = Table.open(str(told.folder / "kept"))
    [entries] = [batch for batch in kept.scan() if batch.num_rows]
    counted = kept.schema.engine.multiplicity
    retracted = {
        name: pc.negate(column) if name == counted else column
        for name, column in zip(entries.schema.names, entries.columns, strict=True)
    }
    with told:
        require_possible(kept.schema, retracted, "kept")
    told("Make the table anew from its view ('keep' into another path)")
    assert len(world.rows(world.kept(view, "other"))) == 2


@follows("table.index.index:Index.state")
def _(told: Told) -> None:
    table = write_and_open(told.folder, {**ROW, "c": [7]}, indexBy="c")
    with patch.object(upkeep.Indexes, "follow", lambda self, commit: None):
        for number in range(4):
            write(told.folder, {**ROW, "c": [8], "id": [number]})
    index = table.index_of("c")
    assert index is not None
    table.expire(retain_versions=1, safety_ms=0)
    with told:
        index.keys_having(pa.array([7]))
    told("build it anew: upsertflow index PATH")
    assert "index" in upsertflow.commands
    table.build_indexes()
    assert index.keys_having(pa.array([8])).keys.num_rows == 4
