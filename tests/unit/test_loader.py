"""A loader: its settings, its position, what it refuses, and that its thread ends with it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import DataLossError, OptionError
from spark_upsert.loader import Checkpoint, Loader
from spark_upsert.loader.order import mixed, permutation
from tests.support.loading import (
    MemoryRows,
    carried,
    flat,
    ids_of,
    loader_of,
    loading_threads,
    slow_epoch,
)
from tests.support.waiting import PATIENCE_SECONDS, passed

COUNTS = [4, 0, 7, 3, 5]


# -- the order -----------------------------------------------------------------------


def test_the_same_numbers_are_drawn_for_ever() -> None:
    """They are part of the format of a checkpoint: another one needs another `FORMAT`."""
    assert mixed(7, 0, 0) == 0x654CF8AF04137896
    assert permutation(7, 10).tolist() == [7, 4, 8, 5, 1, 9, 3, 2, 0, 6]
    rows = [12, 7, 4, 11, 8, 5, 13, 6, 9, 10, 18, 16, 17, 14, 15, 1, 2, 3, 0]
    assert flat(ids_of(loader_of(COUNTS, seed=7, window_rows=5))) == rows


def test_without_a_seed_rows_come_in_the_order_of_the_source() -> None:
    assert ids_of(loader_of([2, 3], seed=None, batch_rows=2)) == [[0, 1], [2, 3], [4]]


def test_another_epoch_and_another_seed_have_another_order() -> None:
    loader = loader_of([40, 40], seed=1)
    orders = [flat(ids_of(loader)), flat(ids_of(loader)), flat(ids_of(loader_of([40, 40], seed=2)))]
    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == list(range(80)) for order in orders)


def test_rows_of_a_window_are_mixed_over_its_splits() -> None:
    first = slow_epoch([50, 50], 3, 0, window_rows=100)[:50]
    assert 10 < sum(row < 50 for row in first) < 40
    assert flat(ids_of(loader_of([50, 50], seed=3, window_rows=100)))[:50] == first


# -- epochs and positions ------------------------------------------------------------


def test_a_pass_goes_to_the_end_of_its_epoch_and_the_next_one_begins_anew() -> None:
    loader = loader_of(COUNTS)
    assert len(ids_of(loader)) == len(loader) == 7
    assert (loader.epoch, loader.batch) == (1, 0)
    assert len(ids_of(loader)) == 7


def test_an_epoch_that_is_named_keeps_the_place_in_it() -> None:
    loader = loader_of(COUNTS)
    rest = ids_of(loader)[2:]
    loader.seek(0)
    list(islice(loader, 2))
    loader.set_epoch(0)
    assert ids_of(loader) == rest
    loader.set_epoch(0)
    assert (loader.epoch, loader.batch) == (0, 0), "it stood in epoch 1"


def test_a_loop_over_epochs_goes_on_where_it_was_ended() -> None:
    whole = loader_of(COUNTS)
    expected = [(epoch, rows) for epoch in range(3) for rows in ids_of(whole)]
    seen: list[tuple[int, list[int]]] = []
    state = loader_of(COUNTS).state_dict()
    while state["epoch"] < 3:
        loader = loader_of(COUNTS)
        loader.load_state_dict(state)
        steps = _trained(loader, seen)
        for _ in islice(steps, 2):  # As a crash that comes behind every second batch.
            state = carried(loader.state_dict())
        if next(steps, None) is None:
            break
        seen.pop()
    assert seen == expected


def _trained(loader: Loader, seen: list[tuple[int, list[int]]]) -> Iterator[int]:
    for epoch in range(loader.epoch, 3):
        loader.set_epoch(epoch)
        for batch in loader:
            seen.append((epoch, batch["id"].to_pylist()))
            yield epoch


def test_a_newer_pass_ends_an_older_one_loudly() -> None:
    loader = loader_of(COUNTS)
    older = iter(loader)
    next(older)
    newer = iter(loader)
    with pytest.raises(ValueError, match="another pass"):
        next(older)
    assert next(newer).num_rows == 3
    assert loader.batch == 2


def test_a_pass_that_is_over_stays_over() -> None:
    loader = loader_of([2])
    batches = iter(loader)
    assert len(list(batches)) == 1
    assert list(batches) == []
    assert loader.epoch == 1


# -- checkpoints ---------------------------------------------------------------------


def test_case_33_a_split_is_gone_on_with_behind_the_rows_that_were_delivered() -> None:
    """Of split 3 with 100 rows 40 were delivered: it is read again, from row 41 on."""
    counts = [20, 20, 20, 100, 20]
    loader = loader_of(counts, seed=None, batch_rows=20)
    list(islice(loader, 5))
    source = MemoryRows(counts)
    again = Loader(source, seed=None, batch_rows=20, window_rows=5)
    again.load_state_dict(carried(loader.state_dict()))
    assert flat(ids_of(again)) == list(range(100, 180))
    assert source.reads == [3, 4]


def test_case_35_a_split_of_which_nothing_was_delivered_is_read_whole() -> None:
    counts = [20, 20, 20, 20, 20]
    loader = loader_of(counts, seed=None, batch_rows=20, ahead=0)
    list(islice(loader, 4))
    source = MemoryRows(counts)
    again = Loader(source, seed=None, batch_rows=20, window_rows=5)
    again.load_state_dict(loader.state_dict())
    assert flat(ids_of(again)) == list(range(80, 100))
    assert source.reads == [4]


def test_what_was_read_ahead_is_in_no_checkpoint() -> None:
    counts = [3] * 6
    source, is_read = MemoryRows(counts), threading.Event()
    source.before_read = lambda index: is_read.set() if len(source.reads) == 2 else None
    loader = Loader(source, batch_rows=3, seed=None, ahead=2)
    batches = iter(loader)
    next(batches)
    passed(is_read)
    assert loader.state_dict()["batch"] == 1
    assert len(list(batches)) == 5


def test_a_checkpoint_of_one_rank_serves_all() -> None:
    ranks = [loader_of([10], rank=rank, world=3, batch_rows=2) for rank in range(3)]
    assert [len(loader) for loader in ranks] == [2, 2, 2]
    list(islice(ranks[0], 1))
    state = ranks[0].state_dict()
    rest = []
    for rank in range(3):
        loader = loader_of([10], rank=rank, world=3, batch_rows=2)
        loader.load_state_dict(state)
        rest += flat(ids_of(loader))
    assert len(rest) == 10 - 3 * 2
    assert len(set(rest)) == len(rest)


def test_a_checkpoint_behind_the_last_batch_of_a_longer_rank_is_the_end_of_a_shorter() -> None:
    longer, shorter = (loader_of([3], rank=rank, world=2, batch_rows=1) for rank in range(2))
    assert (len(longer), len(shorter)) == (2, 1)
    list(islice(longer, 2))
    shorter.load_state_dict(longer.state_dict())
    assert list(shorter) == []
    assert shorter.epoch == 1


def test_a_checkpoint_of_other_rows_is_refused_and_leaves_the_loader_as_it_is() -> None:
    loader = loader_of(COUNTS)
    list(islice(loader, 2))
    with pytest.raises(DataLossError):
        loader.load_state_dict(loader_of([1, 2, 3]).state_dict())
    assert (loader.epoch, loader.batch) == (0, 2)


@pytest.mark.parametrize(
    "broken",
    [
        lambda state: {},
        lambda state: {**state, "epoch": -1},
        lambda state: {**state, "batch": "2"},
        lambda state: {**state, "splits": None},
        lambda state: {**state, "splits": {}},
        lambda state: {**state, "order": []},
        lambda state: {**state, "order": {}},
        lambda state: {**state, "format": 2},
        lambda state: {**state, "kind": "table"},
        lambda state: [state],
    ],
    ids=[
        "empty",
        "a negative epoch",
        "a text as a number",
        "no splits",
        "splits of nothing",
        "an order that is a list",
        "no settings",
        "another format",
        "another kind",
        "a list",
    ],
)
def test_what_is_no_checkpoint_is_refused(broken: Callable[[Any], Any]) -> None:
    with pytest.raises(OptionError, match="Hint: "):
        loader_of(COUNTS).load_state_dict(broken(loader_of(COUNTS).state_dict()))


def test_a_checkpoint_is_a_value_that_json_keeps() -> None:
    state = loader_of(COUNTS, seed=2**64 - 1).state_dict()
    assert carried(state) == state
    assert Checkpoint.from_json(state).to_json() == state


def test_a_loader_travels_with_its_position() -> None:
    source = MemoryRows(COUNTS)
    source.before_read = _nothing
    loader = Loader(source, batch_rows=3, seed=5, window_rows=5)
    batches = iter(loader)
    next(batches)
    other = pickle.loads(pickle.dumps(loader))
    assert ids_of(other) == ids_of(batches)


def _nothing(index: int) -> None:
    """Pickles, unlike a lambda."""


# -- what is refused -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"batch_rows": 0}, "'batch_rows' expects a number from 1, found 0"),
        ({"window_rows": 0}, "'window_rows'"),
        ({"lanes": 0}, "'lanes'"),
        ({"world": 0}, "'world'"),
        ({"rank": 2, "world": 2}, "'rank' expects a number from 0 up to 1, found 2"),
        ({"rank": -1}, "'rank'"),
        ({"seed": -1}, "'seed'"),
        ({"seed": 2**64}, "'seed'"),
        ({"ahead": -1}, "'ahead'"),
        ({"remainder": "dropp"}, "(?s)'remainder'.*Did you mean 'drop'"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_settings_out_of_their_range_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        loader_of(COUNTS, **settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"world": 20}, "19 rows are too few for 20 ranks: some would have none"),
        ({"world": 7, "remainder": "drop"}, "for 7 ranks with whole batches of 3"),
        ({"batch_rows": 20, "remainder": "drop"}, "for 1 ranks with whole batches of 20"),
    ],
    ids=["more ranks than rows", "fewer batches than ranks", "fewer rows than a batch"],
)
def test_ranks_without_rows_are_refused(settings: dict[str, Any], said: str) -> None:
    loader = loader_of(COUNTS, **settings)
    with pytest.raises(OptionError, match=rf"(?s){said}.*remainder='repeat'"):
        iter(loader)
    assert len(loader_of(COUNTS, **{**settings, "remainder": "repeat"})) == 1


def test_nothing_gives_nothing() -> None:
    loader = loader_of([0, 0], world=3, rank=1)
    assert (len(loader), list(loader), loader.epoch) == (0, [], 1)
    loader.load_state_dict(loader.state_dict())


@pytest.mark.parametrize(("epoch", "batch"), [(-1, 0), (0, 8), (0, -1), (2**63, 0)])
def test_a_place_that_is_not_there_is_refused(epoch: int, batch: int) -> None:
    with pytest.raises(OptionError, match="expects a number from 0"):
        loader_of(COUNTS).seek(epoch, batch)


def test_rows_without_columns_are_refused() -> None:
    loader = Loader(MemoryRows(COUNTS, schema=pa.schema([])), batch_rows=1)
    with pytest.raises(OptionError, match="at least one column"):
        iter(loader)


# -- reading ahead -------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_no_more_windows_are_read_than_may_wait(ahead: int) -> None:
    source, is_read = MemoryRows([3] * 9), threading.Event()
    source.before_read = lambda index: is_read.set() if len(source.reads) == ahead else None
    batches = iter(Loader(source, batch_rows=1, seed=None, ahead=ahead))
    next(batches)
    passed(is_read)
    batches.close()
    assert len(source.reads) == 1 + ahead


def test_windows_that_were_used_are_given_up() -> None:
    source = MemoryRows([1000] * 40)
    before = pa.total_allocated_bytes()
    most = 0
    for batch in Loader(source, batch_rows=100, seed=1, window_rows=1, ahead=1):
        most = max(most, pa.total_allocated_bytes() - before)
        del batch
    # Each has 8 kB: one in hand, one that waits, and one that is made in a few steps.
    assert most < 10 * 8192


def closed(loader: Loader) -> None:
    batches = iter(loader)
    next(batches)
    batches.close()
    batches.close()


def collected(loader: Loader) -> None:
    next(iter(loader))


def ended(loader: Loader) -> None:
    list(loader)


def interrupted(loader: Loader) -> None:
    for batch in loader:
        if batch.num_rows:
            raise KeyboardInterrupt


def left(loader: Loader) -> None:
    with loader:
        batches = iter(loader)
        next(batches)


def replaced(loader: Loader) -> None:
    batches = iter(loader)
    next(batches)
    loader.seek(3)


@pytest.mark.parametrize("end", [closed, collected, ended, interrupted, left, replaced])
def test_the_thread_ends_with_the_pass(end: Callable[[Loader], None]) -> None:
    loader = loader_of([5] * 20, lanes=2, ahead=3)
    try:
        end(loader)
    except KeyboardInterrupt:
        assert end is interrupted
    assert loading_threads() == []


@pytest.mark.parametrize("error", [DataLossError("it is gone."), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("ahead", [0, 2])
def test_an_error_of_a_read_ends_the_pass_and_the_loader_stays_where_it_was(
    error: BaseException, ahead: int
) -> None:
    def fail(index: int) -> None:
        if index == 2:
            raise error

    source = MemoryRows([3] * 4)
    source.before_read = fail
    loader = Loader(source, batch_rows=3, seed=None, ahead=ahead)
    batches = iter(loader)
    assert ids_of(islice(batches, 2)) == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(type(error)):
        next(batches)
    assert loading_threads() == []
    with pytest.raises(ValueError, match="by an error"):
        next(batches)  # It must not look like the end of the epoch.
    assert (loader.epoch, loader.batch) == (0, 2)
    source.before_read = _nothing
    assert ids_of(loader) == [[6, 7, 8], [9, 10, 11]]


INTERRUPTED = """
import os
import signal
import sys
from threading import main_thread
from spark_upsert.loader import Loader
from tests.support.loading import MemoryRows

# A shell that starts the tests in the background lets its children ignore interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
source = MemoryRows([3] * 100)

def is_waiting():
    return sys._current_frames()[main_thread().ident].f_code.co_name == "wait"

def read(index):
    if index == 1:
        while not is_waiting():
            os.sched_yield()
        print("reading", flush=True)
        sys.stdin.readline()

source.before_read = read
try:
    for batch in Loader(source, batch_rows=3, seed=None):
        pass
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.slow
def test_an_interrupt_while_it_waits_ends_the_process() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "reading\n"
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate("\n", timeout=PATIENCE_SECONDS)
    assert (out, child.returncode) == ("interrupted\n", 0)
