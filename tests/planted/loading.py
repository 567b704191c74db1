"""Bugs in what a training loop gets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from spark_upsert.loader import file_rows, order, stretch, windows
from spark_upsert.loader.loader import EpochBatches, Loader
from spark_upsert.loader.order import EpochOrder, Window
from spark_upsert.loader.share import RankShare, Remainder
from spark_upsert.loader.stretch import LoaderSettings
from spark_upsert.table.entries.snapshot import Snapshot
from tests.planted.bug import Patch, bug, wrapped
from tests.promises import test_loader_promises as promises


@bug(
    "the rows that do not come out even are dealt to nobody",
    promises.test_p1_each_row_of_an_epoch_comes_once_over_all_ranks,
)
def _() -> Patch:
    def floored(original: Any, self: LoaderSettings, rows: int, rank: int) -> RankShare:
        found: RankShare = original(self, rows - rows % self.world, rank)
        return found

    return wrapped(LoaderSettings, "share", floored)


@bug(
    "the last batch of a lane is cut at the end of the lane before it",
    promises.test_p1_each_row_of_an_epoch_comes_once_over_all_ranks,
)
def _() -> Patch:
    def in_lanes_of_equal_length(self: RankShare, index: int) -> tuple[int, int]:
        turn, lane = divmod(index, self.lanes)
        first = self.first + (lane * (self.batches // self.lanes) + turn) * self.batch_rows
        return first, min(first + self.batch_rows, self.first + self.rows)

    return patch.object(RankShare, "batch", in_lanes_of_equal_length)


@bug(
    "a remainder is kept whatever is asked for",
    promises.test_p1_ranks_have_equally_many_whole_batches,
)
def _() -> Patch:
    def kept(original: Any, self: LoaderSettings, rows: int, rank: int) -> RankShare:
        found: RankShare = original(replace(self, remainder=Remainder.KEEP), rows, rank)
        return found

    return wrapped(LoaderSettings, "share", kept)


@bug(
    "a batch is counted when it is read, not when it is handed out",
    promises.test_p6_whoever_goes_on_gets_the_rest_and_nothing_twice,
)
def _() -> Patch:
    def early(original: Any, self: EpochBatches[Any, Any], *args: Any) -> None:
        original(self, *args)
        self._loader._handed_out()

    return wrapped(EpochBatches, "__init__", early)


@bug(
    "whoever goes on begins a batch too early",
    promises.test_p6_whoever_goes_on_gets_the_rest_and_nothing_twice,
)
def _() -> Patch:
    def before(original: Any, self: Loader, state: Any) -> None:
        original(self, state)
        self._batch -= self._batch % 2

    return wrapped(Loader, "load_state_dict", before)


@bug("all epochs have the same order", promises.test_p4_the_order_is_the_same_everywhere)
def _() -> Patch:
    def first(original: Any, self: EpochOrder, *args: Any, epoch: int, **how: Any) -> None:
        original(self, *args, epoch=0, **how)

    return wrapped(EpochOrder, "__init__", first)


@bug(
    "the rows of all windows are permuted alike", promises.test_p4_the_order_is_the_same_everywhere
)
def _() -> Patch:
    return wrapped(Window, "permutation", lambda original, self: original(replace(self, state=1)))


@bug(
    "random numbers are as good as equal",
    promises.test_p4_the_order_is_the_same_everywhere,
)
def _() -> Patch:
    def few(original: Any, state: int, count: int) -> Any:
        numbers, state = original(state, count)
        return numbers & np.uint64(1), state

    return wrapped(order, "raw_numbers", few)


@bug(
    "workers take the batches that others have",
    promises.test_p4_workers_in_turn_give_what_one_gives,
)
def _() -> Patch:
    def shifted(original: Any, *args: Any, **how: Any) -> Any:
        *before, due = args
        return original(*before, range(due.start // 2 * 2, due.stop, due.step), **how)

    return wrapped(stretch, "batches", shifted)


@bug(
    "the rows of a split come as its files have them",
    promises.test_p4_the_rows_of_a_version_do_not_depend_on_its_files,
)
def _() -> Patch:
    def as_read(original: Any, self: Snapshot, columns: Any, *, hash_range: Any) -> Any:
        return pa.Table.from_batches(self.read(columns, hash_range=hash_range))

    return wrapped(Snapshot, "by_hash", as_read)


@bug(
    "a file is the same one as long as its name is",
    promises.test_p5_a_file_that_is_another_one_is_never_read_as_if_it_were_the_same,
)
def _() -> Patch:
    def gone_only(original: Any, self: Any, planned: Any, found: Any) -> None:
        original(self, planned, None if found is None else planned)

    return wrapped(file_rows._Reader, "require_same", gone_only)


@bug(
    "a checkpoint is believed whatever the settings are",
    promises.test_p5_a_checkpoint_of_other_settings_is_refused,
)
def _() -> Patch:
    return patch.object(LoaderSettings, "to_json", lambda self: {})


@bug(
    "a pass that has failed looks as if it had come to its end",
    promises.test_p5_an_error_is_not_the_end_of_the_epoch,
)
def _() -> Patch:
    return patch.object(EpochBatches, "close", lambda self: None)


@bug(
    "windows are read as fast as the disk gives them",
    promises.test_p7_no_more_is_read_ahead_than_may_wait_and_no_thread_is_left,
)
def _() -> Patch:
    def all_of_them(original: Any, read: Any, items: Any, *, ahead: int) -> Any:
        return iter_and_close([(item, read(item)) for item in items])

    return wrapped(windows, "read_ahead", all_of_them)


def iter_and_close(items: Any) -> Any:
    """Yield items, as a generator that can be closed."""
    yield from items


@bug(
    "a thread is left to itself",
    promises.test_p7_no_more_is_read_ahead_than_may_wait_and_no_thread_is_left,
)
def _() -> Patch:
    kept: list[ThreadPoolExecutor] = []

    def forget(self: ThreadPoolExecutor, *args: Any, **how: Any) -> None:
        kept.append(self)

    class Left(ThreadPoolExecutor):
        shutdown = forget

    return patch.object(windows, "ThreadPoolExecutor", Left)
