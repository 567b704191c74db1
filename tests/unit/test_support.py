"""The doubles are tested, too: a model that is wrong proves nothing."""

from __future__ import annotations

from collections import deque

import pytest

from spark_upsert.core.schema import Scope
from tests.support.model import Change, Command, Model, fold, visible
from tests.support.stores import (
    BrokenError,
    Fault,
    FaultyStore,
    KilledError,
    MemoryStore,
    Moment,
    Steps,
)


def test_a_fault_before_its_effect_leaves_nothing() -> None:
    store = MemoryStore()
    faulty = FaultyStore(store, Steps(Fault(1, Moment.BEFORE, BrokenError)))
    faulty.put("a", b"1")
    with pytest.raises(BrokenError):
        faulty.put("b", b"2")
    assert set(store.objects) == {"a"}


def test_a_fault_after_its_effect_leaves_the_effect() -> None:
    store = MemoryStore()
    faulty = FaultyStore(store, Steps(Fault(0, Moment.AFTER, BrokenError)))
    with pytest.raises(BrokenError):
        faulty.put("a", b"1")
    assert store.read("a") == b"1"


def test_a_killed_process_takes_no_further_step() -> None:
    faulty = FaultyStore(MemoryStore(), Steps(Fault(0, Moment.BEFORE)))
    for _ in range(2):
        with pytest.raises(KilledError):
            faulty.put("a", b"1")


def test_a_killed_sink_leaves_a_torn_file() -> None:
    store = MemoryStore()
    faulty = FaultyStore(store, Steps(Fault(2, Moment.BEFORE)))
    with pytest.raises(KilledError), faulty.create("a") as sink:
        deque(map(sink.write, [b"12", b"34"]), maxlen=0)
    assert store.read("a") == b"12"


def test_a_sink_with_an_error_leaves_no_file() -> None:
    store = MemoryStore()
    faulty = FaultyStore(store, Steps(Fault(2, Moment.BEFORE, BrokenError)))
    with pytest.raises(BrokenError), faulty.create("a") as sink:
        sink.write(b"12")
    assert not store.objects


@pytest.mark.parametrize(
    ("scope", "value"),
    [
        pytest.param(Scope.TABLE, 1, id="the table scope keeps the greater order key"),
        pytest.param(Scope.EPOCH, 2, id="the epoch scope takes the later epoch"),
        pytest.param(Scope.ARRIVAL, 2, id="the arrival scope takes the later epoch"),
    ],
)
def test_the_model_follows_the_scope(scope: Scope, value: int) -> None:
    model = Model(scope)
    model.append([Command("k", 1, 9)])
    model.append([Command("k", 2, 3)])
    assert model.rows() == {"k": value}


def test_the_fold_refuses_a_retraction_of_an_absent_row() -> None:
    with pytest.raises(AssertionError):
        fold([Change("delete", "k", 1, 1)])


def test_the_fold_refuses_a_second_row_of_a_key() -> None:
    with pytest.raises(AssertionError):
        fold([Change("insert", "k", 1, 1), Change("insert", "k", 2, 2)])


def test_unchanged_pairs_are_not_visible() -> None:
    model = Model(Scope.ARRIVAL)
    model.append([Command("k", 1)])
    changes, tally = model.append([Command("k", 1)])
    assert len(changes) == 2
    assert visible(changes) == []
    assert tally.updates == 1
