"""Rows to commands: casts, envelopes, and the error policy for faulty rows.

A command is (key, values or tombstone, order key). The stored reason of a fault depends on the row
alone, so a replay writes the same entry (docs/adr/0009).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.casts import range_of, shown_value, to_readable, try_convert
from spark_upsert.core.key_hash import RAW_KEY_SEED, hash_keys
from spark_upsert.core.keys import Mask, Positions, is_text
from spark_upsert.core.merge_engines import Engine, Rule
from spark_upsert.core.schema import (
    ERROR,
    ERROR_TYPE,
    HASH,
    PUT,
    RAW_KEY,
    TOMBSTONE,
    VALUE_RESET,
    VALUE_SET,
    VALUE_UNCHANGED,
    ErrorPolicy,
    TableSchema,
    kept_column,
)
from spark_upsert.core.source_positions import logs_in, order_keys
from spark_upsert.errors import DataError, OptionError, SchemaError, setting
from spark_upsert.table.state.fold import collected, contributions
from spark_upsert.table.write.update_rule import WHOLE_ROWS, UpdateRule


@dataclass(frozen=True, slots=True)
class FittedColumns:
    """Converted columns, null on failure. Reasons are strings, null for valid rows; None: no
    failure.

    A reason depends on the column alone, so a replay yields the same one.
    """

    columns: Mapping[str, pa.Array]
    """The table's columns in the rows."""
    order: Sequence[pa.Array]
    own_order: Mapping[str, pa.Array]
    bad_keys: pa.Array | None
    bad_values: pa.Array | None
    bad_order: pa.Array | None


def fit(
    schema: TableSchema,
    columns: Mapping[str, pa.Array],
    order: Sequence[pa.Array],
    own_order: Mapping[str, pa.Array],
) -> FittedColumns:
    """Convert the columns of n rows; parameters as in `DecodedRows`."""
    keys, values, ranks = _Reasons(), _Reasons(), _Reasons()
    converted_columns = {}
    for target in schema.columns:
        column = columns.get(target.name)
        if column is not None:
            reasons = keys if target.name in schema.keys else values
            converted_columns[target.name] = _fit(column, target, schema, reasons)
    found_order = [
        _converted(column, order_field, order_field.type, ranks)
        for column, order_field in zip(order, schema.order, strict=True)
    ]
    # A missing column order affects its column only: it makes a bad value.
    found_own = {
        name: _converted(column, schema.order[0], schema.order[0].type, values)
        for name, column in own_order.items()
    }
    return FittedColumns(
        converted_columns, found_order, found_own, keys.texts, values.texts, ranks.texts
    )


class _Reasons:
    """Conversion failure reasons per row; the first reason is retained."""

    def __init__(self) -> None:
        self.texts: pa.Array | None = None

    def note(self, bad: Mask, own: pa.Field, type_: pa.DataType) -> None:
        if not bad.any():
            return
        reason = f"column '{own.name}' holds what is no {type_}{range_of(type_)}"
        reasons = pc.if_else(pa.array(bad), reason, pa.scalar(None, pa.string()))
        self.texts = reasons if self.texts is None else pc.coalesce(self.texts, reasons)


def _fit(column: pa.Array, own: pa.Field, schema: TableSchema, reasons: _Reasons) -> pa.Array:
    """Return a column cast to the table column's type."""
    is_collected = schema.engine.rule(own.name) is Rule.COLLECT
    if is_collected and not pa.types.is_list(column.type):
        return collected(_converted(column, own, own.type.value_type, reasons), own)
    return _converted(column, own, own.type, reasons)


def _converted(column: pa.Array, own: pa.Field, type_: pa.DataType, reasons: _Reasons) -> pa.Array:
    try:
        converted, bad = try_convert(column, type_)
    except pa.ArrowException as error:
        raise SchemaError(
            f"column '{own.name}' of type {column.type!s:.200} cannot be stored as {type_!s:.200}: "
            f"{error}.",
            hint="cast the column before the write.",
            column=own.name,
        ) from error
    reasons.note(bad, own, type_)
    return converted


_EXAMPLE_CHARS = 80
"""Maximum characters of a bad value in an error message."""


_SKIPPED = b"upsertflow.skipped"
"""Metadata field on a command batch with the non-command row count."""

_GONE = "the record has no value"

GONE = "__gone"
"""The column marking deletes by keys alone (`table.arguments`); the name is reserved."""

_BY_KEYS = b"upsertflow.byKeys"
"""Metadata field marking a command batch as deletes by keys alone."""


class Envelope(Protocol):
    """Converts row batches to command batches. Pure; pickled to the tasks."""

    @property
    def schema(self) -> TableSchema:
        """The table's."""
        ...

    def commands(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch's commands, in row order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRows:
    """An envelope's decoding results for n rows. Arrays have length n, and null for no value."""

    columns: Mapping[str, pa.Array]
    """The table's columns, in any type castable to theirs; those left out are null."""
    order: Sequence[pa.Array]
    """The order key, one array per ``sequenceBy`` column."""
    tombstones: Mask
    raw_values: Callable[[Positions], pa.Array]
    """Returns rows' original values as binary. Called for bad rows only."""
    own_order: Mapping[str, pa.Array] = field(default_factory=dict)
    """Order keys for columns with a column order."""
    bad_values: pa.Array | None = None
    """Why a value could not be decoded, as text; None if all could."""
    bad_keys: pa.Array | None = None
    """Why a key could not be decoded, as text; its key columns must be null."""
    raw_keys: pa.Array | None = None
    """The keys as they came, as binary."""
    needs_no_order: Mask | None = None
    """Tombstones removing only an error, on arrival (`write.ties`); only for a quarantine."""
    bad_order: pa.Array | None = None
    """Why an order key is none, as text; it must be null."""
    unchanged: Mapping[str, Mask] = field(default_factory=dict)
    """Rows without a value from the source, by value column; the column is null there. Ignored in
    tombstones and bad rows."""
    sets_nulls: bool = False
    """Whether the source tells null from a value that it did not send, so that null is a value with
    any merge engine. Columns that the rows lack are not sent."""
    moved_to: Sequence[pa.Array] | None = None
    """The new keys of rows that move to another key, by key column; null elsewhere. Only deletes
    of the old keys count. None: no moves."""
    resets: Mask | None = None
    """Rows with unchanged columns whose values are unknown: those of an older row of the key are
    not theirs. None: no rows. Rows without unchanged columns may be included (`apply_rule`)."""
    ignores_null_deletes: bool = False
    """Whether a delete for a null key is harmless under any policy."""
    takes_null_keys: bool = False
    """Whether null is a valid key: a group key in a materialized view."""
    hint: str = ""
    """The hint about bad values and keys, if it is not the usual one."""


def apply_rule(
    schema: TableSchema,
    decoded: DecodedRows,
    rule: UpdateRule,
    lists: pa.Array | None,
    marks: Mapping[str, pa.Array] = MappingProxyType({}),
) -> DecodedRows:
    """Add the columns that rows leave unchanged by a rule (`UpdateRule.unchanged`)."""
    if rule == WHOLE_ROWS and decoded.resets is None:
        return decoded
    masks, reasons = rule.unchanged(schema, decoded.columns, lists, marks)
    columns, unchanged = dict(decoded.columns), dict(decoded.unchanged)
    for name, where in masks.items():
        unchanged[name] = unchanged[name] | where if name in unchanged else where
        if name in columns:
            columns[name] = _without(columns[name], where)
    resets = decoded.resets
    if resets is not None:
        is_partial = np.logical_or.reduce([~resets & False, *unchanged.values()])
        resets = resets & is_partial if (resets & is_partial).any() else None
    return replace(
        decoded,
        columns=columns,
        unchanged=unchanged,
        resets=resets,
        sets_nulls=decoded.sets_nulls or lists is not None or bool(marks),
        bad_values=_first(reasons, decoded.bad_values),
    )


class _Fault(IntEnum):
    """A row's first applicable fault.

    ``fail`` refuses all, ``inline`` accepts `BAD_VALUE` as a row, ``quarantine`` stores an error
    entry: at the one identity of all null keys, at the bytes of an undecodable key, else at the
    key. A delete for a null or undecodable key clears that identity's error entry.

    Source: Materialize, decode stage and ``UpsertKey`` (``render/sources.rs``, ``upsert.rs``).
    """

    NONE = 0
    NULL_KEY = 1
    BAD_KEY = 2
    LOST = 3
    """The value could not be decoded, and the order key is in it."""
    NULL_ORDER = 4
    BAD_VALUE = 5
    BAD_ORDER = 6


_HINTS = {
    _Fault.NULL_KEY: "drop such rows before the write, or choose other 'keys'",
    _Fault.BAD_KEY: "correct what writes the keys, or the declared 'keyFormat' and 'keySchema'",
    _Fault.NULL_ORDER: "drop such rows before the write, or fill the column",
    **dict.fromkeys(
        (_Fault.LOST, _Fault.BAD_VALUE, _Fault.BAD_ORDER),
        "correct what writes the values, or their declared format",
    ),
}


_TOLD = {
    _Fault.BAD_KEY: "a key is not what is declared",
    _Fault.BAD_ORDER: "an order key is not what is declared",
    **dict.fromkeys((_Fault.LOST, _Fault.BAD_VALUE), "a value is not what is declared"),
}
"""Fault messages without the payload, for use where rows must not be shown."""

_COVERED = {
    ErrorPolicy.FAIL: (),
    ErrorPolicy.INLINE: (_Fault.BAD_VALUE,),
    ErrorPolicy.QUARANTINE: tuple(_Fault),
}
"""The faults tolerated by each policy."""


@dataclass(frozen=True, slots=True)
class _Faults:
    """Which rows cannot be applied, and why."""

    kinds: npt.NDArray[np.int8]
    reasons: pa.Array

    def __bool__(self) -> bool:
        return bool(self.kinds.any())


def with_skipped(commands: pa.RecordBatch, count: int) -> pa.RecordBatch:
    """Attach the accompanying non-command row count to commands (any number)."""
    if not count:
        return commands
    metadata = commands.schema.metadata or {}
    return commands.replace_schema_metadata({**metadata, _SKIPPED: str(count).encode()})


def skipped_in(commands: pa.RecordBatch) -> int:
    """Return the non-command row count attached to commands (`with_skipped`)."""
    return int((commands.schema.metadata or {}).get(_SKIPPED, 0))


def are_by_keys(commands: pa.RecordBatch) -> bool:
    """Return whether commands are deletes by keys alone: those marked by `GONE`.

    Each deliberately has the order key of its deleted row, so it has no ties.
    """
    return _BY_KEYS in (commands.schema.metadata or {})


def logs_of(commands: pa.RecordBatch, schema: TableSchema) -> frozenset[str]:
    """Return the names of the binlogs ordering commands (`core.source_positions`)."""
    names = schema.order_columns[len(schema.order_columns) - len(schema.order) :]
    return logs_in([commands.column(name) for name in names], schema.order)


def to_commands(schema: TableSchema, decoded: DecodedRows) -> pa.RecordBatch:
    """Return the commands for decoded rows under the table's error policy."""
    count = len(decoded.tombstones)
    decoded = _fitted(schema, decoded)
    columns = {
        target.name: decoded.columns[target.name]
        if target.name in decoded.columns
        else pa.nulls(count, target.type)
        for target in schema.columns
    }
    faults = _faults(schema, columns, decoded)
    diffs = np.where(decoded.tombstones, TOMBSTONE, PUT).astype(np.int8)
    if faults:
        _require_covered(schema, columns, decoded, faults)
        is_bad = faults.kinds != _Fault.NONE
        for name in schema.values:
            columns[name] = _without(columns[name], is_bad)
        if schema.has_quarantine:
            diffs[is_bad] = ERROR
    if faults and schema.error_column is not None:
        columns[schema.error_column] = pa.StructArray.from_arrays(
            [faults.reasons], fields=list(ERROR_TYPE.fields), mask=faults.reasons.is_null()
        )
    kinds = _mark_kinds(schema, decoded, diffs)
    schema = schema.with_unchanged(kinds)
    for name, kinds_of_rows in kinds.items():
        columns[name] = _without(columns[name], kinds_of_rows != VALUE_SET)
    order = [filled_order(column) for column in decoded.order]
    raw_keys = _raw_identity(decoded) if schema.has_quarantine else None
    known_order = _known_order(schema, decoded.order)
    are_set = _set_columns(schema, decoded, diffs)
    commands = pa.RecordBatch.from_arrays(
        [
            pa.array(_hashes(schema, [columns[key] for key in schema.keys], raw_keys)),
            *columns.values(),
            *known_order,
            *order,
            pa.array(diffs),
            *(
                []
                if raw_keys is None
                else _quarantine_columns(raw_keys, decoded, faults, known_order)
            ),
            *contributions(schema, columns, order, diffs, decoded.own_order, are_set),
            *_mark_columns(schema, kinds, count),
        ],
        schema=schema.run,
    )
    if are_set is not None:
        nulls = [n for n, is_set in are_set.items() if (is_set & ~_valid(columns[n], count)).any()]
        commands = _with_set_nulls(commands, nulls)
    if decoded.moved_to is None:
        return commands
    return _with_moves(commands, decoded.moved_to, diffs == TOMBSTONE, schema)


def _set_columns(
    schema: TableSchema, decoded: DecodedRows, diffs: npt.NDArray[np.int8]
) -> dict[str, Mask] | None:
    """Return the rows that set a column, also to null, by column; None: those with a value.

    For partial updates in an order: only with an order there is a place for the mark.
    """
    is_partial = schema.engine.kind is Engine.PARTIAL_UPDATE and schema.order
    if not (decoded.sets_nulls and is_partial):
        return None
    nowhere, puts = np.zeros(len(diffs), dtype=np.bool_), diffs == PUT
    are_set = {}
    for name in schema.values:
        column = decoded.columns.get(name)
        if column is None:
            are_set[name] = nowhere
        elif name in schema.engine.column_order:  # Its null has no order of its own.
            are_set[name] = puts & _valid(column, len(diffs))
        else:
            are_set[name] = puts & ~decoded.unchanged.get(name, nowhere)
    return are_set


_SET_NULLS = b"upsertflow.setNulls"
"""Metadata field on a command batch with the columns that partial updates set to null."""


def _with_set_nulls(commands: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    if not names:
        return commands
    metadata = {**(commands.schema.metadata or {}), _SET_NULLS: json.dumps(names).encode()}
    return commands.replace_schema_metadata(metadata)


_MOVED_TO = "__to_"


def moved_to_column(key: str) -> str:
    """Return the name for a column with moved rows' new keys in a command batch; never stored."""
    return f"{_MOVED_TO}{key}"


def _with_moves(
    commands: pa.RecordBatch, moved_to: Sequence[pa.Array], deletes: Mask, schema: TableSchema
) -> pa.RecordBatch:
    """Attach moved rows' new keys to the deletes of their old keys (`table.write.moves`)."""
    for key, values in zip(schema.keys, moved_to, strict=True):
        own = schema.columns.field(key)
        fitted = _without(_converted(values, own, own.type, _Reasons()), ~deletes)
        commands = commands.append_column(moved_to_column(key), fitted)
    return commands


def _mark_kinds(
    schema: TableSchema, decoded: DecodedRows, diffs: npt.NDArray[np.int8]
) -> dict[str, npt.NDArray[np.int8]]:
    """Return what rows say of the columns that some of them leave unchanged (`VALUE_SET` etc.)."""
    if schema.engine.multiplicity is not None and decoded.unchanged:
        raise SchemaError(
            "a table of contributions takes whole rows, and some leave values unchanged.",
            hint="let a view make the table ('keep').",
        )
    if schema.engine.folds:
        return {}  # An unchanged value is null, and null adds nothing.
    is_reset = np.zeros(len(diffs), np.bool_) if decoded.resets is None else decoded.resets
    if schema.engine.kind is Engine.FIRST_ROW:
        is_reset = np.ones(len(diffs), np.bool_)  # Nothing is below a key's first row.
    kinds = {}
    for name, is_unchanged in decoded.unchanged.items():
        where = is_unchanged & (diffs == PUT)
        if where.any():
            kind = np.where(is_reset, VALUE_RESET, VALUE_UNCHANGED)
            kinds[name] = np.where(where, kind, VALUE_SET).astype(np.int8)
    return kinds


def _mark_columns(
    schema: TableSchema, kinds: Mapping[str, npt.NDArray[np.int8]], count: int
) -> list[pa.Array]:
    """Return the columns that mark unchanged values, in `TableSchema.run` order."""
    marks = []
    for name, mark in schema.run_marks.items():
        own = kinds.get(name.removeprefix(kept_column("")))
        is_plain = own is None or not name.startswith(kept_column(""))
        marks.append(
            pa.nulls(count, mark.type) if is_plain else pa.array(own, mask=own == VALUE_SET)
        )
    return marks


def columns_left_unchanged(commands: pa.RecordBatch) -> list[str]:
    """Return the columns for which a command batch has marks, or nulls set by partial updates."""
    prefix = kept_column("")
    nulls = (commands.schema.metadata or {}).get(_SET_NULLS)
    if nulls is not None:
        names: list[str] = json.loads(nulls)
        return names
    return [name.removeprefix(prefix) for name in commands.schema.names if name.startswith(prefix)]


def _fitted(schema: TableSchema, decoded: DecodedRows) -> DecodedRows:
    """Return rows in the table's types; unconvertible values count as undecodable."""
    fitted = fit(schema, decoded.columns, decoded.order, decoded.own_order)
    order, bad_order = order_keys(schema.order, fitted.order, schema.binlogs)
    own_fields = [
        schema.order[0].with_name(schema.engine.column_order[n]) for n in fitted.own_order
    ]
    own_order, bad_own_order = order_keys(
        own_fields, list(fitted.own_order.values()), schema.binlogs
    )
    raw_keys = decoded.raw_keys
    if fitted.bad_keys is not None and raw_keys is None:
        keys = {key: decoded.columns[key] for key in schema.keys if key in decoded.columns}
        bad = _valid(fitted.bad_keys, len(fitted.bad_keys))
        raw_keys = _at(bad, rows_as_json(pa.record_batch(keys), np.flatnonzero(bad)))
    return replace(
        decoded,
        columns=fitted.columns,
        order=order,
        own_order=dict(zip(fitted.own_order, own_order, strict=True)),
        bad_keys=_first(decoded.bad_keys, fitted.bad_keys),
        bad_values=_first(_first(decoded.bad_values, fitted.bad_values), bad_own_order),
        bad_order=_first(_first(decoded.bad_order, fitted.bad_order), bad_order),
        raw_keys=raw_keys,
    )


def _first(reasons: pa.Array | None, others: pa.Array | None) -> pa.Array | None:
    if reasons is None or others is None:
        return others if reasons is None else reasons
    return pc.coalesce(reasons, others)


def _at(where: Mask, values: pa.Array) -> pa.Array:
    """Return values at a mask's rows, null at others."""
    row_indices = np.zeros(len(where), dtype=np.int64)
    row_indices[where] = np.arange(len(values))
    return values.take(pa.array(row_indices, mask=~where))


def _faults(schema: TableSchema, columns: Mapping[str, pa.Array], decoded: DecodedRows) -> _Faults:
    """Determine each row's fault; policies are applied elsewhere."""
    count = len(decoded.tombstones)
    is_bad_key = _valid(decoded.bad_keys, count)
    is_null_key = _all_null([columns[key] for key in schema.keys]) & ~is_bad_key
    # With a quarantine such a delete clears an entry. Its order key cannot be missed.
    clears = decoded.tombstones & (is_bad_key if schema.has_quarantine else False)
    if schema.has_quarantine or decoded.ignores_null_deletes:
        clears = clears | (decoded.tombstones & is_null_key)
    if decoded.needs_no_order is not None:
        clears = clears | decoded.needs_no_order
    names = ", ".join(f"'{key}'" for key in schema.keys)
    kinds = np.zeros(count, dtype=np.int8)
    reasons = pa.nulls(count, pa.string())

    def note(kind: _Fault, where: Mask, reason: pa.Array | str) -> None:
        nonlocal reasons
        fresh = where & ~clears & (kinds == _Fault.NONE)
        if bool(fresh.any()):
            kinds[fresh] = kind
            reasons = pc.if_else(pa.array(fresh), reason, reasons)

    if not decoded.takes_null_keys:
        note(_Fault.NULL_KEY, is_null_key, f"the key {names} is null")
    if decoded.bad_keys is not None:
        note(_Fault.BAD_KEY, is_bad_key, decoded.bad_keys)
    if decoded.bad_order is not None:
        note(_Fault.BAD_ORDER, _valid(decoded.bad_order, count), decoded.bad_order)
    is_bad = _valid(decoded.bad_values, count) & ~decoded.tombstones
    for order_field, column in zip(schema.order, decoded.order, strict=True):
        is_null = ~_valid(column, count)
        if decoded.bad_values is not None:
            note(_Fault.LOST, is_null & is_bad, decoded.bad_values)
        note(_Fault.NULL_ORDER, is_null, f"the sequenceBy column '{order_field.name}' is null")
    if decoded.bad_values is not None:
        note(_Fault.BAD_VALUE, is_bad, decoded.bad_values)
    return _Faults(kinds, reasons)


def _require_covered(
    schema: TableSchema, columns: Mapping[str, pa.Array], decoded: DecodedRows, faults: _Faults
) -> None:
    """Raise unless the policy covers all faults."""
    fatal = ~np.isin(faults.kinds, [_Fault.NONE, *_COVERED[schema.on_error]])
    rows = np.flatnonzero(fatal)
    if not len(rows):
        return
    first = int(rows[0])
    kind, reason = _Fault(faults.kinds[first]), faults.reasons[first].as_py()
    alike = fatal & pc.equal(faults.reasons, reason).fill_null(False).to_numpy(zero_copy_only=False)
    uncovered = int(fatal.sum() - alike.sum())
    more = f"; {uncovered} more rows cannot be applied for other reasons" if uncovered else ""
    keys = (f"{key}={columns[key][first].as_py()!r}" for key in schema.keys)
    where = [] if kind in (_Fault.NULL_KEY, _Fault.BAD_KEY) else list(keys)
    if kind is _Fault.BAD_KEY and decoded.raw_keys is not None:
        where = [f"key {_excerpt(decoded.raw_keys[first])}"]
    raw = decoded.raw_values(rows[:1])[0]
    where.append(f"value {_excerpt(raw)}")
    is_ours = kind in (_Fault.NULL_KEY, _Fault.NULL_ORDER)
    hint = _HINTS[kind] if is_ours else decoded.hint or _HINTS[kind]
    counts = f"{int(alike.sum())} of {len(fatal)} rows of a batch"
    raise DataError(
        f"{reason} in {counts} (for example {', '.join(where)}){more}. Nothing was committed.",
        hint=f"{hint}{_quarantine_hint(schema)}.",
        reason=reason,
        told=f"{reason if is_ours else _TOLD[kind]} in {counts}{more}. Nothing was committed.",
    )


def _quarantine_hint(schema: TableSchema) -> str:
    """Return the phrase on how rejected rows can be retained, if the table supports it."""
    if schema.engine.kind is not Engine.DEDUPLICATE:
        return ""  # No key has an entry for an error to replace.
    quarantine = setting("onError", "quarantine")
    if schema.on_error is ErrorPolicy.INLINE:
        return (
            f"; onError=inline covers values only; a new table made with {quarantine} keeps such "
            "rows apart and goes on"
        )
    return f"; a table with {quarantine} keeps such rows apart and goes on"


def _excerpt(raw: pa.Scalar) -> str:
    if not raw.is_valid:
        return "null"
    text = raw.as_buffer().to_pybytes()[: _EXAMPLE_CHARS + 1].decode(errors="backslashreplace")
    return text if len(text) <= _EXAMPLE_CHARS else f"{text[:_EXAMPLE_CHARS]}..."


def _raw_identity(decoded: DecodedRows) -> pa.Array:
    """Return the bytes of undecodable keys, null for all others."""
    count = len(decoded.tombstones)
    if decoded.bad_keys is None or decoded.raw_keys is None:
        return pa.nulls(count, pa.binary())
    return _without(decoded.raw_keys.cast(pa.binary()), ~_valid(decoded.bad_keys, count))


def rehashed(schema: TableSchema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return commands with their keys' hashes in a table."""
    raw_keys = batch.column(RAW_KEY) if schema.has_quarantine else None
    hashes = _hashes(schema, [batch.column(key) for key in schema.keys], raw_keys)
    at = batch.schema.get_field_index(HASH)
    return batch.set_column(at, batch.schema.field(at), pa.array(hashes))


def _hashes(
    schema: TableSchema, keys: list[pa.Array], raw_keys: pa.Array | None
) -> npt.NDArray[np.uint64]:
    hashes = hash_keys(keys, seed=schema.hash_seed, prefix=schema.hash_prefix)
    if raw_keys is not None and raw_keys.null_count < len(raw_keys):
        bad = np.flatnonzero(_valid(raw_keys, len(raw_keys)))
        raw = raw_keys.take(pa.array(bad))
        hashes[bad] = hash_keys([raw], seed=schema.hash_seed ^ RAW_KEY_SEED)
    return hashes


def _known_order(schema: TableSchema, order: Sequence[pa.Array]) -> list[pa.Array]:
    """Return the column marking rows without an order key; they precede all others."""
    if len(schema.order_fields) == len(schema.order):
        return []
    return [pa.array(np.logical_and.reduce([_valid(column, len(column)) for column in order]))]


def _quarantine_columns(
    raw_keys: pa.Array, decoded: DecodedRows, faults: _Faults, known_order: Sequence[pa.Array]
) -> list[pa.Array]:
    """Return the quarantine-only columns, in `TableSchema.run` order.

    A tombstone removing an error on arrival also has a reason (`have_reasons`).
    """
    count = len(raw_keys)
    bad = np.flatnonzero(faults.kinds)
    values = pa.nulls(count, pa.binary())
    if len(bad):
        values = _at(faults.kinds != _Fault.NONE, decoded.raw_values(bad).cast(pa.binary()))
    reasons = faults.reasons
    if decoded.needs_no_order is not None and decoded.needs_no_order.any():
        arrives = pc.and_not(pa.array(decoded.needs_no_order), *known_order or [True])
        reasons = pc.coalesce(reasons, pc.if_else(arrives, _GONE, None))
    return [raw_keys, values, reasons, pa.nulls(count, pa.uint64())]


def _all_null(columns: Sequence[pa.Array]) -> Mask:
    return ~np.logical_or.reduce([_valid(column, len(column)) for column in columns])


def _valid(column: pa.Array | None, count: int) -> Mask:
    """Return where a column has a value; nowhere if there is no column."""
    if column is None:
        return np.zeros(count, dtype=np.bool_)
    if column.null_count == 0:
        return np.ones(count, dtype=np.bool_)
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)


def _without(column: pa.Array, where: Mask) -> pa.Array:
    """Return a column with nulls put in; works for every type."""
    return column.take(pa.array(np.arange(len(column)), mask=where)) if where.any() else column


def filled_order(order: pa.Array) -> pa.Array:
    """Return an order key with nulls replaced by a fixed value: the stored column has no nulls.

    `_known_order` marks the affected rows, except deletes for the null key. For
    log positions the value is the least.
    """
    if order.null_count == 0:
        return order
    zero: Any = ("" if pa.types.is_string(order.type) else b"") if is_text(order.type) else 0
    zero = False if pa.types.is_boolean(order.type) else zero
    return order.fill_null(pa.array([zero], type=order.type)[0])


def rows_as_json(batch: pa.RecordBatch, rows: Positions) -> pa.Array:
    """Return selected batch rows as JSON text, in binary.

    A row-wise loop, for quarantined rows: the raw form for rows without another one. About 5 us per
    row with three columns.
    """
    columns = (_read(column, rows) for column in batch.columns)
    texts = (
        json.dumps(
            dict(zip(batch.schema.names, row, strict=True)), default=_as_text, ensure_ascii=False
        )
        for row in zip(*columns, strict=True)
    )
    return pa.array([text.encode(errors="backslashreplace") for text in texts], pa.binary())


def _read(column: pa.Array, rows: Positions) -> list[Any]:
    """Return values as Python objects; a value without a Python type becomes a string."""
    read_column, bad = to_readable(column)
    values: list[Any] = read_column.take(pa.array(rows)).to_pylist()
    if not pa.types.is_nested(column.type):
        for row in np.flatnonzero(bad[rows]).tolist():
            values[row] = shown_value(column[int(rows[row])])
    return values


def _as_text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRows:
    """Results of a `RowReader` for n rows; fields as in `DecodedRows`."""

    columns: Mapping[str, pa.Array]
    tombstones: Mask | None
    """None if the rows have no marks."""
    bad_values: pa.Array | None
    bad_keys: pa.Array | None
    unchanged: Mapping[str, Mask]
    resets: Mask | None


class RowReader(Protocol):
    """Decodes rows in another system's format. Pickled to the tasks."""

    @property
    def hint(self) -> str:
        """The hint about rows that cannot be applied."""
        ...

    @property
    def operations(self) -> str | None:
        """Column with the operation that wrote a row; None if the rows have none."""
        ...

    def read(
        self,
        schema: TableSchema,
        columns: Mapping[str, pa.Array],
        marks: pa.Array | None,
        operations: pa.Array | None,
    ) -> ReadRows:
        """Decode columns, given the delete marks and operations, if the rows have them."""
        ...


@dataclass(frozen=True, kw_only=True)
class UpsertEnvelope:
    """The envelope for plain columns.

    A row is a tombstone if the column ``deletes`` is true. A row of nulls is a row, unless
    ``nulls_as_deletes``: then it is a tombstone if all of its values except the order columns
    are null.

    Parameters
    ----------
    schema : TableSchema
    sources : mapping of str to str
        For each table column present in the rows, its name in the rows.
    order : tuple of str
        Order column names in the rows.
    deletes : str or None
        Name of the boolean column marking tombstones.
    own_order : mapping of str to str
        For each row column with a column order, that order's name.
    nulls_as_deletes : bool
        Whether a row without values is a tombstone. Excludes ``deletes``.
    reader : RowReader or None
        Decodes flattened change events; None for plain rows.
    rule : UpdateRule
        The columns that a row leaves unchanged.
    """

    schema: TableSchema
    sources: Mapping[str, str]
    order: tuple[str, ...]
    deletes: str | None
    own_order: Mapping[str, str] = field(default_factory=dict)
    nulls_as_deletes: bool = False
    reader: RowReader | None = None
    rule: UpdateRule = WHOLE_ROWS

    def __post_init__(self) -> None:
        if not self.nulls_as_deletes:
            return
        if self.deletes is not None:
            raise OptionError.conflict(
                "nullsAsDeletes",
                f"applyAsDeletes={self.deletes}",
                why="one says that a row of nulls is a delete, the other that it is a row",
            )
        if not self._value_columns:
            raise OptionError(
                "option 'nullsAsDeletes' needs a column whose null can say a delete, found none "
                "beside the keys and the order.",
                hint="mark the deletes in a boolean column, and name it by 'applyAsDeletes'.",
                option="nullsAsDeletes",
            )

    @property
    def _value_columns(self) -> list[str]:
        """The row columns, all null in a row without values."""
        given_names = (name for name in self.schema.values if name in self.sources)
        return [name for name in given_names if self.sources[name] not in self.order]

    def commands(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch's commands, one per row (`Envelope.commands`)."""
        schema = self.schema
        columns = {name: batch.column(source) for name, source in self.sources.items()}
        decoded = DecodedRows(
            columns=columns,
            order=[batch.column(name) for name in self.order],
            tombstones=self._tombstones(batch, columns),
            own_order={
                column_name: batch.column(name) for column_name, name in self.own_order.items()
            },
            raw_values=lambda rows: rows_as_json(batch, rows),
        )
        if self.reader is not None:
            decoded = self._read(self.reader, batch, decoded)
        lists = self.rule.list_column
        decoded = apply_rule(
            schema,
            decoded,
            self.rule,
            None if lists is None else batch.column(lists),
            {name: batch.column(mark) for name, mark in self.rule.mark_columns.items()},
        )
        commands = to_commands(schema, decoded)
        if self.deletes == GONE:
            return commands.replace_schema_metadata({_BY_KEYS: b"true"})
        return commands

    def _read(self, reader: RowReader, batch: pa.RecordBatch, decoded: DecodedRows) -> DecodedRows:
        """Decode rows in another system's format."""
        marks, operations = (
            None if name is None else batch.column(name)
            for name in (self.deletes, reader.operations)
        )
        rows = reader.read(self.schema, decoded.columns, marks, operations)
        return replace(
            decoded,
            columns=rows.columns,
            tombstones=decoded.tombstones if rows.tombstones is None else rows.tombstones,
            bad_values=rows.bad_values,
            bad_keys=rows.bad_keys,
            unchanged=rows.unchanged,
            resets=rows.resets,
            hint=reader.hint,
        )

    def _tombstones(self, batch: pa.RecordBatch, columns: Mapping[str, pa.Array]) -> Mask:
        if self.reader is None and self.deletes is not None:
            flags = to_readable(batch.column(self.deletes))[0].fill_null(False)
            return np.asarray(flags.to_numpy(zero_copy_only=False), dtype=np.bool_)
        if not self.nulls_as_deletes:
            return np.zeros(batch.num_rows, dtype=np.bool_)
        return _all_null([columns[name] for name in self._value_columns])
