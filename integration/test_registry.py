"""A real schema registry: the interface is as we read it, and tables get their columns by it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.servers.registry import Registry, running_registry
from spark_upsert.errors import OptionError, StorageError
from spark_upsert.payloads.schema_registry import (
    RegistrySettings,
    UnknownSchema,
    forget_schemas,
    latest_schema,
    schema_of_id,
)
from tests.support.envelopes import records, rows_of, write_found
from tests.support.own_schemas import avro, record
from tests.support.registry import framed

pytestmark = pytest.mark.slow

KEY = record("Key", id="long")
ROW = record("Row", id="long", text=["null", "string"])
WIDER = record("Row", id="long", n=["null", "int"])


@pytest.fixture(scope="module")
def registry(
    spark_environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Registry]:
    with running_registry(tmp_path_factory.mktemp("registry") / "own", spark_environ) as running:
        yield running


@pytest.fixture(autouse=True)
def _forgetful() -> None:
    forget_schemas()


def test_schemas_are_what_was_registered(registry: Registry) -> None:
    settings = RegistrySettings(urls=(registry.url,))
    number = registry.register("rows-value", ROW)
    assert json.loads(schema_of_id(settings, number).text) == ROW
    newer = registry.register("rows-value", WIDER)
    newest = latest_schema(settings, "rows-value")
    assert (newest.kind, newest.id, json.loads(newest.text)) == ("AVRO", newer, WIDER)
    with pytest.raises(UnknownSchema):
        schema_of_id(settings, 10_000)
    with pytest.raises(OptionError, match="has no subject 'none'"):
        latest_schema(settings, "none")


def test_tables_get_their_columns(registry: Registry, tmp_path: Path) -> None:
    key, old = registry.register("t-key", KEY), registry.register("t-value", ROW)
    new = registry.register("t-value", WIDER)
    city = {"type": "object", "properties": {"name": {"type": "string"}}}
    registry.register("city.json", city, "JSON")
    place = {"type": "object", "properties": {"at": {"$ref": "city.json"}}}
    places = registry.register("places", place, "JSON", [("city.json", "city.json", 1)])
    rows = records(
        [
            (avro(key, KEY, {"id": 1}), avro(old, ROW, {"id": 1, "text": "a"})),
            (avro(key, KEY, {"id": 2}), avro(new, WIDER, {"id": 2, "n": 7})),
        ]
    )
    given = {"envelope": "kafka", "keyFormat": "avro-confluent", "schemaRegistry.url": registry.url}
    write_found(tmp_path / "a", rows, **given, valueFormat="avro-confluent")
    assert rows_of(tmp_path / "a") == [
        {"id": 1, "text": "a", "n": None},
        {"id": 2, "text": None, "n": 7},
    ]
    message = framed(places, b'{"at": {"name": "x"}}')
    rows = records([(avro(key, KEY, {"id": 1}), message)])
    write_found(tmp_path / "b", rows, **given, valueFormat="json-confluent")
    assert rows_of(tmp_path / "b") == [{"id": 1, "at": {"name": "x"}}]


def test_a_registry_that_died_is_an_outage(registry: Registry) -> None:
    settings = RegistrySettings(urls=(registry.url,), backoff_s=0)
    number = registry.register("last-value", ROW)
    registry.server.kill()
    with pytest.raises(StorageError, match="does not answer"):
        schema_of_id(settings, number)
    registry.server.start()
    registry.wait()
    # Its memory is gone with it: the id is unknown, and nothing else is said.
    with pytest.raises(UnknownSchema):
        schema_of_id(settings, number)
