"""A table with the property ``publish`` is published behind each commit, whoever writes."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from spark_upsert.core.schema import TableSchema
from spark_upsert.delta import follow
from spark_upsert.delta.log import open_mirror_store
from spark_upsert.delta.publish import Mirror
from spark_upsert.delta.upkeep import CLEAN_EVERY_MS
from spark_upsert.errors import OptionError
from spark_upsert.routed.plan import table_below
from spark_upsert.store import LocalStore
from spark_upsert.table.table import Table
from tests.support.calls import raising
from tests.support.clocked import DAY_S, HOUR_S, KnownStore, Now
from tests.support.delta import DeltaTable
from tests.support.mirrored import canonical
from tests.support.mirrored import require_copy as require_checked_copy
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
    mirror = mirror_at(place)
    assert canonical(mirror.rows()) == canonical(table.snapshot())
    return mirror


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
    monkeypatch.setattr(Mirror, "vector_of", raising(AssertionError("read again")))
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


def test_52_a_stream_into_many_tables_publishes_each(caplog: pytest.LogCaptureFixture) -> None:
    """By pattern: those that are to be published; one whose mirror fails stops no other."""
    root, dice = MemoryStore(), random.Random(3)
    options = routed_options(publish="delta", **{"table.part.publish": "none"})
    root.put("last/_delta/mine.csv", b"1")
    for number in range(3):
        batch = [row(dice, topic) for topic in TOPICS for _ in range(3)]
        write_routed(root, options, [batch], transaction(number))
    assert "mine.csv" in caplog.text
    for topic in TOPICS:
        table = table_below(root, topic)
        mirror = DeltaTable(open_mirror_store(table.store, None))
        if topic in ("part", "last"):
            assert mirror.version == -1
        else:
            assert canonical(mirror.rows()) == canonical(table.snapshot()), topic


COLUMNS = pa.schema({"id": pa.int64(), "x": pa.string()})

JUMPS_S = (10.0, -60.0, -2 * DAY_S, 5.0, -HOUR_S, 3 * DAY_S, -DAY_S, 1.0)


class Skewed:
    """A published table by a machine whose clock is set anew, on a storage whose clock is right."""

    def __init__(self, **properties: str) -> None:
        self.right, self.now = Now(), Now()
        self.store = KnownStore(self.right)
        schema = TableSchema.of(COLUMNS, keys=["id"], hash_seed=7)
        Table(self.store, clock=self.now).ensure(schema, {"publish": "delta", **properties})
        self.target = open_mirror_store(self.store, None)

    @property
    def table(self) -> Table:
        return Table(self.store, clock=self.now)

    def append(self, *ids: int, x: str = "a") -> None:
        self.table.upsert(pa.table({"id": list(ids), "x": [x] * len(ids)}, schema=COLUMNS))

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self.right.advance(seconds)
        self.now.advance(seconds)

    def set(self, seconds: float) -> None:
        """Let time pass, and set the machine's clock by some seconds, forward or back."""
        self.right.advance(abs(seconds))
        self.now.advance(seconds)

    def mirror(self) -> Mirror:
        return Mirror(self.table.log, self.store, self.target)


def test_49_times_and_versions_grow_and_removals_are_no_earlier_than_their_commit() -> None:
    case, times = Skewed(publishChangeFeed="true"), []
    for number, seconds in enumerate(JUMPS_S):
        case.set(seconds)
        case.append(number % 2, 99, x=f"x{number}")
        times.append(case.table.log.head().timestamp_ms)
    mirror = require_checked_copy(case.table, case.target)
    assert mirror.times == times == sorted(set(times))
    shown = [next(a for a in each if "txn" in a)["txn"]["version"] for each in mirror.commits]
    assert shown == list(range(1, len(JUMPS_S) + 1))
    removals = [
        (action["remove"]["deletionTimestamp"], time)
        for time, actions in zip(mirror.times, mirror.commits, strict=True)
        for action in actions
        if "remove" in action
    ]
    assert len(removals) > 3
    assert all(removed_ms >= time for removed_ms, time in removals)


def test_47_what_went_while_the_clock_was_behind_is_kept_for_the_retention() -> None:
    case = Skewed()
    for number in range(4):
        case.append(number, 9)
    case.advance(2 * DAY_S)
    case.append(7)
    before = DeltaTable(case.target)
    rows = canonical(before.rows())
    case.now.advance(-DAY_S)
    case.table.compact(full=True)
    case.now.advance(DAY_S)
    case.advance(60.0)
    assert DeltaTable(case.target).version > before.version
    case.table.vacuum()
    assert canonical(DeltaTable(case.target, before.version).rows()) == rows
    case.advance(2 * DAY_S)
    assert case.table.vacuum().orphans


def test_an_interval_lets_epochs_come_together_and_is_no_longer_where_a_clock_goes_back() -> None:
    case, versions = Skewed(publishInterval="10 seconds"), []
    for number, seconds in enumerate((0.0, 4.0, 4.0, 4.0, 4.0, -DAY_S, 4.0, 8.0)):
        case.set(seconds)
        case.append(number)
        versions.append(DeltaTable(case.target).version)
    assert versions == [0, 0, 0, 1, 1, 2, 2, 3]
    case.append(9)
    assert case.table.publish().shown == 9


def test_a_lease_follows_where_the_clock_goes_back() -> None:
    case = Skewed()
    case.append(1)
    case.now.advance(-DAY_S)
    case.append(2)
    [lease] = case.table.consumers()
    assert lease.version == case.table.log.head().version


def test_a_clock_that_went_back_is_cleaned_behind_an_hour_later() -> None:
    case = Skewed()
    mirror = case.mirror()
    case.append(1)
    mirror.state()
    begin_ms = int(case.now() * 1000)
    with patch.object(mirror.upkeep, "_find_removable", wraps=mirror.upkeep._find_removable) as old:
        for now_ms in (begin_ms, begin_ms - 100 * CLEAN_EVERY_MS, begin_ms - 99 * CLEAN_EVERY_MS):
            mirror.upkeep.follow(now_ms=now_ms, retention_ms=CLEAN_EVERY_MS)
    assert [call.kwargs["now_ms"] for call in old.mock_calls] == [begin_ms - 99 * CLEAN_EVERY_MS]


# -- deferral while deletion vectors cost too much -------------------------------------------

TABLE_ROWS, BATCH_ROWS = 20_000, 400


class Batches:
    """A published table, and batches of random existing keys, every second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **properties: str) -> None:
        monkeypatch.setattr(follow, "FREE_VECTOR_BYTES", 0)
        self.now, self.dice = Now(), np.random.default_rng(1)
        self.store = KnownStore(self.now)
        self.table = Table(self.store, clock=self.now)
        schema = TableSchema.of(COLUMNS, keys=["id"])
        self.table.ensure(schema, {"publish": "delta", "publishInterval": "auto", **properties})
        self.target = open_mirror_store(self.store, None)
        self.shown: list[int] = []
        self.append(np.arange(TABLE_ROWS))

    def append(self, ids: npt.NDArray[np.int64]) -> None:
        self.now.advance(1)
        x = [f"x{self.now()}"] * len(ids)
        self.table.upsert(pa.table({"id": ids, "x": x}, schema=COLUMNS))
        state = Mirror(self.table.log, self.store, self.target).state()
        assert state is not None
        assert state.shown is not None
        self.shown.append(state.shown.version)
        if self.shown[-1] == self.table.log.head().version:
            assert canonical(DeltaTable(self.target).rows()) == canonical(self.table.snapshot())

    def update(self, count: int = 1) -> None:
        for _ in range(count):
            self.append(self.dice.choice(TABLE_ROWS, BATCH_ROWS, replace=False))

    @property
    def vector_bytes(self) -> int:
        """The bytes of all deletion vectors in the log."""
        commits = [path for path in self.store.objects if path.startswith("_delta/_delta_log/0")]
        lines = [
            json.loads(line)
            for path in commits
            if path.endswith("0.json") or path[-6].isdigit()
            for line in self.store.objects[path].splitlines()
        ]
        adds = [line["add"] for line in lines if "add" in line]
        return sum(add.get("deletionVector", {}).get("sizeInBytes", 0) for add in adds)


def test_deletion_vectors_cost_two_bytes_for_a_written_row(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(monkeypatch)
    batches.update(40)
    assert batches.vector_bytes <= 2 * 40 * BATCH_ROWS + 100 * len(set(batches.shown))
    assert 4 <= len(set(batches.shown)) <= 12
    batches.now.advance(600)
    batches.update()
    newest = batches.table.log.head().version
    assert batches.shown[-1] == newest, "it lags for more than ten minutes"
    batches.update()
    assert batches.shown[-1] == newest
    batches.table.publish()
    assert canonical(DeltaTable(batches.target).rows()) == canonical(batches.table.snapshot())


@pytest.mark.parametrize(
    "properties",
    [{"publishInterval": "0 seconds"}, {"publishChangeFeed": "true"}],
    ids=["each commit is asked for", "with a change feed"],
)
def test_each_epoch_is_published_if_it_is_asked_for(
    properties: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = Batches(monkeypatch, **properties)
    batches.update(5)
    assert batches.shown == [*range(1, 7)]


def test_what_is_cheap_or_changes_the_mirror_is_published_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = Batches(monkeypatch)
    for number in range(3):  # New keys have no deletion vectors.
        batches.append(np.arange(BATCH_ROWS) + TABLE_ROWS * (number + 2))
    assert batches.shown == [1, 2, 3, 4]
    batches.update(2)
    assert batches.shown[-2:] == [5, 5]
    table = batches.table
    table.alter(table.log.head().schema, {"publishRetention": "2 hours"})
    batches.update()
    assert batches.shown[-1] == table.log.head().version, "the retention is changed"
    batches.update()
    assert batches.shown[-1] < table.log.head().version
    table.restore(3)
    batches.update()
    assert batches.shown[-1] == table.log.head().version, "rows came back"
    monkeypatch.setattr(follow, "FREE_VECTOR_BYTES", 1 << 16)
    batches.update(2)
    assert batches.shown[-1] == table.log.head().version, "they are small"
