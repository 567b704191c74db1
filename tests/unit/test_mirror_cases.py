"""The cases of a mirror that its conformance is held against: each has a test that names it.

The numbers are those of ``test_<number>_...`` and of ids ``"<number>: ..."``; a number may have
several. Here
are also those of the kinds of tables that need a table of another kind than `test_mirror` makes.
"""

from __future__ import annotations

import re
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
from spark_upsert.table.write.write_set import WriteSet, with_truncates
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
_ID = re.compile(r'"(\d+): ')


def _numbers_in_tests() -> set[int]:
    root = Path(__file__).parents[2]
    files = [*root.glob("tests/**/test_*.py"), *root.glob("integration/test_*.py")]
    texts = [file.read_text() for file in files if "mirror" in file.name or "delta" in file.name]
    texts += [file.read_text() for file in files if "publish" in file.name]
    names = [name for text in texts for name in _NAME.findall(text)]
    ids = [int(number) for text in texts for number in _ID.findall(text)]
    return {int(number) for name in names for number in name.split("_and_")} | {*ids}


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
    columns = pa.schema([*COLUMNS, *SEQ])
    records = [dict(zip(columns.names, row, strict=True)) for row in rows]
    commands = envelope.commands(pa.RecordBatch.from_pylist(records, schema=columns))
    batch = with_truncates(commands, [pa.array([at])], schema)
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
    mirror = case.look()
    assert sorted(row["id"] for row in mirror.rows().to_pylist()) == [2, 4, 5]
    feed = mirror.feed()
    changes = [] if feed is None else [(r["_change_type"], r["id"]) for r in feed.to_pylist()]
    expected = [("delete", 1), ("delete", 3), ("insert", 5)] if with_feed else []
    assert sorted(changes) == expected
    assert mirror.data_changes == {True}


@pytest.mark.parametrize("first", ["a", "b"])
def test_20_of_equal_orders_the_tables_winner_wins(first: str) -> None:
    case = Case(order=SEQ)
    case.put((1, first, 5), (2, "x", 5))
    case.publish()
    case.put((1, "b" if first == "a" else "a", 5), (3, "y", 5))
    for _ in range(2):
        case.publish()
        case.look()
        case.table.compact(full=True)


def test_22_and_23_a_quarantine_makes_no_commit_and_is_cleared() -> None:
    case = Case()
    case.put((1, "a"))
    before = case.publish()
    case.table.alter(replace(case.table.schema, on_error=ErrorPolicy.QUARANTINE))
    assert case.table.log.head().version == before.shown + 1
    assert case.publish().delta_version == before.delta_version
    case.put((None, "of no key"), (2, "b"))
    case.publish()
    case.look()
    case.put((1, "b"))
    case.publish()
    case.table.compact(full=True)
    case.publish()
    assert sorted(map(repr, case.look().rows().to_pylist())) == [
        "{'id': 1, 'x': 'b'}",
        "{'id': 2, 'x': 'b'}",
    ]


@pytest.mark.parametrize(
    "engine",
    [
        MergeEngine(Engine.PARTIAL_UPDATE),
        MergeEngine(Engine.AGGREGATION, rules={"a": Rule.SUM, "b": Rule.SUM}),
    ],
    ids=["partial updates", "sums"],
)
def test_26_and_27_a_compaction_keeps_the_folded_rows(engine: MergeEngine) -> None:
    columns = pa.schema({"id": pa.int64(), "a": pa.int64(), "b": pa.int64()})
    case = Case(columns, engine=engine)
    for rows in ([(1, 1, None), (2, 2, None)], [(1, None, 1), (3, 3, 3)]):
        case.table.upsert(pa.table(list(zip(*rows, strict=True)), schema=columns))
    case.publish()
    rows_before = case.look().rows()
    case.table.compact(full=True)
    case.publish()
    mirror = case.look()
    assert mirror.data_changes == {False}
    assert mirror.rows().sort_by("id").equals(rows_before.sort_by("id"))


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
