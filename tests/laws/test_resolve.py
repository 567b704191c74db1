"""Which entry wins does not depend on who looks at how many entries first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.core.schema import Scope
from spark_upsert.table.run.rows import BatchPart, Rows
from spark_upsert.table.state.resolve import epochs_by_part, resolve
from tests.support.histories import BATCHES, HASH_COUNTS
from tests.support.model import Command, Model
from tests.support.tables import batch_of, hashes_of_few_values, schema_of

SCOPES = pytest.mark.parametrize("scope", Scope, ids=lambda scope: f"with scope {scope.value}")
GROUPS = st.lists(BATCHES, min_size=1, max_size=5)


def winners(scope: Scope, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Resolve the batches of one epoch, the earlier first."""
    schema = schema_of(scope)
    rows = Rows(schema, [BatchPart(batch) for batch in batches])
    found = rows.take(schema.run.names, resolve(rows, is_one_task=True).winners)
    return pa.RecordBatch.from_arrays(found, schema=schema.run)


def batches_of(scope: Scope, groups: Sequence[Sequence[Command]]) -> list[pa.RecordBatch]:
    return [batch_of(schema_of(scope), group) for group in groups]


@SCOPES
@given(groups=GROUPS, count=HASH_COUNTS, data=st.data())
def test_neighbours_may_be_resolved_first(
    scope: Scope, groups: list[list[Command]], count: int | None, data: st.DataObject
) -> None:
    with hashes_of_few_values(count):
        batches = batches_of(scope, groups)
        start = data.draw(st.integers(0, len(batches) - 1))
        stop = data.draw(st.integers(start + 1, len(batches)))
        first = winners(scope, batches[start:stop])
        assert winners(scope, [*batches[:start], first, *batches[stop:]]) == winners(scope, batches)


@SCOPES
@given(groups=GROUPS, count=HASH_COUNTS)
def test_resolving_again_changes_nothing(
    scope: Scope, groups: list[list[Command]], count: int | None
) -> None:
    with hashes_of_few_values(count):
        once = winners(scope, batches_of(scope, groups))
        assert winners(scope, [once]) == once


@SCOPES
@given(groups=GROUPS, count=HASH_COUNTS)
def test_the_winners_are_those_of_the_slow_obvious_version(
    scope: Scope, groups: list[list[Command]], count: int | None
) -> None:
    with hashes_of_few_values(count):
        found = winners(scope, batches_of(scope, groups))
    expected = Model(scope).winners([command for group in groups for command in group])
    values = [
        v if d > 0 else None
        for v, d in zip(found["v"].to_pylist(), found["__diff"].to_pylist(), strict=True)
    ]
    assert dict(zip(found["k"].to_pylist(), values, strict=True)) == {
        key: command.value for key, command in expected.items()
    }


@pytest.mark.parametrize("scope", [Scope.TABLE, Scope.EPOCH], ids=lambda s: f"with scope {s.value}")
@given(commands=BATCHES, count=HASH_COUNTS, data=st.data())
def test_distinct_order_keys_may_come_in_any_order(
    scope: Scope, commands: list[Command], count: int | None, data: st.DataObject
) -> None:
    distinct = list({(c.key, c.order): c for c in commands}.values())
    with hashes_of_few_values(count):
        one = winners(scope, batches_of(scope, [distinct]))
        other = winners(scope, batches_of(scope, [data.draw(st.permutations(distinct))]))
    assert one == other


@SCOPES
@given(groups=GROUPS, count=HASH_COUNTS, data=st.data())
def test_epochs_may_be_resolved_first_among_neighbours(
    scope: Scope, groups: list[list[Command]], count: int | None, data: st.DataObject
) -> None:
    """A compaction resolves neighbouring epochs; the merged run has the epoch of its first."""
    schema = schema_of(scope)
    with hashes_of_few_values(count):
        runs = [(winners(scope, [batch]), e) for e, batch in enumerate(batches_of(scope, groups))]
        start = data.draw(st.integers(0, len(runs) - 1))
        stop = data.draw(st.integers(start + 1, len(runs)))

        def over_epochs(chosen: list[tuple[pa.RecordBatch, int]]) -> pa.RecordBatch:
            rows = Rows(schema, [BatchPart(batch) for batch, _ in chosen])
            epochs = epochs_by_part(rows, [epoch for _, epoch in chosen])
            found = rows.take(
                schema.run.names, resolve(rows, epochs=epochs, is_one_task=True).winners
            )
            return pa.RecordBatch.from_arrays(found, schema=schema.run)

        merged = (over_epochs(runs[start:stop]), runs[start][1])
        assert over_epochs([*runs[:start], merged, *runs[stop:]]) == over_epochs(runs)


@SCOPES
@given(groups=GROUPS, count=HASH_COUNTS)
def test_every_row_is_a_winner_or_beaten_by_the_winner_of_its_key(
    scope: Scope, groups: list[list[Command]], count: int | None
) -> None:
    schema = schema_of(scope)
    with hashes_of_few_values(count):
        rows = Rows(schema, [BatchPart(batch) for batch in batches_of(scope, groups)])
        found = resolve(rows, is_one_task=True)
        assert sorted([*found.winners, *found.losers]) == list(range(len(rows)))
        [keys] = rows.take(["k"], np.arange(len(rows)))
        assert keys.take(pa.array(found.losers)) == keys.take(pa.array(found.beaten_by))
        assert set(found.beaten_by) <= set(found.winners)
