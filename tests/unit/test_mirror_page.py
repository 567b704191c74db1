"""What stands on the page about mirrors runs, and so do its commands."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
from click.testing import CliRunner, Result

from integration.pages import code_of
from spark_upsert.cli.commands import upsertflow
from spark_upsert.cli.maintenance import follow
from spark_upsert.store import LocalStore
from spark_upsert.table.table import Table
from tests.support.delta import DeltaTable


def test_the_page_runs(tmp_path: Path) -> None:
    codes = code_of("docs/delta.md", "python", runner="tests/unit/test_mirror_page.py")
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        # Polars tells of features of its own that are not settled.
        warnings.simplefilter("ignore")
        for code in codes:
            exec(code.replace("/lake/", f"{tmp_path}/"), names)
    assert pa.table(names["total"]).to_pylist() == [{"amount": 21}]
    assert sorted(names["latest"]["amount"].to_list()) == [7, 9]
    assert sorted(names["before"]["amount"].to_list()) == [5, 6, 9]
    rows = DeltaTable(LocalStore(tmp_path / "orders" / "_delta")).rows()
    assert sorted(rows.column("amount").to_pylist()) == [5, 7, 9]


def table_in(folder: Path) -> Table:
    table = Table.create(str(folder / "t"), pa.schema({"id": pa.int64()}), keys=["id"])
    table.upsert(pa.table({"id": [1, 2]}))
    return table


def run(*words: str) -> Result:
    return CliRunner().invoke(upsertflow, list(words))


def output_of(*words: str) -> dict[str, Any]:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    output: dict[str, Any] = json.loads(result.output)
    return output


def test_a_table_is_published_and_looked_at(tmp_path: Path) -> None:
    table, path = table_in(tmp_path), str(tmp_path / "t")
    assert "mirror" not in output_of("info", path)
    assert output_of("publish", path, "--as", "delta")["shown"] == 1
    table.upsert(pa.table({"id": [2, 3]}))
    facts = output_of("info", path)["mirror"]
    assert (facts["shown"], facts["versions_behind"], facts["rows"]) == (1, 1, 2)
    assert facts["ms_behind"] >= 0
    assert output_of("publish", path)["has_changed"]
    facts = output_of("info", path)["mirror"]
    expected = {"versions_behind": 0, "twins": 2, "rows": 4, "dead_rows": 1}
    assert expected.items() <= facts.items()
    assert output_of("check", path)["is_sound"]


def test_a_mirror_elsewhere_and_without_a_guard(tmp_path: Path) -> None:
    table_in(tmp_path)
    place = str(tmp_path / "elsewhere")
    output_of("publish", str(tmp_path / "t"), "--to", place, "--no-guard")
    assert "upsertflow" not in DeltaTable(LocalStore(place)).protocol["writerFeatures"]


def test_check_finds_what_became_of_a_mirror(tmp_path: Path) -> None:
    table_in(tmp_path).publish()
    for twin in (tmp_path / "t" / "_delta").glob("*.parquet"):
        twin.unlink()
    result = run("check", str(tmp_path / "t"))
    assert result.exit_code == 1
    assert "no such file" in result.output
    output_of("publish", str(tmp_path / "t"), "--rebuild")
    assert output_of("check", str(tmp_path / "t"))["is_sound"]


def test_a_follower_publishes_each_new_version(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) % 3 == 0:
            table.upsert(pa.table({"id": [len(waits)]}))

    other = Table.open(str(tmp_path / "t"))
    steps = follow(other, other.publish, sleep=sleep)
    assert [next(steps).shown for _ in range(3)] == [1, 2, 3]
    assert len(waits) == 6
