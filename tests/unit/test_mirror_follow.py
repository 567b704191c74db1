"""A table with the property ``publish`` is published behind each commit, whoever writes."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.core.schema import TableSchema
from spark_upsert.delta import follow
from spark_upsert.delta.follow import MIRRORS
from spark_upsert.delta.place import place_of
from spark_upsert.delta.publish import Mirror
from spark_upsert.errors import OptionError
from spark_upsert.routed.plan import table_below
from spark_upsert.store import LocalStore
from spark_upsert.table import observers
from spark_upsert.table.state import observer
from spark_upsert.table.table import Table
from tests.support.clocked import ClockedStore, Now
from tests.support.delta import DeltaTable
from tests.support.mirrored import canonical
from tests.support.routed_worlds import TOPICS, routed_options, row, transaction
from tests.support.routed_worlds import write as write_routed
from tests.support.stores import MemoryStore, forget_runs_and_logs
from tests.support.written import write

COLUMNS = pa.schema({"id": pa.int64(), "x": pa.string()})


def table_in(folder: Path, **properties: str) -> Table:
    return Table.create(
        str(folder / "t"), COLUMNS, keys=["id"], properties={"publish": "delta", **properties}
    )


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "x": [f"x{each}" for each in ids]}, schema=COLUMNS)


def mirror_at(place: Path) -> DeltaTable:
    return DeltaTable(LocalStore(place))


def require_copy(table: Table, place: Path) -> DeltaTable:
    found = mirror_at(place)
    assert canonical(found.rows()) == canonical(table.snapshot())
    return found


PUBLISHES = """
import sys
import pyarrow as pa
from spark_upsert.table.table import Table
properties = dict(pair.split("=") for pair in sys.argv[2:])
how = {"keys": ["id"], "properties": properties}
Table.create(sys.argv[1], pa.schema({"id": pa.int64()}), **how).upsert(pa.table({"id": [1]}))
assert any(name.startswith("spark_upsert.delta") for name in sys.modules) == bool(properties)
"""


@pytest.mark.slow
@pytest.mark.parametrize("properties", [["publish=delta"], []], ids=["published", "plain"])
def test_a_fresh_process_publishes_and_loads_the_mirror_only_then(
    tmp_path: Path, properties: list[str]
) -> None:
    command = [sys.executable, "-c", PUBLISHES, str(tmp_path / "t"), *properties]
    subprocess.run(command, check=True)
    assert (tmp_path / "t" / "_delta" / "_delta_log").exists() == bool(properties)


def test_the_table_calls_whatever_observer_is_registered(tmp_path: Path) -> None:
    calls: list[str] = []

    class Observer:
        """Notes its calls."""

        def __getattr__(self, name: str) -> Any:
            def note(*_: object, **__: object) -> tuple[()] | None:
                calls.append(name)
                return () if name == "vacuum" else None

            return note

    with (
        patch.object(observers, "_registered", [Observer]),
        patch.object(observer, "_registered", [Observer]),
    ):
        table = table_in(tmp_path)
        table.upsert(rows(1))
        table.publish()
        (tmp_path / "t" / "_delta").mkdir()
        table.vacuum(grace_ms=0)
    assert calls[:2] == ["require_mirrored", "require_place"]
    assert {"prepared", "follow", "publish", "vacuum"} <= set(calls)


def test_each_commit_is_published(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    for number in range(3):
        table.upsert(rows(number, 7))
        assert require_copy(table, tmp_path / "t" / "_delta").version == number
    table.restore(1)
    assert require_copy(table, tmp_path / "t" / "_delta").version == 3


def test_a_compaction_is_a_commit_of_its_own_that_changes_no_data(tmp_path: Path) -> None:
    table = table_in(tmp_path, publishChangeFeed="true")
    table.upsert(rows(1, 2))
    table.upsert(rows(2, 3))
    table.compact(full=True)
    found = require_copy(table, tmp_path / "t" / "_delta")
    assert found.version == 2
    assert found.data_changes == {False}
    assert DeltaTable(LocalStore(tmp_path / "t" / "_delta"), 1).feed() is not None


def test_another_place_by_its_template(tmp_path: Path) -> None:
    table = table_in(tmp_path, publishPath=f"{tmp_path}/mirrors/{{table}}")
    table.upsert(rows(1))
    require_copy(table, tmp_path / "mirrors" / "t")
    assert table.publish().place == str(tmp_path / "mirrors" / "t")


def test_an_option_of_a_write_publishes(tmp_path: Path) -> None:
    write(tmp_path, rows(1, 2), publish="delta")
    write(tmp_path, rows(3))
    table = Table.open(str(tmp_path / "table"))
    assert require_copy(table, tmp_path / "table" / "_delta").version == 1
    write(tmp_path, rows(4), publish="none")
    write(tmp_path, rows(5))
    assert mirror_at(tmp_path / "table" / "_delta").rows().num_rows == 3


class KnownStore(ClockedStore):
    """A store that a process knows again, as it does a place of a disk."""

    @property
    def cache_key(self) -> Hashable | None:
        return self.url


def test_the_interval_lets_epochs_come_together() -> None:
    now = Now()
    store = KnownStore(now)
    table = Table(store, clock=now)
    properties = {"publish": "delta", "publishInterval": "10 seconds"}
    table.ensure(TableSchema.of(COLUMNS, keys=["id"]), properties)
    versions = []
    for number in range(6):
        now.advance(4.0)
        Table(store, clock=now).upsert(rows(number))
        versions.append(DeltaTable(place_of(store, None)).version)
    assert versions == [0, 0, 0, 1, 1, 1]
    assert table.publish().shown == 6


def test_a_mirror_that_fails_is_worth_no_commit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = table_in(tmp_path)
    (tmp_path / "t" / "_delta").mkdir(parents=True)
    (tmp_path / "t" / "_delta" / "mine.csv").write_text("1")
    before = MIRRORS.failures
    assert table.upsert(rows(1)) is not None
    assert MIRRORS.failures == before + 1
    assert "mirror not kept up" in caplog.text
    assert "mine.csv" in caplog.text
    (tmp_path / "t" / "_delta" / "mine.csv").unlink()
    table.upsert(rows(2))
    require_copy(table, tmp_path / "t" / "_delta")


def test_a_mirror_far_behind_is_left_there_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "STEP_ROWS", 10)
    table = Table.create(str(tmp_path / "t"), COLUMNS, keys=["id"])
    table.upsert(rows(*range(20)))
    table.alter(table.schema, {"publish": "delta"})
    table.upsert(rows(1))
    assert "run 'upsertflow publish'" in caplog.text
    assert not [*(tmp_path / "t" / "_delta").iterdir()]
    table.publish()
    table.upsert(rows(2))
    assert require_copy(table, tmp_path / "t" / "_delta").version == 1
    forget_runs_and_logs()
    Table.open(str(tmp_path / "t")).upsert(rows(3))
    assert require_copy(table, tmp_path / "t" / "_delta").version == 2


def test_a_process_that_knows_a_mirror_reads_no_vector_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_in(tmp_path)
    table.upsert(rows(1, 2))

    def refuse(*args: Any) -> Any:
        raise AssertionError("read again")

    monkeypatch.setattr(Mirror, "vector_of", refuse)
    for number in range(3):
        Table.open(str(tmp_path / "t")).upsert(rows(number))
    require_copy(table, tmp_path / "t" / "_delta")


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"publish": "iceberg"}, "one of delta, none"),
        ({"publishInterval": "soon"}, "a number with a unit"),
        ({"publishChangeFeed": "perhaps"}, "'true' or 'false'"),
        ({"publishGuard": "perhaps"}, "'true' or 'false'"),
        ({"publishRetention": "soon"}, "at least 1 hour"),
        ({"publishRetention": "59 minutes"}, "at least 1 hour"),
    ],
)
def test_a_property_is_checked_when_it_is_set(
    tmp_path: Path, properties: Mapping[str, str], expected: str
) -> None:
    with pytest.raises(OptionError, match=expected):
        Table.create(str(tmp_path / "t"), COLUMNS, keys=["id"], properties=properties)


def test_52_a_stream_into_many_tables_publishes_each() -> None:
    """By pattern: those that are told to; one that has no mirror does not stop the others."""
    root = MemoryStore()
    options = routed_options(publish="delta", **{"table.part.publish": "none"})
    dice = random.Random(3)
    for number in range(3):
        batch = [row(dice, topic) for topic in TOPICS for _ in range(3)]
        write_routed(root, options, [batch], transaction(number))
    for topic in TOPICS:
        table = table_below(root, topic)
        found = DeltaTable(place_of(table.store, None))
        if topic == "part":
            assert found.version == -1
        else:
            assert canonical(found.rows()) == canonical(table.snapshot()), topic


def test_52_a_mirror_that_fails_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    root, dice = MemoryStore(), random.Random(3)
    options = routed_options(publish="delta")
    root.put("last/_delta/mine.csv", b"1")
    for number in range(2):
        batch = [row(dice, topic) for topic in TOPICS for _ in range(3)]
        write_routed(root, options, [batch], transaction(number))
    assert "mine.csv" in caplog.text
    for topic in ("sum", "epoch"):
        table = table_below(root, topic)
        found = DeltaTable(place_of(table.store, None))
        assert canonical(found.rows()) == canonical(table.snapshot()), topic
