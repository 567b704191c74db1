"""The budget of a schema that a payload, a registry or an option brings.

What a text says may be larger than the text: 20 types that each name the one below twice are 2 kB,
and a million fields. So what counts is the *parts* of a schema once each name is replaced by what
it names, and they are counted before anything is made of them: a reader of a schema asks `require`
at each part, and stops at the first one too many. All later work on the schema costs time and
memory in proportion to its parts.

A schema beyond its budget is bad as its payloads are, under the policy of the table.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

SCHEMA_BYTES_MAX = 1 << 20
"""Bytes of a schema's text, with the texts that it refers to.

A registry keeps schemas in a topic, where messages have at most a MiB unless its owner says
otherwise.
"""

PARTS_MAX = 10_000
"""Types in a schema, each counted as often as it is named. The widest tables that Debezium reads
have some 4 000 columns (MySQL's bound), each of which is a union of two types."""

DEPTH_MAX = 64
"""Types within types. Deeper ones are a mistake, or an attack on the stack."""

VALUES_PER_BYTE = 16
"""Values that a payload may mean for each of its bytes, beyond those of one row. In columns an item
of an array has a place for each part of its type, also where the payload says nothing: a payload of
a megabyte of empty items with 10 000 members each would take 30 GB. With this it takes 0.2 GB, and
an item that gives one short member of 200 is still good."""

TOO_SPARSE = f"its arrays mean more than {VALUES_PER_BYTE} values for each byte"

_PART_BYTES = 1 << 10
"""Bytes that are kept of a part: its name, type and reader."""


class Unreadable(Exception):
    """A schema is none, is too large, or says what the declared type cannot hold."""


class Parts:
    """Counts the parts of one schema while it is read."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def enter(self, depth: int) -> None:
        """Count a part at a depth; raises `Unreadable`."""
        self.count += 1
        require(parts=self.count, depth=depth)


def require(*, parts: int = 0, depth: int = 0) -> None:
    """Raise `Unreadable` if there are too many parts, or they lie too deep."""
    if depth > DEPTH_MAX:
        raise Unreadable(f"it is nested more than {DEPTH_MAX} deep")
    if parts > PARTS_MAX:
        raise Unreadable(
            f"it has more than {PARTS_MAX} parts, each type counted as often as it is named"
        )


def read_json(text: str | bytes) -> Any:
    """Return what the text of a schema holds.

    Raises
    ------
    Unreadable
        It is too long, nested too deep, or no JSON.
    """
    if len(text) > SCHEMA_BYTES_MAX:
        raise Unreadable(f"it is longer than {SCHEMA_BYTES_MAX} bytes")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise Unreadable(f"it is nested more than {DEPTH_MAX} deep") from error
    except ValueError as error:
        raise Unreadable(f"it is no JSON ({error})") from error


def values_max(payload_bytes: int) -> int:
    """Return how many values the arrays of a payload may mean."""
    return PARTS_MAX + VALUES_PER_BYTE * payload_bytes


def bytes_kept(text_bytes: int, parts: int) -> int:
    """Return about how much memory is kept for a schema that is ready to decode with."""
    return text_bytes + parts * _PART_BYTES


def parts_of(type_: pa.DataType) -> int:
    """Return how many parts a type has, which are known to be within their budget."""
    if pa.types.is_nested(type_):
        return 1 + sum(parts_of(type_.field(index).type) for index in range(type_.num_fields))
    return 1
