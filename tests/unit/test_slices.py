"""Lists of slices: leaves with columns behave as lists of objects, and a change copies few leaves."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from spark_upsert.core.key_hash import ALL_HASHES, HASH_END, HashRange
from spark_upsert.core.precedence import Epoch, Interval
from spark_upsert.table.log import slices as slices_module
from spark_upsert.table.log.slices import OBJECT_BYTES, Leaf, RemovedRange, Slice, SliceList
from spark_upsert.table.run.file import HotPrefix, RunFile
from tests.support.seeds import seeds

LEAF = 4


@pytest.fixture
def small_leaves() -> Iterator[None]:
    with patch.object(slices_module, "LEAF_SLICES", LEAF):
        yield


def made(number: int, lower: int, upper: int, hash_range: HashRange, index: int = 0) -> Slice:
    file = RunFile(
        path=f"data/{number:032x}.arrow",
        rows=number + 1,
        tombstones=number % 3,
        bytes=1000 + number,
        body_bytes=900,
        tail_crc=number,
        hash_range=hash_range,
    )
    return Slice(file=file, epochs=Interval(lower=Epoch(lower), upper=Epoch(upper)), index=index)


def odd(slice_: Slice, random_: random.Random) -> Slice:
    """Return a slice that no record represents, sometimes."""
    changes: list[dict[str, object]] = [
        {"path": f"data/{slice_.file.tail_crc}.arrow"},
        {"path": slice_.file.path.replace("0", "g", 1)},
        {"crowds": (HotPrefix(7, 3),)},
        {"bytes": 1 << 40},
        {},
        {},
        {},
    ]
    return replace(slice_, file=replace(slice_.file, **random_.choice(changes)))  # type: ignore[arg-type]


def some_range(random_: random.Random) -> HashRange:
    first, last = sorted(random_.sample(range(16), 2))
    return HashRange(first * HASH_END // 16, (last + 1) * HASH_END // 16)


@pytest.mark.usefixtures("small_leaves")
@seeds(20)
def test_leaves_are_equal_to_objects(seed: int) -> None:
    random_ = random.Random(seed)
    plain: tuple[Slice, ...] = ()
    listed = SliceList.of(plain)
    for number in range(1, 30):
        new = [
            odd(made(100 * number + i, number, number + 1, some_range(random_), i), random_)
            for i in range(random_.randint(0, 3))
        ]
        if number % 5 == 0 and plain:
            removed = [
                RemovedRange(path=slice_.file.path, hash_range=some_range(random_))
                for slice_ in random_.sample(plain, min(len(plain), random_.randint(1, 12)))
            ]
            old = random_.randint(0, number)
            new += [made(100 * number + 50, old, number + 1, some_range(random_), 9 + number)]
        else:
            removed = []
        assert sorted(s.file.path for s in listed.of_paths(r.path for r in removed)) == sorted(
            s.file.path for s in plain if s.file.path in {r.path for r in removed}
        )
        with patch.object(slices_module, "LEAF_SLICES", 10_000):
            plain = tuple(SliceList.of(plain).without(removed).with_added(new))
        listed = listed.without(removed).with_added(new)
        assert list(listed) == sorted(listed, key=lambda s: (s.epochs.lower, s.index))
        assert set(listed) == set(plain)
        assert len(listed) == len(plain) == len(tuple(listed))
        assert all(len(leaf) <= LEAF for leaf in listed.leaves)
        assert (len(listed) > LEAF) <= bool(listed.leaves) <= (len(listed) > LEAF // 2)
        asked = some_range(random_)
        assert set(listed.within(asked)) == {s for s in plain if s.overlaps(asked)}
        assert listed.within(ALL_HASHES) == listed == pickle.loads(pickle.dumps(listed))
        probes = np.array(sorted(random_.choices(range(16), k=2)), np.uint64) << np.uint64(60)
        probed = {s for s in plain if any(int(h) in s.occupied.intersect(asked) for h in probes)}
        assert set(listed.within(asked, (probes, probes))) == (
            probed if listed.leaves else set(listed.within(asked))
        )
        assert listed.has_tombstones == any(s.file.tombstones for s in plain)
        assert listed.rows == sum(s.file.rows for s in plain)
        assert listed.file_bytes == sum({s.file.path: s.file.bytes for s in plain}.values())
        assert listed.columns.run_count == SliceList.of(plain).columns.run_count
        assert listed.at(np.arange(len(listed))) == list(listed)
        assert [listed[at] for at in range(-len(listed), 0)] == list(listed)
        assert listed != SliceList.of([*listed, made(0, 0, 1, ALL_HASHES)])


def test_a_change_copies_only_touched_leaves_and_a_split_is_small() -> None:
    count = 10_000
    ranges = ALL_HASHES.cut(count)
    bottom = SliceList.of(made(i, 0, 100, hash_range) for i, hash_range in enumerate(ranges))
    added = bottom.with_added([made(count, 101, 102, ALL_HASHES)])
    middle = made(count + 1, 0, 100, ranges[count // 2])
    moved = added.without(
        [RemovedRange(path=bottom[count // 2].file.path, hash_range=ALL_HASHES)]
    ).with_added([middle])
    for before, after in ((bottom, added), (added, moved)):
        kept = [leaf for leaf in after.leaves if any(leaf is other for other in before.leaves)]
        assert len(kept) == len(before.leaves) - 1
    assert moved[count // 2] == middle
    assert len(moved) == len(added) == count + 1
    assert bottom.memory_bytes <= (112 + OBJECT_BYTES) * count
    with patch.object(slices_module, "OBJECTS_MAX", count - 1):
        assert bottom.memory_bytes <= 120 * count
    split = moved.within(ALL_HASHES.cut(100)[50])
    assert len(split) == count // 100 + 1
    assert len(pickle.dumps(split)) < 130 * len(split) + 1000


def test_a_leaf_of_empty_slices_overlaps_nothing() -> None:
    empty = replace(made(1, 0, 1, ALL_HASHES), live=HashRange(5, 5))
    leaf = Leaf.of([empty])
    assert leaf.within(ALL_HASHES) is None
    assert leaf.slices() == [empty]
