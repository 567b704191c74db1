"""Bugs in appends that share a version."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spark_upsert.table.write import group_commit as group
from tests.planted.bug import Patch, bug, wrapped
from tests.promises import test_group_promises as group_promises


@bug(
    "of appends that share a version the first wins",
    group_promises.test_p4_appends_that_share_a_version_are_as_one_after_the_other,
)
def _() -> Patch:
    def turned(original: Any, rows: Any, epochs: list[int]) -> Any:
        return original(rows, epochs[::-1])

    return wrapped(group, "epochs_by_part", turned)


@bug(
    "an append is judged as if none shared its version",
    group_promises.test_p4_appends_that_share_a_version_are_as_one_after_the_other,
)
def _() -> Patch:
    def alone(original: Any, self: Any, rows: Any) -> Any:
        contested, self._contested = self._contested, self._contested.slice(0, 0)
        try:
            return original(self, rows)
        finally:
            self._contested = contested

    return wrapped(group._AppendDecider, "_outcomes", alone)


@bug(
    "a shared version has the transaction of its first append alone",
    group_promises.test_p1_an_append_that_shared_a_version_is_there_once_however_often_it_comes,
)
def _() -> Patch:
    def first(original: Any, *args: Any) -> Any:
        found = original(*args)
        return replace(found, transactions=found.transactions[:1])

    return wrapped(group, "_write_set", first)


@bug(
    "an append that is refused takes its company along",
    group_promises.test_p5_an_append_that_is_refused_is_told_and_its_company_is_not,
)
def _() -> Patch:
    def all_refused(original: Any, self: Any) -> None:
        original(self)
        [refused] = [each for each in self._verdicts if isinstance(each, Exception)]
        self._verdicts = [refused] * len(self._verdicts)

    return wrapped(group._AppendDecider, "admit_each", all_refused)


@bug(
    "an error of a shared version is told to its leader alone",
    group_promises.test_p5_a_storage_error_is_told_to_each,
)
def _() -> Patch:
    def leader(original: Any, members: Any, error: Exception) -> Any:
        return {**dict.fromkeys(members), next(iter(members)): error}

    return wrapped(group, "_error_per_append", leader)
