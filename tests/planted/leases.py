"""Bugs in how the first lease is taken: a choice that an expiry makes void is kept to."""

from __future__ import annotations

from types import ModuleType

from spark_upsert.streams.inputs import table as table_input
from spark_upsert.streams.inputs import view as view_input
from spark_upsert.views import plan_builder
from tests.planted.bug import Patch, bug, wrapped
from tests.promises import test_lease_promises as promises
from tests.promises import test_stream_promises as stream_promises


def chosen_once(where: ModuleType) -> Patch:
    """Let the first choice stand, whatever is expired before its lease."""
    return wrapped(where, "retry_after_expiry", lambda _, attempt, url: attempt())


@bug(
    "a stream chooses once where it begins",
    stream_promises.test_p6_a_stream_with_a_lease_goes_on_whenever_the_past_is_expired,
)
def _() -> Patch:
    return chosen_once(table_input)


@bug(
    "a refresh chooses once where it begins",
    promises.test_p6_what_is_kept_goes_on_whenever_the_past_is_expired,
)
def _() -> Patch:
    return chosen_once(plan_builder)


@bug(
    "a stream over a view chooses once what is its newest, and where it begins",
    promises.test_p6_what_is_kept_goes_on_whenever_the_past_is_expired,
)
def _() -> Patch:
    return chosen_once(view_input)
