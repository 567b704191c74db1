"""One payload through a decoder, as it travels to the tasks."""

from __future__ import annotations

import io
import pickle
from typing import Any

import fastavro
import pyarrow as pa

from spark_upsert.payloads.ddl import parse_schema
from spark_upsert.payloads.decoder import Decoder
from spark_upsert.payloads.json import JsonDecoder


def decoded(decoder: Decoder, payload: bytes | None) -> tuple[dict[str, Any] | None, str | None]:
    """Decode one payload; returns its fields and why it is bad, one of them or none."""
    # A decoder travels to the tasks; and its neighbours must not matter.
    travelled = pickle.loads(pickle.dumps(decoder))
    around = pa.array([payload, b"\xff{", payload, None], pa.binary())
    found = travelled.decode(around)
    fields = [
        {f.name: column[i].as_py() for f, column in zip(decoder.fields, found.columns, strict=True)}
        for i in (0, 2)
    ]
    assert fields[0] == fields[1]
    texts = [None] * 4 if found.reasons is None else found.reasons.to_pylist()
    assert texts[0] == texts[2]
    assert texts[3] is None
    if texts[0] is not None:
        assert set(fields[0].values()) == {None}
        return None, texts[0]
    return fields[0], None


def refusal_of(decoder: Decoder, payload: bytes) -> str:
    """Return why a payload is bad."""
    fields, reason = decoded(decoder, payload)
    assert fields is None
    assert reason is not None
    return reason


def json_decoder(text: str) -> JsonDecoder:
    """Return what decodes JSON of a declared schema."""
    return JsonDecoder(*parse_schema("valueSchema", text, bare_name="value"))


def avro(schema: Any, datum: Any) -> bytes:
    """Return a value as Avro writes it."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), datum)
    return stream.getvalue()


def record_of(type_: Any) -> dict[str, Any]:
    """Return the Avro schema of a record with one field, ``v``."""
    return {"type": "record", "name": "r", "fields": [{"name": "v", "type": type_}]}
