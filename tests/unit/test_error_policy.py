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
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import ErrorPolicy, TableSchema
from spark_upsert.errors import ContentionError, DataError, OptionError, SchemaError
from spark_upsert.table.log.codec import commit_to_json
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.state.reduce import Counters
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
from tests.support.stores import MemoryStore
from tests.support.tables import hashes_of_few_values, make_table

QUARANTINE = {**JSON, "onError": "quarantine"}
INLINE = {**JSON, "onError": "inline"}
ONE, TWO, THREE = key(1), key(2), key(3)
A, B = value("a"), value("b")
BAD = b"{"
BAD_KEY = b"?"
IS_BAD = "the value is undecodable"
IS_BAD_KEY = "the key is undecodable"

# -- what stands in a quarantine after some records --------------------------------------

Case = tuple[str, list[Record], dict[int, Any], dict[Any, str]]
"""What it is, the records, the rows, and where errors stand (a key, the bytes of a bad key, None for
the null key) and why, in part."""

CASES: list[Case] = [
    ("21: a bad value takes the place of its key", [(ONE, BAD)], {}, {1: IS_BAD}),
    ("21: also where a row was: that is retracted", [(ONE, A), (ONE, BAD)], {}, {1: IS_BAD}),
    ("22: a good value clears a bad one of its key", [(ONE, BAD), (ONE, A)], {1: "a"}, {}),
    ("23: a delete clears a bad value of its key", [(ONE, BAD), (ONE, None)], {}, {}),
    ("a value of another key clears nothing", [(ONE, BAD), (TWO, B)], {2: "b"}, {1: IS_BAD}),
    ("a second bad value replaces the first", [(ONE, BAD), (ONE, b"[]")], {}, {1: "found array"}),
    ("A3: a bad key with a good value", [(BAD_KEY, A)], {}, {BAD_KEY: IS_BAD_KEY}),
    ("A3: a bad key with a bad value", [(BAD_KEY, BAD)], {}, {BAD_KEY: IS_BAD_KEY}),
    ("25: a null value clears its bad key", [(BAD_KEY, A), (BAD_KEY, None)], {}, {}),
    ("A2: other bytes, another bad key", [(BAD_KEY, A), (b"!", None)], {}, {BAD_KEY: IS_BAD_KEY}),
    ("A10: no value clears a bad key", [(BAD_KEY, A), (BAD_KEY, B)], {}, {BAD_KEY: IS_BAD_KEY}),
    ("27: a null value clears all null keys", [(None, A), (None, B), (None, None)], {}, {}),
    ("A3: a null key with values", [(None, A), (None, BAD)], {}, {None: "the key 'k' is null"}),
    ("A3: a null key with a null value is nothing", [(None, None)], {}, {}),
    (
        "a null key clears no bad key, nor the other way",
        [(None, A), (BAD_KEY, A), (None, None)],
        {},
        {BAD_KEY: IS_BAD_KEY},
    ),
    (
        "a key that holds only nulls is a bad key, not the null key",
        [(key(None), A), (None, None)],
        {},
        {key(None): "it holds only nulls"},
    ),
    ("33: an empty payload is bad, no delete", [(ONE, A), (ONE, b"")], {}, {1: IS_BAD}),
    ("33: an empty object is a value of defaults", [(ONE, b"{}")], {1: None}, {}),
    ("an empty key is bytes like any other", [(b"", A)], {}, {b"": IS_BAD_KEY}),
    ("34: nothing remains of a longer value", [(ONE, value("long")), (ONE, B)], {1: "b"}, {}),
]


def errors_of(path: Path) -> dict[Any, str]:
    """Return where errors stand, and why."""
    errors: dict[Any, str] = {}
    for row in quarantine_of(path):
        place = row["k"] if row["_raw_key"] is None else row["_raw_key"]
        assert place not in errors, f"two errors stand at {place!r}"
        errors[place] = row["_reason"]
    return errors


WAYS = ["in one epoch", "in an epoch each", "compacted each time, with one hash for all keys"]


@pytest.mark.parametrize("way", rest_slow(WAYS))
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_quarantine(tmp_path: Path, way: str, case: Case) -> None:
    _, history, rows, expected = case
    path = tmp_path / "t"
    parts = [history] if way == "in one epoch" else [[record] for record in history]
    with hashes_of_few_values(1) if "one hash" in way else nullcontext():
        for offset, part in enumerate(parts):
            write(path, records(part, offsets=range(offset, offset + len(part))), **QUARANTINE)
            if "compacted" in way:
                Table.open(str(path)).compact(full=True)
    errors = errors_of(path)
    assert {row["k"]: row["v"] for row in rows_of(path)} == rows
    assert errors.keys() == expected.keys()
    assert all(reason in errors[place] for place, reason in expected.items()), errors
    assert_sound(path)


# -- the same cases where errors fail the write ------------------------------------------

FAILURES: dict[str, tuple[list[Record], str]] = {
    "21: a bad value, with its key": ([(ONE, A), (key(7), BAD)], "k=7, value {"),
    "22: a bad value that a good one follows": ([(ONE, BAD), (ONE, A)], IS_BAD),
    "25: a bad key": ([(BAD_KEY, A)], "key ?, value"),
    "25: a bad key, even if it deletes": ([(BAD_KEY, None)], IS_BAD_KEY),
    "27: a null key": ([(None, A)], "the key 'k' is null in 1 of 1 rows"),
    "33: an empty payload": ([(ONE, b"")], "1 of 1 rows of a batch (for example k=1, value )"),
    "several reasons, the first of them named": (
        [(ONE, BAD), (TWO, BAD), (THREE, A), (None, A)],
        "in 2 of 4 rows of a batch (for example k=1, value {); 1 more rows",
    ),
    "a huge value, quoted in part": ([(ONE, b"x" * 1_000_000)], IS_BAD),
}


@pytest.mark.parametrize(("bad", "text"), FAILURES.values(), ids=FAILURES.keys())
def test_a_bad_row_fails_the_write_and_nothing_is_committed(
    tmp_path: Path, bad: list[Record], text: str
) -> None:
    path = tmp_path / "t"
    commit = write(path, records([(key(9), value("z")), (None, None)]), **JSON)
    assert counters_of(commit).absent == 1
    with pytest.raises(DataError) as caught:
        write(path, records(bad), **JSON)
    assert text in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert "on_error=quarantine" in caught.value.hint
    assert pickle.loads(pickle.dumps(caught.value)).message == caught.value.message
    assert Table.open(str(path)).log.head().version == 0
    assert rows_of(path) == [{"k": 9, "v": "z"}]


# -- inline ------------------------------------------------------------------------------


def test_29_30_inline_errors_are_rows_that_are_updated_and_deleted(tmp_path: Path) -> None:
    path = tmp_path / "t"
    history = [(ONE, BAD), (TWO, B), (THREE, BAD), (key(4), BAD), (None, None)]
    commit = write(path, records(history), **INLINE)
    bad, good, *_ = rows_of(path)
    assert (bad["k"], bad["v"]) == (1, None)
    assert IS_BAD in bad["error"]["description"]
    assert good == {"k": 2, "v": "b", "error": None}
    assert (counters_of(commit).inserts, counters_of(commit).absent) == (4, 1)
    assert quarantine_of(path) == []
    commit = write(path, records([(ONE, A), (THREE, None), (key(4), b"[]")]), **JSON)
    cleared, _, replaced = rows_of(path)
    assert cleared == {"k": 1, "v": "a", "error": None}
    assert "found array" in replaced["error"]["description"]
    assert (counters_of(commit).updates, counters_of(commit).deletes) == (2, 1)
    assert_sound(path)


@pytest.mark.parametrize(
    ("bad_key", "text"), [(BAD_KEY, IS_BAD_KEY), (None, "the key 'k' is null")], ids=["bad", "null"]
)
def test_31_key_errors_are_never_inlined(tmp_path: Path, bad_key: bytes, text: str) -> None:
    with pytest.raises(DataError, match="onError=inline covers values only") as caught:
        write(tmp_path / "t", records([(ONE, BAD), (bad_key, A)]), **INLINE)
    assert text in str(caught.value)


def test_the_error_column_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "t"
    options = {**INLINE, "valueSchema": "v STRING, Error STRING"}
    with pytest.raises(SchemaError, match="errorColumn"):
        write(path, records([]), **options)
    write(path, records([(ONE, BAD)]), errorColumn="why", **options)
    assert list(rows_of(path)[0]) == ["k", "v", "Error", "why"]
    with pytest.raises(OptionError, match="but the table has 'why'"):
        write(path, records([(ONE, BAD)]), errorColumn="error", **options)


def test_a_table_with_inline_errors_grows_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, records([(ONE, BAD)]), **INLINE)
    wider = {**JSON, "valueSchema": "v STRING, w BIGINT", "mergeSchema": "true"}
    write(path, records([(TWO, b'{"w": 2}'), (THREE, BAD)]), **wider)
    rows = [(row["k"], row["w"], row["error"] is None) for row in rows_of(path)]
    assert rows == [(1, None, False), (2, 2, True), (3, None, False)]
    assert_sound(path)


# -- the policy belongs to the table -----------------------------------------------------


@pytest.mark.parametrize("old", ErrorPolicy, ids=lambda p: f"a table that was made for {p.value}")
@pytest.mark.parametrize("new", ErrorPolicy, ids=lambda p: f"asked to {p.value}")
def test_the_policy_cannot_change_but_from_fail_to_quarantine(
    tmp_path: Path, old: ErrorPolicy, new: ErrorPolicy
) -> None:
    path = tmp_path / "t"
    assert plan(path, KAFKA, **JSON).write.base.schema.on_error is ErrorPolicy.FAIL
    write(path, records([]), onError=old.value, **JSON)
    assert plan(path, KAFKA, **JSON).write.base.schema.on_error is old
    if new is old or (old, new) == (ErrorPolicy.FAIL, ErrorPolicy.QUARANTINE):
        assert plan(path, KAFKA, onError=new.value, **JSON).write.base.schema.on_error is new
        return
    with pytest.raises(OptionError, match=f"but the table has '{old.value}'") as caught:
        plan(path, KAFKA, onError=new.value, **JSON)
    assert "its first write fixed that" in caught.value.message
    assert Table.open(str(path)).log.head().version == 0


HISTORY: list[list[Record]] = [
    [(ONE, A), (TWO, B), (THREE, value("c"))],
    [(TWO, None), (key(4), value("d"))],
    [(ONE, BAD), (BAD_KEY, value("x")), (key(5), value("e")), (TWO, BAD)],
    [(ONE, value("f")), (THREE, BAD), (key(4), None)],
]


@pytest.mark.parametrize("merging", [False, True], ids=["as it is", "merged each time"])
@pytest.mark.parametrize("before", [1, 2])
def test_a_table_that_gains_a_quarantine_is_as_if_it_always_had_one(
    tmp_path: Path, before: int, merging: bool
) -> None:
    changed, always = tmp_path / "changed", tmp_path / "always"
    for number, history in enumerate(HISTORY):
        rows = records(history, offsets=range(10 * number, 10 * number + len(history)))
        policy = "fail" if number < before else "quarantine"
        write(changed, rows, onError=policy, **JSON)
        write(always, rows, **QUARANTINE)
        if merging:
            for path in (changed, always):
                Table.open(str(path)).compact(full=True)
    assert rows_of(changed) == rows_of(always)
    assert quarantine_of(changed) == quarantine_of(always) != []
    assert_sound(changed)
    assert Table.open(str(changed)).check().is_sound


def test_a_batch_that_was_under_way_when_the_policy_changed_is_written_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t"
    write(path, records([(ONE, A)]), **JSON)
    planned = plan(path, KAFKA, **JSON)
    write(path, records([(TWO, BAD)]), **QUARANTINE)
    table, base = planned.table(), Snapshot(planned.table().store, planned.write.base)
    rows = records([(ONE, B)]).to_batches()
    staged = stage(base, (planned.write.envelope.commands(batch) for batch in rows))
    with pytest.raises(ContentionError, match="became 'quarantine'"):
        table.commit(WriteSet(base=base, staged=(staged,)))
    assert rows_of(path) == [{"k": 1, "v": "a"}]


def test_alter_with_an_older_schema_keeps_the_quarantine(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, records([(ONE, A)]), **JSON)
    table = Table.open(str(path))
    old = table.log.head().schema
    plan(path, KAFKA, **QUARANTINE)
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


def test_a_plain_row_with_a_null_key_is_quarantined_as_json_until_a_delete(tmp_path: Path) -> None:
    path = tmp_path / "t"
    commit = write(path, plain((None, "Zoë", 5, False), (1, "b", 6, False)), **PLAIN_OPTIONS)
    [error] = quarantine_of(path)
    assert error["_reason"] == "the key 'k' is null"
    assert error["_raw_value"].decode() == '{"k": null, "v": "Zoë", "at": 5, "gone": false}'
    assert (counters_of(commit).quarantined, counters_of(commit).inserts) == (1, 1)
    write(path, plain((None, None, 7, True)), **PLAIN_OPTIONS)
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
    commit = write(path, plain((1, "a", 5, False), (2, "n", -(2**63), False)), **PLAIN_OPTIONS)
    assert (counters_of(commit).inserts, counters_of(commit).tied) == (2, 0)
    assert rows_of(path) == [{"k": 1, "v": "a"}, {"k": 2, "v": "n"}, {"k": 3, "v": "a"}]
    assert_sound(path)


ORDER_TYPES = [
    *(pa.int8(), pa.float64(), pa.string(), pa.binary(), pa.bool_(), pa.date32()),
    *(pa.timestamp("us", tz="UTC"), pa.decimal128(20, 3)),
]


@pytest.mark.parametrize("order_type", ORDER_TYPES, ids=str)
def test_an_order_key_of_every_type_may_be_missing(tmp_path: Path, order_type: pa.DataType) -> None:
    rows = pa.table({"k": pa.array([1, 2]), "v": ["a", "b"], "at": pa.nulls(2, order_type)})
    write(tmp_path / "t", rows, keys="k", sequenceBy="at", onError="quarantine")
    assert len(quarantine_of(tmp_path / "t")) == 2


def test_bad_rows_of_several_tasks_are_no_ambiguity_without_an_order() -> None:
    """Either reason will do; a choice between a row and an error would matter."""
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
    "an error where a row was": ((ONE, BAD), {"quarantined": 1, "displaced": 1}),
    "an error where an error was": ((TWO, BAD), {"quarantined": 1}),
    "a row where an error was": ((TWO, B), {"inserts": 1}),
    "a delete where an error was": ((TWO, None), {"absent": 1}),
    "a bad key": ((BAD_KEY, B), {"quarantined": 1}),
    "a delete of a bad key": ((BAD_KEY, None), {"absent": 1}),
}


@pytest.mark.parametrize(("record", "expected"), COUNTED.values(), ids=COUNTED.keys())
def test_counters(tmp_path: Path, record: Record, expected: dict[str, int]) -> None:
    path = tmp_path / "t"
    write(path, records([(ONE, A), (TWO, BAD)]), **QUARANTINE)
    counters = counters_of(write(path, records([record]), **JSON))
    assert counters == Counters(rows=1, **expected)
    assert_sound(path)


def test_an_overwrite_leaves_the_errors_of_the_past_out(tmp_path: Path) -> None:
    path = tmp_path / "t"
    before = [(ONE, A), (TWO, BAD), (THREE, value("c")), (BAD_KEY, value("d"))]
    write(path, records(before), **QUARANTINE)
    planned = plan(path, KAFKA, **JSON)
    rows = records([(ONE, BAD), (TWO, B)])
    commit = planned.table().upsert(rows, envelope=planned.write.envelope, overwrite=True)
    assert commit is not None
    counters = counters_of(commit)
    assert (counters.displaced, counters.retracted, counters.inserts) == (1, 1, 1)
    assert rows_of(path) == [{"k": 2, "v": "b"}]
    assert list(errors_of(path)) == [1]
    assert_sound(path)


# -- epochs of errors, and what is stored ------------------------------------------------


def test_an_error_keeps_its_epoch_at_any_version_and_behind_any_compaction(tmp_path: Path) -> None:
    path = tmp_path / "t"

    def epochs(version: int | None = None) -> dict[int, int]:
        batches = Table.open(str(path)).quarantine(version)
        return {row["k"]: row["_epoch"] for batch in batches for row in batch.to_pylist()}

    write(path, records([(ONE, BAD)]), **QUARANTINE)
    write(path, records([(ONE, A), (TWO, BAD), (THREE, BAD)]), **QUARANTINE)
    assert reasons(path)
    table = Table.open(str(path))
    table.compact(full=True)
    assert [epochs(version) for version in range(3)] == [{1: 0}, {2: 1, 3: 1}, {2: 1, 3: 1}]
    version = write(path, records([(TWO, b"[]"), (key(4), BAD)]), **JSON).version
    assert epochs() == {2: version, 3: 1, 4: version}
    table.compact(full=True)
    assert epochs() == {2: version, 3: 1, 4: version}


def test_only_files_with_errors_say_so(tmp_path: Path) -> None:
    path = tmp_path / "t"
    good = write(path, records([(ONE, A)]), **QUARANTINE)
    bad = write(path, records([(ONE, BAD), (TWO, BAD)]), **JSON)
    assert "errors" not in commit_to_json(good)["added"][0]
    assert commit_to_json(bad)["added"][0]["errors"] == 2
    assert commit_to_json(bad)["added"][0]["tombstones"] == 0
