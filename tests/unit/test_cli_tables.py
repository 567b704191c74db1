"""The command `upsertflow tables`: whose each table below a root is, and what it has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from spark_upsert.cli.commands import upsertflow
from spark_upsert.core.path_template import Template
from spark_upsert.routed.group import Batch, Member
from spark_upsert.routed.plan import table_below
from spark_upsert.routed.replay import drop_dead_letters
from spark_upsert.store import LocalStore
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.table import Table
from tests.support.group_worlds import RoutedBatch
from tests.support.routed_worlds import routed_options, transaction, write

TEMPLATE = Template.parse("/l/{db}.{table}")
ORDERS, ODD = ("shop", "orders"), ("größe", "a.b")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with two tables of batch 7, and two that the group does not know."""
    world = RoutedBatch(tmp_path)
    writer, folders = "query:one", {TEMPLATE.folder(values): values for values in (ORDERS, ODD)}
    for folder in (*folders, "new.table", "by=hand"):
        world.write(folder, {1: 1})
    what: dict[str, Any] = {"writer": writer, "batch": 7, "rows": 1}
    members = [
        Member(
            folder=folder,
            name=TEMPLATE.name(values),
            values=values,
            place=world.table(folder).log.version_ref(1),
            parked=2 if values == ODD else 0,
            **what,
        )
        for folder, values in folders.items()
    ]
    shown: dict[str, Any] = {"template": TEMPLATE.relative, "unmatched": ("crm.*",)}
    batch = Batch(writer=writer, number=7, rows=2, parked=2, **shown)
    world.group.append(batch, members, Transaction(writer=writer, number=7))
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(upsertflow, ["tables", *arguments])


def lines(*arguments: str) -> list[dict[str, Any]]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_each_table_has_a_line_with_its_values(root: Path) -> None:
    whole, *tables = lines(str(root))
    assert (whole["folder"], whole["template"]) == ("", "{db}.{table}")
    assert (whole["query"], whole["batch"], whole["rows"]) == ("query:one", 7, 2)
    assert whole["patterns_that_match_no_table"] == ["crm.*"]
    by_folder = {line["folder"]: line for line in tables}
    assert {line["name"] for line in tables if line["note"] is None} == {
        "shop.orders",
        "größe.a.b",
    }
    odd = by_folder["gr=C3=B6=C3=9Fe.a=2Eb"]
    assert odd["values"] == ["größe", "a.b"]
    assert (odd["version"], odd["batch"], odd["parked"]) == (1, 7, 0)
    assert by_folder["new.table"]["values"] == ["new", "table"]
    assert "no whole batch had rows of it" in by_folder["new.table"]["note"]
    assert by_folder["by=hand"]["values"] is None
    assert "no values lead here" in by_folder["by=hand"]["note"]
    grid = run(str(root)).stdout
    for text in (
        "{db}.{table}",
        "query:one",
        "crm.*",
        "shop.orders",
        "größe.a.b",
        "not of the group",
    ):
        assert text in grid
    assert "_ms" not in grid


def test_parked_rows_are_counted_until_they_are_dropped(tmp_path: Path) -> None:
    root = LocalStore(str(tmp_path))
    bad = {"topic": "epoch", "id": None, "at": 1, "v": 1, "w": 1, "gone": False}
    rows = [bad, {**bad, "topic": None}, {**bad, "topic": "last", "id": 1}]
    options = routed_options(**{"table.epoch.onError": "fail", "onTableError": "park"})
    write(root, options, [rows], transaction(0))
    whole, epoch, last = lines(str(tmp_path))
    assert (whole["tables"], whole["parked"], whole["parked_nameless"]) == (2, 2, 1)
    assert (epoch["name"], epoch["parked"]) == ("epoch", 1)
    assert "not there: all its rows are parked" in epoch["note"]
    assert (last["name"], last["parked"], last["note"]) == ("last", 0, None)
    drop_dead_letters(root, ["epoch"])
    whole, _ = lines(str(tmp_path))
    assert (whole["parked"], whole["parked_nameless"]) == (1, 1)
    drop_dead_letters(root, [], nameless=True)
    whole, _ = lines(str(tmp_path))
    assert (whole["parked"], whole["parked_nameless"]) == (0, 0)


def test_before_the_first_whole_batch_the_template_finds_tables(tmp_path: Path) -> None:
    RoutedBatch(tmp_path).write("a=2Fb", {1: 1})
    whole, line = lines(f"{tmp_path}/{{topic}}")
    assert (whole["batch"], whole["tables"]) == (None, 1)
    assert (line["name"], line["values"]) == ("a/b", ["a/b"])
    assert "a/b" in run(f"{tmp_path}/{{topic}}").stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["tables", "ROOT"], ["no table in its folder '_group'", "/lake/{topic}"]),
        (["tables", "ROOT/{a}{b}"], ["nothing between {a} and {b}"]),
        (["check", "ROOT", "--all"], ["no table in its folder '_group'"]),
        (["info", "LAKE"], ["of those that one stream writes as '{t}'", "upsertflow tables LAKE"]),
        (["info", "LAKE/{topic}"], ["columns in braces are for writes"]),
    ],
)
def test_a_root_and_a_table_are_told_apart(
    lake: Path, tmp_path: Path, arguments: list[str], expected: list[str]
) -> None:
    def filled(text: str) -> str:
        return text.replace("ROOT", str(tmp_path / "nothing")).replace("LAKE", str(lake))

    result = CliRunner().invoke(upsertflow, [filled(text) for text in arguments])
    assert result.exit_code == 1
    for text in expected:
        assert filled(text) in result.stderr


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A root with two tables of the group, one of which has had four batches."""
    world = RoutedBatch(tmp_path / "lake")
    world.batch(busy={1: 0}, quiet={1: 0})
    for value in range(1, 4):
        world.batch(busy={1: value})
    return tmp_path / "lake"


def command(*arguments: str, exit_code: int = 0) -> list[dict[str, Any]]:
    result = CliRunner().invoke(upsertflow, [*arguments, "--json"])
    assert result.exit_code == exit_code, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_all_tables_and_the_group_are_kept_in_order(lake: Path) -> None:
    nothing = [{"table": "", "tables": 3, "shown": 0, "failed": 0}]
    bound = {"bound_by": "versions of the last 1 hour (3 tables)"}
    assert command("expire", str(lake), "--all", "--retain-versions", "1") == [nothing[0] | bound]
    *results, total = command("compact", str(lake), "--all", "--full")
    assert [line["table"] for line in results] == ["busy", "_group"]
    assert total == {"table": "", "tables": 3, "shown": 2, "failed": 0}
    assert command("compact", str(lake), "--all", "--full") == nothing
    (lake / "quiet" / "data" / "notes.txt").touch()
    *results, _ = command("vacuum", str(lake), "--all")
    assert [(line["table"], line["foreign"]) for line in results] == [("quiet", 1)]
    assert command("check", str(lake), "--all") == nothing


def test_a_table_that_fails_does_not_stop_the_others(lake: Path) -> None:
    (lake / "busy" / "_log").rename(lake / "gone")
    failed, *results, total = command("compact", str(lake), "--all", "--full", exit_code=1)
    assert failed["table"] == "busy"
    assert "TABLE_NOT_FOUND" in failed["problem"]
    assert [line["table"] for line in results] == ["_group"]
    assert total["failed"] == 1
    shown = CliRunner().invoke(upsertflow, ["check", str(lake), "--all"])
    assert shown.exit_code == 1
    assert "TABLE_NOT_FOUND" in shown.stdout


@pytest.mark.parametrize("work", ["check", "compact", "expire --retain-versions 1", "vacuum"])
def test_a_table_that_somebody_has_put_in_the_place_of_one_is_left_alone(
    lake: Path, work: str
) -> None:
    (lake / "quiet").rename(lake / "before")
    Table.create(str(lake / "quiet"), pa.schema({"k": pa.int64()}), keys=["k"])
    name, *more = work.split()
    *results, total = command(name, str(lake), "--all", *more, exit_code=1)
    [failed] = [line for line in results if line["problem"]]
    assert failed["table"] == "quiet"
    assert "OTHER_TABLE" in failed["problem"]
    assert (total["tables"], total["failed"]) == (3, 1)
    assert Table.open(str(lake / "quiet")).log.head().version == 0


def test_a_batch_that_will_never_be_whole_is_shown(tmp_path: Path) -> None:
    root, options = LocalStore(str(tmp_path)), routed_options()
    row = {"topic": "last", "id": 1, "at": 1, "v": 1, "w": 1, "gone": False}
    write(root, options, [[row, {**row, "topic": "epoch"}]], transaction(0, "old"))
    table_below(root, "epoch").upsert(
        pa.table({"id": [2], "v": [2], "w": [2], "at": [2]}), transaction=transaction(1, "old")
    )
    (total,) = command("check", str(tmp_path), "--all")
    assert total["shown"] == 0, "its query has the root, and goes on with it"
    write(root, routed_options(takeOver="true"), [[row]], transaction(0, "new"))
    shown, total = command("check", str(tmp_path), "--all")
    assert shown["table"] == "epoch"
    assert shown["never_whole"] == ["batch 1 of 'query:old'"]
    assert total["failed"] == 0
    text = CliRunner().invoke(upsertflow, ["check", str(tmp_path), "--all"]).stdout
    assert "batch 1 of 'query:old'" in text


def test_damage_in_one_of_all_tables_is_shown_and_exits_with_1(lake: Path) -> None:
    for file in (lake / "quiet").glob("data/**/*.*"):
        file.write_bytes(b"?" * file.stat().st_size)
    *results, total = command("check", str(lake), "--all", exit_code=1)
    assert [line["table"] for line in results] == ["quiet"]
    assert total["failed"] == 1
