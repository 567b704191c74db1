"""A materialized view of a table with unchanged values follows its rows.

The histories of `test_unchanged_histories`: after some of the steps the view is refreshed, by rows
that late values fill in, deletes, restores and compactions alike.
"""

from __future__ import annotations

import os
import random
from unittest.mock import patch

import pytest

from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.plan.nodes import Group, Scan
from spark_upsert.table.table import Table
from spark_upsert.views import view as view_module
from spark_upsert.views.materialized import MaterializedView
from spark_upsert.views.plan_builder import refresh
from spark_upsert.views.view import View
from tests.support.grouped import expected, shown
from tests.support.stores import MemoryStore
from tests.support.unchanged_cases import parse_steps
from tests.support.unchanged_histories import Played, history_of
from tests.support.unchanged_tables import UnchangedTable

VIEWS = int(os.environ.get("UNCHANGED_VIEWS", "30"))


class SumByGroup:
    """A view with the number of rows and a sum for each value of a column."""

    def __init__(self, table: UnchangedTable, group: str, number: str) -> None:
        self.table = table
        self.kept = MemoryStore()
        schema = table.table.log.head().schema
        self.plan = Group(
            input=Scan.of("t", schema.columns, schema.keys),
            keys=(group,),
            aggregates=(
                Aggregate("rows", AggregateKind.COUNT),
                Aggregate("total", AggregateKind.SUM, number),
            ),
        )

    def refresh(self) -> None:
        """Bring the view to the newest version, and compare it with the rows there."""
        with patch.object(view_module, "open_store", lambda *_: self.table.store):
            refresh(View(self.plan), Table(self.kept))
        kept = MaterializedView.open(Table(self.kept))
        rows = self.table.table.snapshot().select(kept.grouping.rows.names).to_pylist()
        contents = [tuple(row.values()) for row in rows]
        assert shown(kept.grouping, kept.rows()) == expected(kept.grouping, contents)


def test_a_group_loses_a_row_to_another_when_its_value_comes_late() -> None:
    """Case 36."""
    table = UnchangedTable()
    view = SumByGroup(table, "x", "n")
    for step in parse_steps("P5(n=0,x=a) | P10(n=1,x=·) | P7(n=·,x=b)"):
        table.take(step)
        view.refresh()
    assert table.rows() == {1: (1, "b")}


@pytest.mark.parametrize("seed", range(VIEWS))
def test_views_follow_the_rows_of_their_table(seed: int) -> None:
    history = history_of(20_000 + seed)
    dice = random.Random(seed)
    played = Played(history)
    view = SumByGroup(played.table, "c", "a")
    for step in history.steps:
        played.take(step)
        if dice.random() < 0.6:
            view.refresh()
    view.refresh()
