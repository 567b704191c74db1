"""Calls of several threads: who leads, who joins, who waits for whom, and what each is told."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any
from unittest.mock import patch

import pytest

from spark_upsert.core import threads as shared_calls
from spark_upsert.core.threads import SLICE_S, SharedCalls
from spark_upsert.errors import ContentionError, OptionError
from tests.support.rounds import Gate
from tests.support.waiting import no_thread_is_left, passed


class Rounds:
    """Carries calls out by writing them down."""

    def __init__(self, **how: Any) -> None:
        self.seen: list[list[int]] = []
        self.waits: list[float] = []
        self.now_s = 0.0
        how = {"wait": self.wait, "clock": lambda: self.now_s, **how}
        self.calls: SharedCalls[int, int] = SharedCalls(self.carry_out, **how)

    def carry_out(self, calls: Sequence[int]) -> list[int]:
        self.seen.append(list(calls))
        if 13 in calls:
            raise OptionError.unknown("thirteen", ["twelve"])
        if 66 in calls:
            raise KeyboardInterrupt
        return [call * 10 for call in calls]

    def wait(self, arrived: threading.Condition, seconds: float) -> bool:
        """Nobody comes while a leader waits."""
        self.waits.append(seconds)
        return False

    def meet(self, first: int, *others: int) -> list[Any]:
        call = self.calls.call
        return Gate(self.calls).meet(partial(call, first), [partial(call, n) for n in others])


def test_who_comes_alone_is_served_at_once_and_waits_for_nobody() -> None:
    rounds = Rounds(window_s=lambda: pytest.fail("a lone caller has no window"))
    assert [rounds.calls.call(1), rounds.calls.call(2)] == [10, 20]
    assert (rounds.seen, rounds.waits) == ([[1], [2]], [])


def test_who_waits_behind_a_round_shares_the_next_one_in_the_order_of_coming() -> None:
    rounds = Rounds()
    assert rounds.meet(1, 2, 3, 4) == [10, 20, 30, 40]
    assert rounds.seen == [[1], [2, 3, 4]]


def test_a_leader_waits_until_nobody_came_for_a_slice_but_not_alone() -> None:
    rounds = Rounds(window_s=lambda: 0.010)
    assert rounds.meet(1, 2) == [10, 20]
    assert rounds.waits == []
    rounds.meet(1, 2, 3)
    assert rounds.waits == [SLICE_S]


def test_a_leader_waits_no_longer_than_its_window() -> None:
    def came(arrived: threading.Condition, seconds: float) -> bool:
        rounds.waits.append(seconds)
        rounds.now_s += 0.0004
        return True

    rounds = Rounds(window_s=lambda: 0.001, wait=came)
    rounds.meet(1, 2, 3)
    assert rounds.waits == pytest.approx([SLICE_S, SLICE_S, 0.0002])


def test_who_comes_within_the_window_joins_the_round() -> None:
    late = threading.Event()
    told: list[int] = []

    def wait(arrived: threading.Condition, seconds: float) -> bool:
        if late.is_set():
            return False
        late.set()
        threads.append(threading.Thread(target=lambda: told.append(rounds.calls.call(9))))
        threads[-1].start()
        assert threading.Condition.wait_for(
            arrived, lambda: rounds.calls.waiting_count == 3, timeout=240
        )
        return True

    threads: list[threading.Thread] = []
    rounds = Rounds(window_s=lambda: 1.0, wait=wait)
    rounds.meet(1, 2, 3)
    threads[0].join(240)
    assert rounds.seen == [[1], [2, 3, 9]]
    assert told == [90]


def test_a_round_ends_before_a_call_that_does_not_join() -> None:
    rounds = Rounds(joins=lambda calls, other: other % 2 == calls[0] % 2)
    assert rounds.meet(1, 2, 4, 5, 6) == [10, 20, 40, 50, 60]
    assert rounds.seen == [[1], [2, 4], [5], [6]]


def test_an_error_of_a_round_is_told_to_each_as_an_error_of_its_own() -> None:
    rounds = Rounds()
    first, *others = rounds.meet(1, 12, 13, 14)
    assert first == 10
    assert [type(error) for error in others] == [OptionError] * 3
    assert len({id(error) for error in others}) == 3
    assert len({str(error) for error in others}) == 1
    assert rounds.calls.call(5) == 50, "the next round is not disturbed"


def test_an_interrupted_leader_does_not_leave_the_others_waiting() -> None:
    rounds = Rounds()
    first, second, third, fourth = rounds.meet(1, 66, 67, 68)
    assert first == 10
    assert isinstance(second, KeyboardInterrupt)
    for other in (third, fourth):
        assert isinstance(other, ContentionError)
        assert "interrupted (KeyboardInterrupt)" in str(other)
    assert rounds.calls.call(5) == 50


def test_a_leader_that_is_interrupted_while_it_waits_for_more_passes_on() -> None:
    interrupted: list[int] = []

    def wait(arrived: threading.Condition, seconds: float) -> bool:
        interrupted.append(1)
        if len(interrupted) == 1:
            raise KeyboardInterrupt
        return False

    rounds = Rounds(wait=wait)
    first, second, third, fourth = rounds.meet(1, 2, 3, 4)
    assert isinstance(second, KeyboardInterrupt)
    assert (first, third, fourth) == (10, 30, 40)
    assert rounds.seen == [[1], [3, 4]]


def test_a_caller_that_is_interrupted_while_it_waits_takes_its_call_back() -> None:
    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    rounds = Rounds()
    gate = Gate(rounds.calls)

    def give_up() -> None:
        ticket: Any = shared_calls._Ticket(2, woken=Interrupted())
        made = patch.object(shared_calls, "_Ticket", lambda call: ticket)
        with made, pytest.raises(KeyboardInterrupt):
            rounds.calls.call(2)

    def others() -> int:
        give_up()
        return rounds.calls.call(3)

    assert gate.meet(partial(rounds.calls.call, 1), [others]) == [10, 30]
    assert rounds.seen == [[1], [3]]


def test_a_call_from_within_a_round_is_carried_out_within_it() -> None:
    def carry_out(calls: Sequence[int]) -> list[int]:
        return [calls_of.call(call - 1) + 1 if call else 0 for call in calls]

    calls_of: SharedCalls[int, int] = SharedCalls(carry_out)
    assert calls_of.call(3) == 3


def test_those_that_wait_are_bounded_and_who_comes_then_waits_for_room() -> None:
    with patch.object(shared_calls, "WAITING_MAX", 2):
        rounds = Rounds()
        gate = Gate(rounds.calls)
        begun, told = threading.Event(), list[int]()

        def one_too_many() -> None:
            begun.set()
            told.append(rounds.calls.call(4))

        def third() -> int:
            thread.start()
            passed(begun)
            return rounds.calls.call(3)

        thread = threading.Thread(target=one_too_many)
        call = rounds.calls.call
        gate.meet(partial(call, 1), [partial(call, 2), third])
        thread.join(240)
    assert max(gate.rounds) <= 2
    assert told == [40]
    assert sorted([*chain(*rounds.seen)]) == [1, 2, 3, 4]


def test_calls_of_many_threads_are_each_carried_out_once_and_those_of_a_thread_in_order() -> None:
    rounds = Rounds(wait=threading.Condition.wait)
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        barrier.wait(240)
        for index in range(50):
            call = 1000 * (number + 1) + index
            assert rounds.calls.call(call) == 10 * call

    with no_thread_is_left(), ThreadPoolExecutor(8) as pool:
        assert [*pool.map(work, range(8))] == [None] * 8
    done = [*chain(*rounds.seen)]
    for number in range(8):
        own = [call for call in done if call // 1000 == number + 1]
        assert own == [1000 * (number + 1) + index for index in range(50)]
    assert len(done) == 400
