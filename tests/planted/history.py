"""Bugs in the histories of rows: where a row begins, where it ends, and what opens one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from hypothesis import Phase, settings

from spark_upsert.core.schema import Scope
from spark_upsert.table import keep_history
from spark_upsert.table.changelog import history
from spark_upsert.table.changelog.changes import Changes
from spark_upsert.table.state.reduce import ABSENT
from tests.laws import test_history as laws
from tests.laws import test_kept_history as kept_laws
from tests.planted.bug import Patch, bug, wrapped
from tests.unit import test_kept_history as kept_cases

_SETTINGS = "_hypothesis_internal_use_settings"


def as_it_is_found(law: Callable[..., None]) -> Callable[..., None]:
    """Return a law that ends with the first example it finds: the smallest one takes far longer."""
    short = settings(getattr(law, _SETTINGS), phases=[Phase.explicit, Phase.generate])

    def judge(*given: Any) -> None:
        with patch.object(law, _SETTINGS, short):
            law(*given)

    return judge


def test_p1_a_history_is_what_was_seen() -> None:
    as_it_is_found(laws.test_a_history_is_what_is_seen_at_each_version)(Scope.TABLE)


def test_p1_orders_tell_when() -> None:
    as_it_is_found(laws.test_orders_tell_when_rows_and_deletes_came)()


def test_p2_a_history_is_kept() -> None:
    as_it_is_found(kept_laws.test_a_kept_history_is_the_history_of_its_table)()


def test_p1_other_columns_open_nothing() -> None:
    as_it_is_found(laws.test_changes_of_other_columns_replace_the_values_of_the_row_that_holds)()


def test_p2_a_history_is_kept_of_one_past() -> None:
    with TemporaryDirectory() as folder:
        kept_cases.test_a_table_that_was_set_back_from_a_copy_is_told_so(Path(folder), 1)


@bug("a history is kept on from another past of its table", test_p2_a_history_is_kept_of_one_past)
def _() -> Patch:
    return patch.object(keep_history, "crc32", lambda token: 0)


@bug("a history begins with nothing but its changes", test_p1_a_history_is_what_was_seen)
def _() -> Patch:
    def without(original: Any, *given: Any) -> Any:
        return original(*given)[1:] or original(*given)

    return wrapped(history, "history_ranges", without)


@bug("a delete ends its row at the row's own order", test_p1_orders_tell_when)
def _() -> Patch:
    def of_rows(original: Any, changes: Changes, *given: Any, **how: Any) -> pa.RecordBatch:
        own = np.where(changes.new == ABSENT, changes.old, changes.new)
        moved = Changes(changes.rows, changes.old, changes.new, changes.epochs, own)
        return original(moved, *given, **how)

    return wrapped(history, "events_of", of_rows)


@bug("the events of a key are taken as they come", test_p1_other_columns_open_nothing)
def _() -> Patch:
    def by_key_alone(original: Any, keys: Any) -> Any:
        return original(keys[1:])

    return wrapped(np, "lexsort", by_key_alone)


@bug("each event opens a row, whatever it changed", test_p1_other_columns_open_nothing)
def _() -> Patch:
    return patch.object(
        history, "_differs", lambda events, *_: np.ones(events.num_rows, dtype=np.bool_)
    )


@bug("a step of a kept history does not look up which rows are open", test_p2_a_history_is_kept)
def _() -> Patch:
    return patch.object(keep_history, "_open_rows", lambda *given: given[-1].slice(0, 0))


@bug("a step of a kept history begins a version too late", test_p2_a_history_is_kept)
def _() -> Patch:
    def later(original: Any, *given: Any) -> int:
        lower: int = original(*given)
        return lower + 1

    return wrapped(keep_history, "_first_version", later)
