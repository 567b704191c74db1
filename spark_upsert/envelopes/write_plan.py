"""The write plan (`plan_write`): how rows become commands, or the change needed before.

Pure: options and columns are checked here, before a row is read. `plan_table_write` plans on a table and
changes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

import pyarrow as pa

from spark_upsert.core.arrow_types import storage_type, widens
from spark_upsert.core.merge_engines import MergeEngine
from spark_upsert.core.names import (
    find_column,
    find_columns,
    has_column,
    joined_names,
    refuse_repeated,
)
from spark_upsert.core.schema import ErrorPolicy, OnUnknown, Scope, TableSchema, Ties
from spark_upsert.core.source_positions import require_ordered
from spark_upsert.envelopes.changelog import ChangelogEnvelope, ChangelogForm
from spark_upsert.envelopes.debezium import FlattenedReader, require_mark_option
from spark_upsert.envelopes.debezium_records import ParsedForm, record_form
from spark_upsert.envelopes.inferred_schema import infer_sides
from spark_upsert.envelopes.kafka import KafkaForm, PayloadFormat, is_json
from spark_upsert.errors import (
    ContentionError,
    OptionError,
    SchemaError,
    TableNotFoundError,
    setting,
)
from spark_upsert.options.write import (
    EnvelopeKind,
    EnvelopeOptions,
    MissingFields,
    Operation,
    Truncates,
    WriteOptions,
)
from spark_upsert.payloads.placeholders import DEFAULT_PLACEHOLDER
from spark_upsert.table.arguments import as_keys, columns_of_deletes, deletes_of
from spark_upsert.table.log.manifest import Manifest, stores_rows
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.published import require_place
from spark_upsert.table.schema_changes import require_free
from spark_upsert.table.state.fold import as_collected
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.commands import GONE, Envelope
from spark_upsert.table.write.form import Form, UpsertForm, envelope_of_rows, order_names
from spark_upsert.table.write.update_rule import UpdateRule, require_name_lists


def create_form(options: EnvelopeOptions, rows: pa.Schema, *, deletes: str | None) -> Form:
    """Return the form for rows with these columns."""
    match options.kind:
        case EnvelopeKind.UPSERT:
            require_mark_option(rows.names, deletes)
            reader = FlattenedReader.of_rows(rows, deletes, options.placeholder)
            return UpsertForm.of(
                rows, deletes, nulls_as_deletes=options.nulls_as_deletes, reader=reader
            )
        case EnvelopeKind.DEBEZIUM if options.payloads["valueFormat"] is None:
            return ParsedForm(rows, options.truncates, options.placeholder or DEFAULT_PLACEHOLDER)
        case EnvelopeKind.DEBEZIUM:
            return record_form(rows, options, infer_sides(options))
        case EnvelopeKind.KAFKA:
            sides = infer_sides(options)
            finds_missing = options.missing_fields is MissingFields.UNCHANGED
            key, value = (
                sides[side].decoder()
                if side in sides
                else PayloadFormat.parse(side, options.payloads, options.schema_ids).decoder()
                for side in ("key", "value")
            )
            required: tuple[str, ...] = ()
            if finds_missing:
                required = tuple(field.name for field in value.fields if not field.nullable)
                declared = PayloadFormat.parse("value", options.payloads, options.schema_ids)
                value = declared.decoder(is_nullable=True)
            require_mark_option(value.fields.names, deletes)
            return KafkaForm(
                rows,
                key,
                value,
                deletes=deletes,
                placeholder=options.placeholder or DEFAULT_PLACEHOLDER,
                is_declared_json="value" not in sides and is_json(options.payloads["valueFormat"]),
                finds_missing=finds_missing,
                required=required,
            )
        case EnvelopeKind.CHANGELOG:
            return ChangelogForm(rows)
        case EnvelopeKind.POSTGRES:
            raise OptionError.invalid(
                "envelope",
                options.kind.value,
                "a stream from PostgreSQL and a path such as '/lake/{_schema}.{_table}'",
            )
        case _:
            assert_never(options.kind)


ERROR_COLUMN = "error"
"""Default column name for inline errors."""

_ALTERATIONS_MAX = 20
"""A write alters the table once. More is needed only if another writer reverts the change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """There is no table: create it, or plan on one to be created by the epoch."""

    schema: TableSchema
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alter:
    """The table lacks columns, types or properties; the write may add them."""

    schema: TableSchema
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """How an epoch's rows become commands, and the version used for planning."""

    base: Manifest
    """Placeholder if there is no table: the epoch creates it."""
    envelope: Envelope
    is_of_keys: bool = False
    """Whether rows are keys, which `commands` turns into deletes for the envelope."""

    def commands(
        self, snapshot: Snapshot, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows' commands."""
        for batch in batches:
            rows = [batch]
            if self.is_of_keys:
                keys = as_keys(self.envelope.schema, batch)
                rows = deletes_of(snapshot, keys).to_batches()
            yield from map(self.envelope.commands, rows)


WriteStep: TypeAlias = Create | Alter | WritePlan


def plan_write(
    manifest: Manifest | None,
    options: WriteOptions,
    incoming: pa.Schema,
    form: Form | None = None,
) -> WriteStep:
    """Plan a write; pure. `manifest` is the table's newest one, None without a table.

    ``form`` describes rows from a source that has no envelope option.
    """
    # Options may choose between names differing in case.
    refuse_repeated(incoming.names, is_exact=True)
    if options.operation is Operation.DELETE:
        return _plan_of_keys(manifest, options, incoming)
    form = form or create_form(options.envelope, incoming, deletes=options.deletes)
    columns = _stored_columns(options, form)
    engine = options.engine
    if engine is not None:
        engine = engine.resolved(columns.names, form.orders.names)
        require_ordered(_stored_fields(form, engine.column_order.values()), is_new=manifest is None)
    columns = as_collected(columns, manifest.schema.engine if manifest else engine or MergeEngine())
    if manifest is None:
        schema = _new_schema(options, form, columns, engine)
        return Create(schema=schema, properties=options.properties)
    _check_identity(options, manifest.schema, form)
    _check_engine(engine, manifest.schema)
    schema = replace(
        manifest.schema,
        ties=options.ties or manifest.schema.ties,
        on_unknown=_on_unknown(options, manifest.schema),
    )
    if _gains_quarantine(options, schema):
        schema = replace(schema, on_error=ErrorPolicy.QUARANTINE)
    schema = _accepted(schema, columns, options, _orders_of(schema, form))
    rule = _update_rule(options.envelope, schema, form)
    if schema != manifest.schema or options.properties.items() - manifest.properties.items():
        return Alter(schema=schema, properties=options.properties)
    envelope = form.envelope(manifest.schema, columns, rule)
    if stores_rows(manifest.properties) and isinstance(envelope, ChangelogEnvelope):
        envelope = replace(envelope, takes_null_keys=True)
    return WritePlan(base=manifest, envelope=envelope)


def _plan_of_keys(
    manifest: Manifest | None, options: WriteOptions, incoming: pa.Schema
) -> WritePlan:
    """Plan a delete by key."""
    if manifest is None:
        raise TableNotFoundError.at(options.path)
    schema = manifest.schema
    _require_keys(options, schema)
    find_columns(schema.keys, incoming.names, role="key column")
    envelope = envelope_of_rows(schema, columns_of_deletes(schema), deletes=GONE)
    return WritePlan(base=manifest, envelope=envelope, is_of_keys=True)


def plan_table_write(
    table: Table,
    options: WriteOptions,
    incoming: pa.Schema,
    *,
    new_table_id: str | None = None,
    head: Manifest | None = None,
    form: Form | None = None,
) -> WritePlan:
    """Plan a write on a table's newest version (`plan_write`).

    If the options allow it, the table is altered first. Without a table, the plan is on a
    placeholder for the epoch to create; its identity is ``new_table_id`` if several plans share it
    (`Table.unborn`). ``head`` is the newest version if the caller has just read it.
    """
    manifest = head or table.log.try_head()
    for _ in range(_ALTERATIONS_MAX):
        step = plan_write(manifest, options, incoming, form)
        match step:
            case WritePlan():
                return step
            case Create(schema=schema, properties=properties):
                if not options.allow_non_empty_path:
                    require_free(table.store)
                if new_table_id is None:  # Among many tables one mirror does not stop the others.
                    require_place(table, properties)
                manifest = table.unborn(schema, properties, table_id=new_table_id)
            case Alter(schema=schema, properties=properties):
                assert manifest is not None
                manifest = table.alter(schema, properties, upon=manifest.schema)
    raise ContentionError(
        f"others altered the table at '{table.store.url}' {_ALTERATIONS_MAX} times in a row "
        "while this write was planned.",
        hint="let only one of the writers set properties; then write again.",
    )


def default_late_rows(options: WriteOptions, usual: LateRows) -> LateRows:
    """Return the policy for late rows: if truncates cause them, they are rejected by default."""
    if options.late_rows is not None:
        return options.late_rows
    return LateRows.REJECT if options.envelope.truncates is Truncates.OVERWRITE else usual


def _available_columns(form: Form) -> pa.Schema:
    """Return all columns that the rows have, stored by default or not."""
    others = [field for field in form.others if not has_column(form.columns, field.name)]
    return pa.schema([*form.columns, *others])


def _list_column(options: EnvelopeOptions, available: pa.Schema) -> str | None:
    """Return the exact name of the column with the names of the columns to set."""
    if options.list_column is None:
        return None
    role = "columnsToUpdate column"
    name = find_column(options.list_column, available.names, role=role)
    require_name_lists(name, available.field(name).type)
    return name


def _update_rule(options: EnvelopeOptions, schema: TableSchema, form: Form) -> UpdateRule:
    """Return which columns a row leaves unchanged, from options checked with the columns."""
    available = _available_columns(form)
    return UpdateRule.of(
        schema,
        available,
        ignores_nulls=options.ignores_nulls,
        columns=options.ignore_nulls_in,
        except_columns=options.ignore_nulls_except,
        list_column=_list_column(options, available),
    )


def _stored_columns(options: WriteOptions, form: Form) -> pa.Schema:
    """Select the table's stored columns."""
    available = _available_columns(form)
    names = available.names
    refused = {name.lower(): error for name, error in form.refused.items()}
    chosen = {name.lower() for name in options.columns}
    not_stored = {name.lower() for name in options.except_columns}
    for name, error in refused.items():
        if name in chosen or not (chosen or name in not_stored):
            raise error
    if options.columns:
        selected = list(find_columns(options.columns, names, role="column of 'columnList'"))
    else:
        own_names = {name.lower() for name in names}
        excluded = [
            name
            for name in options.except_columns
            if name.lower() not in refused or name.lower() in own_names
        ]
        left_out = set(find_columns(excluded, names, role="column of 'exceptColumnList'"))
        left_out.add(_list_column(options.envelope, available) or "")
        selected = [name for name in form.columns.names if name not in left_out]
    return pa.schema([available.field(name) for name in selected])


def _stored_fields(form: Form, names: Iterable[str]) -> list[pa.Field]:
    """Return the rows' order columns with the types in which a table stores them."""
    fields = (form.orders.field(name) for name in names)
    return [field.with_type(storage_type(field.type)) for field in fields]


def _accepted(
    schema: TableSchema, columns: pa.Schema, options: WriteOptions, orders: Sequence[pa.Field]
) -> TableSchema:
    """Return a schema able to store the columns (`TableSchema.accept`)."""
    try:
        return schema.accept(
            columns,
            merge=options.merge_schema,
            may_lack=options.envelope.ignores_nulls,
            orders=orders,
        )
    except SchemaError as error:
        name = error.fields.get("left_out")
        if options.path and name is not None and name not in schema.keys:
            error.advise(_without(name, schema, columns, options))
        raise


def _without(name: str, schema: TableSchema, columns: pa.Schema, options: WriteOptions) -> str:
    """Return a hint with the options for leaving a column out."""
    if options.columns:
        remaining = [column for column in options.columns if column.lower() != name.lower()]
        hint = setting("columnList", joined_names(remaining))
    else:
        hint = setting("exceptColumnList", joined_names([*options.except_columns, name]))
    names = [name.lower() for name in schema.columns.names]
    lacks_one = name.lower() in names or not set(names) <= {n.lower() for n in columns.names}
    more = f" and {setting('mergeSchema', 'true')}" if lacks_one else ""
    return f"To leave '{name}' out, give {hint}{more}."


def _new_schema(
    options: WriteOptions, form: Form, columns: pa.Schema, engine: MergeEngine | None
) -> TableSchema:
    keys = options.keys or form.keys
    if not keys:
        raise OptionError.missing(
            "keys",
            f"there is no table at '{options.path}' yet, and a new one needs the columns that "
            "identify a row",
        )
    ordered_by = form.ordered_by(options.sequence_by)
    names = find_columns(ordered_by, form.orders.names, role="sequenceBy column")
    order = [form.orders.field(name) for name in names]
    form.require_keys(keys)
    require_ordered(_stored_fields(form, [field.name for field in order]), is_new=True)
    if options.scope is not None and not order:
        raise OptionError.missing("sequenceBy", "'sequenceScope' says how far it reaches")
    policy = options.on_error or ErrorPolicy.FAIL
    if options.error_column is not None and policy is not ErrorPolicy.INLINE:
        raise OptionError.missing("onError", "'errorColumn' goes with onError=inline")
    return TableSchema.of(
        columns,
        keys=keys,
        order=order,
        scope=options.scope or (Scope.TABLE if options.sequence_by else form.scope),
        on_error=policy,
        error_column=options.error_column or ERROR_COLUMN,
        engine=engine,
        ties=options.ties,
        hash_prefix=options.hash_prefix or 0,
        on_unknown=_first_on_unknown(options),
        rows=form.orders,
    )


def _first_on_unknown(options: WriteOptions) -> OnUnknown:
    """Return the policy for unknown values in a new table."""
    if options.on_unknown is not None:
        return options.on_unknown
    envelope = options.envelope
    ignores_nulls = (
        envelope.ignores_nulls or envelope.ignore_nulls_in or envelope.ignore_nulls_except
    )
    # An ignored null is no omission: the row of a new key has null there.
    return OnUnknown.NULL if ignores_nulls else OnUnknown.FAIL


def _on_unknown(options: WriteOptions, schema: TableSchema) -> OnUnknown:
    """Return a table's policy for unknown values, changed if the options say so."""
    policy = options.on_unknown
    if policy is None:
        return schema.on_unknown
    if not schema.engine.folds:
        return policy
    if policy is not OnUnknown.NULL:
        raise OptionError.conflict(
            f"onUnknown={policy.value}",
            f"mergeEngine={schema.engine.kind.value}",
            why="it shows null for a value that no row has",
            hint="drop 'onUnknown', or use mergeEngine=deduplicate.",
        )
    return schema.on_unknown


def _check_identity(options: WriteOptions, schema: TableSchema, form: Form) -> None:
    """Raise if keys, order, ties or an error policy differ from the table's own."""
    form.require_keys(schema.keys)
    require_ordered(schema.order, is_new=False)
    _check_policy(options, schema)
    _require_keys(options, schema)
    if options.hash_prefix not in (None, schema.hash_prefix):
        raise OptionError.fixed("hashPrefix", str(options.hash_prefix), str(schema.hash_prefix))
    stored_order = ",".join(field.name for field in schema.order)
    if options.sequence_by:
        sequence = ",".join(form.ordered_by(options.sequence_by))
        if sequence.lower() != stored_order.lower():
            raise OptionError.fixed("sequenceBy", sequence, stored_order)
    if options.scope is not None and options.scope is not schema.scope:
        raise OptionError.fixed("sequenceScope", options.scope.value, schema.scope.value)
    if options.ties not in (None, schema.ties) and Ties.FIRST in (options.ties, schema.ties):
        assert options.ties is not None
        raise OptionError.fixed(
            "ties",
            options.ties.value,
            schema.ties.value,
            why="rows that lost are gone (only 'last' and 'fail' may become each other)",
        )
    for field, sequence in zip(schema.order, _orders_of(schema, form), strict=True):
        given_type = storage_type(sequence.type)
        stored = storage_type(field.type)
        if not (
            widens(given_type, stored) or (options.merge_schema and widens(stored, given_type))
        ):
            raise SchemaError(
                f"the sequenceBy column '{field.name}' is {field.type} in the table, but "
                f"{given_type} in the rows.",
                hint=f"give {setting('mergeSchema', 'true')}."
                if widens(field.type, given_type)
                else f"cast it to {field.type} before the write.",
                column=field.name,
            )


def _orders_of(schema: TableSchema, form: Form) -> list[pa.Field]:
    """Return the rows' order columns, under the table's names."""
    names = order_names(schema, form.orders)
    return [
        form.orders.field(name).with_name(order_field.name)
        for order_field, name in zip(schema.order, names, strict=True)
    ]


def _require_keys(options: WriteOptions, schema: TableSchema) -> None:
    if options.keys:
        keys = find_columns(options.keys, schema.columns.names, role="key column")
        if keys != schema.keys:
            raise OptionError.fixed("keys", ",".join(options.keys), ",".join(schema.keys))


def _check_engine(engine: MergeEngine | None, schema: TableSchema) -> None:
    """Raise if a merge engine differs from the table's own."""
    if engine is not None and engine != schema.engine:
        raise OptionError.fixed("mergeEngine", str(engine), str(schema.engine))


def _gains_quarantine(options: WriteOptions, schema: TableSchema) -> bool:
    """Return whether a table so far failing on errors is to store them as a quarantine.

    Existing runs stay valid: they have no errors. A quarantine cannot end, because its error
    entries stay; an error column cannot be added or removed, because it is a table column.
    """
    is_asked = options.on_error is ErrorPolicy.QUARANTINE
    return is_asked and schema.on_error is ErrorPolicy.FAIL


def _check_policy(options: WriteOptions, schema: TableSchema) -> None:
    policy, own_policy = options.on_error, schema.on_error
    if policy not in (None, own_policy) and not _gains_quarantine(options, schema):
        assert policy is not None
        raise OptionError.fixed(
            "onError",
            policy.value,
            own_policy.value,
            why="it decides what the table stores (only 'fail' may become 'quarantine')",
        )
    if options.error_column not in (None, schema.error_column):
        assert options.error_column is not None
        raise OptionError.fixed("errorColumn", options.error_column, schema.error_column)
