"""Bugs in what a watcher of a table sees."""

from __future__ import annotations

from typing import Any

from spark_upsert.table.watch import Watcher, Watchers
from tests.planted.bug import Patch, bug, wrapped
from tests.promises import test_watch_promises as watch_promises


@bug(
    "what the ring does not hold is passed over",
    watch_promises.test_p1_a_watcher_sees_each_epoch_once_and_in_order_however_slow_it_is,
)
def _() -> Patch:
    def from_the_ring(original: Any, self: Any) -> Any:
        while self._position < self._watchers.upper:
            if self._watchers.recent(self._position) is not None:
                return original(self)
            self._position += 1
        return None

    return wrapped(Watcher, "_step", from_the_ring)


@bug(
    "a version is announced before those that others committed below it are known",
    watch_promises.test_p1_a_watcher_sees_each_epoch_once_and_in_order_however_slow_it_is,
)
def _() -> Patch:
    def jump(original: Any, self: Any) -> Any:
        newest = max(self._watchers._ring, default=0)
        self._position = max(self._position, newest)
        return original(self)

    return wrapped(Watcher, "_step", jump)


@bug(
    "a watcher passes over what was expired and says nothing",
    watch_promises.test_p5_a_watcher_is_told_of_what_was_lost,
)
def _() -> Patch:
    def silent(original: Any, self: Any) -> None:
        self._position = self._watchers.poll().first_changes

    return wrapped(Watcher, "_gap", silent)


@bug(
    "the changes of an epoch are those of the one before",
    watch_promises.test_p2_the_changes_that_a_watcher_sees_fold_to_the_table,
)
def _() -> Patch:
    def earlier(original: Any, self: Any, *args: Any, **how: Any) -> None:
        original(self, *args, **how)
        changes = self.changes
        self.changes = lambda lower, upper: changes(lower - 1, upper - 1)

    return wrapped(Watchers, "__init__", earlier)
