"""Change events as structs: rows as ``from_json`` or ``from_avro`` parses the value of a message.

The event is at the top level of a row, or below a struct ``payload``. A parser that turns what it
cannot read into nulls leaves events without ``op``, which are errors; so is a record of Kafka
without a value, which cannot be told from them here. `records` reads the bytes itself, and can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from spark_upsert.envelopes.debezium.events import (
    AFTER,
    BEFORE,
    OP,
    DebeziumEnvelope,
    EventBatch,
    EventKeys,
)
from spark_upsert.envelopes.debezium.messages import MONGODB
from spark_upsert.errors import SchemaError
from spark_upsert.model.arrays import Mask
from spark_upsert.model.names import find_column, find_columns, has_column
from spark_upsert.model.schema import Scope, TableSchema
from spark_upsert.options.write import Truncates
from spark_upsert.payloads.placeholders import DEFAULT_PLACEHOLDER, Placeholder
from spark_upsert.table.write.commands import rows_as_json
from spark_upsert.table.write.form import Path, at_path, dotted, order_names

_PAYLOAD, _KEY = "payload", "key"


@dataclass(frozen=True)
class ParsedForm:
    """Rows with ``before``, ``after`` and ``op``.

    Parameters
    ----------
    rows : pyarrow.Schema
        The columns of the rows.
    truncates : Truncates
    placeholder : Placeholder

    Raises
    ------
    SchemaError
        The rows are not of this form.
    """

    rows: pa.Schema
    truncates: Truncates = Truncates.ERROR
    placeholder: Placeholder = DEFAULT_PLACEHOLDER
    keys: tuple[str, ...] = ()
    scope: Scope = Scope.TABLE

    def __post_init__(self) -> None:
        for name in (AFTER, OP):
            self._name(name)
        after = self._event.field(self._name(AFTER)).type
        if not pa.types.is_struct(after):
            why = f" ({MONGODB})" if pa.types.is_string(after) else ""
            raise SchemaError(
                f"'{AFTER}' of a Debezium event must be a struct of the row, found {after}{why}.",
                hint="write the rows of spark.readStream.format('kafka') as they come, with "
                "'valueFormat' and 'valueSchema'; or parse them with a schema that has the "
                "fields of the row below 'before' and 'after'.",
                column=AFTER,
            )

    @cached_property
    def _root(self) -> Path:
        """The path at which the event begins in a row."""
        names = {name.lower(): name for name in self.rows.names}
        if AFTER not in names and _PAYLOAD in names:
            payload = names[_PAYLOAD]
            if pa.types.is_struct(self.rows.field(payload).type):
                return (payload,)
        return ()

    @cached_property
    def _event(self) -> pa.Schema:
        return pa.schema(list(self.rows.field(self._root[0]).type)) if self._root else self.rows

    def _name(self, name: str) -> str:
        return find_column(name, self._event.names, role="field of a Debezium event")

    @property
    def refused(self) -> Mapping[str, SchemaError]:
        """None, as of plain rows."""
        return {}

    @cached_property
    def columns(self) -> pa.Schema:
        """The fields of ``after``."""
        return pa.schema(list(self._event.field(self._name(AFTER)).type))

    @cached_property
    def others(self) -> pa.Schema:
        """All that may order the changes, but for the rows before and after."""
        images = (f"{BEFORE}.", f"{AFTER}.")
        return pa.schema([f for f in self.orders if not f.name.lower().startswith(images)])

    @cached_property
    def orders(self) -> pa.Schema:
        """The leaves of the event by dotted names, then the other columns of the rows."""
        found = {field.name: field for field in dotted(self._event)}
        for field in dotted(self.rows) if self._root else ():
            found.setdefault(field.name, field)
        return pa.schema(list(found.values()))

    def ordered_by(self, named: Sequence[str]) -> tuple[str, ...]:
        """Return what is named; else the order is that of arrival."""
        return tuple(named)

    def require_keys(self, keys: Sequence[str]) -> None:
        """Raise `SchemaError` if a key is not a field of ``after``: deletes would not have it."""
        find_columns(keys, self.columns.names, role="key column")

    def envelope(self, schema: TableSchema, columns: pa.Schema) -> DebeziumEnvelope:
        """Return the envelope for a table."""
        own = find_columns(columns.names, schema.columns.names, role="column")
        before = [name for name in self._event.names if name.lower() == BEFORE]
        after = self._name(AFTER)
        of_event = {field.name for field in dotted(self._event)}

        def path(name: str) -> Path:
            return (*(self._root if name in of_event else ()), *name.split("."))

        return DebeziumEnvelope(
            schema=schema,
            reader=_ParsedReader(
                {key: where for key in schema.keys if (where := self._apart(key))}
            ),
            event=self._root,
            before=before[0] if before and self._is_row(before[0]) else None,
            after=after,
            op=self._name(OP),
            columns={
                column: (*self._root, after, name) if has_column(self.columns, name) else path(name)
                for column, name in zip(own, columns.names, strict=True)
            },
            order=tuple(path(name) for name in order_names(schema, self.orders)),
            own_order={c: path(source) for c, source in schema.engine.column_order.items()},
            truncates=self.truncates,
            placeholder=self.placeholder,
        )

    def _is_row(self, name: str) -> bool:
        return bool(pa.types.is_struct(self._event.field(name).type))

    def _apart(self, key: str) -> Path | None:
        """Return where a row has a key apart from the event, if anywhere."""
        columns = {name.lower(): name for name in self.rows.names}
        if key.lower() in columns:
            return (columns[key.lower()],)
        struct = columns.get(_KEY)
        if struct is None or not pa.types.is_struct(self.rows.field(struct).type):
            return None
        inside = {f.name.lower(): f.name for f in self.rows.field(struct).type}
        return (struct, inside[key.lower()]) if key.lower() in inside else None


@dataclass(frozen=True)
class _ParsedReader:
    """Takes rows as they are."""

    keys: dict[str, Path]
    """Paths of keys that stand apart from the event."""

    def read(self, batch: pa.RecordBatch) -> EventBatch:
        """Return the events of a batch."""

        def keys(where: Mask) -> EventKeys:
            found = {n: at_path(batch.column(path[0]), path[1:]) for n, path in self.keys.items()}
            return EventKeys(columns=found)

        return EventBatch(
            batch=batch,
            raw_values=lambda rows: rows_as_json(batch, rows),
            keys=keys,
            tombstones=np.zeros(batch.num_rows, dtype=np.bool_),
        )
