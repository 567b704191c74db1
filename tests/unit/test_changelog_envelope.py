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
from tests.support.envelopes import assert_sound, counters_of, quarantine_of, rows_of, write

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


def moved(old: int, new: int, value: str, version: int) -> list[Change]:
    return [("update_preimage", old, value, version), ("update_postimage", new, value, version)]


def pair(k: int, old: str, new: str, version: int) -> list[Change]:
    return [("update_preimage", k, old, version), ("update_postimage", k, new, version)]


A = ("insert", 1, "a", 1)

CASES: dict[str, tuple[list[Change], dict[int, str | None]]] = {
    "an insert of nulls is a row of nulls": ([("insert", 1, None, 1)], {1: None}),
    "a preimage without its postimage takes the row": ([A, ("update_preimage", 1, "a", 2)], {}),
    "an update that changes the key moves the row": ([A, *moved(1, 3, "a", 2)], {3: "a"}),
    "two updates of a version that exchange keys": (
        [A, ("insert", 2, "b", 1), *moved(1, 2, "a", 2), *moved(2, 1, "b", 2)],
        {1: "b", 2: "a"},
    ),
    "a key that is free after an update gets another row": (
        [A, *moved(1, 3, "a", 2), ("insert", 1, "c", 4)],
        {1: "c", 3: "a"},
    ),
    "an older insert does not save the preimage's row": ([*moved(1, 3, "a", 2), A], {3: "a"}),
    "the order of a pair does not matter": (pair(1, "a", "b", 2)[::-1], {1: "b"}),
    "a delete takes the row": ([A, ("delete", 1, "a", 2)], {}),
    "a late insert does not bring a deleted row back": ([("delete", 1, "a", 5), A], {}),
    "the greater version wins, whatever came first": (
        [("delete", 1, "a", 5), ("insert", 1, "b", 7), ("insert", 1, "a", 3)],
        {1: "b"},
    ),
    "delete and insert of one version are an update": (
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
def test_changes_are_applied_by_version_and_key(
    case: str, schema: pa.Schema, tmp_path: Path
) -> None:
    changes, expected = CASES[case]
    path = tmp_path / "t"
    commit = write(path, feed(*changes, schema=schema), envelope="changelog", keys="k")
    assert rows_of(path) == [{"k": k, "v": v} for k, v in expected.items()]
    puts = {(k, version) for kind, k, _, version in changes if DIFFS[kind] == 1}
    preimages = [(k, version) for kind, k, _, version in changes if kind == "update_preimage"]
    skipped = sum(each in puts for each in preimages)
    assert (counters_of(commit).rows, counters_of(commit).skipped) == (len(changes), skipped)
    assert_sound(path)


VERSION = ["_commit_version", "_diff"]


@pytest.mark.parametrize(
    ("options", "order", "scope"),
    [
        ({}, VERSION, Scope.EPOCH),
        ({"sequenceBy": "_commit_version"}, VERSION, Scope.TABLE),
        ({"sequenceBy": "_commit_version,v"}, [*VERSION, "v"], Scope.TABLE),
        ({"sequenceBy": "v"}, ["v"], Scope.TABLE),
    ],
    ids=str,
)
@pytest.mark.parametrize("schema", [OURS, DELTAS], ids=["our feed", "Delta's feed"])
def test_the_version_orders_rows_and_is_not_stored(
    options: dict[str, str], order: list[str], scope: Scope, schema: pa.Schema, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    rows = feed(("insert", 1, "b", 2), ("delete", 1, "a", 2), schema=schema)
    write(path, rows, envelope="changelog", keys="k", **options)
    own = Table.open(str(path)).log.head().schema
    assert own.columns.names == ["k", "v"]
    assert ([field.name for field in own.order], own.scope) == (order, scope)
    assert rows_of(path) == [{"k": 1, "v": "b"}]
    write(path, rows, envelope="changelog", **options)  # The same order as before.


def test_an_older_version_is_stale_only_with_an_order_across_epochs(tmp_path: Path) -> None:
    """By default the later epoch wins, because versions of two tables do not compare."""
    by_version = {"sequenceBy": "_commit_version"}
    for value, options in (("later", {}), ("newer", by_version)):
        path = tmp_path / value
        write(path, feed(("insert", 1, "newer", 7)), envelope="changelog", keys="k", **options)
        write(path, feed(("insert", 1, "later", 3)), envelope="changelog", **options)
        assert rows_of(path) == [{"k": 1, "v": value}]


BAD = {
    "'upsert' is no change": feed(("upsert", 1, "a", 2)),
    "'INSERT' is no change": feed(("INSERT", 1, "a", 2)),
    "'_diff' is null in a row of 'insert'": feed(("insert", 1, "a", 2), _diff=None),
    "'_change_type' is null": feed(("insert", 1, "a", 2), _change_type=None),
    "'_diff' is 1 in a row of 'update_preimage'": feed(("update_preimage", 1, "a", 2), _diff=1),
    "'_diff' is 2 in a row of 'insert'": feed(("insert", 1, "a", 2), _diff=2),
    "the sequenceBy column '_commit_version' is null": feed(
        ("delete", 1, "a", 2), _commit_version=None
    ),
}


@pytest.mark.parametrize("reason", BAD)
def test_a_row_that_is_no_change_fails_the_write_or_is_quarantined(
    reason: str, tmp_path: Path
) -> None:
    options = {"envelope": "changelog", "keys": "k"}
    path = tmp_path / "fails"
    write(path, feed(("insert", 1, "kept", 1)), **options)
    with pytest.raises(DataError) as raised:
        write(path, BAD[reason], **options)
    assert raised.value.fields["reason"] == reason
    assert rows_of(path) == [{"k": 1, "v": "kept"}]
    path = tmp_path / "quarantine"
    write(path, BAD[reason], onError="quarantine", **options)
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
        (feed(), {"columnList": "k,_commit_version"}, SchemaError, "_version' is not among"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_changes_that_cannot_be_planned_make_no_table(
    rows: pa.Table, options: dict[str, str], error: type[Exception], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    with pytest.raises(error, match=words):
        write(path, rows, **{"envelope": "changelog", "keys": "k", **options})
    assert not path.exists()


def test_a_table_without_an_order_or_that_aggregates_takes_no_changes(tmp_path: Path) -> None:
    write(tmp_path / "plain", pa.table({"k": [1], "v": ["a"]}), keys="k")
    with pytest.raises(OptionError, match="without an order"):
        write(tmp_path / "plain", feed(("insert", 1, "b", 2)), envelope="changelog")
    diff = pa.array([1], pa.int32())
    rows = pa.table({"k": [1], "v": ["a"], "_commit_version": [1], "_diff": diff})
    order = "_commit_version,_diff"
    options = {"mergeEngine": "aggregation", "sequenceBy": order, "exceptColumnList": order}
    write(tmp_path / "sums", rows, keys="k", **options)
    with pytest.raises(OptionError, match="cannot give back"):
        write(tmp_path / "sums", feed(("insert", 1, "b", 2)), envelope="changelog")


def test_partial_update_takes_nulls_for_no_news(tmp_path: Path) -> None:
    path = tmp_path / "t"
    options = {"envelope": "changelog", "keys": "k", "mergeEngine": "partial-update"}
    options["sequenceScope"] = "table"
    write(path, feed(A, ("update_postimage", 1, None, 2)), **options)
    assert rows_of(path) == [{"k": 1, "v": "a"}]
    write(path, feed(("delete", 1, "a", 3)), **options)
    assert rows_of(path) == []


def test_first_row_takes_inserts_and_updates_and_refuses_deletes(tmp_path: Path) -> None:
    path = tmp_path / "t"
    options = {"envelope": "changelog", "keys": "k", "mergeEngine": "first-row"}
    updated = [("update_preimage", 1, "a", 2), ("update_postimage", 1, "b", 2)]
    write(path, feed(("insert", 1, "a", 1), *updated), **options)
    assert rows_of(path) == [{"k": 1, "v": "a"}]
    with pytest.raises(DataError, match="first-row cannot apply"):
        write(path, feed(("delete", 1, "a", 3)), **options)
