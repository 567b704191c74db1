"""What a merge promises, on seeded random work: no row lost, exact orders, bounds, and an end.

Plain functions of a seed, as those of `test_promises`, and for the same reason.
"""

from __future__ import annotations

import errno
import random
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from spark_upsert.core import input_order
from spark_upsert.core.input_order import Concat, Order, RoundRobin, Seeded, rows_of_inputs
from spark_upsert.errors import StorageError
from spark_upsert.merge import merged, spill
from spark_upsert.merge.merged import DocumentClose, DocumentOpen, Documents, merge
from spark_upsert.merge.readers import MergeConfig, Mode
from spark_upsert.merge.spill import MemoryPressure, SpillingStore
from tests.support.merging import Generator, batches_of, check_picks, rows_in
from tests.support.plays import PLAYS, BrokenInputError, Play
from tests.support.schedules import Choose, at_random
from tests.support.seeds import seeds

SEEDS = seeds(3)

SCHEDULES = 50
"""So many of each play."""


def schedules(seed: int) -> Iterator[Choose]:
    yield from map(at_random, range(SCHEDULES * seed, SCHEDULES * (seed + 1)))


def drawn(seed: int) -> Iterator[tuple[Order, list[int], random.Random]]:
    dice = random.Random(seed)
    for _ in range(20):
        remaining = [dice.choice([0, 1, 3, 9]) for _ in range(dice.randint(1, 5))]
        yield RoundRobin(cursor=dice.randint(0, 5)), remaining, dice
        yield Seeded(state=dice.getrandbits(64)), remaining, dice
        yield Concat(), remaining, dice


@SEEDS
def test_p4_an_exact_order_is_the_one_that_is_told_row_by_row(seed: int) -> None:
    for order, remaining, dice in drawn(seed):
        check_picks(order, remaining, dice.choice([None, 0, 1, 4, 9]))


@SEEDS
def test_p4_an_exact_order_does_not_depend_on_how_it_is_cut(seed: int) -> None:
    for order, remaining, dice in drawn(seed):
        whole, end = input_order.advance(order, remaining)
        left, found = np.array(remaining), []
        while left.any():
            picks, order = input_order.advance(order, left, dice.randint(1, 4))
            left -= rows_of_inputs(picks, len(left))
            found += picks.tolist()
        assert (found, order) == (whole.tolist(), end)


@SEEDS
def test_p4_draws_below_a_high_bound_are_even(seed: int) -> None:
    generator, bound = Generator(seed), 2**63 + 1
    expected = [generator.below(bound) for _ in range(100)]
    drawn, behind = input_order.draws(seed, bound, 100)
    assert (drawn.tolist(), behind) == (expected, generator.state)


@SEEDS
def test_p1_rows_that_are_arranged_come_once_and_in_their_order(seed: int) -> None:
    for order, remaining, dice in drawn(seed):
        picks, _ = input_order.advance(order, remaining)
        cuts = [dice.randint(0, rows) for rows in remaining]
        inputs = [
            batches_of(str(index), [cut, rows - cut])
            for index, (cut, rows) in enumerate(zip(cuts, remaining, strict=True))
        ]
        found = rows_in(list(merged.arrange(inputs, picks, rows=dice.randint(1, 9))))
        assert [int(name) for name, _ in found] == picks.tolist()
        for index, rows in enumerate(remaining):
            mine = [row for name, row in found if name == str(index)]
            assert mine == list(range(1, rows + 1))


@SEEDS
def test_p1_all_rows_come_out_however_threads_run(seed: int) -> None:
    for play in PLAYS.values():
        for choose in schedules(seed):
            play.run(choose)
            assert len(play.taken) == sum(play.lengths)
            if not play.is_live:
                assert [int(name) for name, _ in play.taken] == [
                    index for index, length in enumerate(play.lengths) for _ in range(length)
                ]


@SEEDS
def test_p7_what_waits_is_bounded_however_threads_run(seed: int) -> None:
    for play in (
        Play((4, 4, 4), stops=2, lingers=60),
        Play((6, 6), capacity=2, stops=1, is_live=False, lingers=60),
        Play((1,) * 9, stops=1, lingers=60),
    ):
        for choose in schedules(seed):
            play.run(choose)
            assert all(
                found.queued_peak <= play.capacity for found in play.counters.snapshot().values()
            )


@SEEDS
def test_p6_a_merge_that_fails_or_is_closed_leaves_no_thread(seed: int) -> None:
    for is_live in (True, False):
        for choose in schedules(seed):
            Play((3, 3, 3), stops=2, is_live=is_live).run(choose)
            with pytest.raises(BrokenInputError):
                Play((2, 3, 3), breaks=1, is_live=is_live).run(choose)


@SEEDS
def test_p1_what_inputs_spill_comes_back(seed: int) -> None:
    dice = random.Random(seed)
    sizes = {name: [dice.randint(0, 9) for _ in range(6)] for name in "abc"}
    inputs = {name: partial(batches_of, name, each) for name, each in sizes.items()}
    config = MergeConfig(mode=Mode.INTERLEAVE, seed=seed)
    pressure = MemoryPressure(limit_bytes=dice.randint(1, 600))
    assert rows_in(list(merge(inputs, config, pressure=pressure))) == rows_in(
        list(merge(inputs, config))
    )


@SEEDS
def test_p6_a_spill_that_fails_loses_nothing_and_leaves_no_file(seed: int) -> None:
    fails = [True]

    def refuse(*_: object) -> int:
        if fails.pop():
            raise OSError(errno.ENOSPC, "No space left on device")
        raise AssertionError

    with tempfile.TemporaryDirectory() as folder:
        with SpillingStore(MemoryPressure(limit_bytes=200), folder=Path(folder)) as store:
            for batch in batches_of("a", [5] * (5 + seed)):
                try:
                    with patch.object(spill, "_append", refuse if fails else spill._append):
                        store.add("a", batch)
                except StorageError:
                    assert list(Path(folder).glob("*/*")) == []
                    store.add("a", batch)
            assert [row for _, row in rows_in(list(store.take("a")))] == list(
                range(1, 5 * (5 + seed) + 1)
            )
        assert list(Path(folder).iterdir()) == []


@SEEDS
def test_p3_a_document_is_closed_once_and_when_all_inputs_have_closed_it(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(50):
        inputs = [[DocumentOpen("D"), DocumentClose("D")] for _ in range(dice.randint(1, 4))]
        documents: Documents[int] = Documents()
        forwarded, last = 0, -1
        while any(inputs):
            last = dice.choice([index for index, marks in enumerate(inputs) if marks])
            forwarded += documents.is_forwarded(inputs[last].pop(0), last)
        assert forwarded == 1
        assert list(documents.closings()) == [last]
