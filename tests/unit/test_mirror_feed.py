"""The change feed of a mirror is what `changes` gives, and nothing where no row changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.delta import change_feed as feeds
from spark_upsert.store import LocalStore
from spark_upsert.table.changelog.read import ChangeOptions, Deduplication
from tests.support.delta import DeltaTable
from tests.support.mirrored import KINDS, MirroredTable, canonical
from tests.unit.test_mirror import SEQ, Case

SHORT = {"insert": "i", "update_preimage": "-", "update_postimage": "+", "delete": "d"}


def short(feed: pa.Table | None) -> list[str]:
    """Return a feed in short: kind, key, value."""
    if feed is None:
        return []
    return sorted(f"{SHORT[r['_change_type']]}{r['id']}{r['x']}" for r in feed.to_pylist())


def published(*rows: tuple[Any, ...], **how: Any) -> Case:
    case = Case(**how)
    case.put(*(rows or ((1, "a"), (2, "b"))))
    case.publish(change_feed=True)
    return case


def require_step(case: Case, *changes: str) -> None:
    """Publish, and require these changes in the feed; of none, no change of data either."""
    case.publish()
    mirror = case.look()
    assert (short(mirror.feed()), mirror.data_changes) == (sorted(changes), {bool(changes)})


STEPS: dict[str, tuple[list[Callable[[Case], object]], list[str]]] = {
    "3 puts": ([lambda case: case.put((2, "c"), (3, "d"))], ["+2c", "-2b", "i3d"]),
    "4 and 6 a delete": ([lambda case: case.both([(1, None)], [(3, "d")])], ["d1a", "i3d"]),
    "7 rows as they were": ([lambda case: case.put((1, "a"), (2, "b"))], []),
    "9 an epoch behind a compaction": (
        [lambda case: case.table.compact(full=True), lambda case: case.put((4, "e"))],
        ["i4e"],
    ),
    "11 several epochs": (
        [
            lambda case: case.put((5, "x"), (2, "x")),
            lambda case: case.put((5, "y"), (2, "y")),
            lambda case: case.delete((5,)),
        ],
        ["+2y", "-2b"],
    ),
    "12 a row that came back": (
        [lambda case: case.delete((1,)), lambda case: case.put((1, "a"))],
        [],
    ),
}


@pytest.mark.parametrize(("acts", "changes"), STEPS.values(), ids=STEPS)
def test_3_and_4_and_6_and_7_and_9_and_11_and_12_feed_of_one_step(
    acts: list[Callable[[Case], object]], changes: list[str]
) -> None:
    case = published()
    assert case.look().feed() is None, "the first commit has no feed"
    for act in acts:
        act(case)
    require_step(case, *changes)


def test_8_and_13_and_14_and_15_feed_of_compactions_overwrites_and_restores() -> None:
    case = published()
    case.put((2, "c"))
    case.publish()
    case.table.compact(full=True)
    require_step(case)
    for changes in (["+2z", "-2c", "d1a", "i7q"], []):
        case.put((2, "z"), (7, "q"), overwrite=True)
        require_step(case, *changes)
    case.table.restore(1)
    require_step(case, "+2b", "-2z", "d7q", "i1a")


def test_18_late_row_is_no_change() -> None:
    case = published((1, "new", 5), order=SEQ)
    version = case.look().version
    case.put((1, "old", 3))
    assert case.publish().delta_version == version


def test_29_added_column_alone_is_no_change() -> None:
    case = published()
    wide = pa.schema([*case.table.schema.columns, pa.field("more", pa.int64())])
    case.table.upsert(pa.table([[1], ["a"], [None]], schema=wide), merge_schema=True)
    require_step(case)
    case.table.upsert(pa.table([[1], ["a"], [5]], schema=wide))
    require_step(case, "+1a", "-1a")


def test_30_wider_type_is_no_change() -> None:
    case = published((1, "a"), columns=pa.schema({"id": pa.int32(), "x": pa.string()}))
    wide = pa.schema({"id": pa.int64(), "x": pa.string()})
    case.table.upsert(pa.table([[1], ["a"]], schema=wide), merge_schema=True)
    require_step(case)


def forget_the_past(case: Case) -> None:
    for lease in case.table.consumers():
        case.table.release(lease.consumer)
    case.table.expire(retain_versions=0, safety_ms=0)
    case.table.vacuum(grace_ms=0)


def test_39_changes_that_are_expired_are_told_by_the_files() -> None:
    case = published()
    case.put((1, "c"))
    case.put((1, "a"), (2, "b"))
    case.table.compact(full=True)
    forget_the_past(case)
    require_step(case)
    case.put((1, "c"))
    case.put((1, "d"), (3, "e"))
    case.delete((2, None))
    forget_the_past(case)
    require_step(case, "+1d", "-1a", "d2b", "i3e")


@pytest.mark.parametrize("rows_max", [1, 3, 1 << 20])
def test_39_many_rows_are_compared_share_by_share(
    monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    monkeypatch.setattr(feeds, "ROWS_MAX", rows_max)
    case = published()
    case.put(*((key, "b" if key == 2 else "c") for key in range(9)))
    case.delete((8, None))
    case.table.restore(2)
    forget_the_past(case)
    require_step(case, "-1a", "+1c", "i0c", *(f"i{key}c" for key in range(3, 9)))


def test_feed_is_switched_on_and_off_and_stays_so() -> None:
    case = Case()
    case.put((1, "a"))
    case.publish()
    assert "enableChangeDataFeed" not in str(case.look().metadata)
    case.put((1, "b"))
    case.publish(change_feed=True)
    assert short(case.look().feed()) == ["+1b", "-1a"]
    case.publish(change_feed=True)
    case.put((1, "c"))
    require_step(case, "+1c", "-1b")
    case.put((1, "d"))
    case.publish(rebuild=True)
    assert (case.look().feed(), case.look().data_changes) == (None, {True})
    version = case.publish(change_feed=False).delta_version
    assert case.look().version == version
    case.put((1, "e"))
    case.publish()
    assert case.look().feed() is None


@pytest.mark.parametrize("life", [each for each in range(2 * len(KINDS)) if each % 2])
@pytest.mark.sweep(2)
def test_delta_rs_reads_the_same_feed(life: int, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    lived = MirroredTable(life, LocalStore(tmp_path))
    lived.live(10)
    for version in range(1, max(lived.shown) + 1):
        mirror = DeltaTable(lived.target, version)
        table = deltalake.DeltaTable(str(tmp_path / "_delta"), version=version)
        theirs = pa.table(table.load_cdf(version, version).read_all())
        schema = mirror.schema.append(pa.field("_change_type", pa.string()))
        rows = theirs.select(schema.names).cast(schema)
        feed = mirror.feed()
        ours = rows.slice(0, 0) if feed is None else feed
        assert canonical(rows) == canonical(ours), f"version {version}"


def test_feed_of_one_epoch_is_what_changes_gives() -> None:
    case = published()
    case.put((2, "c"), (3, "d"))
    case.publish()
    options = ChangeOptions(columns=("id", "x"), deduplication=Deduplication.DROP_CARRYOVERS)
    expected = pa.Table.from_batches(case.table.iter_changes(2, 3, options))
    feed = case.look().feed()
    assert feed is not None
    assert canonical(feed) == canonical(expected.select(["id", "x", "_change_type"]))
