"""The table schema (`TableSchema`): columns, key, order, storage types, and allowed changes.

Internal columns begin with two underscores; docs/format.md lists a run's columns. `is_live` is the
only rule that decides whether an entry is a row.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from dataclasses import field as dataclass_field
from enum import Enum
from functools import cached_property, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.arrow_types import (
    find_unstorable_part,
    require_storable,
    storage_type,
    to_storage_types,
    unreadable_column_error,
    widens,
    wider,
)
from spark_upsert.core.key_hash import HASH_VERSION, PREFIXED_VERSION, is_injective
from spark_upsert.core.keys import is_hashable
from spark_upsert.core.merge_engines import (
    DEDUPLICATE,
    ORDERS_VERSION,
    REGISTERS_VERSION,
    Engine,
    MergeEngine,
    Rule,
)
from spark_upsert.core.names import find_column, find_columns, has_column, names_of, refuse_repeated
from spark_upsert.errors import NewerFormatError, OptionError, SchemaError, setting

HASH = "__hash"
DIFF = "__diff"
RAW_KEY = "__raw_key"
RAW_VALUE = "__raw_value"
REASON = "__reason"
EPOCH = "__epoch"
DEAD = "__dead"
_AT = "__at_"
_KEPT = "__kept_"
MOVED = "__moved"
"""The order of the newest delete of a row that moved to another key."""
_ROW_AT = "__row_at_"
_OLDER = "__older_"
_ORDER = "__order"
ORDER_KNOWN = "__order_known"

PUT, TOMBSTONE, ERROR = 1, -1, 2
"""Values in the `DIFF` column."""

VALUE_SET, VALUE_UNCHANGED, VALUE_RESET, VALUE_CARRIED, VALUE_DELETED, VALUE_RECARRIED = range(6)
"""Values in a ``__kept_<column>`` column, null for `VALUE_SET` (docs/adr/0110).

Unchanged: the value is that of an older command. Reset and deleted: it is unknown, because a create
without the value, or a delete, an error or a truncate came after the last command that set it.
Carried: it was set under the row's earlier key. Recarried: in another task of the epoch of the move.
"""

_QUARANTINE_FIELDS: tuple[pa.Field, ...] = (
    pa.field(RAW_KEY, pa.binary()),
    pa.field(RAW_VALUE, pa.binary()),
    pa.field(REASON, pa.string()),
    pa.field(EPOCH, pa.uint64()),
)

CHANGE_TYPE = "_change_type"
COMMIT_VERSION = "_commit_version"
COMMIT_TIMESTAMP = "_commit_timestamp"
CHANGE_DIFF = "_diff"

CHANGELOG_FIELDS: tuple[pa.Field, ...] = (
    pa.field(CHANGE_TYPE, pa.string(), nullable=False),
    pa.field(COMMIT_VERSION, pa.int64(), nullable=False),
    pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field(CHANGE_DIFF, pa.int32(), nullable=False),
)

_RESERVED = frozenset(field.name for field in CHANGELOG_FIELDS)


class Scope(Enum):
    """Extent within which order keys are compared."""

    TABLE = "table"
    """Order keys compare across epochs: a late older command is stale."""

    EPOCH = "epoch"
    """The later epoch wins; order keys decide within an epoch."""

    ARRIVAL = "arrival"
    """There are no order keys; the later epoch wins, then the later row."""


class Ties(Enum):
    """Rule for two commands with one key and order key but different contents.

    `core.precedence` defines the later command.
    """

    LAST = "last"
    """The later command wins."""

    FIRST = "first"
    """The earlier command wins."""

    FAIL = "fail"
    """The write fails, and nothing is committed."""

    @classmethod
    def usual(cls, engine: MergeEngine) -> Ties:
        """Return an engine's default rule: `FIRST` for ``first-row``, otherwise `LAST`."""
        return cls.FIRST if engine.kind is Engine.FIRST_ROW else cls.LAST


class ErrorPolicy(Enum):
    """Rule for rows that cannot be applied."""

    FAIL = "fail"
    """The write fails, and nothing is committed."""

    INLINE = "inline"
    """An undecodable value becomes a row with an error in place of values."""

    QUARANTINE = "quarantine"
    """The row is stored as an error entry until a later row with its key replaces it."""


class OnUnknown(Enum):
    """Rule for a row with a column value that no command has set."""

    FAIL = "fail"
    """The write fails, and nothing is committed."""

    QUARANTINE = "quarantine"
    """The row is not in the table until its value is set; the quarantine lists it."""

    NULL = "null"
    """The row shows null."""


ERROR_TYPE = pa.struct([pa.field("description", pa.string())])
"""Type of the error column for `ErrorPolicy.INLINE`; null in valid rows."""


def is_live(diffs: pa.Array) -> npt.NDArray[np.bool_]:
    """Return a mask of entries that are table rows, by `DIFF`; the only copy of this rule.

    Tombstones and error entries are not rows; an error entry retracts the row with its key.
    """
    live: npt.NDArray[np.bool_] = diffs.to_numpy() == PUT
    return live


def at_column(name: str) -> str:
    """Return the name for a column with the order keys of another column's values."""
    return f"{_AT}{name}"


def kept_column(name: str) -> str:
    """Return the name for a column that says where another column's value comes from."""
    return f"{_KEPT}{name}"


MOVED_KIND = "kind"
"""The field of a `moved_column` with the kind of what the row had, as in a `kept_column`."""


def moved_column(name: str) -> str:
    """Return the name for a column with the order of the value that a moved row took along."""
    return f"{MOVED}_{name}"


def row_at_column(name: str) -> str:
    """Return the name for a column with the order key of each value's row."""
    return f"{_ROW_AT}{name}"


def older_column(name: str) -> str:
    """Return the name for a column with another column's older values (`table.state.fold`)."""
    return f"{_OLDER}{name}"


_OWN = ("columns", "hash_seed", "order", "has_wide_order", "unreadable", "unchanged", "has_moves")
"""Fields that `TableSchema.has_rules_of` ignores; orders may differ in width."""


def _widened_order(
    order: Iterable[pa.Field], engine: MergeEngine, fields: Iterable[pa.Field]
) -> tuple[pa.Field, ...]:
    """Widen order fields to the row columns with the same names.

    A column with its own order is compared with the delete order, so both need one type.
    """
    order_columns = {name.lower() for name in engine.column_order.values()}
    types = [(field.name.lower(), storage_type(field.type)) for field in fields]
    widened = []
    for order_field in order:
        names = {order_field.name.lower(), *order_columns}
        alike = (type_ for name, type_ in types if name in names)
        widened.append(order_field.with_type(reduce(wider, alike, order_field.type)))
    return tuple(widened)


@dataclass(frozen=True)
class TableSchema:
    """A table's columns, key and order. Immutable; a change creates a new schema.

    Parameters
    ----------
    columns : pyarrow.Schema
        The table's own columns in storage types, all nullable.
    keys : tuple of str
        Key column names, in hash order.
    order : tuple of pyarrow.Field
        The input's ``sequenceBy`` columns; empty for `Scope.ARRIVAL`.
    scope : Scope
    hash_seed : int
        Key hash seed, 0 <= seed < 2**64.
    on_error : ErrorPolicy
    error_column : str or None
        With `ErrorPolicy.INLINE`: the column for errors, one of ``columns``.
    engine : MergeEngine
        Merge rule for commands with one key.
    ties : Ties
        Rule for equal order keys.
    hash_prefix : int
        Number of leading key columns that alone determine the hash's upper half, so that keys with
        a common prefix are stored together; 0: all columns determine all bits.
    has_wide_order : bool
        Whether order types were widened, so that earlier releases must not read the table.
    binlogs : tuple of str
        Base names of the binlogs that order the rows, from the table's properties
        (`core.source_positions`).
    unreadable : frozenset of str
        Columns that an earlier release stored and no reader accepts (`table.maintenance`).
    unchanged : tuple of str
        Value columns that some command has left unchanged, so that a row's values may come from
        several entries (`table.state.registers`), in column order. With ``partial-update``, columns
        that some command has set to null.
    has_moves : bool
        Whether rows have moved to other keys and taken their values along (`table.write.moves`).
    on_unknown : OnUnknown
        Rule for a row with a value that no command has set.
    """

    columns: pa.Schema
    keys: tuple[str, ...]
    order: tuple[pa.Field, ...]
    scope: Scope
    hash_seed: int
    on_error: ErrorPolicy = ErrorPolicy.FAIL
    error_column: str | None = None
    engine: MergeEngine = DEDUPLICATE
    ties: Ties = Ties.LAST
    hash_prefix: int = 0
    has_wide_order: bool = False
    binlogs: tuple[str, ...] = dataclass_field(default=(), compare=False)
    unreadable: frozenset[str] = frozenset()
    unchanged: tuple[str, ...] = ()
    has_moves: bool = False
    on_unknown: OnUnknown = OnUnknown.FAIL

    def __post_init__(self) -> None:
        names = self.columns.names
        refuse_reserved(names)
        refuse_repeated(names)
        object.__setattr__(self, "unreadable", self.unreadable.intersection(names))
        require_storable(field for field in self.columns if field.name not in self.unreadable)
        object.__setattr__(self, "unchanged", tuple(n for n in names if n in self.unchanged))
        if not self.keys:
            raise OptionError.missing("keys", "the columns that identify a row, comma separated")
        for key in self.keys:
            _require_hashable(self.columns.field(find_column(key, names, role="key column")), "key")
        is_whole = type(self.hash_prefix) is int
        if not is_whole or not 0 <= self.hash_prefix < len(self.keys):
            raise OptionError.invalid(
                "hashPrefix",
                self.hash_prefix,
                f"from 0 to {len(self.keys) - 1}, less than all keys",
            )
        for field in self.order:
            _require_hashable(field, "sequenceBy")
        if (self.scope is Scope.ARRIVAL) != (not self.order):
            raise ValueError("exactly the arrival scope has no order key")
        if (self.on_error is ErrorPolicy.INLINE) != (self.error_column is not None):
            raise ValueError("exactly the inline policy has an error column")
        self._check_engine()

    def _check_engine(self) -> None:
        self.engine.check(self.columns, self.keys, self.order)
        name = self.engine.kind.value
        if self.engine.folds and self.scope is Scope.EPOCH:
            raise OptionError.conflict(
                "sequenceScope=epoch", f"mergeEngine={name}", hint="use sequenceScope=table."
            )
        if self.engine.folds and self.ties is Ties.FAIL:
            raise OptionError.conflict(
                "ties=fail", f"mergeEngine={name}", hint="use ties=last or ties=first."
            )
        # An error is a value that a later one replaces: nothing to fold, and no first row.
        if self.on_error is not ErrorPolicy.FAIL and self.engine.kind is not Engine.DEDUPLICATE:
            raise OptionError.conflict(
                f"onError={self.on_error.value}", f"mergeEngine={name}", hint="use onError=fail."
            )

    @classmethod
    def of(
        cls,
        columns: pa.Schema,
        *,
        keys: Sequence[str],
        order: Sequence[pa.Field] = (),
        scope: Scope = Scope.TABLE,
        hash_seed: int = 0,
        on_error: ErrorPolicy = ErrorPolicy.FAIL,
        error_column: str = "error",
        engine: MergeEngine | None = None,
        ties: Ties | None = None,
        hash_prefix: int = 0,
        on_unknown: OnUnknown = OnUnknown.FAIL,
        rows: Iterable[pa.Field] = (),
    ) -> TableSchema:
        """Build a schema from any Arrow schema; types become nullable storage types.

        With `ErrorPolicy.INLINE` the table gains the error column. Order types are widened to
        columns with the same names, here and in ``rows``.

        Raises
        ------
        OptionError, SchemaError
            A key is repeated, or a named column is missing or unsuitable for its role.
        """
        for field in order:
            _require_hashable(field.with_type(storage_type(field.type)), "sequenceBy")
        is_inline = on_error is ErrorPolicy.INLINE
        if is_inline:
            columns = _with_error_column(columns, error_column)
        fields = [pa.field(f.name, storage_type(f.type), nullable=False) for f in order]
        return cls(
            columns=to_storage_types(columns),
            keys=_distinct_keys(names_of(keys, "keys"), columns.names),
            order=_widened_order(fields, engine or DEDUPLICATE, [*columns, *rows]),
            scope=scope if order else Scope.ARRIVAL,
            hash_seed=hash_seed,
            on_error=on_error,
            error_column=error_column if is_inline else None,
            engine=engine or DEDUPLICATE,
            ties=ties or Ties.usual(engine or DEDUPLICATE),
            hash_prefix=hash_prefix,
            on_unknown=on_unknown,
        )

    @property
    def has_quarantine(self) -> bool:
        """Whether the table's runs may contain error entries."""
        return self.on_error is ErrorPolicy.QUARANTINE

    @cached_property
    def identity(self) -> tuple[str, ...]:
        """Names of the stored columns that identify a key.

        With a quarantine, an undecodable key has null key columns and is identified by its bytes.
        Null keys are equal.
        """
        return (*self.keys, RAW_KEY) if self.has_quarantine else self.keys

    @property
    def hash_is_identity(self) -> bool:
        """Whether entries with one hash have one key, so that keys need no comparison."""
        types = [self.columns.field(key).type for key in self.keys]
        return not self.has_quarantine and is_injective(types)

    @cached_property
    def values(self) -> tuple[str, ...]:
        """Value column names: all except the keys."""
        return tuple(name for name in self.columns.names if name not in self.keys)

    @cached_property
    def contents(self) -> tuple[str, ...]:
        """Names of the columns in which two rows with one key can differ.

        Float keys are included: 0.0 and -0.0 are one key, but differ for a reader.
        """
        keys = (name for name in self.keys if pa.types.is_floating(self.columns.field(name).type))
        return (*keys, *self.values)

    @cached_property
    def order_fields(self) -> tuple[pa.Field, ...]:
        """Stored order columns; never null."""
        lateness = (pa.field(ORDER_KNOWN, pa.bool_(), nullable=False),)
        fields = tuple(
            pa.field(f"{_ORDER}{index}", field.type, nullable=False)
            for index, field in enumerate(self.order)
        )
        return lateness + fields if fields and self.has_quarantine else fields

    @cached_property
    def order_columns(self) -> tuple[str, ...]:
        """Stored order column names."""
        return tuple(field.name for field in self.order_fields)

    @cached_property
    def run(self) -> pa.Schema:
        """Schema for an appended run."""
        return pa.schema(
            [
                pa.field(HASH, pa.uint64(), nullable=False),
                *self.columns,
                *self.order_fields,
                pa.field(DIFF, pa.int8(), nullable=False),
                *(_QUARANTINE_FIELDS if self.has_quarantine else ()),
                *self._fold_fields(),
                *self.run_marks.values(),
            ]
        )

    @cached_property
    def run_marks(self) -> dict[str, pa.Field]:
        """The columns that mark unchanged values, by name; a run stores those that it needs."""
        if self.engine.folds:
            return {}  # Its entries have the order of each value (`_fold_fields`).
        type_ = pa.struct([pa.field(f"{i}", f.type) for i, f in enumerate(self.order_fields)])
        moved_type = pa.struct([*type_, pa.field(MOVED_KIND, pa.int8())])
        fields = []
        for name in self.unchanged:
            fields.append(pa.field(kept_column(name), pa.int8()))
            if self.order_fields:
                fields.append(pa.field(at_column(name), type_))
            if self.order_fields and self.has_moves:
                fields.append(pa.field(moved_column(name), moved_type))
        if self.order_fields and self.has_moves:
            fields.append(pa.field(MOVED, type_))
        return {field.name: field for field in fields}

    @property
    def has_registers(self) -> bool:
        """Whether a row's values may come from several entries, of which one wins."""
        is_chosen = self.engine.kind is Engine.DEDUPLICATE
        return bool(self.unchanged) and is_chosen

    @property
    def shows_combined_rows(self) -> bool:
        """Whether a row may differ from each of its stored entries."""
        return self.engine.folds or self.has_registers

    @property
    def hides_unknown(self) -> bool:
        """Whether a row with an unknown value is not in the table."""
        return self.on_unknown is OnUnknown.QUARANTINE and bool(self.unchanged)

    def for_columns(self, names: Iterable[str]) -> TableSchema:
        """Return the schema for a read of some columns: it ignores the marks of all others.

        Unless these marks hide rows.
        """
        chosen = tuple(name for name in names if name in self.unchanged)
        if self.hides_unknown or len(chosen) == len(self.unchanged):
            return self
        return replace(self, unchanged=chosen, has_moves=False)

    def with_unchanged(self, names: Iterable[str] = (), *, has_moves: bool = False) -> TableSchema:
        """Return the schema in which commands may also leave the given columns unchanged.

        With ``has_moves``, rows may also move to other keys with their values.
        """
        more = {*self.unchanged, *names}.intersection(self.values)
        has_moves |= self.has_moves
        if len(more) == len(self.unchanged) and has_moves == self.has_moves:
            return self
        return replace(self, unchanged=tuple(more), has_moves=has_moves)

    @cached_property
    def order_type(self) -> pa.DataType:
        """Struct type for an order key as one value."""
        return pa.struct([pa.field(f"{i}", f.type) for i, f in enumerate(self.order)])

    def older_type(self, name: str) -> pa.DataType:
        """Return the type for older values in a column with its own order."""
        parts = {"at": self.order_type, "row_at": self.order_type}
        return pa.list_(pa.struct({**parts, "value": self.columns.field(name).type}))

    @cached_property
    def last_columns(self) -> tuple[str, ...]:
        """Value columns that a fold sets to the last value, each with its own order key."""
        if not (self.engine.folds and self.order):
            return ()
        return tuple(name for name in self.values if self.engine.rule(name) is Rule.LAST)

    @property
    def keeps_deletes(self) -> bool:
        """Whether compaction must keep every delete.

        An ordered fold drops older column values at a delete; a row that arrives later does not
        show which values those were.
        """
        return self.engine.folds and bool(self.order)

    def _fold_fields(self) -> list[pa.Field]:
        """Return the columns that make folding associative (`table.state.fold`)."""
        fields = [pa.field(at_column(name), self.order_type) for name in self.last_columns]
        for name in self.engine.column_order:
            fields.append(pa.field(row_at_column(name), self.order_type))
            fields.append(pa.field(older_column(name), self.older_type(name)))
        if self.engine.kind is Engine.PARTIAL_UPDATE:
            fields.append(pa.field(DEAD, self.order_type if self.order else pa.bool_()))
        return fields

    @cached_property
    def changelog(self) -> pa.Schema:
        """Changelog schema: the table's columns, then `CHANGELOG_FIELDS`."""
        return pa.schema([*self.columns, *CHANGELOG_FIELDS])

    def has_rules_of(self, other: TableSchema) -> bool:
        """Return whether two schemas differ only in columns, hash seed or order width."""
        names = [f.name for f in fields(self) if f.compare and f.name not in _OWN]
        same = all(getattr(self, name) == getattr(other, name) for name in names)
        return same and self.has_order_of(other)

    def has_order_of(self, other: TableSchema) -> bool:
        """Return whether both schemas have the same order columns; one may have wider types."""
        return len(self.order) == len(other.order) and all(
            one.name == two.name and (widens(one.type, two.type) or widens(two.type, one.type))
            for one, two in zip(self.order, other.order, strict=True)
        )

    def select(self, names: Iterable[str], argument: str = "columns") -> tuple[str, ...]:
        """Resolve column names against the table, in the names' order."""
        return find_columns(names_of(names, argument), self.columns.names, role="column")

    def widened_to(self, other: TableSchema) -> TableSchema:
        """Return this schema with the wider of two types for each column and order.

        A reader of one version uses it for entries from another version: its own columns, in types
        that hold both versions' values.
        """
        types = {field.name: field.type for field in other.columns}
        columns = [f.with_type(wider(f.type, types.get(f.name, f.type))) for f in self.columns]
        order = tuple(
            order_field.with_type(wider(order_field.type, theirs.type))
            for order_field, theirs in zip(self.order, other.order, strict=True)
        )
        wide = replace(self, columns=pa.schema(columns), order=order)
        return wide.with_unchanged(other.unchanged, has_moves=other.has_moves)

    def rebased(self, upon: TableSchema, newer: TableSchema) -> TableSchema:
        """Return this schema, derived from ``upon``, for a newer schema of the same table.

        Columns dropped since ``upon`` are left out, unless this schema changes their type. The
        newer tie rule applies, unless this schema changes it.
        """
        dropped = {f.name: f for f in upon.columns if not has_column(newer.columns, f.name)}
        remaining = [f for f in self.columns if f.name not in dropped or f != dropped[f.name]]
        ties = newer.ties if self.ties is upon.ties else self.ties
        rebased = replace(self, columns=pa.schema(remaining), ties=ties)
        return rebased.with_unchanged(newer.unchanged, has_moves=newer.has_moves)

    def accept(
        self,
        incoming: pa.Schema,
        *,
        merge: bool,
        may_lack: bool = False,
        orders: Iterable[pa.Field] = (),
    ) -> TableSchema:
        """Return the schema that can store rows with ``incoming`` columns.

        Parameters
        ----------
        incoming : pyarrow.Schema
            Columns that the writer wants to store.
        merge : bool
            Whether the table may gain columns and widen types (``mergeSchema``).
        may_lack : bool
            Whether rows may lack value columns even without ``merge``.
        orders : iterable of pyarrow.Field
            Row columns that may order the rows, stored or not: with ``merge`` the table's order is
            widened to their types, in addition to its own columns' types.

        Raises
        ------
        SchemaError
            A column is missing, new or has another type, and ``merge`` does not cover it. Partial
            updates may lack any column except the keys. Or the table has an unreadable column.
        """
        if self.unreadable:
            first = min(self.unreadable)
            raise unreadable_column_error(first, self.columns.field(first).type)
        refuse_repeated(incoming.names)
        incoming = to_storage_types(incoming)
        name_by_fold = {name.lower(): name for name in self.columns.names}
        fields = {field.name: field for field in self.columns}
        given_names = set()
        for field in incoming:
            name = name_by_fold.get(field.name.lower())
            if name is None:
                if field.name == DELETED_FIELD:
                    raise unread_deletes_error()
                if not merge:
                    raise SchemaError(
                        f"the rows have a column '{field.name}' that the table does not.",
                        hint=f"give {setting('mergeSchema', 'true')} to let the table gain it, "
                        "or leave it out.",
                        left_out=field.name,
                    )
                fields[field.name] = field
                continue
            given_names.add(name)
            fields[name] = self._accept_type(fields[name], field, merge=merge)
        missing = [name for name in self.columns.names if name not in given_names]
        for name in missing:
            if name == self.error_column:
                continue
            is_partial = self.engine.kind is Engine.PARTIAL_UPDATE
            if name in self.keys or not (merge or may_lack or is_partial):
                error = SchemaError.missing_column(name, incoming.names, role="column")
                if name not in self.keys:
                    error.advise(
                        f"With {setting('mergeSchema', 'true')} it is null in rows without it."
                    )
                raise error
        evolved = pa.schema(list(fields.values()))
        accepted = self if evolved == self.columns else replace(self, columns=evolved)
        order = _widened_order(self.order, self.engine, [*evolved, *(orders if merge else ())])
        if order == self.order:
            return accepted
        return replace(accepted, order=order, has_wide_order=not self.engine.column_order)

    def _accept_type(self, own: pa.Field, field: pa.Field, *, merge: bool) -> pa.Field:
        # A column of an earlier release may have a type that is stored in another one today.
        if widens(field.type, own.type) or field.type == storage_type(own.type):
            return own
        if merge and widens(own.type, field.type):
            return own.with_type(field.type)
        if widens(own.type, field.type):
            remedy, more = f"give {setting('mergeSchema', 'true')}", {}
        else:
            remedy, more = f"cast the column to {own.type} before writing", {"left_out": own.name}
        raise SchemaError(
            f"column '{own.name}' is {own.type} in the table, but {field.type} in the rows.",
            hint=f"{remedy}.",
            column=own.name,
            **more,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the log representation; its column list is for human readers."""
        record: dict[str, Any] = {
            "columns": {field.name: str(field.type) for field in self.columns},
            "arrow": _encode(self.columns),
            "keys": list(self.keys),
            "order": _encode(pa.schema(self.order)),
            "scope": self.scope.value,
            "ties": self.ties.value,
            "engine": self.engine.to_json(),
            "hash": {"version": HASH_VERSION, "seed": f"{self.hash_seed:016x}"},
        }
        if self.has_wide_order:
            record["engine"]["version"] = ORDERS_VERSION
        if self.unchanged:
            record["engine"] |= {
                "version": REGISTERS_VERSION,
                "unchanged": list(self.unchanged),
                "wide_order": self.has_wide_order,
                "moves": self.has_moves,
            }
        if self.on_unknown is not OnUnknown.FAIL:
            record["engine"]["on_unknown"] = self.on_unknown.value
        if self.hash_prefix:
            record["hash"] |= {"version": PREFIXED_VERSION, "prefix": self.hash_prefix}
        if self.on_error is not ErrorPolicy.FAIL:
            record["errors"] = {"policy": self.on_error.value}
        if self.error_column is not None:
            record["errors"]["column"] = self.error_column
        return record

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> TableSchema:
        """Rebuild a schema from its log representation.

        An earlier release wrote columns in types that readers refused. They are read in the storage
        type, if there is one. A column that may be a key, order or index column keeps its type
        (``date64``), because another type has another hash.
        """
        hash_prefix = _hash_prefix(record["hash"])
        errors = record.get("errors", {})
        columns = pa.schema(
            [
                field if is_hashable(field.type) else field.with_type(storage_type(field.type))
                for field in _decode(record["arrow"])
            ]
        )
        engine = MergeEngine.from_json(record.get("engine"))
        engine_record = record.get("engine") or {}
        form = engine_record.get("version", 1)
        return cls(
            columns=columns,
            unreadable=frozenset(f.name for f in columns if find_unstorable_part(f.name, f.type)),
            keys=tuple(record["keys"]),
            # Earlier releases widened a column and left the order of its name narrow.
            order=_widened_order(_decode(record["order"]), engine, columns),
            scope=Scope(record["scope"]),
            ties=Ties(record.get("ties", Ties.LAST.value)),
            engine=engine,
            hash_seed=int(record["hash"]["seed"], 16),
            on_error=ErrorPolicy(errors.get("policy", ErrorPolicy.FAIL.value)),
            error_column=errors.get("column"),
            hash_prefix=hash_prefix,
            has_wide_order=engine_record.get("wide_order", form == ORDERS_VERSION)
            and not engine.column_order,
            unchanged=tuple(engine_record.get("unchanged", ())),
            has_moves=engine_record.get("moves", False),
            on_unknown=OnUnknown(engine_record.get("on_unknown", OnUnknown.FAIL.value)),
        )


def _hash_prefix(record: dict[str, Any]) -> int:
    """Return the number of leading key columns in the hash's upper half, from the log record."""
    version = record["version"]
    if type(version) is not int or version < HASH_VERSION:
        raise ValueError(f"{version!r:.80} is no version of the key hash")
    if version > PREFIXED_VERSION:
        raise NewerFormatError.of("the table's key hash", version, PREFIXED_VERSION)
    if version < PREFIXED_VERSION:
        return 0
    prefix = record["prefix"]
    if type(prefix) is not int or prefix < 1:
        raise ValueError(f"{prefix!r:.80} is no number of leading key columns")
    return prefix


def _with_error_column(columns: pa.Schema, name: str) -> pa.Schema:
    if name.lower() in (column_name.lower() for column_name in columns.names):
        raise SchemaError(
            f"the rows have a column '{name}' of their own, and errors are to stand in a column "
            "of that name.",
            hint="choose another name with the option 'errorColumn'.",
            column=name,
        )
    return columns.append(pa.field(name, ERROR_TYPE))


def _encode(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def _decode(text: str) -> pa.Schema:
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
    except OSError as error:  # Arrow's error for a message that is none; no storage is involved.
        raise ValueError(f"the columns cannot be read: {error}") from error


def refuse_reserved(names: Iterable[str]) -> None:
    """Raise `SchemaError` for a reserved column name."""
    for name in names:
        if name == DELETED_FIELD:
            raise unread_deletes_error()
        if name in _RESERVED or name.startswith("__"):
            raise SchemaError(
                f"the column name '{name}' is reserved.",
                hint="rename it before writing, or drop it with 'exceptColumnList': names that "
                f"begin with two underscores and {', '.join(sorted(_RESERVED))} are ours.",
                column=name,
            )


DELETED_FIELD = "__deleted"
"""Field that marks deletes in Debezium's flattened change events."""


def unread_deletes_error() -> SchemaError:
    """Return the error for flattened change events with deletes that no option reads."""
    return SchemaError(
        f"the column '{DELETED_FIELD}' marks the deletes among flattened change events, and no "
        "option reads it: each delete would be stored as a row.",
        hint=f"give {setting('applyAsDeletes', DELETED_FIELD)}, which deletes these rows and does "
        "not store the column.",
        column=DELETED_FIELD,
    )


def _distinct_keys(keys: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    """Resolve the key columns; raise `OptionError` for a repeated one.

    Only for new schemas: a table from an earlier release may repeat a key.
    """
    key_names = find_columns(keys, columns, role="key column")
    if len(set(key_names)) < len(key_names):
        raise OptionError.invalid(
            "keys", ",".join(keys), "each column once", hint="leave the second name of it out."
        )
    return key_names


def _require_hashable(field: pa.Field, role: str) -> None:
    if not is_hashable(field.type):
        raise SchemaError(
            f"the {role} column '{field.name}' has type {field.type}, which has no hash and order.",
            hint="use a column of a number, text, binary, boolean, date, time or decimal type.",
            column=field.name,
            role=f"{role} column",
        )
