"""Bugs in caps, in pressure and in deferrals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from spark_upsert.scheduler.governor import Governor
from spark_upsert.table import table
from spark_upsert.table.log.properties import Caps
from spark_upsert.table.retention.lag import PressureReport
from spark_upsert.table.write import group_commit as group
from spark_upsert.table.write import guards
from spark_upsert.table.write.guards import Admission
from tests.planted.bug import Patch, bug, together, wrapped
from tests.promises import test_pressure_promises as pressure_promises


@bug(
    "a cap lets one more in",
    pressure_promises.test_p1_caps_are_never_exceeded_and_nothing_is_lost,
)
def _() -> Patch:
    def count_less(original: Any, self: Caps, *, epochs: int, bytes: int) -> bool:
        admits: bool = original(self, epochs=epochs - 1, bytes=bytes)
        return admits

    return wrapped(Caps, "admits", count_less)


@bug(
    "caps are judged before a write is staged, and not at its commit",
    pressure_promises.test_p1_caps_are_never_exceeded_and_nothing_is_lost,
)
def _() -> Patch:
    def judge_once(original: Any, self: Any, head: Any, draft: Any = None) -> Any:
        return None if draft is not None else original(self, head)

    return wrapped(Admission, "refusal", judge_once)


@bug(
    "the consumer that is ahead counts",
    pressure_promises.test_p1_caps_are_never_exceeded_and_nothing_is_lost,
)
def _() -> Patch:
    def first(leases: Any, now_ms: int) -> Any:
        return max(leases, key=lambda lease: lease.version, default=None)

    return patch.object(guards, "slowest", first)


@bug(
    "what a refused write has staged stays",
    pressure_promises.test_p1_caps_are_never_exceeded_and_nothing_is_lost,
)
def _() -> Patch:
    return together(
        patch.object(table.Table, "discard", lambda *_: None),
        patch.object(group, "remove_runs", lambda *_: None),
    )


@bug(
    "room is asked for before the transaction is",
    pressure_promises.test_p1_what_was_committed_is_done_although_there_is_no_room,
)
def _() -> Patch:
    def judge_first(original: Any, self: Any, *args: Any, **how: Any) -> Any:
        self.admission(0).require(self.log.head())
        return original(self, *args, **how)

    return wrapped(table.Table, "upsert", judge_first)


@bug(
    "pressure that has expired is obeyed",
    pressure_promises.test_p1_a_consumer_that_died_holds_up_nobody_for_long,
)
def _() -> Patch:
    return patch.object(PressureReport, "is_live", lambda self, now_ms: True)


@bug(
    "a deferral is never released", pressure_promises.test_p7_a_deferral_ends_when_the_pressure_does
)
def _() -> Patch:
    def hold(original: Any, self: Governor, *args: Any) -> Governor:
        found: Governor = original(self, *args)
        return replace(found, is_deferring=self.is_deferring or found.is_deferring)

    return wrapped(Governor, "after_sample", hold)
