"""The change feed of a mirror is what `changes` gives, and nothing where no row changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.delta import change_feed as feeds
from spark_upsert.store import LocalStore
from spark_upsert.table.changelog.render import ChangeOptions, Deduplication
from tests.support.delta import DeltaTable
from tests.support.mirrored import KINDS, MirroredTable, canonical
from tests.unit.test_mirror import SEQ, Case

SHORT = {"insert": "i", "update_preimage": "-", "update_postimage": "+", "delete": "d"}


def told(feed: pa.Table | None) -> list[str]:
    """Return a feed in short: kind, key, value."""
    if feed is None:
        return []
    return sorted(f"{SHORT[r['_change_type']]}{r['id']}{r['x']}" for r in feed.to_pylist())


def case(**how: Any) -> Case:
    made = Case(**how)
    made.put((1, "a"), (2, "b"))
    made.publish(change_feed=True)
    return made


def step(made: Case) -> tuple[list[str], set[bool]]:
    made.publish()
    found = made.look()
    return told(found.feed()), found.data_changes


def test_2_the_first_commit_has_no_feed() -> None:
    assert case().look().feed() is None


def test_3_puts_are_inserts_and_updates() -> None:
    made = case()
    made.put((2, "c"), (3, "d"))
    assert step(made) == (["+2c", "-2b", "i3d"], {True})


def test_4_and_6_deletes_have_the_old_row() -> None:
    made = case()
    made.both([(1, None)], [(3, "d")])
    assert step(made) == (["d1a", "i3d"], {True})


def test_7_rows_that_are_there_already_are_no_change() -> None:
    made = case()
    made.put((1, "a"), (2, "b"))
    assert step(made) == ([], {False})


def test_8_a_compaction_is_no_change() -> None:
    made = case()
    made.put((2, "c"))
    made.publish()
    made.table.compact(full=True)
    assert step(made) == ([], {False})


def test_9_an_epoch_behind_a_compaction_is_one() -> None:
    made = case()
    made.put((2, "c"))
    made.publish()
    made.table.compact(full=True)
    made.put((4, "e"))
    assert step(made) == (["i4e"], {True})


def test_11_of_several_epochs_only_what_is_left_is_told() -> None:
    made = case()
    made.put((5, "x"), (2, "x"))
    made.put((5, "y"), (2, "y"))
    made.delete((5,))
    assert step(made) == (["+2y", "-2b"], {True})


def test_12_a_row_that_came_back_is_no_change() -> None:
    made = case()
    made.delete((1,))
    made.put((1, "a"))
    assert step(made) == ([], {False})


def test_13_and_14_an_overwrite_is_compared() -> None:
    made = case()
    made.put((2, "z"), (7, "q"), overwrite=True)
    assert step(made) == (["+2z", "-2b", "d1a", "i7q"], {True})
    made.put((2, "z"), (7, "q"), overwrite=True)
    assert step(made) == ([], {False})


def test_15_a_restore_retracts() -> None:
    made = case()
    made.put((1, "c"), (3, "d"))
    made.publish()
    made.table.restore(1)
    assert step(made) == (["+1a", "-1c", "d3d"], {True})


def test_18_what_is_late_is_no_change() -> None:
    made = Case(order=SEQ)
    made.put((1, "new", 5))
    before = made.publish(change_feed=True)
    made.put((1, "old", 3))
    assert made.publish().delta_version == before.delta_version


def test_29_an_added_column_alone_is_no_change() -> None:
    made = case()
    wide = pa.schema([*made.table.schema.columns, pa.field("more", pa.int64())])
    made.table.upsert(pa.table([[1], ["a"], [None]], schema=wide), merge_schema=True)
    assert step(made) == ([], {False})
    made.table.upsert(pa.table([[1], ["a"], [5]], schema=wide))
    assert step(made) == (["+1a", "-1a"], {True})


def test_30_a_wider_type_is_no_change() -> None:
    made = Case(pa.schema({"id": pa.int32(), "x": pa.string()}))
    made.put((1, "a"))
    made.publish(change_feed=True)
    wide = pa.schema({"id": pa.int64(), "x": pa.string()})
    made.table.upsert(pa.table([[1], ["a"]], schema=wide), merge_schema=True)
    assert step(made) == ([], {False})


def forget_the_past(made: Case) -> None:
    for lease in made.table.consumers():
        made.table.release(lease.consumer)
    made.table.expire(retain_versions=0, safety_ms=0)
    made.table.vacuum(grace_ms=0)


def test_39_changes_that_are_expired_are_told_by_the_files() -> None:
    made = case()
    made.put((1, "c"))
    made.put((1, "d"), (3, "e"))
    made.delete((2, None))
    forget_the_past(made)
    assert step(made) == (["+1d", "-1a", "d2b", "i3e"], {True})


def test_39_rows_that_are_as_they_were_are_no_change() -> None:
    made = case()
    made.put((1, "c"))
    made.put((1, "a"), (2, "b"))
    made.table.compact(full=True)
    forget_the_past(made)
    assert step(made) == ([], {False})


@pytest.mark.parametrize("rows_max", [1, 3, 1 << 20])
def test_39_many_rows_are_compared_share_by_share(
    monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    monkeypatch.setattr(feeds, "ROWS_MAX", rows_max)
    made = case()
    made.put(*((key, "b" if key == 2 else "c") for key in range(9)))
    made.delete((8, None))
    made.table.restore(2)
    forget_the_past(made)
    feed, flags = step(made)
    assert feed == sorted(["-1a", "+1c", "i0c", *(f"i{key}c" for key in range(3, 9))])
    assert flags == {True}


def test_a_feed_is_switched_on_and_off_and_stays_so() -> None:
    made = Case()
    made.put((1, "a"))
    made.publish()
    assert "enableChangeDataFeed" not in str(made.look().metadata)
    made.put((1, "b"))
    made.publish(change_feed=True)
    assert told(made.look().feed()) == ["+1b", "-1a"]
    made.publish(change_feed=True)
    made.put((1, "c"))
    made.publish()
    assert told(made.look().feed()) == ["+1c", "-1b"]
    version = made.publish(change_feed=False).delta_version
    assert made.look().version == version
    made.put((1, "d"))
    made.publish()
    assert made.look().feed() is None


def test_a_rebuilt_mirror_tells_by_its_files_what_changed() -> None:
    made = case()
    made.put((1, "c"))
    made.publish(rebuild=True)
    assert made.look().feed() is None
    assert made.look().data_changes == {True}


@pytest.mark.parametrize("life", [each for each in range(2 * len(KINDS)) if each % 2])
@pytest.mark.sweep(2)
def test_delta_rs_reads_the_same_feed(life: int, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    lived = MirroredTable(life, LocalStore(tmp_path))
    lived.live(10)
    last = max(lived.shown)
    place = str(tmp_path / "_delta")
    for version in range(1, last + 1):
        found = DeltaTable(lived.target, version)
        feed = found.feed()
        table = deltalake.DeltaTable(place, version=version)
        theirs = pa.table(table.load_cdf(version, version).read_all())
        names = [*found.schema.names, "_change_type"]
        fields = [*found.schema, pa.field("_change_type", pa.string())]
        rows = pa.table(
            [theirs.column(n).cast(pa.schema(fields).field(n).type) for n in names], names
        )
        ours = rows.slice(0, 0) if feed is None else feed
        assert canonical(rows) == canonical(ours), f"version {version}"


def test_a_feed_of_one_epoch_is_what_changes_gives() -> None:
    made = case()
    made.put((2, "c"), (3, "d"))
    made.publish()
    options = ChangeOptions(columns=("id", "x"), deduplication=Deduplication.DROP_CARRYOVERS)
    expected = pa.Table.from_batches(made.table.iter_changes(2, 3, options))
    feed = made.look().feed()
    assert feed is not None
    assert canonical(feed) == canonical(expected.select(["id", "x", "_change_type"]))
