"""Bugs in merges: exact orders, threads, spills, documents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from spark_upsert.core import input_order
from spark_upsert.merge import merged
from spark_upsert.merge.merged import Documents
from spark_upsert.merge.readers import Channel, MergeReaders
from spark_upsert.merge.spill import MemoryPressure, SpillingStore
from tests.planted.bug import Patch, bug, wrapped
from tests.promises import test_merge_promises as merges


@bug(
    "the cursor of a round robin stays where it was",
    merges.test_p4_an_exact_order_does_not_depend_on_how_it_is_cut,
)
def _() -> Patch:
    def stay(original: Any, order: input_order.RoundRobin, counts: Any, rows: int) -> Any:
        return original(order, counts, rows)[0], order

    return wrapped(input_order, "_round_robin", stay)


@bug(
    "a seeded order begins anew at each cut",
    merges.test_p4_an_exact_order_does_not_depend_on_how_it_is_cut,
)
def _() -> Patch:
    def lose(original: Any, order: input_order.Seeded, counts: Any, rows: int) -> Any:
        return original(order, counts, rows)[0], order

    return wrapped(input_order, "_seeded", lose)


@bug(
    "where one input is left nothing is drawn",
    merges.test_p4_an_exact_order_is_the_one_that_is_told_row_by_row,
)
def _() -> Patch:
    def spare(original: Any, state: int, bound: int, count: int) -> Any:
        drawn, behind = original(state, bound, count)
        return drawn, state if bound == 1 else behind

    return wrapped(input_order, "draws", spare)


@bug(
    "an input that runs dry is drawn until the end of a block",
    merges.test_p4_an_exact_order_is_the_one_that_is_told_row_by_row,
)
def _() -> Patch:
    return patch.object(input_order, "_until_one_is_dry", lambda drawn, given, left: len(drawn))


@bug(
    "a low number is not drawn again",
    merges.test_p4_draws_below_a_high_bound_are_even,
)
def _() -> Patch:
    def keep(original: Any, state: int, bound: int, count: int) -> Any:
        numbers, behind = input_order.raw_numbers(state, count)
        return input_order._product(numbers, np.uint64(bound))[0], behind

    return wrapped(input_order, "draws", keep)


@bug(
    "rows that are arranged lie as their inputs do",
    merges.test_p1_rows_that_are_arranged_come_once_and_in_their_order,
)
def _() -> Patch:
    return patch.object(merged, "_output_indices", lambda picks: np.arange(len(picks)))


@bug(
    "a full channel takes more",
    merges.test_p7_what_waits_is_bounded_however_threads_run,
)
def _() -> Patch:
    return patch.object(Channel, "has_room", lambda self, item: True)


@bug(
    "who takes wakes no reader",
    merges.test_p1_all_rows_come_out_however_threads_run,
)
def _() -> Patch:
    def take(self: MergeReaders, reader: Any) -> Any:
        item = reader.channel.take()
        if not reader.channel.is_empty:
            self._ready.append(reader)
        self._finish_if_drained(reader)
        return item

    return patch.object(MergeReaders, "_take", take)


@bug(
    "an input that ends wakes nobody",
    merges.test_p1_all_rows_come_out_however_threads_run,
)
def _() -> Patch:
    def finish(self: MergeReaders, reader: Any) -> None:
        if reader.channel.is_drained:
            self._finished.add(reader.name)
            del self._open[reader.name]
            self._unfinished -= 1

    return patch.object(MergeReaders, "_finish_if_drained", finish)


@bug(
    "the next input is opened before the last one was taken",
    merges.test_p7_what_waits_is_bounded_however_threads_run,
)
def _() -> Patch:
    return patch.object(MergeReaders, "_wait_until_drained", lambda self, reader: None)


@bug(
    "an input that is awaited is paused like any other",
    merges.test_p1_all_rows_come_out_however_threads_run,
)
def _() -> Patch:
    return patch.object(MemoryPressure, "may_read", lambda self, *, is_awaited: not self.is_paused)


@bug(
    "an end does not wake those who wait for room",
    merges.test_p6_a_merge_that_fails_or_is_closed_leaves_no_thread,
)
def _() -> Patch:
    def end(self: MergeReaders) -> None:
        self._is_closed = True
        self._something.notify_all()

    return patch.object(MergeReaders, "_end", end)


@bug(
    "a batch that was spilled stays in memory as well",
    merges.test_p1_what_inputs_spill_comes_back,
)
def _() -> Patch:
    def spill_twice(original: Any, self: SpillingStore, needed: int) -> None:
        before = {name: list(kept.in_memory) for name, kept in self._kept.items()}
        original(self, needed)
        for name, batches in before.items():
            self._kept[name].in_memory.extendleft(batches[:1])

    return wrapped(SpillingStore, "_spill", spill_twice)


@bug(
    "a spill that failed leaves its file",
    merges.test_p6_a_spill_that_fails_loses_nothing_and_leaves_no_file,
)
def _() -> Patch:
    return patch.object(Path, "unlink", lambda self, missing_ok=False: None)


@bug(
    "a document is closed when one input has closed it",
    merges.test_p3_a_document_is_closed_once_and_when_all_inputs_have_closed_it,
)
def _() -> Patch:
    def closings(self: Any) -> Iterator[Any]:
        for document in self._documents.values():
            yield document.closings[0][1]

    return patch.object(Documents, "closings", closings)
