"""Laws of loading: each row once, whoever reads it; and whoever goes on, goes on exactly."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_upsert.loader.order import EpochOrder
from spark_upsert.loader.share import RankShare, Remainder
from spark_upsert.loader.stretch import LoaderSettings, RankBatches
from tests.support.loading import (
    MemoryRows,
    carried,
    check_turns,
    flat,
    ids_of,
    loader_of,
    slow_epoch,
)

CASES = int(os.environ.get("LOADER_CASES", "60"))
"""Of each law; thousands of them take minutes."""

COUNTS = st.lists(st.integers(0, 9), max_size=8)
SEEDS = st.one_of(st.none(), st.integers(0, 3), st.just(2**64 - 1))


@dataclass(frozen=True)
class Case:
    counts: list[int]
    settings: dict[str, Any]

    @property
    def rows(self) -> int:
        return sum(self.counts)


@st.composite
def cases(draw: st.DrawFn, *, worlds: int = 4) -> Case:
    """Draw rows and settings under which each rank has some."""
    counts = draw(COUNTS)
    rows = sum(counts)
    remainder = draw(st.sampled_from(Remainder))
    batch_rows, world = draw(st.integers(1, 5)), draw(st.integers(1, worlds))
    if remainder is Remainder.KEEP:
        world = min(world, max(1, rows))
    elif remainder is Remainder.DROP:
        batch_rows = min(batch_rows, max(1, rows))
        world = min(world, max(1, rows // batch_rows))
    return Case(
        counts,
        {
            "batch_rows": batch_rows,
            "world": world,
            "remainder": remainder,
            "seed": draw(SEEDS),
            "window_rows": draw(st.integers(1, 12)),
            "lanes": draw(st.integers(1, 4)),
            "ahead": draw(st.integers(0, 2)),
        },
    )


@settings(max_examples=CASES)
@given(case=cases(), epoch=st.integers(0, 3))
def test_each_row_of_an_epoch_comes_as_often_as_the_remainder_says(case: Case, epoch: int) -> None:
    own = case.settings
    batch_rows, world = own["batch_rows"], own["world"]
    found = []
    for rank in range(world):
        loader = loader_of(case.counts, rank=rank, **own)
        loader.set_epoch(epoch)
        batches = ids_of(loader)
        assert len(batches) == len(loader) == loader.lengths()[rank], "lengths are told beforehand"
        assert len(flat(batches)) == loader.rows
        assert all(len(batch) == batch_rows for batch in batches[:-1])
        found.append(batches)
    lengths = [len(batches) for batches in found]
    times = np.bincount(flat([flat(batches) for batches in found]), minlength=case.rows)
    match own["remainder"]:
        case Remainder.KEEP:
            assert (times == 1).all()
            rows = [len(flat(batches)) for batches in found]
            assert max(rows) - min(rows) <= 1
        case Remainder.DROP:
            assert (times <= 1).all()
            assert times.sum() > case.rows - world * batch_rows
            assert len(set(lengths)) == 1
        case Remainder.REPEAT:
            assert not case.rows or times.min() >= 1
            assert times.sum() < case.rows + world * batch_rows
            assert len(set(lengths)) == 1
    if own["remainder"] is not Remainder.KEEP:
        assert all(len(batch) == batch_rows for batches in found for batch in batches)


@settings(max_examples=CASES)
@given(case=cases(worlds=2), epoch=st.integers(0, 2), data=st.data())
def test_whoever_goes_on_at_any_batch_gets_the_rest(
    case: Case, epoch: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, case.settings["world"] - 1))
    whole = loader_of(case.counts, rank=rank, **case.settings)
    whole.seek(epoch)
    expected = ids_of(whole)
    for cut in range(len(expected) + 1):
        loader = loader_of(case.counts, rank=rank, **case.settings)
        loader.seek(epoch)
        taken = ids_of(islice(loader, cut))
        state = carried(loader.state_dict())
        loader.close()
        assert taken == expected[:cut]
        again = loader_of(case.counts, rank=rank, **case.settings)
        again.load_state_dict(state)
        assert ids_of(again) == expected[cut:], "neither what was handed out nor what was not"
        assert (again.epoch, again.batch) == (epoch + 1, 0)


@settings(max_examples=CASES)
@given(case=cases(worlds=2))
def test_whoever_goes_on_reads_no_split_of_what_lies_before(case: Case) -> None:
    loader = loader_of(case.counts, **case.settings)
    own = {name: case.settings[name] for name in ("seed", "window_rows")}
    order = EpochOrder(case.counts, epoch=0, **own)
    share = loader._share(0)
    for cut in range(len(loader) + 1):
        source = MemoryRows(case.counts)
        again = loader_of(case.counts, **case.settings)
        again._source = source
        again.load_state_dict({**loader.state_dict(), "batch": cut})
        list(again)
        spans = [span for i in range(cut, len(loader)) for span in order.spans(*share.batch(i))]
        needed = {split for span in spans for split in order.windows[span.window].splits}
        assert set(source.reads) == needed


@settings(max_examples=CASES)
@given(
    rows=st.integers(0, 60),
    batch_rows=st.integers(1, 7),
    lanes=st.integers(1, 6),
    world=st.integers(1, 3),
    remainder=st.sampled_from(Remainder),
)
def test_lanes_are_pieces_that_are_served_in_turn(
    rows: int, batch_rows: int, lanes: int, world: int, remainder: Remainder
) -> None:
    for rank in range(world):
        share = RankShare.of(
            rows,
            rank=rank,
            world=world,
            batch_rows=batch_rows,
            remainder=remainder,
            lanes=lanes,
        )
        bounds = [share.batch(index) for index in range(share.batches)]
        pieces = sorted(bounds)
        assert [first for first, _ in pieces] == [
            share.first + batch_rows * index for index in range(share.batches)
        ]
        if bounds:
            assert bounds[-1] == pieces[-1], "the short one comes last"
            assert bounds[-1][1] == share.first + share.rows
        for lane in range(min(lanes, share.batches)):
            firsts = [first for first, _ in bounds[lane::lanes]]
            assert firsts == list(range(firsts[0], firsts[-1] + 1, batch_rows)), "one piece"


@settings(max_examples=CASES)
@given(case=cases(worlds=2), workers=st.integers(1, 5), first=st.integers(0, 6))
def test_any_number_of_workers_gives_in_turn_what_one_gives(
    case: Case, workers: int, first: int
) -> None:
    names = ("batch_rows", "seed", "window_rows", "world", "remainder", "lanes")
    stretch = RankBatches(
        splits=MemoryRows(case.counts),
        settings=LoaderSettings(**{name: case.settings[name] for name in names}),
        rank=0,
        epoch=1,
        first=first,
        ahead=0,
    )
    check_turns(stretch, workers)


@settings(max_examples=CASES)
@given(counts=COUNTS, seed=SEEDS, epoch=st.integers(0, 2**63 - 1), window_rows=st.integers(1, 20))
def test_the_order_is_the_documented_one(
    counts: list[int], seed: int | None, epoch: int, window_rows: int
) -> None:
    loader = loader_of(counts, seed=seed, window_rows=window_rows)
    loader.seek(epoch)
    assert flat(ids_of(loader)) == slow_epoch(counts, seed, epoch, window_rows)
