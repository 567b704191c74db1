"""A kept history is the history of its table, however often and by whomever it is brought up."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_upsert.core.schema import Scope
from spark_upsert.errors import DataLossError
from spark_upsert.store import Store
from spark_upsert.table.changelog.read import ValidBy
from spark_upsert.table.keep_history import keep_history
from spark_upsert.table.table import Table
from tests.support.histories import CONDITIONS, EPOCHS, Conditions, WrittenEpoch, under
from tests.support.model import Command
from tests.support.stores import Fault, FaultyStore, KilledError, MemoryStore, Moment, Steps
from tests.support.tables import apply_epoch, make_table, schema_of

ACTS = st.lists(
    st.one_of(
        EPOCHS,
        st.tuples(st.just("compact"), st.booleans()),
        st.tuples(st.just("keep"), st.none()),
        st.tuples(st.just("die"), st.tuples(st.integers(0, 12), st.sampled_from(list(Moment)))),
        st.tuples(st.just("expire"), st.none()),
        st.tuples(st.just("late"), st.none()),
    ),
    max_size=10,
)
"""Epochs of the source, and what happens to it and to the kept table between them."""

Rows = list[tuple[Any, ...]]


class Life:
    """A table, the table that keeps its history, and a keeper that looked and did not yet act."""

    def __init__(self, by: ValidBy) -> None:
        self.by = by
        self.table = make_table(MemoryStore(), schema_of(Scope.TABLE))
        self.store = MemoryStore()
        self.begins: int | None = None

    def kept(self, store: Store | None = None) -> Table:
        return Table(store or self.store)

    def act(self, act: Any) -> None:
        if isinstance(act, WrittenEpoch):
            overwrite = act.overwrite and self.by is not ValidBy.ORDER
            apply_epoch(self.table, act.tasks, overwrite=overwrite)
        else:
            what, how = act
            getattr(self, what)(how)

    def compact(self, full: bool) -> None:
        self.table.compact(full=full)
        if self.begins is not None:
            self.kept().compact(full=full)

    def keep(self, _: None) -> None:
        since = self.table.log.head().since
        keep_history(self.table, self.kept(), columns=["k", "v"], by=self.by)
        self.begins = since if self.begins is None else self.begins
        assert keep_history(self.table, self.kept(), columns=["k", "v"], by=self.by) is None
        self.agree()

    def die(self, fault: tuple[int, Moment]) -> None:
        step, moment = fault
        since = self.table.log.head().since
        faulty = FaultyStore(self.store, Steps(Fault(step, moment)))
        with suppress(KilledError):
            keep_history(self.table, self.kept(faulty), columns=["k", "v"], by=self.by)
        head = self.kept().log.try_head()
        if self.begins is None and head is not None and head.transactions:
            self.begins = since

    def expire(self, _: None) -> None:
        """Give up what no lease holds; the keeper's holds what it has not read."""
        if self.begins is not None:
            with suppress(DataLossError):
                self.table.expire(retain_versions=1, safety_ms=0)

    def late(self, _: None) -> None:
        """Bring it up to date twice at once: the second keeper begins anew behind the first."""
        if self.begins is None:
            return
        first = [True]

        def overtake() -> None:
            if first and watched.names[-1].startswith("create "):
                first.clear()
                self.keep(None)

        watched = Steps(watch=overtake)
        slow = self.kept(FaultyStore(self.store, watched))
        keep_history(self.table, slow, columns=["k", "v"], by=self.by)
        self.agree()

    def agree(self) -> None:
        """What is kept is what the source shows, as far as it can still be read."""
        shown = {tuple(row.values()) for row in self._kept_rows()}
        assert len(shown) == self.kept().log.head().live_rows
        since, begins = self.table.log.head().since, self.begins
        assert begins is not None
        if since <= begins:
            told = self.table.history(begins, columns=["k", "v"], by=self.by).read_all()
            assert shown == {tuple(row.values()) for row in told.to_pylist()}
        # The rows that are open are those of the table.
        current = {(row["k"], row["v"]) for row in self._kept_rows() if row["is_current"]}
        rows = self.table.snapshot(columns=["k", "v"]).to_pylist()
        assert current == {(row["k"], row["v"]) for row in rows}

    def _kept_rows(self) -> list[dict[str, Any]]:
        names = ["k", "v", "valid_from", "valid_to", "is_current"]
        rows: list[dict[str, Any]] = self.kept().snapshot(columns=names).to_pylist()
        return rows


def put(key: int, value: int | None, order: int) -> WrittenEpoch:
    return WrittenEpoch([[[Command(key, value, order)]]])


@example(
    acts=[put(1, 5, 1), ("keep", None), put(1, 6, 2), ("late", None), put(1, None, 3)],
    by=ValidBy.VERSION,
    conditions=Conditions(hash_values=None, are_pieces_tiny=False),
)
@example(
    acts=[("keep", None), WrittenEpoch([]), WrittenEpoch([]), ("keep", None), ("expire", None)],
    by=ValidBy.TIME,
    conditions=Conditions(hash_values=None, are_pieces_tiny=False),
)
@given(acts=ACTS, by=st.sampled_from(ValidBy), conditions=CONDITIONS)
def test_a_kept_history_is_the_history_of_its_table(
    acts: list[Any], by: ValidBy, conditions: Conditions
) -> None:
    with under(conditions):
        life = Life(by)
        for act in acts:
            life.act(act)
        life.keep(None)
        assert life.kept().check().is_sound


def test_its_changes_end_a_row_and_open_one() -> None:
    life = Life(ValidBy.VERSION)
    for act in (put(1, 5, 1), put(2, 9, 1), ("keep", None), put(1, 6, 2), ("keep", None)):
        life.act(act)
    changes = life.kept().changes(life.kept().log.head().version).to_pylist()
    told = sorted((c["_change_type"], c["v"], c["valid_to"], c["is_current"]) for c in changes)
    assert told == [
        ("insert", 6, None, True),
        ("update_postimage", 5, 3, False),
        ("update_preimage", 5, None, True),
    ]


@pytest.mark.parametrize("said", [{"tracked": ["v"]}, {"untracked": ["n"]}], ids="by {}".format)
def test_a_row_is_replaced_while_its_tracked_columns_stay(said: dict[str, Any]) -> None:
    columns = pa.schema({"id": pa.int64(), "v": pa.string(), "n": pa.int64()})
    table, kept = Table(MemoryStore()), Table(MemoryStore())
    table.ensure(schema_of(Scope.ARRIVAL).of(columns, keys=["id"]))
    for n, v in enumerate(["a", "a", "b"]):
        table.upsert(pa.table({"id": [1], "v": [v], "n": [n]}))
        keep_history(table, kept, by=ValidBy.VERSION, **said)
    whole = table.history(by=ValidBy.VERSION, **said).read_all()
    names = whole.column_names
    assert [row["n"] for row in whole.to_pylist()] == [1, 2]
    assert kept.snapshot(columns=names).sort_by("valid_from").to_pylist() == whole.to_pylist()
