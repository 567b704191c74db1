"""A kept table shows its view at the position that it has recorded, whatever happens to it.

Between any two steps it is compacted, in part or whole, expired, opened anew; a step comes again,
alone or as a part of a longer one, from a query that lost its checkpoint. Few groups, few values.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_upsert.errors import OtherTableError
from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.table.compaction import choose, compact_runs
from spark_upsert.table.table import Table
from spark_upsert.views.grouping import Grouping, contributions
from spark_upsert.views.materialized import MaterializedView
from tests.support.grouped import Row, expected, kept_in_memory, pairs_of, position, shown

ROWS = pa.schema({"g": pa.int64(), "x": pa.float64(), "y": pa.decimal128(38, 0)})
GROUPING = Grouping(
    ROWS,
    ("g",),
    (
        Aggregate(name="n", kind=AggregateKind.COUNT),
        Aggregate(name="total", kind=AggregateKind.SUM, column="x", scale=0),
        Aggregate(name="least", kind=AggregateKind.MIN, column="x"),
        Aggregate(name="huge", kind=AggregateKind.SUM, column="y"),
        Aggregate(name="mean", kind=AggregateKind.AVG, column="y"),
    ),
)
HUGE = Decimal(9 * 10**37)
"""Two of them are more than a decimal holds."""
CONTENTS = st.dictionaries(
    st.integers(0, 3),
    st.tuples(
        st.none() | st.integers(0, 1),
        st.none() | st.sampled_from([1.0, -1.0, 0.0, 9e37]),
        st.none() | st.sampled_from([HUGE, -HUGE, Decimal(3)]),
    ),
    max_size=3,
)


class Play:
    """A kept table, and what its view was after each epoch of its one input."""

    def __init__(self) -> None:
        self.kept = kept_in_memory(GROUPING)
        self.contents: list[dict[int, Row]] = [{}]
        self.recorded = 0

    def deliver(self, lower: int, upper: int) -> bool:
        """Deliver a step from one epoch of the input to another."""
        pairs = pairs_of(self.contents[lower], self.contents[upper], ROWS)
        return self.kept.apply(contributions(GROUPING, pairs), lower=at(lower), upper=at(upper))

    def rows(self, version: int | None = None) -> dict[Row, Row]:
        return shown(GROUPING, self.kept.rows(version))

    def expected(self) -> dict[Row, Row]:
        return expected(GROUPING, self.contents[self.recorded].values())


def at(index: int) -> str:
    return position(index - 1)


def compact_some(play: Play) -> None:
    table = play.kept.table
    jobs = choose(table.log.head(), fanout=2)
    table.commit_compactions(compact_runs(table.store, table.log.head(), job) for job in jobs)


def compact_all(play: Play) -> None:
    play.kept.table.compact(full=True)


def expire(play: Play) -> None:
    table = play.kept.table
    table.expire(retain_versions=1, safety_ms=0, writers_ms=0)
    table.vacuum(grace_ms=0)


def restart(play: Play) -> None:
    play.kept = MaterializedView(Table(play.kept.table.store), GROUPING)


def deliver_again(play: Play) -> None:
    if play.recorded:
        assert not play.deliver(play.recorded - 1, play.recorded)
        assert not play.deliver(0, play.recorded)


def deliver_too_much(play: Play) -> None:
    """A query that began anew elsewhere goes on in larger steps."""
    play.contents.append({0: (0, 1.0, None), 1: (None, None, HUGE)})
    if play.recorded:
        with pytest.raises(OtherTableError):
            play.deliver(play.recorded - 1, play.recorded + 1)
    play.contents.pop()


ACTIONS: list[Callable[[Play], None]] = [
    compact_some,
    compact_all,
    expire,
    restart,
    deliver_again,
    deliver_too_much,
]
ACTION_NAMES = {action.__name__: action for action in ACTIONS}


@settings(max_examples=max(1, settings().max_examples // 5))
@given(
    history=st.lists(
        st.tuples(CONTENTS, st.lists(st.sampled_from(sorted(ACTION_NAMES)), max_size=3)),
        min_size=1,
        max_size=5,
    )
)
def test_a_kept_table_shows_its_view_whatever_happens(history: list[Any]) -> None:
    play = Play()
    for content, actions in history:
        before, was = play.rows(), play.kept.table.log.head().version
        play.contents.append(content)
        assert play.deliver(play.recorded, play.recorded + 1)
        play.recorded += 1
        [(_, pairs)] = play.kept.changes(was + 1, was + 2)
        assert folded_into(before, pairs) == play.rows() == play.expected()
        for action in actions:
            ACTION_NAMES[action](play)
            assert play.rows() == play.expected()
            assert play.kept.position() == at(play.recorded)
        head = play.kept.table.log.head()
        entries = play.kept.table.snapshot()
        assert head.live_rows == entries.num_rows == count_of_entries(content) + 1
    assert play.kept.table.check().is_sound


def folded_into(rows: dict[Row, Row], pairs: Any) -> dict[Row, Row]:
    """Fold changes into a result; each old row must be the one that is there."""
    found = dict(rows)
    for row in shown(GROUPING, pairs.old_rows()).items():
        assert found.pop(row[0], "no row") == row[1]
    fresh = shown(GROUPING, pairs.new_rows())
    assert not fresh.keys() & found.keys()
    return found | fresh


def count_of_entries(content: dict[int, Row]) -> int:
    """Return how many entries rows have: their groups, and the values of those."""
    groups = {g for g, *_ in content.values()}
    return len(groups) + len({(g, x) for g, x, _ in content.values() if x is not None})
