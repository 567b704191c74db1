"""Calls that meet where a test wants them to: the first one leads until the others have come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from spark_upsert.core.threads import SharedCalls
from tests.support.waiting import PATIENCE_SECONDS, passed


class Gate:
    """Lets the first round of some calls stand still, until so many others wait behind it."""

    def __init__(self, calls: SharedCalls[Any, Any]) -> None:
        self._calls = calls
        self._carry_out = calls._carry_out
        self._enqueue = calls._enqueue
        self._entered = threading.Condition()
        self._stands = threading.Event()
        self._opened = threading.Event()
        self.rounds: list[int] = []
        """How many calls each round had."""
        calls._carry_out = self._held
        calls._enqueue = self._counted  # type: ignore[method-assign]

    def _held(self, calls: Sequence[Any]) -> Sequence[Any]:
        self.rounds.append(len(calls))
        if len(self.rounds) == 1:
            self._stands.set()
            passed(self._opened)
        return self._carry_out(calls)

    def _counted(self, ticket: Any) -> None:
        self._enqueue(ticket)
        with self._entered:
            self._entered.notify_all()

    def meet(self, first: Callable[[], Any], others: Sequence[Callable[[], Any]]) -> list[Any]:
        """Call the first, and the others while it is carried out, in their order.

        Returns what each returned, or its error.
        """
        found: list[Any] = [None] * (1 + len(others))

        def run(index: int, call: Callable[[], Any]) -> None:
            try:
                found[index] = call()
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is the outcome
                found[index] = error

        threads = [threading.Thread(target=run, args=(0, first))]
        threads[0].start()
        passed(self._stands)
        for index, call in enumerate(others, start=1):
            threads.append(threading.Thread(target=run, args=(index, call)))
            threads[-1].start()
            with self._entered:
                assert self._entered.wait_for(
                    lambda index=index: self._calls.waiting_count == index,  # type: ignore[misc]
                    PATIENCE_SECONDS,
                )
        self._opened.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
        return found
