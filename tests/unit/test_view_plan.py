"""Plans of views: their text, their fingerprint, and what is refused when they are built."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from spark_upsert.core.arrow_types import type_of, type_text
from spark_upsert.errors import PlanError, SchemaError
from spark_upsert.options.views import plan_paths
from spark_upsert.plan import agg
from spark_upsert.plan.json import plan_from_json
from spark_upsert.plan.nodes import DEPTH_MAX, Filter, Scan
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan
from tests.support.view_cases import between, cases
from tests.support.view_plays import plan_of

ORDERS = pa.schema(
    {
        "order_id": pa.int64(),
        "customer_id": pa.int64(),
        "amount": pa.int64(),
        "note": pa.string(),
        "items": pa.list_(pa.string()),
        "indexed": pa.int64(),
    }
)
CUSTOMERS = pa.schema({"id": pa.int64(), "name": pa.string(), "note": pa.string()})
COUNTRIES = pa.schema({"a": pa.int64(), "b": pa.int64(), "rank": pa.int64()})


class Lake:
    """Three tables, and plans of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        indexed = {"indexBy": "indexed"}
        Table.create(str(path / "orders"), ORDERS, keys=["order_id"], properties=indexed)
        Table.create(str(path / "customers"), CUSTOMERS, keys=["id"])
        Table.create(str(path / "countries"), COUNTRIES, keys=["a", "b"])

    @property
    def orders(self) -> Plan:
        return Plan.of_table(str(self.path / "orders"))

    @property
    def customers(self) -> Plan:
        return Plan.of_table(str(self.path / "customers"))

    @property
    def names(self) -> Plan:
        return self.customers.select("id", "name")

    @property
    def countries(self) -> Plan:
        return Plan.of_table(str(self.path / "countries"))

    @property
    def ranks(self) -> Plan:
        return self.countries.select("a", "b", r="rank")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def test_a_plan_has_a_text_that_holds_all_of_it() -> None:
    for case in between(1, 28):
        node = plan_of(case.plan)
        assert plan_from_json(node.to_json()) == node
        assert plan_from_json(node.to_json()).fingerprint() == node.fingerprint()


def test_the_text_is_that_of_the_specification() -> None:
    columns = [["id", "int64"], ["c", "int64"], ["x", "int64"]]
    scan = {"node": "scan", "path": "O", "columns": columns, "key": ["id"]}
    record = json.loads(plan_of('O.join(C,"c=id","left")').to_json())
    assert list(record) == ["v", "node", "how", "on", "left", "right"]
    assert record["v"] == 1
    assert (record["how"], record["on"], record["left"]) == ("left", [["c", "id"]], scan)


def test_the_fingerprint_follows_what_the_plan_says_and_not_how_it_is_written() -> None:
    node = plan_of('O.join(C,"c=id","left")')
    record = json.loads(node.to_json())
    turned = json.dumps(dict(reversed(record.items())), indent=2)
    assert plan_from_json(turned).fingerprint() == node.fingerprint()
    # Of a later release: a checkpoint made by this one must go on there.
    assert node.fingerprint() == "4c41d719fefdc8fb0a96437d3a8c4ef5"
    plans = {case.plan for case in cases()[:28]}
    assert len({plan_of(plan).fingerprint() for plan in plans}) == len(plans)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no JSON"),
        ('{"v":1,"node":"scam"}', "no node 'scam'"),
        ('{"v":2,"node":"scan"}', "of the form 2"),
        ('{"v":1,"node":"scan","path":"p","columns":[]}', "field 'key' is missing"),
        ('{"v":1,"node":"scan","path":"p","columns":[],"key":[],"version":-1}', "'version' is -1"),
        ('{"v":1,"x":' + "[" * 500 + "]" * 500 + "}", "no JSON, or longer or deeper"),
    ],
    ids=lambda text: text[:40],
)
def test_a_text_that_is_no_plan_is_refused(text: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        plan_from_json(text)


TYPES = (
    pa.date32(),
    pa.duration("ms"),
    pa.timestamp("us", tz="Europe/Berlin"),
    pa.decimal128(38, 18),
    pa.list_(pa.struct([("a", pa.float64()), pa.field("b", pa.string(), nullable=False)])),
    pa.map_(pa.string(), pa.list_(pa.binary())),
)


def test_a_type_is_what_its_text_means() -> None:
    assert [type_of(type_text(type_)) for type_ in TYPES] == [*TYPES]


FK = {"customer_id": "id"}
PAIR = {"a": "a", "b": "b"}

REFUSED: list[tuple[Callable[[Lake], object], str]] = [
    (
        lambda t: t.orders.join(t.names, FK),
        "join of orders and customers.*index of orders on 'customer_id': a change of customers",
    ),
    (lambda t: t.names.join(t.orders, {"id": "customer_id"}, "anti"), "needs an index of orders"),
    (
        lambda t: t.orders.join(t.countries, {"amount": "rank"}),
        r"neither side is joined on its whole key \(orders: order_id; countries: a, b\)",
    ),
    (lambda t: t.orders.select("amount").to_json(), "the projection drops the key 'order_id'"),
    (lambda t: t.countries.join(t.ranks, PAIR, "full"), "full join needs one key column on both"),
    (lambda t: t.orders.join(t.customers, {"indexed": "id"}), "both sides have 'note': rename one"),
    (
        lambda t: t.orders.select("order_id", y="amount * 2").join(t.customers, {"y": "id"}),
        "an index is on stored columns.*store 'y'",
    ),
    (
        lambda t: t.orders.unnest("items").join(t.names.select(i="id"), {"pos": "i"}),
        "'pos' is unnested",
    ),
    (lambda t: t.orders.filter("amout > 1"), "filter of orders.*no column.*Did you mean 'amount'"),
    (lambda t: t.orders.select("order_id", "amount", "amount"), "two columns are called 'amount'"),
    (lambda t: t.orders.unnest("amount"), "a list is unnested"),
    (lambda t: t.orders.join(t.customers, {}), "no columns to join on"),
    (
        lambda t: t.orders.join(t.customers, {"note": "id"}),
        "'note' is joined with 'id', string against int64: cast one",
    ),
    (lambda t: t.orders.filter("rand() < 1"), "RAND is not a function of one row"),
    (lambda t: t.orders.limit(5), r"limit\(5\) is not a function of one row"),
    (lambda t: t.orders.join(t.customers, FK, "right"), "no right join.*swap the sides"),
    (lambda t: t.orders.filter("amount > 1").at_version(3), "filter of orders.*is no table"),
    (
        lambda t: t.orders.join(t.countries, {"amount": "a", "indexed": "a"}),
        "'a' is joined with two columns",
    ),
]


@pytest.mark.parametrize(
    ("build", "words"), REFUSED, ids=lambda each: each if isinstance(each, str) else ""
)
def test_a_plan_that_cannot_be_run_is_refused_when_it_is_built(
    lake: Lake, build: Callable[[Lake], object], words: str
) -> None:
    with pytest.raises(PlanError, match=f"(?s){words}"):
        build(lake)


def test_a_plan_that_can_be_run_has_a_text(lake: Lake) -> None:
    for plan in (
        lake.orders.join(lake.names, {"indexed": "id"}),
        lake.orders.join(lake.names, FK, reverse="scan"),
        lake.orders.join(lake.customers.at_version(0).select("id", "name"), FK),
        lake.countries.join(lake.ranks, PAIR, "left"),
    ):
        assert plan_from_json(plan.to_json()) == plan.node
        assert plan.key is not None
        assert set(plan.key) <= set(plan.schema.names)


def test_a_table_that_has_other_columns_by_now_stops_the_plan(lake: Lake) -> None:
    plan = lake.customers
    for old, new, words in (
        ('["name","string"]', '["name","int32"]', "reads 'name' of .* as int32, and it is string"),
        ('"key":["id"]', '"key":["name"]', "by the key"),
    ):
        with pytest.raises(SchemaError, match=words):
            Plan(plan_from_json(plan.to_json().replace(old, new))).to_json()


def groups(lake: Lake) -> Plan:
    customers = lake.customers.select("id", "name", who="note")
    joined = lake.orders.join(customers, FK, reverse="scan").group_by("name")
    return joined.agg(n=agg.count(), most=agg.max("amount"))


OF_ORDERS = ["order_id", "customer_id", "amount"]

PRUNED: dict[str, tuple[Callable[[Lake], Plan], dict[str, list[str]]]] = {
    "columns of a join": (
        lambda t: (
            t.orders.join(t.names, FK, reverse="scan")
            .filter("AMOUNT > 1")
            .select("order_id", upper="upper(name)")
        ),
        {"orders": OF_ORDERS, "customers": ["id", "name"]},
    ),
    "groups": (groups, {"orders": OF_ORDERS, "customers": CUSTOMERS.names}),
    "a count": (
        lambda t: t.orders.unnest("items").group_by().agg(n=agg.count()),
        {"orders": ["order_id", "items"]},
    ),
}


@pytest.mark.parametrize(("build", "expected"), PRUNED.values(), ids=PRUNED)
def test_a_plan_names_the_columns_that_it_uses(
    lake: Lake, build: Callable[[Lake], Plan], expected: dict[str, list[str]]
) -> None:
    scans = [node for node in build(lake).node.walk() if isinstance(node, Scan)]
    assert {scan.label: [column.name for column in scan.columns] for scan in scans} == expected


def test_columns_that_a_table_gains_do_not_make_another_plan(lake: Lake) -> None:
    grouped, whole = groups(lake).to_json(), lake.orders.to_json()
    orders = Table.open(str(lake.path / "orders"))
    gained = orders.schema.columns.append(pa.field("gained", pa.string()))
    orders.alter(replace(orders.schema, columns=gained))
    assert "gained" in lake.orders.schema.names
    assert groups(lake).to_json() == grouped
    # What was read whole is read so again by its names.
    assert lake.orders.select(*ORDERS.names).to_json() == whole


@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, 10_000])
def test_a_text_that_is_deeper_than_a_plan_is_no_plan(depth: int) -> None:
    scan = '{"node":"scan","path":"/t","columns":[["id","int64"]],"key":["id"]}'
    above = '{"node":"filter","where":"id > 1","input":' * depth
    text = f'{{"v":1,{above[1:]}{scan}{"}" * depth}'
    with pytest.raises(PlanError, match="deeper"):
        plan_from_json(text)
    assert plan_paths(text) in ([], ["/t"])


def test_a_text_that_is_longer_than_a_plan_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", None)
    with pytest.raises(PlanError, match="longer or deeper"):
        plan_from_json("[" * (5 << 20))


def test_a_plan_is_built_no_deeper_than_its_text_may_be(lake: Lake) -> None:
    node = lake.countries.node
    for _ in range(DEPTH_MAX - 1):
        node = Filter(input=node, where="a > 1")
    last = replace(lake.countries, node=node).filter("a > 1")
    assert plan_from_json(last.to_json()) == last.node
    with pytest.raises(PlanError, match="deeper than 100 nodes"):
        last.filter("a > 1")
