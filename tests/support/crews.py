"""A crew that works only while it is told to: discovery beside planning, without threads."""

from __future__ import annotations

from collections.abc import Callable

from spark_upsert.streams.planner.poller import DaemonThreads
from tests.support.clocked import Now

_WORKS_MAX = 1_000_000


class ByHand(DaemonThreads):
    """Does the work of threads in the calling one, and lets a clock go on meanwhile.

    Parameters
    ----------
    now : Now
        Goes on by what the work rests.
    """

    def __init__(self, now: Now) -> None:
        super().__init__(0)
        self.now = now
        self.is_stopped = False
        self._task: Callable[[], float | None] | None = None

    def start(self, work: Callable[[], float | None]) -> None:
        self._task = work

    def go(self, seconds: float) -> None:
        """Let so much time pass, in which they work."""
        self.wait(lambda: False, seconds)

    def wait(self, is_over: Callable[[], bool], seconds: float) -> None:
        assert self._task is not None
        end_s = self.now() + seconds
        for _ in range(_WORKS_MAX):
            if is_over() or self.now() > end_s:
                return
            rest_s = self._task()
            if rest_s is None or self.now() + rest_s > end_s:
                if not is_over():
                    self.now.seconds = max(self.now(), end_s)
                return
            self.now.advance(rest_s)
        raise AssertionError("they work for ever, and no time passes")

    def tell(self) -> None:
        """Do nothing: who waits is who works."""

    def stop(self) -> None:
        self.is_stopped = True


def no_time() -> float:
    """Return a processor's time that stands still: looks are bounded by requests alone."""
    return 0.0
