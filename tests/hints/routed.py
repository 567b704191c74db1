"""Hints of writes into many tables, and of the commands that look after them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.routed.park import ParkedTable
from spark_upsert.routed.plan import table_below
from spark_upsert.routed.unpark import unpark
from spark_upsert.store import LocalStore
from spark_upsert.table import Table
from tests.hints.hint import Told, follows
from tests.support.own_schemas import INLINE
from tests.unit.test_parking import write
from tests.unit.test_routed_schemas import message, rows_of
from tests.unit.test_routed_schemas import write as write_records


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


@follows("routed.unpark:_widened:2")
def _(told: Told) -> None:
    root = root_of(told)
    write(root, 0, [("a", 1, 1)], [("a", 1, 2)], [("b", 1, 1)])
    columns = pa.schema({"id": pa.int64(), "v": pa.string()})
    Table.create(str(told.folder / "a"), columns, keys=["id"])
    with told:
        unpark(root)
    told("give except_column_list=v")
    unpark(root, given={"exceptColumnList": "v"})
    assert table_below(root, "a").snapshot().to_pylist() == [{"id": 1, "v": None}]
    nothing_waits(told)


@follows("routed.park:as_parkable")
def _(told: Told) -> None:
    root, plan = root_of(told), Table.plan

    def faulty(self: Table, *args: Any, **how: Any) -> Any:
        if self.store.url.endswith("/a"):
            raise IndexError("a fault of this version")
        return plan(self, *args, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "plan", faulty)
        write(root, 0, [("a", 1, 1), ("b", 1, 1)])
        with told:
            unpark(root)
    told("run 'upsertflow unpark'")
    unpark(root)
    nothing_waits(told)
