"""Hints of writes into many tables, and of the commands that look after them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from spark_upsert.cli.main import upsertflow
from spark_upsert.cli.routed import list_tables, open_in
from spark_upsert.cli.tables import _version_behind
from spark_upsert.core.path_template import Template
from spark_upsert.envelopes.write_plan import plan_upon
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.routed import plan as routed_plan
from spark_upsert.routed.commit import commit_routed
from spark_upsert.routed.dead_letter import ParkedTable
from spark_upsert.routed.group import GroupTable
from spark_upsert.routed.plan import plan_routed, table_below
from spark_upsert.routed.replay import unpark
from spark_upsert.routed.router import find_nested
from spark_upsert.routed.stage import stage_routed
from spark_upsert.store import LocalStore, Store
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.table import Table
from tests.hints.hint import Told, follows
from tests.support.own_schemas import INLINE
from tests.support.routed_worlds import transaction
from tests.unit.test_parking import OPTIONS, ROWS, Rows, batch_of, rows_in, write
from tests.unit.test_routed_group import Q1
from tests.unit.test_routed_group import batch as batch_at
from tests.unit.test_routed_schemas import message, rows_of
from tests.unit.test_routed_schemas import write as write_records
from tests.unit.test_routed_write import Folding


def root_of(told: Told) -> LocalStore:
    return LocalStore(str(told.folder))


def nothing_waits(told: Told) -> None:
    assert ParkedTable(root_of(told)).counts() == {}


@follows("routed.plan:_advise_quarantine")
def _(told: Told) -> None:
    root = root_of(told)
    text = [message("a", 2, flag=("string", "yes"))]
    write_records(root, 0, [message("a", 1, flag=("boolean", True))], **INLINE)
    with told:
        write_records(root, 1, text, **INLINE)
    told("With on_error=quarantine payloads whose schema contradicts the table are kept apart")
    write_records(root, 1, text, **INLINE, onError=told.options["onError"])
    assert rows_of(root, "a") == [{"id": 1, "flag": True}]


@follows("routed.replay:_widened:2")
def _(told: Told) -> None:
    root = root_of(told)
    write(root, 0, [("a", 1, 1)], [("a", 1, 2)], [("b", 1, 1)])
    columns = pa.schema({"id": pa.int64(), "v": pa.string()})
    Table.create(str(told.folder / "a"), columns, keys=["id"])
    with told:
        unpark(root)
    assert "before writing" not in told.hint
    told("give except_column_list=v")
    unpark(root, given={"exceptColumnList": "v"})
    assert table_below(root, "a").snapshot().to_pylist() == [{"id": 1, "v": None}]
    nothing_waits(told)
    told("Rows to come need a column of another name at the source")
    table_below(root, "a").upsert(pa.table({"id": [2], "w": [5]}), merge_schema=True)
    assert table_below(root, "a").snapshot().sort_by("id").to_pylist()[1]["w"] == 5


@follows("routed.dead_letter:as_parkable")
def _(told: Told) -> None:
    root, plan = root_of(told), plan_upon

    def faulty(table: Table, *args: Any, **how: Any) -> Any:
        if table.store.url.endswith("/a"):
            raise IndexError("a fault of this version")
        return plan(table, *args, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routed_plan, "plan_upon", faulty)
        write(root, 0, [("a", 1, 1), ("b", 1, 1)])
        with told:
            unpark(root)
    told("run 'upsertflow unpark'")
    unpark(root)
    nothing_waits(told)


# -- the path ---------------------------------------------------------------------------------

TEMPLATES: tuple[tuple[str, str, dict[str, str]], ...] = (
    (
        "core.path_template:Template.parse",
        "/lake/topics",
        {
            "as in '/lake/{topic}'": "/lake/{topic}",
            "'/lake/{source.db}/{source.table}'": "/lake/{source.db}/{source.table}",
        },
    ),
    (
        "core.path_template:_pieces",
        "/lake/{topic",
        {
            "as in '/lake/{topic}'": "/lake/{topic}",
            "a brace that is meant as such is doubled: '{{' and '}}'": "/lake/{{x}}/{topic}",
        },
    ),
    (
        "core.path_template:_segment",
        "/lake/{topic}/a b",
        {"write letters, digits and '_-.=+@,' there": "/lake/{topic}/a1_-.=+@,b"},
    ),
    (
        "core.path_template:_segment:2",
        "/lake/{a}{b}",
        {
            "put a '.', '-' or '_' between them": "/lake/{a}.{b}",
            "or a '/'": "/lake/{a}/{b}",
        },
    ),
    (
        "core.path_template:_segment:3",
        "/lake/_{topic}",
        {"begin each name there with a column, a letter or a digit": "/lake/x_{topic}"},
    ),
    (
        "core.path_template:_column",
        "/lake/{a.}",
        {
            "as in '/lake/{topic}'": "/lake/{topic}",
            "dots lead into structs": "/lake/{a.b}",
        },
    ),
    ("core.path_template:_require_each_once", "/{a}/{A}", {"name each column once": "/{a}/{b}"}),
    (
        "core.path_template:_root",
        "s3://{bucket}/lake",
        {"with columns in the names below it": "s3://bucket/{topic}"},
    ),
)


def of_template(site: str, wrong: str, advice: dict[str, str]) -> None:
    @follows(site)
    def _(told: Told) -> None:
        with told:
            Template.parse(wrong)
        for quoted, right in advice.items():
            told(quoted)
            Template.parse(right)


for _case in TEMPLATES:
    of_template(*_case)


@follows("core.path_template:Segment._unnameable")
def _(told: Told) -> None:
    rows: Rows = [("x" * 300, 1, 1)]
    with told:
        write(root_of(told), 0, rows, onTableError="fail")
    told("give such rows another value")
    write(root_of(told), 0, [("x", 1, 1)], onTableError="fail")
    told("filter them out before the write")
    write(root_of(told), 1, [], onTableError="fail")
    keeps_apart(told, rows)


@follows("routed.router:route_of")
def _(told: Told) -> None:
    rows: Rows = [(None, 1, 1)]
    with told:
        write(root_of(told), 0, rows, onTableError="fail")
    told("give such rows a value")
    write(root_of(told), 0, [("a", 1, 1)], onTableError="fail")
    told("filter them out before the write")
    write(root_of(told), 1, [], onTableError="fail")
    keeps_apart(told, rows)


def keeps_apart(told: Told, rows: Rows) -> None:
    """Give each of the options by which rows without a table are kept."""
    for number, name in enumerate(("onTableError", "onError"), start=2):
        told("they are kept apart, and counted")
        write(root_of(told), number, rows, **{"onTableError": "fail", name: told.options[name]})
        assert ParkedTable(root_of(told)).counts()[""] == number - 1


def find(column: str, **types: pa.DataType) -> None:
    find_nested(column, pa.schema(types))


@follows("routed.router:find_nested")
def _(told: Told) -> None:
    source = pa.struct({"db": pa.string()})
    with told:
        find("topic.db", topic=pa.string(), source=source)
    told("write {topic}")
    find("topic", topic=pa.string(), source=source)
    told("name a field of a struct")
    find("source.db", topic=pa.string(), source=source)


@follows("routed.router:find_nested:2")
def _(told: Told) -> None:
    with told:
        find("topic", topic=pa.float64())
    told("withColumn('topic', col('topic').cast('string'))")
    find("topic", topic=pa.string())


# -- the group --------------------------------------------------------------------------------


@follows("routed.group:GroupTable.of_batch")
def _(told: Told) -> None:
    root = root_of(told)
    for number in range(3):
        write(root, number, [("a", 1, number)])
    group = GroupTable(root)
    group.table.expire(retain_versions=0, safety_ms=0)
    with told:
        group.of_batch(0)
    told("read batch 2 or a later one")
    assert group.of_batch(2).members["a"].batch == 2
    told("by a longer group_retention=30 days")
    RoutedOptions.parse({**OPTIONS, "groupRetention": told.options["groupRetention"]})


@follows("routed.group:GroupTable.of_batch:2")
def _(told: Told) -> None:
    table = GroupTable(root_of(told))
    for number in (0, 2):
        table.append(batch_at(Q1, number), [], Transaction(writer=Q1, number=number))
    with told:
        table.of_batch(1)
    told("read batch 2")
    assert table.of_batch(2).batch == batch_at(Q1, 2)


@follows("routed.group:_no_such_batch")
def _(told: Told) -> None:
    root = root_of(told)
    write(root, 0, [("a", 1, 0)])
    with told:
        GroupTable(root).of_batch(1)
    told("read a batch up to 0")
    assert GroupTable(root).of_batch(0).members["a"].batch == 0


@follows("routed.group:_no_such_batch:2")
def _(told: Told) -> None:
    root = root_of(told)
    options = RoutedOptions.parse(OPTIONS)
    plan = plan_routed(options, ROWS, root=root)
    staged = stage_routed(plan, root, [batch_of([("a", 1, 1)])], None, 0)
    commit_routed(root, options, [staged], None)
    with told:
        GroupTable(root).of_batch(0)
    told("read what is there with consistent=true")
    assert told.options["consistent"] == "true"
    assert GroupTable(root).at().members["a"].rows == 1
    told("a batch write has none without 'txnAppId'")
    write(root, 0, [("a", 1, 2)], query="app")
    assert GroupTable(root).of_batch(0).members["a"].batch == 0


@follows("routed.plan:require_template")
def _(told: Told) -> None:
    root, other = root_of(told), LocalStore(str(told.folder / "other"))
    write(root, 0, [("a", 1, 1)])
    with told:
        write(root, 1, [("a", 2, 2)], path="/lake/x{topic}")
    told("go on with the path that ends in '{topic}'")
    write(root, 1, [("a", 2, 2)], path="/lake/{topic}")
    told("give another root")
    write(other, 0, [("a", 2, 2)], path="/lake/x{topic}")


@follows("routed.plan:require_room")
def _(told: Told) -> None:
    rows: Rows = [("a", 1, 1), ("b", 1, 1)]
    with told:
        write(root_of(told), 0, rows, tablesMax="1")
    told("give tables_max=2")
    write(root_of(told), 0, rows, **told.options)
    told("check the columns of the path")
    write(LocalStore(str(told.folder / "other")), 0, [("a", 1, 1)], tablesMax="1")


@follows("routed.plan:_require_made")
def _(told: Told) -> None:
    root = root_of(told)
    rows: Rows = [("a", 1, 1)]
    with told:
        write(root, 0, rows, createTables="false")
    told("make it in its folder ('Table.create')")
    columns = pa.schema({"id": pa.int64(), "v": pa.int64()})
    Table.create(str(told.folder / "a"), columns, keys=["id"])
    write(root, 0, rows, createTables="false")
    told("drop that option")
    write(root, 1, [("b", 1, 1)])
    told("filter such rows out")
    write(root, 2, [("a", 2, 2)], createTables="false")


@follows("routed.plan:_of_another_name")
def _(told: Told) -> None:
    root = Folding()
    write(root, 0, [("a", 1, 1)])
    with told:
        write(root, 1, [("A", 1, 1)], onTableError="fail")
    told("let the values differ in more than upper and lower case")
    write(root, 1, [("A2", 1, 1)], onTableError="fail")
    told("use a storage that tells them apart")
    write(root_of(told), 0, [("a", 1, 1)], onTableError="fail")
    write(root_of(told), 1, [("A", 1, 1)], onTableError="fail")


@follows("routed.misfit:_told")
def _(told: Told) -> None:
    root = root_of(told)
    rows: Rows = [("a", 1, 1)]
    with told:
        write(root, 0, rows, sequenceBy="seq")
    told("give 'table.a.<option>' with what is right for this one")
    write(root, 0, rows, **{"sequenceBy": "seq", "table.a.sequenceBy": "v"})
    assert rows_in(root, "a") == {1: 1}


# -- what is parked ---------------------------------------------------------------------------


def parked(told: Told) -> LocalStore:
    """Return a root with parked rows of the table ``a``."""
    root = root_of(told)
    Table.create(str(told.folder / "a"), pa.schema({"id": pa.int64()}), keys=["id"])
    write(root, 0, [("a", 1, 1)])
    return root


@follows("routed.dead_letter:parked_before")
def _(told: Told) -> None:
    root = parked(told)
    rows: Rows = [("a", 2, 2)]
    with told:
        write(root, 1, rows, onTableError="fail")
    told("with on_table_error=park a stream parks what comes behind them")
    write(root, 1, rows, **told.options)
    told(f"apply them by 'upsertflow unpark {root.url} a'")
    upsert(root.url, "a", "--set", "mergeSchema=true")
    write(root, 2, [("a", 3, 3)], onTableError="fail")
    assert rows_in(root, "a") == {1: 1, 2: 2, 3: 3}


@follows("routed.dead_letter:parked_before")
def _(told: Told) -> None:
    root = parked(told)
    with told:
        write(root, 1, [("a", 2, 2)], onTableError="fail")
    told("or forget them with --drop")
    upsert(root.url, "a", "--drop")
    write(root, 1, [("a", 2, 2)], onTableError="fail", mergeSchema="true")


def upsert(*arguments: str) -> None:
    result = CliRunner().invoke(upsertflow, ["unpark", *arguments])
    assert result.exit_code == 0, result.output


@follows("routed.replay:chosen")
def _(told: Told) -> None:
    root = parked(told)
    with told:
        unpark(root, ["aa"])
    unpark(root, [told.meant], given={"mergeSchema": "true"})
    nothing_waits(told)


@follows("routed.replay:_widened")
def _(told: Told) -> None:
    root = root_of(told)
    columns = pa.schema({"id": pa.int64(), "v": pa.int64()})
    write(root, 0, [("a", 1, 1)], [("a", 1, 2)], [("b", 1, 1)])
    Table.create(str(told.folder / "a"), columns, keys=["id", "v"])
    with told:
        unpark(root)
    told("give the table the rules that it had")
    (told.folder / "a").rename(told.folder / ".other")
    Table.create(str(told.folder / "a"), columns, keys=["id"])
    unpark(root)
    assert rows_in(root, "a") == {1: 2}
    told("or drop the rows ('upsertflow unpark --drop')")
    write(root, 1, [("c", 1, 1)], [("c", 1, 2)], [("b", 1, 1)])
    upsert(root.url, "c", "--drop")
    nothing_waits(told)


# -- commands ---------------------------------------------------------------------------------


@follows("cli.routed:_no_group")
def _(told: Told) -> None:
    write(root_of(told), 0, [("a", 1, 1)])
    with told:
        list_tables(f"{told.folder}/a", {})
    told("give the root")
    assert [line.folder for line in list_tables(str(told.folder), {}).lines] == ["a"]
    told("'tables' takes the whole of it, too, as in '/lake/{topic}'")
    assert [line.folder for line in list_tables(f"{told.folder}/{{topic}}", {}).lines] == ["a"]


@follows("cli.routed:open_in")
def _(told: Told) -> None:
    write(root_of(told), 0, [("a", 1, 1)])
    with told:
        open_in(str(told.folder), {})
    told(f"'upsertflow tables {told.folder}' lists them")
    [line] = list_tables(str(told.folder), {}).lines
    told("Name one of them")
    assert open_in(f"{told.folder}/{line.folder}", {}).snapshot().num_rows == 1
    told("give --all to a command that has it")
    result = CliRunner().invoke(upsertflow, ["compact", str(told.folder), "--all"])
    assert result.exit_code == 0, result.output


@follows("cli.tables:_version_behind")
def _(told: Told) -> None:
    table = Table.create(str(told.folder / "t"), pa.schema({"id": pa.int64()}), keys=["id"])
    table.upsert(pa.table({"id": [1]}))
    table.hold("reader", 0)
    with told:
        _version_behind(table, "nobody")
    told("'upsertflow consumers' shows the consumers that hold one")
    shown = CliRunner().invoke(upsertflow, ["consumers", str(told.folder / "t"), "--json"])
    [lease] = [json.loads(line) for line in shown.stdout.splitlines()]
    assert _version_behind(table, lease["consumer"]) == 1


# -- two at once ------------------------------------------------------------------------------


@follows("routed.fence:_require_unmade")
def _(told: Told) -> None:
    root, rows = root_of(told), batch_of([("a", 1, 1)])
    options, batch = RoutedOptions.parse(OPTIONS), transaction(0)
    plan = plan_routed(options, ROWS, root=root)
    staged = stage_routed(plan, root, [rows], batch, 0)
    Table.create(str(told.folder / "a"), ROWS.remove(0), keys=["id"])
    with told:
        commit_routed(root, options, [staged], batch)
    told("write it again")
    write(root, 0, [("a", 1, 1)], onTableError="fail")
    assert rows_in(root, "a") == {1: 1}


@follows("routed.fence:require_apart")
def _(told: Told) -> None:
    with told:
        write_topics(Folding(), "Sum", "sum")
    told("let the values differ in more than upper and lower case")
    write_topics(Folding(), "Sum", "sums")
    told("use a storage that tells them apart")
    write_topics(root_of(told), "Sum", "sum")


def write_topics(root: Store, *topics: str) -> None:
    write(root, 0, [(topic, 1, 1) for topic in topics], onTableError="fail")
