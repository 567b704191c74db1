"""Sums of groups are those of Python's own integers, or an error; never wrapped."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.core.key_hash import ALL_HASHES
from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import DataError
from spark_upsert.table.compaction import Job, compact_runs
from spark_upsert.table.state.sums import exact_sums
from spark_upsert.table.table import Table
from tests.support.stores import MemoryStore

BOUNDS: dict[pa.DataType, tuple[int, int]] = {
    pa.int8(): (-(2**7), 2**7 - 1),
    pa.int32(): (-(2**31), 2**31 - 1),
    pa.int64(): (-(2**63), 2**63 - 1),
    pa.uint64(): (0, 2**64 - 1),
    pa.decimal128(5, 0): (1 - 10**5, 10**5 - 1),
    pa.decimal128(19, 2): (1 - 10**19, 10**19 - 1),
    pa.decimal128(38, 0): (1 - 10**38, 10**38 - 1),
    pa.decimal128(38, 10): (1 - 10**38, 10**38 - 1),
}


def array_of(numbers: list[int | None], type_: pa.DataType) -> pa.Array:
    if not pa.types.is_decimal(type_):
        return pa.array(numbers, type_)
    with localcontext() as context:
        context.prec = 80
        scaled = [None if n is None else Decimal(n).scaleb(-type_.scale) for n in numbers]
    return pa.array(scaled, type_)


def numbers_of(array: pa.Array) -> list[int | None]:
    if not pa.types.is_decimal(array.type):
        return list(array.to_pylist())
    with localcontext() as context:
        context.prec = 80
        return [None if n is None else int(n.scaleb(array.type.scale)) for n in array.to_pylist()]


@pytest.mark.parametrize("type_", BOUNDS, ids=str)
@given(data=st.data())
def test_sums_are_exact_or_an_error(type_: pa.DataType, data: st.DataObject) -> None:
    least, most = BOUNDS[type_]
    near = st.sampled_from([least, least + 1, most - 1, most]) | st.integers(
        max(least, -9), min(most, 9)
    )
    numbers = st.none() | near | st.integers(least, most)
    groups = data.draw(st.lists(st.lists(numbers, min_size=1, max_size=4), min_size=1, max_size=4))
    values = [value for group in groups for value in group]
    firsts = np.cumsum([0, *(len(group) for group in groups)])[:-1]
    expected = [
        sum(v for v in group if v is not None) if any(v is not None for v in group) else None
        for group in groups
    ]
    # A slice, so that the offset of an array counts.
    column = array_of([None, *values], type_).slice(1)
    if all(total is None or least <= total <= most for total in expected):
        found = exact_sums(column, firsts)
        assert numbers_of(found) == expected
        found.validate(full=True)
    else:
        with pytest.raises(OverflowError):
            exact_sums(column, firsts)


def summing(type_: pa.DataType) -> Table:
    columns = pa.schema({"k": pa.int64(), "n": type_})
    table = Table(MemoryStore())
    engine = MergeEngine(Engine.AGGREGATION, {"n": Rule.SUM})
    table.ensure(TableSchema.of(columns, keys=["k"], engine=engine))
    return table


def add(table: Table, *numbers: int) -> None:
    type_ = table.log.head().schema.columns.field("n").type
    rows = {"k": pa.array([1] * len(numbers)), "n": array_of(list(numbers), type_)}
    table.upsert(pa.table(rows))


def total(table: Table) -> Any:
    [row] = table.snapshot().to_pylist()
    return row["n"]


@pytest.mark.parametrize("type_", BOUNDS, ids=str)
def test_an_overflow_is_an_error_within_a_batch_and_across_epochs(type_: pa.DataType) -> None:
    most = BOUNDS[type_][1]
    table = summing(type_)
    with pytest.raises(DataError, match="a sum of column 'n' does not fit"):
        add(table, most, 1)
    assert table.snapshot().num_rows == 0
    add(table, most)
    with pytest.raises(DataError, match="a sum of column 'n' does not fit"):
        add(table, 1)
    assert numbers_of(table.snapshot().column("n").combine_chunks()) == [most]
    table.compact(full=True)
    assert table.check().is_sound


def test_a_merge_that_overflows_without_the_older_runs_is_left_out() -> None:
    """The epochs together fit, but some neighbours alone do not."""
    most = 2**63 - 1
    table = summing(pa.int64())
    add(table, -most)
    for _ in range(2):
        add(table, most)
    head = table.log.head()
    job = Job(hash_range=ALL_HASHES, slices=tuple(head.slices[1:]), is_oldest=False)
    before = set(table.store.list("data"))
    assert table.commit_compactions([compact_runs(table.store, head, job)]) == 0
    assert set(table.store.list("data")) == before
    assert total(table) == most
    table.compact(full=True)
    assert total(table) == most
    assert len(table.log.head().slices) == 1
