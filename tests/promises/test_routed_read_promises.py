"""What reads of the tables of a group promise: one whole batch, wherever the query died."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest

from tests.support.group_worlds import Routed, folds, present, some_rows

SEEDS = pytest.mark.parametrize("seed", range(2))

STEPS = 24
FOLDERS = ("a", "b", "c")


@SEEDS
def test_p3_a_consistent_read_is_that_of_one_batch_in_all_tables(seed: int) -> None:
    """A query that dies between its commits, a compactor and another writer; folds as well."""
    dice = random.Random(f"one batch {seed}")
    with tempfile.TemporaryDirectory() as folder:
        world = Routed(Path(folder))
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
