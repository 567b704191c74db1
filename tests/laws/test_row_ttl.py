"""Rows that are too old go once, as deletes, whatever is written, compacted, killed or repeated."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_upsert.core.schema import Scope, TableSchema
from spark_upsert.table import row_ttl
from spark_upsert.table.changelog.read import ChangeOptions
from spark_upsert.table.log.properties import COMMITTED, ROW_TTL, ROW_TTL_BY
from spark_upsert.table.table import Table
from tests.support.clocked import ClockedStore, Now
from tests.support.stores import Fault, FaultyStore, KilledError, Moment, Steps

TTL_S = 1_000
COLUMNS = pa.schema({"k": pa.int64(), "at": pa.timestamp("us", "UTC"), "seq": pa.int64()})

AGES = st.sampled_from([-1_500, -1_000, -999, -500, 0, 50])

ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.lists(st.tuples(st.integers(0, 3), AGES), max_size=4)),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 3), max_size=2)),
        st.tuples(st.just("advance"), st.sampled_from([1, 500, 999, 1_400])),
        st.tuples(st.just("compact"), st.booleans()),
        st.tuples(st.just("expire"), st.none()),
        st.tuples(st.just("die"), st.tuples(st.integers(0, 30), st.sampled_from(list(Moment)))),
    ),
    max_size=14,
)
"""Writes have keys and times, in seconds after now; an expiry may die at a step."""

Model = dict[int, tuple[int, int]]
"""Key to time in us and order."""


class Life:
    """A table and what it should hold, act by act."""

    def __init__(self, *, ordered: bool, by: str = "at") -> None:
        self.now = Now()
        self.store = ClockedStore(self.now)
        self.table = Table(self.store, clock=self.now)
        order = [COLUMNS.field("seq")] if ordered else []
        scope = Scope.TABLE if ordered else Scope.ARRIVAL
        schema = TableSchema.of(COLUMNS, keys=["k"], order=order, scope=scope)
        ttl = {ROW_TTL: f"{TTL_S} seconds", ROW_TTL_BY: by}
        self.by_commit = by == COMMITTED
        self.written: dict[int, int] = {}
        """The time of the commit that wrote a key last, in us."""
        self.table.ensure(schema, ttl)
        self.model: Model = {}
        self.seq = 0
        self.cutoff_us = 0
        self.expired = 0

    @property
    def now_us(self) -> int:
        return self.table.log.now_ms() * 1000

    def act(self, what: str, how: Any) -> None:
        getattr(self, what)(how)
        self.follow()
        self.agree()

    def follow(self) -> None:
        """Take the rows out of the model that expiries since the last act should have taken."""
        head = self.table.log.head()
        self.cutoff_us = max(self.cutoff_us, row_ttl.last_cutoff_ms(head) * 1000)

    def agree(self) -> None:
        shown = self.table.snapshot().to_pylist()
        held = {row["k"]: (us_of(row["at"]), row["seq"]) for row in shown}
        old = {k: v for k, v in self.model.items() if k not in held}
        assert all(self.time_of(k, at) <= self.cutoff_us for k, (at, _) in old.items())
        assert held == {k: v for k, v in self.model.items() if k in held}
        # What is gone was too old; what was too old at the last whole expiry is gone, unless it
        # came later.
        self.expired += len(old)
        self.model = held

    def time_of(self, key: int, at: int) -> int:
        """Return the time from which a row ages."""
        return self.written[key] if self.by_commit else at

    def write(self, rows: list[tuple[int, int]]) -> None:
        taken = []
        for key, age_s in rows:
            self.seq += 1
            taken.append((key, self.now_us + age_s * 1_000_000, self.seq))
        for key, at, seq in taken:
            self.model[key] = (at, seq)
        kept = {key: (at, seq) for key, at, seq in taken}
        self.append([(key, *kept[key]) for key in kept])

    def append(self, rows: list[tuple[int, int, int]]) -> None:
        done = self.table.upsert(table_of(rows))
        assert done is not None
        self.written |= dict.fromkeys((key for key, *_ in rows), done.timestamp_ms * 1000)

    def delete(self, keys: list[int]) -> None:
        for key in keys:
            self.model.pop(key, None)
        if keys:
            self.table.delete(sorted(set(keys)))

    def advance(self, seconds: int) -> None:
        self.now.advance(seconds)

    def compact(self, full: bool) -> None:
        self.table.compact(full=full)

    def expire(self, _: None) -> None:
        done = self.table.expire_rows()
        assert done is not None
        assert done.cutoff_ms * 1000 >= self.now_us - TTL_S * 1_000_000
        assert all(
            self.time_of(r["k"], us_of(r["at"])) > done.cutoff_ms * 1000
            for r in self.table.snapshot().to_pylist()
        )

    def forget(self, _: None) -> None:
        """Give up all versions that the table can do without."""
        self.table.expire(retain_versions=0, safety_ms=0)

    def die(self, fault: tuple[int, Moment]) -> None:
        step, moment = fault
        faulty = FaultyStore(self.store, Steps(Fault(step, moment)))
        with suppress(KilledError):
            Table(faulty, clock=self.now).expire_rows()
        self.table = Table(self.store, clock=self.now)


def table_of(rows: list[tuple[int, int, int]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    arrays = [pa.array(c, pa.int64()) for c in columns]
    arrays[1] = arrays[1].cast(pa.timestamp("us", "UTC"))
    return pa.Table.from_arrays(arrays, schema=COLUMNS)


def us_of(time: Any) -> int:
    return round(time.timestamp() * 1_000_000)


def assert_changes_fold(table: Table) -> None:
    """The changelog holds each expiry as one retraction, and folds to the table."""
    counted: Counter[tuple[Any, ...]] = Counter()
    since = table.log.head().since
    if since:
        for row in table.snapshot(since).to_pylist():
            counted[row["k"], row["at"], row["seq"]] += 1
    for batch in table.iter_changes(
        table.log.head().first_changes,
        table.log.head().upper,
        ChangeOptions(columns=tuple(COLUMNS.names)),
    ):
        for row in batch.to_pylist():
            counted[row["k"], row["at"], row["seq"]] += row["_diff"]
            assert counted[row["k"], row["at"], row["seq"]] in (0, 1)
    left = {row for row, count in counted.items() if count}
    assert left == {(r["k"], r["at"], r["seq"]) for r in table.snapshot().to_pylist()}


def deletes_of_expiries(table: Table) -> int:
    own = [
        commit.counters.get("deletes", 0)
        for commit in table.log.commits(0, table.log.head().upper)
        if any(each.writer.startswith("rowTtl:") for each in commit.transactions)
    ]
    return sum(own)


AGED = st.lists(
    st.one_of(
        ACTS.map(lambda acts: acts[0] if acts else ("expire", None)), st.just(("forget", None))
    ),
    max_size=14,
)


@example(
    acts=[
        ("write", [(1, 0)]),
        ("advance", 500),
        ("write", [(2, 0)]),
        ("forget", None),
        ("advance", 600),
    ],
    ordered=False,
)
@given(acts=AGED, ordered=st.booleans())
def test_by_the_time_of_commits_rows_go_that_were_not_written_since(
    acts: list[tuple[str, Any]], ordered: bool
) -> None:
    life = Life(ordered=ordered, by=COMMITTED)
    for what, how in acts:
        life.act(what, how)
    life.act("expire", None)
    assert_changes_fold(life.table)
    assert life.table.check().is_sound


@example(acts=[("write", [(1, -999), (2, -1_000)])], ordered=True)
@given(acts=ACTS, ordered=st.booleans())
def test_rows_that_are_too_old_go_once_and_no_others(
    acts: list[tuple[str, Any]], ordered: bool
) -> None:
    life = Life(ordered=ordered)
    for what, how in acts:
        life.act(what, how)
    life.act("expire", None)
    assert_changes_fold(life.table)
    assert deletes_of_expiries(life.table) == life.expired
    assert life.table.check().is_sound


def test_what_expired_follows_from_the_log_alone() -> None:
    """Two processes that repeat the same expiry delete each row once."""
    life = Life(ordered=True)
    dice = random.Random(3)
    life.write([(key, -dice.randrange(500)) for key in range(6)])
    life.advance(900)
    others = [Table(life.store, clock=life.now) for _ in range(3)]
    done = [other.expire_rows() for other in others]
    assert sum(each.deletes for each in done if each is not None) == deletes_of_expiries(life.table)
    assert len({each.cutoff_ms for each in done if each is not None}) == 1
    assert_changes_fold(life.table)


@pytest.mark.slow
def test_a_row_that_is_refreshed_meanwhile_stays() -> None:
    """Another writer refreshes the row behind each step of an expiry, in turn."""
    for ordered, by in itertools.product((False, True), ("at", COMMITTED)):
        for step in itertools.count():
            life = Life(ordered=ordered, by=by)
            life.append([(1, life.now_us, 1), (2, life.now_us, 1)])
            life.advance(TTL_S + 1)
            fresh = table_of([(1, life.now_us, 2)])
            came = itertools.count()

            def refresh(
                step: int = step,
                life: Life = life,
                fresh: pa.Table = fresh,
                came: Iterator[int] = came,
            ) -> None:
                if next(came) == step:
                    life.table.upsert(fresh)

            steps = Steps(watch=refresh)
            done = Table(FaultyStore(life.store, steps), clock=life.now).expire_rows()
            if len(steps.names) <= step:
                break
            assert done is not None
            assert done.deletes in (1, 2)
            assert [row["k"] for row in life.table.snapshot().to_pylist()] == [1], step
            assert_changes_fold(life.table)
        assert step > 5
