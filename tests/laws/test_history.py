"""A history has each row that a table held, from its first version to its last, and no other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_upsert.core.schema import Scope, TableSchema
from spark_upsert.errors import OptionError
from spark_upsert.options.read import ReadOptions
from spark_upsert.streams.reads.read_split import read_split
from spark_upsert.streams.reads.splits import history_splits
from spark_upsert.table.changelog.history import AT, IS_PUT, VERSION, validity
from spark_upsert.table.changelog.read import HistoryOptions, ValidBy
from tests.support.histories import (
    CONDITIONS,
    HISTORIES,
    Conditions,
    Played,
    Step,
    WrittenEpoch,
    play,
    under,
)
from tests.support.model import Command

SCOPES = pytest.mark.parametrize("scope", Scope, ids=lambda scope: f"with scope {scope.value}")

WANTED = HistoryOptions(columns=("k", "v"))


class BatchDelay(NamedTuple):
    """A row of a history, as a person would write it down."""

    key: Any
    value: Any
    begins: Any
    ends: Any

    @property
    def told(self) -> tuple[Any, ...]:
        return (*self, self.ends is None)


def at_of(played: Played, by: ValidBy, version: int, key: Any) -> Any:
    match by:
        case ValidBy.VERSION:
            return version
        case ValidBy.TIME:
            return played.table.log.at(version).timestamp_ms
        case ValidBy.ORDER:
            return played.entries[version][key].order


def written_down(played: Played, by: ValidBy, lower: int, upper: int) -> Iterator[BatchDelay]:
    """Yield what a person writes down that looks at the table at each version, row by row."""
    held = {
        k: BatchDelay(k, v, at_of(played, by, lower, k), None)
        for k, v in played.rows[lower].items()
    }
    for version in range(lower + 1, upper):
        before, now = played.rows[version - 1], played.rows[version]
        for key in before.keys() | now.keys():
            if before.get(key) == now.get(key):
                continue
            at = at_of(played, by, version, key)
            if key in held:
                yield held.pop(key)._replace(ends=at)
            if key in now:
                held[key] = BatchDelay(key, now[key], at, None)
    yield from held.values()


def told_by(rows: Sequence[pa.RecordBatch] | pa.RecordBatchReader) -> list[tuple[Any, ...]]:
    def plain(value: Any) -> Any:
        return round(value.timestamp() * 1000) if hasattr(value, "timestamp") else value

    names = ["k", "v", "valid_from", "valid_to", "is_current"]
    return sorted(
        (tuple(plain(row[name]) for name in names) for batch in rows for row in batch.to_pylist()),
        key=repr,
    )


def spans(played: Played) -> Iterator[tuple[int, int]]:
    return itertools.combinations(range(played.upper + 1), 2)


@SCOPES
@given(
    history=HISTORIES, conditions=CONDITIONS, by=st.sampled_from([ValidBy.TIME, ValidBy.VERSION])
)
def test_a_history_is_what_is_seen_at_each_version(
    scope: Scope, history: list[Step], conditions: Conditions, by: ValidBy
) -> None:
    with under(conditions):
        played = play(scope, history)
        for lower, upper in spans(played):
            expected = sorted(
                (each.told for each in written_down(played, by, lower, upper)), key=repr
            )
            found = played.table.history(lower, upper, columns=WANTED.columns, by=by)
            assert told_by(found) == expected


@example(
    history=[WrittenEpoch([[[Command(1, 5, 2)]]]), WrittenEpoch([[[Command(1, None, 4)]]])],
    conditions=Conditions(hash_values=None, are_pieces_tiny=False),
)
@given(history=HISTORIES, conditions=CONDITIONS)
def test_orders_tell_when_rows_and_deletes_came(
    history: list[Step], conditions: Conditions
) -> None:
    by = ValidBy.ORDER
    with under(conditions):
        played = play(Scope.TABLE, history)
        for lower, upper in spans(played):
            wanted = {"columns": WANTED.columns, "by": by}
            commits = (played.commits.get(version) for version in range(lower + 1, upper))
            if any(commit is not None and commit.kind.value == "overwrite" for commit in commits):
                with pytest.raises(OptionError, match="has no order"):
                    played.table.history(lower, upper, **wanted)  # type: ignore[arg-type]
                continue
            expected = sorted(
                (each.told for each in written_down(played, by, lower, upper)), key=repr
            )
            found = played.table.history(lower, upper, **wanted)  # type: ignore[arg-type]
            assert told_by(found) == expected


@given(history=HISTORIES, conditions=CONDITIONS, splits=st.integers(1, 5))
def test_any_number_of_splits_has_the_same_history(
    history: list[Step], conditions: Conditions, splits: int
) -> None:
    options = ReadOptions.parse(
        {"path": "/t", "readHistory": "true", "validBy": "version", "splits": str(splits)}
    )
    wanted = HistoryOptions(columns=WANTED.columns, by=ValidBy.VERSION)
    with under(conditions):
        played = play(Scope.TABLE, history)
        table = played.table
        cut = history_splits(table.log, options, wanted, 0, played.upper)
        assert len(cut) <= max(splits, 1)
        read = [
            rows for split in cut for rows in read_split(table.store, split, options, ("k", "v"))
        ]
        whole = table.history(0, columns=WANTED.columns, by=ValidBy.VERSION)
        assert told_by(read) == told_by(whole)


# -- tracked columns -------------------------------------------------------------------

SCHEMA = TableSchema.of(
    pa.schema({"k": pa.int64(), "v": pa.float64(), "w": pa.string()}), keys=["k"]
)
VALUES = st.sampled_from([None, 0.0, 1.5, math.nan])
LIVES = st.lists(
    st.tuples(st.integers(0, 2), st.booleans(), VALUES, st.sampled_from([None, "", "a"])),
    max_size=12,
)
"""Key, whether it is a row or a delete, and its values; each is of a version of its own."""
TRACKED = st.sampled_from([("v",), ("w",), ("v", "w"), ("k",), ()])


def events(life: Sequence[tuple[int, bool, float | None, str | None]]) -> pa.RecordBatch:
    columns = list(zip(*life, strict=True)) or [(), (), (), ()]
    types = [pa.int64(), pa.bool_(), pa.float64(), pa.string()]
    key, is_put, v, w = (pa.array(c, t) for c, t in zip(columns, types, strict=True))
    versions = pa.array(range(len(life)), pa.int64())
    return pa.RecordBatch.from_arrays(
        [key, v, w, versions, versions, is_put], names=["k", "v", "w", AT, VERSION, IS_PUT]
    )


def rows_of_life(
    life: Sequence[tuple[int, bool, float | None, str | None]], tracked: tuple[str, ...]
) -> list[tuple[Any, ...]]:
    """The slow, obvious version: one event after the other, against the row that holds."""
    held: dict[int, list[Any]] = {}
    done: list[tuple[Any, ...]] = []
    for version, (key, is_put, v, w) in enumerate(life):
        names = set(tracked or ("v", "w"))
        seen = tuple(repr(x) for name, x in (("v", v), ("w", w)) if name in names)
        if key in held and is_put and held[key][0] == seen:
            held[key][1:3] = [v, w]
            continue
        if key in held:
            _, *row = held.pop(key)
            done.append((key, *row, version, False))
        if is_put:
            held[key] = [seen, v, w, version]
    done += [(key, *row, None, True) for key, (_, *row) in held.items()]
    return sorted(done, key=repr)


@given(
    life=LIVES,
    tracked=TRACKED,
    as_except=st.booleans(),
    seed=st.randoms(use_true_random=False),
)
def test_changes_of_other_columns_replace_the_values_of_the_row_that_holds(
    life: list[tuple[int, bool, float | None, str | None]],
    tracked: tuple[str, ...],
    as_except: bool,
    seed: Any,
) -> None:
    columns = ("k", "v", "w")
    wanted = HistoryOptions(columns=columns, by=ValidBy.VERSION, tracked=tracked)
    if as_except:
        others = tuple(name for name in columns if tracked and name not in tracked)
        wanted = HistoryOptions(columns=columns, by=ValidBy.VERSION, untracked=others)
    shuffled = list(range(len(life)))
    seed.shuffle(shuffled)
    found = validity(events(life).take(pa.array(shuffled, pa.int64())), SCHEMA, wanted)
    rows = [tuple(row.values()) for row in found.to_pylist()]
    # NaN is NaN here, which Python's equality denies.
    assert sorted(repr(row[:-1]) for row in rows) == list(map(repr, rows_of_life(life, tracked)))
    assert [row[-1] for row in rows] == [row[3] for row in rows], "a row is opened by its version"
