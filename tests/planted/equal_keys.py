"""Bugs in what decides which keys are equal."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from spark_upsert.plan import join_keys
from tests.laws import test_equal_keys as laws
from tests.planted.bug import Patch, bug, wrapped


def test_p2_equal_keys_are_those_of_a_plain_comparison() -> None:
    laws.test_rows_are_numbered_as_they_first_come()
    laws.test_rows_match_as_nested_loops_say_and_null_joins_nothing()


EQUAL = test_p2_equal_keys_are_those_of_a_plain_comparison


@bug("keys are numbered by their bits", EQUAL)
def _() -> Patch:
    def as_stored(original: Any, column: pa.Array) -> Any:
        if pa.types.is_float64(column.type):
            return [np.asarray(column.fill_null(0)).view(np.uint64)]
        return original(column)

    return wrapped(join_keys, "fixed_words", as_stored)


@bug("NULL is the value that its place in memory holds", EQUAL)
def _() -> Patch:
    return patch.object(join_keys, "validity", lambda column: None)
