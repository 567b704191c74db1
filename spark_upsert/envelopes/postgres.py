"""Changes of a PostgreSQL table as commands (`PostgresForm`, `PostgresEnvelope`).

The rows are those of `spark_upsert.postgres.messages.TableChanges`, with a column
``_unchanged.<column>`` for each column with values that were not sent, and the new keys of rows
that moved without all values (`rows_of`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.keys import Mask
from spark_upsert.core.names import find_columns
from spark_upsert.core.schema import Scope, TableSchema
from spark_upsert.errors import OptionError, SchemaError
from spark_upsert.postgres.messages import (
    CHANGE_COLUMNS,
    COMMIT_LSN,
    EMPTY,
    OP,
    REASON,
    REMOVE,
    SEQUENCE,
    TableChanges,
)
from spark_upsert.table.write.commands import DecodedRows, rows_as_json, to_commands
from spark_upsert.table.write.update_rule import WHOLE_ROWS, UpdateRule
from spark_upsert.table.write.write_set import with_truncates

UNCHANGED_PREFIX = "_unchanged."
MOVED = "_moved"
"""Marks the row of a moved key of which not all values were sent."""
NEW_PREFIX = "_new."
"""Before a key column's name: in the delete of such a row's old key, its new key."""

_HINT = (
    "declare another type in the source, or leave the column out (exceptColumnList); for values "
    "that an update did not send: ALTER TABLE ... REPLICA IDENTITY FULL"
)


def rows_of(changes: TableChanges) -> pa.RecordBatch:
    """Return changes as rows for the envelope."""
    rows = changes.rows
    for name, where in changes.unchanged.items():
        rows = rows.append_column(f"{UNCHANGED_PREFIX}{name}", pa.array(where))
    is_partial = np.logical_or.reduce([np.zeros(rows.num_rows, bool), *changes.unchanged.values()])
    moved = np.flatnonzero((changes.moved_from >= 0) & is_partial)
    if len(moved):
        is_moved = np.zeros(rows.num_rows, np.bool_)
        is_moved[moved] = True
        targets = np.full(rows.num_rows, -1)
        targets[changes.moved_from[moved]] = moved
        new_rows = pa.array(targets, mask=targets < 0)
        for key in changes.keys:
            rows = rows.append_column(f"{NEW_PREFIX}{key}", rows.column(key).take(new_rows))
        rows = rows.append_column(MOVED, pa.array(is_moved))
    return rows


def _is_own(name: str) -> bool:
    """Return whether a row column is not the table's."""
    return name in (*CHANGE_COLUMNS, MOVED) or name.startswith((UNCHANGED_PREFIX, NEW_PREFIX))


@dataclass(frozen=True)
class PostgresForm:
    """Rows of one table's changes (`Form`)."""

    rows: pa.Schema
    keys: tuple[str, ...]

    @property
    def columns(self) -> pa.Schema:
        """The table's columns."""
        return pa.schema([field for field in self.rows if not _is_own(field.name)])

    @property
    def others(self) -> pa.Schema:
        """The commit position."""
        return pa.schema([self.rows.field(COMMIT_LSN)])

    @property
    def orders(self) -> pa.Schema:
        """Commit position and place in the transaction."""
        return pa.schema([self.rows.field(COMMIT_LSN), self.rows.field(SEQUENCE)])

    @property
    def refused(self) -> Mapping[str, SchemaError]:
        """None."""
        return {}

    @property
    def scope(self) -> Scope:
        """The order reaches across all epochs."""
        return Scope.TABLE

    def ordered_by(self, named: Sequence[str]) -> tuple[str, ...]:
        """Return the order, which is fixed."""
        if named:
            raise OptionError.refused(
                "sequenceBy", "does not apply: the log orders the changes", hint="leave it out."
            )
        return (COMMIT_LSN, SEQUENCE)

    def require_keys(self, keys: Sequence[str]) -> None:
        """Raise unless the keys are the source's: deletes carry no other column."""
        if sorted(keys) != sorted(self.keys):
            raise OptionError.fixed("keys", ",".join(keys), ",".join(self.keys))

    def envelope(
        self, schema: TableSchema, columns: pa.Schema, rule: UpdateRule = WHOLE_ROWS
    ) -> PostgresEnvelope:
        """Return the envelope for a table; the log says which values an update leaves unchanged."""
        if rule != WHOLE_ROWS:
            raise OptionError.refused(
                "ignoreNullUpdates",
                "does not apply: the log marks unchanged values",
                hint="leave it and 'columnsToUpdate' out.",
            )
        own_names = find_columns(columns.names, schema.columns.names, role="column")
        return PostgresEnvelope(
            schema=schema, sources=dict(zip(own_names, columns.names, strict=True))
        )


@dataclass(frozen=True, kw_only=True)
class PostgresEnvelope:
    """Converts changes into commands, and truncates into a truncate of the table."""

    schema: TableSchema
    sources: Mapping[str, str]
    """For each table column in the rows, its name in the rows."""

    def commands(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch's commands (`Envelope.commands`)."""
        is_truncate = pc.equal(batch.column(OP), EMPTY)
        truncates, rows = batch.filter(is_truncate), batch.filter(pc.invert(is_truncate))
        reasons = rows.column(REASON)
        columns = {name: rows.column(source) for name, source in self.sources.items()}
        is_lost = [pc.and_(columns[key].is_null(), reasons.is_valid()) for key in self.schema.keys]
        marked = {
            name.removeprefix(UNCHANGED_PREFIX): _mask(rows.column(name))
            for name in rows.schema.names
            if name.startswith(UNCHANGED_PREFIX)
        }
        unchanged = {name: marked.get(source) for name, source in self.sources.items()}
        moves = rows.schema.get_field_index(MOVED) >= 0
        decoded = DecodedRows(
            columns=columns,
            order=[rows.column(COMMIT_LSN), rows.column(SEQUENCE)],
            tombstones=_mask(pc.equal(rows.column(OP), REMOVE)),
            bad_values=reasons,
            bad_keys=pc.if_else(_any(is_lost), reasons, None),
            sets_nulls=True,
            unchanged={
                n: where for n, where in unchanged.items() if where is not None and where.any()
            },
            moved_to=[rows.column(f"{NEW_PREFIX}{self.sources[key]}") for key in self.schema.keys]
            if moves
            else None,
            resets=_mask(rows.column(MOVED)) if moves else None,
            raw_values=lambda indices: rows_as_json(rows, indices),
            hint=_HINT,
        )
        commands = to_commands(self.schema, decoded)
        if not truncates.num_rows:
            return commands
        order = [truncates.column(COMMIT_LSN), truncates.column(SEQUENCE)]
        return with_truncates(commands, order, self.schema)


def _mask(values: pa.Array) -> Mask:
    return np.asarray(values.fill_null(False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def _any(masks: Sequence[pa.Array]) -> pa.Array:
    return pa.array(np.logical_or.reduce([_mask(mask) for mask in masks]))
