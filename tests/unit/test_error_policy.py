"""What becomes of rows that cannot be applied: the tables A2, A3 and A10 of Materialize's rules.

Where we differ: there, a live error makes every read of the relation fail, and writes go on. Here a
table is made for one of three policies. ``fail``: the *write* fails and nothing of its epoch is
committed, so that the error shows where it can be mended. ``inline``: as there. ``quarantine``:
reads go on, without the key in question, and the error is read apart; it comes and is cleared by
the same rules. Numbers in the ids are those of the cases in the specification.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.key_hash import hash_keys
from spark_upsert.core.schema import ErrorPolicy, Scope, TableSchema
from spark_upsert.errors import ContentionError, DataError, OptionError, SchemaError
from spark_upsert.table.log.codec import commit_to_json
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.commands import UpsertEnvelope
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.support.envelopes import (
    JSON,
    KAFKA,
    Record,
    assert_sound,
    counters_of,
    key,
    plan,
    quarantine_of,
    reasons,
    records,
    rows_of,
    value,
    write,
)
from tests.support.seeds import rest_slow
from tests.support.tables import hashes_of_few_values

BAD = b"{"
BAD_KEY = b"?"
IS_BAD = "the value is undecodable"

# -- what stands in a quarantine after some records --------------------------------------

Standing = dict[Any, str]
"""Where errors stand (a key, the bytes of a bad key, None for the null key), and why, in part."""

CASES: dict[str, tuple[list[Record], dict[int, Any], Standing]] = {
    "21: a bad value takes the place of its key": ([(key(1), BAD)], {}, {1: IS_BAD}),
    "21: also where a row was: that is retracted": (
        [(key(1), value("a")), (key(1), BAD)],
        {},
        {1: IS_BAD},
    ),
    "22: a good value clears a bad one of its key": (
        [(key(1), BAD), (key(1), value("a"))],
        {1: "a"},
        {},
    ),
    "23: a delete clears a bad value of its key": ([(key(1), BAD), (key(1), None)], {}, {}),
    "a value of another key clears nothing": (
        [(key(1), BAD), (key(2), value("b"))],
        {2: "b"},
        {1: IS_BAD},
    ),
    "a second bad value replaces the first": (
        [(key(1), BAD), (key(1), b"[]")],
        {},
        {1: "expected a JSON object, found array"},
    ),
    "A3: a bad key stands under its bytes, with a good value": (
        [(BAD_KEY, value("a"))],
        {},
        {BAD_KEY: "the key is undecodable"},
    ),
    "A3: a bad key stands under its bytes, with a bad value": (
        [(BAD_KEY, BAD)],
        {},
        {BAD_KEY: "the key is undecodable"},
    ),
    "25: a null value clears the bad key of the same bytes": (
        [(BAD_KEY, value("a")), (BAD_KEY, None)],
        {},
        {},
    ),
    "A2: other bytes are another bad key": (
        [(BAD_KEY, value("a")), (b"!", None)],
        {},
        {BAD_KEY: "the key is undecodable"},
    ),
    "A10: no good value clears a bad key": (
        [(BAD_KEY, value("a")), (BAD_KEY, value("b"))],
        {},
        {BAD_KEY: "the key is undecodable"},
    ),
    "27: all null keys share one slot, which a null value clears": (
        [(None, value("a")), (None, value("b")), (None, None)],
        {},
        {},
    ),
    "A3: a null key with a value is an error": (
        [(None, value("a")), (None, BAD)],
        {},
        {None: "the key 'k' is null"},
    ),
    "A3: a null key with a null value is nothing": ([(None, None)], {}, {}),
    "a null key clears no bad key, nor the other way": (
        [(None, value("a")), (BAD_KEY, value("a")), (None, None)],
        {},
        {BAD_KEY: "the key is undecodable"},
    ),
    "a key that holds only nulls is a bad key, not the null key": (
        [(key(None), value("a")), (None, None)],
        {},
        {key(None): "it holds only nulls"},
    ),
    "33: an empty payload is a value that is bad, not a delete": (
        [(key(1), value("a")), (key(1), b"")],
        {},
        {1: IS_BAD},
    ),
    "33: an empty object is a value of defaults": ([(key(1), b"{}")], {1: None}, {}),
    "an empty key is bytes like any other": (
        [(b"", value("a"))],
        {},
        {b"": "the key is undecodable"},
    ),
    "34: of a longer value nothing remains": (
        [(key(1), value("longlonglong")), (key(1), value("s"))],
        {1: "s"},
        {},
    ),
}


def in_one_epoch(path: Path, case: list[Record]) -> None:
    write(path, records(case), onError="quarantine", **JSON)


def in_an_epoch_each(path: Path, case: list[Record]) -> None:
    for offset, record in enumerate(case):
        write(path, records([record], offsets=[offset]), onError="quarantine", **JSON)


def compacted_each_time(path: Path, case: list[Record]) -> None:
    for offset, record in enumerate(case):
        write(path, records([record], offsets=[offset]), onError="quarantine", **JSON)
        Table.open(str(path)).compact(full=True)


def after_restarts_and_replays(path: Path, case: list[Record]) -> None:
    options = {"onError": "quarantine", "sequenceBy": "partition,offset", **JSON}
    for stop in range(1, len(case) + 1):
        write(path, records(case[:stop]), **options)


def with_one_hash_for_all_keys(path: Path, case: list[Record]) -> None:
    with hashes_of_few_values(1):
        compacted_each_time(path, case)


WAYS: list[Callable[[Path, list[Record]], None]] = [
    in_one_epoch,
    in_an_epoch_each,
    compacted_each_time,
    after_restarts_and_replays,
    with_one_hash_for_all_keys,
]


def errors_of(path: Path) -> dict[Any, str]:
    """Return where errors stand, and why."""
    found: dict[Any, str] = {}
    for row in quarantine_of(path):
        place = row["k"] if row["_raw_key"] is None else row["_raw_key"]
        assert place not in found, f"two errors stand at {place!r}"
        found[place] = row["_reason"]
    return found


@pytest.mark.parametrize("way", rest_slow(WAYS), ids=lambda way: way.__name__.replace("_", " "))
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_quarantine(
    tmp_path: Path,
    way: Callable[[Path, list[Record]], None],
    case: tuple[list[Record], dict[int, Any], Standing],
) -> None:
    given, rows, standing = case
    path = tmp_path / "t"
    way(path, given)
    found = errors_of(path)
    assert {row["k"]: row["v"] for row in rows_of(path)} == rows
    assert found.keys() == standing.keys()
    for place, reason in standing.items():
        assert reason in found[place]
    assert_sound(path)


# -- the same cases where errors fail the write ------------------------------------------

FAILURES: dict[str, tuple[list[Record], str]] = {
    "21: a bad value, with its key": ([(key(1), value("a")), (key(7), BAD)], "k=7, value {"),
    "22: a bad value that a good one follows": ([(key(1), BAD), (key(1), value("a"))], IS_BAD),
    "25: a bad key": ([(BAD_KEY, value("a"))], "key ?, value"),
    "25: a bad key, even if it deletes": ([(BAD_KEY, None)], "the key is undecodable"),
    "27: a null key": ([(None, value("a"))], "the key 'k' is null in 1 of 1 rows"),
    "33: an empty payload": ([(key(1), b"")], "1 of 1 rows of a batch (for example k=1, value )"),
    "several reasons, the first of them named": (
        [(key(1), BAD), (key(2), BAD), (key(3), value("a")), (None, value("a"))],
        "in 2 of 4 rows of a batch (for example k=1, value {); 1 more rows",
    ),
}


@pytest.mark.parametrize("case", FAILURES.values(), ids=FAILURES.keys())
def test_a_bad_row_fails_the_write_and_nothing_is_committed(
    tmp_path: Path, case: tuple[list[Record], str]
) -> None:
    given, text = case
    path = tmp_path / "t"
    write(path, records([(key(9), value("z"))]), **JSON)
    with pytest.raises(DataError) as caught:
        write(path, records(given), **JSON)
    assert text in str(caught.value)
    assert "Hint: " in str(caught.value)
    assert "on_error=quarantine" in caught.value.hint
    assert pickle.loads(pickle.dumps(caught.value)).message == caught.value.message
    assert Table.open(str(path)).log.head().version == 0
    assert rows_of(path) == [{"k": 9, "v": "z"}]


@pytest.mark.parametrize("policy", ["fail", "inline"])
def test_a_null_key_with_a_null_value_says_nothing_under_any_policy(
    tmp_path: Path, policy: str
) -> None:
    path = tmp_path / "t"
    commit = write(path, records([(None, None), (key(1), value("a"))]), onError=policy, **JSON)
    assert counters_of(commit).absent == 1
    assert [row["k"] for row in rows_of(path)] == [1]
    assert_sound(path)


def test_a_huge_bad_value_is_quoted_only_in_part(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        write(tmp_path / "t", records([(key(1), b"x" * 1_000_000)]), **JSON)
    assert len(str(caught.value)) < 1000


# -- inline ------------------------------------------------------------------------------


def test_29_a_bad_value_is_a_row_with_an_error(tmp_path: Path) -> None:
    path = tmp_path / "t"
    commit = write(path, records([(key(1), BAD), (key(2), value("b"))]), onError="inline", **JSON)
    bad, good = rows_of(path)
    assert (bad["k"], bad["v"]) == (1, None)
    assert IS_BAD in bad["error"]["description"]
    assert good == {"k": 2, "v": "b", "error": None}
    assert counters_of(commit).inserts == 2
    assert quarantine_of(path) == []


def test_30_a_good_value_clears_an_inline_error(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, records([(key(1), BAD)]), onError="inline", **JSON)
    write(path, records([(key(1), value("a"))]), **JSON)
    assert rows_of(path) == [{"k": 1, "v": "a", "error": None}]
    assert_sound(path)


def test_a_delete_clears_an_inline_error(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, records([(key(1), BAD), (key(2), BAD)]), onError="inline", **JSON)
    write(path, records([(key(1), None)]), **JSON)
    assert [row["k"] for row in rows_of(path)] == [2]


def test_an_inline_error_that_follows_another_is_an_update(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, records([(key(1), BAD)]), onError="inline", **JSON)
    commit = write(path, records([(key(1), b"[]")]), **JSON)
    assert counters_of(commit).updates == 1
    assert "found array" in rows_of(path)[0]["error"]["description"]


@pytest.mark.parametrize(
    ("record", "text"),
    [
        pytest.param((BAD_KEY, value("a")), "the key is undecodable", id="31: undecodable"),
        pytest.param((None, value("a")), "the key 'k' is null", id="31: null"),
    ],
)
def test_key_errors_are_never_inlined(tmp_path: Path, record: Record, text: str) -> None:
    with pytest.raises(DataError, match="onError=inline covers values only") as caught:
        write(tmp_path / "t", records([(key(1), BAD), record]), onError="inline", **JSON)
    assert text in str(caught.value)


def test_the_error_column_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, records([(key(1), BAD)]), onError="inline", errorColumn="why", **JSON)
    assert list(rows_of(path)[0]) == ["k", "v", "why"]
    with pytest.raises(OptionError, match="but the table has 'why'"):
        write(path, records([(key(1), BAD)]), errorColumn="error", **JSON)


def test_a_value_with_a_field_of_the_error_columns_name_asks_for_another(tmp_path: Path) -> None:
    options = {**JSON, "valueSchema": "v STRING, Error STRING"}
    with pytest.raises(SchemaError, match="errorColumn"):
        write(tmp_path / "t", records([]), onError="inline", **options)
    write(tmp_path / "t", records([(key(1), BAD)]), onError="inline", errorColumn="why", **options)


def test_a_table_with_inline_errors_grows_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, records([(key(1), BAD)]), onError="inline", **JSON)
    wider = {**JSON, "valueSchema": "v STRING, w BIGINT", "mergeSchema": "true"}
    write(path, records([(key(2), b'{"w": 2}'), (key(3), BAD)]), **wider)
    assert [(row["k"], row["w"], row["error"] is None) for row in rows_of(path)] == [
        (1, None, False),
        (2, 2, True),
        (3, None, False),
    ]
    assert_sound(path)


# -- the policy belongs to the table -----------------------------------------------------


@pytest.mark.parametrize("own", ErrorPolicy, ids=lambda p: f"a table that was made for {p.value}")
@pytest.mark.parametrize("asked", ErrorPolicy, ids=lambda p: f"asked to {p.value}")
def test_the_policy_cannot_change_but_from_fail_to_quarantine(
    tmp_path: Path, own: ErrorPolicy, asked: ErrorPolicy
) -> None:
    path = tmp_path / "t"
    write(path, records([]), onError=own.value, **JSON)
    if asked is own or (own, asked) == (ErrorPolicy.FAIL, ErrorPolicy.QUARANTINE):
        assert plan(path, KAFKA, onError=asked.value, **JSON).write.base.schema.on_error is asked
        return
    with pytest.raises(OptionError, match=f"but the table has '{own.value}'") as caught:
        plan(path, KAFKA, onError=asked.value, **JSON)
    assert "its first write fixed that" in caught.value.message
    assert Table.open(str(path)).log.head().version == 0


HISTORY: list[list[Record]] = [
    [(key(1), value("a")), (key(2), value("b")), (key(3), value("c"))],
    [(key(2), None), (key(4), value("d"))],
    [(key(1), BAD), (BAD_KEY, value("x")), (key(5), value("e")), (key(2), BAD)],
    [(key(1), value("f")), (key(3), BAD), (key(4), None)],
]


@pytest.mark.parametrize("merging", [False, True], ids=["as it is", "merged each time"])
@pytest.mark.parametrize("before", [1, 2])
@pytest.mark.sweep(1)
def test_a_table_that_gains_a_quarantine_is_as_if_it_always_had_one(
    tmp_path: Path, before: int, merging: bool
) -> None:
    changed, always = tmp_path / "changed", tmp_path / "always"
    for number, given in enumerate(HISTORY):
        rows = records(given, offsets=range(10 * number, 10 * number + len(given)))
        policy = "fail" if number < before else "quarantine"
        write(changed, rows, onError=policy, **JSON)
        write(always, rows, onError="quarantine", **JSON)
        if merging:
            for path in (changed, always):
                Table.open(str(path)).compact(full=True)
    assert rows_of(changed) == rows_of(always)
    assert quarantine_of(changed) == quarantine_of(always)
    assert quarantine_of(changed)
    assert_sound(changed)
    assert Table.open(str(changed)).check().is_sound


def test_a_batch_that_was_under_way_when_the_policy_changed_is_written_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t"
    write(path, records([(key(1), value("a"))]), onError="fail", **JSON)
    planned = plan(path, KAFKA, **JSON)
    write(path, records([(key(2), BAD)]), onError="quarantine", **JSON)
    table, base = planned.table(), Snapshot(planned.table().store, planned.write.base)
    rows = records([(key(1), value("b"))]).to_batches()
    staged = stage(base, (planned.write.envelope.commands(batch) for batch in rows))
    with pytest.raises(ContentionError, match="became 'quarantine'"):
        table.commit(WriteSet(base=base, staged=(staged,)))
    assert rows_of(path) == [{"k": 1, "v": "a"}]


def test_a_writer_that_had_not_heard_of_the_quarantine_does_not_take_it_back(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t"
    write(path, records([(key(1), value("a"))]), onError="fail", **JSON)
    table = Table.open(str(path))
    old = table.log.head().schema
    plan(path, KAFKA, onError="quarantine", **JSON)
    table.alter(old, {"tombstoneRetention": "1 day"})
    assert table.log.head().schema.on_error is ErrorPolicy.QUARANTINE


def test_forgotten_deletes_stay_forgotten_behind_the_change(tmp_path: Path) -> None:
    """The low-water mark is from before, when an order key had one column less."""
    table = Table.create(
        str(tmp_path / "t"),
        pa.schema({"k": pa.int64(), "seq": pa.int64()}),
        keys=["k"],
        sequence_by=["seq"],
        properties={"tombstoneRetention": "0 epochs"},
    )
    rows = pa.table({"k": [1, 2], "seq": [5, 9], "gone": [False, True]})
    table.upsert(rows, deletes="gone")
    table.compact(full=True)
    assert table.log.head().low_water is not None
    table.alter(dataclasses.replace(table.log.head().schema, on_error=ErrorPolicy.QUARANTINE))
    rows = pa.table({"k": [2, 3, 1], "seq": [8, 10, 4]})
    late = table.upsert(rows, late_rows=LateRows.REJECT)
    assert late is not None
    assert (late.counters["rejected"], late.counters["stale"]) == (1, 1)
    assert sorted(table.snapshot().column("k").to_pylist()) == [1, 3]
    table.compact(full=True)
    assert table.check().is_sound


def test_without_the_option_the_policy_is_that_of_the_table(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, records([]), onError="quarantine", **JSON)
    write(path, records([(key(1), BAD)]), **JSON)
    assert reasons(path)


def test_without_the_option_a_new_table_fails(tmp_path: Path) -> None:
    assert plan(tmp_path / "t", KAFKA, **JSON).write.base.schema.on_error is ErrorPolicy.FAIL


@pytest.mark.parametrize("policy", ErrorPolicy, ids=lambda policy: policy.value)
def test_a_schema_with_a_policy_survives_json(policy: ErrorPolicy) -> None:
    columns = pa.schema({"k": pa.int64(), "v": pa.string()})
    order = [pa.field("o", pa.int64())]
    schema = TableSchema.of(columns, keys=["k"], order=order, on_error=policy)
    assert TableSchema.from_json(schema.to_json()) == schema


def test_a_table_that_fails_stores_no_byte_more_for_it() -> None:
    columns = pa.schema({"k": pa.int64(), "v": pa.string()})
    schema = TableSchema.of(columns, keys=["k"], order=[pa.field("o", pa.int64())])
    assert schema.run.names == ["__hash", "k", "v", "__order0", "__diff"]
    assert "errors" not in schema.to_json()


@pytest.mark.parametrize("policy", ["inline", "quarantine"])
@pytest.mark.parametrize("engine", ["first-row", "partial-update", "aggregation"])
def test_only_deduplicated_rows_can_be_errors(tmp_path: Path, policy: str, engine: str) -> None:
    with pytest.raises(OptionError, match=f"'onError=.*' and 'mergeEngine={engine}' contradict"):
        plan(tmp_path / "t", KAFKA, onError=policy, mergeEngine=engine, sequenceBy="offset", **JSON)


# -- the plain envelope ------------------------------------------------------------------

PLAIN = pa.schema({"k": pa.int64(), "v": pa.string(), "at": pa.int64(), "gone": pa.bool_()})
PLAIN_OPTIONS = {
    "keys": "k",
    "sequenceBy": "at",
    "applyAsDeletes": "gone",
    "columnList": "k,v",
    "onError": "quarantine",
}


def plain(*rows: tuple[int | None, str | None, int | None, bool]) -> pa.Table:
    names = PLAIN.names
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], PLAIN)


def test_a_plain_row_with_a_null_key_is_quarantined_as_json(tmp_path: Path) -> None:
    path = tmp_path / "t"
    commit = write(path, plain((None, "Zoë", 5, False), (1, "b", 6, False)), **PLAIN_OPTIONS)
    [error] = quarantine_of(path)
    assert error["_reason"] == "the key 'k' is null"
    assert error["_raw_value"].decode() == '{"k": null, "v": "Zoë", "at": 5, "gone": false}'
    assert (counters_of(commit).quarantined, counters_of(commit).inserts) == (1, 1)


def test_a_plain_delete_of_the_null_key_clears_it(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, plain((None, "a", 5, False)), **PLAIN_OPTIONS)
    write(path, plain((None, None, 6, True)), **PLAIN_OPTIONS)
    assert quarantine_of(path) == []


def test_a_row_without_an_order_key_stands_where_it_arrives(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, plain((1, "a", 5, False), (3, "a", 5, False)), **PLAIN_OPTIONS)
    commit = write(path, plain((1, "b", None, False), (2, "c", None, False)), **PLAIN_OPTIONS)
    assert (counters_of(commit).displaced, counters_of(commit).quarantined) == (1, 2)
    why = "the sequenceBy column 'at' is null"
    assert errors_of(path) == {1: why, 2: why}
    assert rows_of(path) == [{"k": 3, "v": "a"}]
    # What is older than what it replaced stays older; what is newer, or the same again, is newer.
    commit = write(path, plain((1, "o", 4, False)), **PLAIN_OPTIONS)
    assert counters_of(commit).stale == 1
    commit = write(path, plain((1, "a", 5, False), (2, "n", 1, False)), **PLAIN_OPTIONS)
    assert (counters_of(commit).inserts, counters_of(commit).tied) == (2, 0)
    assert rows_of(path) == [{"k": 1, "v": "a"}, {"k": 2, "v": "n"}, {"k": 3, "v": "a"}]
    assert_sound(path)


@pytest.mark.parametrize("at", [-(2**63), 0, 2**63 - 1])
def test_any_order_key_is_after_none(tmp_path: Path, at: int) -> None:
    path = tmp_path / "t"
    write(path, plain((1, "a", None, False)), **PLAIN_OPTIONS)
    write(path, plain((1, "b", at, False)), **PLAIN_OPTIONS)
    assert rows_of(path) == [{"k": 1, "v": "b"}]
    assert quarantine_of(path) == []


@pytest.mark.parametrize(
    "type_",
    [
        pa.int8(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.bool_(),
        pa.date32(),
        pa.timestamp("us", tz="UTC"),
        pa.decimal128(20, 3),
    ],
    ids=str,
)
def test_an_order_key_of_every_type_may_be_missing(tmp_path: Path, type_: pa.DataType) -> None:
    rows = pa.table({"k": pa.array([1, 2]), "v": ["a", "b"], "at": pa.nulls(2, type_)})
    options = {"keys": "k", "sequenceBy": "at", "onError": "quarantine"}
    write(tmp_path / "t", rows, **options)
    assert len(quarantine_of(tmp_path / "t")) == 2


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ((None, "a", 1, False), "the key 'k' is null in 1 of 1"),
        ((None, None, 1, True), "the key 'k' is null in 1 of 1"),
        ((1, "a", None, False), "the sequenceBy column 'at' is null in 1 of 1"),
    ],
    ids=["no key", "no key, but a delete", "no order key"],
)
def test_without_a_quarantine_a_plain_row_needs_its_key_and_order(
    tmp_path: Path, row: Any, text: str
) -> None:
    with pytest.raises(DataError) as caught:
        write(tmp_path / "t", plain(row), **{**PLAIN_OPTIONS, "onError": "fail"})
    assert text in str(caught.value)


def test_32_a_null_is_a_part_of_a_composite_key(tmp_path: Path) -> None:
    path = tmp_path / "t"
    rows = [(1, None, "a"), (None, 1, "b"), (1, None, "c")]
    columns = {"x": [r[0] for r in rows], "y": [r[1] for r in rows], "v": [r[2] for r in rows]}
    write(path, pa.table(columns), keys="x,y", onError="quarantine")
    assert rows_of(path) == [{"x": 1, "y": None, "v": "c"}, {"x": None, "y": 1, "v": "b"}]
    assert quarantine_of(path) == []


def test_bad_rows_of_several_tasks_are_no_ambiguity_without_an_order() -> None:
    """Either reason will do; a choice between a row and an error would matter."""
    from spark_upsert.table.state.snapshot import Snapshot
    from spark_upsert.table.write.stage import stage
    from spark_upsert.table.write.write_set import WriteSet
    from tests.support.stores import MemoryStore
    from tests.support.tables import make_table

    columns = pa.schema({"k": pa.int64(), "v": pa.string()})
    schema = TableSchema.of(columns, keys=["k"], on_error=ErrorPolicy.QUARANTINE)
    table = make_table(MemoryStore(), schema)
    envelope = UpsertEnvelope(schema=schema, sources={"k": "k", "v": "v"}, order=(), deletes=None)
    base = Snapshot(table.store, table.log.head())
    batches = [
        pa.RecordBatch.from_pylist([{"k": None, "v": text}], schema=columns) for text in "ab"
    ]
    staged = tuple(stage(base, [envelope.commands(batch)]) for batch in batches)
    commit = table.commit(WriteSet(base=base, staged=staged))
    assert commit is not None
    assert counters_of(commit).quarantined == 1
    [batch] = table.quarantine()
    assert batch.num_rows == 1


# -- counters ----------------------------------------------------------------------------

COUNTED: dict[str, tuple[Record, dict[str, int]]] = {
    "an error where nothing was": ((key(5), BAD), {"quarantined": 1}),
    "an error where a row was": ((key(1), BAD), {"quarantined": 1, "displaced": 1}),
    "an error where an error was": ((key(2), BAD), {"quarantined": 1}),
    "a row where an error was": ((key(2), value("b")), {"inserts": 1}),
    "a delete where an error was": ((key(2), None), {"absent": 1}),
    "a bad key": ((BAD_KEY, value("b")), {"quarantined": 1}),
    "a delete of a bad key": ((BAD_KEY, None), {"absent": 1}),
}


@pytest.mark.parametrize("case", COUNTED.values(), ids=COUNTED.keys())
def test_counters(tmp_path: Path, case: tuple[Record, dict[str, int]]) -> None:
    record, expected = case
    path = tmp_path / "t"
    write(path, records([(key(1), value("a")), (key(2), BAD)]), onError="quarantine", **JSON)
    counters = counters_of(write(path, records([record]), **JSON))
    assert counters.to_json() == {**dataclasses.asdict(type(counters)()), "rows": 1, **expected}
    assert_sound(path)


def test_an_overwrite_leaves_the_errors_of_the_past_out(tmp_path: Path) -> None:
    path = tmp_path / "t"
    before = [(key(1), value("a")), (key(2), BAD), (key(3), value("c")), (BAD_KEY, value("d"))]
    write(path, records(before), onError="quarantine", **JSON)
    planned = plan(path, KAFKA, **JSON)
    rows = records([(key(1), BAD), (key(2), value("b"))])
    commit = planned.table().upsert(rows, envelope=planned.write.envelope, overwrite=True)
    assert commit is not None
    counters = counters_of(commit)
    assert (counters.displaced, counters.retracted, counters.inserts) == (1, 1, 1)
    assert rows_of(path) == [{"k": 2, "v": "b"}]
    assert list(errors_of(path)) == [1]
    assert_sound(path)


def test_bad_rows_without_an_order_are_never_late(tmp_path: Path) -> None:
    """They are listed, and say nothing of whether a delete was forgotten."""
    path = tmp_path / "t"
    options = {**PLAIN_OPTIONS, "tombstoneRetention": "1 epochs"}
    write(path, plain((1, "a", 1, False)), **options)
    write(path, plain((1, None, 9, True)), **options)
    write(path, plain((2, "b", 10, False)), **options)
    Table.open(str(path)).compact(full=True)
    assert Table.open(str(path)).log.head().low_water is not None
    commit = write(path, plain((3, "c", None, False), (None, "d", 11, False)), **options)
    assert (counters_of(commit).rejected, counters_of(commit).quarantined) == (0, 2)
    late = plain((3, "c", 9, False))
    commit = write(path, late, lateRows="reject", **options)
    assert counters_of(commit).rejected == 1
    assert rows_of(path) == [{"k": 2, "v": "b"}]
    commit = write(path, late, lateRows="apply", **options)
    assert (counters_of(commit).inserts, counters_of(commit).late) == (1, 1)
    assert_sound(path)


# -- epochs of errors --------------------------------------------------------------------


def epochs_of(path: Path, version: int | None = None) -> dict[int, int]:
    table = Table.open(str(path))
    rows = [row for batch in table.quarantine(version) for row in batch.to_pylist()]
    return {row["k"]: row["_epoch"] for row in rows}


def test_an_error_knows_its_epoch_behind_any_compaction(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for number in (0, 1, 2):
        write(path, records([(key(number), BAD)]), onError="quarantine", **JSON)
    assert epochs_of(path) == {0: 0, 1: 1, 2: 2}
    table = Table.open(str(path))
    table.compact(full=True)
    version = write(path, records([(key(2), b"[]"), (key(4), BAD)]), **JSON).version
    assert epochs_of(path) == {0: 0, 1: 1, 2: version, 4: version}
    table.compact(full=True)
    assert epochs_of(path) == {0: 0, 1: 1, 2: version, 4: version}


def test_the_quarantine_can_be_read_at_any_version(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, records([(key(1), BAD)]), onError="quarantine", **JSON)
    write(path, records([(key(1), value("a")), (key(2), BAD)]), **JSON)
    Table.open(str(path)).compact(full=True)
    assert [epochs_of(path, version) for version in range(3)] == [{1: 0}, {2: 1}, {2: 1}]


def test_only_files_with_errors_say_so(tmp_path: Path) -> None:
    path = tmp_path / "t"
    good = write(path, records([(key(1), value("a"))]), onError="quarantine", **JSON)
    bad = write(path, records([(key(1), BAD), (key(2), BAD)]), **JSON)
    assert "errors" not in commit_to_json(good)["added"][0]
    assert commit_to_json(bad)["added"][0]["errors"] == 2
    assert commit_to_json(bad)["added"][0]["tombstones"] == 0


def test_the_bytes_of_a_bad_key_are_hashed_with_a_seed_of_their_own(tmp_path: Path) -> None:
    """Part of the format: a good key of the same bytes lies elsewhere."""
    options = {**JSON, "keyFormat": "json", "keySchema": "k STRING"}
    planned = plan(tmp_path / "t", KAFKA, onError="quarantine", **options)
    seed = planned.write.base.schema.hash_seed
    commands = planned.write.envelope.commands(records([(BAD_KEY, value("a"))]).to_batches()[0])
    expected = hash_keys([pa.array([BAD_KEY], pa.binary())], seed=seed ^ 0xA5A5A5A5A5A5A5A5)
    assert commands.column("__hash").to_pylist() == expected.tolist()


@pytest.mark.parametrize("scope", Scope, ids=lambda scope: f"with scope {scope.value}")
def test_the_columns_of_a_quarantine_stand_behind_the_others(scope: Scope) -> None:
    columns = pa.schema({"k": pa.int64(), "v": pa.string()})
    order = [] if scope is Scope.ARRIVAL else [pa.field("o", pa.int64())]
    schema = TableSchema.of(
        columns, keys=["k"], order=order, scope=scope, on_error=ErrorPolicy.QUARANTINE
    )
    ordered = ["__order_known", "__order0"] if order else []
    errors = ["__raw_key", "__raw_value", "__reason", "__epoch"]
    assert schema.run.names == ["__hash", "k", "v", *ordered, "__diff", *errors]
    assert schema.identity == ("k", "__raw_key")
    assert schema.changelog.names[:2] == ["k", "v"]
