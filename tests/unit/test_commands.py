"""Rules that every command keeps: results as JSON, and progress for people at a terminal alone."""

from __future__ import annotations

import inspect
import io
import json
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner
from rich.console import Console

from spark_upsert.cli import maintenance
from spark_upsert.cli.main import upsertflow
from spark_upsert.cli.render import progress
from spark_upsert.table.table import Table

WITHOUT_JSON = {"completion": "a shell reads it"}

LONG = {"check", "compact", "expire", "vacuum"}
LONG |= {"find", "index", "keep-history", "publish", "restore", "unpark"}
"""Commands that read or write as much as a table holds."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    columns = pa.schema({"id": pa.int64(), "n": pa.int64()})
    table = Table.create(str(tmp_path / "t"), columns, keys=["id"])
    for n in range(3):
        table.upsert(pa.table({"id": [1, n], "n": [n, n]}))
    return table.store.url


def lines(*arguments: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(upsertflow, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_command_prints_json_or_has_a_reason() -> None:
    without = {
        name
        for name, command in upsertflow.commands.items()
        if not any("--json" in param.opts for param in command.params)
    }
    assert without == WITHOUT_JSON.keys()


def test_an_explanation_is_facts(path: str) -> None:
    rows, splits = lines("explain", path)
    assert rows["title"] == "rows of version 3"
    assert rows["facts"]["columns"] == "id, n"
    assert splits["title"] == "1 split"
    assert len(splits["lines"]) == 1
    shown = CliRunner().invoke(upsertflow, ["explain", path]).stdout
    assert " ".join(shown.split()) == " ".join(
        " ".join([each["title"], *(f"{k} {v}" for k, v in each["facts"].items()), *each["lines"]])
        for each in (rows, splits)
    )


# -- progress ------------------------------------------------------------------------


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_shows_what_goes_on_and_is_clean_behind_it() -> None:
    console = terminal()
    with progress("check", as_json=False, console=console) as told:
        told("file 3 of 7\x1b[2J")
    assert "file 3 of 7" in written(console)
    assert "\x1b[2J" not in written(console), "no name of a file is obeyed"
    assert written(console).endswith("\x1b[2K"), "the line is gone"


def test_a_line_is_drawn_a_few_times_however_often_it_is_told() -> None:
    console = terminal()
    with progress("check", as_json=False, console=console) as told:
        for number in range(10_000):
            told(f"file {number}")
    assert written(console).count("file") < 100


@pytest.mark.parametrize(
    ("console", "as_json"),
    [
        pytest.param(terminal(), True, id="beside JSON"),
        pytest.param(Console(file=io.StringIO(), force_terminal=False), False, id="in a pipe"),
    ],
)
def test_nothing_is_written(console: Console, as_json: bool) -> None:
    with progress("check", as_json=as_json, console=console) as told:
        told("file 1")
    assert written(console) == ""


def test_every_long_command_shows_progress() -> None:
    """Read from the code: each names what it does, or leaves that to the work on tables."""
    shown = set()
    for name, command in upsertflow.commands.items():
        assert isinstance(command, click.Command)
        assert command.callback is not None
        names = inspect.unwrap(command.callback).__code__.co_names
        if {"progress", "_keep_in_order"} & {*names}:
            shown.add(name)
    assert shown == LONG


def test_files_and_merges_are_told(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class MirroredVersion:
        def __init__(self, doing: str, *, as_json: bool) -> None:
            told.append(doing)

        def __enter__(self) -> Any:
            return told.append

        def __exit__(self, *_: object) -> None:
            told.append("end")

    monkeypatch.setattr(maintenance, "progress", MirroredVersion)
    (done,) = lines("check", path)
    assert told == ["check", *(f"file {n} of 3" for n in (1, 2, 3)), "end"]
    assert done["file_count"] == 3
    told.clear()
    lines("compact", path, "--full")
    assert told == ["compact", "1 of 1 merges of this round", "end"]
