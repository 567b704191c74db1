"""Bugs in inputs that are Python sources of others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from pyspark_upsertflow import python_source
from pyspark_upsertflow.python_source import PythonInput
from tests.planted.bug import Patch, bug, wrapped
from tests.promises import test_python_promises as python_promises


@bug(
    "a batch that is repeated ends where its source is by now",
    python_promises.test_p1_a_batch_that_is_repeated_has_the_rows_of_its_time,
)
def _() -> Patch:
    def ask_again(original: Any, self: PythonInput, start: Any, end: Any) -> Any:
        return original(self, start, self.backlog(start).end())

    return wrapped(PythonInput, "splits", ask_again)


@bug(
    "a source is told that a batch is done before its answer is read",
    python_promises.test_p1_a_source_that_forgets_what_it_holds_is_told_in_time,
)
def _() -> Patch:
    def at_once(original: Any, self: PythonInput, position: Any) -> None:
        original(self, position)
        self._report_commit()

    return wrapped(PythonInput, "commit", at_once)


@bug(
    "what a source answers once is all it has",
    python_promises.test_p4_concat_takes_all_of_a_source_before_the_next_one,
)
def _() -> Patch:
    def believe(original: Any, *args: Any) -> Any:
        return replace(original(*args), is_all=True)

    return wrapped(PythonInput, "backlog", believe)


@bug(
    "an offset may go back",
    python_promises.test_p5_a_source_whose_offset_goes_back_loses_nothing_in_silence,
)
def _() -> Patch:
    return patch.object(python_source, "find_decrease", lambda before, after: None)
