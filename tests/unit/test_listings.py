"""The command's text output: it fits 80 and 120 columns, and ``listings/`` has all of it.

``UPDATE_LISTINGS=1 pytest tests/unit/test_listings.py`` writes these files again.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from spark_upsert.cli import routed
from spark_upsert.cli.commands import upsertflow
from spark_upsert.delta.follow import MIRRORS
from spark_upsert.metadata import EPOCHS, FILES, HISTORY
from spark_upsert.store import LocalStore
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.retention.lag import PressureReport, report
from spark_upsert.table.table import Table
from tests.support.routed_worlds import routed_options, transaction, write

FILES_OF_WIDTHS = Path(__file__).parent / "listings"

COMMANDS = {
    "info": "orders",
    "history": "orders",
    "epochs": "orders",
    "files": "orders",
    "consumers": "orders",
    "pressure": "orders",
    "explain": "orders --starting-version 2 --ending-version 3 --splits 2",
    "get": "orders 1 3",
    "snapshot": "orders",
    "changes": "orders --from 2",
    "find": "orders Linus",
    "index": "orders",
    "tables": "lake",
    "dead-letters": "lake",
    "replay": "lake epoch --set onError=quarantine",
    "check": "lake --all",
    "vacuum": "orders",
    "publish": "orders",
    "expire": "orders --retain-versions 1",
    "repair": "orders",
    "repair-clock": "orders",
    "alter": "orders --column 'note STRING'",
    "keep-history": "orders --in past",
    "delete": "orders 1",
    "restore": "orders --to 2",
    "compact": "orders --full",
    "explain-error": "DATA_LOSS",
}
"""Arguments, in the order of the runs."""

WITHOUT_TABLES = {
    "completion": "a script",
    "demo": "sentences, and rows that `get` shows, too",
    "doctor": "sentences about this machine",
    "follow": "sentences, from a PostgreSQL server",
    "init": "sentences",
    "serve": "an address",
    "wait": "a number, from a PostgreSQL server",
}

VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\d(?=[ T]\d\d:)"), "2026-01-02"),
    (re.compile(r"(?<=2026-01-02.)\d\d:\d\d:\d\d(\.\d+)?"), "03:04:05"),
    (re.compile(r"(?<![0-9a-f])[0-9a-f]{8}(?![0-9a-f])"), "01234567"),
    (re.compile(r"[\d,.]+(?= (B|KiB|ms)\b)"), lambda found: re.sub(r"\d", "9", found[0])),
)
"""Times, ids and sizes in the output."""


def run(*arguments: str, width: int = 80) -> Result:
    return CliRunner().invoke(upsertflow, list(arguments), env={"COLUMNS": str(width)})


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """A table with versions of all kinds, an index, a mirror and consumers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(MIRRORS, "failures", 0)  # Of this process, whatever it did before.
    monkeypatch.setattr("secrets.randbits", lambda bits: 7)  # The seed for the order of the rows.
    columns = pa.schema({"id": pa.int64(), "name": pa.string(), "amount": pa.float64()})
    table = Table.create("orders", columns, keys=["id"], properties={"indexBy": "name"})
    query = "query:7d1f2a60-5b1c-4d0e-9a52-0c3b8f6e4d21"
    for number, names in enumerate((["Ada", "Bob", "Cy"], ["Ada", "Linus"])):
        ids = list(range(number, number + len(names)))
        rows = pa.table({"id": ids, "name": names, "amount": [1.5 * n for n in ids]})
        table.upsert(rows, transaction=Transaction(writer=query, number=number))
    table.upsert(pa.table({"id": [3], "name": ["Dee"], "amount": [1e6]}))
    table.delete([0])
    table.publish()
    table.build_indexes()
    table.hold("reports-of-the-finance-department", 1)
    table.hold("sums", 2)
    now_ms = table.log.now_ms()
    report(table.store, PressureReport(consumer="sums", rung=1, pressure=0.5, reported_ms=now_ms))
    return table


@pytest.fixture
def lake(orders: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A root with a table, and with rows that their table did not take just now."""
    monkeypatch.setattr(routed, "time", SimpleNamespace(time=lambda: 0.0))
    good = {"topic": "last", "id": 1, "at": 1, "v": 1, "w": 1, "gone": False}
    rows = [good, {**good, "topic": "epoch", "id": None}, {**good, "topic": None}]
    options = routed_options(**{"table.epoch.onError": "fail", "onTableError": "park"})
    write(LocalStore("lake"), options, [rows], transaction(0))


@pytest.mark.usefixtures("lake")
@pytest.mark.parametrize("width", [80, 120])
def test_each_listing_fits_and_is_the_one_in_the_file(width: int) -> None:
    shown = []
    for name, arguments in COMMANDS.items():
        result = run(name, *shlex.split(arguments), width=width)
        assert result.exit_code == (name == "find"), result.output
        text = result.stdout
        for pattern, constant in VARYING:
            text = pattern.sub(constant, text)
        lines = [line.rstrip() for line in text.splitlines()]
        assert [line for line in lines if len(line) > width] == []
        shown += [f"$ upsertflow {name} {arguments}", *lines, ""]
    file = FILES_OF_WIDTHS / f"{width}.txt"
    if "UPDATE_LISTINGS" in os.environ:
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(shown), "utf-8")
    assert "\n".join(shown) == file.read_text("utf-8")


def test_the_listings_are_those_of_all_commands() -> None:
    assert COMMANDS.keys() | WITHOUT_TABLES.keys() == upsertflow.commands.keys()


def test_the_help_has_each_command_once_in_four_sections_with_a_whole_sentence() -> None:
    sections = run("--help").stdout.split("\n\n")[3:]
    assert len(sections) == 4
    lines = [line for section in sections for line in section.strip().splitlines()[1:]]
    assert sorted(line.split()[0] for line in lines) == sorted(upsertflow.commands)
    assert [line for line in lines if len(line) > 80 or not re.search(r"\w\.$", line)] == []


@pytest.mark.usefixtures("lake")
@pytest.mark.parametrize(
    ("command", "names"),
    [("history", HISTORY.names), ("epochs", EPOCHS.names), ("files", FILES.names)],
)
def test_wide_shows_all_columns_and_ids_and_json_does_in_any_case(
    command: str, names: list[str]
) -> None:
    heads, *_ = run(command, "orders", "--wide", width=40).stdout.strip().splitlines()
    assert re.split(r"\s{2,}", heads.strip()) == [name.replace("_", " ") for name in names]
    rows = [json.loads(line) for line in run(command, "orders", "--json").stdout.splitlines()]
    assert list(rows[0]) == names
    ids = [row["path"] for row in rows] if command == "files" else rows[-1].get("transactions", {})
    wide = run(command, "orders", "--wide", width=40).stdout
    assert [name for name in ids if name not in wide] == []


def test_a_version_of_0_is_shown(tmp_path: Path) -> None:
    Table.create(str(tmp_path / "t"), pa.schema({"id": pa.int64()}), keys=["id"])
    lines = run("history", str(tmp_path / "t")).stdout.split("\n")
    assert (lines[1].split()[0], lines[3].split()[0]) == ("version", "0")


def test_a_key_without_a_row_is_named_after_the_rows_of_the_others(orders: Table) -> None:
    result = run("get", "orders", "1", "999", "3", "998")
    assert (result.exit_code, result.stderr) == (1, "Error: no row has the key 999 or 998.\n")
    assert "Dee" in result.stdout
    result = run("get", "orders", "999", "--version", "1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: no row has the key 999 in version 1.\n"
    assert run("get", "orders", "1").exit_code == 0


def test_a_composite_key_without_a_row_is_named(tmp_path: Path) -> None:
    columns = pa.schema({"region": pa.string(), "id": pa.int64()})
    Table.create(str(tmp_path / "t"), columns, keys=["region", "id"])
    result = run("get", str(tmp_path / "t"), "eu", "7")
    assert (result.exit_code, result.stderr) == (1, "Error: no row has the key eu, 7.\n")


def test_keys_are_shown_if_other_columns_are_omitted(tmp_path: Path) -> None:
    rows = pa.table({**{f"v{n}": ["x" * 20] for n in range(9)}, "k": ["a"], "_x": ["y" * 30]})
    Table.create(str(tmp_path / "t"), rows.schema, keys=["k"]).upsert(rows)
    for command in (["snapshot"], ["changes"], ["get", "a"]):
        heads = run(command[0], str(tmp_path / "t"), *command[1:]).stdout.splitlines()[1].split()
        assert "k" in heads
        assert "v8" not in heads


def test_a_listing_without_rows_says_so(tmp_path: Path) -> None:
    Table.create(str(tmp_path / "t"), pa.schema({"id": pa.int64()}), keys=["id"])
    assert run("consumers", str(tmp_path / "t")).stdout == "No rows.\n"
