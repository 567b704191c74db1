"""Rows are told apart by their values as a loop over rows would do it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.core.path_template import Template
from spark_upsert.routed.router import Router
from tests.support.routes import Values, check_routes

TEXTS = st.none() | st.sampled_from(["", "a", "b", "a.b", "_a", "é", "x" * 300])
STRINGS = [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]
ROWS = st.lists(st.tuples(TEXTS, TEXTS, st.booleans()), max_size=12)


def batch_of(rows: list[tuple[str | None, str | None, bool]], type_: pa.DataType) -> pa.RecordBatch:
    """Return rows whose column ``t`` is a text and whose ``s.u`` is one; some structs are null."""
    first, second, is_null = zip(*rows, strict=True) if rows else ((), (), ())
    struct = pa.StructArray.from_arrays(
        [pa.array(second, pa.string())], ["u"], mask=pa.array(is_null, pa.bool_())
    )
    columns = {"t": pa.array(first, pa.string()).cast(type_), "s": struct}
    return pa.record_batch({**columns, "at": pa.array(range(len(rows)), pa.int64())})


@pytest.mark.parametrize("type_", STRINGS, ids=str)
@given(rows=ROWS, first=st.integers(0, 3))
def test_rows_of_any_text_type_go_where_their_own_values_lead(
    type_: pa.DataType, rows: list[Any], first: int
) -> None:
    template = Template.parse("/l/{t}.{S.u}")
    batch = batch_of(rows, type_)
    values = [(text, None if is_null else other) for text, other, is_null in rows[first:]]
    check_routes(Router(template, batch.schema), template, batch.slice(first), values, names_folder)


def names_folder(values: Values) -> bool:
    return None not in values and "x" * 300 not in values and values[0] != ""
