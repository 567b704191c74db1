"""``missingFields``: a field that a JSON payload lacks leaves its column unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.errors import OptionError
from spark_upsert.payloads import missing_members
from spark_upsert.payloads.missing_members import find_missing
from tests.support.debezium import OPTIONS, bare, event, key, wrapped
from tests.support.envelopes import KAFKA, plan, records, rows_of, write
from tests.support.unchanged import Decoded, decode

UNCHANGED = {"missingFields": "unchanged"}
EVENTS = {**OPTIONS, "valueSchema": "id BIGINT, x STRING, y BIGINT", **UNCHANGED}
FLAT = {
    "envelope": "kafka",
    "keyFormat": "json",
    "keySchema": "id BIGINT",
    "valueFormat": "json",
    "valueSchema": "x STRING, y BIGINT",
    **UNCHANGED,
}


def decode_rows(*rows: Any, **options: str) -> Decoded:
    return decode(records([(key(1), bare(row)) for row in rows]), **{**FLAT, **options})


def decode_events(*events: Any, **options: str) -> Decoded:
    return decode(records([(key(1), bare(each)) for each in events]), **{**EVENTS, **options})


def update(after: Any, before: Any = None) -> dict[str, Any]:
    return event("u", before, after, 1)


ROWS: list[dict[str, Any]] = [{"x": "a", "y": 1}, {"x": "a"}, {"x": None, "y": 2}, {"x": None}, {}]
LACKS_X, LACKS_Y = [False, False, False, False, True], [False, True, False, True, True]


def test_a_record_leaves_the_fields_that_it_lacks() -> None:
    decoded = decode_rows(*ROWS)
    assert decoded.unchanged == {"x": LACKS_X, "y": LACKS_Y}
    assert decode_rows(*ROWS, missingFields="null").unchanged == {}


def test_an_event_leaves_the_fields_that_its_row_lacks() -> None:
    decoded = decode_events(*(update({"id": 1, **row}) for row in ROWS))
    assert decoded.unchanged == {"x": LACKS_X, "y": LACKS_Y}
    assert decoded.resets is None


@pytest.mark.parametrize("engine", ["deduplicate", "partial-update"])
def test_a_field_that_is_null_is_set_to_null(tmp_path: Path, engine: str) -> None:
    options = {**FLAT, "mergeEngine": engine, "sequenceScope": "table"}
    written: list[dict[str, Any]] = [{"x": "a", "y": 1}, {"x": None}, {}]
    for offset, row in enumerate(written):
        rows = records([(key(1), bare(row))], offsets=[offset])
        write(tmp_path / "t", rows, **options)
    assert rows_of(tmp_path / "t") == [{"id": 1, "x": None, "y": 1}]


@pytest.mark.parametrize("make", [bare, wrapped], ids=["bare", "with a schema"])
def test_a_key_and_values_that_the_row_lacks_are_in_the_old_row(make: Any) -> None:
    """As MySQL writes minimal row images: the key in the old row, the changed columns in the new."""
    options = {**EVENTS, "valueSchema": "id BIGINT, v STRING"}
    events = [update({}, {"id": 7}), update({}, {"id": 8, "v": "a"}), update({"v": "b"}, {"id": 9})]
    decoded = decode(records([(None, make(each)) for each in events]), **options)
    assert decoded.columns["id"] == [7, 8, 9]
    assert decoded.columns["v"] == [None, "a", "b"]
    assert decoded.unchanged == {"v": [True, False, False]}
    assert decoded.deletes == [False] * 3, "no row moves"


def test_a_key_that_the_row_lacks_is_the_key_of_the_record() -> None:
    decoded = decode_events(update({"x": "a"}))
    assert decoded.columns["id"] == [1]
    assert decoded.unchanged == {"y": [True]}


def test_a_key_that_is_nowhere_is_a_bad_key() -> None:
    decoded = decode(records([(None, bare(update({"x": "a"})))]), **EVENTS)
    assert decoded.bad_keys == ["the source did not send the key 'id'"]
    placeholder = {"id": "__debezium_unavailable_value"}
    options = {**EVENTS, "valueSchema": "id STRING, x STRING"}
    decoded = decode(records([(bare(placeholder), bare(update({"x": "a"})))]), **options)
    assert decoded.bad_keys == ["the source did not send the key 'id'"], "the key is none either"


def test_a_field_declared_not_null_may_be_missing_and_not_null() -> None:
    why = "'{}' is null, and declared NOT NULL"
    decoded = decode_rows(*ROWS, valueSchema="x STRING NOT NULL, y BIGINT")
    assert decoded.unchanged["x"] == LACKS_X
    reason = f"the value is undecodable: {why.format('x')}"
    assert decoded.bad_values == [None, None, reason, reason, None]

    events = [update({"id": 1, **row}) for row in ROWS]
    decoded = decode_events(*events, valueSchema="id BIGINT, x STRING NOT NULL, y BIGINT")
    assert decoded.unchanged["x"] == LACKS_X
    reason = f"the value is undecodable: {why.format('after.x')}"
    assert decoded.bad_values == [None, None, reason, reason, None]


def test_what_cannot_be_read_lacks_nothing() -> None:
    pairs = [(key(1), payload) for payload in (b"?", b"[]", b'{"y":"many"}', None, b"{}")]
    decoded = decode(records(pairs), **FLAT)
    assert decoded.unchanged == {name: [False] * 4 + [True] for name in "xy"}
    assert [reason is not None for reason in decoded.bad_values] == [True] * 3 + [False] * 2
    pairs = [(key(1), b"?"), (key(1), bare(event("d", {"id": 1}, None, 2)))]
    assert decode(records(pairs), **EVENTS).unchanged == {}


def test_fields_are_missing_after_the_header_of_a_registry() -> None:
    options = {**FLAT, "valueFormat": "json-confluent"}
    headers = [b"\0\0\0\0\1", b"\0{{{{"]
    rows = records([(key(1), header + b'{"x":null}') for header in headers])
    assert decode(rows, **options).unchanged == {"y": [True, True]}


SHAPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "an object": ("{}", ()),
    "blanks": (' \n{ "y"\t: 1 }\n', ()),
    "a value that is the name": ('{"y":"x"}', ()),
    "a value that looks like the member": (r'{"y":"\"x\": 1"}', ()),
    "another name that ends so": (r'{"a\"x":1,"ax":1}', ()),
    "a value with braces": ('{"y":"{x}"}', ()),
    "a name inside of another object": ('{"y":{"x":1}}', ()),
    "a wrapped message": ('{"schema":null,"payload":{"y":1}}', ()),
    "an object of an event": ('{"before":null,"after":{"y":1}}', ("after",)),
    "an object beside the name": ('{"before":{"x":1},"after":{"y":1},"x":2}', ("after",)),
    "an object below an object": ('{"after":{"y":{"x":1}}}', ("after",)),
    "two objects of the name": ('{"before":{"after":{"x":1}},"after":{"y":1}}', ("after",)),
    "the name as a text": ('{"x":"after","after":{"y":1}}', ("after",)),
}


def missing(text: str, path: tuple[str, ...], name: str = "x") -> bool:
    columns = {name: pa.nulls(1, pa.string())}
    found = find_missing(pa.array([text.encode()]), path, columns, np.array([True]))
    return bool(found.get(name, [False])[0])


@pytest.mark.parametrize(("text", "path"), SHAPES.values(), ids=SHAPES)
def test_a_member_is_missing_from(text: str, path: tuple[str, ...]) -> None:
    assert missing(text, path)
    document = json.loads(text)
    place = document.get("payload", document)
    for part in path:
        place = place[part]
    place["x"] = None
    for separators in ((",", ":"), (" , ", " : ")):
        assert not missing(json.dumps(document, separators=separators), path)


@pytest.mark.parametrize("name", ["größe", 'a"b', "a b", "a.b", ""])
def test_a_name_that_json_may_escape_is_missing_or_not(name: str) -> None:
    for is_ascii in (False, True):
        assert not missing(json.dumps({name: None}, ensure_ascii=is_ascii), (), name)
        assert missing(json.dumps({f"{name}1": None}, ensure_ascii=is_ascii), (), name)


def test_an_escaped_name_is_no_missing_one() -> None:
    assert not missing(r'{"\u0078":null}', ())
    assert not missing(r'{"\u0061fter":{"x":null}}', ("after",))


def test_usual_payloads_are_not_parsed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a row is that of a pattern, not of a parser."""

    def fail(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(missing_members, "parse_object", fail)
    assert decode_rows(*ROWS).unchanged["y"] == LACKS_Y
    events = [update({"id": 1, **row}) for row in ROWS] + [event("d", {"id": 1}, None, 2)]
    assert decode_events(*events).unchanged["y"] == [*LACKS_Y, False]
    schema = "id BIGINT, x STRING, y BIGINT, s STRUCT<x: INT>"
    nested = update({"id": 1, "y": 1, "s": {"x": 1}})
    assert decode_events(nested, valueSchema=schema).unchanged == {"x": [True]}


REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "plain rows": ({"keys": "offset"}, "'valueFormat' is not JSON"),
    "Avro": ({**FLAT, "valueFormat": "avro", "valueSchema": '"int"'}, "'valueFormat' is not JSON"),
    "bytes": ({**FLAT, "valueFormat": "raw", "valueSchema": "STRING"}, "'valueFormat' is not JSON"),
    "a schema in each message": ({**FLAT, "valueSchema": "inline"}, "whose schema says"),
    "an unknown meaning": ({**FLAT, "missingFields": "none"}, "one of null, unchanged"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_missing_fields_have_no_meaning_with(
    tmp_path: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        plan(tmp_path / "t", KAFKA, **{**UNCHANGED, **options})
