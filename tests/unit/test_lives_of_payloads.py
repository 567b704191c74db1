"""What bytes are may change from life to life of a query: each batch is read as it is told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import DataError
from spark_upsert.options.declare import Change
from spark_upsert.options.write import WRITE_OPTIONS
from spark_upsert.payloads.schema_registry import forget_schemas
from tests.support.envelopes import records, rows_of, write
from tests.support.own_schemas import avro, record
from tests.support.registry import RegistryDouble, framed, running_registry
from tests.support.unchanged import decoded_by

InputRows = Mapping[str, str]


@dataclass(frozen=True)
class Life:
    """The options of a life beside those of all, and its one record."""

    options: InputRows = field(default_factory=dict)
    key: bytes = b'{"id": 1}'
    value: bytes = b'{"v": "a"}'


JSON: InputRows = {
    "envelope": "kafka",
    "sequenceBy": "offset",
    "keys": "id",
    "keyFormat": "json",
    "keySchema": "id BIGINT",
    "valueFormat": "json",
    "valueSchema": "v STRING",
}
FRAMED = Life({"keyFormat": "json-confluent"}, key=framed(7, b'{"id": 1}'))
FRAMED_VALUE = Life({"valueFormat": "json-confluent"}, value=framed(7, b'{"v": "a"}'))

OF_PAYLOADS: dict[str, tuple[Life, Life]] = {
    "keyFormat": (Life(), FRAMED),
    "keySchema": (Life(), Life({"keySchema": "id INT"})),
    "keySchemaId": (FRAMED, replace(FRAMED, options={**FRAMED.options, "keySchemaId": "7"})),
    "valueFormat": (Life(), FRAMED_VALUE),
    "valueSchema": (Life(), Life({"valueSchema": "v STRING NOT NULL"})),
    "valueSchemaId": (
        FRAMED_VALUE,
        replace(FRAMED_VALUE, options={**FRAMED_VALUE.options, "valueSchemaId": "7"}),
    ),
}


def event(**after: Any) -> bytes:
    source = {"lsn": after.pop("lsn", 1)}
    told = {"before": None, "after": {"id": 1, **after}, "source": source, "op": "c", "ts_ms": 1}
    return json.dumps(told).encode()


DEBEZIUM: InputRows = {**JSON, "envelope": "debezium", "sequenceBy": "source.lsn"}
TIMES: InputRows = {"valueSchema": "id BIGINT, v TIMESTAMP_NTZ", "timeUnit": "millis"}
MONEY: InputRows = {"valueSchema": "id BIGINT, v DECIMAL(9, 2)", "decimalHandling": "string"}
TRUNCATE = json.dumps({"op": "t", "source": {"lsn": 2}, "ts_ms": 1}).encode()

TEXTS: InputRows = {"valueSchema": "id BIGINT, v STRING"}
PLACEHOLDER = "__debezium_unavailable_value"

OF_EVENTS: dict[str, tuple[InputRows, Any, str, Any, str]] = {
    "timeUnit": (TIMES, 1000, "micros", 2_000_000, "1970-01-01 00:00:02"),
    "timeUnit.<column>": (TIMES, 1000, "nanos", 3_000_000_000, "1970-01-01 00:00:03"),
    "decimalHandling": (MONEY, "1.50", "double", 2.5, "2.50"),
    "unavailableValuePlaceholder": (TEXTS, "n/a", "n/a", PLACEHOLDER, PLACEHOLDER),
}
"""The options of both lives, the first value, the option's next text, and what the next value is."""

USER = {"schemaRegistry.user": "me"}
OF_REGISTRIES: dict[str, tuple[InputRows, InputRows]] = {
    "valueSubject": ({}, {"valueSubject": "other-value"}),
    "keySubject": ({}, {"keySubject": "other-key"}),
    "schemaRegistry.url": ({}, {"schemaRegistry.url": "{other}"}),
    "schemaRegistry.user": ({}, USER),
    "schemaRegistry.password": (
        {**USER, "schemaRegistry.password": "old"},
        {**USER, "schemaRegistry.password": "new"},
    ),
    "schemaRegistry.token": ({}, {"schemaRegistry.token": "t"}),
    "schemaRegistry.headers": ({}, {"schemaRegistry.headers": "X-Tenant: a"}),
    "schemaRegistry.caFile": ({}, {"schemaRegistry.caFile": __file__}),
}

ALONE = ("envelope", "onTruncate", "missingFields")
"""They have a test of their own."""

TRIED = (*OF_PAYLOADS, *OF_EVENTS, *OF_REGISTRIES, *ALONE)


@pytest.mark.parametrize("name", TRIED)
def test_what_is_tried_here_takes_effect_with_the_next_batch(name: str) -> None:
    assert WRITE_OPTIONS[name].life.change is Change.NEXT


def lived(path: Path, common: InputRows, *lives: Life) -> list[dict[str, Any]]:
    """Write the record of each life, each at a greater offset."""
    for number, life in enumerate(lives):
        rows = records([(life.key, life.value)], offsets=[number])
        write(path, rows, **{**common, **life.options})
    return rows_of(path)


@pytest.mark.parametrize("name", OF_PAYLOADS)
def test_a_payload_is_read_as_its_own_life_says(tmp_path: Path, name: str) -> None:
    before, then = OF_PAYLOADS[name]
    changed = replace(then, key=then.key.replace(b"1}", b"2}"))
    rows = [{"id": 1, "v": "a"}, {"id": 2, "v": "a"}]
    assert lived(tmp_path / "t", JSON, before, changed) == rows
    # By the options of another life the bytes are none.
    wrong = {"Format": {}, "SchemaId": {**then.options, name: "9"}}
    for ending, options in wrong.items():
        if name.endswith(ending):
            with pytest.raises(DataError):
                lived(tmp_path / "other", JSON, replace(changed, options=options))


@pytest.mark.parametrize("name", OF_EVENTS)
def test_an_event_is_read_as_its_own_life_says(tmp_path: Path, name: str) -> None:
    common, first, text, second, expected = OF_EVENTS[name]
    assert lived(tmp_path / "t", DEBEZIUM, Life(common, value=event(v=first)))[0]["v"] != expected
    changed = {**common, name.replace("<column>", "v"): text}
    [row] = lived(tmp_path / "t", DEBEZIUM, Life(changed, value=event(v=second, lsn=2)))
    assert str(row["v"]) == expected


def test_a_truncate_is_what_its_own_life_says(tmp_path: Path) -> None:
    lived(tmp_path / "t", DEBEZIUM, Life(TEXTS, value=event(v="a")))
    truncate = records([(None, TRUNCATE)], offsets=[5])
    with pytest.raises(DataError):
        write(tmp_path / "t", truncate, **{**DEBEZIUM, **TEXTS})
    write(tmp_path / "t", truncate, **{**DEBEZIUM, **TEXTS, "onTruncate": "ignore"})
    assert rows_of(tmp_path / "t") == [{"id": 1, "v": "a"}]


def test_a_missing_field_is_what_its_own_life_says(tmp_path: Path) -> None:
    usual = {**DEBEZIUM, **TEXTS, "mergeEngine": "partial-update"}
    for lsn, more in enumerate(({"v": "a"}, {})):
        event_ = records([(None, event(lsn=lsn, **more))], offsets=[lsn])
        write(tmp_path / "t", event_, **usual, missingFields="unchanged")
    assert rows_of(tmp_path / "t") == [{"id": 1, "v": "a"}]
    with decoded_by() as batches:
        write(tmp_path / "t", event_, **usual)
    assert batches[0].unchanged == {}


def test_rows_may_come_in_another_envelope(tmp_path: Path) -> None:
    lived(tmp_path / "t", JSON, Life())
    rows = pa.table({"id": [1, 2], "v": ["b", "c"], "offset": [7, 8]})
    write(tmp_path / "t", rows, keys="id", sequenceBy="offset", exceptColumnList="offset")
    assert rows_of(tmp_path / "t") == [{"id": 1, "v": "b"}, {"id": 2, "v": "c"}]


@pytest.fixture
def registries() -> Iterator[tuple[RegistryDouble, RegistryDouble]]:
    forget_schemas()
    with running_registry() as one, running_registry() as other:
        yield one, other


@pytest.mark.parametrize("name", OF_REGISTRIES)
def test_a_registry_is_asked_as_each_life_says(
    tmp_path: Path, registries: tuple[RegistryDouble, RegistryDouble], name: str
) -> None:
    key, row = record("K", id="long"), record("R", v="string")
    for registry in registries:
        for subject in ("t", "other"):
            key_id = registry.register(f"{subject}-key", key)
            value_id = registry.register(f"{subject}-value", row)
    common = {
        "envelope": "kafka",
        "sequenceBy": "offset",
        "keys": "id",
        "keyFormat": "avro-confluent",
        "valueFormat": "avro-confluent",
        "keySubject": "t-key",
        "valueSubject": "t-value",
        "schemaRegistry.url": registries[0].url,
    }
    before, then = OF_REGISTRIES[name]
    asked = []
    for number, more in enumerate((before, then)):
        given = {**common, **{n: t.replace("{other}", registries[1].url) for n, t in more.items()}}
        sent = avro(key_id, key, {"id": number}), avro(value_id, row, {"v": "a"})
        for registry in registries:
            registry.asked.clear()
            registry.headers.clear()
        write(tmp_path / "t", records([sent], offsets=[number]), **given)
        heads = [sorted(each.items()) for each in registries[0].headers]
        asked.append((registries[0].asked[:], registries[1].asked[:], heads))
    assert rows_of(tmp_path / "t") == [{"id": 0, "v": "a"}, {"id": 1, "v": "a"}]
    if name != "schemaRegistry.caFile":  # Nothing of it is seen without TLS.
        assert asked[0] != asked[1]
