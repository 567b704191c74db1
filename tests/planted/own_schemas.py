"""Bugs in payloads that name their own schema: which one it is, and by which it is read."""

from __future__ import annotations

import json
import re
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.errors import OptionError, StorageError
from spark_upsert.payloads import avro, connect, embedded_schema
from spark_upsert.payloads.avro import parse_avro
from spark_upsert.payloads.embedded_schema import ByRegistry
from spark_upsert.payloads.schema_registry import UnknownSchema
from tests.planted.bug import Patch, bug
from tests.planted.bug import wrapped as replaced
from tests.promises import test_own_schema_promises as promises
from tests.support.payload_fuzz import doubling_avro

INLINE = promises.test_p5_each_message_is_read_by_the_schema_in_front_of_it
TABLE = promises.test_p5_a_table_of_messages_is_what_they_say
BY_ID = promises.test_p5_each_payload_is_read_by_the_schema_of_its_id
LATER = promises.test_p5_fields_that_came_behind_the_plan_are_not_lost


@bug("a schema ends where the first payload seems to begin", INLINE)
def _() -> Patch:
    pattern = re.compile(rb'\s*\{\s*"schema"\s*:\s*(null|\{.*?\})\s*,\s*"payload"\s*:', re.DOTALL)

    def head(message: bytes) -> tuple[bytes, int] | None:
        match = pattern.match(message)
        return None if match is None else (match[1], match.end())

    return patch.object(connect, "_head", head)


@bug("a message's null is a row of nulls", INLINE)
def _() -> Patch:
    def read(original: Any, wire: Any, bodies: pa.Array, **_: Any) -> Any:
        return original(wire, bodies)

    return replaced(embedded_schema, "read_body", read)


@bug("values are read in the widest type of the batch", INLINE)
def _() -> Patch:
    def asked(original: Any, own: Any, fields: Any) -> list[pa.Field]:
        names = [field.name for field in own]
        return [field for field in fields if field.name in names]

    return replaced(embedded_schema, "_common", asked)


@bug("the first schema of a batch says all columns", TABLE)
def _() -> Patch:
    return patch.object(embedded_schema, "merge_schemas", lambda *schemas: schemas[0])


@bug("one id stands for all", BY_ID)
def _() -> Patch:
    return replaced(
        ByRegistry, "_find_schema", lambda original, self, number: original(self, min(number, 1))
    )


@bug("a registry that is away does not know the schema", BY_ID)
def _() -> Patch:
    def ask(original: Any, settings: Any, number: int) -> Any:
        try:
            return original(settings, number)
        except StorageError as error:
            raise UnknownSchema from error

    return replaced(embedded_schema, "schema_of_id", ask)


@bug("fields that came behind the plan are passed over", LATER)
def _() -> Patch:
    return patch.object(ByRegistry, "_require_no_newer", lambda self, number, own: None)


def test_p7_a_schema_has_a_budget() -> None:
    with pytest.raises(OptionError, match="more than 10000 parts"):
        parse_avro("s", json.dumps(doubling_avro(13)), bare_name="v")


@bug("a type that is named again does not count again", test_p7_a_schema_has_a_budget)
def _() -> Patch:
    return patch.object(avro, "require_limits", lambda **_: None)
