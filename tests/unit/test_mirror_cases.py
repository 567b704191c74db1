"""The cases of a mirror that its conformance is held against: each has a test that names it.

The numbers are those of ``test_<number>_...`` in the tests; the same number may have several. Here
are also those of the kinds of tables that need a table of another kind than `test_mirror` makes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.schema import ErrorPolicy
from spark_upsert.delta.publish import Mirror
from spark_upsert.table.log.manifest import Kind
from spark_upsert.table.write.commands import UpsertEnvelope
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.truncate import with_truncates
from spark_upsert.table.write.write_set import WriteSet
from tests.support.delta import DeltaTable
from tests.unit.test_mirror import COLUMNS, SEQ, Case

CASES = {
    1: "a table without rows",
    2: "rows that are there already",
    3: "an epoch that changes and adds rows",
    4: "a delete",
    5: "a delete of a key that is not there",
    6: "a delete and a put in one epoch",
    7: "rows that are there already, put again",
    8: "a compaction",
    9: "a compaction, and an epoch behind it",
    10: "an epoch and a compaction in one step",
    11: "five epochs in one step",
    12: "a key that was deleted and came back",
    13: "an overwrite",
    14: "an overwrite by equal rows",
    15: "a restore",
    16: "a restore to the version that is shown",
    17: "a truncate among rows, some of them younger",
    18: "a late row",
    19: "a late row beside a new one",
    20: "equal orders",
    21: "a compaction that loses to an older run",
    22: "a row without a key, in quarantine",
    23: "a quarantine that is switched on",
    24: "partial updates",
    25: "partial updates with an order, and a late delete",
    26: "partial updates, compacted",
    27: "sums",
    28: "a table of contributions",
    29: "a column that is added",
    30: "a type that widens",
    31: "all types, with their extreme values",
    32: "types and names that Delta has not",
    33: "names with spaces, dots and signs",
    34: "a prefix of the hash, and an index",
    35: "a process that is killed between two steps",
    36: "a put that raises and has taken effect",
    37: "two publishers of one version",
    38: "two publishers of different versions",
    39: "a past that is expired",
    40: "a rebuild behind a commit of others",
    41: "a commit of others",
    42: "a place that holds something else",
    43: "a copy of the table that was put back",
    44: "a mirror that was removed",
    45: "checkpoints",
    46: "hints that are absent or wrong",
    47: "the retention",
    48: "a twin of an epoch that never came",
    49: "the times of versions",
    50: "a stream over the feed",
    51: "versions that show nothing",
    52: "a write into many tables",
}

_NAME = re.compile(r"def test_(\d+(?:_and_\d+)*)_")


def _numbers_in_tests() -> set[int]:
    root = Path(__file__).parents[2]
    files = [*root.glob("tests/**/test_*.py"), *root.glob("integration/test_*.py")]
    texts = [file.read_text() for file in files if "mirror" in file.name or "delta" in file.name]
    texts += [file.read_text() for file in files if "publish" in file.name]
    return {int(n) for text in texts for found in _NAME.findall(text) for n in found.split("_and_")}


def test_each_case_has_a_test() -> None:
    assert sorted(CASES.keys() - _numbers_in_tests()) == []


# -- kinds of tables ------------------------------------------------------------------------


def truncate(case: Case, at: int, *rows: tuple[int, str, int]) -> None:
    """Commit rows among which the table was emptied up to an order key."""
    base = case.table.at()
    schema = base.manifest.schema
    envelope = UpsertEnvelope(
        schema=schema, sources={"id": "id", "x": "x"}, order=("seq",), deletes=None
    )
    names = ("id", "x", "seq")
    given = pa.RecordBatch.from_pylist(
        [dict(zip(names, row, strict=True)) for row in rows], schema=pa.schema([*COLUMNS, *SEQ])
    )
    batch = with_truncates(envelope.commands(given), [pa.array([at])], schema)
    commit = case.table.commit(WriteSet(base=base, staged=(stage(base, [batch]),)))
    assert commit is not None
    assert commit.kind is Kind.OVERWRITE


@pytest.mark.parametrize("with_feed", [False, True])
def test_17_a_truncate_leaves_the_younger_rows(with_feed: bool) -> None:
    case = Case(order=SEQ)
    case.put((1, "a", 1), (2, "b", 9))
    case.put((3, "c", 2), (4, "d", 8))
    case.publish(change_feed=with_feed)
    truncate(case, 5, (5, "e", 7))
    case.publish()
    found = case.look()
    assert sorted(row["id"] for row in found.rows().to_pylist()) == [2, 4, 5]
    feed = found.feed()
    if with_feed:
        assert feed is not None
        told = [(row["_change_type"], row["id"]) for row in feed.to_pylist()]
        assert sorted(told) == [("delete", 1), ("delete", 3), ("insert", 5)]
    else:
        assert feed is None
        assert found.data_changes == {True}


@pytest.mark.parametrize("first", ["a", "b"])
def test_20_of_equal_orders_the_tables_winner_wins(first: str) -> None:
    case = Case(order=SEQ)
    then = "b" if first == "a" else "a"
    case.put((1, first, 5), (2, "x", 5))
    case.publish()
    case.put((1, then, 5), (3, "y", 5))
    case.publish()
    case.look()
    case.table.compact(full=True)
    case.publish()
    case.look()


def test_22_a_quarantine_is_cleared() -> None:
    case = Case(on_error=ErrorPolicy.QUARANTINE)
    case.put((None, "of no key"), (1, "a"))
    case.publish()
    case.put((1, "b"))
    case.publish()
    case.table.compact(full=True)
    case.publish()
    assert case.look().rows().to_pylist() == [{"id": 1, "x": "b"}]


def test_23_a_quarantine_that_is_switched_on_makes_no_commit() -> None:
    case = Case()
    case.put((1, "a"))
    before = case.publish()
    case.table.alter(replace(case.table.schema, on_error=ErrorPolicy.QUARANTINE))
    assert case.table.log.head().version == before.shown + 1
    assert case.publish().delta_version == before.delta_version
    case.put((None, "of no key"), (2, "b"))
    case.publish()
    case.look()


def test_26_a_compaction_of_partial_updates_keeps_the_folded_rows() -> None:
    case = Case(
        pa.schema({"id": pa.int64(), "a": pa.int64(), "b": pa.int64()}),
        engine=MergeEngine(Engine.PARTIAL_UPDATE),
    )
    case.put((1, 1, None), (2, 2, None))
    case.put((1, None, 1), (3, 3, 3))
    case.publish()
    rows = case.look().rows()
    case.table.compact(full=True)
    case.publish()
    found = case.look()
    assert found.data_changes == {False}
    assert sorted(map(repr, found.rows().to_pylist())) == sorted(map(repr, rows.to_pylist()))


def test_26_and_27_a_compaction_of_sums_keeps_them() -> None:
    case = Case(
        pa.schema({"id": pa.int64(), "n": pa.int64()}),
        engine=MergeEngine(Engine.AGGREGATION, rules={"n": Rule.SUM}),
    )
    for number in (5, 7):
        case.table.upsert(pa.table({"id": [1, number], "n": [number, number]}))
    case.publish()
    case.table.compact(full=True)
    case.publish()
    assert case.look().data_changes == {False}


# -- races, and what follows ----------------------------------------------------------------


def test_48_twins_of_a_step_that_lost_are_named_by_no_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slower of two publishers has written a twin, and the table has gone on meanwhile."""
    case = Case()
    case.put((1, "a"))
    case.publish()
    case.put((2, "b"))
    slower = Mirror(case.table.log, case.store, case.target)
    put = slower._delta.put

    def after_another(*args: Any, **how: Any) -> bool:
        monkeypatch.undo()
        assert case.table.publish().delta_version == 1
        return put(*args, **how)

    monkeypatch.setattr(slower._delta, "put", after_another)
    assert slower.publish().delta_version == 1
    twins = [info.path for info in case.target.list("") if info.path.endswith(".parquet")]
    assert len(twins) == 3
    assert len(set(twins) - case.look().adds.keys()) == 1
    case.put((2, "c"))
    case.publish()
    assert len(case.look().adds) == 2


def test_50_the_feed_folds_to_the_rows_of_every_version() -> None:
    """Over compactions, overwrites, restores and a truncate: what a stream over the feed does."""
    case = Case(order=SEQ)
    case.put((1, "a", 1), (2, "b", 2))
    case.publish(change_feed=True)
    folded = {row["id"]: row for row in case.look().rows().to_pylist()}
    acts: list[Callable[[], Any]] = [
        lambda: case.put((2, "c", 3), (3, "d", 3)),
        lambda: case.table.compact(full=True),
        lambda: case.put((4, "e", 4), (1, "f", 4), overwrite=True),
        lambda: case.table.restore(2),
        lambda: case.delete((1, None, 9)),
        lambda: truncate(case, 3, (7, "g", 8)),
        lambda: case.put((7, "late", 5)),
    ]
    told = []
    for act in acts:
        act()
        before = DeltaTable(case.target).version
        case.publish()
        found = case.look()
        feed = found.feed() if found.version > before else None
        told.append(0 if feed is None else feed.num_rows)
        rows = [] if feed is None else feed.to_pylist()
        kinds = ("delete", "update_preimage", "insert", "update_postimage")
        for row in sorted(rows, key=lambda row: kinds.index(row["_change_type"])):
            kind, key = row.pop("_change_type"), row["id"]
            if kind in ("delete", "update_preimage"):
                assert folded.pop(key) == row
            else:
                assert key not in folded
                folded[key] = row
        assert sorted(map(repr, folded.values())) == sorted(map(repr, found.rows().to_pylist()))
    assert told[1] == told[6] == 0
    assert all(told[at] for at in (0, 2, 3, 4, 5))
