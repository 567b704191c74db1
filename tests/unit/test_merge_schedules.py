"""The readers of a merge under every order in which their threads may run."""

from __future__ import annotations

import pytest

from spark_upsert.merge.readers import Bounds, MergeCancellation, MergeReaders
from tests.support.plays import BrokenInputError, Play
from tests.support.schedules import at_random, every_schedule, played

SEEDS = range(150)


BOTH = pytest.mark.parametrize("is_live", [True, False], ids=["live", "concat"])


@BOTH
@pytest.mark.parametrize("stops", [0, 1, 3])
@pytest.mark.sweep(2)
def test_closing_ends_all_threads_however_they_run(stops: int, is_live: bool) -> None:
    play = Play((3, 3, 3), stops=stops, is_live=is_live)
    for seed in SEEDS:
        play.run(at_random(seed))
        assert len(play.taken) == stops


@BOTH
@pytest.mark.parametrize("breaks", [0, 1, 2])
@pytest.mark.sweep(2)
def test_a_failure_releases_all_however_they_run(breaks: int, is_live: bool) -> None:
    play = Play((2, 2, 1), breaks=breaks, is_live=is_live)
    for seed in SEEDS:
        with pytest.raises(BrokenInputError) as caught:
            play.run(at_random(seed))
        assert caught.value.__notes__ == [f"It is about the input '{breaks}'."]


def test_a_silent_input_holds_nobody_however_they_run() -> None:
    play = Play((1, 4, 3), silent=0, stops=8, width=2)
    for seed in SEEDS:
        play.run(at_random(seed))
        assert len(play.taken) == 8


# -- every schedule with one preemption, of plays that are small enough


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lengths", "orders"), [((2, 2), 6), ((1, 1, 1), 4)], ids=["two inputs", "three, two open"]
)
def test_live_gives_every_order_that_there_can_be_and_no_other(
    lengths: tuple[int, ...], orders: int
) -> None:
    """Two rows of each of two inputs have six orders; the third of three opens behind another."""
    play, seen = Play(lengths), set()
    for choose in every_schedule(preemptions=1):
        play.run(choose)
        assert len(play.taken) == sum(lengths)
        seen.add(tuple(name for name, _ in play.taken))
    assert len(seen) == orders


@pytest.mark.parametrize(
    "play",
    [
        pytest.param(Play((2, 1), is_live=False), id="concat"),
        pytest.param(Play((2, 1), stops=1), id="live, closed behind the first row"),
        pytest.param(Play((2, 1), stops=1, is_live=False), id="concat, closed behind the first"),
        pytest.param(Play((1, 2), breaks=0), id="live, the first fails"),
        pytest.param(Play((1, 2), breaks=0, is_live=False), id="concat, the first fails"),
        pytest.param(Play((1, 1), memory_bytes=1), id="live, memory for nothing"),
    ],
)
@pytest.mark.sweep(2)
def test_small_plays_come_to_their_end_in_every_schedule(play: Play) -> None:
    for choose in every_schedule(preemptions=1):
        if play.breaks is None:
            play.run(choose)
            assert len(play.taken) == (play.stops or sum(play.lengths))
        else:
            with pytest.raises(BrokenInputError):
                play.run(choose)


def test_taking_from_a_merge_that_was_closed_is_said() -> None:
    with played(at_random(1)), MergeReaders({}, Bounds()) as merge:
        merge.close()
        with pytest.raises(MergeCancellation):
            merge.take_ready()
