"""Positions and offsets: JSON values with exactly one text each (`Position`, `Offset`).

Spark compares offsets as text and replays a batch from two of them alone (docs/adr/0021).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from spark_upsert.errors import NewerFormatError, OptionError
from spark_upsert.options.inputs import UNNAMED
from spark_upsert.store.records import MALFORMED, require_readable

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))

Json = bool | int | str | None | list["Json"] | dict[str, "Json"]
"""JSON without fractions, because one fraction may have several texts."""


@dataclass(frozen=True, slots=True)
class Position:
    """A stream's position in one input."""

    text: str
    """Canonical (`canonical`)."""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Position:
        """Return the position for a record."""
        return cls(canonical(dict(record)))

    @property
    def record(self) -> dict[str, Any]:
        """The parsed record, its keys in order; a new dict on each access."""
        record: dict[str, Any] = json.loads(self.text)
        return record


def canonical(value: Any) -> str:
    """Return a JSON value's canonical text; raises `ValueError` for other values."""
    _require_json(value)
    return _ENCODER.encode(value)


def _require_json(value: Any) -> None:
    match value:
        case None | bool() | int() | str():
            return
        case list():
            for item in value:
                _require_json(item)
        case dict():
            for name, item in value.items():
                if not isinstance(name, str):
                    raise ValueError(f"the key {name!r} of a position is no text")
                _require_json(item)
        case _:
            raise ValueError(f"{value!r} has no canonical JSON text")


VERSION = 2
VERSION_OF_MANY = 3

_FORMAT_OF_VERSION_1 = 2
_FIELDS_OF_VERSION_1 = frozenset({"format", "hash", "origin", "place", "snapshot", "upper"})
_FIELDS = frozenset({"positions", "state", "version"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """All inputs' positions, and the state for planning the next batch.

    The JSON form has ``positions`` by input name (``""`` for a single unnamed input), ``state`` by
    planning rule, and ``version`` 2. Version 1, one position with ``"format": 2``, is read only;
    version 3 is `CompactOffsets`.
    """

    positions: Mapping[str, Position] = field(default_factory=dict)
    state: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the canonical form, with keys in a fixed order."""
        record = {
            "positions": {name: position.record for name, position in self.positions.items()},
            "state": dict(self.state),
            "version": VERSION,
        }
        offset_record: dict[str, Any] = json.loads(canonical(record))
        return offset_record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Offset:
        """Parse a stored offset in version 2 or 1; raises `OptionError` or `NewerFormatError`."""
        if record.keys() == _FIELDS_OF_VERSION_1 and record["format"] == _FORMAT_OF_VERSION_1:
            return cls._from_version_1(record)
        version = record.get("version")
        if version == VERSION_OF_MANY:
            raise OptionError.missing(
                "offsetsPath", "the offset in the checkpoint keeps its positions in a base there"
            )
        if type(version) is int and version > VERSION_OF_MANY:
            raise NewerFormatError.of("the offset in the checkpoint", version, VERSION_OF_MANY)
        if version != VERSION or record.keys() != _FIELDS:
            raise no_offset(record)
        try:
            positions = {
                name: Position.of(position) for name, position in record["positions"].items()
            }
            state = {name: json.loads(canonical(item)) for name, item in record["state"].items()}
        except MALFORMED as error:
            raise no_offset(record) from error
        return cls(positions=positions, state=state)

    @classmethod
    def _from_version_1(cls, record: Mapping[str, Any]) -> Offset:
        if record["origin"] is None:
            return cls()
        # Whether it is within the snapshot follows from the hash.
        position_fields = {name: record[name] for name in ("hash", "origin", "place", "upper")}
        return cls(positions={UNNAMED: Position.of(position_fields)})


class Offsets(Protocol):
    """The stored form for a stream's offsets."""

    def read(self, record: Mapping[str, Any]) -> Offset:
        """Parse a stored offset."""
        ...

    def write(
        self,
        offset: Offset,
        start: Mapping[str, Any],
        *,
        moved: Collection[str] | None = None,
    ) -> dict[str, Any]:
        """Return a batch's end in stored form, from its start; equal ends have equal texts.

        Any base referenced by the form is durable by then.
        """
        ...

    def commit(self, end: Mapping[str, Any]) -> None:
        """Release data needed only by batches before an offset."""
        ...


class PlainOffsets:
    """Offsets holding all positions (`Offsets`)."""

    def read(self, record: Mapping[str, Any]) -> Offset:
        """Parse a stored offset (`Offset.from_json`)."""
        return Offset.from_json(record)

    def write(
        self,
        offset: Offset,
        start: Mapping[str, Any],
        *,
        moved: Collection[str] | None = None,
    ) -> dict[str, Any]:
        """Return the canonical form; independent of the start."""
        return checked_offset(offset)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: no data is stored elsewhere."""


def checked_offset(offset: Offset) -> dict[str, Any]:
    """Return an offset's canonical form, parsed once as a restarted query does."""
    record = offset.to_json()
    require_readable("the offset of the batch", offset, lambda: Offset.from_json(record))
    return record


def without(state: Mapping[str, Json], *entries: str) -> dict[str, Json]:
    """Return an offset state without some entries."""
    return {name: item for name, item in state.items() if name not in entries}


def no_offset(record: Mapping[str, Any]) -> OptionError:
    """Return the error for an invalid offset record."""
    return OptionError(
        f"the checkpoint holds {dict(record)!r:.500}, which is no offset of this source.",
        hint="this checkpoint belongs to another source or to an older release; give the query a "
        "new checkpointLocation.",
    )
