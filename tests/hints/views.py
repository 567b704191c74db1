"""Hints of views: their plans, their joins, their groups."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.arrow_types import type_of
from spark_upsert.plan import agg
from spark_upsert.plan.json import plan_from_json
from spark_upsert.plan.nodes import DEPTH_MAX, Filter, Limit, Node, Unnest
from spark_upsert.table.table import Table
from spark_upsert.views.grouping import Grouping
from spark_upsert.views.materialized import MaterializedView
from spark_upsert.views.plan_builder import Plan
from tests.hints.hint import Told, follows
from tests.hints.reads import Query, batch
from tests.hints.tables import Rows, write

ORDERS = pa.table(
    {
        "id": [1, 2],
        "customer": [7, 8],
        "amount": [10, 20],
        "tags": [["a"], ["b", "c"]],
    }
)
CUSTOMERS = pa.table({"id": [7, 8], "name": ["x", "y"], "code": ["7", "8"]})


class World:
    """Two tables, and what is made of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write(folder, ORDERS, "orders", indexBy="customer")
        write(folder, CUSTOMERS, "customers")

    @property
    def orders(self) -> Plan:
        return Plan.of_table(str(self.folder / "orders"))

    @property
    def customers(self) -> Plan:
        return Plan.of_table(str(self.folder / "customers"))

    def rows(self, plan: Plan) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = plan.to_arrow().to_pylist()
        return found

    def kept(self, plan: Plan, name: str = "kept") -> Plan:
        path = str(self.folder / name)
        plan.refresh(path)
        return Plan.of_table(path)

    def of(self, rows: Rows | pa.Table, name: str, **options: str) -> Plan:
        write(self.folder, rows, name, **options)
        return Plan.of_table(str(self.folder / name))


def signed(world: World) -> Plan:
    return world.of({"sign": [1], "customer": ["7"]}, "signed", keys="sign")


Make = Callable[[World], Plan]

PLANS: tuple[tuple[str, Make, Mapping[str, Make]], ...] = (
    (
        "views.rowwise:ProjectRelation.__init__",
        lambda w: w.orders.select("id", "id"),
        {"rename one": lambda w: w.orders.select("id", other="id")},
    ),
    (
        "plan.nodes:unnested_schema",
        lambda w: w.orders.unnest("amount"),
        {"name a column of lists": lambda w: w.orders.unnest("tags")},
    ),
    (
        "plan.nodes:unnested_schema:2",
        lambda w: w.orders.select("id", "tags", pos="amount").unnest("tags"),
        {
            "select it under another name before": lambda w: (
                w.orders.select("id", "tags", other="amount").unnest("tags")
            )
        },
    ),
    (
        "views.join:_require_columns",
        lambda w: w.orders.join(w.customers, on={}),
        {
            "give on={left: right}": lambda w: (
                w.orders.join(w.customers.select("id", "name"), on={"customer": "id"})
            )
        },
    ),
    (
        "views.join:_require_columns:3",
        lambda w: w.customers.join(signed(w), on={"id": "customer"}),
        {
            "select it before as CAST(customer AS ...), and join with reverse='scan'": lambda w: (
                w.customers.join(
                    signed(w).select("sign", customer="CAST(customer AS BIGINT)"),
                    on={"id": "customer"},
                    reverse="scan",
                )
            ),
            "or store it so": lambda w: w.customers.join(
                w.of({"sign": [1], "customer": [7]}, "stored", keys="sign", indexBy="customer"),
                on={"id": "customer"},
            ),
        },
    ),
    (
        "views.join:_require_columns:3",
        lambda w: w.orders.join(w.of({"id": ["1"], "n": [1]}, "texts"), on="id"),
        {
            "store it so": lambda w: w.orders.join(w.of({"id": [1], "n": [1]}, "stored"), on="id"),
        },
    ),
    (
        "views.join:_require_columns:4",
        lambda w: w.of({"id": [1], "x": [[1]]}, "lists").join(
            w.of({"id": [1], "y": [[1]]}, "others"), on={"x": "y"}
        ),
        {
            "join on numbers, texts or times": lambda w: w.of({"id": [1], "x": [1]}, "a").join(
                w.of({"id": [1], "y": [1]}, "b"), on="id"
            )
        },
    ),
    (
        "views.join:joined:5",
        lambda w: w.orders.join(w.customers.select("id", amount="name"), on={"customer": "id"}),
        {
            "select it under another name before: select(..., other='amount')": lambda w: (
                w.orders.join(w.customers.select("id", other="name"), on={"customer": "id"})
            )
        },
    ),
    (
        "views.plan_builder:Plan.at_version",
        lambda w: w.orders.filter("amount > 1").at_version(0),
        {
            "pin each table: view(path).at_version(...)": lambda w: (
                w.orders.at_version(0).filter("amount > 1")
            )
        },
    ),
    (
        "views.plan_builder:Plan.limit",
        lambda w: w.orders.limit(1),
        {"limit what you read of a view": lambda w: w.orders},
    ),
    (
        "views.plan_builder:_one_of",
        lambda w: w.orders.join(w.customers, on="id", how="lfet"),
        {"Did you mean 'left'": lambda w: w.orders.join(w.customers, on="id", how="left")},
    ),
    (
        "views.join:joined",
        lambda w: w.orders.join(w.customers, on="id", how="right"),
        {"swap the sides": lambda w: w.customers.join(w.orders, on="id", how="left")},
    ),
    (
        "views.plan_builder:Plan.refresh",
        lambda w: w.kept(w.orders),
        {
            "group first: .group_by(...).agg(...)": lambda w: w.kept(
                w.orders.group_by("customer").agg(n=agg.count())
            )
        },
    ),
    (
        "plan.agg:__getattr__",
        lambda w: w.orders.group_by("customer").agg(n=agg.collect("amount")),
        {
            f"{name}": lambda w, name=name: w.orders.group_by("customer").agg(  # type: ignore[misc]
                n=getattr(agg, name)("amount")
            )
            for name in ("sum", "avg", "min", "max")
        },
    ),
    (
        "views.bases:bind_below_group.relation_of",
        lambda w: w.orders.group_by("customer").agg(n=agg.count()).filter("n > 0"),
        {
            "a group must be kept first: .keep(path)": lambda w: w.kept(
                w.orders.group_by("customer").agg(n=agg.count())
            ).filter("n > 0")
        },
    ),
    (
        "views.plan_builder:Plan._require_one_version",
        lambda w: w.kept(w.orders.group_by("customer").agg(n=agg.count())).join(
            w.orders.select("customer", "id"), on="customer"
        ),
        {
            "or mixed_bases=True": lambda w: w.kept(
                w.orders.group_by("customer").agg(n=agg.count())
            ).join(w.orders.select("customer", "id"), on="customer", mixed_bases=True)
        },
    ),
)  # fmt: skip


def of_plan(site: str, wrong: Make, advice: Mapping[str, Make]) -> None:
    @follows(site)
    def _(told: Told) -> None:
        world = World(told.folder)
        with told:
            world.rows(wrong(world))
        for quoted, right in advice.items():
            told(quoted)
            assert world.rows(right(world))


for _site, _wrong, _advice in PLANS:
    of_plan(_site, _wrong, _advice)


# Plans as JSON ------------------------------------------------------------------------------


def texts(told: Told) -> tuple[Node, dict[str, Any]]:
    plan = World(told.folder).orders.filter("amount > 1").node
    return plan, json.loads(plan.to_json())


Damage = Callable[[dict[str, Any]], Any]

TEXTS: tuple[tuple[str, Damage, str], ...] = (
    ("plan.json:read_text", lambda r: "{", "give the text that `to_json()` returned"),
    ("plan.json:plan_from_json", lambda r: {**r, "v": 99}, "make the plan anew"),
    ("plan.json:_node", lambda r: {**r, "input": 5}, "a node is an object with its kind"),
    ("plan.json:_node:2", lambda r: {**r, "node": "fliter"}, "Did you mean 'filter'"),
    ("plan.json:_built", lambda r: {**r, "were": "n > 1"}, "Did you mean 'where'"),
    (
        "plan.json:_built:2",
        lambda r: {**r, "where": 5},
        "give the text that `to_json()` returned",
    ),
    (
        "plan.json:_built:3",
        lambda r: {name: value for name, value in r.items() if name != "where"},
        "give all fields",
    ),
)


def of_text(site: str, damage: Damage, quoted: str) -> None:
    @follows(site)
    def _(told: Told) -> None:
        plan, record = texts(told)
        damaged = damage(record)
        with told:
            plan_from_json(damaged if isinstance(damaged, str) else json.dumps(damaged))
        told(quoted)
        assert plan_from_json(plan.to_json()) == plan


for _text in TEXTS:
    of_text(*_text)


@follows("plan.nodes:too_deep")
def _(told: Told) -> None:
    plan, record = texts(told)
    version = record.pop("v")
    for _ in range(DEPTH_MAX):
        record = {"node": "filter", "where": "amount > 1", "input": record}
    with told:
        plan_from_json(json.dumps({"v": version, **record}))
    told("write several filters or projections behind each other as one")
    assert isinstance(plan, Filter)
    one = " AND ".join(["amount > 1"] * (DEPTH_MAX + 1))
    plan_from_json(Filter(input=plan.input, where=one).to_json())


@follows("plan.nodes:_plain")
def _(told: Told) -> None:
    plan, _ = texts(told)
    assert isinstance(plan, Filter)
    with told:
        Filter(input=plan.input, where=pc.field("amount") > 1).to_json()
    told("write it as SQL")
    Filter(input=plan.input, where="amount > 1").to_json()


@follows("views.rowwise:UnnestRelation.__init__")
def _(told: Told) -> None:
    world = World(told.folder)
    node = world.orders.node
    with told:
        world.rows(Plan(Unnest(input=node, column="tags", position=None)))
    told("name one: position='pos'")
    assert world.rows(Plan(Unnest(input=node, column="tags", position="pos")))


@follows("views.bases:bind_below_group.relation_of:2")
def _(told: Told) -> None:
    world = World(told.folder)
    with told:
        world.rows(Plan(Limit(input=world.orders.node, count=1)))
    told("build the plan of a view by its methods, and give that text")
    assert world.rows(Plan(plan_from_json(world.orders.to_json())))


# Kept tables --------------------------------------------------------------------------------


def count(plan: Plan, *by: str) -> Plan:
    return plan.group_by(*by).agg(n=agg.count())


@follows("views.bases:scan_of")
def _(told: Told) -> None:
    world = World(told.folder)
    with told:
        world.kept(count(world.orders), "all")
    told("read it as a table")
    assert Table.open(str(told.folder / "all")).log.head().version >= 0
    told("group by a column that is always the same")
    kept = world.kept(count(world.orders.select("id", one="1"), "one"))
    assert [row["n"] for row in world.rows(kept)] == [2]


@follows("views.bases:_require_key")
def _(told: Told) -> None:
    world = World(told.folder)
    with told:
        world.rows(world.orders.select("amount"))
    told("keep it")
    assert len(world.rows(world.orders.select("id", "amount"))) == 2
    told("or group")
    assert len(world.rows(world.orders.group_by("amount").agg(n=agg.count()))) == 2


@follows("views.materialized:MaterializedView.made")
def _(told: Told) -> None:
    world = World(told.folder)
    some = count(world.orders.filter("amount > 10"), "customer")
    world.kept(count(world.orders, "customer"))
    with told:
        world.kept(some)
    told("keep this view in another path")
    assert len(world.rows(world.kept(some, "other"))) == 1


@follows("views.materialized:grouping_kept")
def _(told: Told) -> None:
    world = World(told.folder)
    with told:
        MaterializedView.opened(Table.open(str(told.folder / "orders")))
    told("read it as any table")
    assert Table.open(str(told.folder / "orders")).snapshot().num_rows == 2
    told("keep a view in another path")
    world.kept(count(world.orders, "customer"))
    MaterializedView.opened(Table.open(str(told.folder / "kept")))


@follows("views.rowwise:ProjectRelation.require_findable")
def _(told: Told) -> None:
    world = World(told.folder)
    computed = world.orders.select("id", whose="customer + 0")
    with told:
        world.rows(computed.join(world.customers.select("id", "name"), on={"whose": "id"}))
    told("or join with reverse='scan'")
    right = world.customers.select("id", "name")
    assert len(world.rows(computed.join(right, on={"whose": "id"}, reverse="scan"))) == 2
    told("store 'whose' in the table")
    stored = world.of({"id": [1], "whose": [7]}, "stored", indexBy="whose")
    assert len(world.rows(stored.join(right, on={"whose": "id"}))) == 1


@follows("views.rowwise:UnnestRelation.require_findable")
def _(told: Told) -> None:
    world = World(told.folder)
    tags = world.orders.select("id", "customer", "tags").unnest("tags")
    codes = world.of({"id": ["a", "b"], "code": [1, 2]}, "codes")
    with told:
        world.rows(tags.join(codes, on={"tags": "id"}))
    told("with reverse='scan'")
    assert len(world.rows(tags.join(codes, on={"tags": "id"}, reverse="scan"))) == 2
    told("join on another column")
    right = world.customers.select("id", "name")
    assert len(world.rows(tags.join(right, on={"customer": "id"}))) == 3


@follows("views.scan:ScanRelation.require_findable")
def _(told: Told) -> None:
    world = World(told.folder)
    write(told.folder, {"id": [1], "customer": [7]}, "plain")
    path = str(told.folder / "plain")
    right = world.customers.select("id", "name")
    with told:
        world.rows(Plan.of_table(path).join(right, on={"customer": "id"}))
    told("or set reverse='scan'")
    on_scan = Plan.of_table(path).join(right, on={"customer": "id"}, reverse="scan")
    assert len(world.rows(on_scan)) == 1
    told(".at_version(" if ".at_version(" in told.hint else "at_version()")
    pinned = world.customers.at_version(0).select("id", "name")
    assert len(world.rows(Plan.of_table(path).join(pinned, on={"customer": "id"}))) == 1
    told("with indexBy=customer")
    write(told.folder, {"id": [2], "customer": [8]}, "plain", **told.options)
    Table.open(path).build_indexes()
    assert len(world.rows(Plan.of_table(path).join(right, on={"customer": "id"}))) == 2


@follows("core.arrow_types:type_of")
def _(told: Told) -> None:
    with told:
        type_of("BIGINT")
    for text in ("int64", "decimal128(10, 2)", "list<item: string>"):
        told(text)
        type_of(text)


# Joins --------------------------------------------------------------------------------------

PAIRS = pa.table({"a": [1, 1], "b": [1, 2], "v": [5, 6]})
OTHERS = pa.table({"c": [1, 1], "d": [1, 2], "w": [7, 8]})


@follows("views.join:_require_columns:2")
def _(told: Told) -> None:
    world = World(told.folder)
    pairs, others = world.of(PAIRS, "pairs", keys="a,b"), world.of(OTHERS, "others", keys="c,d")
    with told:
        pairs.join(others, on={"a": "c", "b": "c"})
    told("join it with one of them, and compare both in a filter below or above")
    assert len(world.rows(pairs.filter("a = b").join(others, on={"a": "c", "b": "d"}))) == 1


@follows("views.join:joined:2")
def _(told: Told) -> None:
    world = World(told.folder)
    pairs, others = world.of(PAIRS, "pairs", keys="a,b"), world.of(OTHERS, "others", keys="c,d")
    with told:
        pairs.join(others, on={"a": "c", "b": "d"}, how="full")
    told("use left")
    assert len(world.rows(pairs.join(others, on={"a": "c", "b": "d"}, how="left"))) == 2


@follows("views.join:joined:3")
def _(told: Told) -> None:
    world = World(told.folder)
    by_code = {"id": pa.array([1]), "code": pa.array([None], pa.int64())}
    first = world.kept(count(world.of(pa.table(by_code), "one"), "code"), "first")
    by_sign = {"id": pa.array([1]), "sign": pa.array([None], pa.int64())}
    kept = world.kept(count(world.of(pa.table(by_sign), "two"), "sign"), "second")
    second = kept.select("sign", m="n")
    with told:
        first.join(second, on={"code": "sign"}, how="full")
    told('filter one side before: filter("code IS NOT NULL")')
    shown = first.filter("code IS NOT NULL").join(second, on={"code": "sign"}, how="full")
    assert len(world.rows(shown)) == 1
    told("or use left")
    assert len(world.rows(first.join(second, on={"code": "sign"}, how="left"))) == 1


@follows("views.join:joined:4")
def _(told: Told) -> None:
    world = World(told.folder)
    other = world.of({"id": [5], "who": [7]}, "other", indexBy="who")
    with told:
        world.orders.join(other.select("who", other="id"), on={"customer": "who"})
    told("group one side first")
    first = world.kept(count(other, "who"))
    assert len(world.rows(world.orders.join(first, on={"customer": "who"}))) == 1


@follows("views.scan:require_columns")
def _(told: Told) -> None:
    world = World(told.folder)
    before = world.orders.node.to_json()
    shutil.rmtree(told.folder / "orders")
    write(told.folder, ORDERS, "orders", keys="id,customer")
    with told:
        batch({"plan": before})
    told("make the plan anew")
    assert len(batch({"plan": world.orders.node.to_json()})) == 2


@follows("views.scan:require_columns:2")
def _(told: Told) -> None:
    world = World(told.folder)
    before = world.orders.node.to_json()
    shutil.rmtree(told.folder / "orders")
    write(told.folder, ORDERS.select(["id", "customer"]), "orders")
    with told:
        batch({"plan": before})
    told("make the plan anew")
    assert len(batch({"plan": world.orders.node.to_json()})) == 2


@follows("views.grouping:_error")
def _(told: Told) -> None:
    world = World(told.folder)
    with told:
        world.orders.group_by("customer").agg(n=agg.sum("tags"))
    told("sum numbers")
    world.orders.group_by("customer").agg(n=agg.sum("amount"))


@follows("streams.inputs.view:ViewKind.batch")
def _(told: Told) -> None:
    world = World(told.folder)
    plan = count(world.orders, "customer")
    with told:
        batch({"plan": plan.node.to_json()})
    told("keep it first, .keep(path), and read that table")
    world.kept(plan)
    assert len(batch({"path": str(told.folder / "kept")})) == 2


@follows("streams.inputs.view:require_bounds:2")
def _(told: Told) -> None:
    world = World(told.folder)
    plan = count(world.orders, "customer").node.to_json()
    with told:
        Query().run({"plan": plan, "startingVersion": "1"})
    told("drop it")
    assert Query().run({"plan": plan})


@follows("streams.inputs.view:start_of")
def _(told: Told) -> None:
    world = World(told.folder)
    right = world.customers.select("id", "name")
    write(told.folder, {"id": [9], "name": ["z"], "code": ["9"]}, "customers")
    late = world.of(pa.table({"id": [1], "customer": [7]}), "late", indexBy="customer")
    born_ms = Table.open(str(told.folder / "late")).log.commit(0).timestamp_ms
    plan = {"plan": late.join(right, on={"customer": "id"}).to_json(), "readChangeFeed": "true"}
    with told:
        Query().run({**plan, "startingTimestamp": str(born_ms)})
    told("or with all rows: without a start")
    assert len(Query().run(plan)) == 1


@follows("views.grouping:Grouping.from_json")
def _(told: Told) -> None:
    world = World(told.folder)
    view = count(world.orders, "customer")
    world.kept(view)
    with told:
        Grouping.from_json("{}")
    told("keep the view in another path")
    kept = world.kept(view, "other")
    assert len(world.rows(kept)) == 2
