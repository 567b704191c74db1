"""A position of one input, as others see it: a JSON object with one text.

Spark compares offsets as JSON text, and so does a stream that asks whether an input has moved.
Equal positions must therefore have equal texts, in every process and every release: keys are
sorted, numbers are whole, and what an input puts into its position is up to the input.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))

Json = bool | int | str | None | list["Json"] | dict[str, "Json"]
"""JSON without fractions, of which one number may have many texts."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a stream stands in an input."""

    text: str
    """Canonical (`canonical`)."""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Position:
        """Return the position that a record is."""
        return cls(canonical(dict(record)))

    @property
    def record(self) -> dict[str, Any]:
        """The record, its keys in order; a new one each time."""
        found: dict[str, Any] = json.loads(self.text)
        return found


def canonical(value: Any) -> str:
    """Return the one text of a JSON value.

    Raises
    ------
    ValueError
        It has a fraction, a key that is no text, or something that JSON does not know.
    """
    _require_json(value)
    return _ENCODER.encode(value)


def _require_json(value: Any) -> None:
    match value:
        case None | bool() | int() | str():
            return
        case list():
            for each in value:
                _require_json(each)
        case dict():
            for name, each in value.items():
                if not isinstance(name, str):
                    raise ValueError(f"the key {name!r} of a position is no text")
                _require_json(each)
        case _:
            raise ValueError(f"{value!r} has no canonical JSON text")
