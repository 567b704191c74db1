"""Table properties: names, checks and meaning (caps, indexes, tombstones, publication, row TTL).

`checked` validates a value when it is set, not when it is first used.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import product
from urllib.parse import quote

import pyarrow as pa

from spark_upsert.core.arrow_types import widens
from spark_upsert.core.durations import EXPECTED, render_ms, try_parse_ms
from spark_upsert.core.keys import compare, is_hashable
from spark_upsert.core.names import find_columns, split_names
from spark_upsert.core.schema import ORDER_KNOWN, Scope, TableSchema
from spark_upsert.core.source_positions import BINLOG_NAMES, parse_binlog_names
from spark_upsert.errors import (
    CorruptionError,
    OptionError,
    SchemaError,
    did_you_mean,
    require_plain,
)
from spark_upsert.scheduler.scheduler import PROPERTY as PRIORITY
from spark_upsert.scheduler.scheduler import parse_priority
from spark_upsert.table.log.manifest import HISTORY_OF, VIEW_PROPERTIES, Manifest, TableVersion

BYTES = "maxBacklogBytes"
EPOCHS = "maxBacklogEpochs"
ON_FULL = "onFull"
BACKPRESSURE = "backpressure"

FULL_WAIT_MS = 60_000
"""Default wait for room in a full table: active consumers finish a batch within a minute."""

_WHOLE = re.compile(r"\d{1,18}", re.ASCII)


class OnFull(Enum):
    """The policy for a write without room."""

    WAIT = "wait"
    """The write waits for some time, and is then rejected."""
    REJECT = "reject"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Limits on the slowest consumer's backlog, enforced by writers; None: no limit."""

    epochs: int | None = None
    bytes: int | None = None
    on_full: OnFull = OnFull.WAIT

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Caps:
        """Return the caps in a table's properties."""
        return cls(
            epochs=parse_cap(EPOCHS, properties.get(EPOCHS, "0")),
            bytes=parse_cap(BYTES, properties.get(BYTES, "0")),
            on_full=parse_on_full(properties.get(ON_FULL, OnFull.WAIT.value)),
        )

    @property
    def is_none(self) -> bool:
        """Whether nothing is capped."""
        return self.epochs is None and self.bytes is None

    def admits(self, *, epochs: int, bytes: int) -> bool:
        """Return whether the slowest consumer may have a backlog of this size."""
        return (self.epochs is None or epochs <= self.epochs) and (
            self.bytes is None or bytes <= self.bytes
        )


def parse_cap(name: str, text: str) -> int | None:
    """Return a cap; None for 0, which removes the cap because a property cannot be unset."""
    if _WHOLE.fullmatch(text.strip()) is None:
        expected = "a whole number, or 0 for no cap"
        raise OptionError.invalid(name, text, expected)
    return int(text) or None


def heeds_pressure(properties: Mapping[str, str]) -> bool:
    """Return whether a table's writers slow down for consumers unable to keep up."""
    return parse_flag(BACKPRESSURE, properties.get(BACKPRESSURE, "false"))


def parse_flag(name: str, text: str) -> bool:
    """Parse ``true`` or ``false``; raises `OptionError`."""
    if text.strip().lower() not in ("true", "false"):
        raise OptionError.invalid(name, text, "'true' or 'false'")
    return text.strip().lower() == "true"


def parse_on_full(text: str) -> OnFull:
    """Parse the policy for a write without room; raises `OptionError`."""
    try:
        return OnFull(text.strip().lower())
    except ValueError:
        choices = [choice.value for choice in OnFull]
        raise OptionError.not_one_of(ON_FULL, text, choices) from None


INDEX_BY = "indexBy"
"""Name of the write option and table property."""

SHOWS = "indexShows"
"""Index property: the indexed table version, as ``<table id> <version> <token>``."""

FOLDER = "_index"


def parse_index_by(text: str) -> tuple[str, ...]:
    """Return the names in a column list; empty for blank text."""
    return split_names(INDEX_BY, text) if text.strip() else ()


def indexed_columns(schema: TableSchema, properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns with an index."""
    columns: list[str] = []
    names = parse_index_by(properties.get(INDEX_BY, ""))
    for column in find_columns(names, schema.columns.names, role=f"column of '{INDEX_BY}'"):
        type_ = schema.columns.field(column).type
        if not is_hashable(type_):
            raise SchemaError(
                f"the column '{column}' of '{INDEX_BY}' has type {type_}, which has no hash.",
                hint="index a column of a number, text, binary, boolean, date, time or decimal.",
                column=column,
            )
        if schema.keys == (column,):
            raise OptionError(
                f"option '{INDEX_BY}' expects columns beside the key, found '{column}', which is "
                "the whole key: its rows are found without an index.",
                hint=f"leave '{column}' out of '{INDEX_BY}'.",
                option=INDEX_BY,
            )
        if column in columns:
            raise OptionError.invalid(INDEX_BY, properties[INDEX_BY], "each column once")
        columns.append(column)
    return tuple(columns)


def index_schema(table: TableSchema, column: str, *, hash_seed: int = 0) -> TableSchema:
    """Return the schema of the index on column ``c``: the key ``(c, k)``, hashed by ``c``.

    Rows with null in ``c`` are not in the index.
    """
    names = (column, *(key for key in table.keys if key != column))
    return TableSchema(
        columns=pa.schema([table.columns.field(name) for name in names]),
        keys=names,
        order=(),
        scope=Scope.ARRIVAL,
        hash_seed=hash_seed,
        hash_prefix=1,
    )


def index_folder(column: str) -> str:
    """Return the index folder for a column, relative to the table."""
    return f"{FOLDER}/{quote(column, safe='').replace('.', '%2E')}"


def covered_version(index: Manifest) -> TableVersion | None:
    """Return the table version covered by an index; None if it has none yet."""
    table_id, version, token = index.properties.get(SHOWS, "  ").split(" ")
    return TableVersion(table_id=table_id, version=int(version), token=token) if table_id else None


def with_covered_version(index: Manifest, version_ref: TableVersion) -> dict[str, str]:
    """Return an index's properties for its covered table version."""
    return {
        **index.properties,
        SHOWS: f"{version_ref.table_id} {version_ref.version} {version_ref.token}",
    }


PROPERTY = "tombstoneRetention"
"""Name of the write option and table property."""

DEFAULT = "7 days"

_NARROWER = (pa.int32(), pa.int16(), pa.int8(), pa.float32())
"""Types with a wider counterpart, the widest first."""

_EPOCHS = re.compile(r"\s*(\d{1,18})\s*epochs?\s*", re.ASCII)

_EXPECTED = f"'forever', a number of epochs, {EXPECTED}, or both as in '7 days and 100 epochs'"


class LateRows(Enum):
    """The policy for a put at or below the low-water mark, for a key not in the table.

    Either the key never existed, or its delete was forgotten. A late delete is skipped, counted as
    rejected, and never fails the write; `APPLY` stores it, so an older row with its key is stale.
    """

    REJECT = "reject"
    """The put is counted and skipped."""

    APPLY = "apply"
    """The put becomes a row; if a delete was forgotten, the key reappears."""

    FAIL = "fail"
    """The write fails, and nothing is committed."""


@dataclass(frozen=True, slots=True)
class TombstoneRetention:
    """Retention for tombstones: by epochs, by time, by both, or forever.

    A tombstone may be dropped only if nothing older is below it and no newer run has an entry for
    its key. Entries folded by an order keep theirs: the mark would let older values through.
    """

    epochs: int | None
    milliseconds: int | None

    @property
    def is_for_ever(self) -> bool:
        return self.epochs is None and self.milliseconds is None

    @classmethod
    def parse(cls, text: str) -> TombstoneRetention:
        """Parse ``7 days``, ``100 epochs``, ``1 hour and 50 epochs`` or ``forever``.

        With both, a tombstone is retained until both have passed.
        """
        if text.strip().lower() == "forever":
            return cls(None, None)
        epochs = milliseconds = None
        for part in re.split(r",|\band\b", text.lower()):
            count, duration = _EPOCHS.fullmatch(part), try_parse_ms(part)
            if count is not None and epochs is None:
                epochs = int(count[1])
            elif duration is not None and milliseconds is None:
                milliseconds = duration
            else:
                raise OptionError.invalid(PROPERTY, text, _EXPECTED)
        return cls(epochs, milliseconds)


def encode_mark(order: Sequence[pa.Array], schema: TableSchema) -> str:
    """Return the log text for one order key (arrays of length 1), the low-water mark."""
    names = schema.order_columns
    batch = pa.RecordBatch.from_arrays(list(order), names=list(names))
    return base64.b64encode(batch.serialize().to_pybytes()).decode("ascii")


def decode_mark(text: str, schema: TableSchema) -> list[pa.Array]:
    """Return a low-water mark's order key as arrays of length 1."""
    layout = pa.schema([pa.field(field.name, field.type) for field in schema.order_fields])
    try:
        data = pa.py_buffer(base64.b64decode(text, validate=True))
        batch = _read_wide_mark(data, layout)
        if batch.num_rows != 1:
            raise ValueError(f"{batch.num_rows} rows")
    except (ValueError, EOFError, MemoryError, OSError, pa.ArrowException) as error:
        raise CorruptionError.in_file("_log", "a low-water mark, one order key", f"{error}") from (
            error
        )
    return [column.cast(field.type) for column, field in zip(batch.columns, layout, strict=True)]


def _read_wide_mark(data: pa.Buffer, layout: pa.Schema) -> pa.RecordBatch:
    """Read a mark, possibly older than a widening of the order column types.

    A type wider than the stored one needs more bytes than the mark has. So the widest readable
    types are the stored ones.
    """
    types = ([f.type, *(t for t in _NARROWER if widens(t, f.type) and t != f.type)] for f in layout)
    problems: list[Exception] = []
    for combination in product(*types):
        fields = [field.with_type(type_) for field, type_ in zip(layout, combination, strict=True)]
        try:
            batch = _read_mark(data, pa.schema(fields))
            batch.validate(full=True)
        except (ValueError, OSError, pa.ArrowException) as error:
            problems.append(error)
        else:
            return batch
    raise problems[0]


def _read_mark(data: pa.Buffer, layout: pa.Schema) -> pa.RecordBatch:
    try:
        return pa.ipc.read_record_batch(data, layout)
    except (ValueError, OSError):
        if layout.names[:1] != [ORDER_KNOWN]:
            raise
    # From before the table had a quarantine: all orders were known.
    batch = pa.ipc.read_record_batch(data, layout.remove(0))
    return batch.add_column(0, layout.field(0), pa.repeat(pa.scalar(True), batch.num_rows))


def is_at_or_below(order: Sequence[pa.Array], mark: str, schema: TableSchema) -> pa.Array:
    """Return which order keys are not above a low-water mark, as a numpy bool array."""
    rows = pa.nulls(len(order[0]), pa.int64()).fill_null(0)
    limit = [column.take(rows) for column in decode_mark(mark, schema)]
    return compare(order, limit) <= 0


def higher_mark(one: str | None, other: str | None, schema: TableSchema) -> str | None:
    """Return the greater low-water mark; None if both are None."""
    if one is None or other is None:
        return one or other
    order = compare(decode_mark(one, schema), decode_mark(other, schema))
    return one if order[0] >= 0 else other


PUBLISH, PUBLISH_PATH = "publish", "publishPath"
PUBLISH_INTERVAL, PUBLISH_FEED = "publishInterval", "publishChangeFeed"
PUBLISH_RETENTION, PUBLISH_GUARD = "publishRetention", "publishGuard"
"""Properties for a table's Delta mirror (`spark_upsert.delta`)."""

PUBLISH_RETENTION_MIN_MS = 3_600_000
"""A publisher cleans once an hour; a running reader must not lose its files."""


def parse_publish(text: str) -> bool:
    """Return whether a table is mirrored: True for ``delta``, False for ``none``."""
    if text.strip().lower() not in ("delta", "none"):
        raise OptionError.not_one_of(PUBLISH, text, ("delta", "none"))
    return text.strip().lower() == "delta"


def parse_interval(text: str) -> int | None:
    """Return the minimum time between two publications, in milliseconds; None for ``auto``."""
    if text.strip().lower() == "auto":
        return None
    milliseconds = try_parse_ms(text)
    if milliseconds is None:
        raise OptionError.invalid(PUBLISH_INTERVAL, text, f"{EXPECTED}, or auto")
    return milliseconds


def parse_retention(text: str) -> int:
    """Return the mirror's time-travel window in milliseconds."""
    milliseconds = try_parse_ms(text)
    if milliseconds is None or milliseconds < PUBLISH_RETENTION_MIN_MS:
        least = render_ms(PUBLISH_RETENTION_MIN_MS)
        raise OptionError.invalid(PUBLISH_RETENTION, text, f"at least {least}: {EXPECTED}")
    return milliseconds


ROW_TTL, ROW_TTL_BY = "rowTtl", "rowTtlBy"
"""Properties for row expiry: the maximum age, and the time column or `COMMITTED`."""


COMMITTED = "_commit_timestamp"
"""The value of `ROW_TTL_BY` for row age since the row's last commit."""


def ages_ms(properties: Mapping[str, str]) -> int | None:
    """Return how long expiry by commit time needs old versions, in ms; None: not at all."""
    if properties.get(ROW_TTL_BY, "").lower() != COMMITTED:
        return None
    return parse_ttl(ROW_TTL, properties.get(ROW_TTL, "none"))


DROPPED = "droppedColumns"
"""Dropped columns as JSON (`table.schema_changes`); users cannot set it."""


def parse_ttl(name: str, text: str) -> int | None:
    """Return a duration in milliseconds; None for ``none``."""
    milliseconds = try_parse_ms(text)
    if not milliseconds and text.strip().lower() != "none":
        raise OptionError.invalid(name, text, f"'none', or {EXPECTED}")
    return milliseconds


_CHECKS: Mapping[str, Callable[[str], object]] = {
    PRIORITY: parse_priority,
    PROPERTY: TombstoneRetention.parse,
    BYTES: partial(parse_cap, BYTES),
    EPOCHS: partial(parse_cap, EPOCHS),
    ON_FULL: parse_on_full,
    BACKPRESSURE: partial(parse_flag, BACKPRESSURE),
    INDEX_BY: parse_index_by,
    PUBLISH: parse_publish,
    PUBLISH_PATH: partial(require_plain, option=PUBLISH_PATH),
    PUBLISH_INTERVAL: parse_interval,
    PUBLISH_FEED: partial(parse_flag, PUBLISH_FEED),
    PUBLISH_RETENTION: parse_retention,
    PUBLISH_GUARD: partial(parse_flag, PUBLISH_GUARD),
    ROW_TTL: partial(parse_ttl, ROW_TTL),
    ROW_TTL_BY: str,
    BINLOG_NAMES: parse_binlog_names,
}

INTERNAL: Mapping[str, str] = {
    **dict.fromkeys(VIEW_PROPERTIES, "a view that is materialized ('keep')"),
    HISTORY_OF: "'keep_history'",
    DROPPED: "'drop_columns'",
    SHOWS: "the step that advances an index",
}
"""Properties set only by the engine, each with its feature."""

PROPERTIES = tuple(_CHECKS)
"""Names of the properties also available as write options."""


def checked(
    properties: Mapping[str, str] | None, present: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return validated user properties; raises `OptionError`.

    Internal properties equal to those in ``present`` are removed.
    """
    explicit = dict(properties or {})
    for name in INTERNAL.keys() & explicit.keys() & (present or {}).keys():
        if explicit[name] == (present or {})[name]:
            del explicit[name]
    for name, value in explicit.items():
        if name in INTERNAL:
            raise OptionError(
                f"the property '{name}' is internal and cannot be set: {INTERNAL[name]} sets it.",
                hint=f"remove '{name}' from the properties.",
                option=name,
            )
        if name not in _CHECKS:
            raise OptionError(
                f"a table has no property '{name}'.",
                hint=did_you_mean(name, _CHECKS),
                option=name,
            )
        if not isinstance(value, str):
            raise OptionError.invalid(name, value, "a text")
        _CHECKS[name](value)
    return explicit
