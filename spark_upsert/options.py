"""The options of reads and writes: their names, meanings and checks. One home for both sides.

Names are matched without case, ``-`` and ``_``, so that ``starting_version`` is
``startingVersion``. An unknown name is an error that says the nearest one. Everything is
parsed at once, on the driver, before anything is written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import TypeVar

from spark_upsert.durations import EXPECTED, try_parse_ms
from spark_upsert.engines import MergeEngine
from spark_upsert.errors import OptionError
from spark_upsert.handed_down import missing_path, users_own
from spark_upsert.schema import ErrorPolicy, Scope, Ties
from spark_upsert.state.properties import checked
from spark_upsert.state.retention.leases import require_name
from spark_upsert.state.retention.policy import LEASE_MS
from spark_upsert.state.tombstones import PROPERTY as TOMBSTONE_RETENTION
from spark_upsert.state.tombstones import LateRows
from spark_upsert.upsert.changes import Deduplication
from spark_upsert.upsert.envelopes.debezium.events import Truncates
from spark_upsert.upsert.payloads.connect import DecimalForm, TimeUnit, Unsaid

STORAGE_PREFIX = "storage."

COLUMN = "<column>"
"""Stands for a column in the name of an option that there is one of per column."""

WRITE_OPTIONS: Mapping[str, str] = {
    "path": "Where the table lies: a local path or an object store's URL. Required.",
    "keys": "Comma-separated columns that identify a row. Required for the first write.",
    "sequenceBy": "Comma-separated columns that order the commands of a key: the greatest wins. "
    "With an envelope, dots lead into structs (`source.lsn`, `value.updated_at`). Default: none; "
    "with `envelope=kafka`, `partition,offset`.",
    "sequenceBy.<column>": "With `mergeEngine=partial-update`: the column that orders the values "
    "of this one, of the type of the `sequenceBy` column.",
    "sequenceScope": "`table`: order keys compare across epochs, a late older row is stale. "
    "`epoch`: the later epoch wins. Default `table`; with the default order of `envelope=kafka`, "
    "`epoch`.",
    "envelope": "What the rows are. `upsert`: plain columns. `debezium`: change events with "
    "`before`, `after` and `op`. `kafka`: records with bytes in `key` and `value`. Default "
    "`upsert`.",
    "keyFormat": "With `envelope=kafka` or `debezium`: how keys are written: `json`, `avro`, `raw` "
    "(the bytes are the value), or `json-confluent` and `avro-confluent` (behind Confluent's "
    "header of five bytes).",
    "keySchema": "What keys hold. For `json`: columns as in `id BIGINT`, a "
    "type alone for a plain value, or the JSON of a StructType. For `avro`: the writer's schema. "
    "For `raw`: `BINARY` (the default) or `STRING`, with a name before it or not.",
    "keySchemaId": "With a Confluent format: the only schema id that keys may have. Default: any.",
    "valueFormat": "The same as `keyFormat`, for values. With `envelope=debezium` not `raw`, and "
    "the default of `keyFormat`; without it, the rows are events that are structs already.",
    "valueSchema": "The same as `keySchema`, for values. With `envelope=debezium`: for `json`, the "
    "columns of a row, as in `id BIGINT, name STRING`; for `avro`, the writer's schema of the "
    "whole event.",
    "valueSchemaId": "The same as `keySchemaId`, for values.",
    "timeUnit": "With `envelope=debezium` and JSON without schemas: the unit of numbers in "
    "TIMESTAMP_NTZ columns: `millis`, `micros` or `nanos`. Default: they are ISO 8601 texts.",
    "timeUnit.<column>": "The same for one column, be it TIMESTAMP or TIMESTAMP_NTZ.",
    "decimalHandling": "With `envelope=debezium` and JSON without schemas: how DECIMAL columns are "
    "written, as Debezium's `decimal.handling.mode`: `precise` (Base64 of the unscaled number), "
    "`string` or `double`. Required if there are any.",
    "onTruncate": "With `envelope=debezium`: what becomes of a truncate (`op` = `t`). `error`: "
    "`onError` decides. `overwrite`: rows that are not younger go, by an epoch of its own right "
    "before that of the batch; needs a `sequenceBy` that reaches across epochs. `ignore`: a "
    "warning in the log; the rows stay. Default `error`.",
    "onError": "What becomes of a row that cannot be applied. `fail`: the write fails. `inline`: a "
    "value that cannot be decoded is a row with an error. `quarantine`: the row is kept apart "
    "until a later row of its key clears it. Fixed by the first write, but that `fail` may "
    "become `quarantine`. Default `fail`.",
    "errorColumn": "With `onError=inline`: the name of the column of errors. Default `error`.",
    "applyAsDeletes": "Boolean column that marks deletes. Not stored unless `columnList` names it.",
    "nullsAsDeletes": "Whether a row whose values are all null, keys and order apart, is a delete "
    "and not a row of nulls. Default `false`.",
    "columnList": "Comma-separated columns to store. Default: all but `applyAsDeletes`.",
    "exceptColumnList": "Comma-separated columns not to store.",
    "mergeSchema": "Whether the table may gain columns and widen types. Default `false`.",
    "mergeEngine": "What several rows of a key become: `deduplicate` (the greatest order wins), "
    "`first-row`, `partial-update` or `aggregation`. Fixed by the first write. "
    "Default `deduplicate`.",
    "aggregate.<column>": "With `mergeEngine=aggregation`: `sum`, `max`, `min`, `last_non_null` or "
    "`collect`. Default `last_non_null`.",
    "tombstoneRetention": "How long deletes are remembered against late older rows, for example "
    "`7 days`, `1000 epochs` or `forever`. A property of the table. Default `7 days`; with "
    "`mergeEngine=partial-update` and `sequenceBy` it is always `forever`.",
    "ties": "What becomes of two rows of a key with equal order keys and other values. `last`: the "
    "later one wins (the later row of a task, the later epoch; between tasks of one epoch, where "
    "nothing is later, the greater values). `first`: the earlier one stays. `fail`: the write "
    "fails. They are counted as `tied` and warned of. Default `last`; with "
    "`mergeEngine=first-row`, `first`.",
    "lateRows": "What becomes of a row whose key the table does not know and that is so old that "
    "its delete may be forgotten (`tombstoneRetention`). `reject`: it is left out, counted and "
    "warned of. `apply`: it is a row, as in a backfill. `fail`: the write fails. Default: `fail` "
    "for a batch write, `reject` for a stream and with `onTruncate=overwrite`.",
    "allowUnordered": "Without `sequenceBy`: accept different values of one key from several "
    "tasks of one epoch, whichever wins. Default `false`.",
    "allowMissingBatches": "Streams: go on although the table lacks earlier batches of the query, "
    "for example with a checkpoint that wrote to another table before. Default `false`.",
    "txnAppId": "With `txnVersion`: makes a batch write idempotent under this name.",
    "txnVersion": "A number that grows with each batch write of `txnAppId`.",
    "checkpointLocation": "Spark's own: where a streaming query keeps its progress.",
}

READ_OPTIONS: Mapping[str, str] = {
    "path": "Where the table lies. Required.",
    "columns": "Comma-separated columns to read; `_change_type` and its like always come along. "
    "Default: all.",
    "versionAsOf": "Batch: read the table as of this version.",
    "timestampAsOf": "Batch: read the table as of this time (ISO 8601, UTC if it names no zone, "
    "or ms since 1970).",
    "readChangeFeed": "Read changes, old values and deletes included, with the columns "
    "`_change_type`, `_commit_version`, `_commit_timestamp` and `_diff`. Without it a batch reads "
    "the rows, and a stream their new values. Default `false`.",
    "ignoreDeletes": "Stream of new values: leave deletes out. What is made of such a stream keeps "
    "rows that the table has no more. Without it the query stops at a delete. Default `false`.",
    "startingVersion": "First version whose changes are read: a number, `earliest` or `latest` "
    "(only what comes). A stream without it begins with the whole table as inserts.",
    "startingTimestamp": "The same by time: the first version committed at or after it.",
    "endingVersion": "Batch change feed: the last version, inclusive. Default: the newest.",
    "endingTimestamp": "Batch change feed: the last version committed at or before this time.",
    "startingBoundInclusive": "Whether the starting version itself is read. Default `true`.",
    "endingBoundInclusive": "Whether the ending version itself is read. Default `true`.",
    "deduplicationMode": "`none`: every change. `dropCarryovers`: no update that leaves all values "
    "as they were. `netChanges`: at most one change per key over the epochs of one read or "
    "micro-batch. Default `dropCarryovers`.",
    "emitUnchanged": "`true` is short for `deduplicationMode=none`. Default `false`.",
    "computeUpdates": "With `readChangeFeed`: whether a changed row is shown as an update pair; "
    "otherwise as a delete and an insert. Default `true`.",
    "maxRowsPerTrigger": "Stream: soft bound of change rows per micro-batch; an epoch is never "
    "cut.",
    "maxBytesPerTrigger": "Stream: soft bound of bytes read per micro-batch.",
    "maxEpochsPerTrigger": "Stream: bound of epochs per micro-batch.",
    "splits": "Number of read tasks. Default: by the amount of data, at most the parallelism.",
    "parallelism": "Tasks that the cluster runs at once; `register(spark)` fills it in. "
    "Default: the processors of the driver.",
    "failOnDataLoss": "Whether changes that are expired stop a read. `false`: it goes on behind "
    "them with a warning in the log, and sums over the changes are wrong from there on. Default "
    "`true`.",
    "consumerId": "Stream: the name of a lease, one per query, that keeps what the query still has "
    "to read from being expired. Without it, only the ages given to `upsertflow expire` do.",
    "consumerTtl": "Stream: how long the lease outlasts a query that stopped. Default `7 days`.",
    "metadata": "Batch: read about the table instead of its rows: `epochs`, `files`, `history` or "
    "`consumers`; or the rows that could not be applied (`onError=quarantine`): `quarantine`.",
}


def fold(name: str) -> str:
    """Return the form in which option names are compared."""
    return name.lower().replace("-", "").replace("_", "")


class Options:
    """Given options, checked against the known ones."""

    def __init__(self, given: Mapping[str, str], known: Mapping[str, str]) -> None:
        by_fold = {fold(name): name for name in known if COLUMN not in name}
        families = {fold(name.removesuffix(COLUMN)): name for name in known if COLUMN in name}
        self.storage: dict[str, str] = {}
        self._columns: dict[str, dict[str, str]] = {name: {} for name in families.values()}
        self._values: dict[str, str] = {}
        for name, value in users_own(given).items():
            if name.lower().startswith(STORAGE_PREFIX):
                self.storage[name[len(STORAGE_PREFIX) :].lower()] = value
                continue
            prefix, dot, column = name.partition(".")
            family = families.get(fold(prefix + dot))
            if family is not None and column:
                self._columns[family][column] = value
                continue
            own = by_fold.get(fold(name))
            if own is None:
                raise _unknown(name, known)
            if self._values.get(own, value) != value:
                raise OptionError(
                    f"option '{own}' is given twice, as {self._values[own]!r} and {value!r}.",
                    hint="give it once; case, '-' and '_' do not tell options apart.",
                )
            self._values[own] = value

    def text(self, name: str) -> str | None:
        """Return an option's text, None if absent or empty."""
        return self._values.get(name, "").strip() or None

    def by_column(self, name: str) -> Mapping[str, str]:
        """Return what an option of which there is one per column says of each column."""
        return self._columns[name]

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return a truth value."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise OptionError.invalid(name, value, "'true' or 'false'")
        return value.lower() == "true"

    def number(self, name: str, *, least: int = 0) -> int | None:
        """Return a whole number of at least ``least``."""
        value = self.text(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least:
            raise OptionError.invalid(name, value, f"a whole number of at least {least}")
        return number

    def duration_ms(self, name: str) -> int | None:
        """Return a duration in milliseconds, more than none."""
        value = self.text(name)
        if value is None:
            return None
        duration = try_parse_ms(value)
        if not duration:
            raise OptionError.invalid(name, value, EXPECTED)
        return duration

    def names(self, name: str) -> tuple[str, ...]:
        """Return comma-separated names; one that holds a comma stands in backquotes."""
        value = self.text(name)
        return () if value is None else _split_names(name, value)

    def timestamp_ms(self, name: str) -> int | None:
        """Return a time in milliseconds since 1970."""
        value = self.text(name)
        if value is None:
            return None
        if value.lstrip("-").isdigit():
            return int(value)
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            expected = "a time such as '2026-01-31T12:00:00Z', or milliseconds since 1970"
            raise OptionError.invalid(name, value, expected) from None
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        return int(time.timestamp() * 1000)

    def refuse_together(self, *names: str) -> None:
        """Raise if more than one of some options is given."""
        given = [name for name in names if self.text(name) is not None]
        if len(given) > 1:
            raise OptionError(
                f"options '{given[0]}' and '{given[1]}' contradict each other.",
                hint="give one of them.",
            )

    def refuse(self, name: str, reason: str, *, hint: str) -> None:
        """Raise if an option is given where it means nothing."""
        if self.text(name) is not None:
            raise OptionError(f"option '{name}' {reason}.", hint=hint, option=name)

    def path(self) -> str:
        """Return the table's path."""
        path = self.text("path")
        if path is None:
            raise missing_path()
        # A task may run in another folder than the driver: a relative path is the driver's.
        return path if ":/" in path else os.path.abspath(path)


def _unknown(name: str, known: Mapping[str, str]) -> OptionError:
    """Return the error of a name that is not ``known``; perhaps the other side knows it."""
    for side, others in (("writes", WRITE_OPTIONS), ("reads", READ_OPTIONS)):
        own = next((other for other in others if fold(other) == fold(name)), None)
        if own is not None:
            return OptionError(
                f"option '{own}' belongs to {side} only.", hint="drop it here.", option=name
            )
    return OptionError.unknown(name, known)


def _split_names(option: str, text: str) -> tuple[str, ...]:
    names, current, quoted = [], "", False
    for char in text:
        if char == "`":
            quoted = not quoted
        elif char == "," and not quoted:
            names.append(current.strip())
            current = ""
        else:
            current += char
    names.append(current.strip())
    if quoted or not all(names):
        raise OptionError.invalid(option, text, "comma-separated column names")
    return tuple(names)


class EnvelopeKind(Enum):
    """What the rows of a write are."""

    UPSERT = "upsert"
    DEBEZIUM = "debezium"
    KAFKA = "kafka"


@dataclass(frozen=True, kw_only=True)
class EnvelopeOptions:
    """The envelope, and what only one of them knows."""

    kind: EnvelopeKind
    payloads: Mapping[str, str | None]
    """``keyFormat``, ``keySchema``, ``valueFormat`` and ``valueSchema``."""
    schema_ids: Mapping[str, int | None]
    """By ``key`` and ``value``."""
    nulls_as_deletes: bool
    unsaid: Unsaid
    """What messages of Debezium without a schema leave open."""
    truncates: Truncates

    @classmethod
    def parse(cls, options: Options) -> EnvelopeOptions:
        """Check the options of the envelope."""
        kind = _choice(options, "envelope", EnvelopeKind) or EnvelopeKind.UPSERT
        sides = ("key", "value")
        names = [f"{side}{what}" for side in sides for what in ("Format", "Schema", "SchemaId")]
        if kind is EnvelopeKind.UPSERT:
            for name in names:
                options.refuse(
                    name,
                    f"has no meaning with the envelope '{kind.value}'",
                    hint="add .option('envelope', 'kafka') for records of Kafka, or 'debezium' for "
                    "change events in them; or drop it.",
                )
        if kind is EnvelopeKind.DEBEZIUM and options.text("valueFormat") is None:
            for name in (*names, "timeUnit", "decimalHandling"):
                options.refuse(
                    name,
                    "says how Kafka's records are written, and 'valueFormat' is missing",
                    hint="add 'valueFormat' and 'valueSchema' to read the columns 'key' and "
                    "'value' of Kafka's records; drop it where the events are structs already.",
                )
        if kind is not EnvelopeKind.DEBEZIUM:
            for name in ("timeUnit", "decimalHandling", "onTruncate"):
                options.refuse(
                    name,
                    f"has no meaning with the envelope '{kind.value}'",
                    hint="add .option('envelope', 'debezium') for change events, or drop it.",
                )
        if kind is not EnvelopeKind.UPSERT:
            for name in ("applyAsDeletes", "nullsAsDeletes"):
                options.refuse(
                    name,
                    f"has no meaning with the envelope '{kind.value}', which marks deletes itself",
                    hint="drop it.",
                )
        return cls(
            kind=kind,
            payloads={name: options.text(name) for name in names if not name.endswith("Id")},
            schema_ids={side: options.number(f"{side}SchemaId") for side in sides},
            nulls_as_deletes=options.flag("nullsAsDeletes"),
            unsaid=_unsaid(options),
            truncates=_choice(options, "onTruncate", Truncates) or Truncates.ERROR,
        )


class Metadata(Enum):
    """What can be read about a table (`spark_upsert.metadata`)."""

    EPOCHS = "epochs"
    FILES = "files"
    HISTORY = "history"
    CONSUMERS = "consumers"
    QUARANTINE = "quarantine"
    """Not of the log, but of the runs (`spark_upsert.state.quarantine`); at any version."""


_Member = TypeVar("_Member", bound=Enum)


def _choice(options: Options, name: str, members: type[_Member]) -> _Member | None:
    value = options.text(name)
    return None if value is None else _member(name, value, members)


def _member(name: str, value: str, members: type[_Member]) -> _Member:
    for member in members:
        if member.value == value.lower():
            return member
    raise OptionError.not_one_of(name, value, [str(member.value) for member in members])


def _unsaid(options: Options) -> Unsaid:
    units = options.by_column("timeUnit.<column>")
    return Unsaid(
        unit=_choice(options, "timeUnit", TimeUnit),
        units={name.lower(): _member("timeUnit", text, TimeUnit) for name, text in units.items()},
        decimals=_choice(options, "decimalHandling", DecimalForm),
    )


def _on_error(options: Options) -> ErrorPolicy | None:
    policy = _choice(options, "onError", ErrorPolicy)
    if policy not in (None, ErrorPolicy.INLINE):
        options.refuse(
            "errorColumn",
            f"has no meaning with onError={options.text('onError')}",
            hint="use onError=inline, or drop it.",
        )
    return policy


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """The checked options of a write."""

    path: str
    storage: Mapping[str, str] = field(repr=False)
    keys: tuple[str, ...]
    sequence_by: tuple[str, ...]
    scope: Scope | None
    deletes: str | None
    columns: tuple[str, ...]
    except_columns: tuple[str, ...]
    merge_schema: bool
    allow_unordered: bool
    allow_missing_batches: bool
    envelope: EnvelopeOptions
    on_error: ErrorPolicy | None
    """None if the write does not say."""
    error_column: str | None
    ties: Ties | None
    """None if the write does not say."""
    late_rows: LateRows | None
    """None if the write does not say."""
    engine: MergeEngine | None
    """None if the write does not say; its column names are as the user wrote them."""
    properties: Mapping[str, str]
    """Properties of the table that this write sets."""
    app_id: str | None
    app_version: int | None
    checkpoint: str | None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        """Check the options of a write; raises `OptionError`."""
        options = Options(given, WRITE_OPTIONS)
        options.refuse_together("columnList", "exceptColumnList")
        scope = options.text("sequenceScope")
        if scope is not None and scope.lower() not in ("table", "epoch"):
            raise OptionError.invalid("sequenceScope", scope, "'table' or 'epoch'")
        app_id, app_version = options.text("txnAppId"), options.number("txnVersion")
        if (app_id is None) != (app_version is None):
            missing = "txnAppId" if app_id is None else "txnVersion"
            raise OptionError.missing(missing, "'txnAppId' and 'txnVersion' go together")
        return cls(
            path=options.path(),
            storage=options.storage,
            keys=options.names("keys"),
            sequence_by=options.names("sequenceBy"),
            scope=Scope(scope.lower()) if scope else None,
            deletes=options.text("applyAsDeletes"),
            columns=options.names("columnList"),
            except_columns=options.names("exceptColumnList"),
            merge_schema=options.flag("mergeSchema"),
            allow_unordered=options.flag("allowUnordered"),
            allow_missing_batches=options.flag("allowMissingBatches"),
            envelope=EnvelopeOptions.parse(options),
            on_error=_on_error(options),
            error_column=options.text("errorColumn"),
            ties=_choice(options, "ties", Ties),
            late_rows=_choice(options, "lateRows", LateRows),
            engine=_engine(options),
            properties=_properties(options),
            app_id=app_id,
            app_version=app_version,
            checkpoint=options.text("checkpointLocation"),
        )


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The checked options of a read, batch or stream."""

    path: str
    storage: Mapping[str, str] = field(repr=False)
    columns: tuple[str, ...]
    version_as_of: int | None
    timestamp_as_of_ms: int | None
    change_feed: bool
    ignore_deletes: bool
    starting_version: int | str | None
    """A number, ``"latest"`` or ``"earliest"``."""
    starting_timestamp_ms: int | None
    ending_version: int | None
    ending_timestamp_ms: int | None
    starting_inclusive: bool
    ending_inclusive: bool
    deduplication: Deduplication
    compute_updates: bool
    rows_max: int | None
    bytes_max: int | None
    epochs_max: int | None
    splits: int | None
    parallelism: int | None
    fail_on_data_loss: bool
    consumer: str | None
    consumer_ttl_ms: int
    metadata: Metadata | None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ReadOptions:
        """Check the options of a read; raises `OptionError`."""
        options = Options(given, READ_OPTIONS)
        for name in ("columns", "readChangeFeed", "startingVersion", "startingTimestamp"):
            options.refuse_together("metadata", name)
        options.refuse_together("versionAsOf", "timestampAsOf")
        options.refuse_together("startingVersion", "startingTimestamp")
        options.refuse_together("endingVersion", "endingTimestamp")
        starting = options.text("startingVersion")
        version: int | str | None
        if starting is not None and starting.lower() in ("latest", "earliest"):
            version = starting.lower()
        else:
            version = _version(options, "startingVersion", "a version, 'latest' or 'earliest'")
        return cls(
            path=options.path(),
            storage=options.storage,
            columns=options.names("columns"),
            version_as_of=_version(options, "versionAsOf", "a version"),
            timestamp_as_of_ms=options.timestamp_ms("timestampAsOf"),
            change_feed=options.flag("readChangeFeed"),
            ignore_deletes=options.flag("ignoreDeletes"),
            starting_version=version,
            starting_timestamp_ms=options.timestamp_ms("startingTimestamp"),
            ending_version=_version(options, "endingVersion", "a version"),
            ending_timestamp_ms=options.timestamp_ms("endingTimestamp"),
            starting_inclusive=options.flag("startingBoundInclusive", default=True),
            ending_inclusive=options.flag("endingBoundInclusive", default=True),
            deduplication=_deduplication(options),
            compute_updates=options.flag("computeUpdates", default=True),
            rows_max=options.number("maxRowsPerTrigger", least=1),
            bytes_max=options.number("maxBytesPerTrigger", least=1),
            epochs_max=options.number("maxEpochsPerTrigger", least=1),
            splits=options.number("splits", least=1),
            parallelism=options.number("parallelism", least=1),
            fail_on_data_loss=options.flag("failOnDataLoss", default=True),
            consumer=_consumer(options),
            consumer_ttl_ms=options.duration_ms("consumerTtl") or LEASE_MS,
            metadata=_choice(options, "metadata", Metadata),
        )

    def require_batch(self) -> None:
        """Refuse options that only a stream knows."""
        for name, value in (
            ("maxRowsPerTrigger", self.rows_max),
            ("maxBytesPerTrigger", self.bytes_max),
            ("maxEpochsPerTrigger", self.epochs_max),
            ("consumerId", self.consumer),
            ("ignoreDeletes", self.ignore_deletes or None),
        ):
            if value is not None:
                raise OptionError(
                    f"option '{name}' has no meaning in a batch read.",
                    hint="use spark.readStream, or drop the option.",
                )
        if not self.change_feed:
            for name, given in (
                ("startingVersion", self.starting_version),
                ("startingTimestamp", self.starting_timestamp_ms),
                ("endingVersion", self.ending_version),
                ("endingTimestamp", self.ending_timestamp_ms),
            ):
                if given is not None:
                    raise OptionError(
                        f"option '{name}' needs the change feed.",
                        hint="add .option('readChangeFeed', 'true'), or use 'versionAsOf' to "
                        "read the table as it was.",
                    )
        elif self.version_as_of is not None or self.timestamp_as_of_ms is not None:
            raise OptionError(
                "options 'versionAsOf' and 'timestampAsOf' do not go with 'readChangeFeed'.",
                hint="use 'startingVersion' and 'endingVersion'.",
            )

    def require_stream(self) -> None:
        """Refuse options that only a batch read knows."""
        for name, value in (
            ("versionAsOf", self.version_as_of),
            ("timestampAsOf", self.timestamp_as_of_ms),
            ("endingVersion", self.ending_version),
            ("endingTimestamp", self.ending_timestamp_ms),
            ("metadata", self.metadata),
        ):
            if value is not None:
                raise OptionError(
                    f"option '{name}' has no meaning in a stream.",
                    hint="use spark.read, or 'startingVersion' to choose where the stream begins.",
                )
        if self.change_feed and self.ignore_deletes:
            raise OptionError(
                "options 'readChangeFeed' and 'ignoreDeletes' contradict each other: the change "
                "feed shows deletes.",
                hint="drop one of them, or filter with where(\"_change_type != 'delete'\").",
            )
        if not self.change_feed and not self.compute_updates:
            raise OptionError(
                "option 'computeUpdates' has no meaning in a stream of new values.",
                hint="add .option('readChangeFeed', 'true'), or drop the option.",
            )


def _engine(options: Options) -> MergeEngine | None:
    rules = options.by_column("aggregate.<column>")
    order = options.by_column("sequenceBy.<column>")
    name = options.text("mergeEngine")
    return None if not (name or rules or order) else MergeEngine.parse(name, rules, order)


def _properties(options: Options) -> dict[str, str]:
    retention = options.text(TOMBSTONE_RETENTION)
    return checked({} if retention is None else {TOMBSTONE_RETENTION: retention})


def _deduplication(options: Options) -> Deduplication:
    value = options.text("deduplicationMode")
    if value is None:
        everything = options.flag("emitUnchanged")
        return Deduplication.NONE if everything else Deduplication.DROP_CARRYOVERS
    for mode in Deduplication:
        if fold(mode.value) == fold(value):
            if options.flag("emitUnchanged") and mode is not Deduplication.NONE:
                raise OptionError(
                    f"options 'emitUnchanged' and 'deduplicationMode={value}' contradict "
                    "each other.",
                    hint="drop 'emitUnchanged', or use deduplicationMode=none.",
                )
            return mode
    names = "', '".join(mode.value for mode in Deduplication)
    raise OptionError.invalid("deduplicationMode", value, f"one of '{names}'")


def _consumer(options: Options) -> str | None:
    name = options.text("consumerId")
    if name is None and options.text("consumerTtl") is not None:
        raise OptionError.missing("consumerId", "'consumerTtl' says how long its lease lives")
    return None if name is None else require_name(name)


def _version(options: Options, name: str, expected: str) -> int | None:
    value = options.text(name)
    if value is not None and not value.isdigit():
        raise OptionError.invalid(name, value, expected)
    return None if value is None else int(value)
