"""What back-pressure promises, on seeded random work: caps hold, nothing is lost, and all ends.

Plain functions of a seed, as those of `test_promises`, and for the same reason.
"""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import TableFullError, ThrottledError
from spark_upsert.scheduler.governor import SAMPLE_MS, SUSTAINED_SAMPLES, Governor, Sample
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.retention.lag import PressureReport, report
from spark_upsert.table.table import Table
from tests.support.caps import CONSUMERS, Action, Play, act
from tests.support.clocked import Now
from tests.support.seeds import seeds
from tests.support.stores import MemoryStore

SEEDS = seeds(3)
ROW = pa.table({"id": [1]})
COLUMNS = pa.schema({"id": pa.int64()})


def drawn(dice: random.Random) -> Action:
    actions: list[Action] = [
        ("append", dice.randint(0, 1), dice.randint(1, 3)),
        ("race", dice.randint(0, 25), dice.randint(1, 2)),
        ("advance", dice.choice(CONSUMERS), dice.randint(0, 3)),
    ]
    return dice.choice(actions)


@SEEDS
def test_p1_caps_are_never_exceeded_and_nothing_is_lost(seed: int) -> None:
    dice = random.Random(seed)
    for properties in (
        {"maxBacklogEpochs": str(dice.randint(1, 3))},
        {"maxBacklogBytes": str(dice.choice([1010, 2200, 4000]))},
    ):
        play = Play(properties)
        for _ in range(25):
            act(play, drawn(dice))
            play.require()


def test_p1_what_was_committed_is_done_although_there_is_no_room() -> None:
    table = Table(MemoryStore())
    caps = {"maxBacklogEpochs": "1", "onFull": "reject"}
    table.ensure(TableSchema.of(COLUMNS, keys=["id"]), caps)
    table.hold("reader", 0)
    table.upsert(ROW, transaction=Transaction(writer="w", number=0))
    assert table.upsert(ROW, transaction=Transaction(writer="w", number=0)) is None
    with pytest.raises(TableFullError):
        table.upsert(ROW, transaction=Transaction(writer="w", number=1))


def test_p1_a_consumer_that_died_holds_up_nobody_for_long() -> None:
    now = Now()
    table = Table(MemoryStore(), clock=now)
    table.ensure(TableSchema.of(COLUMNS, keys=["id"]), {"backpressure": "true"})
    said = PressureReport(
        consumer="reader", rung=4, pressure=1.0, reported_ms=int(now() * 1000), ttl_ms=1500
    )
    report(table.store, said)
    with pytest.raises(ThrottledError):
        table.upsert(ROW)
    now.advance(0.7)  # What was seen then still counts.
    with pytest.raises(ThrottledError):
        table.upsert(ROW)
    now.advance(0.8)
    assert table.upsert(ROW) is not None


@SEEDS
def test_p7_a_deferral_ends_when_the_pressure_does(seed: int) -> None:
    dice = random.Random(seed)
    governor, now_ms = Governor(target_ms=1000), 0
    for _ in range(20):
        for _ in range(SUSTAINED_SAMPLES + dice.randint(0, 5)):
            now_ms += SAMPLE_MS
            governor = governor.after_sample(Sample(busy=dice.uniform(0.81, 1)), now_ms)
        assert governor.is_deferring
        now_ms += SAMPLE_MS
        governor = governor.after_sample(Sample(busy=dice.uniform(0.6, 0.8)), now_ms)
        assert governor.is_deferring, "between the marks it stays"
        now_ms += SAMPLE_MS
        governor = governor.after_sample(Sample(busy=dice.uniform(0, 0.59)), now_ms)
        assert not governor.is_deferring
