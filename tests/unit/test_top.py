"""`upsertflow top`: what it shows of many tables, and what it does not stop at."""

from __future__ import annotations

import errno
import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from spark_upsert.cli import render, top
from spark_upsert.cli.commands import machines, upsertflow
from spark_upsert.cli.top import Lag, Top
from spark_upsert.errors import StorageError
from spark_upsert.store.local import LocalStore
from spark_upsert.table.log.entries import commit_path
from spark_upsert.table.retention.pressure import PressureReport, report
from spark_upsert.table.table import Table
from tests.support.shown_tables import write_parked
from tests.support.stores import forget_runs_and_logs

COLUMNS = pa.schema({"id": pa.int64()})


def make(root: Path, name: str, epochs: int = 0, **properties: str) -> Table:
    table = Table.create(str(root / name), COLUMNS, keys=["id"], properties=properties)
    append(table, epochs)
    return table


def append(table: Table, epochs: int = 1) -> None:
    for key in range(epochs):
        table.append(pa.table({"id": [key]}))


def now_of(table: Table, later_s: float = 0) -> Callable[[], float]:
    return lambda: table.log.head().timestamp_ms / 1000 + later_s


def run(*arguments: object) -> Result:
    return CliRunner().invoke(upsertflow, ["top", *map(str, arguments)])


def lines(*arguments: object) -> list[dict[str, Any]]:
    result = run(*arguments, "--once", "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


# -- what is seen ------------------------------------------------------------------------


def test_a_line_tells_size_age_and_what_came_since_the_look_before(tmp_path: Path) -> None:
    table = make(tmp_path, "a", 3)
    view = Top([str(tmp_path / "a")], clock=now_of(table, later_s=61))
    [line] = view.look()
    head = table.log.head()
    assert (line.version, line.rows, line.bytes, line.runs) == (3, 3, head.bytes, 3)
    assert (line.age_ms, line.fresh, line.problem) == (61_000, 0, None)
    append(table, 2)
    [line] = view.look()
    assert (line.version, line.fresh) == (5, 2)
    assert line.for_people()["age"] == "1m"


def test_consumers_are_shown_with_the_epochs_and_bytes_that_they_have_not_read(
    tmp_path: Path,
) -> None:
    table = make(tmp_path, "a", 2)
    table.hold("fast", 2)
    table.hold("slow", 1)
    table.compact(full=True)
    append(table)
    table.hold("lapsed", 0, ttl_ms=1)
    [line] = Top([str(tmp_path / "a")], clock=now_of(table, later_s=5)).look()
    added = [sum(file.bytes for file in commit.added) for commit in table.log.commits(0, 5)]
    times = [commit.timestamp_ms for commit in table.log.commits(0, 5)]
    assert line.lags == (
        Lag(
            consumer="slow",
            versions=3,
            epochs=2,
            bytes=added[2] + added[4],
            waiting_ms=5000 + times[4] - times[2],
        ),
        Lag(consumer="fast", versions=2, epochs=1, bytes=added[4], waiting_ms=5000),
    )
    told = line.for_people()["behind"]
    assert told[0].startswith("slow 2 (")
    assert told[1].endswith(") 5s")


def test_of_a_consumer_that_is_far_behind_only_the_versions_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top, "VERSIONS_MAX", 2)
    table = make(tmp_path, "a", 5)
    table.hold("near", 3)
    table.hold("far", 1)
    [line] = Top([str(tmp_path / "a")], clock=now_of(table)).look()
    assert [(lag.versions, lag.epochs) for lag in line.lags] == [(4, None), (2, 2)]
    assert line.for_people()["behind"][0] == "far 4 versions"


def test_of_many_consumers_a_screen_shows_the_slowest(tmp_path: Path) -> None:
    table = make(tmp_path, "a", 1)
    for number in range(7):
        table.hold(f"c{number}", 0)
    [line] = Top([str(tmp_path / "a")], clock=now_of(table)).look()
    assert len(line.lags) == 7
    assert line.for_people()["behind"][-1] == "and 2 more"


def test_priority_band_and_pressure_are_shown_where_the_table_has_them(tmp_path: Path) -> None:
    make(tmp_path, "plain")
    table = make(tmp_path, "urgent", priority="800", backpressure="true")
    now = now_of(table)
    said = PressureReport(
        consumer="etl", rung=2, pressure=0.625, reported_ms=int(now() * 1000), ttl_ms=5_000
    )
    report(table.store, said)
    plain, urgent = Top([str(tmp_path)], clock=now).look()
    assert (plain.priority, plain.band, plain.pressure) == (None, None, None)
    assert (urgent.priority, urgent.band, urgent.pressure) == (800, 4, 0.625)
    assert urgent.for_people()["priority"] == "800 (B4)"


def test_a_mirror_has_its_own_column_and_is_no_consumer_on_a_screen(tmp_path: Path) -> None:
    table = make(tmp_path, "a", 1)
    table.publish()
    append(table, 2)
    [line] = Top([str(tmp_path / "a")], clock=now_of(table)).look()
    assert (line.mirror_versions, [lag.is_mirror for lag in line.lags]) == (2, [True])
    told = line.for_people()
    assert (told["mirror"].split()[0], told["behind"]) == ("2", None)
    table.alter(table.schema, {"publish": "delta"})
    table.publish()
    [line] = Top([str(tmp_path / "a")], clock=now_of(table)).look()
    assert (line.mirror_versions, line.mirror_ms, line.for_people()["mirror"]) == (0, 0, "0")


def test_a_table_without_a_mirror_has_no_lag_of_one(tmp_path: Path) -> None:
    make(tmp_path, "a", 1)
    [line] = Top([str(tmp_path / "a")]).look()
    assert (line.mirror_versions, line.mirror_ms, line.for_people()["mirror"]) == (None, None, None)


def test_parked_rows_are_shown_beside_their_tables_and_without_one(tmp_path: Path) -> None:
    write_parked(tmp_path)
    shown = {line.table.rpartition("/")[2]: line for line in Top([str(tmp_path)]).look()}
    assert {name: line.parked_rows for name, line in shown.items()} == {"a": 2, "b": 0, "": 1}
    assert shown["a"].for_people()["parked"] == 2
    assert shown["b"].for_people()["parked"] is None
    assert "upsertflow parked" in str(shown[""].problem)


# -- which tables ------------------------------------------------------------------------


def test_the_tables_below_a_root_are_found_and_other_folders_are_not(tmp_path: Path) -> None:
    for name in ("b", "a", "deep/c"):
        make(tmp_path, name)
    (tmp_path / "other").mkdir()
    assert [line["table"] for line in lines(tmp_path)] == [f"{tmp_path}/a", f"{tmp_path}/b"]
    below = lines(tmp_path, "--pattern", "deep/*")
    assert [line["table"] for line in below] == [f"{tmp_path}/deep/c"]


def test_no_more_tables_than_the_limit_are_looked_at_and_it_says_so(tmp_path: Path) -> None:
    for name in "abc":
        make(tmp_path, name)
    result = run(tmp_path, "--once", "--limit", 2)
    assert f"{tmp_path}/b" in result.stdout
    assert f"{tmp_path}/c" not in result.stdout
    assert "and 1 more tables (--limit)" in result.stdout


def test_tables_that_come_and_go_are_noticed(tmp_path: Path) -> None:
    make(tmp_path, "a")
    view = Top([str(tmp_path)])
    assert [line.table for line in view.look()] == [f"{tmp_path}/a"]
    make(tmp_path, "b")
    seen = [[line.table for line in view.look()] for _ in range(10)]
    assert seen[-1] == [f"{tmp_path}/a", f"{tmp_path}/b"]


def test_where_there_is_no_table_it_says_so(tmp_path: Path) -> None:
    result = run(tmp_path, "--once")
    assert result.exit_code == 1
    assert f"There is no table at or below {tmp_path}." in result.stderr


# -- what goes wrong ---------------------------------------------------------------------


def test_a_damaged_table_is_shown_as_such_and_the_others_are_looked_at(tmp_path: Path) -> None:
    make(tmp_path, "a", 2)
    table = make(tmp_path, "b", 2)
    (Path(table.store.url) / commit_path(1)).write_text("{")
    forget_runs_and_logs()
    healthy, damaged = lines(tmp_path)
    assert (healthy["version"], healthy["problem"]) == (2, None)
    assert damaged["version"] is None
    assert "damaged file" in damaged["problem"]
    assert "damaged file" in run(tmp_path, "--once").stdout


def test_a_search_that_fails_later_does_not_stop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("no answer")

    make(tmp_path, "a")
    view = Top([str(tmp_path)])
    view.look()
    monkeypatch.setattr(LocalStore, "folders", fail)
    assert all(len(view.look()) == 1 for _ in range(15))
    with pytest.raises(StorageError):
        Top([str(tmp_path)]).look()


# -- again and again ---------------------------------------------------------------------


class Pauses:
    """Lets something happen in each pause; at the end somebody presses Ctrl-C."""

    def __init__(self, *events: Callable[[], object]) -> None:
        self.events = list(events)
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        if not self.events:
            raise KeyboardInterrupt
        self.events.pop(0)()


def test_it_looks_again_until_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(tmp_path, "a", 1)
    pauses = Pauses(lambda: append(table, 2))
    monkeypatch.setattr(machines, "Top", partial(Top, sleep=pauses))
    result = run(tmp_path, "--json", "--interval", 0.5)
    assert result.exit_code == 0
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["version"], line["fresh"]) for line in found] == [(1, 0), (3, 2)]
    assert pauses.seconds == [0.5, 0.5]


def test_in_a_terminal_a_look_takes_the_place_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.StringIO()
    table = make(tmp_path, "a", 1)
    monkeypatch.setattr(machines, "Top", partial(Top, sleep=Pauses(lambda: append(table, 41))))
    console = Console(file=written, force_terminal=True, width=120)
    monkeypatch.setattr(render, "_console", lambda: console)
    assert run(tmp_path, "--interval", 1).exit_code == 0
    shown = written.getvalue()
    assert "\x1b[1A\x1b[2K" in shown, "it goes up and erases what was there"
    assert "42" in shown
    assert "\x1b[?25h" in shown, "the cursor is shown again at the end"


def test_a_name_that_a_terminal_would_obey_is_spelled_out(tmp_path: Path) -> None:
    make(tmp_path, "a\x1b[2J")
    assert "\\x1b[2J" in run(tmp_path, "--once").stdout
    assert "\x1b" not in run(tmp_path, "--once").stdout


def test_who_reads_the_pipe_and_goes_is_told_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "a", 1)

    def gone(*_: Any, **how: Any) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("spark_upsert.cli.render._print_json", gone)
    result = run(tmp_path, "--once", "--json")
    assert (result.exit_code, result.output) == (1, "")
