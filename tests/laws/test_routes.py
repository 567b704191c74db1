"""Rows are told apart by their values as a loop over rows would do it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.routed.routes import Router
from spark_upsert.routed.template import Template

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
def test_each_row_goes_where_its_own_values_lead(
    type_: pa.DataType, rows: list[Any], first: int
) -> None:
    template = Template.parse("/l/{t}.{S.u}")
    batch = batch_of(rows, type_)
    router = Router(template, batch.schema)
    expected: dict[tuple[str | None, ...], list[int]] = defaultdict(list)
    for at, (text, other, is_null) in list(enumerate(rows))[first:]:
        expected[text, None if is_null else other].append(at)
    routed = router.route(batch.slice(first))
    found = [(route.values, own.column("at").to_pylist()) for route, own in routed.split()]
    assert dict(found) == expected
    assert len(found) == len(expected)
    assert [routed.routes[code].values for code in routed.codes] == [
        (text, None if is_null else other) for text, other, is_null in rows[first:]
    ]
    for route in routed.routes:
        has_folder = None not in route.values and "x" * 300 not in route.values
        has_folder &= route.values[0] != ""
        assert (route.folder is not None) is (route.problem is None) is has_folder
        if route.folder is not None:
            assert template.try_values(route.folder) == route.values
