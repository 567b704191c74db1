"""Offsets: one text each, version 1 still read, what is newer or foreign refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_upsert.core.key_hash import HASH_END
from spark_upsert.errors import NewerFormatError, OptionError
from spark_upsert.streams.inputs.table import TablePosition
from spark_upsert.streams.offsets.offset import VERSION_OF_MANY, Offset, Position, canonical
from spark_upsert.table.log.manifest import TableVersion

PLACE = ["6ad1", 7, "91ef"]


def version_1(**changed: Any) -> dict[str, Any]:
    """Return an offset as it was written before there were several inputs."""
    return {
        "format": 2,
        "hash": "10000000000000000",
        "origin": 3,
        "place": PLACE,
        "snapshot": False,
        "upper": 8,
        **changed,
    }


def test_an_offset_has_this_very_text() -> None:
    """Checkpoints hold it: whoever changes this needs a new version."""
    place = TableVersion(table_id="6ad1", version=7, token="91ef")
    position = TablePosition(origin=3, hash=HASH_END, upper=8, place=place)
    offset = Offset(
        positions={"west": position.to_position(), "east": Position.of({"b": 1, "a": []})}
    )
    assert json.dumps(offset.to_json(), separators=(",", ":")) == (
        '{"positions":{"east":{"a":[],"b":1},'
        '"west":{"hash":"10000000000000000","origin":3,"place":["6ad1",7,"91ef"],"upper":8}},'
        '"state":{},"version":2}'
    )


def test_an_offset_of_version_1_is_one_of_one_unnamed_input() -> None:
    offset = Offset.from_json(version_1())
    assert list(offset.positions) == [""]
    position = TablePosition.from_position(offset.positions[""])
    assert position == TablePosition.at_changes(3, 8)
    assert position.place == TableVersion(table_id="6ad1", version=7, token="91ef")
    assert offset.to_json()["version"] == 2
    assert Offset.from_json(offset.to_json()) == offset
    record = version_1(hash="4000000000000000", snapshot=True, upper=4)
    position = TablePosition.from_position(Offset.from_json(record).positions[""])
    assert position == TablePosition.in_snapshot(3, 1 << 62)
    assert position.is_in_snapshot
    not_begun = version_1(hash=f"{0:016x}", origin=None, place=None, upper=0)
    assert Offset.from_json(not_begun) == Offset()


def test_an_offset_of_a_newer_version_asks_for_an_upgrade() -> None:
    record = {**Offset().to_json(), "version": VERSION_OF_MANY + 1, "pace": {}}
    with pytest.raises(
        NewerFormatError, match=f"checkpoint has format {VERSION_OF_MANY + 1}"
    ) as error:
        Offset.from_json(record)
    assert "upgrade upsertflow" in error.value.hint
    assert "new checkpointLocation" not in str(error.value)


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"topic": {"0": 12}},
        {"version": 2},
        {"version": True, "positions": {}, "state": {}},
        {"version": 2, "positions": [], "state": {}},
        {"version": 2, "positions": {"": 3}, "state": {}},
        {"version": 2, "positions": {"": {"a": 0.5}}, "state": {}},
        version_1(format=1),
        version_1(more=1),
    ],
    ids=str,
)
def test_what_is_no_offset_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="no offset of this source") as caught:
        Offset.from_json(record)
    assert "new checkpointLocation" in caught.value.hint


@pytest.mark.parametrize(
    "changed",
    [
        {"hash": "10000000000000001"},
        {"hash": "xyz"},
        {"hash": 5},
        {"origin": -1},
        {"origin": None},
        {"upper": "8"},
        {"place": ["6ad1", 7]},
        {"place": "abc"},
    ],
    ids=str,
)
def test_what_is_no_position_in_a_table_is_refused(changed: dict[str, Any]) -> None:
    record = TablePosition.at_changes(3, 8).to_position().record
    with pytest.raises(OptionError, match="no position in a table"):
        TablePosition.from_position(Position.of({**record, **changed}))


@pytest.mark.parametrize("value", [0.5, float("nan"), {1: 2}, (1,), b"", {"a": [{"b": 1.0}]}])
def test_a_value_with_many_texts_is_no_position(value: Any) -> None:
    with pytest.raises(ValueError, match=r"no canonical JSON text|no text"):
        canonical(value)
