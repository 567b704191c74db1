"""Tables that keep the rows of views, as their queries wrote them, and one more batch of each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_upsert.errors import UpsertFlowError
from spark_upsert.plan.json import plan_from_json
from spark_upsert.plan.nodes import Node
from spark_upsert.table.log.codec import manifest_to_json
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan
from tests.golden.case import Case, Seen, log_text, sorted_rows
from tests.golden.kept import CUSTOMERS, ORDERS, append
from tests.support.view_keepers import Keeper

NAMES = ("rows", "left", "full", "pinned")


def plans() -> dict[str, Node]:
    """Return the plans of views, by their names; their tables lie in the working folder."""
    orders, customers = Plan.of_table("orders"), Plan.of_table("customers")
    by_customer = {"customer": "id"}
    views = {
        "rows": orders.filter("amount > 3").select("id", double="amount * 2"),
        "left": orders.join(customers, by_customer, how="left"),
        "full": orders.join(customers, {"id": "id"}, how="full"),
        "pinned": orders.join(customers.at_version(1), by_customer, how="semi", mixed_bases=True),
    }
    here = f"{Path.cwd()}/"
    return {name: plan_from_json(plan.to_json().replace(here, "")) for name, plan in views.items()}


def keeper(name: str) -> Keeper:
    """Return the query that keeps a view, in a process that has seen nothing."""
    return Keeper(plans()[name], Path(f"kept {name}"), Path(f"query-{name}"), {})


def build() -> Seen:
    """Write the tables of the views, and keep each view, in three batches."""
    Table.create("orders", ORDERS, keys=["id"], properties={"indexBy": "customer"})
    Table.create("customers", CUSTOMERS, keys=["id"])
    append(0)
    queries = {name: keeper(name) for name in NAMES}
    for number in range(3):
        if number:
            append(number)
        for query in queries.values():
            while query.run():
                pass
    return {"queries": {n: {"offset": q.offset, "done": q.done} for n, q in queries.items()}}


def see(_: Seen) -> Seen:
    """Return what each table shows at each version, and from when to when."""
    return {name: _seen(name) for name in NAMES}


def go_on(kept: Seen) -> Seen:
    """Append, and let each query go on; return the texts of the logs as well."""
    found: Seen = {}
    append(5)
    for name, stood in kept["queries"].items():
        before = _logs(name)
        query = keeper(name)
        query.offset, query.done = stood["offset"], stood["done"]
        assert query.run()
        assert not query.run()
        texts = {path.stem: log_text(path) for path in _logs(name) if path not in before}
        found[name] = {"offset": json.dumps(query.offset), "log": texts, **_seen(name)}
    return found


def _logs(name: str) -> list[Path]:
    return sorted(Path(f"kept {name}", "_log").glob("?" * 20 + ".json"))


def _seen(name: str) -> Seen:
    table = Table.open(f"kept {name}")
    head = table.log.head()
    versions = range(max(1, head.since), head.version + 1)
    return {
        "manifest": manifest_to_json(head),
        "rows": {str(v): sorted_rows([table.snapshot(v)]) for v in versions},
        "changes": {str(v): sorted_rows([table.changes(v, v + 1)]) for v in versions},
        "problems": [str(each) for each in table.check().findings],
        "refused": _refused(name),
    }


def _refused(name: str) -> str:
    """Return the code of the error by which a table refuses to keep another view."""
    other = next(each for each in NAMES if each != name)
    with pytest.raises(UpsertFlowError) as failed:
        Keeper(plans()[other], Path(f"kept {name}"), Path(f"query-{name}"), {})
    return failed.value.code


CASE = Case("kept_rows", build, see, go_on)
