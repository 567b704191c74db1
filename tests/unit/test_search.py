"""A search of a run's hashes answers the same, whatever it learned from earlier ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest

from spark_upsert.core.key_hash import order_of
from spark_upsert.table.run.file import STRIDE, Hashes, HashSearch
from spark_upsert.table.table import Table

SEEDS = range(30)
SPACES = [1, 40, 5000, 2**64 - 1]


def drawn(seed: int, space: int) -> tuple[Hashes, Hashes]:
    """Return hashes of a run and probes, ascending, some twice; small spaces for collisions."""
    dice = np.random.default_rng(seed)
    sizes = dice.integers([1, 0], [40 * STRIDE, 60])
    own, probes = (dice.integers(0, space, size, dtype=np.uint64) for size in sizes)
    known = dice.choice(own, len(probes) // 2)
    return np.sort(own), np.sort(np.concatenate([probes, known]))


@pytest.mark.parametrize("space", SPACES, ids="of {} hashes".format)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_search_finds_the_same_places_whatever_it_learned(seed: int, space: int) -> None:
    own, probes = drawn(seed, space)
    search = HashSearch(own)
    for few in (probes[:1], probes, probes[-1:], own[:: 2 * STRIDE + 1], probes[:0], own[-1:]) * 3:
        assert search.insertion_points(few).tolist() == np.searchsorted(own, few).tolist()
        search.insertion_points(own)  # Whatever there is to learn pays by now.


@pytest.mark.parametrize("space", SPACES, ids="of {} hashes".format)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_hash_that_is_there_is_left_out(seed: int, space: int) -> None:
    own, probes = drawn(seed, space)
    search = HashSearch(own)
    inside = probes[(probes >= own[0]) & (probes <= own[-1])]
    there = np.flatnonzero(np.isin(inside, own))
    for _ in range(3):
        likely = search.candidates(inside)
        assert np.isin(there, likely).all()
        assert (np.diff(likely) > 0).all()
        search.candidates(own)


def test_filter_leaves_out_most_of_what_is_not_there() -> None:
    dice = np.random.default_rng(0)
    own, probes = (np.sort(dice.integers(0, 2**63, 10_000, dtype=np.uint64)) for _ in range(2))
    inside = probes[(probes >= own[0]) & (probes <= own[-1])]
    assert len(HashSearch(own).candidates(inside)) < 0.2 * len(inside)


def test_nothing_is_learned_for_a_few_probes() -> None:
    own = np.arange(100_000, dtype=np.uint64)
    search = HashSearch(own)
    search.insertion_points(own[:100])
    search.candidates(own[:100])
    assert search._sample is None
    assert search._filter is None


@pytest.mark.parametrize("space", SPACES, ids="of {} hashes".format)
@pytest.mark.parametrize("pieces", [1, 3, 200], ids="{} sorted pieces".format)
def test_hashes_are_ordered_and_equal_ones_stay_as_they_stand(pieces: int, space: int) -> None:
    dice = np.random.default_rng(pieces)
    parts = [np.sort(dice.integers(0, space, 50, dtype=np.uint64)) for _ in range(pieces)]
    hashes = np.concatenate(parts)
    assert order_of(hashes).tolist() == np.argsort(hashes, kind="stable").tolist()


@pytest.mark.parametrize("size", [1, 7, 400], ids="batches of {}".format)
def test_table_gives_the_same_rows_as_its_searches_learn(size: int, tmp_path: Path) -> None:
    """Thousands of keys in several runs, and batches of which each finds some."""
    dice = np.random.default_rng(size)
    columns = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table = Table.create(str(tmp_path), columns, keys=["k"])
    state: dict[int, int] = {}
    for number in range(12):
        keys = dice.choice(20_000, 4_000 if number < 3 else size, replace=False).tolist()
        commit = table.upsert(pa.table({"k": keys, "v": [number] * len(keys)}))
        assert commit is not None
        old = [state[key] for key in keys if key in state]
        assert commit.counters["updates"] == len(old)
        assert commit.counters["inserts"] == len(keys) - len(old)
        changes = table.changes(commit.version, commit.version + 1)
        retracted = changes.filter(pa.compute.equal(changes["_diff"], -1))
        assert sorted(retracted["v"].to_pylist()) == sorted(old)
        state.update(dict.fromkeys(keys, number))
    rows = table.snapshot()
    assert dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True)) == state
