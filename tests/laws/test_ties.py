"""Ties count where they decide: whatever the cut of an epoch into batches, pieces and tasks.

The obvious definition: of each key, the commands with its greatest order key. If these are of two
contents, nothing but arrival says which one the table holds, and a tie has decided.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.core.schema import Scope, Ties
from spark_upsert.errors import DataError
from spark_upsert.table.write.stage import Stash
from tests.support.model import Command
from tests.support.tables import batch_of, schema_of

Rows = list[tuple[int, int, int]]
"""Key, content, order key."""

ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=9
)
CUTS = st.lists(st.integers(1, 8), max_size=4)


def tied_at(rows: Rows, *, only_deciding: bool) -> bool:
    """Return whether commands of a key have an order key in common, and other contents."""
    contents: dict[tuple[int, int], set[int]] = defaultdict(set)
    greatest: dict[int, int] = {}
    for key, value, order in rows:
        contents[key, order].add(value)
        greatest[key] = max(order, greatest.get(key, order))
    return any(
        len(found) > 1 and (order == greatest[key] or not only_deciding)
        for (key, order), found in contents.items()
    )


def tied_in(rows: Rows, cuts: list[int], ties: Ties) -> int:
    """Return the ties of one epoch that is cut into batches, each settled by itself."""
    schema = replace(schema_of(Scope.TABLE), ties=ties)
    ends = sorted({*(cut for cut in cuts if cut < len(rows)), len(rows)})
    with Stash(schema, compact_bytes=1, spill_bytes=1 << 20) as stash:
        for start, end in zip([0, *ends], ends, strict=False):
            stash.add(batch_of(schema, [Command(*row) for row in rows[start:end]]))
        sealed = [row for batch in stash.seal() for row in batch.to_pylist()]
        greatest = {key: max(at for k, _, at in rows if k == key) for key, _, _ in rows}
        assert {row["k"]: row[schema.order_columns[0]] for row in sealed} == greatest
        return stash.counters.tied


@given(ROWS, CUTS)
def test_a_tie_that_decides_is_counted(rows: Rows, cuts: list[int]) -> None:
    counted = tied_in(rows, cuts, Ties.LAST)
    if tied_at(rows, only_deciding=True):
        assert counted > 0
    if not tied_at(rows, only_deciding=False):
        assert counted == 0


@given(ROWS, CUTS)
def test_no_row_stands_by_a_tie_where_ties_fail(rows: Rows, cuts: list[int]) -> None:
    try:
        tied_in(rows, cuts, Ties.FAIL)
        has_failed = False
    except DataError:
        has_failed = True
    if tied_at(rows, only_deciding=True):
        assert has_failed
    if not tied_at(rows, only_deciding=False):
        assert not has_failed


BEATEN = [(1, 0, 3), (1, 1, 3), (1, 2, 5)]


@pytest.mark.parametrize("ties", [Ties.LAST, Ties.FAIL])
def test_a_tie_that_is_beaten_where_it_comes_decides_nothing(ties: Ties) -> None:
    assert tied_in(BEATEN, [], ties) == 0


def test_a_tie_that_meets_before_it_is_beaten_is_counted() -> None:
    assert tied_in(BEATEN, [2], Ties.LAST) == 1
