"""Bugs in who of many inputs is served next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from spark_upsert.scheduler import scheduler
from spark_upsert.scheduler import scheduler as priority
from spark_upsert.scheduler.scheduler import BANDS, LOWEST, DirtySet, Schedule, Service, Turn
from spark_upsert.streams.planner import rate_limit
from tests.planted.bug import Patch, bug, together, wrapped
from tests.promises import test_schedule_promises as schedules


def left_over(rule: Callable[[Schedule, Schedule], Schedule]) -> Patch:
    """Replace what a service leaves, given what was before and what is left by the rules."""

    def served(original: Any, self: Schedule, *args: Any) -> Schedule:
        return rule(self, original(self, *args))

    return wrapped(Schedule, "after_service", served)


@bug(
    "a band gets its credit anew in each batch",
    schedules.test_p7_no_input_waits_for_longer_than_is_stated_while_time_stands_still,
)
def _() -> Patch:
    return left_over(lambda _, behind: replace(behind, turn=Turn()))


@bug(
    "a band spends no credit",
    schedules.test_p7_no_input_waits_for_longer_than_is_stated_while_time_stands_still,
)
def _() -> Patch:
    def unspent(_: Schedule, behind: Schedule) -> Schedule:
        return replace(behind, turn=replace(behind.turn, credit=BANDS[behind.turn.band].weight))

    return left_over(unspent)


@bug("all bands have one weight", schedules.test_p7_service_follows_the_weights)
def _() -> Patch:
    return patch.object(scheduler, "WEIGHTS", np.ones(len(BANDS), np.int64))


@bug("bands are drained from the highest", schedules.test_p7_service_follows_the_weights)
def _() -> Patch:
    return together(
        wrapped(scheduler, "_rounds", lambda _, bands, turn: -bands),
        patch.object(Service, "turn_after", lambda self, count: Turn()),
    )


@bug(
    "a band is passed over by each round",
    schedules.test_p7_no_input_waits_for_longer_than_is_stated_while_time_stands_still,
)
def _() -> Patch:
    def rounds(original: Any, bands: Any, turn: Any) -> Any:
        found = original(bands, turn)
        found[bands == LOWEST] += 10**6
        return found

    return wrapped(scheduler, "_rounds", rounds)


@bug(
    "who gets more begins to wait anew",
    schedules.test_p7_no_input_waits_for_longer_than_is_stated,
)
def _() -> Patch:
    def marked(original: Any, self: Any, names: Any, now_ms: int) -> Any:
        return original(DirtySet(), names, now_ms)

    return wrapped(DirtySet, "with_changed", marked)


@bug(
    "who was served and has more keeps its place",
    schedules.test_p7_no_input_waits_for_longer_than_is_stated_while_time_stands_still,
)
def _() -> Patch:
    def served(original: Any, self: Any, names: Any, left: Any, now_ms: int) -> Any:
        return original(self, set(names) - set(left), (), now_ms)

    return wrapped(DirtySet, "without_served", served)


@bug(
    "a wait counts for no more than a second",
    schedules.test_p7_who_is_deferred_is_served_when_it_is_old,
)
def _() -> Patch:
    return patch.object(priority, "WAITED_MAX_MS", 1_000)


@bug(
    "somebody waits since the future",
    schedules.test_p7_who_is_deferred_is_served_when_it_is_old,
)
def _() -> Patch:
    def with_later(original: Any, self: Any, gone: Any, names: Any, now_ms: int) -> Any:
        times = [since_ms for _, since_ms in self.items()]
        return original(self, gone, names, max([now_ms, *times]))

    return wrapped(DirtySet, "_with", with_later)


@bug(
    "the lowest band is deferred for ever",
    schedules.test_p7_who_is_released_is_served_while_time_stands_still,
)
def _() -> Patch:
    def service(original: Any, self: Any, *args: Any, **_: Any) -> Any:
        return original(self, *args, defers_lowest=True)

    return wrapped(Schedule, "plan_service", service)


@bug(
    "who does not fit has had its turn",
    schedules.test_p7_what_is_larger_than_its_share_has_its_turn,
)
def _() -> Patch:
    def serve(original: Any, visits: Any, ways: Any, limits: Any) -> Any:
        _, served = original(visits, ways, limits)
        return len(visits), served

    return wrapped(rate_limit, "_serve", serve)


@bug(
    "who comes first takes all there is room for",
    schedules.test_p7_a_flood_keeps_no_small_input_waiting,
)
def _() -> Patch:
    return wrapped(rate_limit._Room, "share", lambda _, self, weight, of_weights: self.most)


@bug(
    "who waits is not noted",
    schedules.test_p7_no_input_waits_for_longer_than_is_stated,
)
def _() -> Patch:
    return wrapped(rate_limit, "with_schedule", lambda _, state, schedule: dict(state))


@bug(
    "who has nothing any more is noted as waiting",
    schedules.test_p7_no_input_waits_for_longer_than_is_stated,
)
def _() -> Patch:
    def served(original: Any, self: Any, names: Any, left: Any, now_ms: int) -> Any:
        return original(self, (), left, now_ms)

    return wrapped(DirtySet, "without_served", served)
