"""Frontiers: the one copy of the rule about epochs."""

from __future__ import annotations

import itertools

import pytest

from spark_upsert.core.precedence import Epoch, Interval, SealDecision, decide_at_seal


def test_an_epoch_is_emitted_at_the_state_frontier_dropped_below_and_kept_beyond() -> None:
    for epoch, state, inputs in itertools.product(range(5), repeat=3):
        decision = decide_at_seal(Epoch(epoch), state_upper=Epoch(state), input_upper=Epoch(inputs))
        assert (decision is SealDecision.EMIT) == (epoch == state < inputs)
        assert (decision is SealDecision.DROP) == (epoch < state)


def test_an_interval_excludes_its_upper_and_may_be_empty() -> None:
    interval = Interval(lower=Epoch(2), upper=Epoch(4))
    assert [e for e in range(6) if Epoch(e) in interval] == [2, 3]
    assert Epoch(2) not in Interval(lower=Epoch(2), upper=Epoch(2))
    assert Interval.at(3) == Interval(lower=Epoch(3), upper=Epoch(4))
    assert repr(Interval.at(3)) == "[3, 4)"
    with pytest.raises(ValueError, match="upper 1 is before lower 2"):
        Interval(lower=Epoch(2), upper=Epoch(1))
