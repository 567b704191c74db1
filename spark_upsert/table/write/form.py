"""The driver-side part of an envelope (`Form`), made from columns and options.

It raises all errors in options and columns before a row is read, and makes the `Envelope` for
tasks.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.arrow_types import storage_type
from spark_upsert.core.merge_engines import Rule
from spark_upsert.core.names import find_column, find_columns, find_in_schema, refuse_repeated
from spark_upsert.core.schema import Scope, TableSchema
from spark_upsert.errors import SchemaError
from spark_upsert.table.state.fold import as_collected
from spark_upsert.table.write.commands import GONE, Envelope, RowReader, UpsertEnvelope
from spark_upsert.table.write.update_rule import WHOLE_ROWS, UpdateRule


class Form(Protocol):
    """An envelope's rows, described by their columns alone."""

    @property
    def columns(self) -> pa.Schema:
        """The columns stored by default."""
        ...

    @property
    def others(self) -> pa.Schema:
        """Columns stored only if ``columnList`` names them."""
        ...

    @property
    def orders(self) -> pa.Schema:
        """All possible order columns; nested ones by their dotted names."""
        ...

    @property
    def refused(self) -> Mapping[str, SchemaError]:
        """The row columns unsupported by any table, each with its error."""
        ...

    @property
    def keys(self) -> tuple[str, ...]:
        """Default key column names; empty if options must name them."""
        ...

    def ordered_by(self, named: Sequence[str]) -> tuple[str, ...]:
        """Return the order as names from ``orders``, given those in ``sequenceBy``, if any."""
        ...

    @property
    def scope(self) -> Scope:
        """How far that order reaches."""
        ...

    def require_keys(self, keys: Sequence[str]) -> None:
        """Raise `OptionError` if a column cannot be a key, because deletes do not carry it."""
        ...

    def envelope(
        self, schema: TableSchema, columns: pa.Schema, rule: UpdateRule = WHOLE_ROWS
    ) -> Envelope:
        """Return the envelope for a table."""
        ...


@dataclass(frozen=True, kw_only=True)
class UpsertForm:
    """Plain columns."""

    others: pa.Schema
    """The rows' columns."""
    deletes: str | None = None
    """The boolean column marking deletes."""
    nulls_as_deletes: bool = False
    """Whether a row with only null values is a delete."""
    reader: RowReader | None = None
    """Reads flattened change events."""
    keys: tuple[str, ...] = ()
    scope: Scope = Scope.TABLE

    @classmethod
    def of(
        cls,
        rows: pa.Schema,
        deletes: str | None,
        *,
        nulls_as_deletes: bool,
        reader: RowReader | None = None,
    ) -> UpsertForm:
        """Return the form for rows with the given columns."""
        if deletes is not None:
            deletes = find_delete_mark(deletes, rows, may_be_text=reader is not None)
        return cls(others=rows, deletes=deletes, nulls_as_deletes=nulls_as_deletes, reader=reader)

    @property
    def refused(self) -> Mapping[str, SchemaError]:
        """None: a column that came this far can be held, or its type is an error."""
        return {}

    @property
    def columns(self) -> pa.Schema:
        """All columns except the delete mark."""
        return pa.schema([field for field in self.others if field.name != self.deletes])

    @property
    def orders(self) -> pa.Schema:
        """All columns."""
        return self.others

    def ordered_by(self, named: Sequence[str]) -> tuple[str, ...]:
        """Return the given names."""
        return tuple(named)

    def require_keys(self, keys: Sequence[str]) -> None:
        """Accept any column: a row carries them all."""

    def envelope(
        self, schema: TableSchema, columns: pa.Schema, rule: UpdateRule = WHOLE_ROWS
    ) -> UpsertEnvelope:
        """Return the envelope for a table."""
        own_names = find_columns(columns.names, schema.columns.names, role="column")
        sources = dict(zip(own_names, columns.names, strict=True))
        return UpsertEnvelope(
            schema=schema,
            sources=sources,
            order=order_names(schema, self.orders),
            own_order=own_order_names(schema, self.orders, sources),
            deletes=self.deletes,
            nulls_as_deletes=self.nulls_as_deletes,
            reader=self.reader,
            rule=rule,
        )


def find_delete_mark(name: str, columns: pa.Schema, *, may_be_text: bool) -> str:
    """Return the exact name of the column marking deletes (``applyAsDeletes``)."""
    role = "applyAsDeletes column"
    name = find_column(name, columns.names, role=role)
    type_ = columns.field(name).type
    stored = storage_type(type_)
    if not (pa.types.is_boolean(stored) or (may_be_text and pa.types.is_string(stored))):
        raise SchemaError(
            f"the applyAsDeletes column '{name}' must be boolean, found {type_}.",
            hint=f"compute it before the write, for example df.withColumn('{name}', "
            "expr(\"op = 'd'\")).",
            column=name,
            role=role,
        )
    return name


def order_names(schema: TableSchema, orders: pa.Schema) -> tuple[str, ...]:
    """Return the names of a table's order columns in the rows."""
    names = (field.name for field in schema.order)
    return find_columns(names, orders.names, role="sequenceBy column")


def own_order_names(
    schema: TableSchema, orders: pa.Schema, stored: Container[str]
) -> dict[str, str]:
    """Return the row column names for the stored columns' own orders."""
    return {
        column: find_in_schema(source, orders, role=f"sequenceBy.{column} column")
        for column, source in schema.engine.column_order.items()
        if column in stored
    }


Path = tuple[str, ...]


def leaves(fields: pa.Schema | pa.StructType, above: Path = ()) -> Iterator[tuple[Path, pa.Field]]:
    """Yield the non-struct fields, with their paths from the top."""
    for field in fields:
        path = (*above, field.name)
        if pa.types.is_struct(field.type):
            yield from leaves(field.type, path)
        else:
            yield path, field


def dotted(fields: pa.Schema | pa.StructType, above: Path = ()) -> list[pa.Field]:
    """Return the same fields named by their paths."""
    return [field.with_name(".".join(path)) for path, field in leaves(fields, above)]


def at_path(column: pa.Array, path: Path) -> pa.Array:
    """Return a nested field; null where any parent is null.

    The cost depends on the rows, not on the struct's field count, as with `pc.struct_field`.
    """
    for name in path:
        field = column.field(column.type.get_field_index(name))
        column = pc.if_else(column.is_valid(), field, None) if column.null_count else field
    return column


def envelope_of_rows(
    schema: TableSchema,
    incoming: pa.Schema,
    *,
    deletes: str | None = None,
    nulls_as_deletes: bool = False,
    may_lack: bool = False,
    unchanged: Mapping[str, str] = MappingProxyType({}),
) -> Envelope:
    """Return the envelope that converts plain-column rows to commands for an existing table.

    Values are cast to the table's types; an unconvertible value raises when it is read. Order and
    delete mark columns missing from the table are not stored, nor are the boolean columns marking
    values as ``unchanged`` (by value column).
    """
    refuse_repeated(incoming.names)
    types = {field.name.lower(): field.type for field in (*schema.order, *schema.columns)}
    for name in schema.columns.names:
        if schema.engine.rule(name) is Rule.COLLECT:
            types[name.lower()] = types[name.lower()].value_type
    cast = pa.schema(
        [field.with_type(types.get(field.name.lower(), field.type)) for field in incoming]
    )
    form = UpsertForm.of(cast, deletes, nulls_as_deletes=nulls_as_deletes)
    order_names(schema, form.orders)  # Checked first: a missing order is the clearest error.
    rule = UpdateRule.of_marks(schema, incoming, unchanged) if unchanged else WHOLE_ROWS
    columns = as_collected(_stored(schema, form, rule), schema.engine)
    accepted = schema.accept(columns, merge=False, may_lack=may_lack or deletes == GONE)
    assert accepted == schema, "a table is not altered by rows of its own columns"
    return form.envelope(schema, columns, rule)


def _stored(schema: TableSchema, form: UpsertForm, rule: UpdateRule) -> pa.Schema:
    """Return the stored columns: all but those that only order rows, or mark deletes and values."""
    column_names = {name.lower() for name in schema.columns.names}
    special_names = {name.lower() for name in schema.engine.column_order.values()}
    special_names |= {field.name.lower() for field in schema.order}
    special_names |= {name.lower() for name in rule.mark_columns.values()}
    if form.deletes is not None:
        special_names.add(form.deletes.lower())
    special_names -= column_names
    stored = [field for field in form.others if field.name.lower() not in special_names]
    return pa.schema(stored) if stored else form.columns
