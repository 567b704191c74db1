"""What a read of several inputs says that it will do, and that it is what it does."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from spark_upsert.cli.commands import upsertflow
from spark_upsert.errors import OptionError
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.streams.inputs.table import TableSteps
from spark_upsert.streams.planner.formats import (
    MergedRead,
    batch_inputs,
    explain_read,
    plan_columns,
)
from spark_upsert.streams.reads.read_split import splits_of
from spark_upsert.table.table import Table

ROOT = Path(__file__).parents[2]

SIZES = re.compile(r"[\d,.]+ (bytes|([KM]i)?B)")

COLUMNS = pa.schema({"id": pa.int64(), "v": pa.int64()})


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two tables: of two versions in the east, of one in the west."""
    monkeypatch.setattr("spark_upsert.table.schema_changes.secrets.randbits", lambda bits: 7)
    east = Table.create(str(tmp_path / "east"), COLUMNS, keys=["id"])
    append(east, range(1000))
    append(east, range(0, 1000, 10))
    west = Table.create(str(tmp_path / "west"), COLUMNS, keys=["id"])
    append(west, range(100))
    return tmp_path


def append(table: Table, ids: Iterable[int]) -> None:
    keys = list(ids)
    table.upsert(pa.table({"id": keys, "v": keys}))


def given(lake: Path, names: str = "east,west", **more: str) -> dict[str, str]:
    paths = {f"input.{name}.path": str(lake / name) for name in names.split(",")}
    return {"inputs": names, "parallelism": "2", **paths, **more}


def explained(options: dict[str, str]) -> str:
    return SIZES.sub("? bytes", explain_read(ReadPlan.parse(options)))


def command(*arguments: str) -> str:
    return CliRunner().invoke(upsertflow, ["explain", *arguments]).output


def test_an_exact_order_is_one_task_and_takes_epoch_by_epoch(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> int:
        raise AssertionError("rows were read")

    monkeypatch.setattr(TableSteps, "_read", never)
    text = explained(given(lake, merge="roundrobin", readChangeFeed="true"))
    assert "  tasks     one, in an exact order\n" in text
    assert "  live      no: its mode is roundrobin, which has an exact order\n" in text
    assert (
        "  changes of versions 1 to 2, in 2 stretches\n"
        "    columns   id, v\n"
        "    mode      dropCarryovers: updates that leave all values as they were are left out\n"
        "    shown     an update as update_preimage and update_postimage\n"
        "  stretch 1: version 1\n"
        "    because   the first epoch with rows that is asked for\n"
    ) in text
    assert "  stretch 2: version 2\n    because   an exact order takes epoch by epoch\n" in text
    assert text.endswith(
        "\n1 task, in an exact order\n  east 2 splits [0..1], west 1 split [0]: ? bytes"
    )


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"parallelism": "1"},
        {"merge": "concat"},
        {"merge": "roundrobin", "readChangeFeed": "true"},
    ],
    ids=str,
)
def test_the_tasks_that_are_told_are_those_of_the_read(lake: Path, more: dict[str, str]) -> None:
    plan = ReadPlan.parse(given(lake, **more))
    inputs = batch_inputs(plan, plan_columns(plan))
    tasks = MergedRead(inputs, plan.query).splits()
    lines = explain_read(plan).splitlines()
    at = next(number for number, line in enumerate(lines) if re.match(r"\d+ tasks?, ", line))
    told = [sum(map(int, re.findall(r"(\d+) splits?", line))) for line in lines[at + 1 :]]
    assert lines[at].startswith(f"{len(tasks)} task")
    assert told == [len(list(splits_of(task))) for task in tasks]


def test_a_task_of_many_inputs_names_the_first(tmp_path: Path) -> None:
    for number in range(25):
        append(Table.create(str(tmp_path / f"t{number:02}"), COLUMNS, keys=["id"]), [1])
    text = explained({"path": str(tmp_path), "inputsPattern": "t*", "parallelism": "1"})
    assert "\n  inputs    25, found by 't*' below the path\n" in text
    assert text.count("\ninput 't") == 20
    assert text.endswith(
        "\n  and 5 more inputs\n1 task, packed by bytes\n"
        "  t00 1 split [0], t01 1 split [0], t02 1 split [0], 22 more inputs 22 splits: ? bytes"
    )


def test_the_command_takes_inputs_by_their_names_and_paths_or_as_options(lake: Path) -> None:
    two = ("--input", f"east={lake / 'east'}", "--input", f"west={lake / 'west'}")
    expected = explain_read(ReadPlan.parse(given(lake))) + "\n"
    assert command(*two, "--set", "parallelism=2", "--wide") == expected
    options = [part for pair in given(lake).items() for part in ("--set", "=".join(pair))]
    assert command(*options, "--wide") == expected
    assert command(*two, "--merge", "concat").startswith("merge of several inputs: concat\n")
    changes = command(*two, "--set", "input.east.startingVersion=2", "--change-feed")
    assert "  changes of version 2, in 1 stretch\n" in changes
    assert "  changes of version 1, in 1 stretch\n" in changes
    assert "\n  inputs    2, found by '*' below" in command(str(lake), "--set", "inputsPattern=*")


def test_each_input_begins_where_its_lease_stands(lake: Path) -> None:
    two = ("--input", f"east={lake / 'east'}", "--input", f"west={lake / 'west'}")
    Table.open(str(lake / "east")).hold("sums", 1)
    text = command(*two, "--consumer", "sums")
    assert "input 'west': option '--consumer' expects the name of a lease" in text
    Table.open(str(lake / "west")).hold("sums", 0)
    text = command(*two, "--consumer", "sums")
    assert "  changes of version 2, in 1 stretch\n" in text
    assert "  changes of version 1, in 1 stretch\n" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "east"], "is not of the form NAME=PATH"),
        (["--input", "a=/a", "--input", "a=/b"], "names 'a' twice"),
        (["/a", "--input", "b=/b"], "no meaning beside 'inputs'"),
        (["/a", "--merge", "concat"], "no meaning without 'inputs'"),
        (["--input", "a=/a", "--set", "inputs=b"], "is given twice"),
        ([], "'path'"),
    ],
    ids=str,
)
def test_what_a_read_would_refuse_is_refused(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(upsertflow, ["explain", *arguments])
    assert done.exit_code != 0
    assert message in done.output


def test_the_page_shows_what_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_upsert.table.schema_changes.secrets.randbits", lambda bits: 7)
    columns = pa.schema({"order_id": pa.int64(), "amount": pa.int64()})
    for name, rows in (("east", 200_000), ("west", 40_000)):
        table = Table.create(str(tmp_path / name), columns, keys=["order_id"])
        keys = list(range(rows))
        table.upsert(pa.table({"order_id": keys, "amount": keys}))
    text = explain_read(ReadPlan.parse(given(tmp_path)))
    page = (ROOT / "docs" / "many-tables.md").read_text()
    assert f"```text\n{SIZES.sub('? bytes', text)}\n```" in SIZES.sub("? bytes", page)


@pytest.mark.parametrize(
    "more", [{}, {"merge": "concat"}, {"mergeSchema": "true"}], ids=["live", "concat", "merged"]
)
def test_of_a_python_source_it_says_that_nothing_is_planned(
    lake: Path, more: dict[str, str]
) -> None:
    people = {"inputs": "east,people", "input.people.format": "python:fakes:People"}
    text = explained({**given(lake, "east"), **people, **more})
    assert "\n  inputs    2\n" in text
    assert "\ninput 'east'\n  rows of version 2\n    columns   id, v\n" in text
    assert (
        "\ninput 'people'\n"
        "  the Python source 'fakes:People'\n"
        "    planned   nothing: it is known where Spark runs, and its tasks come on top\n"
        "1 task, "
    ) in text


def test_a_format_that_nobody_knows_is_still_refused(lake: Path) -> None:
    with pytest.raises(OptionError, match="input 'east': option 'format' expects one of"):
        explained(given(lake, **{"input.east.format": "pythn:x"}))


def test_of_python_sources_alone_nothing_is_planned() -> None:
    options = ("inputs=a,b", "input.a.format=python:x", "input.b.format=Python:y")
    text = command(*(part for option in options for part in ("--set", option)))
    for name in "xy":
        assert f"the Python source '{name}'\n    planned   nothing" in text
