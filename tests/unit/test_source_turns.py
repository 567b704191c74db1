"""How urgent inputs are: what is said of them, their own word, and who read them lately."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

import pytest

from spark_upsert.core.schema import Scope
from spark_upsert.errors import CorruptionError
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.scheduler.scheduler import Urgency
from spark_upsert.streams.inputs.inputs import Inputs
from spark_upsert.streams.inputs.table import TableInput
from spark_upsert.streams.planner.rate_limit import READ_TIME_REQUESTS_MAX, REST_MS, Urgencies
from spark_upsert.streams.reads.columns import read_columns
from spark_upsert.table.retention.leases import lease_path
from spark_upsert.table.table import Table
from tests.support.clocked import Now
from tests.support.stores import MemoryStore
from tests.support.streams import options_of
from tests.support.tables import schema_of


class Known:
    """An input that says how urgent it is, and counts who asks."""

    def __init__(self, priority: int | None = None, read_ms: int | None = None) -> None:
        self._priority = priority
        self.read_ms = read_ms
        self.asked = 0

    def priority(self) -> int | None:
        return self._priority

    def last_read_ms(self) -> int | None:
        self.asked += 1
        return self.read_ms


def urgencies(inputs: Mapping[str, Any], **more: str) -> Urgencies:
    named = {"inputs": ",".join(inputs), **{f"input.{name}.path": f"/{name}" for name in inputs}}
    query = ReadPlan.parse({**named, **more}).query
    return Urgencies(cast(Inputs, inputs), query)


def test_what_the_read_says_comes_before_what_a_table_says_and_before_who_read_it() -> None:
    inputs = {
        "a": Known(-5, 5),
        "b": Known(7, 5),
        "c": Known(read_ms=6),
        "d": object(),
        "e": Known(),
    }
    said = {"input.a.priority": "3", "input.d.priority": "4"}
    manual = {"a": Urgency(manual=3), "b": Urgency(manual=7), "d": Urgency(manual=4)}
    assert urgencies(inputs, **said).of(inputs, 10) == manual
    automatic = urgencies(inputs, autoPriority="true", **said)
    read = {"c": Urgency(read_ms=6), "e": Urgency()}
    assert automatic.of(inputs, 10) == manual | read
    asked = {name: each.asked for name, each in inputs.items() if isinstance(each, Known)}
    assert asked == {"a": 0, "b": 0, "c": 1, "e": 1}


@pytest.mark.parametrize(
    ("later_ms", "asked"),
    [
        pytest.param(0, 1, id="at once"),
        pytest.param(REST_MS - 1, 1, id="too soon"),
        pytest.param(REST_MS, 2, id="in time"),
        pytest.param(-1, 2, id="the clock went back"),
    ],
)
def test_an_input_is_asked_now_and_then(later_ms: int, asked: int) -> None:
    only = Known(read_ms=1)
    known = urgencies({"a": only}, autoPriority="true")
    known.of(["a"], 10**6)
    assert known.of(["a"], 10**6 + later_ms) == {"a": Urgency(read_ms=1)}
    assert only.asked == asked


def test_few_are_asked_at_once_and_all_in_turn() -> None:
    inputs = {
        f"t{number}": Known(read_ms=number) for number in range(2 * READ_TIME_REQUESTS_MAX + 1)
    }
    known = urgencies(inputs, autoPriority="true")
    counts = []
    for now_ms in range(4):
        known.of(inputs, now_ms)
        counts.append(sum(each.asked for each in inputs.values()))
    assert counts == [
        READ_TIME_REQUESTS_MAX,
        2 * READ_TIME_REQUESTS_MAX,
        2 * READ_TIME_REQUESTS_MAX + 1,
        2 * READ_TIME_REQUESTS_MAX + 1,
    ]
    later = known.of(inputs, 4)
    assert later == {name: Urgency(read_ms=each.read_ms) for name, each in inputs.items()}


def test_what_was_asked_of_very_many_is_forgotten() -> None:
    inputs = {f"t{number}": Known() for number in range(2_000)}
    known = urgencies(inputs, autoPriority="true")
    for first in range(0, 2_000, READ_TIME_REQUESTS_MAX):
        known.of(list(inputs)[first : first + READ_TIME_REQUESTS_MAX], 0)
    assert len(known._read_times) < 1_100


@pytest.fixture
def now() -> Now:
    return Now(1_000.0)


@pytest.fixture
def table(now: Now) -> Table:
    found = Table(MemoryStore(), clock=now)
    found.ensure(schema_of(Scope.TABLE))
    return found


def input_of(table: Table, **given: str) -> TableInput:
    options = options_of(**given)
    return TableInput(options, read_columns(table.log, options), table=table)


def test_a_table_was_read_when_a_lease_was_renewed(table: Table, now: Now) -> None:
    assert input_of(table).last_read_ms() is None
    table.hold("one", 0)
    now.advance(5)
    table.hold("other", 0)
    now.advance(5)
    table.hold("one", 0)
    assert input_of(table).last_read_ms() == 1_010_000
    assert input_of(table, consumerId="one").last_read_ms() == 1_005_000


def test_a_lease_that_is_damaged_is_told_and_stops_nothing(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    table.hold("one", 0)
    table.store.put(lease_path("one"), b"{")
    with pytest.raises(CorruptionError):
        input_of(table).last_read_ms()
    known = urgencies({"a": input_of(table)}, autoPriority="true")
    with caplog.at_level(logging.WARNING):
        assert known.of(["a"], 0) == {"a": Urgency()}
    assert "the consumers of an input are not known: input=a" in caplog.text
