"""The lines of many tables, as `upsertflow serve` shows them, and what they do not stop at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from spark_upsert.cli import serve
from spark_upsert.cli.serve import Lag, TableLines
from spark_upsert.errors import StorageError
from spark_upsert.store.local import LocalStore
from spark_upsert.table.log.codec import commit_path
from spark_upsert.table.retention.lag import PressureReport, report
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
        table.upsert(pa.table({"id": [key]}))


def now_of(table: Table, later_s: float = 0) -> Callable[[], float]:
    return lambda: table.log.head().timestamp_ms / 1000 + later_s


def names_in(view: TableLines) -> list[str]:
    return [line.table for line in view.poll()]


# -- what is seen ------------------------------------------------------------------------


def test_line_tells_size_age_and_what_came_since_the_look_before(tmp_path: Path) -> None:
    table = make(tmp_path, "a", 3)
    view = TableLines([str(tmp_path / "a")], clock=now_of(table, later_s=61))
    [line] = view.poll()
    head = table.log.head()
    assert (line.version, line.rows, line.bytes, line.runs) == (3, 3, head.bytes, 3)
    assert (line.age_ms, line.fresh, line.problem) == (61_000, 0, None)
    append(table, 2)
    [line] = view.poll()
    assert (line.version, line.fresh) == (5, 2)


def test_consumers_are_shown_with_the_epochs_and_bytes_that_they_have_not_read(
    tmp_path: Path,
) -> None:
    table = make(tmp_path, "a", 2)
    table.hold("fast", 2)
    table.hold("slow", 1)
    table.compact(full=True)
    append(table)
    table.hold("lapsed", 0, ttl_ms=1)
    [line] = TableLines([str(tmp_path / "a")], clock=now_of(table, later_s=5)).poll()
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


def test_line_of_a_consumer_that_is_far_behind_has_versions_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "VERSIONS_MAX", 2)
    table = make(tmp_path, "a", 5)
    table.hold("near", 3)
    table.hold("far", 1)
    [line] = TableLines([str(tmp_path / "a")], clock=now_of(table)).poll()
    assert [(lag.versions, lag.epochs) for lag in line.lags] == [(4, None), (2, 2)]


def test_priority_band_and_pressure_are_shown_where_the_table_has_them(tmp_path: Path) -> None:
    make(tmp_path, "plain")
    table = make(tmp_path, "urgent", priority="800", backpressure="true")
    now = now_of(table)
    said = PressureReport(
        consumer="etl", rung=2, pressure=0.625, reported_ms=int(now() * 1000), ttl_ms=5_000
    )
    report(table.store, said)
    plain, urgent = TableLines([str(tmp_path)], clock=now).poll()
    assert (plain.priority, plain.band, plain.pressure) == (None, None, None)
    assert (urgent.priority, urgent.band, urgent.pressure) == (800, 4, 0.625)


def test_mirror_has_a_lag_of_its_own(tmp_path: Path) -> None:
    table = make(tmp_path, "a", 1)
    lines = TableLines([str(tmp_path / "a")], clock=now_of(table))
    [line] = lines.poll()
    assert (line.mirror_versions, line.mirror_ms) == (None, None)
    table.publish()
    append(table, 2)
    [line] = lines.poll()
    assert (line.mirror_versions, [lag.is_mirror for lag in line.lags]) == (2, [True])
    table.alter(table.schema, {"publish": "delta"})
    table.publish()
    [line] = lines.poll()
    assert (line.mirror_versions, line.mirror_ms) == (0, 0)


def test_parked_rows_are_shown_beside_their_tables_and_without_one(tmp_path: Path) -> None:
    write_parked(tmp_path)
    shown = {line.table.rpartition("/")[2]: line for line in TableLines([str(tmp_path)]).poll()}
    assert {name: line.parked_rows for name, line in shown.items()} == {"a": 2, "b": 0, "": 1}
    assert "upsertflow dead-letters" in str(shown[""].problem)


# -- which tables ------------------------------------------------------------------------


def test_tables_below_a_root_are_found_and_other_folders_are_not(tmp_path: Path) -> None:
    for name in ("b", "a", "deep/c"):
        make(tmp_path, name)
    (tmp_path / "other").mkdir()
    lines = TableLines([str(tmp_path)])
    assert names_in(lines) == [f"{tmp_path}/a", f"{tmp_path}/b"]
    assert names_in(TableLines([str(tmp_path)], pattern="deep/*")) == [f"{tmp_path}/deep/c"]
    make(tmp_path, "c")
    assert [names_in(lines) for _ in range(10)][-1] == [f"{tmp_path}/{name}" for name in "abc"]
    limited = TableLines([str(tmp_path)], limit=2)
    assert names_in(limited) == [f"{tmp_path}/a", f"{tmp_path}/b"]
    assert limited.left_out == 1


# -- what goes wrong ---------------------------------------------------------------------


def test_damaged_table_is_shown_as_such_and_the_others_are_looked_at(tmp_path: Path) -> None:
    make(tmp_path, "a", 2)
    table = make(tmp_path, "b", 2)
    (Path(table.store.url) / commit_path(1)).write_text("{")
    forget_runs_and_logs()
    healthy, damaged = TableLines([str(tmp_path)]).poll()
    assert (healthy.version, healthy.problem) == (2, None)
    assert damaged.version is None
    assert damaged.problem is not None
    assert "damaged file" in damaged.problem


def test_search_that_fails_later_does_not_stop_the_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("no answer")

    make(tmp_path, "a")
    view = TableLines([str(tmp_path)])
    view.poll()
    monkeypatch.setattr(LocalStore, "folders", fail)
    assert all(len(view.poll()) == 1 for _ in range(15))
    with pytest.raises(StorageError):
        TableLines([str(tmp_path)]).poll()
