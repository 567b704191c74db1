"""The ``debezium`` envelope: change events with the row before and after.

Rows are as ``from_json`` parses the value of a Debezium message, at the top level or below a
struct ``payload``:

=========  ==========================================================================
``after``  struct: the row behind the change; its fields are the columns of the table
``before`` struct, optional: the row before it, or as much of it as the database gives
``op``     ``c`` create, ``u`` update, ``r`` snapshot read: a put; ``d``: a delete
others     whatever orders the changes, such as ``source.lsn`` or ``ts_ms``
=========  ==========================================================================

A row without ``after`` is a delete, whatever its ``op``; so a Kafka tombstone, which parses to
nothing but nulls, is a delete of nothing. The key is that in ``after``, else in ``before``, else
in a column (or a field of the struct ``key``) of the key's name. An update whose key differs
from that in ``before`` is two commands: a delete of the old key, then a put of the new one.

Anything else, ``op = 't'`` (truncate) among it, is an error: it cannot be applied to a key.

Source: Debezium's change event format, and Materialize's ``ENVELOPE DEBEZIUM``, which refuses
truncates likewise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.errors import SchemaError
from spark_upsert.names import find_column
from spark_upsert.schema import Scope, TableSchema
from spark_upsert.upsert.commands import Decoded, Mask, rows_as_json, to_commands
from spark_upsert.upsert.envelopes.form import Path, at_path, dotted, order_names
from spark_upsert.words import equal_rows

_PAYLOAD, _BEFORE, _AFTER, _OP, _KEY = "payload", "before", "after", "op", "key"
_PUTS = ("c", "r", "u")
_DELETE, _UPDATE, _TRUNCATE = "d", "u", "t"


@dataclass(frozen=True)
class DebeziumForm:
    """Rows with ``before``, ``after`` and ``op``.

    Parameters
    ----------
    rows : pyarrow.Schema
        The columns of the rows.

    Raises
    ------
    SchemaError
        The rows are not of this form.
    """

    rows: pa.Schema
    keys: tuple[str, ...] = ()
    sequence_by: tuple[str, ...] = ()
    scope: Scope = Scope.TABLE

    def __post_init__(self) -> None:
        for name in (_AFTER, _OP):
            find_column(name, self._event.names, role="field of a Debezium event")
        after = self._event.field(self._name(_AFTER)).type
        if not pa.types.is_struct(after):
            raise SchemaError(
                f"'{_AFTER}' of a Debezium event must be a struct of the row, found {after}.",
                hint="parse the message first, with from_json and a schema that has the fields "
                "of the row below 'before' and 'after'.",
                column=_AFTER,
            )

    @cached_property
    def _root(self) -> Path:
        """Where the event begins in a row."""
        names = {name.lower(): name for name in self.rows.names}
        if _AFTER not in names and _PAYLOAD in names:
            payload = names[_PAYLOAD]
            if pa.types.is_struct(self.rows.field(payload).type):
                return (payload,)
        return ()

    @cached_property
    def _event(self) -> pa.Schema:
        return pa.schema(list(self.rows.field(self._root[0]).type)) if self._root else self.rows

    def _name(self, name: str) -> str:
        return find_column(name, self._event.names, role="field of a Debezium event")

    @cached_property
    def columns(self) -> pa.Schema:
        """The fields of ``after``."""
        return pa.schema(list(self._event.field(self._name(_AFTER)).type))

    @cached_property
    def others(self) -> pa.Schema:
        """No others: beside ``after`` there is nothing of the row."""
        return pa.schema([])

    @cached_property
    def orders(self) -> pa.Schema:
        """The leaves of the event by dotted names, then the other columns of the rows."""
        found = {field.name: field for field in dotted(self._event)}
        for field in dotted(self.rows) if self._root else ():
            found.setdefault(field.name, field)
        return pa.schema(list(found.values()))

    def require_keys(self, keys: Sequence[str]) -> None:
        """Accept any field of ``after``."""

    def envelope(self, schema: TableSchema, columns: pa.Schema) -> DebeziumEnvelope:
        """Return the envelope for a table."""
        own = schema.columns.names
        orders = order_names(schema, self.orders)
        event = {".".join(path) for path in _paths(self._event)}
        before = [name for name in self._event.names if name.lower() == _BEFORE]
        return DebeziumEnvelope(
            schema=schema,
            after=(*self._root, self._name(_AFTER)),
            before=(*self._root, before[0]) if before and self._is_row(before[0]) else None,
            op=(*self._root, self._name(_OP)),
            columns={find_column(name, own, role="column"): name for name in columns.names},
            keys={key: path for key in schema.keys if (path := self._key_column(key))},
            order=tuple(
                (*(self._root if name in event else ()), *name.split(".")) for name in orders
            ),
            own_order={
                column: (*(self._root if source in event else ()), *source.split("."))
                for column, source in schema.engine.column_order.items()
            },
        )

    def _is_row(self, name: str) -> bool:
        return bool(pa.types.is_struct(self._event.field(name).type))

    def _key_column(self, key: str) -> Path | None:
        """Return where a row has a key apart from the event, if anywhere."""
        columns = {name.lower(): name for name in self.rows.names}
        if key.lower() in columns:
            return (columns[key.lower()],)
        struct = columns.get(_KEY)
        if struct is None or not pa.types.is_struct(self.rows.field(struct).type):
            return None
        inside = {f.name.lower(): f.name for f in self.rows.field(struct).type}
        return (struct, inside[key.lower()]) if key.lower() in inside else None


def _paths(fields: pa.Schema) -> list[Path]:
    return [tuple(field.name.split(".")) for field in dotted(fields)]


@dataclass(frozen=True, kw_only=True)
class DebeziumEnvelope:
    """Turns change events into commands: one each, two where a row moves to another key."""

    schema: TableSchema
    after: Path
    before: Path | None
    op: Path
    columns: dict[str, str]
    """For each column of the table that events have, its name in ``after``."""
    keys: dict[str, Path]
    """Where keys stand apart from the event."""
    order: tuple[Path, ...]
    own_order: dict[str, Path]

    def commands(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the commands of a batch, in its order (`Envelope.commands`)."""
        after, op = _column(batch, self.after), _column(batch, self.op)
        before = None if self.before is None else _column(batch, self.before)
        has_after = _mask(after.is_valid())
        reasons = _op_faults(op, has_after)
        is_bad = _mask(reasons.is_valid())
        deletes = (~has_after | _mask(pc.equal(op, _DELETE).fill_null(False))) & ~is_bad
        columns = {own: at_path(after, (name,)) for own, name in self.columns.items()}
        old_keys = self._keys_of(before, batch.num_rows)
        columns |= self._keys(batch, columns, has_after, old_keys)
        no_key = np.logical_and.reduce([_mask(columns[key].is_null()) for key in self.schema.keys])
        decoded = Decoded(
            columns=columns,
            order=[_column(batch, path) for path in self.order],
            own_order={name: _column(batch, path) for name, path in self.own_order.items()},
            tombstones=deletes,
            bad_values=reasons,
            # Without a key there is nothing that an inline error could stand at.
            bad_keys=pc.if_else(pa.array(no_key), reasons, None),
            ignores_null_deletes=True,
            raw_values=lambda rows: rows_as_json(batch, rows),
        )
        moved = self._moved(columns, old_keys, has_after) & ~is_bad & ~deletes
        if bool(moved.any()):
            decoded = _with_old_keys(decoded, moved, old_keys, batch)
        return to_commands(self.schema, decoded)

    def _keys_of(self, row: pa.Array | None, count: int) -> dict[str, pa.Array]:
        """Return the key columns of ``before``; null where it has none."""
        found = {}
        for key in self.schema.keys:
            name = self.columns.get(key, key)
            has = row is not None and row.type.get_field_index(name) >= 0
            own = self.schema.columns.field(key).type
            found[key] = at_path(row, (name,)).cast(own) if has else pa.nulls(count, own)
        return found

    def _keys(
        self,
        batch: pa.RecordBatch,
        columns: dict[str, pa.Array],
        has_after: Mask,
        old_keys: dict[str, pa.Array],
    ) -> dict[str, pa.Array]:
        """Return the key of each event, whole from one place."""
        in_before = ~np.logical_and.reduce([_mask(key.is_null()) for key in old_keys.values()])
        found = {}
        for key in self.schema.keys:
            own = self.schema.columns.field(key).type
            apart = (
                _column(batch, self.keys[key]).cast(own)
                if key in self.keys
                else pa.nulls(batch.num_rows, own)
            )
            elsewhere = pc.if_else(pa.array(in_before), old_keys[key], apart)
            found[key] = pc.if_else(pa.array(has_after), columns[key].cast(own), elsewhere)
        return found

    def _moved(
        self, columns: dict[str, pa.Array], old_keys: dict[str, pa.Array], has_after: Mask
    ) -> Mask:
        """Return which events take a row from one key to another."""
        names = self.schema.keys
        has_old = ~np.logical_and.reduce([_mask(old_keys[name].is_null()) for name in names])
        same = equal_rows([columns[n] for n in names], [old_keys[n] for n in names])
        return has_after & has_old & ~same


def _op_faults(op: pa.Array, has_after: Mask) -> pa.Array:
    """Return why an event's ``op`` cannot be applied, null where it can."""
    is_known = pc.is_in(op, pa.array([*_PUTS, _DELETE]))
    is_nothing = pc.and_(op.is_null(), pa.array(~has_after))
    text = pc.binary_join_element_wise("op '", op, "' is not one of c, r, u, d", "")
    text = pc.if_else(pc.equal(op, _TRUNCATE), "op 't' (truncate) is not supported", text)
    return pc.if_else(pc.or_(is_known, is_nothing), None, text.fill_null("op is null"))


def _with_old_keys(
    decoded: Decoded, moved: Mask, old_keys: dict[str, pa.Array], batch: pa.RecordBatch
) -> Decoded:
    """Put a delete of the old key right before each event that leaves it."""
    counts = 1 + moved.astype(np.int64)
    rows = np.repeat(np.arange(len(moved)), counts)
    is_old = np.zeros(len(rows), dtype=np.bool_)
    is_old[(np.cumsum(counts) - counts)[moved]] = True
    places, old = pa.array(rows), pa.array(is_old)
    columns = {
        name: pc.if_else(old, old_keys[name].take(places), column.take(places))
        if name in old_keys
        else column.take(pa.array(rows, mask=is_old))
        for name, column in decoded.columns.items()
    }
    assert decoded.bad_values is not None
    assert decoded.bad_keys is not None
    return Decoded(
        columns=columns,
        order=[column.take(places) for column in decoded.order],
        own_order={name: column.take(places) for name, column in decoded.own_order.items()},
        tombstones=decoded.tombstones[rows] | is_old,
        bad_values=decoded.bad_values.take(places),
        bad_keys=decoded.bad_keys.take(places),
        ignores_null_deletes=decoded.ignores_null_deletes,
        raw_values=lambda chosen: rows_as_json(batch, rows[chosen]),
    )


def _column(batch: pa.RecordBatch, path: Path) -> pa.Array:
    return at_path(batch.column(path[0]), path[1:])


def _mask(values: pa.Array) -> Mask:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.bool_)
