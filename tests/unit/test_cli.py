"""The command `upsertflow`: what it prints, what it does, and how it fails."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from spark_upsert.cli.main import upsertflow
from spark_upsert.core import casts
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.retention.lag import PressureReport, report
from spark_upsert.table.table import Table

Run = Callable[..., Result]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A table of three epochs: 1 and 2 come, 2 changes, 1 goes."""
    table = Table.create(
        str(tmp_path / "users"), pa.schema({"id": pa.int64(), "name": pa.string()}), keys=["id"]
    )
    table.upsert(pa.table({"id": [1, 2], "name": ["[red]Ada", "Bob"]}))
    table.upsert(pa.table({"id": [2], "name": ["Eve"]}))
    table.upsert(
        pa.table({"id": [1], "name": pa.nulls(1, pa.string()), "gone": [True]}), deletes="gone"
    )
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


def test_info_tells_people_of_a_mirror_in_words(path: str) -> None:
    Table.open(path).publish()
    shown = run("info", path).stdout
    for text in ("retention: 6 hours", "versions behind: 0", "has feed: no"):
        assert text in shown
    assert "changed by" not in shown
    assert lines("info", path)[0]["mirror"]["retention_ms"] == 21_600_000


def test_an_empty_table_has_no_write_amplification(tmp_path: Path) -> None:
    Table.create(str(tmp_path / "t"), pa.schema({"id": pa.int64()}), keys=["id"])
    assert lines("info", str(tmp_path / "t"))[0]["write_amplification"] is None
    assert run("info", str(tmp_path / "t")).exit_code == 0


def test_epochs_are_shown_with_their_counters(path: str) -> None:
    found = lines("epochs", path)
    assert [(row["version"], row["inserts"], row["updates"], row["deletes"]) for row in found] == [
        (1, 2, 0, 0),
        (2, 0, 1, 0),
        (3, 0, 0, 1),
    ]
    assert [row["output_count"] for row in found] == [2, 2, 1]
    assert [row["live_rows"] for row in found] == [2, 2, 1]


def test_counters_that_are_zero_everywhere_are_left_out_for_people(path: str) -> None:
    shown = run("epochs", path).stdout
    assert "inserts" in shown
    assert "superseded" not in shown
    assert "superseded" in lines("epochs", path)[0]


def test_history_shows_every_version(path: str) -> None:
    Table.open(path).compact(full=True)
    found = lines("history", path)
    assert [row["kind"] for row in found] == ["create", "append", "append", "append", "compact"]
    assert [row["runs"] for row in found] == [0, 1, 2, 3, 1]
    assert found[-1]["ranges_taken"] == 3


def test_a_restore_says_what_it_did(path: str) -> None:
    rows = lines("snapshot", path, "--version", "1")
    facts = {"restored": 1, "version": 4, "live_rows": 2}
    assert lines("restore", path, "--to", "1") == [{**facts, "has_changed": True}]
    assert lines("snapshot", path) == rows
    assert lines("restore", path, "--to", "1") == [{**facts, "has_changed": False}]
    assert lines("history", path)[-1]["restored"] == 1


def test_a_restore_to_a_version_that_is_not_there_is_refused(path: str) -> None:
    done = run("restore", path, "--to", "9")
    assert (done.exit_code, "[VERSION_NOT_FOUND]" in done.output) == (1, True)


def test_a_lease_can_be_held_from_outside(path: str) -> None:
    (held,) = lines("consumers", path, "--hold", "backup")
    assert (held["consumer"], held["version"], held["is_live"]) == ("backup", 0, True)
    assert lines("consumers", path, "--release", "backup") == []


def test_a_limit_shows_the_newest(path: str) -> None:
    assert [row["version"] for row in lines("history", path, "--limit", "2")] == [2, 3]
    assert lines("history", path, "--limit", "0") == []


def test_files_are_those_of_the_newest_version(path: str) -> None:
    found = lines("files", path)
    assert [(row["epoch_lower"], row["epoch_upper"], row["rows"]) for row in found] == [
        (1, 2, 2),
        (2, 3, 1),
        (3, 4, 1),
    ]
    assert found[2]["tombstones"] == 1


def test_the_snapshot_shows_rows_as_they_are(path: str) -> None:
    assert lines("snapshot", path) == [{"id": 2, "name": "Eve"}]
    then = lines("snapshot", path, "--version", "1")
    assert sorted(row["name"] for row in then) == ["Bob", "[red]Ada"]
    assert "[red]Ada" in run("snapshot", path, "--version", "1").stdout
    assert len(lines("snapshot", path, "--version", "1", "--limit", "1")) == 1


def test_changes_are_shown_from_and_to_inclusive(path: str) -> None:
    found = lines("changes", path, "--from", "2", "--to", "2")
    assert [(row["name"], row["_change_type"]) for row in found] == [
        ("Bob", "update_preimage"),
        ("Eve", "update_postimage"),
    ]
    assert len(lines("changes", path)) == 5
    assert len(lines("changes", path, "--limit", "2")) == 2


def test_values_of_every_kind_are_printed(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    columns = {
        "id": pa.int64(),
        "raw": pa.binary(),
        "at": pa.timestamp("us", tz="UTC"),
        "day": pa.date32(),
        "price": pa.decimal128(9, 2),
        "tags": pa.list_(pa.string()),
        "place": pa.struct({"x": pa.float64()}),
    }
    table = Table.create(path, pa.schema(columns), keys=["id"])
    row = {"id": 1, "raw": b"\x00\xff", "tags": ["a"], "place": {"x": 1.5}}
    table.upsert(pa.Table.from_pylist([row], schema=pa.schema(columns)))
    (shown,) = lines("snapshot", path)
    assert (shown["raw"], shown["tags"], shown["place"]) == ("00ff", ["a"], {"x": 1.5})
    assert '{"x": 1.5}' in run("snapshot", path).stdout


def data(path: str, columns: dict[str, pa.Array]) -> str:
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
    }
    heads, _, values = data(str(tmp_path / "t"), columns).split("\n")[1:4]
    assert heads.split() == ["id", *columns]
    assert values.split() == [
        *("1", "1436", "0.1", "1e-320", "12", "2048", "0", "null", "true", "1000.50"),
        "2026-01-02T03:04:05.000006+00:00",
    ]


def test_times_that_python_does_not_know_are_printed(tmp_path: Path) -> None:
    columns = {
        "at": pa.array([2**58]).view(pa.timestamp("us", "UTC")),
        "day": pa.array([10**7], pa.int32()).view(pa.date32()),
    }
    # A table of before holds them: they are not taken any more.
    with patch.object(casts, "_is_examined", lambda type_: False):
        shown = data(str(tmp_path / "t"), columns)
    assert "11103-08-29 17:22:31.711744Z" in shown
    assert "29349-01-26" in shown


def test_only_counters_have_thousands(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), pa.schema({"id": pa.int64()}), keys=["id"])
    table.upsert(
        pa.table({"id": list(range(1436))}), transaction=Transaction(writer="app:a", number=12345)
    )
    shown = run("epochs", str(tmp_path / "t")).stdout
    assert "1,436" in shown
    assert "app:a: 12345" in shown


HOSTILE = "a\x1b]0;owned\x07b\x9b2Jc\u202ed\ne"
SPELLED = r"a\x1b]0;owned\x07b\x9b2Jc\u202ed\ne"


def test_what_a_terminal_would_obey_is_spelled_out(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    columns = {
        HOSTILE: pa.array([HOSTILE]),
        "nested": pa.array([{"a": [HOSTILE]}]),
    }
    shown = data(path, columns)
    assert not set(shown) & set("\x1b\x07\x9b\u202e")
    assert shown.count(SPELLED) == 2, "the name of the column, and the value"
    printed = run("snapshot", path, "--json").stdout
    assert not set(printed) & set("\x1b\x07\x9b\u202e")
    assert json.loads(printed)[HOSTILE] == HOSTILE


def test_what_a_terminal_would_obey_is_spelled_out_in_errors_too(tmp_path: Path) -> None:
    result = run("info", str(tmp_path / "no\x1b[2Jwhere"))
    assert r"no\x1b[2Jwhere" in result.stderr
    assert "\x1b" not in result.output
    assert "\n\nHint: " in result.stderr


# -- keeping in order ----------------------------------------------------------------


def test_compact_says_what_it_did(path: str) -> None:
    assert lines("compact", path) == [{"compactions": 0, "runs_before": 3, "runs": 3}]
    assert lines("compact", path, "--full") == [{"compactions": 1, "runs_before": 3, "runs": 1}]


def test_expire_says_what_held_it_back(path: str) -> None:
    (outcome,) = lines("expire", path, "--retain-versions", "0")
    assert outcome["since"] == 0
    assert outcome["bound_by"] == "versions of the last 1 hour"
    Table.open(path).hold("reports", 0)
    assert lines("expire", path, "--retain", "1h")[0]["since"] == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param([], "Say how much to keep", id="without a retention"),
        pytest.param(["--retain", "soon"], "such as '7 days'", id="with a word"),
        pytest.param(["--retain", "7"], "such as '7 days'", id="without a unit"),
        pytest.param(["--retain", "0s"], "--retain is 1 hour at least, found 0", id="with none"),
        pytest.param(["--retain", "59 min"], "Say --retain 1h.", id="with less than is kept"),
    ],
)
def test_expire_is_refused(arguments: list[str], sentence: str, path: str) -> None:
    result = run("expire", path, *arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_vacuum_says_what_it_removed(path: str) -> None:
    nothing = {
        "expired_files": 0,
        "orphans": 0,
        "leftovers": 0,
        "bytes": 0,
        "log_objects": 0,
        "too_young": 0,
        "foreign": 0,
        "foreign_examples": [],
    }
    assert lines("vacuum", path) == [{"is_dry_run": False, **nothing}]
    assert lines("vacuum", path, "--dry-run", "--grace", "1h") == [{"is_dry_run": True, **nothing}]


def test_consumers_are_shown_and_released(path: str) -> None:
    table = Table.open(path)
    table.hold("reports", 1)
    lapsed = table.hold("sums", 3, ttl_ms=1)
    # Commits of one millisecond have times of their own, so that the newest may lie ahead.
    while time.time_ns() // 1_000_000 < lapsed.lapses_ms:
        pass
    found = {row["consumer"]: row for row in lines("consumers", path)}
    assert (found["reports"]["version"], found["reports"]["versions_behind"]) == (1, 2)
    assert [found[name]["is_live"] for name in ("reports", "sums")] == [True, False]
    assert [row["consumer"] for row in lines("consumers", path, "--release", "sums")] == ["reports"]


def test_a_consumer_that_is_not_there_is_told_from_those_that_are(path: str) -> None:
    Table.open(path).hold("reports", 1)
    result = run("consumers", path, "--release", "report")
    assert result.exit_code == 1
    assert "Hint: Did you mean 'reports'?" in result.stderr
    assert lines("consumers", path, "--release", "reports") == []
    result = run("consumers", path, "--release", "reports")
    assert "there is none to release" in result.stderr
    assert run("consumers", path).exit_code == 0


def test_a_duration_is_no_date(path: str) -> None:
    table = Table.open(path)
    table.hold("sums", 1)
    now_ms = table.log.now_ms()
    report(table.store, PressureReport(consumer="sums", rung=4, pressure=1.0, reported_ms=now_ms))
    result = run("pressure", path)
    assert "1 second" in result.stdout
    assert "1970" not in result.stdout


def test_check_is_silent_about_a_sound_table(path: str) -> None:
    (report,) = lines("check", path)
    assert report["is_sound"]
    assert report["findings"] == []
    assert run("check", path).exit_code == 0


def test_check_exits_with_1_and_names_the_damage(path: str) -> None:
    file = next(Path(path, "data").iterdir())
    file.write_bytes(file.read_bytes()[:-1])
    result = run("check", path)
    assert result.exit_code == 1
    assert file.name in result.stdout


# -- failing -------------------------------------------------------------------------


def test_an_error_is_a_sentence_and_a_hint_without_a_traceback(tmp_path: Path) -> None:
    result = run("info", str(tmp_path / "nowhere"))
    assert result.exit_code == 1
    assert "Error: [TABLE_NOT_FOUND] there is no upsertflow table" in result.stderr
    assert "Hint: check the 'path' option" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param(
            ["changes", "--to", "9"],
            "--to 9 does not exist: the newest version is 3",
            id="beyond the end",
        ),
        pytest.param(["snapshot", "--version", "9"], "version 9 does not exist", id="no version"),
        pytest.param(
            ["changes", "--from", "9"], "--from 9 does not exist", id="beyond the beginning"
        ),
        pytest.param(
            ["changes", "--from", "2", "--to", "1"],
            "begin at version 2 and end before version 2",
            id="reversed",
        ),
        pytest.param(["consumers", "--release", "a/b"], "consumerId", id="no name"),
        pytest.param(
            ["consumers", "--release", "sums"], "no consumer 'sums' has a lease", id="no lease"
        ),
    ],
)
def test_what_does_not_exist_is_named(arguments: list[str], sentence: str, path: str) -> None:
    result = run(arguments[0], path, *arguments[1:])
    assert result.exit_code == 1
    assert sentence in result.stderr


def test_a_storage_option_is_checked_by_name() -> None:
    result = run("info", "s3://bucket/table", "-o", "regio=here")
    assert result.exit_code == 1
    assert "Did you mean 'storage.region'?" in result.stderr
    assert run("info", "s3://bucket/table", "-o", "region").exit_code == 2


def test_an_option_without_a_name_is_not_shown_because_it_may_be_a_secret() -> None:
    for secret in ("SECRET", "secret_access_key:SECRET", "SECRET==", "SE/CRET+SECRET=x", "region="):
        result = run("info", "s3://bucket/table", "-o", "region=here", "-o", secret)
        assert result.exit_code == 2
        assert "SECRET" not in result.output
        assert "number 2 of them" in result.stderr
        assert "KEY=VALUE" in result.stderr


def test_an_option_is_given_once() -> None:
    result = run("info", "s3://bucket/table", "-o", "region=a", "-o", "storage.Region=b")
    assert result.exit_code == 2
    assert "'region' is given twice" in result.stderr


def test_credentials_in_a_path_are_not_shown() -> None:
    for command, path in (
        ("info", "s3://me:SECRET@bucket/table"),
        ("doctor", "s3://bucket/table?sig=SECRET"),
    ):
        result = run(command, path)
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


def test_indexes_are_built_and_shown(path: str) -> None:
    column = next(name for name in Table.open(path).schema.values)
    (shown,) = lines("index", path, "--by", column)
    head = Table.open(path).log.head()
    assert (shown["column"], shown["versions_behind"]) == (column, 0)
    assert shown["shows_version"] == head.version
    assert head.properties["indexBy"] == column
    (again,) = lines("index", path, "--rebuild")
    assert again["entries"] == shown["entries"]
    assert lines("index", path, "--by", "") == []


def test_a_history_is_kept_step_by_step(tmp_path: Path) -> None:
    columns = pa.schema({"id": pa.int64(), "v": pa.string(), "n": pa.int64()})
    table = Table.create(str(tmp_path / "t"), columns, keys=["id"])
    kept = str(tmp_path / "kept")
    command = ["keep-history", table.store.url, "--in", kept, "--by", "version", "--json"]
    command += ["--columns", "v,n", "--track", "v"]
    told = []
    for n, v in enumerate("aab"):
        table.upsert(pa.table({"id": [1], "v": [v], "n": [n]}))
        told += [json.loads(CliRunner().invoke(upsertflow, command).output) for _ in range(2)]
    assert [each["has_changed"] for each in told] == [True, False] * 3
    assert [each["rows"] for each in told[1::2]] == [1, 1, 2]
    names = ["id", "v", "n", "valid_from", "valid_to", "is_current", "from_version"]
    rows = Table.open(kept).snapshot(columns=names).sort_by("valid_from").to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (1, "a", 1, 1, 3, False, 1),
        (1, "b", 2, 3, None, True, 3),
    ]
