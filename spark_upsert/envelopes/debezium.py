"""The ``debezium`` envelope: the commands of change events (docs/envelopes.md, docs/adr/0020).

A broken event never deletes. The key is in ``after``, else in ``before``, else in the record's key;
a key-changing update is a delete and a put.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.arrow_types import storage_type
from spark_upsert.core.casts import convert, to_readable
from spark_upsert.core.keys import Mask, Positions, equal_rows
from spark_upsert.core.merge_engines import Engine
from spark_upsert.core.schema import DELETED_FIELD, Scope, TableSchema, unread_deletes_error
from spark_upsert.core.source_positions import order_keys, position_of
from spark_upsert.envelopes.moved_keys import MovedKeys
from spark_upsert.errors import OptionError, setting
from spark_upsert.options.write import Truncates
from spark_upsert.payloads.decoder import Decoder, Payloads, decode_safely
from spark_upsert.payloads.placeholders import (
    DEFAULT_PLACEHOLDER,
    UNSENT_HINT,
    Placeholder,
    Unsent,
    as_stored,
)
from spark_upsert.table.write.commands import (
    DecodedRows,
    ReadRows,
    apply_rule,
    filled_order,
    to_commands,
    with_skipped,
)
from spark_upsert.table.write.form import Path, at_path
from spark_upsert.table.write.update_rule import WHOLE_ROWS, UpdateRule
from spark_upsert.table.write.write_set import with_truncates


@dataclass(frozen=True)
class MessageKind:
    """A message type, and how it is recognised."""

    name: str
    fields: frozenset[str]
    """Its required fields. A single one must be the only field."""
    pattern: str
    """Matches its JSON, with or without a Connect schema before it."""

    def has_fields(self, names: Collection[str]) -> bool:
        """Return whether a payload with these fields is such a message."""
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
    """Describe the message type with these fields; None for possible change events."""
    messages = (f"{kind.name} {_ADVICE}" for kind in KINDS if kind.has_fields(names))
    return next(messages, None)


def name_by_text(payloads: pa.Array) -> pa.Array:
    """Describe the message type for each payload without ``op``, as text; null if unknown."""
    messages = pa.nulls(len(payloads), pa.string())
    for kind in KINDS:
        matches = pc.match_substring_regex(payloads, kind.pattern)
        messages = pc.if_else(
            pc.and_(matches, messages.is_null()), f"{kind.name} {_ADVICE}", messages
        )
    return messages


def explain_text(reasons: pa.Array | None) -> pa.Array | None:
    """Return why events could not be read, naming MongoDB where ``after`` is a text."""
    if reasons is None:
        return None
    is_text = pc.match_substring_regex(reasons, _AFTER_IS_TEXT).fill_null(False)
    return pc.if_else(is_text, f"'after' is {MONGODB}", reasons)


_logger = logging.getLogger(__name__)

BEFORE, AFTER, OP = "before", "after", "op"

_HINT = (
    "correct what writes the events or what is declared of them: 'valueFormat', 'valueSchema' and, "
    "for messages without a schema, 'timeUnit' and 'decimalHandling'; rows that are no change "
    "events belong to the envelope 'upsert' or 'kafka'; 'onTruncate=overwrite' empties the table "
    "at a truncate, and 'ignore' passes over it; "
    f"for a key or an order that was not sent: {UNSENT_HINT}"
)

_NO_REASON = pa.nulls(1, pa.string())[0]

_SOURCE = "source"
_LSN = (_SOURCE, "lsn")
_READ = "r"
_PUTS = ("c", _READ, "u")
_DELETE, _TRUNCATE, _MESSAGE = "d", "t", "m"
_NO_OP = "the event has no 'op'"
_LOGICAL_MESSAGE = (
    "op 'm' is a logical decoding message of PostgreSQL, which changes no row: leave its topic out "
    "of the query"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBatch:
    """Events from n rows. Arrays have length n."""

    batch: pa.RecordBatch
    """The rows with events as structs."""
    raw_values: Callable[[Positions], pa.Array]
    """As in `DecodedRows`."""
    before: Callable[[Positions], pa.Array]
    """Returns rows' ``before``, with all value columns that an event has."""
    keys: Callable[[Mask], EventKeys]
    """Returns the keys stored outside the events, for the masked rows."""
    tombstones: Mask
    """Records without a value: they delete their key, and are not events."""
    reasons: pa.Array | None = None
    """Why an event's values could not be read, as text."""
    is_cut: Mask | None = None
    """True where a row's existence after the change is unknown; None means nowhere."""
    unsent: Mapping[str, Mask] = field(default_factory=dict)
    """Rows with a placeholder removed before decoding, by the name in ``after``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventKeys:
    """Keys stored outside the events."""

    columns: dict[str, pa.Array]
    """The key columns; null for rows without a key."""
    reasons: pa.Array | None = None
    """Why a key could not be decoded, as text."""
    raw: pa.Array | None = None
    """All rows' original keys, as binary."""


class EventReader(Protocol):
    """Extracts the events from rows. Pickled to the tasks."""

    def read(self, batch: pa.RecordBatch) -> EventBatch:
        """Return a batch's events."""
        ...


@dataclass(frozen=True, kw_only=True)
class DebeziumEnvelope:
    """Converts change events into commands: one each, two if a row moves to another key."""

    schema: TableSchema
    reader: EventReader
    event: Path
    """Path to the event in the reader's batch."""
    before: str | None
    after: str
    op: str
    columns: dict[str, Path]
    """Path for each table column in events."""
    order: tuple[Path, ...]
    own_order: dict[str, Path]
    truncates: Truncates = Truncates.ERROR
    placeholder: Placeholder = DEFAULT_PLACEHOLDER
    rule: UpdateRule = WHOLE_ROWS
    lists: Path | None = None
    """Path to the rule's column in the reader's batch."""
    moved_keys: MovedKeys | None = None
    """None if the rows have no headers."""

    def __post_init__(self) -> None:
        is_plain = self.schema.engine.kind is Engine.DEDUPLICATE
        if self.truncates is Truncates.OVERWRITE and not (
            is_plain and self.schema.scope is Scope.TABLE
        ):
            raise OptionError.invalid(
                "onTruncate",
                "overwrite",
                "'error' or 'ignore' in a table without an order that reaches across epochs, or "
                "with another merge engine than 'deduplicate'",
                hint=f"an order such as {setting('sequenceBy', 'source.lsn')} says which rows came "
                "before the truncate.",
            )

    def commands(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch's commands, in row order (`Envelope.commands`)."""
        read = self.reader.read(batch)
        after, op = self._part(read, self.after), to_readable(self._part(read, self.op))[0]
        before = None if self.before is None else self._part(read, self.before)
        has_after = _mask(after.is_valid())
        old_keys = self._keys_in(before, batch.num_rows)
        in_before = _any_valid(old_keys)
        columns = {own_name: _column(read.batch, path) for own_name, path in self.columns.items()}
        placeholders = self._unsent(columns, read.unsent)
        new_keys = self._keys_in(after, batch.num_rows)
        self._fill_keys(new_keys, placeholders, old_keys)
        lost_keys = [where for key, where in placeholders.items() if key in new_keys]
        lost_key = np.logical_or.reduce([~has_after & False, *lost_keys])
        key_rows = read.keys(~(has_after | in_before) | lost_key)
        self._fill_keys(new_keys, placeholders, key_rows.columns)
        columns |= self._keys(new_keys, old_keys, key_rows, has_after)
        self._take_from_before(read, columns, placeholders, in_before)
        unsent = Unsent.of(self.schema, columns, placeholders)
        columns = dict(unsent.columns)
        has_key = _any_valid({key: columns[key] for key in self.schema.keys})

        order, bad_order = self._order(read, op)
        is_truncate = _mask(pc.equal(op, _TRUNCATE).fill_null(False))
        is_truncate &= _all_valid(order, batch.num_rows) if order else False
        is_nothing = self._passed_over(op, is_truncate)
        if self._is_ordered_by_events and not self.schema.has_quarantine:
            is_nothing |= read.tombstones
        faults = _faults(op, has_after, has_key, key_rows.reasons)
        faults = _add_message_types(faults, op, read.raw_values)
        unread = _first(unsent.bad_keys, unsent.bad_values, explain_text(read.reasons), _NO_REASON)
        is_delete = _mask(pc.equal(op, _DELETE).fill_null(False)) & ~_mask(faults.is_valid())
        if read.is_cut is not None:
            is_delete &= ~read.is_cut
        # What a row held is nothing to its delete.
        is_said = pa.array(is_delete | read.tombstones | is_nothing)
        reasons = pc.if_else(is_said, _NO_REASON, _first(unread, faults))
        moved = self._moved(columns, old_keys, has_after & has_key)
        decoded = DecodedRows(
            columns=columns,
            order=order,
            bad_order=bad_order,
            own_order={n: _column(read.batch, path) for n, path in self.own_order.items()},
            tombstones=is_delete | read.tombstones,
            bad_values=reasons,
            # Without a key there is no row for an inline error.
            bad_keys=_first(
                pc.if_else(pa.array(has_key), _NO_REASON, reasons),
                pc.if_else(
                    pa.array(read.tombstones), _first(key_rows.reasons, _NO_REASON), _NO_REASON
                ),
            ),
            raw_keys=key_rows.raw,
            needs_no_order=read.tombstones if self.schema.has_quarantine else None,
            unchanged=unsent.unchanged,
            moved_to=self._moved_to(read.batch, is_delete),
            sets_nulls=True,
            resets=moved | _is_in(op, _CREATES),
            ignores_null_deletes=True,
            raw_values=read.raw_values,
            hint=_HINT,
        )
        lists = None if self.lists is None else _column(read.batch, self.lists)
        decoded = apply_rule(self.schema, decoded, self.rule, lists)
        has_order = _all_valid(order, batch.num_rows)
        if self._is_ordered_by_events and self.schema.has_quarantine:
            # The record clearing such an error has no order either: the later one wins.
            decoded = replace(
                decoded, order=[pc.if_else(pa.array(has_key), column, None) for column in order]
            )
        # A moved row is deleted at its old key, even if its new values are bad.
        moved &= has_order & ~_mask(faults.is_valid())
        commands = to_commands(self.schema, _repeated(decoded, is_nothing, moved, old_keys))
        commands = with_skipped(commands, int(is_nothing.sum()))
        if self.truncates is Truncates.OVERWRITE and bool(is_truncate.any()):
            where = pa.array(is_truncate)
            return with_truncates(commands, [c.filter(where) for c in order], self.schema)
        return commands

    def _order(self, read: EventBatch, op: pa.Array) -> tuple[list[pa.Array], pa.Array | None]:
        """Return each event's order, and why a position is invalid.

        A row read by a snapshot may have no position, or a partial one. It sorts before all
        changes: anything with a log position is newer than the row, or is not in the table.
        A snapshot of PostgreSQL has the position at which the next change begins.
        """
        columns = [
            convert(column, field.type) if position_of(field) else column
            for column, field in (
                (_column(read.batch, path), field)
                for path, field in zip(self.order, self.schema.order, strict=True)
            )
        ]
        order, reasons = order_keys(self.schema.order, columns, self.schema.binlogs)
        is_read = pc.equal(op, _READ).fill_null(False)
        for index, (path, column) in enumerate(zip(self.order, columns, strict=True)):
            if path[-2:] == _LSN and pa.types.is_integer(column.type):
                # No change begins there: changes take eight bytes and more.
                is_above = pc.greater(column, pa.scalar(0, column.type))
                before = pc.subtract(column, pa.scalar(1, column.type))
                order[index] = pc.if_else(pc.and_(is_read, is_above), before, order[index])
            if path[-2:-1] == (_SOURCE,) and column.null_count:
                has_source = _column(read.batch, path[:-1]).is_valid()
                is_first = pc.and_(pc.and_(is_read, has_source), column.is_null())
                order[index] = pc.if_else(is_first, filled_order(column), order[index])
        return order, reasons

    def _part(self, read: EventBatch, name: str) -> pa.Array:
        return _column(read.batch, (*self.event, name))

    @property
    def _is_ordered_by_events(self) -> bool:
        """Whether the order is in the events, hence absent from records without a value."""
        return any(path[: len(self.event)] == self.event for path in self.order)

    def _unsent(
        self, columns: Mapping[str, pa.Array], removed: Mapping[str, Mask]
    ) -> dict[str, Mask]:
        """Return the rows with an unsent value, by table column."""
        masks = {}
        for name, column in columns.items():
            *above, leaf = self.columns[name]
            if tuple(above) == (*self.event, self.after):
                where = self.placeholder.find(column)
                masks[name] = where | removed[leaf] if leaf in removed else where
        return {name: where for name, where in masks.items() if where.any()}

    def _fill_keys(
        self,
        keys: dict[str, pa.Array],
        unsent: Mapping[str, Mask],
        known_keys: Mapping[str, pa.Array],
    ) -> None:
        """Replace keys that an update did not send, hence did not change, by known ones."""
        for key in unsent.keys() & keys.keys() & known_keys.keys():
            known = known_keys[key]
            is_known = unsent[key] & _mask(known.is_valid()) & ~self.placeholder.find(known)
            keys[key] = pc.if_else(pa.array(is_known), _cast(known, keys[key]), keys[key])
            unsent[key][is_known] = False

    def _take_from_before(
        self,
        read: EventBatch,
        columns: dict[str, pa.Array],
        unsent: Mapping[str, Mask],
        has_before: Mask,
    ) -> None:
        """Replace placeholders by the value in ``before``; null there may be an unsent value, too.

        PostgreSQL does not send unchanged values again after the old row with REPLICA IDENTITY
        FULL, and sends nulls in the old row with any other replica identity.
        """
        values = unsent.keys() - set(self.schema.keys)
        is_partial = np.logical_or.reduce([~has_before & False, *(unsent[n] for n in values)])
        rows = np.flatnonzero(is_partial & has_before)
        if not len(rows):
            return
        before = read.before(rows)
        for name in values:
            leaf = self.columns[name][-1]
            if before.type.get_field_index(leaf) < 0:
                continue
            new, old = as_stored(columns[name]), as_stored(at_path(before, (leaf,)))
            is_known = _mask(old.is_valid()) & ~self.placeholder.find(old) & unsent[name][rows]
            if old.type == new.type and is_known.any():
                found = rows[is_known]
                row_indices = np.arange(len(has_before))
                row_indices[found] = len(has_before) + np.flatnonzero(is_known)
                columns[name] = pa.concat_arrays([new, old]).take(pa.array(row_indices))
                unsent[name][found] = False

    def _moved_to(self, batch: pa.RecordBatch, is_delete: Mask) -> list[pa.Array] | None:
        """Return the new keys of rows that are deleted at their old key, by key column.

        The delete and the create must have one order, or values that it takes along would win over
        values that the create sends: only the fields in ``source`` are the same in both.
        """
        source = (*self.event, _SOURCE)
        if self.moved_keys is None or {path[:-1] for path in self.order} != {source}:
            return None
        return self.moved_keys.read(batch, is_delete)

    def _passed_over(self, op: pa.Array, ordered: Mask) -> Mask:
        """Return the truncates without a command; log a warning if they are ignored.

        With ``overwrite`` these are the ``ordered`` ones, which empty the table.
        """
        if self.truncates is Truncates.ERROR:
            return np.zeros(len(op), dtype=np.bool_)
        if self.truncates is Truncates.OVERWRITE:
            return ordered
        is_skipped = _mask(pc.equal(op, _TRUNCATE).fill_null(False))
        if is_skipped.any():
            _logger.warning(
                "event=truncates_ignored count=%d: rows that the source no longer has stay in the "
                "table (onTruncate=ignore)",
                int(is_skipped.sum()),
            )
        return is_skipped

    def _keys_in(self, row: pa.Array | None, count: int) -> dict[str, pa.Array]:
        """Return the key columns in ``before`` or ``after``; null where missing."""
        keys = {}
        for key in self.schema.keys:
            name = self.columns[key][-1]
            key_type = self.schema.columns.field(key).type
            has = row is not None and row.type.get_field_index(name) >= 0
            keys[key] = (
                convert(at_path(row, (name,)), key_type) if has else pa.nulls(count, key_type)
            )
        return keys

    def _keys(
        self,
        new: dict[str, pa.Array],
        old: dict[str, pa.Array],
        apart: EventKeys,
        has_after: Mask,
    ) -> dict[str, pa.Array]:
        """Return each event's key, complete from ``after``, ``before`` or outside the event."""
        in_before = pa.array(_any_valid(old))
        return {
            key: pc.if_else(
                pa.array(has_after),
                new[key],
                pc.if_else(in_before, old[key], _cast(apart.columns.get(key), old[key])),
            )
            for key in self.schema.keys
        }

    def _moved(
        self, columns: dict[str, pa.Array], old_keys: dict[str, pa.Array], has_after: Mask
    ) -> Mask:
        """Return which events move a row from one key to another."""
        names = self.schema.keys
        same = equal_rows([columns[n] for n in names], [old_keys[n] for n in names])
        return has_after & _any_valid(old_keys) & ~same


def _faults(op: pa.Array, has_after: Mask, has_key: Mask, key_reasons: pa.Array | None) -> pa.Array:
    """Return why an event cannot be applied; null if it can."""
    is_put = pc.is_in(op, pa.array(_PUTS))
    is_delete = pc.equal(op, _DELETE).fill_null(False)
    after, key = pa.array(has_after), pa.array(has_key)
    named = pc.binary_join_element_wise("op '", op, "'", "")
    no_key: pa.Array | str = "op 'd' has no key in 'before', nor is there one beside the event"
    if key_reasons is not None:
        undecodable = pc.binary_join_element_wise("op 'd', and ", key_reasons, "")
        no_key = pc.coalesce(undecodable, no_key)
    return pc.case_when(
        pc.make_struct(
            op.is_null(),
            pc.equal(op, _TRUNCATE),
            pc.invert(pc.or_(is_put, is_delete)),
            pc.and_not(is_put, after),
            pc.and_(is_delete, after),
            pc.and_not(is_delete, key),
        ),
        _NO_OP,
        "op 't' (truncate) cannot be applied (onTruncate)",
        pc.binary_join_element_wise(named, " is not one of c, r, u, d", ""),
        pc.binary_join_element_wise(named, " has no 'after'", ""),
        "op 'd' has an 'after'",
        no_key,
        _NO_REASON,
    )


def _add_message_types(
    faults: pa.Array, op: pa.Array, raw: Callable[[Positions], pa.Array]
) -> pa.Array:
    """Add the message type to faults for messages other than change events."""
    message = pc.if_else(pc.equal(op, _MESSAGE).fill_null(False), _LOGICAL_MESSAGE, faults)
    rows = np.flatnonzero(_mask(pc.equal(faults, _NO_OP).fill_null(False)))
    if not len(rows):
        return message
    names = name_by_text(raw(rows))
    reasons = pc.coalesce(pc.binary_join_element_wise(f"{_NO_OP}: it is ", names, ""), _NO_OP)
    row_indices = np.arange(len(faults))
    row_indices[rows] = len(faults) + np.arange(len(rows))
    return pa.concat_arrays([message, reasons]).take(pa.array(row_indices))


def _first(*reasons: pa.Array | str | None) -> pa.Array:
    return pc.coalesce(*(reason for reason in reasons if reason is not None))


def _repeated(
    decoded: DecodedRows, is_nothing: Mask, moved: Mask, old_keys: dict[str, pa.Array]
) -> DecodedRows:
    """Drop events without effect; insert a delete for the old key before each move.

    If the row leaves values unchanged, the delete takes them to the new key.
    """
    if not (is_nothing.any() or moved.any()):
        return decoded
    counts = np.where(is_nothing, 0, 1 + moved)
    rows = np.repeat(np.arange(len(moved)), counts)
    is_old = np.zeros(len(rows), dtype=np.bool_)
    is_old[(np.cumsum(counts) - counts)[moved]] = True
    row_indices, old = pa.array(rows), pa.array(is_old)
    columns = {
        name: pc.if_else(old, old_keys[name].take(row_indices), column.take(row_indices))
        if name in old_keys
        else column.take(pa.array(rows, mask=is_old))
        for name, column in decoded.columns.items()
    }
    assert decoded.bad_values is not None
    assert decoded.bad_keys is not None
    no_row = np.zeros(len(moved), dtype=np.bool_)
    takes = is_old & np.logical_or.reduce([no_row, *decoded.unchanged.values()])[rows]
    indices_of_takers = pa.array(rows, mask=~takes)
    moved_to = None
    if decoded.moved_to is not None:
        moved_to = [key.take(row_indices) for key in decoded.moved_to]
    if takes.any():
        own_keys = [decoded.columns[key].take(indices_of_takers) for key in old_keys]
        moved_to = own_keys if moved_to is None else list(map(pc.coalesce, own_keys, moved_to))
    return replace(
        decoded,
        columns=columns,
        order=[column.take(row_indices) for column in decoded.order],
        own_order={name: column.take(row_indices) for name, column in decoded.own_order.items()},
        tombstones=decoded.tombstones[rows] | is_old,
        needs_no_order=None if decoded.needs_no_order is None else decoded.needs_no_order[rows],
        bad_values=decoded.bad_values.take(row_indices),
        bad_keys=decoded.bad_keys.take(row_indices),
        unchanged={name: where[rows] & ~is_old for name, where in decoded.unchanged.items()},
        resets=None if decoded.resets is None else decoded.resets[rows] & ~is_old,
        moved_to=moved_to,
        raw_keys=None if decoded.raw_keys is None else decoded.raw_keys.take(row_indices),
        raw_values=lambda chosen: decoded.raw_values(rows[chosen]),
    )


def _all_valid(columns: Sequence[pa.Array], count: int) -> Mask:
    everywhere = np.ones(count, dtype=np.bool_)
    return np.logical_and.reduce([everywhere, *(_mask(column.is_valid()) for column in columns)])


def _cast(column: pa.Array | None, like: pa.Array) -> pa.Array:
    return pa.nulls(len(like), like.type) if column is None else convert(column, like.type)


def _any_valid(columns: dict[str, pa.Array]) -> Mask:
    return np.logical_or.reduce([_mask(column.is_valid()) for column in columns.values()])


def _column(batch: pa.RecordBatch, path: Path) -> pa.Array:
    return at_path(batch.column(path[0]), path[1:])


def _mask(values: pa.Array) -> Mask:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.bool_)


@dataclass(frozen=True, kw_only=True)
class PartialDecoder:
    """Decodes some fields in an event."""

    decoder: Decoder
    has_values: bool = False
    """Whether these include the complete row."""
    has_after: bool = True
    """Whether these show if a row exists after the change."""


class Events(NamedTuple):
    """The events read from n payloads."""

    events: pa.StructArray
    reasons: pa.Array | None
    """Why an event's values could not be read, as text."""
    is_cut: Mask
    """True where a row's existence after the change is unknown."""

    def replaced(self, pieces: Sequence[tuple[Positions, Events]]) -> Events:
        """Replace the events at some positions with ones decoded again."""
        if not pieces:
            return self
        count = len(self.events)
        events, reasons = [self.events], [_reasons_of(self.reasons, count)]
        row_indices, is_cut = np.arange(count), self.is_cut.copy()
        for rows, piece in pieces:
            row_indices[rows] = count + np.arange(len(rows))
            count += len(rows)
            is_cut[rows] = piece.is_cut
            events.append(piece.events)
            reasons.append(_reasons_of(piece.reasons, len(rows)))
        at = pa.array(row_indices)
        return Events(pa.concat_arrays(events).take(at), pa.concat_arrays(reasons).take(at), is_cut)


@dataclass(frozen=True, kw_only=True)
class EventDecoder:
    """Decodes record values into change events.

    A bad event is read again with fewer fields until that succeeds: without ``before``; then
    ``op``, order and all keys; ``op``, order and the key in ``after``; ``op`` and order. From the
    second attempt on, the event is an error for its key; a delete needs no other values.

    Parameters
    ----------
    whole : Decoder
        Decodes all requested fields.
    fewer : tuple of PartialDecoder
        Attempts after a failure, in order.
    required : tuple of str
        Columns declared NOT NULL.
    """

    whole: Decoder
    fewer: tuple[PartialDecoder, ...]
    required: tuple[str, ...]

    def without(self, names: Collection[str]) -> EventDecoder:
        """Return a decoder allowing nulls in these columns, even if declared NOT NULL."""
        return replace(self, required=tuple(n for n in self.required if n not in names))

    def with_null_reasons(self, events: Events, unsent: Mapping[str, Mask]) -> Events:
        """Add reasons for null in NOT NULL columns, except in rows with unsent values."""
        reasons = self._nulls(events.events, events.reasons, unsent)
        return events._replace(reasons=reasons)

    def decode(self, payloads: pa.Array) -> Events:
        """Return as much as can be read from each event."""
        read = decode_safely(self.whole, payloads)
        fields = [field.with_nullable(True) for field in self.whole.fields]
        events = pa.StructArray.from_arrays(list(read.columns), fields=fields)
        reasons, is_cut = read.reasons, np.zeros(len(payloads), dtype=np.bool_)
        if reasons is not None:
            events, reasons, is_cut = self._decode_again(payloads, events, reasons)
        return Events(events, self._nulls(events, reasons), is_cut)

    def _decode_again(
        self, payloads: pa.Array, events: pa.StructArray, reasons: pa.Array
    ) -> Events:
        """Read bad events again with fewer fields, once per decoder in `fewer`."""
        left = np.flatnonzero(_valid(reasons))
        row_indices = np.arange(len(payloads))
        pieces, count = [events], len(events)
        is_cut = np.zeros(len(payloads), dtype=np.bool_)
        for step in self.fewer:
            decoded_rows = decode_safely(step.decoder, payloads.take(pa.array(left)))
            is_read = _readable(decoded_rows, len(left))
            rows, good = left[is_read], pa.array(np.flatnonzero(is_read))
            columns = dict(zip(step.decoder.fields.names, decoded_rows.columns, strict=True))
            taken = {name: column.take(good) for name, column in columns.items()}
            pieces.append(_expand_structs(taken, events.type, len(rows)))
            row_indices[rows] = count + np.arange(len(rows))
            count += len(rows)
            is_cut[rows] = not step.has_after
            if step.has_values:
                reasons = _replace_reasons(reasons, left, decoded_rows.reasons)
            left = left[~is_read]
        is_cut[left] = True
        merged = pa.concat_arrays(pieces).take(pa.array(row_indices))
        return Events(merged, reasons, is_cut)

    def _nulls(
        self,
        events: pa.StructArray,
        reasons: pa.Array | None,
        unsent: Mapping[str, Mask] = MappingProxyType({}),
    ) -> pa.Array | None:
        """Add reasons for rows with a null in a NOT NULL column."""
        after = pc.struct_field(events, [events.type.get_field_index(AFTER)])
        for name in self.required:
            column = pc.struct_field(after, [after.type.get_field_index(name)])
            lacks = pc.and_(after.is_valid(), column.is_null())
            if name in unsent:
                lacks = pc.and_not(lacks, pa.array(unsent[name]))
            why = pc.if_else(lacks, f"'{AFTER}.{name}' is null, and declared NOT NULL", None)
            reasons = why if reasons is None else pc.coalesce(reasons, why)
        return reasons


def _reasons_of(reasons: pa.Array | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.string()) if reasons is None else reasons


def _replace_reasons(reasons: pa.Array, rows: Positions, found: pa.Array | None) -> pa.Array:
    """Replace the reasons for some rows; `found` None clears them."""
    row_indices = np.arange(len(reasons))
    row_indices[rows] = len(reasons) + np.arange(len(rows))
    return pa.concat_arrays([reasons, _reasons_of(found, len(rows))]).take(pa.array(row_indices))


def _expand_structs(
    columns: Mapping[str, pa.Array], type_: pa.StructType, count: int
) -> pa.StructArray:
    """Return columns as structs with more fields; missing fields are null."""
    parts = []
    for wanted_field in type_:
        column = columns.get(wanted_field.name)
        if column is None:
            parts.append(pa.nulls(count, wanted_field.type))
        elif column.type == wanted_field.type:
            parts.append(column)
        else:
            names = [inner.name for inner in column.type]
            inside = dict(zip(names, column.flatten(), strict=True))
            combined = _expand_structs(inside, wanted_field.type, count)
            parts.append(pc.if_else(column.is_valid(), combined, None))
    return pa.StructArray.from_arrays(parts, fields=list(type_))


def _readable(found: Payloads, count: int) -> Mask:
    return np.ones(count, dtype=np.bool_) if found.reasons is None else ~_valid(found.reasons)


def _valid(array: pa.Array) -> Mask:
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)


OPERATION_FIELD = "__op"
"""Column with the operation of a flattened event."""

_DELETES, _ROWS = ("true", "d"), ("false", "c", "r", "u")
_CREATES = ("c", _READ)


def _is_in(values: pa.Array, texts: tuple[str, ...]) -> Mask:
    return _mask(pc.is_in(values, pa.array(texts)))


def _is_text(fields: pa.Schema, name: str) -> bool:
    return bool(pa.types.is_string(storage_type(fields.field(name).type)))


def require_mark_option(names: Iterable[str], deletes: str | None) -> None:
    """Raise if rows mark deletes and no option reads the mark."""
    if deletes is None and DELETED_FIELD in names:
        raise unread_deletes_error()


@dataclass(frozen=True)
class FlattenedReader:
    """Reads deletes and unsent values from rows. Pickled to the tasks.

    Parameters
    ----------
    mark : str or None
        The column marking deletes, for messages.
    placeholder : Placeholder or None
        None: values are used unchanged.
    operations : str or None
        The column with the operation that wrote a row, such as ``c``.
    """

    mark: str | None
    placeholder: Placeholder | None
    operations: str | None = None

    @classmethod
    def of_rows(
        cls, rows: pa.Schema, deletes: str | None, placeholder: Placeholder | None
    ) -> FlattenedReader | None:
        """Return the reader for plain rows; None if nothing marks them as flattened events."""
        if placeholder is None and deletes in (DELETED_FIELD, OPERATION_FIELD):
            placeholder = DEFAULT_PLACEHOLDER
        names = {name.lower(): name for name in rows.names}
        mark = names.get((deletes or "").lower())
        if placeholder is None and (mark is None or not _is_text(rows, mark)):
            return None
        return cls.of_fields(rows, mark, placeholder)

    @classmethod
    def of_fields(
        cls, fields: pa.Schema, mark: str | None, placeholder: Placeholder | None
    ) -> FlattenedReader:
        """Return the reader for rows with these fields."""
        has_operations = OPERATION_FIELD in fields.names and _is_text(fields, OPERATION_FIELD)
        return cls(mark, placeholder, OPERATION_FIELD if has_operations else None)

    @property
    def hint(self) -> str:
        """Hint for inapplicable rows."""
        usual = "correct what writes the values, or their declared format"
        if self.placeholder is None:
            return usual
        return f"{usual}; for a key or an order that was not sent: {UNSENT_HINT}"

    def read(
        self,
        schema: TableSchema,
        columns: Mapping[str, pa.Array],
        marks: pa.Array | None,
        operations: pa.Array | None,
        removed: Mapping[str, Mask] | None = None,
    ) -> ReadRows:
        """Decode columns (`RowReader`); ``removed`` marks placeholders already replaced by null."""
        masks = {}
        if self.placeholder is not None:
            masks = {name: self.placeholder.find(column) for name, column in columns.items()}
        for name, where in (removed or {}).items():
            masks[name] = masks[name] | where
        unsent = Unsent.of(schema, columns, masks)
        is_delete, reasons = None, unsent.bad_values
        if marks is not None:
            is_delete, unknown = self._read_marks(marks)
            reasons = unknown if reasons is None else pc.coalesce(unknown, reasons)
        return ReadRows(
            columns=unsent.columns,
            tombstones=is_delete,
            bad_values=reasons,
            bad_keys=unsent.bad_keys,
            unchanged=unsent.unchanged,
            resets=None if operations is None else _is_in(to_readable(operations)[0], _CREATES),
        )

    def _read_marks(self, marks: pa.Array) -> tuple[Mask, pa.Array]:
        """Return which rows are deletes, and why a mark is unknown."""
        values = to_readable(marks)[0]
        is_flag = pa.types.is_boolean(values.type)
        deletes = values.fill_null(False) if is_flag else pc.is_in(values, pa.array(_DELETES))
        unknown = self._unknown_marks(values)
        return _mask(deletes), pa.nulls(len(values), pa.string()) if unknown is None else unknown

    def _unknown_marks(self, marks: pa.Array) -> pa.Array | None:
        if pa.types.is_boolean(marks.type):
            return None
        is_known = pc.is_in(marks, pa.array([*_DELETES, *_ROWS, None], pa.string()))
        if pc.all(is_known, min_count=0).as_py():
            return None
        expected = f", expected one of {', '.join((*_DELETES, *_ROWS))}"
        why = pc.binary_join_element_wise(
            f"the applyAsDeletes column '{self.mark}' is '", marks, f"'{expected}", ""
        )
        return pc.if_else(is_known, pa.scalar(None, pa.string()), why)
