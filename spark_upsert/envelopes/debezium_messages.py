"""Debezium messages that are no change events, recognised so that an error names them.

Heartbeats, schema changes, transactions and notifications; also MongoDB events.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class MessageKind:
    """A kind of message, and how it is recognised."""

    name: str
    fields: frozenset[str]
    """The fields that it has; those alone, if there is one."""
    pattern: str
    """A pattern that its JSON matches, with a Connect schema before it or not."""

    def has_fields(self, names: Collection[str]) -> bool:
        """Return whether a payload with some fields is such a message."""
        return self.fields == set(names) if len(self.fields) == 1 else self.fields <= set(names)


KINDS = (
    MessageKind(
        "a heartbeat",
        frozenset({"ts_ms"}),
        r'(?s)(?:^|^\x00.{4}|"payload"\s*:)\s*\{\s*"ts_ms"\s*:\s*[0-9]+\s*\}\s*\}?\s*$',
    ),
    MessageKind(
        "a transaction boundary",
        frozenset({"status", "id", "event_count"}),
        r'"status"\s*:\s*"(?:BEGIN|END)"',
    ),
    MessageKind("a schema change", frozenset({"ddl", "tableChanges"}), r'"tableChanges"\s*:\s*\['),
    MessageKind(
        "a notification",
        frozenset({"aggregate_type", "additional_data"}),
        r'"aggregate_type"\s*:\s*"',
    ),
)

_ADVICE = "of Debezium, which is no change event: leave its topic out of the query"

MONGODB = (
    "a text, as Debezium's MongoDB connector writes documents: flatten the events by "
    "ExtractNewDocumentState, and read them by the envelope 'kafka'"
)

_AFTER_IS_TEXT = "'(?:payload\\.)?after' is declared object, found string"


def name_by_fields(names: Collection[str]) -> str | None:
    """Return what payloads with some fields are, None if they may be change events."""
    messages = (f"{kind.name} {_ADVICE}" for kind in KINDS if kind.has_fields(names))
    return next(messages, None)


def name_by_text(payloads: pa.Array) -> pa.Array:
    """Return what each payload without ``op`` is, as text; null where it is not known."""
    messages = pa.nulls(len(payloads), pa.string())
    for kind in KINDS:
        matches = pc.match_substring_regex(payloads, kind.pattern)
        messages = pc.if_else(
            pc.and_(matches, messages.is_null()), f"{kind.name} {_ADVICE}", messages
        )
    return messages


def explain_text(reasons: pa.Array | None) -> pa.Array | None:
    """Return why events could not be read, with MongoDB named where ``after`` is a text."""
    if reasons is None:
        return None
    is_text = pc.match_substring_regex(reasons, _AFTER_IS_TEXT).fill_null(False)
    return pc.if_else(is_text, f"'after' is {MONGODB}", reasons)
