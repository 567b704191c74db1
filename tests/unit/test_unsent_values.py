"""Placeholders for values that the source did not send: each column type at each entry point.

Sources: ``UnchangedToastedPlaceholder`` in Debezium's PostgreSQL connector, its Oracle, SQL Server
and MySQL value converters (`payloads.placeholders`), and the page "Debezium connector for
PostgreSQL", "Toasted values".
"""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import json
import random
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import DataError, OptionError
from spark_upsert.payloads.ddl import parse_schema
from spark_upsert.payloads.placeholders import Placeholder
from tests.support import own_schemas
from tests.support.debezium import OPTIONS, avro, bare, event, key, member, wrapped
from tests.support.envelopes import plan, records, rows_of, write, write_found
from tests.support.fuzz import FUZZ_TIMES
from tests.support.seeds import seeds
from tests.support.unchanged import Decoded, decode, decoded_by

DEFAULT = "__debezium_unavailable_value"
PLACEHOLDERS = {
    "default": DEFAULT,
    "configured": "n/a",
    "not ASCII": "nicht verfügbar ✂",
    "hexadecimal": "hex:00ff7f80",
}


@dataclass(frozen=True)
class Form:
    """A column type, a true value, and the placeholder for it."""

    ddl: str
    true: Any
    """As Arrow has it."""
    unsent: Callable[[bytes], Any]
    """Takes the placeholder's bytes; returns its form, as Arrow has it."""
    connect: Mapping[str, Any] | None = None
    """The type in a Connect schema, if that names one."""
    avro: Any = None


def text(data: bytes) -> str:
    return data.decode(errors="replace")


def numbers(data: bytes) -> list[int]:
    return [byte - 256 * (byte > 127) for byte in data]


def named_uuid(data: bytes) -> str:
    return str(uuid.UUID(bytes=hashlib.md5(data).digest(), version=3))


assert named_uuid(DEFAULT.encode()) == "b68a35a7-17ad-35b3-af2a-ae46edb4545a", "as Debezium has it"

EPOCH = dt.date(1970, 1, 1)


def connect_array(type_: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": type_, "optional": True}}


def avro_array(type_: str) -> dict[str, Any]:
    return {"type": "array", "items": ["null", type_]}


def hstore(data: bytes) -> str:
    pair = {text(data): text(data)}
    return json.dumps(pair, separators=(",", ":"), ensure_ascii=False)


def days(data: bytes) -> list[dt.date]:
    return [EPOCH + dt.timedelta(days=number) for number in numbers(data)]


NOWHERE = bytes.fromhex("0101000020e6100000000000fc83d797c1000000fc83d797c1")
AVRO_MAP = {"type": "map", "values": ["null", "string"]}

FORMS: dict[str, Form] = {
    "text": Form("STRING", "a", text, {"type": "string"}, "string"),
    "bytes": Form("BINARY", b"a", lambda data: data, {"type": "bytes"}, "bytes"),
    "bytes in Base64": Form("STRING", "YQ==", lambda data: base64.b64encode(data).decode()),
    "bytes in URL-safe Base64": Form(
        "STRING", "YQ==", lambda data: base64.urlsafe_b64encode(data).decode()
    ),
    "bytes in hex": Form("STRING", "61", lambda data: data.hex()),
    "array of texts": Form(
        "ARRAY<STRING>",
        ["a", None],
        lambda data: [text(data)],
        connect_array("string"),
        avro_array("string"),
    ),
    "array of bytes": Form(
        "ARRAY<BINARY>", [b"a"], lambda data: [data], connect_array("bytes"), avro_array("bytes")
    ),
    "array of INT": Form("ARRAY<INT>", [1, 2], numbers, connect_array("int32"), avro_array("int")),
    "array of BIGINT": Form(
        "ARRAY<BIGINT>", [1, None], numbers, connect_array("int64"), avro_array("long")
    ),
    "array of DOUBLE": Form("ARRAY<DOUBLE>", [0.5], lambda data: list(map(float, numbers(data)))),
    "array of DATE": Form("ARRAY<DATE>", [EPOCH], days),
    "array of UUIDs": Form("ARRAY<STRING>", ["a"], lambda data: [named_uuid(data)]),
    "hstore as JSON": Form("STRING", '{"a":"b"}', hstore),
    "hstore as a map": Form(
        "MAP<STRING, STRING>", [("a", "b")], lambda data: [(text(data), text(data))], avro=AVRO_MAP
    ),
    "hstore as a struct": Form(
        "STRUCT<a: STRING>", {"a": "b"}, lambda data: {text(data): text(data)}
    ),
    "a number as text": Form("DECIMAL(10, 2)", Decimal("1.50"), text),
    "geometry": Form(
        "STRUCT<wkb: BINARY, srid: INT>",
        {"wkb": b"a", "srid": 1},
        lambda _: {"wkb": NOWHERE, "srid": 4326},
    ),
}

ONLY_IN_JSON = ("hstore as a struct", "a number as text")
"""Columns of another type than the placeholder: only the bytes of a payload show it."""


def as_json(value: Any) -> Any:
    """Return a value as Connect's JSON converter writes it."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case dt.date():
            return (value - EPOCH).days
        case Decimal():
            return str(value)
        case list() if value and isinstance(value[0], tuple):
            return dict(value)
        case list():
            return [as_json(item) for item in value]
        case dict():
            return {name: as_json(item) for name, item in value.items()}
        case _:
            return value


def schema_of(form: Form) -> str:
    return f"id BIGINT, x {form.ddl}, n STRING"


def row_of(x: Any, lsn: int) -> dict[str, Any]:
    return {"id": 1, "x": x, "n": str(lsn)}


def declared(form: Form) -> dict[str, str]:
    return {**OPTIONS, "valueSchema": schema_of(form), "decimalHandling": "string"}


def message(x: Any, lsn: int) -> dict[str, Any]:
    return event("u", None, row_of(as_json(x), lsn), lsn)


def by_bare_json(path: Path, form: Form, x: Any, lsn: int, **more: str) -> None:
    write(path, records([(key(1), bare(message(x, lsn)))]), **declared(form), **more)


def wrapped_record(form: Form, x: Any, lsn: int) -> pa.Table:
    type_ = {**(form.connect or {"type": "string"}), "optional": True, "field": "x"}
    row = [member("id", "int64"), type_, member("n", "string")]
    return records([(key(1), wrapped(message(x, lsn), row))])


def by_wrapped_json(path: Path, form: Form, x: Any, lsn: int, **more: str) -> None:
    write(path, wrapped_record(form, x, lsn), **declared(form), **more)


def by_inline_schema(path: Path, form: Form, x: Any, lsn: int, **more: str) -> None:
    options = {**OPTIONS, "valueSchema": "inline", "keySchema": "id BIGINT", **more}
    write_found(path, wrapped_record(form, x, lsn), **options)


def by_avro(path: Path, form: Form, x: Any, lsn: int, **more: str) -> None:
    record = own_schemas.record
    row = record("Row", id="long", x=["null", form.avro], n=["null", "string"])
    images = {"before": ["null", row], "after": ["null", "Row"]}
    schema = record("Event", **images, source=record("Source", lsn="long"), op="string")
    x = dict(x) if isinstance(x, list) and x and isinstance(x[0], tuple) else x
    value = {"before": None, "after": row_of(x, lsn), "source": {"lsn": lsn}, "op": "u"}
    options = {**OPTIONS, "valueFormat": "avro-confluent", "valueSchema": json.dumps(schema)}
    write(path, records([(None, avro(schema, value))]), **options, **more)


def arrow_row(form: Form) -> pa.StructType:
    columns, _ = parse_schema("valueSchema", schema_of(form), bare_name="x")
    return pa.struct(list(columns))


def by_parsed_events(path: Path, form: Form, x: Any, lsn: int, **more: str) -> None:
    after = pa.array([row_of(x, lsn)], arrow_row(form))
    rows = pa.table({"after": after, "op": ["u"], "lsn": [lsn]})
    write(path, rows, envelope="debezium", keys="id", sequenceBy="lsn", **more)


def by_flattened_json(path: Path, form: Form, x: Any, lsn: int, **more: str) -> None:
    rows = records([(key(1), bare(row_of(as_json(x), lsn)))], offsets=[lsn])
    options = {"envelope": "kafka", "keyFormat": "json", "keySchema": "id BIGINT"}
    options |= {"valueFormat": "json", "valueSchema": schema_of(form), "sequenceScope": "table"}
    write(path, rows, **options, **more)


def by_flattened_rows(path: Path, form: Form, x: Any, lsn: int, **more: str) -> None:
    row = {**row_of(x, lsn), "__deleted": "false", "lsn": lsn}
    type_ = [*arrow_row(form), pa.field("__deleted", pa.string()), pa.field("lsn", pa.int64())]
    rows = pa.Table.from_struct_array(pa.array([row], pa.struct(type_)))
    options = {"keys": "id", "sequenceBy": "lsn", "applyAsDeletes": "__deleted"}
    write(path, rows, exceptColumnList="lsn", **options, **more)


ENTRIES = {
    "bare JSON": by_bare_json,
    "JSON with a schema, declared": by_wrapped_json,
    "JSON with a schema": by_inline_schema,
    "Avro": by_avro,
    "parsed events": by_parsed_events,
    "flattened JSON": by_flattened_json,
    "flattened rows": by_flattened_rows,
}


def has(entry: str, form: Form, name: str) -> bool:
    """Return whether an entry point can be given a form."""
    if entry == "Avro":
        return form.avro is not None
    if entry == "JSON with a schema":
        return form.connect is not None
    if entry in ("parsed events", "flattened rows"):
        return name not in ONLY_IN_JSON
    if "MAP" in form.ddl:
        return False
    if entry == "flattened JSON":  # Plain JSON has no bytes, and dates are texts.
        return "BINARY" not in form.ddl and "DATE" not in form.ddl
    return entry == "bare JSON" or form.connect is not None or name in ONLY_IN_JSON


MATRIX = [
    pytest.param(entry, name, id=f"{entry}, {name}")
    for entry in ENTRIES
    for name, form in FORMS.items()
    if has(entry, form, name)
]


@pytest.mark.parametrize("placeholder", PLACEHOLDERS.values(), ids=PLACEHOLDERS)
@pytest.mark.parametrize(("entry", "name"), MATRIX)
@pytest.mark.sweep(24)
def test_an_unsent_value_keeps_the_old_value(
    tmp_path: Path, entry: str, name: str, placeholder: str
) -> None:
    form, put = FORMS[name], ENTRIES[entry]
    data = Placeholder.parse(placeholder).data
    more = {} if placeholder == DEFAULT else {"unavailableValuePlaceholder": placeholder}
    for engine in ("deduplicate", "partial-update"):
        path = tmp_path / engine
        put(path, form, form.true, 1, mergeEngine=engine, **more)
        (before,) = rows_of(path)
        with decoded_by() as batches:
            put(path, form, form.unsent(data), 2, mergeEngine=engine, **more)
        assert [batch.unchanged for batch in batches] == [{"x": [True]}]
        assert batches[0].resets is None, "an update leaves what it does not send"
        assert rows_of(path) == [{**before, "n": "2"}]
        assert before["x"] == form.true


TEXT = pa.array([DEFAULT])
BYTES = numbers(DEFAULT.encode())
LAYOUTS: dict[str, pa.Array] = {
    "a view, as Polars has it": TEXT.cast(pa.string_view()),
    "a view of bytes": pa.array([DEFAULT.encode()], pa.binary_view()),
    "a dictionary": TEXT.dictionary_encode(),
    "bytes of one length": pa.array([DEFAULT.encode()], pa.binary(len(DEFAULT))),
    "a JSON document": pa.ExtensionArray.from_storage(pa.json_(), TEXT),
    "a list of views": pa.array([[DEFAULT]], pa.large_list(pa.string_view())),
    "a view of a list": pa.array([[DEFAULT]], pa.list_view(pa.string())),
    "a list of one length": pa.array([BYTES], pa.list_(pa.int64(), len(BYTES))),
    "a list of UUIDs": pa.ListArray.from_arrays(
        pa.array([0, 1], pa.int32()),
        pa.array([uuid.UUID(named_uuid(DEFAULT.encode())).bytes], pa.uuid()),
    ),
    "a map of dictionaries": pa.MapArray.from_arrays(
        pa.array([0, 1], pa.int32()), TEXT.dictionary_encode(), TEXT.dictionary_encode()
    ),
}


@pytest.mark.parametrize("column", LAYOUTS.values(), ids=LAYOUTS)
def test_an_unsent_value_is_found_in(tmp_path: Path, column: pa.Array) -> None:
    """In each layout that Arrow has for a type of Debezium."""
    ids = pa.array([1])
    false, update = (pa.array([word], pa.string_view()) for word in ("false", "u"))
    flattened = pa.table({"id": ids, "x": column, "__deleted": false})
    after = pa.StructArray.from_arrays([ids, column], ["id", "x"])
    event_rows = pa.table({"after": after, "op": update, "lsn": ids})
    for rows, options in (
        (flattened, {"applyAsDeletes": "__deleted"}),
        (event_rows, {"envelope": "debezium", "sequenceBy": "lsn"}),
    ):
        with pytest.raises(DataError, match="never sent"):
            write(tmp_path / "fails", rows, keys="id", **options)
        write(tmp_path / "keeps", rows, keys="id", mergeEngine="partial-update", **options)
        assert rows_of(tmp_path / "keeps") == [{"id": 1, "x": None}]
        shutil.rmtree(tmp_path / "keeps")


NEAR: dict[str, tuple[str, Any]] = {
    "a text with more": ("STRING", f"{DEFAULT} "),
    "a part of the text": ("STRING", DEFAULT[:-1]),
    "other letters": ("STRING", DEFAULT.upper()),
    "two items": ("ARRAY<STRING>", [DEFAULT, DEFAULT]),
    "an item among others": ("ARRAY<STRING>", ["a", DEFAULT]),
    "no items": ("ARRAY<STRING>", []),
    "numbers but the last": ("ARRAY<INT>", numbers(DEFAULT.encode())[:-1]),
    "other numbers": ("ARRAY<INT>", [*numbers(DEFAULT.encode())[:-1], 102]),
    "a null among numbers": ("ARRAY<INT>", [*numbers(DEFAULT.encode())[:-1], None]),
    "another entry": ("STRUCT<a: STRING>", {"a": DEFAULT}),
    "a UUID that is no item": ("STRING", named_uuid(DEFAULT.encode())),
}


@pytest.mark.parametrize(("ddl", "value"), NEAR.values(), ids=NEAR)
def test_a_value_that_only_resembles_the_placeholder_is_stored(
    tmp_path: Path, ddl: str, value: Any
) -> None:
    form = Form(ddl, None, text)
    for name in ("bare JSON", "flattened JSON"):
        ENTRIES[name](tmp_path / name, form, value, 1)
        assert [row["x"] for row in rows_of(tmp_path / name)] == [value]


def test_plain_rows_may_hold_the_placeholder(tmp_path: Path) -> None:
    """Nothing says that they come from Debezium."""
    write(tmp_path / "t", pa.table({"id": [1], "x": [DEFAULT]}), keys="id")
    assert rows_of(tmp_path / "t") == [{"id": 1, "x": DEFAULT}]


@pytest.mark.parametrize("engine", ["deduplicate", "partial-update"])
def test_a_key_that_was_not_sent_is_the_old_key(tmp_path: Path, engine: str) -> None:
    """PostgreSQL sends a large key with the old row (``K``), and not with the new one."""
    options = {**OPTIONS, "valueSchema": "k STRING, n STRING", "keys": "k", "mergeEngine": engine}

    def put(before: Any, after: Any, lsn: int) -> None:
        write(tmp_path / "t", records([(None, bare(event("u", before, after, lsn)))]), **options)

    put(None, {"k": "long", "n": "1"}, 1)
    put({"k": "long", "n": None}, {"k": DEFAULT, "n": "2"}, 2)
    assert rows_of(tmp_path / "t") == [{"k": "long", "n": "2"}]
    with pytest.raises(DataError, match=r"did not send the key 'k'"):
        put(None, {"k": DEFAULT, "n": "3"}, 3)


def test_a_row_without_all_of_its_key_has_no_key() -> None:
    options = {**OPTIONS, "valueSchema": "a BIGINT, b STRING, n STRING", "keys": "a,b"}
    lost = event("u", {"a": 1}, {"a": 1, "b": DEFAULT, "n": "2"}, 2)
    found = decode(records([(None, bare(lost))]), **options)
    assert found.deletes == [False], "no row is known to have moved"
    assert (found.columns["a"], found.columns["b"]) == ([None], [None])
    assert found.bad_keys == ["the source did not send the key 'b'"]
    assert found.unchanged == {}


def test_an_order_that_was_not_sent_is_an_error() -> None:
    """Its placeholder is a text like others, which would be the order."""
    rows = pa.table({"id": [1, 2], "t": [DEFAULT, "2"], "x": ["a", DEFAULT]})
    options = {"keys": "id", "sequenceBy": "t", "unavailableValuePlaceholder": DEFAULT}
    found = decode(rows, **options)
    assert found.bad_values == ["the source did not send 't', which orders the rows", None]
    assert found.unchanged == {"x": [False, True]}


ROW_SCHEMA = "id BIGINT, x STRING, d DECIMAL(10, 2), s STRUCT<a: STRING>, n STRING"
SENT = {"id": 1, "x": "a", "d": "1.50", "s": {"a": "b"}, "n": "1"}
LOST = {"id": 1, "x": DEFAULT, "d": DEFAULT, "s": {DEFAULT: DEFAULT}, "n": "2"}
VALUES = {"x": "a", "d": Decimal("1.50"), "s": {"a": "b"}, "n": "2"}
OF_ROWS = {**OPTIONS, "valueSchema": ROW_SCHEMA, "decimalHandling": "string"}


def decode_event(op: str, before: Any, after: Any, **more: str) -> Decoded:
    return decode(records([(key(1), bare(event(op, before, after, 2)))]), **OF_ROWS, **more)


@pytest.mark.parametrize("op", ["c", "r", "u"])
def test_only_an_update_leaves_the_values_of_an_older_row(op: str) -> None:
    found = decode_event(op, None, LOST)
    assert found.unchanged == {"x": [True], "d": [True], "s": [True]}
    assert found.resets == (None if op == "u" else [True])
    assert decode_event(op, None, SENT).resets is None, "a whole row resets nothing"


@pytest.mark.parametrize("mark", ["__deleted", "__op"])
def test_a_flattened_create_is_known_by_its_operation(mark: str) -> None:
    rows = {"id": [1, 2, 3, 4], "__op": ["c", "r", "u", "d"], "x": [DEFAULT] * 4}
    deletes = {"__deleted": ["false", "false", "false", "true"]}
    (other,) = {"__deleted", "__op"} - {mark}
    marks = {"applyAsDeletes": mark, "exceptColumnList": other}
    found = decode(pa.table({**rows, **deletes}), keys="id", **marks)
    assert found.unchanged["x"] == [True] * 4
    assert found.resets == [True, True, False, False]
    assert found.deletes == [False, False, False, True]

    options = {"envelope": "kafka", "keyFormat": "json", "keySchema": "id BIGINT"}
    options |= {"valueFormat": "json", "valueSchema": "x STRING, __op STRING, __deleted STRING"}
    pairs = [(key(1), bare({"x": DEFAULT, "__op": op, "__deleted": "false"})) for op in "cru"]
    found = decode(records(pairs), **options, **marks)
    assert found.resets == [True, True, False]


def parsed(before: Any, after: Any) -> pa.Table:
    row = pa.struct([("id", pa.int64()), ("x", pa.string()), ("l", pa.list_(pa.int64()))])
    images = {"before": pa.array([before], row), "after": pa.array([after], row)}
    return pa.table({**images, "op": ["u"], "lsn": [2]})


def test_an_unsent_value_is_taken_from_before() -> None:
    """As with REPLICA IDENTITY FULL, where PostgreSQL sends it in the old row alone."""
    found = decode_event("u", SENT, LOST)
    assert found.unchanged == {}
    assert {name: column[0] for name, column in found.columns.items()} == {"id": 1, **VALUES}

    numbers_ = numbers(DEFAULT.encode())
    old, new = {"id": 1, "x": "a", "l": [7]}, {"id": 1, "x": DEFAULT, "l": numbers_}
    found = decode(parsed(old, new), envelope="debezium", keys="id", sequenceBy="lsn")
    assert found.unchanged == {}
    assert (found.columns["x"], found.columns["l"]) == (["a"], [[7]])
    found = decode(parsed(new, new), envelope="debezium", keys="id", sequenceBy="lsn")
    assert found.unchanged == {"x": [True], "l": [True]}


def as_wrapped_json(value: Any) -> tuple[pa.Table, dict[str, str]]:
    row = [member("id", "int64"), member("x", "bytes"), member("n", "string")]
    images = {n: value[n] and as_json(value[n]) for n in ("before", "after")}
    rows = records([(None, wrapped({**value, **images}, row))])
    return rows, {**OPTIONS, "valueSchema": "id BIGINT, x BINARY, n STRING"}


def as_avro(value: Any) -> tuple[pa.Table, dict[str, str]]:
    record = own_schemas.record
    row = record("Row", id="long", x=["null", "bytes"], n=["null", "string"])
    images = {"before": ["null", row], "after": ["null", "Row"]}
    schema = record("Event", **images, source=record("Source", lsn="long"), op="string")
    options = {**OPTIONS, "valueFormat": "avro-confluent", "valueSchema": json.dumps(schema)}
    return records([(None, avro(schema, value))]), options


@pytest.mark.parametrize("made", [as_wrapped_json, as_avro], ids=["JSON with a schema", "Avro"])
def test_an_unsent_value_is_taken_from_before_in(made: Any) -> None:
    for old, unchanged in ((b"a", {}), (None, {"x": [True]}), (DEFAULT.encode(), {"x": [True]})):
        before, after = {"id": 1, "x": old, "n": "1"}, {"id": 1, "x": DEFAULT.encode(), "n": "2"}
        rows, options = made(event("u", before, after, 2))
        found = decode(rows, **options)
        assert found.unchanged == unchanged
        assert found.columns["x"] == [None if unchanged else b"a"]
        assert found.columns["n"] == ["2"]


def test_an_unsent_value_is_taken_from_before_in_a_message_with_its_schema(tmp_path: Path) -> None:
    rows, _ = as_wrapped_json(
        event("u", {"id": 1, "x": b"a", "n": "1"}, {"id": 1, "x": DEFAULT.encode(), "n": "2"}, 2)
    )
    with decoded_by() as batches:
        options = {**OPTIONS, "valueSchema": "inline", "keySchema": "id BIGINT"}
        write_found(tmp_path / "t", rows, **options)
    assert [(batch.unchanged, batch.columns["x"]) for batch in batches] == [({}, [b"a"])]


def test_an_unsent_value_is_taken_from_before_in_each_row_of_its_own() -> None:
    """Rows with and without an old row, whose values are not mixed up."""
    pairs = [
        (key(n), bare(event("u", old and {**SENT, **old, "id": n}, {**new, "id": n}, n)))
        for n, (old, new) in enumerate(
            [
                (None, SENT),
                ({"x": "b", "d": None}, LOST),
                (None, LOST),
                ({"x": "never"}, {**SENT, "x": "c"}),
                ({"x": "d", "d": "2"}, LOST),
                ({"x": "e", "s": {DEFAULT: DEFAULT}}, LOST),
            ]
        )
    ]
    found = decode(records(pairs), **OF_ROWS)
    assert found.columns["x"] == ["a", "b", None, "c", "d", "e"]
    decimals = [d and str(d) for d in found.columns["d"]]
    assert decimals == ["1.50", None, None, "1.50", "2.00", "1.50"]
    assert found.unchanged["x"] == [False, False, True, False, False, False]
    assert found.unchanged["d"] == [False, True, True, False, False, False]
    assert found.unchanged["s"] == [False, False, True, False, False, True]


NO_VALUES: dict[str, Any] = {
    "nulls, as any other identity sends": {"id": 1},
    "placeholders": LOST,
    "what cannot be read": {**SENT, "d": "many"},
}


@pytest.mark.parametrize("before", NO_VALUES.values(), ids=NO_VALUES)
def test_before_has_no_value_in(before: Any) -> None:
    assert decode_event("u", before, LOST).unchanged == {"x": [True], "d": [True], "s": [True]}


def test_a_row_that_moves_takes_its_old_values_from_before() -> None:
    found = decode_event("u", SENT, {**LOST, "id": 2})
    assert found.deletes == [True, False]
    assert (found.columns["id"], found.columns["x"]) == ([1, 2], [None, "a"])
    assert found.unchanged == {}


def test_a_row_that_moves_leaves_no_value_of_its_new_key() -> None:
    """An older row of the new key is another row."""
    found = decode_event("u", {"id": 1}, {**LOST, "id": 2})
    assert found.deletes == [True, False]
    assert found.unchanged["x"] == [False, True], "a delete leaves nothing"
    assert found.resets == [False, True]


def test_a_value_declared_not_null_may_be_unsent(tmp_path: Path) -> None:
    schema = "id BIGINT, x DECIMAL(10, 2) NOT NULL, n STRING NOT NULL"
    options = {**OPTIONS, "valueSchema": schema, "mergeEngine": "partial-update"}

    def put(op: str, after: Any, lsn: int) -> None:
        rows = records([(key(1), bare(event(op, None, {"id": 1, **after}, lsn)))])
        write(tmp_path / "t", rows, **options, decimalHandling="string")

    put("c", {"x": "1.50", "n": "a"}, 1)
    put("u", {"x": DEFAULT, "n": "b"}, 2)
    assert rows_of(tmp_path / "t") == [{"id": 1, "x": Decimal("1.50"), "n": "b"}]
    with pytest.raises(DataError, match=r"'after\.n' is null, and declared NOT NULL"):
        put("u", {"x": DEFAULT}, 3)


def test_a_delete_has_no_value_that_could_be_unsent(tmp_path: Path) -> None:
    by_bare_json(tmp_path / "t", FORMS["text"], "a", 1)
    delete = event("d", {"id": 1, "x": DEFAULT, "n": DEFAULT}, None, 2)
    write(tmp_path / "t", records([(key(1), bare(delete))]), **declared(FORMS["text"]))
    assert rows_of(tmp_path / "t") == []


def test_an_unsent_value_is_no_null_that_deletes(tmp_path: Path) -> None:
    options = {"keys": "id", "sequenceBy": "n", "mergeEngine": "partial-update"}
    options |= {"nullsAsDeletes": "true", "unavailableValuePlaceholder": DEFAULT}
    for number, value in enumerate(("a", DEFAULT)):
        write(tmp_path / "t", pa.table({"id": [1], "n": [number], "x": [value]}), **options)
    assert rows_of(tmp_path / "t") == [{"id": 1, "n": 1, "x": "a"}]


def test_a_placeholder_that_is_none_is_refused(tmp_path: Path) -> None:
    for text_ in ("hex:", "hex:0", "hex:xyz"):
        with pytest.raises(OptionError, match="hexadecimal digits"):
            plan(tmp_path, pa.schema({"id": pa.int64()}), unavailableValuePlaceholder=text_)


MIXED: dict[str, tuple[Form, Callable[[int], Any]]] = {
    "a": (FORMS["text"], lambda number: f"v{number}"),
    "b": (FORMS["array of texts"], lambda number: [f"v{number}", None]),
    "c": (FORMS["array of BIGINT"], lambda number: [number]),
    "d": (FORMS["hstore as a struct"], lambda number: {"a": f"v{number}"}),
    "e": (FORMS["a number as text"], lambda number: Decimal(number) / 4),
}


@seeds(6 * FUZZ_TIMES, quick=2)
def test_random_updates_leave_what_they_did_not_send(tmp_path: Path, seed: int) -> None:
    """Batches in which each value may be unsent, against the newest value that was sent.

    The same with either engine.
    """
    dice = random.Random(seed)
    schema = ", ".join(f"{name} {form.ddl}" for name, (form, _) in MIXED.items())
    options = {**OPTIONS, "valueSchema": f"id BIGINT, {schema}", "decimalHandling": "string"}
    newest: dict[int, dict[str, Any]] = {}
    for batch in range(dice.randint(1, 4)):
        pairs = []
        for place in range(dice.randint(1, 60)):
            number = dice.randrange(12)
            rate = dice.choice([0.0, 0.3, 0.9]) if number in newest else 0.0
            sent = {n: draw(dice.randrange(1000)) for n, (_, draw) in MIXED.items()}
            unsent = {n: form.unsent(DEFAULT.encode()) for n, (form, _) in MIXED.items()}
            lost = {name for name in MIXED if dice.random() < rate}
            row = {"id": number, **sent, **{name: unsent[name] for name in lost}}
            known = {name: value for name, value in sent.items() if name not in lost}
            newest[number] = {"id": number, **newest.get(number, {}), **known}
            value = event("u", None, as_json(row), 1000 * batch + place)
            payload = dice.choice([value, {"schema": None, "payload": value}])
            pairs.append((key(number), bare(payload)))
        write(tmp_path / "partial", records(pairs), mergeEngine="partial-update", **options)
        write(tmp_path / "whole", records(pairs), onError="quarantine", **options)
    for name in ("partial", "whole"):
        assert rows_of(tmp_path / name) == sorted(newest.values(), key=repr)


@seeds(6 * FUZZ_TIMES, quick=2)
def test_random_events_leave_what_neither_image_has(seed: int) -> None:
    """Events of each operation, with and without an old row that has all columns, or only the key."""
    dice = random.Random(seed)
    schema = ", ".join(f"{name} {form.ddl}" for name, (form, _) in MIXED.items())
    options = {**OPTIONS, "valueSchema": f"id BIGINT, {schema}", "decimalHandling": "string"}
    unsent = {name: form.unsent(DEFAULT.encode()) for name, (form, _) in MIXED.items()}
    pairs: list[tuple[bytes, bytes]] = []
    puts: list[tuple[dict[str, Any], set[str], bool]] = []
    for lsn in range(dice.randint(1, 40)):
        op = dice.choice("cruuuu")
        new, old = ({n: draw(dice.randrange(1000)) for n, (_, draw) in MIXED.items()} for _ in "no")
        lost = {name for name in MIXED if dice.random() < dice.choice([0.0, 0.4, 0.9])}
        after = {"id": lsn, **new, **{name: unsent[name] for name in lost}}
        kept = {name for name in MIXED if dice.random() < 0.7} if dice.random() < 0.6 else set()
        odd = {name: dice.choice([None, unsent[name]]) for name in MIXED}
        before = {"id": lsn, **odd, **{name: old[name] for name in kept}}
        has_before = op == "u" and dice.random() < 0.7
        expected = {**new, **{name: old[name] if has_before else None for name in lost & kept}}
        left = lost - kept if has_before else lost
        puts.append(({**expected, **dict.fromkeys(left)}, left, op != "u"))
        value = event(op, as_json(before) if has_before else None, as_json(after), lsn)
        pairs.append((key(lsn), bare(dice.choice([value, {"schema": None, "payload": value}]))))
    found = decode(records(pairs), **options)
    for name in MIXED:
        assert found.columns[name] == [row[name] for row, *_ in puts]
        is_left = found.unchanged.get(name, [False] * len(puts))
        assert is_left == [name in left for _, left, _ in puts]
    resets = [bool(left) and is_create for _, left, is_create in puts]
    assert found.resets == (resets if any(resets) else None)


@pytest.mark.parametrize("is_one_batch", [True, False], ids=["one batch", "two batches"])
def test_a_row_that_moves_takes_along_what_was_not_sent(tmp_path: Path, is_one_batch: bool) -> None:
    """Also on to a third key, and in the order of the moves."""
    options = {**OPTIONS, "valueSchema": "id BIGINT, x STRING, n STRING"}
    create = event("c", None, {"id": 1, "x": "a", "n": "1"}, 1)
    moves = [event("u", {"id": n - 1}, {"id": n, "x": DEFAULT, "n": str(n)}, n) for n in (2, 3)]
    pairs = [(None, bare(message)) for message in (create, *moves)]
    for batch in [pairs] if is_one_batch else [pairs[:1], pairs[1:2], pairs[2:]]:
        write(tmp_path / "t", records(batch), **options)
    assert rows_of(tmp_path / "t") == [{"id": 3, "x": "a", "n": "3"}]


@pytest.mark.parametrize("engine", ["deduplicate", "partial-update"])
def test_null_is_a_value_beside_one_that_was_not_sent(tmp_path: Path, engine: str) -> None:
    """An event says which values it does not send, so its nulls are values with any engine."""
    options = {**OPTIONS, "valueSchema": "id BIGINT, x STRING, n STRING", "mergeEngine": engine}
    rows = [{"id": 1, "x": "a", "n": "1"}, {"id": 1, "x": DEFAULT, "n": None}]
    for lsn, row in enumerate(rows, 1):
        write(tmp_path / "t", records([(key(1), bare(event("u", None, row, lsn)))]), **options)
    assert rows_of(tmp_path / "t") == [{"id": 1, "x": "a", "n": None}]
    late = {"id": 1, "x": "never", "n": "0"}
    write(tmp_path / "t", records([(key(1), bare(event("u", None, late, 0)))]), **options)
    assert rows_of(tmp_path / "t") == [{"id": 1, "x": "a", "n": None}]
