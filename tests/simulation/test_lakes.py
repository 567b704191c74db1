"""Dozens of seeded lakes, and proof that they notice what is broken."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.errors import UpsertFlowError
from spark_upsert.options.inputs import DiscoveryOptions, InputOptions
from spark_upsert.options.read import Merge
from spark_upsert.streams.inputs import table
from spark_upsert.streams.inputs import table as table_input
from spark_upsert.streams.inputs.discovered import Discovery, FoundInputs
from spark_upsert.streams.offsets import delta as compact_offsets
from spark_upsert.streams.offsets.delta import Bases, CompactOffsets, difference
from spark_upsert.streams.offsets.offset import Position
from spark_upsert.streams.planner import ordered, rate_limit, stream
from spark_upsert.streams.planner.poller import Poller
from spark_upsert.streams.planner.rate_limit import Urgencies
from spark_upsert.streams.reads import columns
from spark_upsert.table.changelog.read import Deduplication
from spark_upsert.table.log.manifest import Kind
from spark_upsert.table.log.snapshot import LogSnapshot
from spark_upsert.table.state.reduce import Counters
from tests.planted import BUGS
from tests.simulation import bugs_of_pressure as of_pressure
from tests.simulation.lake import Lake, live
from tests.simulation.lake_options import Drawn

LAKES = int(os.environ.get("SIMULATION_LAKES", "48"))
"""The long form lives more of them."""

SLICES = 12

LOOKED_AT = range(64)
"""Lakes of which the trace is looked at."""


@cache
def life(seed: int) -> tuple[str, ...]:
    """Return the trace of a lake."""
    return tuple(live(seed).trace)


@pytest.mark.parametrize("index", range(SLICES))
def test_every_lake_keeps_every_promise(index: int) -> None:
    for seed in range(index * LAKES // SLICES, (index + 1) * LAKES // SLICES):
        life(seed)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    assert tuple(live(seed).trace) == life(seed)


def test_lakes_are_of_every_kind() -> None:
    lakes = [Lake(seed).options for seed in range(200)]
    for merge in Merge:
        for is_found in (False, True):
            assert any(
                each.merge is merge and (each.pattern is not None) is is_found for each in lakes
            )
    asked = [each.of_query() for each in lakes]
    for name in (
        "autoPriority",
        "columns",
        "computeUpdates",
        "consumerId",
        "ignoreDeletes",
        "interleaveSeed",
        "latencyTarget",
        "maxBytesPerTrigger",
        "maxEpochsPerTrigger",
        "maxRowsPerTrigger",
        "minRowsPerTrigger",
        "offsetsPath",
        "splits",
        "startingBoundInclusive",
        "startingTimestamp",
        "startingVersion",
    ):
        assert any(name in each for each in asked), f"no lake says {name}"
    for name in ("deduplicationMode", "failOnDataLoss", "mergeSchema", "readChangeFeed"):
        assert len({each[name] for each in asked}) > 1, f"all lakes say {name} alike"


def test_lives_of_one_lake_read_by_other_options() -> None:
    changed: set[str] = set()
    for seed in LOOKED_AT:
        lives = [line for line in life(seed) if line.startswith("the next life reads by ")]
        told = [set(line.removeprefix("the next life reads by ").split(", ")) for line in lives]
        for one, other in pairwise(told):
            changed |= {each.partition("=")[0] for each in one ^ other}
    for name in (
        "columns",
        "computeUpdates",
        "consumerId",
        "consumerTtl",
        "deduplicationMode",
        "ignoreDeletes",
        "maxBytesPerTrigger",
        "maxEpochsPerTrigger",
        "maxRowsPerTrigger",
        "parallelism",
        "readChangeFeed",
        "splits",
    ):
        assert name in changed, f"no lake has changed '{name}'"


def test_much_happens_in_lakes() -> None:
    text = "\n".join(line for seed in LOOKED_AT for line in life(seed))
    for event in (
        "dies by KilledError",
        "dies by BrokenError",
        "ends by OptionError",
        "ends by SchemaError",
        "is replayed",
        "is gone",
        "is back",
        "is made anew",
        "is named no more",
        "is named again",
        "is restored",
        "times, late",
        "is expired to",
        "'note'",
        "t2 is made",
        "refuses: TABLE_FULL by lake",
        "refuses: TABLE_FULL by other",
        "refuses: BATCH_TOO_LARGE",
        "refuses: THROTTLED by lake",
        "refuses: THROTTLED by other",
    ):
        assert event in text, f"no lake saw '{event}'"


# -- planted bugs --------------------------------------------------------------------------


def wrapped(owner: Any, name: str, around: Any) -> AbstractContextManager[Any]:
    original = getattr(owner, name)

    def replacement(*args: Any, **how: Any) -> Any:
        return around(original, *args, **how)

    return patch.object(owner, name, replacement)


def base_behind_the_offset() -> AbstractContextManager[Any]:
    def write(original: Any, self: Bases, stream: str, number: int, positions: Any) -> Any:
        store, self._store = self._store, _Nowhere()  # type: ignore[assignment]
        try:
            return original(self, stream, number, positions)
        finally:
            self._store = store

    return wrapped(Bases, "write", write)


class _Nowhere:
    """A store that keeps nothing."""

    url = "nowhere"

    def prepare(self, folder: str) -> None:
        """Do nothing."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        return True


def delta_without_an_input() -> AbstractContextManager[Any]:
    def leave_out(base: Mapping[str, Position], positions: Mapping[str, Position]) -> Any:
        found = difference(base, positions)
        return dict(sorted(found.items())[1:])

    return patch.object(compact_offsets, "difference", leave_out)


def cursor_in_memory() -> AbstractContextManager[Any]:
    def forget(original: Any, self: Any, *args: Any) -> Any:
        return replace(original(self, *args), order=self._first)

    return wrapped(ordered.ExactOrder, "_before", forget)


def turn_forgotten() -> AbstractContextManager[Any]:
    def forget(backlogs: Any, limits: Any, state: Any, **how: Any) -> Any:
        return rate_limit.plan_limited_batch(backlogs, limits, {}, **how)

    return patch.object(stream, "plan_limited_batch", forget)


def found_input_left_out() -> AbstractContextManager[Any]:
    def leave_out(original: Any, self: FoundInputs) -> Any:
        heads = original(self)
        return {name: heads[name] for name in sorted(heads)[:2]}

    return wrapped(FoundInputs, "read_heads", leave_out)


def news_not_told() -> AbstractContextManager[Any]:
    def forget(original: Any, self: Poller, name: str, polled: Any) -> None:
        original(self, name, polled)
        self._moved.pop(name, None)

    return wrapped(Poller, "_record_poll", forget)


def nobody_waits() -> AbstractContextManager[Any]:
    return patch.object(Poller, "wait_for_news", lambda self, *_: bool(self._moved))


def bases_removed_early() -> AbstractContextManager[Any]:
    def commit(original: Any, self: CompactOffsets, end: Any) -> None:
        if "bases" in end:
            end = {**end, "bases": end["bases"][-1:], "number": end["number"] + 1}
        original(self, end)

    return wrapped(CompactOffsets, "commit", commit)


def limit_forgotten(name: str) -> Callable[[], AbstractContextManager[Any]]:
    def plant() -> AbstractContextManager[Any]:
        def forget(original: Any, options: Any) -> Any:
            return replace(original(options), **{name: None})

        return wrapped(rate_limit.Limits, "of", forget)

    return plant


def start_of_all() -> AbstractContextManager[Any]:
    def same(original: Any, self: InputOptions) -> Any:
        said = {name: t for name, t in self.shared.items() if name.startswith("starting")}
        own = {name: t for name, t in original(self).items() if not name.startswith("starting")}
        return {**own, **said}

    return wrapped(InputOptions, "_merged", same)


def bound_taken_along() -> AbstractContextManager[Any]:
    def along(original: Any, log: Any, *, is_inclusive: bool = True, **how: Any) -> Any:
        return original(log, is_inclusive=True, **how)

    return wrapped(table_input, "resolve_starting_version", along)


def time_begins_late() -> AbstractContextManager[Any]:
    return wrapped(LogSnapshot, "version_at", lambda original, *args: original(*args) + 1)


def joins_at_latest() -> AbstractContextManager[Any]:
    def told(original: Any, self: DiscoveryOptions, name: str, *, joins: bool = False) -> Any:
        return original(self, name)

    return wrapped(DiscoveryOptions, "input_texts", told)


def turn_by_number() -> AbstractContextManager[Any]:
    return patch.object(ordered, "_adapt_order", lambda order, before, after: order)


def gone_input_in_base() -> AbstractContextManager[Any]:
    def keep(base: Mapping[str, Position], positions: Mapping[str, Position]) -> Any:
        return {n: each for n, each in difference(base, positions).items() if each is not None}

    return patch.object(compact_offsets, "difference", keep)


def more_is_lost() -> AbstractContextManager[Any]:
    def skip(original: Any, newest: Any, lower: int, **how: Any) -> int:
        first: int = original(newest, lower, **how)
        return first if first == lower else min(first + 1, newest.upper)

    return wrapped(table_input, "readable_from", skip)


def narrow_is_null() -> AbstractContextManager[Any]:
    def column(original: Any, batch: pa.RecordBatch, field: pa.Field) -> Any:
        is_same = field.name in batch.schema.names and batch[field.name].type == field.type
        return batch[field.name] if is_same else pa.nulls(len(batch), field.type)

    return wrapped(columns, "_column", column)


def shared_columns_left_behind() -> AbstractContextManager[Any]:
    def travel(original: Any, self: stream.Stream) -> Any:
        return {**original(self), "_columns": None}

    return wrapped(stream.Stream, "__getstate__", travel)


def counters_believed() -> AbstractContextManager[Any]:
    def known(commit: Any, options: Any) -> int:
        return Counters.from_json(commit.counters).output_count if commit.is_epoch else 0

    return patch.object(table, "_known_rows", known)


def one_folder_of_a_level() -> AbstractContextManager[Any]:
    def first(original: Any, self: Discovery, folders: Any, part: str) -> Any:
        return original(self, folders[:1], part)

    return wrapped(Discovery, "_next", first)


def priorities_ignored() -> AbstractContextManager[Any]:
    return patch.object(Urgencies, "of", lambda self, *of: {})


def compaction_shown() -> AbstractContextManager[Any]:
    def latest_rows(original: Any, log: Any, options: Any, lower: int, upper: int) -> Any:
        found = original(log, options, lower, upper)
        kinds = {log.commit(version).kind for version in range(lower, upper)}
        return [] if Kind.COMPACT in kinds else found

    return wrapped(table_input, "changes_splits", latest_rows)


def old_bug(name: str) -> Callable[[], AbstractContextManager[Any]]:
    """Return a bug that breaks a promise, too."""
    [planted] = [each for each in BUGS if each.name == name]
    return planted.plant


@dataclass(frozen=True)
class Planted:
    """A bug, and the lakes that can meet it."""

    name: str
    plant: Callable[[], AbstractContextManager[Any]]
    where: Callable[[Drawn], bool]
    first: int = 0
    """The lake to begin with: one that meets it, where the first few do not."""

    def __str__(self) -> str:
        return self.name


def with_priorities(how: Drawn) -> bool:
    return how.has_priorities and how.start != {} and how.rows_max is not None


def is_fair(how: Drawn) -> bool:
    """Return whether inputs have to be served in turn, one at a time."""
    return not how.is_exact and how.rows_max == 1 and bool(how.start) and not how.has_priorities


def anywhere(how: Drawn) -> bool:
    return True


def with_caps(how: Drawn) -> bool:
    return how.is_pressed and how.has_lease


def that_waits(how: Drawn) -> bool:
    return how.rows_min is not None and how.rows_min > 1


def in_turns(how: Drawn) -> bool:
    return how.merge is Merge.ROUND_ROBIN


def live_with(**limits: Any) -> Callable[[Drawn], bool]:
    """Return what finds lakes in which rows come as they are ready."""
    names = [f"max{name}PerTrigger" for name in limits]
    return lambda how: not how.is_exact and all(how.limits[name] for name in names)


def in_levels(how: Drawn) -> bool:
    return how.pattern == "*/t?"


def that_may_lose(how: Drawn) -> bool:
    return how.is_lenient and not how.has_lease


def with_net_changes(how: Drawn) -> bool:
    return how.mode is Deduplication.NET_CHANGES


def that_may_be_unnamed(how: Drawn) -> bool:
    return how.pattern is None and how.has_offsets_path


def exact_and_named(how: Drawn) -> bool:
    return how.is_exact and how.pattern is None


PLANTED = [
    Planted("a base is not durable before its offset is known", base_behind_the_offset, anywhere),
    Planted("a delta omits an input", delta_without_an_input, anywhere),
    Planted("the cursor of an order is not in the offset", cursor_in_memory, anywhere, first=17),
    Planted("whose turn it is is forgotten", turn_forgotten, is_fair),
    Planted(
        "a table that is found is left out in silence", found_input_left_out, anywhere, first=5
    ),
    Planted("a head that was seen to move is not told", news_not_told, anywhere),
    Planted("nobody waits for a look behind the question", nobody_waits, anywhere),
    Planted("a base is removed before its batches are done", bases_removed_early, anywhere),
    Planted(
        "an input that is gone stays in the base",
        gone_input_in_base,
        that_may_be_unnamed,
        first=110,
    ),
    Planted("bytes are not limited", limit_forgotten("bytes"), live_with(Bytes=True)),
    Planted("epochs are not limited", limit_forgotten("epochs"), live_with(Epochs=True), first=32),
    Planted("all inputs begin where the first is told to", start_of_all, anywhere),
    Planted("a bound that is left out is taken along", bound_taken_along, anywhere),
    Planted("a time means the version behind it", time_begins_late, anywhere),
    Planted("a table that joins begins with what comes", joins_at_latest, anywhere, first=6),
    Planted("a turn goes by number whoever is gone", turn_by_number, in_turns, first=508),
    Planted("a version too many is given up", more_is_lost, that_may_lose, first=88),
    Planted("a narrower column is null", narrow_is_null, anywhere),
    Planted("tasks do not know the shared columns", shared_columns_left_behind, anywhere, first=5),
    Planted(
        "counters of restores and overwrites are believed",
        counters_believed,
        exact_and_named,
        first=26,
    ),
    Planted("one folder of a level is looked into", one_folder_of_a_level, in_levels),
    Planted("priorities are ignored", priorities_ignored, with_priorities),
    Planted("a batch with a compaction in it is empty", compaction_shown, anywhere, first=5),
    Planted("a fresh writer counts only what comes", of_pressure.caps_forgotten, with_caps),
    Planted(
        "a write is refused behind its commit", of_pressure.refused_behind_its_commit, with_caps
    ),
    Planted("who is to be rejected waits", of_pressure.reject_waits, with_caps, first=10),
    Planted("who passes by heeds pressure", of_pressure.everybody_heeds, with_caps),
    Planted("a damaged report hides the others", of_pressure.reports_hidden, with_caps, 219),
    Planted("pressure is not taken back", of_pressure.never_taken_back, with_caps),
    Planted("a restart forgets that it fell behind", of_pressure.forgotten_at_a_restart, anywhere),
    Planted(
        "who has read all makes room with the next batch",
        of_pressure.room_with_the_next_batch,
        with_caps,
        first=303,
    ),
    Planted("a batch waits for rows for ever", of_pressure.rows_held_for_ever, that_waits),
    Planted("no batch waits for rows", of_pressure.no_debounce, that_waits),
    *(
        Planted(name, old_bug(name), where, first)
        for name, where, first in (
            ("a delete in a change feed is passed over", lambda how: how.is_feed, 0),
            ("a replay looks at the head", anywhere, 0),
            ("an input is removed in silence", anywhere, 14),
            ("an unchanged value is shown as an update", anywhere, 15),
            ("changes that are expired are passed over", lambda how: not how.has_lease, 33),
            ("a stream does not ask whose table it is", anywhere, 0),
            ("net changes retract the row before the last one", with_net_changes, 0),
            ("rows of an epoch that are delivered come again", anywhere, 0),
            ("the lease is taken behind the offset", anywhere, 0),
            ("the lease moves to where a batch ends while it is read", anywhere, 21),
            ("a cap lets one more in", with_caps, 0),
            ("caps are judged before a write is staged, and not at its commit", with_caps, 0),
            ("the consumer that is ahead counts", with_caps, 0),
            ("what a refused write has staged stays", with_caps, 0),
            ("room is asked for before the transaction is", with_caps, 0),
            ("pressure that has expired is obeyed", with_caps, 0),
        )
    ),
]


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_a_bug_of_streams_over_many_inputs_is_caught(planted: Planted) -> None:
    def look() -> None:
        for seed in (*range(planted.first, 600), *range(planted.first)):
            if planted.where(Lake(seed).options):
                live(seed)

    with planted.plant(), pytest.raises((AssertionError, UpsertFlowError)):
        look()
