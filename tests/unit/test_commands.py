"""Rules that every command keeps: results as JSON, and progress for people at a terminal alone."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from rich.console import Console

from spark_upsert.cli import maintenance
from spark_upsert.cli.commands import upsertflow
from spark_upsert.cli.render import progress
from spark_upsert.table.table import Table

WITHOUT_JSON = {"completion": "a shell reads it"}


@pytest.fixture
def path(tmp_path: Path) -> str:
    columns = pa.schema({"id": pa.int64(), "n": pa.int64()})
    table = Table.create(str(tmp_path / "t"), columns, keys=["id"])
    for n in range(3):
        table.upsert(pa.table({"id": [1, n], "n": [n, n]}))
    return table.store.url


def lines(*arguments: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(upsertflow, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return [json.loads(line) for line in result.stdout.splitlines()]


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
    shown = CliRunner().invoke(upsertflow, ["explain", path, "--wide"]).stdout
    assert " ".join(shown.split()) == " ".join(
        " ".join([each["title"], *(f"{k} {v}" for k, v in each["facts"].items()), *each["lines"]])
        for each in (rows, splits)
    )


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_shows_progress_a_few_times_and_is_clean_behind_it() -> None:
    console = terminal()
    with progress("check", as_json=False, console=console) as show:
        for number in range(10_000):
            show(f"file {number}\x1b[2J")
    assert 0 < written(console).count("file") < 100
    assert "\x1b[2J" not in written(console), "no name of a file is obeyed"
    assert written(console).endswith("\x1b[2K"), "the line is gone"


@pytest.mark.parametrize(
    ("console", "as_json"),
    [(terminal(), True), (Console(file=io.StringIO(), force_terminal=False), False)],
    ids=["beside JSON", "in a pipe"],
)
def test_no_progress_is_written(console: Console, as_json: bool) -> None:
    with progress("check", as_json=as_json, console=console) as show:
        show("file 1")
    assert written(console) == ""


def test_files_and_merges_are_shown(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    @contextmanager
    def noted(doing: str, *, as_json: bool) -> Iterator[Any]:
        shown.append(doing)
        yield shown.append
        shown.append("end")

    monkeypatch.setattr(maintenance, "progress", noted)
    [result] = lines("check", path)
    assert shown == ["check", *(f"file {n} of 3" for n in (1, 2, 3)), "end"]
    assert result["file_count"] == 3
    shown.clear()
    lines("compact", path, "--full")
    assert shown == ["compact", "1 of 1 merges", "end"]
