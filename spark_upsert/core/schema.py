"""The table schema (`TableSchema`): columns, key, order, storage types, and allowed changes.

Internal columns begin with two underscores; docs/format.md lists a run's columns. `is_live` is the
only rule that decides whether an entry is a row.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from dataclasses import field as dataclass_field
from enum import Enum
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.key_hash import HASH_VERSION, PREFIXED_VERSION, is_injective
from spark_upsert.core.keys import is_hashable
from spark_upsert.core.merge_engines import DEDUPLICATE, ORDERS_VERSION, Engine, MergeEngine, Rule
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
_ROW_AT = "__row_at_"
_OLDER = "__older_"
_ORDER = "__order"
ORDER_KNOWN = "__order_known"

PUT, TOMBSTONE, ERROR = 1, -1, 2
"""The values of `DIFF`."""

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
    """How far order keys reach."""

    TABLE = "table"
    """Order keys compare across epochs: a late older command is stale."""

    EPOCH = "epoch"
    """The later epoch wins; order keys decide inside one epoch."""

    ARRIVAL = "arrival"
    """There are no order keys; the later epoch wins, then the later row."""


class Ties(Enum):
    """The rule for two commands of a key with equal order keys and different contents.

    `core.precedence` says which of two is the later one.
    """

    LAST = "last"
    """The later one wins."""

    FIRST = "first"
    """The earlier one stays."""

    FAIL = "fail"
    """The write fails, and nothing is committed."""

    @classmethod
    def usual(cls, engine: MergeEngine) -> Ties:
        """Return what a table has that says nothing: with ``first-row`` the earlier one stays."""
        return cls.FIRST if engine.kind is Engine.FIRST_ROW else cls.LAST


class ErrorPolicy(Enum):
    """The rule for a row that cannot be applied."""

    FAIL = "fail"
    """The write fails, and nothing is committed."""

    INLINE = "inline"
    """A value that cannot be decoded is a row with an error in place of its values."""

    QUARANTINE = "quarantine"
    """The row is kept apart as an error entry, until a later row of its key clears it."""


ERROR_TYPE = pa.struct([pa.field("description", pa.string())])
"""Type of the error column of `ErrorPolicy.INLINE`; null in rows that are good."""


def is_live(diffs: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which entries are rows of the table, by their `DIFF`; the only copy of the rule.

    A tombstone is no row, and neither is an error entry: it retracts the row of its key.
    """
    live: npt.NDArray[np.bool_] = diffs.to_numpy() == PUT
    return live


def at_column(name: str) -> str:
    """Return the name of the column that holds the order key of a column's value."""
    return f"{_AT}{name}"


def row_at_column(name: str) -> str:
    """Return the name of the column that holds the order key of the row that a value came in."""
    return f"{_ROW_AT}{name}"


def older_column(name: str) -> str:
    """Return the name of the column that holds older values of a column (`table.state.fold`)."""
    return f"{_OLDER}{name}"


def storage_type(type_: pa.DataType) -> pa.DataType:
    """Return the one form in which values of a type are stored.

    Large, view and fixed-size variants become the plain ones, times of any zone become UTC
    microseconds, dictionaries become their values, and nested fields get Spark's names. A UUID and
    a JSON document become texts. A type that no table can store stays as it is
    (`require_storable`).
    """
    if isinstance(type_, pa.BaseExtensionType):
        return _OF_EXTENSIONS.get(type_.extension_name, type_)
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        return storage_type(type_.value_type)
    if pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return pa.string()
    if (
        pa.types.is_large_binary(type_)
        or pa.types.is_binary_view(type_)
        or pa.types.is_fixed_size_binary(type_)
    ):
        return pa.binary()
    if pa.types.is_timestamp(type_):
        return pa.timestamp("us", tz=None if type_.tz is None else "UTC")
    if pa.types.is_date64(type_):
        return pa.date32()
    if pa.types.is_decimal(type_) and type_.precision <= DECIMAL_DIGITS_MAX:
        return pa.decimal128(type_.precision, type_.scale)
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(f.name, _inner_type(f.type)) for f in type_.fields])
    if pa.types.is_map(type_):
        return pa.map_(_inner_type(type_.key_type), _inner_type(type_.item_type))
    if is_any_list(type_):
        return pa.list_(pa.field("element", _inner_type(type_.value_type)))
    return type_


def _inner_type(type_: pa.DataType) -> pa.DataType:
    """Return the storage type of a nested type; in lists that are cut, Arrow reads wrong runs."""
    return type_ if pa.types.is_run_end_encoded(type_) else storage_type(type_)


UUID = "arrow.uuid"
"""The name of Arrow's type of UUIDs."""

BOOL8 = "arrow.bool8"
"""The name of Arrow's type of truth values that take a byte each."""

_OF_EXTENSIONS: Mapping[str, pa.DataType] = {
    UUID: pa.string(),
    "arrow.json": pa.string(),
    BOOL8: pa.bool_(),
}

DECIMAL_DIGITS_MAX = 38

LEVELS_MAX = 64
"""Levels of nested types that a file of Arrow can hold. A map has two, that of its entries too."""


def is_any_list(type_: pa.DataType) -> bool:
    """Return whether values of a type are lists, whatever their layout."""
    types = pa.types
    return bool(
        types.is_list(type_)
        or types.is_large_list(type_)
        or types.is_fixed_size_list(type_)
        or types.is_list_view(type_)
        or types.is_large_list_view(type_)
    )


class UnstorablePart(NamedTuple):
    """The part of a column that no reader of runs accepts."""

    place: str
    """The name of the column, with a dotted path to a nested type."""
    type: pa.DataType
    is_too_deep: bool


def find_unstorable_part(place: str, type_: pa.DataType) -> UnstorablePart | None:
    """Return the first part of a column that no reader of runs accepts; None if all is accepted.

    The only copy of the rule: writers refuse the part before they commit anything, and readers of
    files refuse the column.
    """
    for part, level in walk_type(place, type_):
        if level > LEVELS_MAX:
            return part._replace(is_too_deep=True)
        if part.type.id in _STORED_IDS:
            continue
        is_nested = pa.types.is_struct(part.type) or pa.types.is_map(part.type)
        if not (is_nested or pa.types.is_list(part.type)):
            return part
    return None


def walk_type(place: str, type_: pa.DataType) -> Iterator[tuple[UnstorablePart, int]]:
    """Yield a type and the types nested in it, from the outside to the inside, with its level."""
    waiting = [(place, type_, 1)]
    while waiting:
        place, type_, level = waiting.pop()
        yield UnstorablePart(place, type_, is_too_deep=False), level
        if pa.types.is_struct(type_):
            fields = [(f"{place}.{field.name}", field.type, level + 1) for field in type_]
            waiting += reversed(fields)
        elif pa.types.is_map(type_):
            waiting.append((f"{place}.value", type_.item_type, level + 2))
            waiting.append((f"{place}.key", type_.key_type, level + 2))
        elif is_any_list(type_):
            waiting.append((f"{place}.element", type_.value_type, level + 1))


_STORED_IDS = frozenset(
    type_.id
    for type_ in (
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64(), pa.decimal128(1)),
        *(pa.string(), pa.binary(), pa.date32(), pa.time32("s"), pa.time64("us")),
        *(pa.timestamp("us"), pa.duration("us"), pa.month_day_nano_interval()),
        pa.date64(),  # Only in tables of an earlier release (`TableSchema.from_json`).
    )
)
"""The types in runs, but for nested ones."""


_OWN = ("columns", "hash_seed", "order", "has_wide_order", "unreadable")
"""Fields of a schema that are no rules; the order may be wider."""

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def widens(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether every value of ``source`` is a value of ``target``."""
    if source == target:
        return True
    if source in _INTEGERS and target in _INTEGERS:
        return bool(source.bit_width <= target.bit_width)
    if pa.types.is_float32(source) and pa.types.is_float64(target):
        return True
    if pa.types.is_decimal128(source) and pa.types.is_decimal128(target):
        return bool(source.scale == target.scale and source.precision <= target.precision)
    if pa.types.is_struct(source) and pa.types.is_struct(target):
        pairs = zip(source.fields, target.fields, strict=False)
        is_alike = [f.name for f in source.fields] == [f.name for f in target.fields]
        return is_alike and all(widens(one.type, other_field.type) for one, other_field in pairs)
    if pa.types.is_list(source) and pa.types.is_list(target):
        return widens(source.value_type, target.value_type)
    return False


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type that holds the values of both; the first if neither does."""
    return other if widens(one, other) else one


def _widened_order(
    order: Iterable[pa.Field], engine: MergeEngine, fields: Iterable[pa.Field]
) -> tuple[pa.Field, ...]:
    """Return order fields that hold what columns of the rows hold, by the names of those.

    A column with an order of its own compares it with the order of deletes: one type holds both.
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
    """The columns, key and order of a table. Immutable; a change makes a new one.

    Parameters
    ----------
    columns : pyarrow.Schema
        The table's own columns in storage types, all nullable.
    keys : tuple of str
        Names of the key columns, in the order in which they are hashed.
    order : tuple of pyarrow.Field
        The ``sequenceBy`` columns of the *input*; empty for `Scope.ARRIVAL`.
    scope : Scope
    hash_seed : int
        Seed of the key hash, 0 <= seed < 2**64.
    on_error : ErrorPolicy
    error_column : str or None
        With `ErrorPolicy.INLINE`: the one of ``columns`` that holds errors.
    engine : MergeEngine
        How the commands of a key are merged.
    ties : Ties
        What decides between equal order keys.
    hash_prefix : int
        How many leading key columns the upper half of the hash is made of, so that keys that begin
        alike lie together; 0: all columns make all of it.
    has_wide_order : bool
        Whether the types of the order were widened, so that earlier releases must not read it.
    binlogs : tuple of str
        The base names of the binlogs that order the rows, from the table's properties
        (`core.source_positions`).
    unreadable : frozenset of str
        Names of columns that an earlier release stored and no reader accepts (`table.maintenance`).
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

    def __post_init__(self) -> None:
        names = self.columns.names
        refuse_reserved(names)
        refuse_repeated(names)
        object.__setattr__(self, "unreadable", self.unreadable.intersection(names))
        require_storable(field for field in self.columns if field.name not in self.unreadable)
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
        rows: Iterable[pa.Field] = (),
    ) -> TableSchema:
        """Build a schema from any Arrow schema: types become storage types, nullable.

        With `ErrorPolicy.INLINE` the table gains the error column. The order is at least as wide as
        the columns of its names, and of the names of orders of columns, here and in ``rows``.

        Raises
        ------
        OptionError, SchemaError
            A key is named twice, or a column is not there or of no use as what it is named for.
        """
        for field in order:
            _require_hashable(field.with_type(storage_type(field.type)), "sequenceBy")
        is_inline = on_error is ErrorPolicy.INLINE
        if is_inline:
            columns = _with_error_column(columns, error_column)
        fields = [pa.field(f.name, storage_type(f.type), nullable=False) for f in order]
        return cls(
            columns=stored(columns),
            keys=_distinct_keys(names_of(keys, "keys"), columns.names),
            order=_widened_order(fields, engine or DEDUPLICATE, [*columns, *rows]),
            scope=scope if order else Scope.ARRIVAL,
            hash_seed=hash_seed,
            on_error=on_error,
            error_column=error_column if is_inline else None,
            engine=engine or DEDUPLICATE,
            ties=ties or Ties.usual(engine or DEDUPLICATE),
            hash_prefix=hash_prefix,
        )

    @property
    def has_quarantine(self) -> bool:
        """Whether error entries may stand in the table's runs."""
        return self.on_error is ErrorPolicy.QUARANTINE

    @cached_property
    def identity(self) -> tuple[str, ...]:
        """Names of the stored columns by which two entries are of the same key.

        With a quarantine, a key that could not be decoded is identified by its bytes: then
        the key columns are null. A null key is one single identity.
        """
        return (*self.keys, RAW_KEY) if self.has_quarantine else self.keys

    @property
    def hash_is_identity(self) -> bool:
        """Whether entries of one hash are of one key, so that keys need not be compared."""
        types = [self.columns.field(key).type for key in self.keys]
        return not self.has_quarantine and is_injective(types)

    @cached_property
    def values(self) -> tuple[str, ...]:
        """Names of the columns that are not keys."""
        return tuple(name for name in self.columns.names if name not in self.keys)

    @cached_property
    def contents(self) -> tuple[str, ...]:
        """Names of the columns in which two rows of one key can differ.

        Float keys are among them: 0.0 and -0.0 are one key, and not the same to a reader.
        """
        keys = (name for name in self.keys if pa.types.is_floating(self.columns.field(name).type))
        return (*keys, *self.values)

    @cached_property
    def order_fields(self) -> tuple[pa.Field, ...]:
        """The stored order columns; never null."""
        lateness = (pa.field(ORDER_KNOWN, pa.bool_(), nullable=False),)
        fields = tuple(
            pa.field(f"{_ORDER}{index}", field.type, nullable=False)
            for index, field in enumerate(self.order)
        )
        return lateness + fields if fields and self.has_quarantine else fields

    @cached_property
    def order_columns(self) -> tuple[str, ...]:
        """Names of the stored order columns."""
        return tuple(field.name for field in self.order_fields)

    @cached_property
    def run(self) -> pa.Schema:
        """Schema of an appended run."""
        return pa.schema(
            [
                pa.field(HASH, pa.uint64(), nullable=False),
                *self.columns,
                *self.order_fields,
                pa.field(DIFF, pa.int8(), nullable=False),
                *(_QUARANTINE_FIELDS if self.has_quarantine else ()),
                *self._fold_fields(),
            ]
        )

    @cached_property
    def order_type(self) -> pa.DataType:
        """An order key as one value."""
        return pa.struct([pa.field(f"{i}", f.type) for i, f in enumerate(self.order)])

    def older_type(self, name: str) -> pa.DataType:
        """Return the type of the older values of a column with an order of its own."""
        parts = {"at": self.order_type, "row_at": self.order_type}
        return pa.list_(pa.struct({**parts, "value": self.columns.field(name).type}))

    @cached_property
    def last_columns(self) -> tuple[str, ...]:
        """Value columns that a fold gives their last value, by an order key each."""
        if not (self.engine.folds and self.order):
            return ()
        return tuple(name for name in self.values if self.engine.rule(name) is Rule.LAST)

    @property
    def keeps_deletes(self) -> bool:
        """Whether deletes are never forgotten.

        One that is folded by an order also forgets the older values of columns, and a row that
        comes behind it does not say which.
        """
        return self.engine.folds and bool(self.order)

    def _fold_fields(self) -> list[pa.Field]:
        """Return what makes folding associative (`table.state.fold`)."""
        fields = [pa.field(at_column(name), self.order_type) for name in self.last_columns]
        for name in self.engine.column_order:
            fields.append(pa.field(row_at_column(name), self.order_type))
            fields.append(pa.field(older_column(name), self.older_type(name)))
        if self.engine.kind is Engine.PARTIAL_UPDATE:
            fields.append(pa.field(DEAD, self.order_type if self.order else pa.bool_()))
        return fields

    @cached_property
    def changelog(self) -> pa.Schema:
        """Schema of the changelog: the table's columns, then `CHANGELOG_FIELDS`."""
        return pa.schema([*self.columns, *CHANGELOG_FIELDS])

    def has_rules_of(self, other: TableSchema) -> bool:
        """Return whether all but the columns and the seed are the same; orders may be wider."""
        names = [f.name for f in fields(self) if f.compare and f.name not in _OWN]
        same = all(getattr(self, name) == getattr(other, name) for name in names)
        return same and self.has_order_of(other)

    def has_order_of(self, other: TableSchema) -> bool:
        """Return whether both are ordered by the same columns, one perhaps in wider types."""
        return len(self.order) == len(other.order) and all(
            one.name == two.name and (widens(one.type, two.type) or widens(two.type, one.type))
            for one, two in zip(self.order, other.order, strict=True)
        )

    def select(self, names: Iterable[str], argument: str = "columns") -> tuple[str, ...]:
        """Return the table's columns that the names mean, in the order of the names."""
        return find_columns(names_of(names, argument), self.columns.names, role="column")

    def widened_to(self, other: TableSchema) -> TableSchema:
        """Return the same columns and orders, each in the wider of its types in two schemas.

        For a reader of one version that meets entries of another: it needs the columns of the one
        and types that hold the values of both.
        """
        types = {field.name: field.type for field in other.columns}
        columns = [f.with_type(wider(f.type, types.get(f.name, f.type))) for f in self.columns]
        order = tuple(
            order_field.with_type(wider(order_field.type, theirs.type))
            for order_field, theirs in zip(self.order, other.order, strict=True)
        )
        return replace(self, columns=pa.schema(columns), order=order)

    def rebased(self, upon: TableSchema, newer: TableSchema) -> TableSchema:
        """Return a schema that was made of ``upon`` for a newer schema of the same table.

        Columns that were dropped since ``upon`` are left out, unless the schema changes their type.
        The rule for ties is the newer one, unless the schema changes it.
        """
        dropped = {f.name: f for f in upon.columns if not has_column(newer.columns, f.name)}
        remaining = [f for f in self.columns if f.name not in dropped or f != dropped[f.name]]
        ties = newer.ties if self.ties is upon.ties else self.ties
        return replace(self, columns=pa.schema(remaining), ties=ties)

    def accept(
        self,
        incoming: pa.Schema,
        *,
        merge: bool,
        may_lack: bool = False,
        orders: Iterable[pa.Field] = (),
    ) -> TableSchema:
        """Return the schema under which rows of ``incoming`` columns can be stored.

        Parameters
        ----------
        incoming : pyarrow.Schema
            The columns that the writer wants to store.
        merge : bool
            Whether the table may gain columns and widen types (``mergeSchema``).
        may_lack : bool
            Whether rows may lack value columns, also without ``merge``.
        orders : iterable of pyarrow.Field
            Columns of the rows that may order them, stored or not: with ``merge`` the order of the
            table is widened to their types, as it is to those of its own columns.

        Raises
        ------
        SchemaError
            A column is missing, new or of another type, and ``merge`` does not cover it. Rows of
            a partial update may lack any column but the keys. Or the table has an unreadable
            column.
        """
        if self.unreadable:
            first = min(self.unreadable)
            raise unreadable_column(first, self.columns.field(first).type)
        refuse_repeated(incoming.names)
        incoming = stored(incoming)
        name_by_fold = {name.lower(): name for name in self.columns.names}
        fields = {field.name: field for field in self.columns}
        given_names = set()
        for field in incoming:
            name = name_by_fold.get(field.name.lower())
            if name is None:
                if field.name == DELETED_FIELD:
                    raise unread_deletes()
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
        """Return the form that stands in the log; the column list is for human readers."""
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
        if self.hash_prefix:
            record["hash"] |= {"version": PREFIXED_VERSION, "prefix": self.hash_prefix}
        if self.on_error is not ErrorPolicy.FAIL:
            record["errors"] = {"policy": self.on_error.value}
        if self.error_column is not None:
            record["errors"]["column"] = self.error_column
        return record

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> TableSchema:
        """Rebuild a schema from its form in the log.

        An earlier release wrote columns in types that readers refused. They are read in the storage
        type, if there is one; a column that may be a key, an order or indexed keeps its type
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
        form = record.get("engine", {}).get("version", 1)
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
            has_wide_order=form >= ORDERS_VERSION and not engine.column_order,
        )


def _hash_prefix(record: dict[str, Any]) -> int:
    """Return of how many columns the upper half of a hash is made, by its form in the log."""
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


def stored(columns: pa.Schema) -> pa.Schema:
    """Return a schema in storage types, every column nullable, without metadata."""
    return pa.schema([pa.field(field.name, storage_type(field.type)) for field in columns])


def _encode(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def _decode(text: str) -> pa.Schema:
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
    except OSError as error:  # Arrow's error for a message that is none; no storage is involved.
        raise ValueError(f"the columns cannot be read: {error}") from error


def refuse_reserved(names: Iterable[str]) -> None:
    """Raise `SchemaError` if a column's name is one of ours."""
    for name in names:
        if name == DELETED_FIELD:
            raise unread_deletes()
        if name in _RESERVED or name.startswith("__"):
            raise SchemaError(
                f"the column name '{name}' is reserved.",
                hint="rename it before writing, or drop it with 'exceptColumnList': names that "
                f"begin with two underscores and {', '.join(sorted(_RESERVED))} are ours.",
                column=name,
            )


DELETED_FIELD = "__deleted"
"""The field by which Debezium's flattened change events mark deletes."""


def unread_deletes() -> SchemaError:
    """Return the error of flattened change events whose deletes no option reads."""
    return SchemaError(
        f"the column '{DELETED_FIELD}' marks the deletes among flattened change events, and no "
        "option reads it: each delete would be stored as a row.",
        hint=f"give {setting('applyAsDeletes', DELETED_FIELD)}, which deletes these rows and does "
        "not store the column.",
        column=DELETED_FIELD,
    )


def require_storable(fields: Iterable[pa.Field]) -> None:
    """Refuse columns of a type that no table can store."""
    for field in fields:
        part = find_unstorable_part(field.name, field.type)
        if part is None:
            continue
        where = "" if part.place == field.name else f" at '{part.place:.80}'"
        if part.is_too_deep:
            raise SchemaError(
                f"the column '{field.name}' has more than {LEVELS_MAX} levels of nested types.",
                hint="write the inner values into columns of their own, or all of it as JSON text.",
                column=field.name,
            )
        if pa.types.is_null(part.type):
            raise SchemaError(
                f"the column '{field.name}' has no type{where}: all that it can hold is null.",
                hint="cast it to the type that its values will have, or drop it.",
                column=field.name,
            )
        raise SchemaError(
            f"the column '{field.name}' has the type {part.type}{where}, which no table stores.",
            hint=f"{_remedy(part.type)}, or drop it.",
            column=field.name,
        )


def unreadable_column(name: str, type_: object, where: str = "") -> SchemaError:
    """Return the error for a column that an earlier release stored in a type without a reader."""
    return SchemaError(
        f"the column '{name}' has the type {type_}{where and ' in '}{where}, which an earlier "
        "release stored and no release can read.",
        hint="run 'upsertflow repair' with the path of the table: it gives up this column and "
        f"keeps all others. To read versions from before the repair, name the other columns "
        f"({setting('columns')}).",
        column=name,
    )


def _remedy(type_: pa.DataType) -> str:
    """Return how values of a type can be stored."""
    if isinstance(type_, pa.BaseExtensionType):
        return f"cast it to {type_.storage_type}, in which its values are"
    if pa.types.is_decimal(type_):
        return f"cast it to a decimal of at most {DECIMAL_DIGITS_MAX} digits, or to string"
    if pa.types.is_run_end_encoded(type_):
        return "decode it (pyarrow.compute.run_end_decode)"
    if pa.types.is_union(type_):
        return "write the values of each of its types into a column of that type"
    return "cast it to string or binary"


def _distinct_keys(keys: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    """Return the key columns as they are written; a table of before may name one twice."""
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
