"""Frontiers: the one copy of the rule about epochs."""

from __future__ import annotations

import itertools

import pytest

from spark_upsert.core.precedence import Epoch, Fate, Interval, fate_of


@pytest.mark.parametrize(
    ("epoch", "state_upper", "input_upper", "fate"),
    [
        pytest.param(2, 3, 6, Fate.DROP, id="an epoch that is durable already is dropped"),
        pytest.param(3, 3, 6, Fate.EMIT, id="the epoch at the state's frontier is emitted"),
        pytest.param(4, 3, 6, Fate.KEEP, id="an epoch beyond the state's frontier waits"),
        pytest.param(4, 4, 4, Fate.KEEP, id="equal frontiers are not enough to emit"),
        pytest.param(5, 10, 11, Fate.DROP, id="a lagging replacement drops what others wrote"),
        pytest.param(7, 10, 3, Fate.DROP, id="durable is durable, even beyond the input"),
        pytest.param(10, 10, 3, Fate.KEEP, id="an input that is behind emits nothing"),
        pytest.param(0, 0, 1, Fate.EMIT, id="the first epoch of all is emitted"),
    ],
)
def test_fate_of(epoch: int, state_upper: int, input_upper: int, fate: Fate) -> None:
    found = fate_of(Epoch(epoch), state_upper=Epoch(state_upper), input_upper=Epoch(input_upper))
    assert found is fate


def test_fate_of_emits_exactly_if_the_epoch_is_the_state_frontier_and_below_the_inputs() -> None:
    for epoch, state, inputs in itertools.product(range(5), repeat=3):
        fate = fate_of(Epoch(epoch), state_upper=Epoch(state), input_upper=Epoch(inputs))
        assert (fate is Fate.EMIT) == (epoch == state < inputs)
        assert (fate is Fate.DROP) == (epoch < state)


def test_an_epoch_is_emitted_once_while_the_state_advances() -> None:
    fates = [
        fate_of(Epoch(3), state_upper=Epoch(state), input_upper=Epoch(9)) for state in range(9)
    ]
    assert fates == [Fate.KEEP] * 3 + [Fate.EMIT] + [Fate.DROP] * 5


def test_an_interval_excludes_its_upper() -> None:
    interval = Interval(lower=Epoch(2), upper=Epoch(4))
    assert [e for e in range(6) if Epoch(e) in interval] == [2, 3]


def test_an_interval_may_be_empty() -> None:
    assert Epoch(2) not in Interval(lower=Epoch(2), upper=Epoch(2))


def test_an_interval_cannot_end_before_it_begins() -> None:
    with pytest.raises(ValueError, match="upper 1 is before lower 2"):
        Interval(lower=Epoch(2), upper=Epoch(1))


def test_the_interval_at_an_epoch_holds_just_that() -> None:
    assert Interval.at(3) == Interval(lower=Epoch(3), upper=Epoch(4))
    assert repr(Interval.at(3)) == "[3, 4)"
