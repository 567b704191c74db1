"""The envelope ``changelog``: what rows of a change feed do to a table."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import CHANGELOG_FIELDS, Scope
from spark_upsert.errors import DataError, OptionError, SchemaError
from spark_upsert.table.table import Table
from tests.support.envelopes import (
    assert_sound,
    counters_of,
    plan,
    quarantine_of,
    rows_of,
    write,
)

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
OURS = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.string()), *CHANGELOG_FIELDS])
DELTAS = pa.schema(
    {
        "k": pa.int64(),
        "v": pa.string(),
        "_change_type": pa.string(),
        "_commit_version": pa.int64(),
        "_commit_timestamp": pa.timestamp("us", tz="UTC"),
    }
)
"""The columns of Delta's change data feed, in its order and types."""

DIFFS = {"insert": 1, "update_postimage": 1, "update_preimage": -1, "delete": -1}

Change = tuple[str, int, str | None, int]
"""The type, the key, the value and the version."""


def feed(*changes: Change, schema: pa.Schema = OURS, **other: Any) -> pa.Table:
    """Return rows of a change feed."""
    rows = [
        {
            "k": k,
            "v": v,
            "_change_type": kind,
            "_commit_version": version,
            "_commit_timestamp": NOON,
            "_diff": DIFFS.get(kind, 1),
            **other,
        }
        for kind, k, v, version in changes
    ]
    loose = pa.schema([field.with_nullable(True) for field in schema])
    return pa.Table.from_pylist(rows, schema=loose)


def pair(k: int, old: str, new: str, version: int) -> list[Change]:
    return [("update_preimage", k, old, version), ("update_postimage", k, new, version)]


def moved(old: int, new: int, value: str, version: int) -> list[Change]:
    return [("update_preimage", old, value, version), ("update_postimage", new, value, version)]


CASES: dict[str, tuple[list[Change], dict[int, str | None]]] = {
    "an insert is a row": ([("insert", 1, "a", 1)], {1: "a"}),
    "an insert of nulls is a row of nulls": ([("insert", 1, None, 1)], {1: None}),
    "a postimage is a row": ([("update_postimage", 1, "b", 2)], {1: "b"}),
    "a preimage without its postimage takes the row": (
        [("insert", 1, "a", 1), ("update_preimage", 1, "a", 2)],
        {},
    ),
    "an update that changes the key moves the row": (
        [("insert", 1, "a", 1), *moved(1, 3, "a", 2)],
        {3: "a"},
    ),
    "two updates of a version that exchange keys": (
        [("insert", 1, "a", 1), ("insert", 2, "b", 1), *moved(1, 2, "a", 2), *moved(2, 1, "b", 2)],
        {1: "b", 2: "a"},
    ),
    "a key that is changed and changed back": (
        [("insert", 1, "a", 1), *moved(1, 3, "a", 2), *moved(3, 1, "b", 3)],
        {1: "b"},
    ),
    "a key that is free after an update gets another row": (
        [("insert", 1, "a", 1), *moved(1, 3, "a", 2), ("insert", 1, "c", 4)],
        {1: "c", 3: "a"},
    ),
    "an insert of an older version does not save the preimage's row": (
        [("insert", 1, "a", 1), *moved(1, 3, "a", 2)][::-1],
        {3: "a"},
    ),
    "of a pair the postimage stays": (pair(1, "a", "b", 2), {1: "b"}),
    "the order of a pair does not matter": (pair(1, "a", "b", 2)[::-1], {1: "b"}),
    "a delete takes the row": ([("insert", 1, "a", 1), ("delete", 1, "a", 2)], {}),
    "a delete of an unknown key is harmless": ([("delete", 1, "a", 2)], {}),
    "the greater version wins, whatever came first": (
        [("delete", 1, "a", 5), ("insert", 1, "b", 7), ("insert", 1, "a", 3)],
        {1: "b"},
    ),
    "a late insert does not bring a deleted row back": (
        [("delete", 1, "a", 5), ("insert", 1, "a", 3)],
        {},
    ),
    "delete and insert of one version are an update": (
        [("delete", 1, "a", 2), ("insert", 1, "b", 2)],
        {1: "b"},
    ),
    "a delete behind the insert of its version is the same update": (
        [("insert", 1, "b", 2), ("delete", 1, "a", 2)],
        {1: "b"},
    ),
    "each key by itself": (
        [*pair(1, "a", "b", 4), ("delete", 2, "c", 4), ("insert", 3, "d", 1)],
        {1: "b", 3: "d"},
    ),
}


@pytest.mark.parametrize("schema", [OURS, DELTAS], ids=["our feed", "Delta's feed"])
@pytest.mark.parametrize("case", CASES)
def test_what_changes_do(case: str, schema: pa.Schema, tmp_path: Path) -> None:
    changes, expected = CASES[case]
    path = tmp_path / "t"
    commit = write(path, feed(*changes, schema=schema), envelope="changelog", keys="k")
    assert rows_of(path) == [{"k": k, "v": v} for k, v in expected.items()]
    puts = {(k, version) for kind, k, _, version in changes if DIFFS[kind] == 1}
    passed_by = sum(
        kind == "update_preimage" and (k, version) in puts for kind, k, _, version in changes
    )
    assert (counters_of(commit).rows, counters_of(commit).skipped) == (len(changes), passed_by)
    assert_sound(path)


@pytest.mark.parametrize("schema", [OURS, DELTAS], ids=["our feed", "Delta's feed"])
def test_nothing_of_the_feed_is_stored_and_the_version_orders(
    schema: pa.Schema, tmp_path: Path
) -> None:
    write(
        tmp_path / "t", feed(("insert", 1, "a", 1), schema=schema), envelope="changelog", keys="k"
    )
    own = Table.open(str(tmp_path / "t")).log.head().schema
    assert own.columns.names == ["k", "v"]
    assert [field.name for field in own.order] == ["_commit_version", "_diff"]
    assert own.scope is Scope.EPOCH


@pytest.mark.parametrize(
    ("named", "order"),
    [
        ("_commit_version", ["_commit_version", "_diff"]),
        ("_commit_version,_diff", ["_commit_version", "_diff"]),
        ("_commit_timestamp,_commit_version", ["_commit_timestamp", "_commit_version", "_diff"]),
        ("_commit_version,v", ["_commit_version", "_diff", "v"]),
        ("v", ["v"]),
    ],
)
def test_a_named_order_tells_the_rows_of_a_version_apart(
    named: str, order: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "t"
    rows = feed(("insert", 1, "b", 2), ("delete", 1, "a", 2))
    write(path, rows, envelope="changelog", keys="k", sequenceBy=named)
    own = Table.open(str(path)).log.head().schema
    assert [field.name for field in own.order] == order
    assert own.scope is Scope.TABLE
    assert rows_of(path) == [{"k": 1, "v": "b"}]
    write(path, rows, envelope="changelog", sequenceBy=named)  # The same order as before.


def test_with_an_order_across_epochs_an_older_version_is_stale(tmp_path: Path) -> None:
    path = tmp_path / "t"
    options = {"envelope": "changelog", "keys": "k", "sequenceBy": "_commit_version"}
    write(path, feed(("insert", 1, "new", 7)), **options)
    write(path, feed(("insert", 1, "old", 3), ("delete", 1, "old", 5)), **options)
    assert rows_of(path) == [{"k": 1, "v": "new"}]


def test_by_default_the_later_epoch_wins_as_versions_of_tables_do_not_compare(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t"
    write(
        path,
        feed(("insert", 1, "of a table with many versions", 900)),
        envelope="changelog",
        keys="k",
    )
    write(path, feed(("insert", 1, "of another", 3)), envelope="changelog")
    assert rows_of(path) == [{"k": 1, "v": "of another"}]


BAD = {
    "an unknown change": (feed(("upsert", 1, "a", 2)), "'upsert' is no change"),
    "another case": (feed(("INSERT", 1, "a", 2)), "'INSERT' is no change"),
    "no change": (feed(("insert", 1, "a", 2), _change_type=None), "'_change_type' is null"),
    "a delete that inserts": (
        feed(("delete", 1, "a", 2), _diff=1),
        "'_diff' is 1 in a row of 'delete'",
    ),
    "an insert that retracts": (
        feed(("insert", 1, "a", 2), _diff=-1),
        "'_diff' is -1 in a row of 'insert'",
    ),
    "a preimage that inserts": (
        feed(("update_preimage", 1, "a", 2), _diff=1),
        "'_diff' is 1 in a row of 'update_preimage'",
    ),
    "a diff of two": (feed(("insert", 1, "a", 2), _diff=2), "'_diff' is 2 in a row of 'insert'"),
    "no diff": (feed(("insert", 1, "a", 2), _diff=None), "'_diff' is null in a row of 'insert'"),
    "no version": (
        feed(("delete", 1, "a", 2), _commit_version=None),
        "the sequenceBy column '_commit_version' is null",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_change_fails_the_write(case: str, tmp_path: Path) -> None:
    rows, reason = BAD[case]
    path = tmp_path / "t"
    write(path, feed(("insert", 1, "kept", 1)), envelope="changelog", keys="k")
    with pytest.raises(DataError) as raised:
        write(path, rows, envelope="changelog")
    assert raised.value.fields["reason"] == reason
    assert rows_of(path) == [{"k": 1, "v": "kept"}]


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_change_goes_into_the_quarantine(case: str, tmp_path: Path) -> None:
    rows, reason = BAD[case]
    path = tmp_path / "t"
    write(path, rows, envelope="changelog", keys="k", onError="quarantine")
    (entry,) = quarantine_of(path)
    assert (entry["k"], entry["_reason"]) == (1, reason)
    assert rows_of(path) == []
    assert_sound(path)


@pytest.mark.parametrize(
    ("rows", "options", "error", "words"),
    [
        (pa.table({"k": [1]}), {}, SchemaError, "have the column '_change_type', found k"),
        (pa.table({"k": [1], "_change_type": [1]}), {}, SchemaError, "must be text, found int64"),
        (pa.table({"k": [1], "_change_type": ["insert"]}), {}, OptionError, "'sequenceBy' is req"),
        (feed(), {"mergeEngine": "aggregation"}, OptionError, "cannot give back"),
        (feed(), {"applyAsDeletes": "v"}, OptionError, "marks deletes itself"),
        (feed(), {"valueFormat": "json"}, OptionError, "no meaning with the envelope 'changelog'"),
        (
            feed(),
            {"columnList": "k,_commit_version"},
            SchemaError,
            "'_commit_version' is not among",
        ),
    ],
    ids=[
        "no change type",
        "a change type of numbers",
        "nothing that orders",
        "an engine that cannot take back",
        "another way to mark deletes",
        "a format of bytes",
        "a column of the feed is not stored",
    ],
)
def test_what_cannot_be_planned_makes_no_table(
    rows: pa.Table, options: dict[str, str], error: type[Exception], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    with pytest.raises(error, match=words):
        write(path, rows, **{"envelope": "changelog", "keys": "k", **options})
    assert not path.exists()


def test_a_table_without_an_order_takes_no_changes(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, pa.table({"k": [1], "v": ["a"]}), keys="k")
    with pytest.raises(OptionError, match="without an order"):
        write(path, feed(("insert", 1, "b", 2)), envelope="changelog")


def test_a_table_that_aggregates_takes_no_changes(tmp_path: Path) -> None:
    path = tmp_path / "t"
    rows = pa.table(
        {"k": [1], "v": ["a"], "_commit_version": [1], "_diff": pa.array([1], pa.int32())}
    )
    write(
        path,
        rows,
        keys="k",
        mergeEngine="aggregation",
        sequenceBy="_commit_version,_diff",
        exceptColumnList="_commit_version,_diff",
    )
    with pytest.raises(OptionError, match="cannot give back"):
        write(path, feed(("insert", 1, "b", 2)), envelope="changelog")


def test_first_row_takes_inserts_and_refuses_deletes(tmp_path: Path) -> None:
    path = tmp_path / "t"
    options = {"envelope": "changelog", "keys": "k", "mergeEngine": "first-row"}
    write(path, feed(("insert", 1, "a", 1), *pair(1, "a", "b", 2)), **options)
    assert rows_of(path) == [{"k": 1, "v": "a"}]
    with pytest.raises(DataError, match="first-row cannot apply"):
        write(path, feed(("delete", 1, "a", 3)), **options)


def test_partial_update_takes_nulls_for_no_news(tmp_path: Path) -> None:
    path = tmp_path / "t"
    options = {"envelope": "changelog", "keys": "k", "mergeEngine": "partial-update"}
    options["sequenceScope"] = "table"
    write(path, feed(("insert", 1, "a", 1), ("update_postimage", 1, None, 2)), **options)
    assert rows_of(path) == [{"k": 1, "v": "a"}]
    write(path, feed(("delete", 1, "a", 3)), **options)
    assert rows_of(path) == []


def test_append_takes_the_envelope_of_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, feed(("insert", 1, "a", 1)), envelope="changelog", keys="k")
    rows = feed(*pair(1, "a", "b", 2), ("insert", 2, "c", 2))
    planned = plan(path, rows.schema, envelope="changelog")
    Table.open(str(path)).upsert(rows, envelope=planned.write.envelope)
    assert rows_of(path) == [{"k": 1, "v": "b"}, {"k": 2, "v": "c"}]
