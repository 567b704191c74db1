"""The command `upsertflow`: what it prints, what it does, and how it fails."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from spark_upsert.cli.commands import upsertflow
from spark_upsert.core import casts
from spark_upsert.table.retention.lag import PressureReport, report
from spark_upsert.table.table import Table


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A table of three epochs: 1 and 2 come, 2 changes, 1 goes."""
    columns = pa.schema({"id": pa.int64(), "name": pa.string()})
    table = Table.create(str(tmp_path / "users"), columns, keys=["id"])
    table.upsert(pa.table({"id": [1, 2], "name": ["[red]Ada", "Bob"]}))
    table.upsert(pa.table({"id": [2], "name": ["Eve"]}))
    gone = pa.table({"id": [1], "name": pa.nulls(1, pa.string()), "gone": [True]})
    table.upsert(gone, deletes="gone")
    return table.store.url


def run(*arguments: str) -> Result:
    return CliRunner().invoke(upsertflow, list(arguments))


def lines(*arguments: str) -> list[dict[str, Any]]:
    """Return what a command prints as JSON."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


# -- looking -------------------------------------------------------------------------


def test_info_shows_a_table_in_a_few_numbers(path: str) -> None:
    (facts,) = lines("info", path)
    shown = {name: facts[name] for name in ("version", "since", "live_rows", "runs", "epochs")}
    assert shown == {"version": 3, "since": 0, "live_rows": 1, "runs": 3, "epochs": 3}
    assert (facts["rows_in"], facts["keys"], facts["scope"]) == (4, ["id"], "arrival")
    assert facts["write_amplification"] == 1.0
    assert "write amplification  1.00" in run("info", path).stdout
    Table.open(path).publish()
    text = run("info", path).stdout
    assert all(s in text for s in ("retention: 6 hours", "versions behind: 0", "has feed: no"))
    assert "changed by" not in text
    assert lines("info", path)[0]["mirror"]["retention_ms"] == 21_600_000


def test_info_of_an_empty_table_has_no_write_amplification(tmp_path: Path) -> None:
    Table.create(str(tmp_path / "t"), pa.schema({"id": pa.int64()}), keys=["id"])
    assert lines("info", str(tmp_path / "t"))[0]["write_amplification"] is None
    assert run("info", str(tmp_path / "t")).exit_code == 0


def test_epochs_are_shown_with_their_counters(path: str) -> None:
    names = ("version", "inserts", "updates", "deletes", "output_count", "live_rows")
    epochs = lines("epochs", path)
    expected = [(1, 2, 0, 0, 2, 2), (2, 0, 1, 0, 2, 2), (3, 0, 0, 1, 1, 1)]
    assert [tuple(epoch[name] for name in names) for epoch in epochs] == expected
    text = run("epochs", path).stdout
    assert "inserts" in text
    assert "superseded" in epochs[0]
    assert "superseded" not in text, "zero in every epoch"


def test_history_shows_every_version(path: str) -> None:
    Table.open(path).compact(full=True)
    versions = lines("history", path)
    kinds = ["create", "append", "append", "append", "compact"]
    assert [row["kind"] for row in versions] == kinds
    assert [row["runs"] for row in versions] == [0, 1, 2, 3, 1]
    assert versions[-1]["ranges_taken"] == 3
    assert [row["version"] for row in lines("history", path, "--limit", "2")] == [3, 4]
    assert lines("history", path, "--limit", "0") == []


def test_a_restore_says_what_it_did(path: str) -> None:
    rows = lines("snapshot", path, "--version", "1")
    facts = {"restored": 1, "version": 4, "live_rows": 2}
    assert lines("restore", path, "--to", "1") == [{**facts, "has_changed": True}]
    assert lines("snapshot", path) == rows
    assert lines("restore", path, "--to", "1") == [{**facts, "has_changed": False}]
    assert lines("history", path)[-1]["restored"] == 1


def test_files_are_those_of_the_newest_version(path: str) -> None:
    names = ("epoch_lower", "epoch_upper", "rows", "tombstones")
    files = [tuple(row[name] for name in names) for row in lines("files", path)]
    assert files == [(1, 2, 2, 0), (2, 3, 1, 0), (3, 4, 1, 1)]


def test_the_snapshot_shows_rows_as_they_are(path: str) -> None:
    assert lines("snapshot", path) == [{"id": 2, "name": "Eve"}]
    older = lines("snapshot", path, "--version", "1")
    assert sorted(row["name"] for row in older) == ["Bob", "[red]Ada"]
    assert "[red]Ada" in run("snapshot", path, "--version", "1").stdout
    assert len(lines("snapshot", path, "--version", "1", "--limit", "1")) == 1


def test_changes_are_shown_from_and_to_inclusive(path: str) -> None:
    changes = lines("changes", path, "--from", "2", "--to", "2")
    expected = [("Bob", "update_preimage"), ("Eve", "update_postimage")]
    assert [(row["name"], row["_change_type"]) for row in changes] == expected
    assert len(lines("changes", path)) == 5
    assert len(lines("changes", path, "--limit", "2")) == 2


def shown(path: str, columns: dict[str, pa.Array]) -> str:
    """Return how one row of a new table is printed for people."""
    rows = pa.table({"id": pa.array([1]), **columns})
    Table.create(path, rows.schema, keys=["id"]).upsert(rows)
    result = run("snapshot", path)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_data_is_printed_as_it_is(tmp_path: Path) -> None:
    columns = {
        "year": pa.array([1436]),
        "share": pa.array([0.1]),
        "tiny": pa.array([1e-320]),
        "took_ms": pa.array([12]),
        "bytes": pa.array([2048]),
        "zero": pa.array([0]),
        "none": pa.nulls(1, pa.int64()),
        "yes": pa.array([True]),
        "price": pa.array([Decimal("1000.50")], pa.decimal128(9, 2)),
        "at": pa.array([datetime(2026, 1, 2, 3, 4, 5, 6, UTC)], pa.timestamp("us", "UTC")),
        "raw": pa.array([b"\x00\xff"]),
        "tags": pa.array([["a"]]),
        "place": pa.array([{"x": 1.5}]),
    }
    path = str(tmp_path / "t")
    heads, _, values = shown(path, columns).split("\n")[1:4]
    assert heads.split() == ["id", *columns]
    assert values.split() == [
        *("1", "1436", "0.1", "1e-320", "12", "2048", "0", "null", "true", "1000.50"),
        *("2026-01-02T03:04:05.000006+00:00", "00ff", '["a"]', '{"x":', "1.5}"),
    ]
    (row,) = lines("snapshot", path)
    assert (row["raw"], row["tags"], row["place"]) == ("00ff", ["a"], {"x": 1.5})


def test_times_that_python_does_not_know_are_printed(tmp_path: Path) -> None:
    columns = {
        "at": pa.array([2**58]).view(pa.timestamp("us", "UTC")),
        "day": pa.array([10**7], pa.int32()).view(pa.date32()),
    }
    # A table of before holds them: they are not taken any more.
    with patch.object(casts, "_is_examined", lambda type_: False):
        text = shown(str(tmp_path / "t"), columns)
    assert "11103-08-29 17:22:31.711744Z" in text
    assert "29349-01-26" in text


def test_control_characters_are_spelled_out(tmp_path: Path) -> None:
    hostile = "a\x1b]0;owned\x07b\x9b2Jc\u202ed\ne"
    path = str(tmp_path / "t")
    columns = {hostile: pa.array([hostile]), "nested": pa.array([{"a": [hostile]}])}
    text = shown(path, columns)
    assert not set(text) & set("\x1b\x07\x9b\u202e")
    spelled = r"a\x1b]0;owned\x07b\x9b2Jc\u202ed\ne"
    assert text.count(spelled) == 2, "the name of the column, and the value"
    text = run("snapshot", path, "--json").stdout
    assert not set(text) & set("\x1b\x07\x9b\u202e")
    assert json.loads(text)[hostile] == hostile
    result = run("info", str(tmp_path / "no\x1b[2Jwhere"))
    assert r"no\x1b[2Jwhere" in result.stderr
    assert "\x1b" not in result.output


# -- keeping in order ----------------------------------------------------------------


def test_compact_says_what_it_did(path: str) -> None:
    assert lines("compact", path) == [{"compactions": 0, "runs_before": 3, "runs": 3}]
    assert lines("compact", path, "--full") == [{"compactions": 1, "runs_before": 3, "runs": 1}]


def test_expire_says_what_held_it_back(path: str) -> None:
    (outcome,) = lines("expire", path, "--retain-versions", "0")
    assert (outcome["since"], outcome["bound_by"]) == (0, "versions of the last 1 hour")


def test_vacuum_says_what_it_removed(path: str) -> None:
    names = ("expired_files", "orphans", "leftovers", "bytes", "log_objects", "too_young")
    nothing = {**dict.fromkeys((*names, "foreign"), 0), "foreign_examples": []}
    assert lines("vacuum", path) == [{"is_dry_run": False, **nothing}]
    assert lines("vacuum", path, "--dry-run", "--grace", "1h") == [{"is_dry_run": True, **nothing}]


def test_consumers_are_shown_held_and_released(path: str) -> None:
    table = Table.open(path)
    table.hold("reports", 1)
    lapsed = table.hold("sums", 3, ttl_ms=1)
    # Commits of one millisecond have times of their own, so that the newest may lie ahead.
    while time.time_ns() // 1_000_000 < lapsed.lapses_ms:
        pass
    consumers = {row["consumer"]: row for row in lines("consumers", path)}
    assert (consumers["reports"]["version"], consumers["reports"]["versions_behind"]) == (1, 2)
    assert [consumers[name]["is_live"] for name in ("reports", "sums")] == [True, False]
    assert [row["consumer"] for row in lines("consumers", path, "--release", "sums")] == ["reports"]
    result = run("consumers", path, "--release", "report")
    assert result.exit_code == 1
    assert "Hint: Did you mean 'reports'?" in result.stderr
    assert lines("consumers", path, "--release", "reports") == []
    (held,) = lines("consumers", path, "--hold", "backup")
    assert (held["consumer"], held["version"], held["is_live"]) == ("backup", 0, True)


def test_pressure_shows_a_duration_that_is_no_date(path: str) -> None:
    table = Table.open(path)
    table.hold("sums", 1)
    now_ms = table.log.now_ms()
    report(table.store, PressureReport(consumer="sums", rung=4, pressure=1.0, reported_ms=now_ms))
    text = run("pressure", path).stdout
    assert "1 second" in text
    assert "1970" not in text


def test_check_exits_with_1_and_names_the_damage(path: str) -> None:
    (sound,) = lines("check", path)
    assert (sound["is_sound"], sound["findings"]) == (True, [])
    file = next(Path(path, "data").iterdir())
    file.write_bytes(file.read_bytes()[:-1])
    result = run("check", path)
    assert result.exit_code == 1
    assert file.name in result.stdout


def test_indexes_are_built_and_shown(path: str) -> None:
    (index,) = lines("index", path, "--by", "name")
    head = Table.open(path).log.head()
    assert (index["column"], index["versions_behind"]) == ("name", 0)
    assert index["shows_version"] == head.version
    assert head.properties["indexBy"] == "name"
    (rebuilt,) = lines("index", path, "--rebuild")
    assert rebuilt["entries"] == index["entries"]
    assert lines("index", path, "--by", "") == []


def test_a_history_is_kept_step_by_step(tmp_path: Path) -> None:
    columns = pa.schema({"id": pa.int64(), "v": pa.string(), "n": pa.int64()})
    table = Table.create(str(tmp_path / "t"), columns, keys=["id"])
    kept = str(tmp_path / "kept")
    command = ["keep-history", table.store.url, "--in", kept, "--by", "version"]
    command += ["--columns", "v,n", "--track", "v"]
    steps = []
    for n, v in enumerate("aab"):
        table.upsert(pa.table({"id": [1], "v": [v], "n": [n]}))
        steps += [lines(*command)[0] for _ in range(2)]
    assert [step["has_changed"] for step in steps] == [True, False] * 3
    assert [step["rows"] for step in steps[1::2]] == [1, 1, 2]
    names = ["id", "v", "n", "valid_from", "valid_to", "is_current", "from_version"]
    rows = Table.open(kept).snapshot(columns=names).sort_by("valid_from").to_pylist()
    expected = [(1, "a", 1, 1, 3, False, 1), (1, "b", 2, 3, None, True, 3)]
    assert [tuple(row.values()) for row in rows] == expected


# -- failing -------------------------------------------------------------------------

FAILURES = [
    ("changes TABLE --to 9", 1, "--to 9 does not exist: the newest version is 3"),
    ("changes TABLE --from 9", 1, "--from 9 does not exist"),
    ("changes TABLE --from 2 --to 1", 1, "begin at version 2 and end before version 2"),
    ("snapshot TABLE --version 9", 1, "version 9 does not exist"),
    ("restore TABLE --to 9", 1, "[VERSION_NOT_FOUND]"),
    ("consumers TABLE --release a/b", 1, "consumerId"),
    ("consumers TABLE --release sums", 1, "no consumer 'sums' has a lease"),
    ("expire TABLE", 2, "Say how much to keep"),
    ("expire TABLE --retain soon", 2, "such as '7 days'"),
    ("expire TABLE --retain 7", 2, "such as '7 days'"),
    ("expire TABLE --retain 0s", 2, "--retain is 1 hour at least, found 0"),
    ("expire TABLE --retain 59min", 2, "Say --retain 1h."),
    ("info nowhere", 1, "Error: [TABLE_NOT_FOUND] there is no upsertflow table"),
    ("info nowhere", 1, "\n\nHint: check the 'path' option"),
    ("info s3://bucket/table -o regio=here", 1, "Did you mean 'storage.region'?"),
    ("info s3://b/t -o region=a -o storage.Region=b", 2, "'region' is given twice"),
]


@pytest.mark.parametrize(("command", "code", "text"), FAILURES, ids=lambda value: str(value)[:45])
def test_a_failure_is_a_sentence_without_a_traceback(
    path: str, command: str, code: int, text: str
) -> None:
    result = run(*command.replace("TABLE", path).split())
    assert result.exit_code == code
    assert text in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "secret", ["SECRET", "secret_access_key:SECRET", "SECRET==", "SE/CRET+SECRET=x", "region="]
)
def test_an_option_without_a_name_is_not_shown_because_it_may_be_a_secret(secret: str) -> None:
    result = run("info", "s3://bucket/table", "-o", "region=here", "-o", secret)
    assert result.exit_code == 2
    assert "SECRET" not in result.output
    assert "number 2 of them" in result.stderr
    assert "KEY=VALUE" in result.stderr


@pytest.mark.parametrize(
    "command", ["info s3://me:SECRET@bucket/table", "doctor s3://bucket/table?sig=SECRET"]
)
def test_credentials_in_a_path_are_not_shown(command: str) -> None:
    result = run(*command.split())
    assert result.exit_code == 1
    assert "SECRET" not in result.output


def test_without_click_a_sentence_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['click'] = None\n"
        "from spark_upsert.cli import main; sys.argv = ['upsertflow', 'info', 'x']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'upsertflow[cli]'" in done.stderr
    assert "Traceback" not in done.stderr
