"""Bugs in the rule that a writer accepts only what a reader accepts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from spark_upsert.core import arrow_types, casts, schema
from spark_upsert.store import records
from spark_upsert.table import maintenance
from spark_upsert.table.log import manifest, properties
from spark_upsert.table.retention import leases
from spark_upsert.table.run import format
from tests.planted.bug import Patch, bug, together, wrapped
from tests.promises import test_reader_promises as promises

UNREADABLE = promises.test_p6_no_value_of_a_caller_makes_a_table_unreadable
EXACT = promises.test_p5_a_column_is_stored_exactly_whatever_its_layout
EARLIER = promises.test_p6_a_table_of_an_earlier_release_is_read_or_repaired


@bug("a record is put without a look by its reader", UNREADABLE)
def _() -> Patch:
    return patch.object(records, "require_readable", _unchecked)


def _unchecked(where: str, value: Any, decode: Callable[[], Any]) -> None:
    with suppress(ValueError, TypeError):
        decode()


@bug("a number of a record is any number", UNREADABLE)
def _() -> Patch:
    return together(
        patch.object(records, "require_readable", _unchecked),
        *(patch.object(each, "whole_argument", _any_number) for each in (manifest, leases)),
    )


def _any_number(name: str, value: Any, **bounds: int) -> Any:
    return value


@bug("a column of a type without a reader is stored", UNREADABLE)
def _() -> Patch:
    return together(
        *(
            patch.object(each, "find_unstorable_part", lambda place, type_: None)
            for each in (arrow_types, schema)
        )
    )


@bug("a text is stored whatever its bytes", UNREADABLE)
def _() -> Patch:
    return patch.object(casts, "is_sound", lambda values: True)


@bug("a user sets the properties of a kept table", UNREADABLE)
def _() -> Patch:
    checks = {**properties._CHECKS, "historyOf": str}
    return together(
        patch.object(properties, "INTERNAL", {}), patch.object(properties, "_CHECKS", checks)
    )


@bug("the digits of a UUID change their places", EXACT)
def _() -> Patch:
    return patch.object(casts, "_PLACES", casts._PLACES[::-1])


@bug("a UUID is stored as its bytes", EXACT)
def _() -> Patch:
    return patch.object(casts, "_is_uuid", lambda type_: False)


@bug("the items of a view of lists are taken in the order of the buffer", EXACT)
def _() -> Patch:
    def taken(values: pa.Array, *arguments: Any) -> Any:
        if pa.types.is_list_view(values.type):
            offsets = pa.array(casts._offsets(values))
            values = pa.ListArray.from_arrays(offsets, values.values)
        return casts._list(values, *arguments)

    return patch.object(casts, "_NESTED", (*casts._NESTED[:-1], (casts._NESTED[-1][0], taken)))


@bug("a column of an earlier release is passed over although it could be read", EARLIER)
def _() -> Patch:
    return wrapped(
        format,
        "_is_readable",
        lambda original, field: original(field) and not pa.types.is_fixed_size_list(field.type),
    )


@bug("a repair gives up more than the unreadable column", EARLIER)
def _() -> Patch:
    return wrapped(
        maintenance,
        "without_columns",
        lambda original, own, names: original(own, names | {"w"} if names else names),
    )
