"""A kept table has a mirror, too: of its rows, or of the groups that it keeps."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from spark_upsert.delta import follow
from spark_upsert.delta.follow import default_mirror, measure_mirror_lag, status_of_mirror
from spark_upsert.delta.publish import check_mirror
from spark_upsert.delta.types import MirroredTypeError, NotMirroredError
from spark_upsert.plan import agg
from spark_upsert.store import LocalStore
from spark_upsert.table.table import Table
from spark_upsert.views import materialized
from spark_upsert.views.materialized import (
    check_result_table,
    open_result_table,
    read_result_version,
)
from spark_upsert.views.plan_builder import Plan
from tests.support.delta import DeltaTable
from tests.support.mirrored import canonical
from tests.support.stores import forget_runs_and_logs

COLUMNS = pa.schema({"id": pa.int64(), "group": pa.string(), "n": pa.int64()})


class KeptCase:
    """A table, a kept table of its groups, and the mirror of that."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.orders = Table.create(str(folder / "orders"), COLUMNS, keys=["id"])
        self.plan = (
            Plan.of_table(str(folder / "orders"))
            .group_by("group")
            .agg(n=agg.count(), total=agg.sum("n"), mean=agg.avg("n"), top=agg.max("n"))
        )
        self.dice = random.Random(7)

    @property
    def kept(self) -> Table:
        return Table.open(str(self.folder / "kept"))

    def write(self, count: int = 4) -> None:
        ids = self.dice.sample(range(20), count)
        rows = {
            "id": ids,
            "group": [self.dice.choice(["a", "b", "c", None]) for _ in ids],
            "n": [self.dice.choice([None, each]) for each in ids],
            "gone": [self.dice.random() < 0.3 for _ in ids],
        }
        schema = COLUMNS.append(pa.field("gone", pa.bool_()))
        self.orders.upsert(pa.table(rows, schema=schema), deletes="gone")

    def refresh(self) -> None:
        self.plan.refresh(str(self.folder / "kept"))

    def step(self, count: int = 4) -> None:
        self.write(count)
        self.refresh()

    def look(self) -> DeltaTable:
        """Return the mirror, which must have the rows that readers of the kept table see."""
        mirror = DeltaTable(LocalStore(self.folder / "kept" / "_delta"))
        rows = pa.table(Plan.of_table(str(self.folder / "kept")).to_arrow())
        assert canonical(mirror.rows()) == canonical(rows)
        assert list(check_result_table(self.kept)) == []
        assert list(check_mirror(default_mirror(self.kept))) == []
        return mirror


@pytest.fixture
def case(tmp_path: Path) -> KeptCase:
    case = KeptCase(tmp_path)
    case.step()
    return case


def test_28_groups_are_shown_as_readers_of_the_view_see_them(case: KeptCase) -> None:
    case.kept.publish()
    assert case.look().version == 0
    for number in range(12):
        case.step()
        if number % 3 == 2:
            case.kept.publish()
            case.look()
        if number == 5:
            forget_runs_and_logs()
    assert read_result_version(case.kept, case.kept.log.head()) == case.kept.log.head().version


def test_28_the_feed_has_each_group_that_changed(case: KeptCase) -> None:
    case.kept.publish(change_feed=True)
    before = {row["group"]: row for row in case.look().rows().to_pylist()}
    for _ in range(6):
        case.step(2)
        case.kept.publish()
        mirror = case.look()
        behind = {row["group"]: row for row in mirror.rows().to_pylist()}
        feed = mirror.feed()
        changed = set() if feed is None else {row["group"] for row in feed.to_pylist()}
        assert changed == {
            key for key in {**before, **behind} if before.get(key) != behind.get(key)
        }
        before = behind
    assert open_result_table(case.kept).log.head().version >= 6


def test_28_delta_rs_reads_the_groups_of_every_version(case: KeptCase) -> None:
    deltalake = pytest.importorskip("deltalake")
    shown = []
    for _ in range(6):
        case.kept.publish()
        shown.append(case.look().rows())
        case.step()
    for version, expected in enumerate(shown):
        table = deltalake.DeltaTable(str(case.folder / "kept" / "_delta"), version=version)
        rows = deltalake.QueryBuilder().register("t", table).execute("select * from t")
        assert canonical(pa.table(rows.read_all())) == canonical(expected)


def test_28_a_large_kept_table_is_left_to_a_publication(
    case: KeptCase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(follow, "STEP_ROWS", 1)
    monkeypatch.setattr(follow, "_TIMES", 0)
    case.kept.alter(case.kept.schema, {"publish": "delta"})
    case.step(1)
    assert "run 'upsertflow publish'" in caplog.text
    assert not (case.folder / "kept" / "_delta").exists()
    case.kept.publish()
    case.step(1)
    case.look()


def test_28_facts_and_lag_count_the_versions_that_a_mirror_is_behind(case: KeptCase) -> None:
    assert status_of_mirror(case.kept) is None
    assert measure_mirror_lag(case.kept) is None
    case.kept.publish()
    assert measure_mirror_lag(case.kept) == (0, 0)
    case.step()
    case.step()
    facts, lag = status_of_mirror(case.kept), measure_mirror_lag(case.kept)
    assert facts is not None
    assert lag is not None
    assert facts.versions_behind == lag[0] == 2
    case.kept.alter(case.kept.schema, {"publish": "delta"})
    case.step()
    case.look()
    facts = status_of_mirror(case.kept)
    assert facts is not None
    assert facts.versions_behind == 0


def test_28_groups_over_an_expired_past_are_settled_as_a_whole(case: KeptCase) -> None:
    case.kept.publish(change_feed=True)
    for _ in range(3):
        case.step()
    kept = case.kept
    for lease in kept.consumers():
        kept.release(lease.consumer)
    kept.expire(retain_versions=0, safety_ms=0)
    kept.vacuum(grace_ms=0)
    kept.publish()
    case.look()


@pytest.mark.slow
def test_28_a_settled_table_keeps_no_more_than_its_mirror_needs(
    case: KeptCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialized, "_VERSIONS_MAX", 3)
    monkeypatch.setattr(materialized, "_SAFETY_MS", 0)
    monkeypatch.setattr("spark_upsert.delta.publish._HELD_EVERY_MS", 0)
    for _ in range(12):
        case.step()
        case.kept.publish()
    head = open_result_table(case.kept).log.head()
    assert head.version - head.since <= 8
    rows = LocalStore(case.folder / "kept" / "_mirror" / "rows")
    before = len(list(rows.list("data")))
    case.kept.vacuum(grace_ms=0)
    assert len(list(rows.list("data"))) < before
    case.look()


def test_28_one_group_of_all_rows_has_no_key_and_no_mirror(tmp_path: Path) -> None:
    case = KeptCase(tmp_path)
    everything = Plan.of_table(str(tmp_path / "orders")).group_by().agg(n=agg.count())
    case.write()
    everything.refresh(str(tmp_path / "one"))
    with pytest.raises(NotMirroredError, match="groups"):
        Table.open(str(tmp_path / "one")).publish()


def test_32_a_group_of_a_type_that_delta_lacks_is_refused(tmp_path: Path) -> None:
    columns = pa.schema({"id": pa.int64(), "at": pa.time64("us")})
    table = Table.create(str(tmp_path / "t"), columns, keys=["id"])
    table.upsert(pa.table({"id": [1], "at": [5]}, schema=columns))
    groups = Plan.of_table(str(tmp_path / "t")).group_by("at").agg(n=agg.count())
    groups.refresh(str(tmp_path / "kept"))
    kept = Table.open(str(tmp_path / "kept"))
    with pytest.raises(MirroredTypeError, match="'at'"):
        kept.publish()
    with pytest.raises(MirroredTypeError, match="'at'"):
        kept.alter(kept.schema, {"publish": "delta"})


@pytest.mark.parametrize("wrong", ["another row", "no row", "one more row"])
def test_28_check_compares_the_settled_rows_with_the_groups(case: KeptCase, wrong: str) -> None:
    case.kept.publish()
    settled_table = open_result_table(case.kept)
    rows = settled_table.snapshot().slice(0, 1)
    key = "a" if rows["group"][0].as_py() is None else rows["group"][0].as_py()
    if wrong == "no row":
        settled_table.delete([key])
    else:
        row = {**rows.to_pylist()[0], "group": "z" if wrong == "one more row" else key, "n": 77}
        settled_table.upsert(pa.Table.from_pylist([row], schema=rows.schema))
    assert len(list(check_result_table(case.kept))) == 1
