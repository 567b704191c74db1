"""What is between double quotes is a text wherever SQL is read, as in Spark, and never a column."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from spark_upsert.cli.commands import upsertflow
from spark_upsert.errors import PlanError
from spark_upsert.plan import expressions
from spark_upsert.plan.expressions import bind
from spark_upsert.plan.json import plan_from_json
from spark_upsert.plan.sql import double_quoted, replace_quotes
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan
from tests.support.queries import batch

CONDITION = 'status = "name"'
ROWS = pa.table({"id": [1, 2, 3], "status": ["name", "x", "y"], "name": ["x", "x", "y"]})


def ids(rows: Any) -> list[int]:
    return sorted(row["id"] for row in rows)


def shown_by_command(path: str, *arguments: str) -> list[int]:
    result = CliRunner().invoke(upsertflow, [*arguments[:1], path, *arguments[1:], "--json"])
    assert result.exit_code == 0, result.output
    return ids(json.loads(line) for line in result.stdout.splitlines())


def left_by_command(path: str) -> list[int]:
    command = ["delete", path, "--filter", CONDITION]
    assert CliRunner().invoke(upsertflow, command).exit_code == 0
    return ids(Table.open(path).snapshot().to_pylist())


def in_pieces(path: str) -> list[int]:
    pieces = Table.open(path).pieces(2, filter=CONDITION)
    return ids(row for piece in pieces for row in piece.scan().read_all().to_pylist())


def formula(path: str) -> list[int]:
    rows = Plan.of_table(path).select("id", is_it=CONDITION).to_arrow().to_pylist()
    return ids(row for row in rows if row["is_it"])


def stored_plan(path: str) -> list[int]:
    plan = Plan(plan_from_json(Plan.of_table(path).filter(CONDITION).to_json()))
    return ids(plan.to_arrow().to_pylist())


CALLS: dict[str, tuple[Callable[[str], list[int]], list[int]]] = {
    "the command": (lambda path: shown_by_command(path, "snapshot", "--filter", CONDITION), [1]),
    "pieces": (in_pieces, [1]),
    "a read of Spark": (lambda path: ids(batch({"path": path, "filter": CONDITION})), [1]),
    "a formula of a view": (formula, [1]),
    "a stored plan": (stored_plan, [1]),
    "delete by the command": (left_by_command, [2, 3]),
}


@pytest.fixture
def path(tmp_path: Path) -> str:
    table = Table.create(str(tmp_path / "table"), ROWS.schema, keys=["id"])
    table.upsert(ROWS)
    return str(tmp_path / "table")


@pytest.mark.parametrize(("call", "expected"), CALLS.values(), ids=CALLS)
def test_a_condition_reads_a_text(
    path: str, call: Callable[[str], list[int]], expected: list[int]
) -> None:
    assert call(path) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"a""b"', 'a"b'),
        ("\"it''s\"", "it''s"),
        ('""', ""),
        ("'say \"hi\"'", 'say "hi"'),
        ('CASE "a" WHEN "a" THEN "b" END', "b"),
    ],
)
def test_a_text_has_each_doubled_quote_once(text: str, value: str) -> None:
    for each in (text, replace_quotes(text, "'")):
        assert bind(each, ROWS.schema)(ROWS.to_batches()[0]).to_pylist() == [value] * 3
    assert double_quoted(replace_quotes(text, "'")) == []


@pytest.mark.parametrize("text", ['"a"."b"', '"a" "b"', "'a' \"b\"", '"a', 'a"', '"id"(1)'])
def test_other_uses_of_double_quotes_are_refused(text: str) -> None:
    with pytest.raises(PlanError):
        bind(text, ROWS.schema)
    assert replace_quotes(text, "'").replace("'", '"') == text.replace("'", '"')


def test_a_text_with_the_name_of_a_column_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    expressions._warn_of_text.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            bind(CONDITION, ROWS.schema)
        bind('status = "other"', ROWS.schema)
    [message] = caplog.messages
    assert "text=name" in message
    assert "`name`" in message


# -- plans -----------------------------------------------------------------------------------


def test_a_plan_has_no_double_quotes(path: str) -> None:
    plan = Plan.of_table(path).filter(CONDITION).select("id", it='"a"')
    assert "status = 'name'" in plan.to_json()
    assert "\"'a'\"" in plan.to_json()
    assert plan_from_json(plan.to_json()).to_json() == plan.to_json()


def test_a_stored_plan_with_double_quotes_keeps_its_names(path: str) -> None:
    """Version 0.1.0 read names there."""
    plan = Plan.of_table(path).filter("status = `name`").select("id", it="`name`")
    stored = plan.to_json().replace("`", '\\"')
    assert plan_from_json(stored).to_json() == plan.to_json()
