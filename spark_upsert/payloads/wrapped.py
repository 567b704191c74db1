"""Connect messages with their schema in front: ``{"schema": {...}, "payload": {...}}``.

`by_schema` parses each distinct schema text once and finds it again as a prefix of other messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.keys import Mask, Positions
from spark_upsert.payloads.decoder import Unreadable, read_json

SCHEMA, PAYLOAD = "schema", "payload"

_WRAPPED = r'^\s*\{\s*"schema"\s*:'
_BEFORE_SCHEMA = re.compile(rf"{_WRAPPED}\s*(?=null\b|\{{)")
_BEHIND_SCHEMA = re.compile(rf'\s*,\s*"{PAYLOAD}"\s*:')
_NO_SCHEMA = b"null"

_LOOKED_FOR = 16
"""Schemas that are looked for among all messages; each look compares the beginnings of all that are
left, which takes a hundredth of reading them."""


@dataclass(frozen=True, slots=True)
class SameSchemaMessages:
    """Messages of one schema."""

    rows: Positions
    schema: bytes | None
    """Its text; None if the messages are bare (or absent), empty if none can be told apart."""
    head_bytes: int = 0
    """How much stands before the payload itself, schema and all."""

    @property
    def says_nothing(self) -> bool:
        """Whether the messages have no schema: bare ones, and those that say ``null``."""
        return self.schema in (None, _NO_SCHEMA)

    def said(self) -> object:
        """Return the schema as Python reads it; raises `Unreadable`."""
        if not self.schema:
            raise Unreadable("the message's schema is not JSON, or no payload follows it")
        return read_json(self.schema)

    def bodies(self, payloads: pa.Array) -> pa.Array:
        """Return these of all payloads as objects of one member, `PAYLOAD`; bare ones as they are.

        The schema is cut off, because a parser would read it once for each message.
        """
        taken = payloads.take(pa.array(self.rows))
        if not self.schema:
            return taken
        return pc.binary_replace_slice(taken, 0, self.head_bytes, f'{{"{PAYLOAD}":'.encode())


def has_wrapped(payloads: pa.Array) -> bool:
    """Return whether some of binary payloads begin as a message with its schema in front."""
    return bool(_is_wrapped(payloads).any())


def by_schema(payloads: pa.Array) -> Iterator[SameSchemaMessages]:
    """Yield the messages of each schema; first those that are bare or absent.

    Notes
    -----
    Messages from one writer have a few schemas: each schema is looked for in all messages, by its
    bytes. After `_LOOKED_FOR` schemas, the rest of the messages are read one by one, so that a
    schema in each message costs no more than its bytes.
    """
    wrapped = _is_wrapped(payloads)
    bare, left = np.flatnonzero(~wrapped), np.flatnonzero(wrapped)
    if len(bare):
        yield SameSchemaMessages(bare, None)
    cut: list[int] = []
    for _ in range(_LOOKED_FOR):
        if not len(left):
            break
        first = payloads[int(left[0])].as_py()
        head = _head(first)
        if head is None:
            cut.append(int(left[0]))
            left = left[1:]
            continue
        schema, head_bytes = head
        begins = pc.starts_with(payloads.take(pa.array(left)), first[:head_bytes])
        is_alike = _mask(begins)
        yield SameSchemaMessages(left[is_alike], schema, head_bytes)
        left = left[~is_alike]
    others: dict[bytes, tuple[bytes, list[int]]] = {}
    for row in left.tolist():
        message = payloads[row].as_py()
        head = _head(message)
        if head is None:
            cut.append(row)
        else:
            others.setdefault(message[: head[1]], (head[0], []))[1].append(row)
    for before, (schema, rows) in others.items():
        yield SameSchemaMessages(np.array(rows, dtype=np.int64), schema, len(before))
    if cut:
        yield SameSchemaMessages(np.array(cut, dtype=np.int64), b"")


def _is_wrapped(payloads: pa.Array) -> Mask:
    return _mask(pc.match_substring_regex(payloads, _WRAPPED).fill_null(False))


def _head(message: bytes) -> tuple[bytes, int] | None:
    """Return the schema of a wrapped message, and where its payload begins; None if it has none."""
    # Latin-1 gives each byte a place of its own; what is looked for is ASCII.
    text = message.decode("latin-1")
    before = _BEFORE_SCHEMA.match(text)
    if before is None:
        return None
    try:
        _, end = json.JSONDecoder().raw_decode(text, before.end())
    except (ValueError, RecursionError):
        return None
    rest_match = _BEHIND_SCHEMA.match(text, end)
    return None if rest_match is None else (message[before.end() : end], rest_match.end())


def _mask(found: pa.Array) -> Mask:
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)
