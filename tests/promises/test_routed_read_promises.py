"""What reads of the tables of a group promise: one whole batch, wherever the query died."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest

from spark_upsert.errors import DataLossError
from spark_upsert.table.log import storage
from spark_upsert.table.log.log import cut
from tests.support.group_worlds import RoutedBatch, folds, present, some_rows

SEEDS = pytest.mark.parametrize("seed", range(2))

STEPS = 24
FOLDERS = ("a", "b", "c")


@SEEDS
@pytest.mark.sweep(1)
def test_p3_a_consistent_read_is_that_of_one_batch_in_all_tables(seed: int) -> None:
    """A query that dies between its commits, a compactor and another writer; folds as well."""
    dice = random.Random(f"one batch {seed}")
    with tempfile.TemporaryDirectory() as folder:
        world = RoutedBatch(Path(folder))
        world.batch(a={1: 1})
        query = world.query()
        for _ in range(STEPS):
            match dice.randrange(8):
                case 0 | 1 | 2 | 3:
                    some = dice.sample(FOLDERS, dice.randrange(len(FOLDERS) + 1))
                    world.begin({each: some_rows(dice) for each in some})
                    world.commit_next()
                case 4:
                    world.table(dice.choice(sorted(world.now))).compact(full=True)
                case 5:
                    world.write(dice.choice(sorted(world.now)), some_rows(dice))
                case 6:
                    query.restart()
                case _:
                    number = dice.randrange(len(world.whole))
                    assert world.read(asOfBatch=number) == present(world.whole[number])
            assert world.read() == present(world.whole[-1])
            if dice.random() < 0.5 and query.plan():
                query.deliver()
                assert present(folds(query.batches)) == present(world.whole[-1])
        query.drain()
        assert present(folds(query.batches)) == present(world.whole[-1])
        assert query.stream.report()["complete"] == world.number - 1


@pytest.mark.parametrize("seed", [0])
@pytest.mark.slow
def test_p3_a_consistent_stream_with_a_limit_ends_behind_whole_batches(seed: int) -> None:
    dice = random.Random(f"limited {seed}")
    with tempfile.TemporaryDirectory() as folder:
        world = RoutedBatch(Path(folder))
        world.batch(a={1: 1})
        query = world.query(maxRowsPerTrigger=str(dice.randrange(1, 6)))
        for _ in range(STEPS):
            match dice.randrange(6):
                case 0 | 1 | 2:
                    some = dice.sample(FOLDERS, dice.randrange(len(FOLDERS) + 1))
                    world.batch(**{each: some_rows(dice) for each in some})
                case 3:
                    world.table(dice.choice(sorted(world.now))).compact(full=True)
                case 4:
                    query.restart()
                case _ if query.plan():
                    query.deliver()
                    complete = query.stream.report()["complete"]
                    assert complete is not None
                    assert present(folds(query.batches)) == present(world.whole[complete])
        query.drain()
        assert present(folds(query.batches)) == present(world.whole[-1])


@pytest.mark.parametrize("seed", [0])
@pytest.mark.slow
def test_p3_a_table_at_rest_is_read_however_its_past_is_given_up(seed: int) -> None:
    """Others compact, expire and cut at any time, and batches and processes go on between."""
    dice = random.Random(f"at rest {seed}")
    with tempfile.TemporaryDirectory() as folder, patch.object(storage, "CHECKPOINT_EVERY", 2):
        world = RoutedBatch(Path(folder))
        world.batch(a={1: 1}, b={1: 1}, c={1: 1})
        query = world.query()
        cuts = 0
        for _ in range(STEPS):
            table = world.table(dice.choice(FOLDERS))
            match dice.randrange(8):
                case 0:
                    some = dice.sample(FOLDERS, dice.randrange(2))
                    world.batch(**{each: some_rows(dice) for each in some})
                    query.drain()  # Of a table that has moved a reader needs what it expires.
                case 1 | 2:
                    table.compact(full=True)
                    table.alter(table.schema, {"priority": str(dice.randrange(100))})
                case 3 | 4:
                    table.expire(retain_versions=0, safety_ms=0)
                case 5 | 6:
                    cuts += len(cut(table.store, table.log, now_s=4e9))
                case _:
                    query.restart()
            assert world.read() == present(world.whole[-1])
            query.drain()
            assert present(folds(query.batches)) == present(world.whole[-1])
        assert cuts
        world.write("a", {1: 1})
        table = world.table("a")
        table.expire(retain_versions=0, safety_ms=0)
        with pytest.raises(DataLossError, match="was expired"):
            world.read()
