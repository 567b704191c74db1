"""P1 to P7 of streams: batch after batch, planned without Spark.

Plain functions, as those of `test_promises`, and for the same reason.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from spark_upsert.errors import DataLossError, OtherTableError
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.table.changelog.read import Deduplication
from spark_upsert.table.table import Table
from tests.promises.layouts import OF_SEEDS, ON_BOTH_LAYOUTS
from tests.support.model import Command
from tests.support.stores import BrokenError, Fault, FaultyStore, KilledError, Moment, Steps
from tests.support.streams import (
    Chained,
    Lived,
    Query,
    folded,
    ordered,
    position_in,
    stream_of,
    version_1,
    versions,
)
from tests.support.tables import (
    append,
    changes_of,
    rows_at,
)


def epoch_of(dice: random.Random) -> dict[int, int | None]:
    return {dice.randrange(12): dice.choice([None, 0, 1, 2]) for _ in range(dice.randrange(1, 8))}


def limits_of(dice: random.Random) -> dict[str, Any]:
    names = ["maxRowsPerTrigger", "maxEpochsPerTrigger"]
    limits = {name: dice.choice([1, 2, 5, 9]) for name in names if dice.random() < 0.7}
    return {**limits, "splits": dice.choice([1, 3])}


@OF_SEEDS
def test_p2_a_stream_folds_to_the_table_however_it_is_cut_and_stopped(seed: int) -> None:
    """Limits, restarts, writes and compactions between any two steps: batches repeat the same."""
    dice = random.Random(seed)
    lived = Lived()
    lived.write(*(epoch_of(dice) for _ in range(dice.randrange(1, 4))))
    start = dice.choice([{}, {"startingVersion": "earliest"}])
    query = lived.query(**start, **limits_of(dice))
    for _ in range(12):
        match dice.randrange(4):
            case 0:
                lived.write(epoch_of(dice))
            case 1:
                lived.table.compact(full=True)
            case _ if query.is_pending or query.plan():
                query.deliver()
        if dice.random() < 0.3:
            query.restart()
    query.drain()
    assert folded(query.rows) == lived.rows
    lived.write(epoch_of(dice))
    query.restart()
    for number, rows in enumerate(query.batches):
        assert ordered(query.replayed(number)) == ordered(rows), f"batch {number} was another one"


@pytest.mark.parametrize("mode", [mode.value for mode in Deduplication])
@OF_SEEDS
@pytest.mark.sweep(2)
def test_p2_a_table_that_takes_the_changes_of_another_is_that_table(seed: int, mode: str) -> None:
    """Whatever a batch holds, however its rows come to tasks, and as often as it is repeated."""
    dice = random.Random(seed)
    lived, copy = Lived(), Chained(dice, has_diff=dice.random() < 0.5)
    lived.write(*(epoch_of(dice) for _ in range(dice.randrange(1, 6))))
    start = dice.choice([{}, {"startingVersion": "earliest"}])
    updates = str(dice.random() < 0.5).lower()
    query = lived.query(**start, **limits_of(dice), computeUpdates=updates, deduplicationMode=mode)

    def deliver() -> None:
        number = len(query.batches)
        while copy.take(number, query.replayed(number)) and dice.random() < 0.3:
            query.restart()  # Behind the commit: the batch comes again.
        query.deliver()
        position = position_in(query.noted[-1])
        if not position.is_in_snapshot:
            assert copy.rows == rows_at(lived.table, position.upper - 1)

    for _ in range(12):
        match dice.randrange(4):
            case 0:
                lived.write(*(epoch_of(dice) for _ in range(dice.randrange(1, 5))))
            case 1:
                append(lived.table, [Command(1, dice.randrange(3)), Command(2, 3)], overwrite=True)
            case _ if query.is_pending or query.plan():
                deliver()
        if dice.random() < 0.3:
            query.restart()
    while query.is_pending or query.plan():
        deliver()
    assert copy.rows == lived.rows


@OF_SEEDS
def test_p3_an_epoch_is_whole_in_one_batch_of_a_stream(seed: int) -> None:
    dice = random.Random(seed)
    lived = Lived()
    lived.write(*(epoch_of(dice) for _ in range(6)))
    limits = limits_of(dice)
    query = lived.query(startingVersion="earliest", **limits)
    query.drain()
    shown = [version for batch in versions(query.batches) for version in batch]
    assert shown == sorted(set(shown)), f"an epoch is in two batches: {versions(query.batches)}"
    assert len(query.rows) == len(changes_of(lived.table, show=Deduplication.DROP_CARRYOVERS))
    for batch in query.batches:
        epochs = {row["_commit_version"] for row in batch}
        assert len(epochs) <= limits.get("maxEpochsPerTrigger", 99), "more epochs than allowed"
        if len(epochs) > 1:
            assert len(batch) <= limits.get("maxRowsPerTrigger", 99), "more rows than allowed"


@OF_SEEDS
def test_p6_a_stream_with_a_lease_goes_on_wherever_it_was_stopped(seed: int) -> None:
    """All that no lease holds is expired while the stream is down, the noted batch not read yet."""
    dice = random.Random(seed)
    lived = Lived()
    lived.write(*(epoch_of(dice) for _ in range(3)))
    query = lived.query(consumerId="sums", **limits_of(dice))
    for _ in range(8):
        is_noted = query.is_pending or query.plan()
        query.restart()
        lived.write(epoch_of(dice), epoch_of(dice))
        lived.table.compact(full=True)
        lived.expire()
        if is_noted:
            query.deliver()
    query.drain()
    assert folded(query.rows) == lived.rows


@OF_SEEDS
def test_p6_a_stream_with_a_lease_goes_on_whenever_the_past_is_expired(seed: int) -> None:
    """Between any two of its steps another process writes, compacts and expires all it may.

    Each life of the stream has other options, and one step that fails. It begins as the life says
    that plans its first batch.
    """
    dice = random.Random(seed)
    lived = Lived()
    at: dict[int, dict[int, int]] = {-1: {}}
    start: str | None = None

    def write() -> None:
        lived.write(epoch_of(dice))
        at[lived.table.log.head().version] = lived.rows

    def disturb() -> None:
        if dice.random() < disturbed:
            write()
            lived.table.compact(full=True)
            lived.expire(after_s=1)  # No step takes as long as the log stays whole.

    def started() -> Stream:
        nonlocal start
        given = {"splits": dice.randint(1, 3), "consumerId": "sums", **limits_of(dice)}
        # A first batch that is noted must be delivered with the start that it was planned with.
        wanted = start if query.is_pending else dice.choice([None, "latest", "earliest"])
        start = start if len(query.noted) > 1 else wanted
        given |= {} if wanted is None else {"startingVersion": wanted}
        kind, moment = dice.choice([KilledError, BrokenError]), dice.choice([*Moment])
        fault = Fault(dice.randrange(200), moment, kind) if disturbed else None
        store = FaultyStore(lived.store, Steps(fault, watch=disturb))
        return stream_of(Table(store, clock=lived.now), wall=lived.now, **given)

    for _ in range(3):
        write()
    disturbed = 0.15
    query = Query(started)
    for _ in range(4):
        try:
            if query.is_pending or query.plan():
                query.deliver()
        except (KilledError, BrokenError):
            query.restart()
        if dice.random() < 0.5:
            query.restart()
    disturbed = 0.0
    query.restart()
    query.drain()
    if start is None:
        assert folded(query.rows) == lived.rows
    elif len(query.noted) > 1:
        behind = max(each for each in at if each < position_in(query.noted[1]).origin)
        assert folded(query.rows, at[behind]) == lived.rows


@OF_SEEDS
def test_p6_a_checkpoint_of_an_earlier_release_is_gone_on_with(seed: int) -> None:
    dice = random.Random(seed)
    lived = Lived()
    lived.write(*(epoch_of(dice) for _ in range(3)))
    query = lived.query(**limits_of(dice))
    for _ in range(dice.randrange(1, 4)):
        if query.plan():
            query.deliver()
    query.noted = [version_1(text) for text in query.noted]
    query.restart()
    lived.write(epoch_of(dice))
    query.drain()
    assert folded(query.rows) == lived.rows


@ON_BOTH_LAYOUTS
def test_p5_changes_that_are_expired_are_not_passed_over_in_silence() -> None:
    lived = Lived()
    lived.write({1: 1}, {2: 2})
    query = lived.query()
    query.drain()
    lived.write({1: 3}, {3: 3})
    lived.expire()
    lived.write({4: 4})
    with pytest.raises(DataLossError):
        query.drain()


@pytest.mark.parametrize("seed", range(2))
def test_p1_a_stream_goes_on_only_in_the_table_that_it_knows(seed: int) -> None:
    lived = Lived()
    lived.write({1: 1}, {2: 2})
    query = lived.query()
    query.drain()
    if seed:
        query.restart()
    other = Lived()
    other.write({1: 5}, {2: 5}, {3: 5})
    lived.store.objects.clear()
    lived.store.objects.update(other.store.objects)
    lived.store.times.update(other.store.times)
    with pytest.raises(OtherTableError):
        query.drain()


@ON_BOTH_LAYOUTS
def test_p7_a_stream_that_is_to_take_what_there_is_comes_to_its_end() -> None:
    lived = Lived()
    lived.write({1: 1}, {2: 2}, {3: 3})
    query = lived.query(maxEpochsPerTrigger=1)
    query.stream.freeze()
    while query.plan():
        query.deliver()
        lived.write({1: 9})
        assert len(query.batches) <= 4, "it runs after the table for ever"
