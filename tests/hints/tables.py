"""Hints of tables: their schemas, what is written into them, and their past."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.compute as pc
from click.testing import CliRunner

from spark_upsert.cli.main import upsertflow
from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.schema import TableSchema
from spark_upsert.core.threads import told_to_another
from spark_upsert.flow import TableSink
from spark_upsert.flow.local import write as write_by
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.options.read import ReadOptions
from spark_upsert.plan import agg
from spark_upsert.streams.planner.formats import plan_columns
from spark_upsert.table.changelog.render import new_values
from spark_upsert.table.log.manifest import Commit, Transaction
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan
from tests.hints.hint import Told, follows
from tests.support.column_types import ROWS, TYPES, earlier_release, in_struct
from tests.support.group_worlds import RoutedBatch
from tests.support.stores import forget_runs_and_logs

Rows = Mapping[str, Any]

ROW: Rows = {"id": [1], "n": [1], "v": ["a"]}
FLATTENED: Rows = {**ROW, "__deleted": ["false"]}
UNSENT: Rows = {**FLATTENED, "v": ["__debezium_unavailable_value"]}


def rows_of(rows: Rows | pa.Table) -> pa.Table:
    return rows if isinstance(rows, pa.Table) else pa.table(dict(rows))


def write(
    folder: Path, rows: Rows | pa.Table = ROW, name: str = "table", **options: str | None
) -> Commit | None:
    """Write rows by options; None leaves one out."""
    given = {"keys": "id", **options}
    own = {option: text for option, text in given.items() if text is not None}
    return write_by(TableSink(str(folder / name), own), rows_of(rows))


def typed(**columns: tuple[list[Any], pa.DataType]) -> pa.Table:
    return pa.table({name: pa.array(values, type_) for name, (values, type_) in columns.items()})


Write = tuple[Rows | pa.Table, Mapping[str, str | None]]

LISTS = typed(id=([1], pa.int64()), v=([[1]], pa.list_(pa.int64())))

WRITES: tuple[tuple[str, Write | None, Write, Mapping[str, Write]], ...] = (
    # The columns of a new table.
    (
        "errors:SchemaError.missing_column",
        None,
        (ROW, {"keys": "idd"}),
        {"Did you mean 'id'": (ROW, {"keys": "id"})},
    ),
    (
        "errors:SchemaError.missing_column",
        None,
        (ROW, {"keys": "customer"}),
        {
            "name one of them": (ROW, {"keys": "id"}),
            "add that column": ({**ROW, "customer": [1]}, {"keys": "customer"}),
        },
    ),
    (
        "errors:OptionError.unknown",
        None,
        (ROW, {"sequenzBy": "n"}),
        {"Did you mean 'sequenceBy'": (ROW, {"sequenceBy": "n"})},
    ),
    (
        "errors:OptionError.not_one_of",
        None,
        (ROW, {"ties": "lest", "sequenceBy": "n"}),
        {"Did you mean 'last'": (ROW, {"ties": "last", "sequenceBy": "n"})},
    ),
    (
        "core.names:refuse_repeated",
        None,
        ({"id": [1], "ID": [2]}, {}),
        {
            "rename or drop the others": ({"id": [1], "other": [2]}, {}),
            "drop the others": ({"id": [1]}, {}),
        },
    ),
    (
        "core.schema:require_storable:2",
        None,
        ({"id": [1], "v": [None]}, {}),
        {
            "cast it to the type that its values will have": (
                typed(id=([1], pa.int64()), v=([None], pa.string())),
                {},
            ),
            "drop it": ({"id": [1]}, {}),
        },
    ),
    (
        "core.schema:TableSchema._check_engine",
        None,
        (ROW, {"sequenceBy": "n", "sequenceScope": "epoch", "mergeEngine": "aggregation"}),
        {
            "use sequenceScope=table": (
                ROW,
                {"sequenceBy": "n", "sequenceScope": "table", "mergeEngine": "aggregation"},
            )
        },
    ),
    (
        "core.schema:TableSchema._check_engine:2",
        None,
        (ROW, {"sequenceBy": "n", "ties": "fail", "mergeEngine": "aggregation"}),
        {
            f"ties={ties}": (ROW, {"sequenceBy": "n", "ties": ties, "mergeEngine": "aggregation"})
            for ties in ("last", "first")
        },
    ),
    (
        "core.schema:TableSchema._check_engine:3",
        None,
        (ROW, {"onError": "quarantine", "mergeEngine": "aggregation"}),
        {"use onError=fail": (ROW, {"onError": "fail", "mergeEngine": "aggregation"})},
    ),
    (
        "core.schema:_with_error_column",
        None,
        ({**ROW, "error": ["no"]}, {"onError": "inline"}),
        {
            "choose another name with the option 'errorColumn'": (
                {**ROW, "error": ["no"]},
                {"onError": "inline", "errorColumn": "why"},
            )
        },
    ),
    (
        "core.schema:refuse_reserved",
        None,
        ({**ROW, "_diff": [1]}, {}),
        {
            "rename it before writing": ({**ROW, "diff": [1]}, {}),
            "drop it with 'exceptColumnList'": (
                {**ROW, "_diff": [1]},
                {"exceptColumnList": "_diff"},
            ),
        },
    ),
    (
        "core.schema:_distinct_keys",
        None,
        (ROW, {"keys": "id,ID"}),
        {"leave the second name of it out": (ROW, {"keys": "id"})},
    ),
    (
        "core.schema:_require_hashable",
        None,
        (LISTS, {"keys": "v"}),
        {"use a column of a number": (LISTS, {"keys": "id"})},
    ),
    (
        "core.merge_engines:MergeEngine.check",
        None,
        (ROW, {"mergeEngine": "aggregation", "aggregate.v": "sum"}),
        {
            "sum integers, floats or decimals": (
                ROW,
                {"mergeEngine": "aggregation", "aggregate.n": "sum"},
            ),
            "choose another aggregate": (ROW, {"mergeEngine": "aggregation", "aggregate.v": "max"}),
        },
    ),
    (
        "core.merge_engines:MergeEngine.check:2",
        None,
        (LISTS, {"mergeEngine": "aggregation", "aggregate.v": "max"}),
        {
            "use aggregate last_non_null": (
                LISTS,
                {"mergeEngine": "aggregation", "aggregate.v": "last_non_null"},
            )
        },
    ),
    (
        "core.merge_engines:MergeEngine._require_value",
        None,
        (ROW, {"mergeEngine": "aggregation", "aggregate.id": "sum"}),
        {"Choose one of: n, v": (ROW, {"mergeEngine": "aggregation", "aggregate.n": "sum"})},
    ),
    (
        "table.log.properties:indexed_columns",
        None,
        (LISTS, {"indexBy": "v"}),
        {"index a column of a number": (ROW, {"indexBy": "n"})},
    ),
    (
        "table.log.properties:indexed_columns:2",
        None,
        (ROW, {"indexBy": "id,v"}),
        {"leave 'id' out of 'indexBy'": (ROW, {"indexBy": "v"})},
    ),
    (
        "table.write.form:find_delete_mark",
        None,
        (ROW, {"applyAsDeletes": "n"}),
        {"compute it before the write": ({**ROW, "n": [False]}, {"applyAsDeletes": "n"})},
    ),
    (
        "core.schema:unread_deletes",
        None,
        (FLATTENED, {"exceptColumnList": "__deleted"}),
        {"give apply_as_deletes=__deleted": (FLATTENED, {"applyAsDeletes": "__deleted"})},
    ),
    (
        "table.write.commands:UpsertEnvelope.__post_init__",
        None,
        ({"id": [1]}, {"nullsAsDeletes": "true"}),
        {
            "mark the deletes in a boolean column, and name it by 'applyAsDeletes'": (
                {"id": [1], "gone": [False]},
                {"applyAsDeletes": "gone"},
            )
        },
    ),
    # A table that is there.
    (
        "errors:OptionError.fixed",
        (ROW, {"sequenceBy": "n"}),
        (ROW, {"sequenceBy": "v"}),
        {"drop the option": (ROW, {})},
    ),
    (
        "core.schema:TableSchema.accept",
        (ROW, {}),
        ({**ROW, "w": [1]}, {}),
        {
            "give merge_schema=true": ({**ROW, "w": [1]}, {"mergeSchema": "true"}),
        },
    ),
    (
        "core.schema:TableSchema.accept",
        (ROW, {}),
        ({**ROW, "w": [1]}, {}),
        {"give except_column_list=w": ({**ROW, "w": [1]}, {"exceptColumnList": "w"})},
    ),
    (
        "envelopes.write_plan:_accepted",
        (ROW, {}),
        ({**ROW, "v": [5]}, {}),
        {
            "give except_column_list=v and merge_schema=true": (
                {**ROW, "v": [5]},
                {"exceptColumnList": "v", "mergeSchema": "true"},
            )
        },
    ),
    (
        "core.schema:TableSchema.accept:2",
        (ROW, {}),
        ({"id": [1], "n": [1]}, {}),
        {"With merge_schema=true": ({"id": [1], "n": [1]}, {"mergeSchema": "true"})},
    ),
    (
        "core.schema:TableSchema._accept_type",
        (typed(id=([1], pa.int64()), n=([1], pa.int32())), {}),
        (ROW, {"exceptColumnList": "v"}),
        {
            "give merge_schema=true": (ROW, {"exceptColumnList": "v", "mergeSchema": "true"}),
        },
    ),
    (
        "core.schema:TableSchema._accept_type",
        (ROW, {}),
        ({**ROW, "v": [5]}, {}),
        {"cast the column to string before writing": ({**ROW, "v": ["5"]}, {})},
    ),
    (
        "envelopes.write_plan:_check_identity",
        (ROW, {"sequenceBy": "n"}),
        ({**ROW, "n": ["1"]}, {}),
        {"cast it to int64 before the write": ({**ROW, "n": [1]}, {})},
    ),
    (
        "envelopes.write_plan:_check_identity",
        (
            typed(id=([1], pa.int64()), v=(["a"], pa.string()), n=([1], pa.int32())),
            {"sequenceBy": "n"},
        ),
        (ROW, {}),
        {"give merge_schema=true": (ROW, {"mergeSchema": "true"})},
    ),
    # Rows.
    (
        "table.write.commands:_require_covered",
        None,
        ({"id": [None, 1], "v": ["a", "b"]}, {}),
        {
            "a table with on_error=quarantine keeps such rows apart and goes on": (
                {"id": [None, 1], "v": ["a", "b"]},
                {"onError": "quarantine"},
            )
        },
    ),
    (
        "table.write.ties:_tied_examples",
        (ROW, {"sequenceBy": "n", "ties": "fail"}),
        ({**ROW, "v": ["b"]}, {}),
        {"write into a table with ties=last": ({**ROW, "v": ["b"]}, {"ties": "last"})},
    ),
    (
        "table.write.contributions:contributions",
        None,
        (
            {**ROW, "gone": [True]},
            {"mergeEngine": "first_row", "sequenceBy": "n", "applyAsDeletes": "gone"},
        ),
        {
            "filter them out before the write": (
                {**ROW, "gone": [False]},
                {"mergeEngine": "first_row", "sequenceBy": "n", "applyAsDeletes": "gone"},
            ),
            "use mergeEngine=deduplicate": (
                {**ROW, "gone": [True]},
                {"mergeEngine": "deduplicate", "sequenceBy": "n", "applyAsDeletes": "gone"},
            ),
        },
    ),
    (
        "table.write.contributions:_require_own_order",
        None,
        (
            typed(
                id=([1], pa.int64()),
                n=([1], pa.int64()),
                v=(["a"], pa.string()),
                at=([None], pa.int64()),
            ),
            {"mergeEngine": "partial_update", "sequenceBy": "n", "sequenceBy.v": "at"},
        ),
        {
            "fill 'at'": (
                {**ROW, "at": [3]},
                {"mergeEngine": "partial_update", "sequenceBy": "n", "sequenceBy.v": "at"},
            ),
            "set 'v' to null there": (
                typed(
                    id=([1], pa.int64()),
                    n=([1], pa.int64()),
                    v=([None], pa.string()),
                    at=([None], pa.int64()),
                ),
                {"mergeEngine": "partial_update", "sequenceBy": "n", "sequenceBy.v": "at"},
            ),
        },
    ),
    (
        "table.state.fold:_Groups._aggregate",
        None,
        (
            typed(id=([1, 1], pa.int64()), n=([100, 100], pa.int8())),
            {"mergeEngine": "aggregation", "aggregate.n": "sum"},
        ),
        {
            "write into a table with a wider type for the column": (
                typed(id=([1, 1], pa.int64()), n=([100, 100], pa.int16())),
                {"mergeEngine": "aggregation", "aggregate.n": "sum"},
            ),
            "drop the row that is too large": (
                typed(id=([1], pa.int64()), n=([100], pa.int8())),
                {"mergeEngine": "aggregation", "aggregate.n": "sum"},
            ),
        },
    ),
    # Change rows.
    (
        "envelopes.changelog:ChangelogForm.__post_init__",
        None,
        (ROW, {"envelope": "changelog"}),
        {"are written without 'envelope'": (ROW, {})},
    ),
    (
        "envelopes.changelog:ChangelogForm.__post_init__:2",
        None,
        ({**ROW, "_change_type": [1]}, {"envelope": "changelog"}),
        {
            "write the rows of a change feed as they come": (
                {**ROW, "_change_type": ["insert"], "_commit_version": [1]},
                {"envelope": "changelog"},
            )
        },
    ),
    (
        "envelopes.changelog:ChangelogEnvelope.__post_init__",
        (ROW, {}),
        ({**ROW, "_change_type": ["insert"], "_commit_version": [1]}, {"envelope": "changelog"}),
        {},
    ),
)


def of_write(site: str, before: Write | None, wrong: Write, advice: Mapping[str, Write]) -> None:
    @follows(site)
    def _(told: Told) -> None:
        def written(each: Write, name: str) -> None:
            write(told.folder, each[0], name, **each[1])

        for number, (quoted, right) in enumerate(advice.items()):
            name = f"table{number}"
            if before is not None:
                written(before, name)
            with told:
                written(wrong, name)
            told(quoted)
            written(right, name)
            assert Table.open(str(told.folder / name)).log.head().upper


for _site, _before, _wrong, _advice in WRITES:
    if _advice:
        of_write(_site, _before, _wrong, _advice)


@follows("envelopes.changelog:ChangelogEnvelope.__post_init__")
def _(told: Told) -> None:
    changes = {**ROW, "_change_type": ["insert"], "_commit_version": [1]}
    write(told.folder, ROW, "old")
    with told:
        write(told.folder, changes, "old", envelope="changelog")
    told("write into a new table, whose order is then _commit_version")
    write(told.folder, changes, "new", envelope="changelog")
    assert Table.open(str(told.folder / "new")).schema.order[0].name == "_commit_version"
    told("one with an order of its own, sequence_by=...")
    write(told.folder, ROW, "ordered", sequenceBy="n")
    write(told.folder, changes, "ordered", envelope="changelog")


@follows("envelopes.changelog:ChangelogForm.__post_init__")
def _(told: Told) -> None:
    source = write_and_open(told.folder)
    with told:
        write(told.folder, source.snapshot(), "copy", envelope="changelog")
    told("read a table with read_change_feed=true and keep '_change_type'")
    write(told.folder, source.changes(), "copy", envelope="changelog")
    assert Table.open(str(told.folder / "copy")).snapshot().num_rows == 1


def write_and_open(
    folder: Path, rows: Rows | pa.Table = ROW, name: str = "table", **options: str
) -> Table:
    write(folder, rows, name, **options)
    return Table.open(str(folder / name))


@follows("table.creation:require_free")
def _(told: Told) -> None:
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


@follows("errors:OptionError.fixed")
def _(told: Told) -> None:
    write(told.folder, sequenceBy="n")
    with told:
        write(told.folder, sequenceBy="v")
    told("write into a new table")
    write(told.folder, name="new", sequenceBy="v")


def rows_with(values: pa.Array) -> pa.Table:
    return pa.table({"id": range(len(values)), "w": ["a"] * len(values), "v": values})


@follows("core.schema:require_storable")
def _(told: Told) -> None:
    deep = TYPES["struct of 64 levels"].given
    with told:
        write(told.folder, rows_with(deep))
    told("write the inner values into columns of their own")
    write(told.folder, rows_with(deep.field(0)), "inner")
    told("or all of it as JSON text")
    write(told.folder, rows_with(pa.array([json.dumps(each) for each in deep.to_pylist()])))


@follows("core.schema:require_storable:3")
def _(told: Told) -> None:
    advice: Mapping[str, tuple[str, Callable[[pa.Array], pa.Array]]] = {
        "opaque": ("cast it to binary, in which its values are", lambda v: v.cast(pa.binary())),
        "decimal256 of 39 digits": (
            "cast it to a decimal of at most 38 digits",
            lambda v: v.cast(pa.decimal128(38, 2)),
        ),
        "dense_union": (
            "write the values of each of its types into a column of that type",
            lambda v: v.field(1).take(pa.array([None, 0, None, 1])),
        ),
    }
    for name, (quoted, changed) in advice.items():
        values = TYPES[name].given
        with told:
            write(told.folder, rows_with(values), name)
        told(quoted)
        write(told.folder, rows_with(changed(values)), name)
    runs = in_struct(TYPES["run_end_encoded"].given)
    with told:
        write(told.folder, rows_with(runs), "runs")
    told("decode it (pyarrow.compute.run_end_decode)")
    write(told.folder, rows_with(in_struct(pc.run_end_decode(runs.field(0)))), "runs")
    told("or drop it")
    write(told.folder, rows_with(values).drop_columns("v"), "without")


@follows("core.schema:unreadable_column")
def _(told: Told) -> None:
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


@follows("table.log.properties:checked")
def _(told: Told) -> None:
    table, properties = write_and_open(told.folder), {"historyOf": "x", "priority": "5"}
    with told:
        table.alter(table.schema, properties)
    told("remove 'historyOf' from the properties")
    del properties["historyOf"]
    assert table.alter(table.schema, properties).properties == {"priority": "5"}


@follows("store.records:_unreadable")
def _(told: Told) -> None:
    table, properties = write_and_open(told.folder), {"publishPath": "x" * (2 << 20)}
    with told:
        table.alter(table.schema, properties)
    told("correct the value that the message shows")
    assert "'xxx" in str(told.error)
    properties["publishPath"] = "x"
    assert table.alter(table.schema, properties).properties == properties


@follows("errors:TableExistsError.at")
def _(told: Told) -> None:
    path, columns = str(told.folder / "table"), rows_of(ROW).schema
    Table.create(path, columns, keys=["id"])
    with told:
        Table.create(path, columns, keys=["id", "n"])
    told("open it with Table.open")
    Table.open(path)
    told("choose another path")
    Table.create(f"{path}2", columns, keys=["id", "n"])


# The past -----------------------------------------------------------------------------------


def with_past(told: Told) -> Table:
    """Return a table with versions 0 to 2, of which only the last can be read."""
    path = str(told.folder / "table")
    for n in (1, 2, 3):
        write(told.folder, {**ROW, "n": [n]})
    table = Table.open(path)
    table.expire(retain_versions=0, safety_ms=0)
    return Table.open(path)


@follows("errors:VersionNotFoundError.expired")
def _(told: Told) -> None:
    table = with_past(told)
    with told:
        table.at(1)
    told(f"(1) read version {table.log.head().since} or a newer one")
    table.at(table.log.head().since)


@follows("errors:DataLossError.changes_expired")
def _(told: Told) -> None:
    table = with_past(told)
    with told:
        table.changes(0)
    told("(1) begin anew: a stream with a new checkpointLocation and without a starting version")
    assert table.snapshot().num_rows == 1


@follows("errors:VersionNotFoundError.future")
def _(told: Told) -> None:
    table = write_and_open(told.folder)
    with told:
        table.at(9)
    told("give a version from 0 to 0")
    table.at(0)


@follows("table.log.snapshot:Look.require_past")
def _(told: Told) -> None:
    table = write_and_open(told.folder)
    with told:
        table.log.at_timestamp(table.log.now_ms() + 3_600_000)
    told("or no time for all that there is")
    table.snapshot()
    told("give a time up to")
    assert table.log.at_timestamp(table.log.now_ms()).version == 0


@follows("table.versions:require_ordered")
def _(told: Told) -> None:
    table = write_and_open(told.folder)
    with told:
        table.changes(1, 0)
    told("let the changes end at their first version or later")
    table.changes(1, 1)
    told("leave out their end")
    table.changes(1)


@follows("table.log.snapshot:Look.at_timestamp")
def _(told: Told) -> None:
    table = write_and_open(told.folder)
    with told:
        table.log.at_timestamp(0)
    told("or version 0")
    table.at(0)
    told("give a time at or after")
    assert table.log.at_timestamp(table.log.commit(0).timestamp_ms).version == 0


@follows("table.changelog.render:_refuse_deletes")
def _(told: Told) -> None:
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


@follows("table.state.lookup:Prefixes.of")
def _(told: Told) -> None:
    rows = {"region": ["east"], "id": [1]}
    plain = write_and_open(told.folder, rows, keys="region,id")
    with told:
        plain.having_prefix(pa.table({"region": ["east"]}))
    told("make the table with 'hashPrefix', and give values of all those columns")
    hashed = write_and_open(told.folder, rows, "hashed", keys="region,id", hashPrefix="1")
    assert hashed.having_prefix(pa.table({"region": ["east"]})).num_rows == 1


@follows("table.state.lookup:as_stored")
def _(told: Told) -> None:
    rows = {"region": [7], "id": [1]}
    table = write_and_open(told.folder, rows, keys="region,id", hashPrefix="1")
    with told:
        table.having_prefix(pa.table({"region": ["east"]}))
    told("give values of type int64")
    assert table.having_prefix(pa.table({"region": [7]})).num_rows == 1


# Caps ---------------------------------------------------------------------------------------


def full(told: Told, **caps: str) -> Table:
    table = write_and_open(told.folder, ROW, **caps)
    table.hold("slow", 0)
    return table


@follows("errors:TableFullError.of")
def _(told: Told) -> None:
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


@follows("errors:BatchTooLargeError.of")
def _(told: Told) -> None:
    full(told, maxBacklogBytes="2000")
    many = {"id": list(range(2000)), "n": list(range(2000)), "v": ["a"] * 2000}
    with told:
        write(told.folder, many)
    told("write smaller batches")
    write(told.folder, {**ROW, "v": ["b"]})
    told("raise the table's maxBacklogBytes=")
    options = told.options
    write(told.folder, many, **options)


@follows("table.table:Table.rows_having")
def _(told: Told) -> None:
    write(told.folder, LISTS.append_column("n", [[1]]))
    table = Table.open(str(told.folder / "table"))
    with told:
        table.rows_having("v", [[1]])
    told("give a column of another type")
    assert table.rows_having("n", 1).num_rows == 1
    told("snapshot(filter='v IS NOT NULL')")
    assert table.snapshot(filter="v IS NOT NULL").num_rows == 1


@follows("streams.inputs.table:_missing")
def _(told: Told) -> None:
    given = {"path": str(told.folder / "table"), "tableTimeout": "1 ms"}
    with told:
        plan_columns(ReadPlan.parse(given))
    told("make the table before by spark_upsert.Table.create")
    Table.create(given["path"], pa.schema({"id": pa.int64()}), keys=["id"])
    plan_columns(ReadPlan.parse(given))


@follows("table.log.codec:no_table")
def _(told: Told) -> None:
    RoutedBatch(told.folder / "lake").batch(a={1: 1})
    with told:
        plan_columns(ReadPlan.parse({"path": str(told.folder / "lake")}))
    told("read one of them by its own path")
    plan_columns(ReadPlan.parse({"path": str(told.folder / "lake" / "a")}))
    told("all with")
    plan_columns(ReadPlan.parse({"path": str(told.folder / "lake"), **told.options}))


@follows("table.log.codec:no_table:2")
def _(told: Told) -> None:
    table = write_and_open(told.folder)
    place = table.publish().place
    with told:
        plan_columns(ReadPlan.parse({"path": place}))
    told("by delta-rs, Polars or DuckDB")
    assert polars.scan_delta(place).collect().height == table.snapshot().num_rows
    told("give the path of that table")
    plan_columns(ReadPlan.parse({"path": table.store.url}))


@follows("table.write.commands:_converted")
def _(told: Told) -> None:
    table = write_and_open(told.folder)
    with told:
        table.upsert(pa.table({**ROW, "n": [[1]]}))
    told("cast the column before the write")
    lists = pa.chunked_array([[[2]]])
    table.upsert(pa.table({**ROW, "n": lists.combine_chunks().flatten()}))
    assert table.snapshot().column("n").to_pylist() == [2]


@follows("table.arguments:as_table")
def _(told: Told) -> None:
    table = Table.create(str(told.folder / "t"), pa.schema({"id": pa.int64()}), keys=["id"])
    given: Any = [{"id": 1}]
    with told:
        table.upsert(given)
    told("pa.Table.from_pylist takes a list of dicts")
    table.upsert(pa.Table.from_pylist(given))
    told("pa.table a dict of columns")
    table.upsert(pa.table({"id": [2]}))
    assert table.snapshot().num_rows == 2


@follows("core.merge_engines:MergeEngine.check:3")
def _(told: Told) -> None:
    columns = pa.schema({"k": pa.int64(), "n": pa.int32()})
    engine = MergeEngine(Engine.AGGREGATION, {"n": Rule.SUM}, multiplicity="n")
    with told:
        TableSchema.of(columns, keys=["k"], engine=engine)
    told("let a view make the table ('keep')")
    write(told.folder)
    view = Plan.of_table(str(told.folder / "table")).group_by("v").agg(n=agg.count())
    view.refresh(str(told.folder / "kept"))
    assert Table.open(str(told.folder / "kept")).schema.engine.multiplicity == "n"


@follows("core.threads:told_to_another")
def _(told: Told) -> None:
    table = write_and_open(told.folder)
    with told:
        raise told_to_another(KeyboardInterrupt())
    told("an append with a transaction is applied once, however often it is repeated")
    twice = Transaction(writer="w", number=0)
    assert table.upsert(rows_of({**ROW, "id": [2]}), transaction=twice)
    assert not table.upsert(rows_of({**ROW, "id": [2]}), transaction=twice)


@follows("core.python_values:_unfit")
def _(told: Told) -> None:
    table = write_and_open(told.folder)
    for value in (7 * 86_400 * 1e3, timedelta(days=7)):
        week: Any = value
        with told:
            table.hold("reader", 0, ttl_ms=week)
        told("give ttl_ms=604800000, an int")
        assert table.hold("reader", 0, ttl_ms=604800000).ttl_ms == 604800000


@follows("table.write.commands:UpsertEnvelope.commands")
def _(told: Told) -> None:
    with told:
        write(told.folder, UNSENT, applyAsDeletes="__deleted")
    told("a table made with mergeEngine=partial-update keeps the old value")
    options = {"applyAsDeletes": "__deleted", "mergeEngine": "partial-update"}
    for rows in (FLATTENED, UNSENT):
        write(told.folder, rows, "partial", **options)
    assert Table.open(str(told.folder / "partial")).snapshot()["v"].to_pylist() == ["a"]


@follows("table.arguments:as_table:2")
def _(told: Told) -> None:
    columns = pa.schema({"id": pa.int64(), "v": pa.string()})
    table = Table.create(str(told.folder / "t"), columns, keys=["id"])
    frame = polars.DataFrame({"id": [1], "v": polars.Series(["a"], dtype=polars.Object)})
    with told:
        table.upsert(frame)
    told("pl.Series(frame['v'].to_list())")
    table.upsert(frame.with_columns(v=polars.Series(frame["v"].to_list())))
    told("or drop it")
    table.upsert(frame.with_columns(id=2).drop("v"), merge_schema=True)
    assert table.snapshot().num_rows == 2
