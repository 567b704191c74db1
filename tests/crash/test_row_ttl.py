"""An expiry of rows that is killed at any step, or fails there, is made up for by the next one."""

from __future__ import annotations

import itertools
from contextlib import suppress

import pytest

from spark_upsert.table.table import Table
from tests.laws.test_row_ttl import TTL_S, Life, assert_changes_fold
from tests.support.stores import BrokenError, Fault, FaultyStore, KilledError, Moment, Steps


@pytest.mark.parametrize("moment", list(Moment), ids=lambda each: each.value)
@pytest.mark.parametrize("kind", [KilledError, BrokenError])
def test_an_expiry_that_fails_anywhere_leaves_each_row_or_deletes_it_once(
    kind: type[BaseException], moment: Moment
) -> None:
    for step in itertools.count():
        life = Life(ordered=True)
        life.append([(key, life.now_us + key * 1_000_000, key) for key in range(4)])
        life.advance(TTL_S + 1)
        steps = Steps(Fault(step, moment, kind))
        with suppress(KilledError, OSError):
            Table(FaultyStore(life.store, steps), clock=life.now).expire_rows()
        held = {row["k"] for row in life.table.snapshot().to_pylist()}
        assert held in ({0, 1, 2, 3}, {2, 3}), step
        again = Table(life.store, clock=life.now)
        again.expire_rows()
        assert {row["k"] for row in again.snapshot().to_pylist()} == {2, 3}
        assert_changes_fold(again)
        assert again.check().is_sound
        if not steps.struck:
            break
    assert step > 5
