"""Patterns of options that match no table are told once, and the group says which they are."""

from __future__ import annotations

import logging

import pytest

from spark_upsert.routed.group import GroupTable
from tests.support.routed_worlds import routed_options, transaction, write
from tests.support.stores import MemoryStore


def test_a_pattern_of_no_table_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="spark_upsert")
    told = {"table.late.mergeSchema": "true", "table.typo.*.ties": "last"}
    root, options = MemoryStore(), routed_options(**told)
    seen: list[tuple[str, ...]] = []
    for number, topic in enumerate(["early", "early", "late", "early"]):
        row = {"topic": topic, "id": 1, "at": number, "v": 1, "w": 1, "gone": False}
        write(root, options, [[row]], transaction(number))
        batch = GroupTable(root).at().batch
        assert batch is not None
        seen.append(batch.unmatched)
    ours = {"late", "typo.*"}
    assert [set(each) & ours for each in seen] == [ours, ours, {"typo.*"}, {"typo.*"}]
    lines = [record.getMessage() for record in caplog.records]
    for pattern in ours:
        text = f"options 'table.{pattern}.*' match no table below '{root.url}'"
        assert [line for line in lines if f"'table.{pattern}." in line] == [text]


def test_a_pattern_that_is_nearly_a_table_is_told_with_its_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="spark_upsert")
    row = {"topic": "orders", "id": 1, "at": 0, "v": 1, "w": 1, "gone": False}
    options = routed_options(**{"table.order.ties": "last", "table.xyz.ties": "last"})
    write(MemoryStore(), options, [[row]], transaction(0))
    said = {line for line in caplog.messages if "'table.order.*'" in line or "'table.xyz" in line}
    near = {line.rpartition("; ")[2] for line in said if "; " in line}
    assert (len(said), near) == (2, {"did you mean 'table.orders.*'?"})
