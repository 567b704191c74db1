"""The command `upsertflow tables`: whose each table below a root is, and what it has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from spark_upsert.cli.main import upsertflow
from spark_upsert.core.path_template import Template
from spark_upsert.routed.group import Batch, Member
from spark_upsert.routed.plan import table_below
from spark_upsert.routed.replay import drop
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
    members = [
        Member(
            folder=folder,
            name=TEMPLATE.name(values),
            values=values,
            place=world.table(folder).log.place(1),
            writer=writer,
            batch=7,
            rows=1,
            parked=2 if values == ODD else 0,
        )
        for folder, values in folders.items()
    ]
    batch = Batch(
        template=TEMPLATE.relative,
        writer=writer,
        number=7,
        rows=2,
        parked=2,
        unmatched=("crm.*",),
    )
    world.group.append(batch, members, Transaction(writer=writer, number=7))
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(upsertflow, ["tables", *arguments])


def lines(*arguments: str) -> list[dict[str, Any]]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_each_table_is_told_by_its_values(root: Path) -> None:
    whole, *found = lines(str(root))
    assert (whole["folder"], whole["template"]) == ("", "{db}.{table}")
    assert (whole["query"], whole["batch"], whole["rows"]) == ("query:one", 7, 2)
    assert whole["patterns_that_match_no_table"] == ["crm.*"]
    by_name = {line["name"]: line for line in found if line["note"] is None}
    assert set(by_name) == {"shop.orders", "größe.a.b"}
    odd = by_name["größe.a.b"]
    assert odd["values"] == ["größe", "a.b"]
    assert odd["folder"] == "gr=C3=B6=C3=9Fe.a=2Eb"
    assert (odd["version"], odd["batch"], odd["parked"]) == (1, 7, 0)


def test_tables_that_the_group_does_not_know_are_told_apart(root: Path) -> None:
    found = {line["folder"]: line for line in lines(str(root))}
    assert found["new.table"]["values"] == ["new", "table"]
    assert "no whole batch had rows of it" in found["new.table"]["note"]
    assert found["by=hand"]["values"] is None
    assert "no values lead here" in found["by=hand"]["note"]


def test_a_table_of_which_all_rows_are_parked_is_told(tmp_path: Path) -> None:
    root = LocalStore(str(tmp_path))
    bad = {"topic": "epoch", "id": None, "at": 1, "v": 1, "w": 1, "gone": False}
    options = routed_options(**{"table.epoch.onError": "fail", "onTableError": "park"})
    write(root, options, [[bad, {**bad, "topic": "last", "id": 1}]], transaction(0))
    whole, epoch, last = lines(str(tmp_path))
    assert (whole["tables"], whole["parked"], whole["parked_nameless"]) == (2, 1, 0)
    assert (epoch["name"], epoch["parked"]) == ("epoch", 1)
    assert "not there: all its rows are parked" in epoch["note"]
    assert (last["name"], last["parked"], last["note"]) == ("last", 0, None)


def test_what_is_parked_is_what_waits_now(tmp_path: Path) -> None:
    root = LocalStore(str(tmp_path))
    bad = {"topic": "epoch", "id": None, "at": 1, "v": 1, "w": 1, "gone": False}
    options = routed_options(**{"table.epoch.onError": "fail", "onTableError": "park"})
    write(root, options, [[bad, {**bad, "topic": None}]], transaction(0))
    whole, line = lines(str(tmp_path))
    assert (whole["parked"], whole["parked_nameless"], line["parked"]) == (2, 1, 1)
    drop(root, ["epoch"])
    (whole,) = lines(str(tmp_path))
    assert (whole["parked"], whole["parked_nameless"]) == (1, 1)
    drop(root, [], nameless=True)
    (whole,) = lines(str(tmp_path))
    assert (whole["parked"], whole["parked_nameless"]) == (0, 0)


def test_people_see_a_grid(root: Path) -> None:
    shown = run(str(root)).stdout
    for text in ("{db}.{table}", "query:one", "crm.*", "shop.orders", "größe.a.b", "parked"):
        assert text in shown
    assert "rows_of_batch" in shown
    assert "_ms" not in shown


def test_before_the_first_whole_batch_the_template_finds_tables(tmp_path: Path) -> None:
    RoutedBatch(tmp_path).write("a=2Fb", {1: 1})
    whole, line = lines(f"{tmp_path}/{{topic}}")
    assert (whole["batch"], whole["tables"]) == (None, 1)
    assert (line["name"], line["values"]) == ("a/b", ["a/b"])
    assert "a/b" in run(f"{tmp_path}/{{topic}}").stdout


def test_a_root_of_nothing_says_what_a_root_is(tmp_path: Path) -> None:
    result = run(str(tmp_path))
    assert result.exit_code == 1
    assert "no table in its folder '_group'" in result.stderr
    assert "/lake/{topic}" in result.stderr


def test_a_bad_template_is_a_sentence(tmp_path: Path) -> None:
    result = run(f"{tmp_path}/{{a}}{{b}}")
    assert result.exit_code == 1
    assert "nothing between {a} and {b}" in result.stderr


# -- work on all of them ---------------------------------------------------------------


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A root with two tables of the group, one of which has had four batches."""
    world = RoutedBatch(tmp_path)
    world.batch(busy={1: 0}, quiet={1: 0})
    for value in range(1, 4):
        world.batch(busy={1: value})
    return tmp_path


def command(*arguments: str, exit_code: int = 0) -> list[dict[str, Any]]:
    result = CliRunner().invoke(upsertflow, [*arguments, "--json"])
    assert result.exit_code == exit_code, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_all_tables_and_the_group_are_kept_in_order(lake: Path) -> None:
    nothing = [{"table": "", "tables": 3, "shown": 0, "failed": 0}]
    bound = {"bound_by": "versions of the last 1 hour (3 tables)"}
    assert command("expire", str(lake), "--all", "--retain-versions", "1") == [nothing[0] | bound]
    *done, total = command("compact", str(lake), "--all", "--full")
    assert [line["table"] for line in done] == ["busy", "_group"]
    assert total == {"table": "", "tables": 3, "shown": 2, "failed": 0}
    assert command("compact", str(lake), "--all", "--full") == nothing
    (lake / "quiet" / "data" / "notes.txt").touch()
    *done, _ = command("vacuum", str(lake), "--all")
    assert [(line["table"], line["foreign"]) for line in done] == [("quiet", 1)]
    assert command("check", str(lake), "--all") == nothing


@pytest.mark.parametrize(("arguments", "told"), [(["check"], "sound"), (["compact"], "unchanged")])
def test_people_are_told_how_many_tables_are_well(
    lake: Path, arguments: list[str], told: str
) -> None:
    shown = CliRunner().invoke(upsertflow, [*arguments, str(lake), "--all"]).stdout
    facts = dict(line.split() for line in shown.splitlines() if line.strip())
    assert facts == {"tables": "3", told: "3", "failed": "0"}


def test_a_table_that_fails_does_not_stop_the_others(lake: Path) -> None:
    (lake / "busy" / "_log").rename(lake / "gone")
    failed, *done, total = command("compact", str(lake), "--all", "--full", exit_code=1)
    assert failed["table"] == "busy"
    assert "TABLE_NOT_FOUND" in failed["problem"]
    assert [line["table"] for line in done] == ["_group"]
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
    *done, total = command(name, str(lake), "--all", *more, exit_code=1)
    [failed] = [line for line in done if line["problem"]]
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
    assert "never_whole" in CliRunner().invoke(upsertflow, ["check", str(tmp_path), "--all"]).stdout


def test_damage_in_one_of_all_tables_is_shown_and_exits_with_1(lake: Path) -> None:
    for file in (lake / "quiet").glob("data/**/*.*"):
        file.write_bytes(b"?" * file.stat().st_size)
    *done, total = command("check", str(lake), "--all", exit_code=1)
    assert [line["table"] for line in done] == ["quiet"]
    assert total["failed"] == 1


def test_a_root_is_no_table_and_says_so(lake: Path) -> None:
    result = CliRunner().invoke(upsertflow, ["info", str(lake)])
    assert result.exit_code == 1
    assert "the root of those that one stream writes as '{t}'" in result.stderr
    assert f"upsertflow tables {lake}" in result.stderr


def test_all_of_what_is_no_root_is_an_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(upsertflow, ["check", str(tmp_path), "--all"])
    assert result.exit_code == 1
    assert "no table in its folder '_group'" in result.stderr


def test_a_path_with_columns_is_no_table_to_read(lake: Path) -> None:
    result = CliRunner().invoke(upsertflow, ["info", f"{lake}/{{topic}}"])
    assert result.exit_code == 1
    assert "columns in braces are for writes" in result.stderr
