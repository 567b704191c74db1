"""Options of a write (`WriteOptions`), its envelope, and the schema registry."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import urlsplit

import pyarrow as pa

from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.schema import ErrorPolicy, OnUnknown, Scope, Ties
from spark_upsert.errors import OptionError, require_plain
from spark_upsert.options.declare import (
    BATCH,
    COLUMN,
    FIXED,
    FREE,
    NEXT,
    NO_NAMES,
    PROPERTY,
    Change,
    Life,
    Option,
    Options,
    at_least,
    choice,
    combined_field,
    declared,
    flag,
    fold,
    member,
    member_of,
    nested_field,
    one_of,
    read_values,
)
from spark_upsert.options.views import ViewOptions
from spark_upsert.payloads.logical_types import DecimalForm, SchemalessDefaults, TimeUnit
from spark_upsert.payloads.placeholders import Placeholder
from spark_upsert.payloads.schema_registry import RegistrySettings
from spark_upsert.table.log.properties import FULL_WAIT_MS, PROPERTIES, LateRows, checked

REGISTRY_OPTIONS = (
    Option("schemaRegistry.url", Options.text, NEXT).with_meaning(
        "URL of a schema registry with Confluent's REST API. For several replicas of one registry, "
        "separate the URLs with commas."
    ),
    Option("schemaRegistry.user", Options.text, NEXT).with_meaning(
        "User for basic authentication."
    ),
    Option("schemaRegistry.password", Options.text, NEXT).with_meaning(
        "Password for basic authentication. Never shown."
    ),
    Option("schemaRegistry.token", Options.text, NEXT).with_meaning(
        "Bearer token, instead of user and password. Never shown."
    ),
    Option("schemaRegistry.headers", Options.text, NEXT).with_meaning(
        "Additional request headers: `Name: value`, one per line. Never shown."
    ),
    Option("schemaRegistry.caFile", Options.text, NEXT).with_meaning(
        "CA certificate file for the registry, present on every machine. Default: the system's "
        "certificates."
    ),
)
"""Options for the schema registry address and authentication."""

_URL, *_REGISTRY_DETAILS = (option.name for option in REGISTRY_OPTIONS)
_HEADER = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([\x20-\x7e\t]*?)[ \t]*")
"""An HTTP header line."""


class SchemaFrom(Enum):
    """Schema source for keys or values if no option declares the schema."""

    INLINE = "inline"
    """At the start of each payload (`payloads.connect`)."""
    REGISTRY = "registry"
    """Schema registry, by the ID at the start of each payload."""


def schema_sources(
    payloads: Mapping[str, str | None], *, has_registry: bool, is_debezium: bool
) -> dict[str, SchemaFrom]:
    """Return schema sources by side, for sides without a declared schema.

    ``payloads`` has the options ``<side>Format`` and ``<side>Schema``. With Debezium, keys inherit
    the value format by default. Raises `OptionError` if a format does not support the source.
    """
    source_by_side: dict[str, SchemaFrom] = {}
    for side in ("value", "key"):
        text, written = payloads[f"{side}Schema"], payloads[f"{side}Format"]
        if side == "key" and is_debezium:
            written = written or payloads["valueFormat"]
            if (
                text is None
                and source_by_side.get("value") is SchemaFrom.INLINE
                and fold(written or "") == "json"
            ):
                text = SchemaFrom.INLINE.value
        source = _source(side, text, fold(written or ""), has_registry=has_registry)
        if source is not None:
            source_by_side[side] = source
    return source_by_side


def _source(side: str, text: str | None, written: str, *, has_registry: bool) -> SchemaFrom | None:
    is_framed = written in ("avroconfluent", "jsonconfluent")
    named = fold(text or (SchemaFrom.REGISTRY.value if has_registry and is_framed else ""))
    if named == SchemaFrom.INLINE.value:
        if written != "json":
            raise OptionError(
                f"option '{side}Schema' is 'inline', which means JSON that begins with its schema.",
                hint=f"use {side}Format=json, or give the schema.",
                option=f"{side}Schema",
            )
        return SchemaFrom.INLINE
    if named != SchemaFrom.REGISTRY.value:
        return None
    if not is_framed:
        raise OptionError(
            f"option '{side}Schema' is 'registry', and {side}Format={written or 'none'} has no ids "
            "of schemas.",
            hint=f"use {side}Format=avro-confluent or json-confluent.",
            option=f"{side}Schema",
        )
    if not has_registry:
        raise OptionError.missing(_URL, f"{side}Schema=registry asks there")
    return SchemaFrom.REGISTRY


def registry_settings(options: Options) -> RegistrySettings | None:
    """Parse schema registry settings; None without an address. Errors contain no secrets."""
    text = options.text(_URL)
    if text is None:
        options.refuse(
            _REGISTRY_DETAILS,
            f"says how a schema registry is asked, and '{_URL}' is missing",
            hint=f"give '{_URL}', or drop it.",
        )
        return None
    urls = tuple(url.strip().rstrip("/") for url in text.split(","))
    for url in urls:
        if "@" in url:
            raise OptionError.refused(
                _URL,
                "holds a user or a password, which logs would show",
                hint="give 'schemaRegistry.user' and 'schemaRegistry.password'.",
            )
        require_plain(url, option=_URL)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise OptionError.invalid(_URL, url, "an address such as 'http://registry:8081'")
    user, password, token, headers, ca_file = map(options.text, _REGISTRY_DETAILS)
    options.refuse_together("schemaRegistry.user", "schemaRegistry.token")
    if password is not None and user is None:
        raise OptionError.missing("schemaRegistry.user", "whose password is given")
    return RegistrySettings(
        urls=urls,
        user=user,
        password=password,
        token=token,
        headers=_headers(headers or ""),
        ca_file=ca_file,
    )


def _headers(text: str) -> tuple[tuple[str, str], ...]:
    header_names = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _HEADER.fullmatch(line.strip())
        if match is None:
            raise OptionError.refused(
                "schemaRegistry.headers",
                f"expects 'Name: value' in each line, and line {number} is none",
                hint="write 'Name: value', each header in a line of its own.",
            )
        header_names.append((match[1], match[2]))
    return tuple(header_names)


class Truncates(Enum):
    """Policy for truncate events."""

    ERROR = "error"
    OVERWRITE = "overwrite"
    """Deletes all but newer rows (`table.write.write_set`)."""
    IGNORE = "ignore"


class MissingFields(Enum):
    """Meaning of a member missing from a JSON payload."""

    NULL = "null"
    UNCHANGED = "unchanged"


class EnvelopeKind(Enum):
    """Row format in a write."""

    UPSERT = "upsert"
    DEBEZIUM = "debezium"
    KAFKA = "kafka"
    CHANGELOG = "changelog"
    POSTGRES = "postgres"


class Operation(Enum):
    """Effect of written rows."""

    UPSERT = "upsert"
    DELETE = "delete"
    """Delete by key."""


SIDES = ("key", "value")


def _placeholder(options: Options, name: str) -> Placeholder | None:
    text = options.text(name)
    return None if text is None else Placeholder.parse(text)


@dataclass(frozen=True, kw_only=True)
class EnvelopeOptions:
    """Envelope type, and options for single types."""

    kind: EnvelopeKind = Option(
        "envelope",
        member_of(EnvelopeKind),
        Life(Change.NEXT, "with the same keys, order and columns"),
        default=EnvelopeKind.UPSERT,
    ).as_field(
        "Row format. `upsert`: plain columns. `debezium`: change events with `before`, `after` and "
        "`op`. `kafka`: records with bytes in `key` and `value`. `changelog`: change feed rows "
        'with `_change_type`. `postgres`: rows of `format("upsertflow.postgres")`, into many '
        "tables. Default `upsert`."
    )
    payloads: Mapping[str, str | None] = combined_field(
        Option("keyFormat", Options.text, NEXT).with_meaning(
            "With `envelope=kafka` or `debezium`: the key format. `json`, `avro`, `raw` (the bytes "
            "are the value), or `json-confluent` and `avro-confluent` (with Confluent's five-byte "
            "header)."
        ),
        Option("keySchema", Options.text, NEXT).with_meaning(
            "Key schema. For `json`: columns such as `id BIGINT`, a single type for a scalar, or a "
            "StructType as JSON. For `avro`: the writer's schema. For `raw`: `BINARY` (default) or "
            "`STRING`, optionally after a column name. `inline`: each message contains its schema, "
            'as Kafka Connect writes it (`{"schema": ..., "payload": ...}`). `registry`: from the '
            "schema registry; default for the Confluent formats if `schemaRegistry.url` is set. "
            "With `envelope=debezium`, the default is the same as for values."
        ),
        Option("keySchemaId", at_least(0), NEXT).with_meaning(
            "With a Confluent format: the only schema ID accepted in keys. Default: any."
        ),
        Option("valueFormat", Options.text, NEXT).with_meaning(
            "Like `keyFormat`, for values. With `envelope=debezium`, `raw` is not supported, and "
            "this is the default for `keyFormat`; if omitted, the rows must contain the events as "
            "structs."
        ),
        Option("valueSchema", Options.text, NEXT).with_meaning(
            "Like `keySchema`, for values. With `envelope=debezium`: for `json`, the columns of a "
            "row, such as `id BIGINT, name STRING`; for `avro`, the writer's schema of the "
            "complete event."
        ),
        Option("valueSchemaId", at_least(0), NEXT).with_meaning("Like `keySchemaId`, for values."),
        Option("valueSubject", Options.text, NEXT).with_meaning(
            "With a schema registry and a `path` without braces: the subject whose newest schema "
            "defines the columns, usually `<topic>-value`. Such a write is planned before any row "
            "is read."
        ),
        Option("keySubject", Options.text, NEXT).with_meaning(
            "Like `valueSubject`, for keys; usually `<topic>-key`."
        ),
    )
    """``keyFormat``, ``keySchema``, ``valueFormat`` and ``valueSchema``."""
    schema_ids: Mapping[str, int | None] = field(default_factory=dict)
    """By ``key`` and ``value``; None accepts any."""
    sources: Mapping[str, SchemaFrom] = field(default_factory=dict)
    """By side; absent if an option declares the schema."""
    registry: RegistrySettings | None = combined_field(*REGISTRY_OPTIONS, default=None)
    schemaless_defaults: SchemalessDefaults = combined_field(
        Option("timeUnit", member_of(TimeUnit), NEXT).with_meaning(
            "With `envelope=debezium` and JSON without schemas: the unit of numbers in "
            "TIMESTAMP_NTZ columns: `millis`, `micros` or `nanos`. Default: values are ISO 8601 "
            "strings."
        ),
        Option("timeUnit.<column>", Options.text, NEXT).with_meaning(
            "Like `timeUnit`, for a single TIMESTAMP or TIMESTAMP_NTZ column."
        ),
        Option("decimalHandling", member_of(DecimalForm), NEXT).with_meaning(
            "With `envelope=debezium` and JSON without schemas: the encoding of DECIMAL columns, "
            "as in Debezium's `decimal.handling.mode`: `precise` (unscaled number in Base64), "
            "`string` or `double`. Required if there are DECIMAL columns."
        ),
        default=SchemalessDefaults(),
    )
    """Conversions for Debezium messages without a schema."""
    truncates: Truncates = Option(
        "onTruncate", member_of(Truncates), NEXT, default=Truncates.ERROR
    ).as_field(
        "With `envelope=debezium`: how to apply a truncate event (`op` = `t`). `error`: like a "
        "failed row, see `onError`. `overwrite`: delete all rows that are not newer, in the same "
        "version as the batch; requires `sequenceBy` with `sequenceScope=table`. `ignore`: keep "
        "the rows and log a warning. Default `error`."
    )
    placeholder: Placeholder | None = Option(
        "unavailableValuePlaceholder", _placeholder, NEXT
    ).as_field(
        "Placeholder for unchanged values that the source did not send, as in the Debezium "
        "connector's `unavailable.value.placeholder`: a string, or `hex:` and hexadecimal digits. "
        "With `envelope=upsert` it is only recognized if you set this option, or `applyAsDeletes` "
        "to `__deleted` or `__op`. Default `__debezium_unavailable_value`."
    )
    missing_fields: MissingFields = Option(
        "missingFields", member_of(MissingFields), NEXT, default=MissingFields.NULL
    ).as_field(
        "With `envelope=kafka` or `debezium` and declared JSON: the meaning of a field missing from "
        "a value, or from `after`. `null`, or `unchanged`: the row leaves the column unchanged. "
        "Default `null`."
    )
    nulls_as_deletes: bool = Option("nullsAsDeletes", flag, NEXT, default=False).as_field(
        "Whether a row is a delete if all its values except keys and order are null. Default "
        "`false`."
    )
    ignores_nulls: bool = Option(
        "ignoreNullUpdates",
        flag,
        NEXT,
        default=False,
        excludes=("ignoreNullUpdatesColumnList", "ignoreNullUpdatesExceptColumnList"),
    ).as_field(
        "Whether a null leaves a column unchanged instead of setting it to null. Rows may then "
        "lack columns. Not for STRUCT columns: exclude them. Default `false`."
    )
    ignore_nulls_in: tuple[str, ...] = Option(
        "ignoreNullUpdatesColumnList",
        Options.names,
        NEXT,
        default=NO_NAMES,
        excludes=("ignoreNullUpdatesExceptColumnList",),
    ).as_field("Like `ignoreNullUpdates`, for these comma-separated columns only.")
    ignore_nulls_except: tuple[str, ...] = Option(
        "ignoreNullUpdatesExceptColumnList", Options.names, NEXT, default=NO_NAMES
    ).as_field("Like `ignoreNullUpdates`, for all other columns.")
    list_column: str | None = Option("columnsToUpdate", Options.text, NEXT).as_field(
        "Column with the names of the columns that a row sets, as an array of strings; a row "
        "leaves its other columns unchanged. Null: all columns; empty: none. With "
        "`ignoreNullUpdates`, a listed null leaves its column unchanged, too. Only stored if "
        "`columnList` contains it."
    )
    subjects: Mapping[str, str | None] = field(default_factory=dict)
    """``keySubject`` and ``valueSubject``, by side."""
    found: Mapping[str, pa.Schema] = field(default_factory=dict)
    """Schemas inferred from payloads, by side (`envelopes.inferred_schema`)."""
    left_out: frozenset[str] = frozenset()
    """Ignored payload fields, in lower case."""
    used: frozenset[str] = frozenset()
    """Payload fields read but not stored, in lower case."""
    is_tolerant: bool = False
    """Whether payloads with unsupported or contradicting schemas count as invalid rows."""

    @property
    def finds(self) -> bool:
        """Whether columns still have to be inferred from payloads."""
        return bool(self.sources) and not self.found

    @classmethod
    def parse(cls, options: Options) -> EnvelopeOptions:
        """Parse the envelope options."""
        kind = choice(options, "envelope", EnvelopeKind) or EnvelopeKind.UPSERT
        registry = registry_settings(options)
        names = [
            *(f"{side}{suffix}" for side in SIDES for suffix in ("Format", "Schema", "SchemaId")),
            *(f"{side}Subject" for side in SIDES),
        ]
        if kind not in (EnvelopeKind.DEBEZIUM, EnvelopeKind.KAFKA):
            options.refuse(
                names,
                f"has no meaning with the envelope '{kind.value}'",
                hint="add .option('envelope', 'kafka') for records of Kafka, or 'debezium' for "
                "change events in them; or drop it.",
            )
        if kind is EnvelopeKind.DEBEZIUM and options.text("valueFormat") is None:
            options.refuse(
                (*names, "timeUnit", "decimalHandling"),
                "says how Kafka's records are written, and 'valueFormat' is missing",
                hint="add 'valueFormat' and 'valueSchema' to read the columns 'key' and "
                "'value' of Kafka's records; drop it where the events are structs already.",
            )
        if kind is not EnvelopeKind.DEBEZIUM:
            options.refuse(
                ("timeUnit", "decimalHandling", "onTruncate"),
                f"has no meaning with the envelope '{kind.value}'",
                hint="add .option('envelope', 'debezium') for change events, or drop it.",
            )
        if kind in (EnvelopeKind.CHANGELOG, EnvelopeKind.POSTGRES):
            options.refuse(
                "unavailableValuePlaceholder",
                "has no meaning for change rows, which have all values",
                hint="drop it.",
            )
        if fold(options.text("valueFormat") or "").partition("confluent")[0] != "json":
            options.refuse(
                "missingFields",
                "says what a field missing from JSON means, and 'valueFormat' is not JSON",
                hint="drop it, or read records by valueFormat=json or json-confluent.",
            )
        marks_deletes = (EnvelopeKind.UPSERT, EnvelopeKind.KAFKA)
        for name in ("applyAsDeletes", "nullsAsDeletes"):
            if kind not in (marks_deletes if name == "applyAsDeletes" else marks_deletes[:1]):
                options.refuse(
                    name,
                    f"has no meaning with the envelope '{kind.value}', which marks deletes itself",
                    hint="drop it.",
                )
        payloads = {
            name: options.text(name) for name in names if name.endswith(("Format", "Schema"))
        }
        sources = schema_sources(
            payloads, has_registry=registry is not None, is_debezium=kind is EnvelopeKind.DEBEZIUM
        )
        _refuse_with_inferred_schemas(options, sources)
        if registry is not None and SchemaFrom.REGISTRY not in sources.values():
            raise OptionError.refused(
                "schemaRegistry.url",
                "is given, and no schema is to be asked for there",
                hint="use the envelope 'kafka' or 'debezium' with a format 'avro-confluent' or "
                "'json-confluent', and without the schema; or drop the option.",
            )
        return cls(
            payloads=payloads,
            schema_ids={side: options.number(f"{side}SchemaId") for side in SIDES},
            sources=sources,
            registry=registry,
            subjects={side: options.text(f"{side}Subject") for side in SIDES},
            schemaless_defaults=_schemaless_defaults(options),
            **read_values(cls, options),
        )


def _refuse_with_inferred_schemas(options: Options, sources: Mapping[str, SchemaFrom]) -> None:
    """Raise for options duplicating information in inferred schemas."""
    for side in SIDES:
        if sources.get(side) is not SchemaFrom.REGISTRY:
            options.refuse(
                f"{side}Subject",
                f"names a schema of a registry, and that of the {side}s is given or inline",
                hint="drop it, or use a Confluent format with 'schemaRegistry.url' and without "
                f"'{side}Schema'.",
            )
        if side in sources:
            options.refuse(
                f"{side}SchemaId",
                "fixes one schema, and each payload is read by its own",
                hint=f"drop it, or give that schema as '{side}Schema'.",
            )
    if "value" in sources:
        options.refuse(
            "missingFields",
            "has no meaning for payloads whose schema says which fields they have",
            hint="drop it.",
        )
        options.refuse(
            ("timeUnit", "decimalHandling"),
            "has no meaning for payloads whose schema says what values mean",
            hint="drop it.",
        )
        if options.by_column("timeUnit.<column>"):
            raise OptionError.refused(
                "timeUnit",
                "has no meaning for payloads whose schema says what values mean",
                hint="drop it.",
            )


def _schemaless_defaults(options: Options) -> SchemalessDefaults:
    units = options.by_column("timeUnit.<column>")
    return SchemalessDefaults(
        unit=choice(options, "timeUnit", TimeUnit),
        units={name.lower(): member("timeUnit", text, TimeUnit) for name, text in units.items()},
        decimals=choice(options, "decimalHandling", DecimalForm),
    )


def _scope(options: Options, name: str) -> Scope | None:
    scope = options.text(name)
    chosen = (Scope.TABLE.value, Scope.EPOCH.value)
    return None if scope is None else Scope(one_of(name, scope, chosen))


def _on_error(options: Options, name: str) -> ErrorPolicy | None:
    policy = choice(options, name, ErrorPolicy)
    if policy not in (None, ErrorPolicy.INLINE):
        options.refuse(
            "errorColumn",
            f"has no meaning with onError={options.text(name)}",
            hint="use onError=inline, or drop it.",
        )
    return policy


def _deferred(options: Options, name: str) -> ViewOptions | None:
    text = options.raw(name)
    return None if text is None else ViewOptions.from_deferred_text(text, options.storage)


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Parsed options for a write; None if not set."""

    path: str = Option(
        "path",
        Options.path,
        Life(Change.REFUSED, "a new table lacks the earlier batches (`allowMissingBatches`)"),
        required=True,
        is_of_whole=True,
    ).as_field("Table location: a local path or an object store URL. Required.")
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    keys: tuple[str, ...] = Option("keys", Options.names, FIXED, default=NO_NAMES).as_field(
        "Comma-separated columns that identify a row. Required for the first write."
    )
    hash_prefix: int | None = Option("hashPrefix", at_least(0), FIXED).as_field(
        "Number of leading `keys` columns that cluster the rows: rows with equal values in them "
        "are stored together and can be read without scanning the table. Less than the number of "
        "keys. Fixed by the first write. Default `0`."
    )
    sequence_by: tuple[str, ...] = Option(
        "sequenceBy", Options.names, FIXED, default=NO_NAMES
    ).as_field(
        "Comma-separated columns that order the changes of a key; the greatest value wins. With an "
        "envelope, use dots for struct fields (`source.lsn`, `value.updated_at`). Default: none; "
        "with `envelope=kafka`, `partition,offset`; with `envelope=changelog`, `_commit_version`."
    )
    scope: Scope | None = Option("sequenceScope", _scope, FIXED).as_field(
        "`table`: `sequenceBy` values are compared across epochs, so a late older row is stale. "
        "`epoch`: a later epoch always wins. Default `table`; with the default order of "
        "`envelope=kafka` or `changelog`, `epoch`."
    )
    operation: Operation = Option(
        "operation", member_of(Operation), NEXT, default=Operation.UPSERT, is_of_whole=True
    ).as_field(
        "`upsert`: rows are inserted or updated, and deleted if `applyAsDeletes` or the envelope "
        "marks them. `delete`: delete by key, regardless of `sequenceBy`; columns other than the "
        "keys are ignored. Default `upsert`."
    )
    envelope: EnvelopeOptions = nested_field(EnvelopeOptions)
    on_error: ErrorPolicy | None = Option(
        "onError", _on_error, Life(Change.REFUSED, "except from `fail` to `quarantine`")
    ).as_field(
        "Policy for rows that cannot be applied. `fail`: the write fails. `inline`: an undecodable "
        "value is stored as a row with an error in `errorColumn`. `quarantine`: the row is stored "
        "separately until a later row with its key replaces it. Fixed by the first write, except "
        "that you can change `fail` to `quarantine`. Default `fail`."
    )
    error_column: str | None = Option("errorColumn", Options.text, FIXED).as_field(
        "With `onError=inline`: the name of the error column. Default `error`."
    )
    on_unknown: OnUnknown | None = Option(
        "onUnknown",
        member_of(OnUnknown),
        Life(Change.REFUSED, "except from `fail`, and to `fail` while no value is unknown"),
    ).as_field(
        "Policy for a row with an unknown value: every row of its key left the column unchanged, or "
        "a delete came since (docs/envelopes.md). `fail`: the write fails. `quarantine`: the row is "
        "stored separately until the value arrives. `null`: the row shows null. Fixed by the first "
        "write, except that you can change `fail`, and change to `fail` while no value is unknown. "
        "Default `fail`; with `ignoreNullUpdates` or its column lists, and always with "
        "`mergeEngine=partial-update` or `aggregation`, `null`."
    )
    deletes: str | None = Option("applyAsDeletes", Options.text, NEXT).as_field(
        "Column that marks deletes: a Boolean, or Debezium's `__deleted` (`true`, `false`) or "
        "`__op` (`d` deletes; `c`, `r`, `u` do not) as a string. With `envelope=kafka`, a field in "
        "the value. Null does not delete. Only stored if `columnList` contains it."
    )
    columns: tuple[str, ...] = Option(
        "columnList",
        Options.names,
        Life(
            Change.REFUSED,
            "if you remove a column; to add one, use `mergeSchema`",
        ),
        default=NO_NAMES,
        excludes=("exceptColumnList",),
    ).as_field("Comma-separated columns to store. Default: all except `applyAsDeletes`.")
    except_columns: tuple[str, ...] = Option(
        "exceptColumnList",
        Options.names,
        Life(Change.REFUSED, "like `columnList`"),
        default=NO_NAMES,
    ).as_field("Comma-separated columns not to store.")
    allow_non_empty_path: bool = Option("allowNonEmptyPath", flag, NEXT, default=False).as_field(
        "Whether a table may be created in a folder that contains foreign files or a Delta table. "
        "Default `false`."
    )
    merge_schema: bool = Option("mergeSchema", flag, NEXT, default=False).as_field(
        "Whether the write may add columns to the table and widen types. Default `false`."
    )
    engine: MergeEngine | None = combined_field(
        Option("mergeEngine", member_of(Engine), FIXED).with_meaning(
            "How rows with the same key are merged: `deduplicate` (the greatest order wins), "
            "`first-row`, `partial-update` or `aggregation`. Fixed by the first write. Default "
            "`deduplicate`."
        ),
        Option("aggregate.<column>", Options.text, FIXED).with_meaning(
            "With `mergeEngine=aggregation`: the function for a column: `sum`, `max`, `min`, "
            "`last_non_null` or `collect`. Default `last_non_null`."
        ),
        Option("sequenceBy.<column>", Options.text, FIXED).with_meaning(
            "With `mergeEngine=partial-update`: the column that orders the values of this column. "
            "Its type equals that of the `sequenceBy` column, or is narrower or wider. A delete "
            "removes the values from all rows that `sequenceBy` orders before it, regardless of "
            "this order."
        ),
        default=None,
    )
    """Column names as written."""
    properties: Mapping[str, str] = combined_field(
        Option("tombstoneRetention", Options.text, PROPERTY).with_meaning(
            "How long deletes are remembered, so that late older rows stay deleted: for example `7 "
            "days`, `1000 epochs` or `forever`. Table property. Default `7 days`; always `forever` "
            "with `mergeEngine=partial-update` and `sequenceBy`."
        ),
        Option("maxBacklogEpochs", Options.text, PROPERTY).with_meaning(
            "Maximum backlog in epochs: how many a table may have that its slowest live consumer "
            "(`consumerId`) has not read. Table property. Default `0`: unlimited."
        ),
        Option("maxBacklogBytes", Options.text, PROPERTY).with_meaning(
            "Maximum backlog in bytes of files. A single batch above this limit is always "
            "rejected. Table property. Default `0`: unlimited."
        ),
        Option("rowTtl", Options.text, PROPERTY).with_meaning(
            "Row lifetime, such as `30 days`: `upsertflow expire` deletes older rows by `rowTtlBy` "
            "and records the deletes in the changelog (docs/history.md). `none`: rows never "
            "expire. Table property. Default `none`."
        ),
        Option("rowTtlBy", Options.text, PROPERTY).with_meaning(
            "With `rowTtl`: the timestamp or date column that determines the age of a row; rows "
            "with null never expire. `_commit_timestamp`: the time of the last commit that wrote "
            "the row; the table then retains its versions for `rowTtl`. Table property."
        ),
        Option("onFull", Options.text, PROPERTY).with_meaning(
            "Policy for writes to a table at its backlog limit. `wait`: wait for consumers up to "
            "`onFullTimeout`, then fail. `reject`: fail immediately. Table property. Default "
            "`wait`."
        ),
        Option("backpressure", Options.text, PROPERTY).with_meaning(
            "Whether overloaded consumers (`consumerId`) slow down writers to this table. Table "
            "property. Default `false`."
        ),
        Option("indexBy", Options.text, PROPERTY).with_meaning(
            "Comma-separated columns to index. Each index is a table of keys below `_index`, "
            "updated after each commit. Table property. Default: none."
        ),
        Option("publish", Options.text, PROPERTY).with_meaning(
            "`delta`: update a Delta table, a mirror of this table, after each commit "
            "(docs/delta.md). `none`: stop the updates. Table property. Default `none`."
        ),
        Option("publishPath", Options.text, PROPERTY).with_meaning(
            "With `publish`: the Delta table location. In a write to many tables it contains the "
            "placeholder `{table}`, the last part of each table's path. Table property. Default: "
            "`_delta` below the table."
        ),
        Option("publishInterval", Options.text, PROPERTY).with_meaning(
            "With `publish`: the minimum time between two publications, such as `10 seconds`. The "
            "first commit after the interval publishes all commits before it, too. `auto`: when "
            "deletion vectors cost at most 2 bytes per written row, or at the first commit 10 "
            "minutes after the last publication (docs/delta.md). Table property. Default `0 "
            "seconds`: after each commit."
        ),
        Option("publishChangeFeed", Options.text, PROPERTY).with_meaning(
            "With `publish`: whether the Delta table has a change feed. Table property. Default "
            "`false`."
        ),
        Option("publishRetention", Options.text, PROPERTY).with_meaning(
            "With `publish`: how long a Delta version stays readable after the next version, at "
            "least `1 hour`. Deletion vectors are retained for the same time. Table property. "
            "Default `6 hours`."
        ),
        Option("publishGuard", Options.text, PROPERTY).with_meaning(
            "With `publish`: whether the Delta table requires an unknown writer feature, so that "
            "all other writers that follow the protocol refuse it. Table property. Default `true`."
        ),
        Option("binlogNames", Options.text, PROPERTY).with_meaning(
            "For an order by `source.file` from MySQL or MariaDB: the base names of the server's "
            "binlogs, comma-separated, oldest first, such as `mysql-bin,binlog`. You can only "
            "append names. Table property. Default: the base name in the first rows."
        ),
        Option("priority", Options.text, PROPERTY).with_meaning(
            "Priority from -1000 to 1000 in streams over several inputs with limits per trigger; "
            "the read option `input.<name>.priority` overrides it. In a write to many tables it "
            "also sets the table's priority for compaction. Table property. Default: none, treated "
            "as 0."
        ),
    )
    """Table properties set by this write."""
    full_wait_ms: int = Option(
        "onFullTimeout", Options.duration_ms, FREE, default=FULL_WAIT_MS
    ).as_field(
        "Maximum time this write waits for a full table with `onFull=wait`, or for overloaded "
        "consumers (`backpressure`). Default `60 seconds`."
    )
    """Maximum wait for room with ``onFull=wait``, and for overloaded consumers."""
    disable_backpressure: bool = Option("disableBackpressure", flag, FREE, default=False).as_field(
        "Whether this write ignores overloaded consumers. Backlog limits still apply. Default "
        "`false`."
    )
    ties: Ties | None = Option(
        "ties",
        member_of(Ties),
        Life(Change.REFUSED, "except between `last` and `fail`"),
    ).as_field(
        "Policy for two rows with the same key and order but different values. `last`: the later "
        "row wins (the later row in a task, the later epoch; between tasks of one epoch, the "
        "greater values). `first`: the earlier row wins. `fail`: the write fails. Ties are counted "
        "as `tied` and logged as a warning. Ties between two rows that a third row in the same "
        "write supersedes have no effect and are not always detected. Default `last`; with "
        "`mergeEngine=first-row`, `first`."
    )
    late_rows: LateRows | None = Option("lateRows", member_of(LateRows), NEXT).as_field(
        "Policy for a row with a new key that is so old that its delete may be forgotten "
        "(`tombstoneRetention`). `reject`: the row is skipped, counted, and logged as a warning. "
        "`apply`: the row is inserted, as in a backfill. `fail`: the write fails. A delete of that "
        "age is skipped and counted; with `apply` it is stored. Default: `fail` for a batch write, "
        "`reject` for a stream and with `onTruncate=overwrite`."
    )
    allow_unordered: bool = Option("allowUnordered", flag, NEXT, default=False).as_field(
        "Without `sequenceBy`: accept different values for one key from several tasks in the same "
        "epoch; any of them may win. Default `false`."
    )
    allow_missing_batches: bool = Option(
        "allowMissingBatches", flag, NEXT, default=False, is_of_whole=True
    ).as_field(
        "Stream: continue although the table lacks earlier batches of the query, for example if "
        "the checkpoint belongs to another table. Default `false`."
    )
    app_id: str | None = Option("txnAppId", Options.text, BATCH, is_of_whole=True).as_field(
        "With `txnVersion`: the application ID that makes a batch write idempotent."
    )
    app_version: int | None = Option("txnVersion", at_least(0), BATCH, is_of_whole=True).as_field(
        "Transaction number; increase it with each batch write for the same `txnAppId`."
    )
    checkpoint: str | None = Option(
        "checkpointLocation",
        Options.text,
        Life(Change.NEXT, "a new location starts a new query, from its first batch"),
        is_of_whole=True,
    ).as_field("Spark's checkpoint location for a streaming query.")
    deferred: ViewOptions | None = Option(
        "deferred", _deferred, Life(Change.NEXT, "set by `keep`"), is_of_whole=True
    ).as_field(
        "Stream: read options for a view, as JSON. The writing tasks then receive the view's "
        "splits instead of rows, and read them. Set by `keep`, which materializes a view."
    )
    """View read with splits arriving instead of rows; the writing tasks read them."""

    @classmethod
    def parse(cls, texts_by_name: Mapping[str, str]) -> WriteOptions:
        """Parse the options for a write; raises `OptionError`."""
        options = Options(texts_by_name, WRITE_OPTIONS)
        _refuse_with_delete(options)
        envelope, engine = EnvelopeOptions.parse(options), _engine(options)
        if (
            envelope.kind is EnvelopeKind.CHANGELOG
            and engine is not None
            and engine.kind is Engine.AGGREGATION
        ):
            raise no_aggregate_of_changes()
        named_transaction(options)
        return cls(
            storage=options.storage,
            envelope=envelope,
            engine=engine,
            properties=_properties(options),
            **read_values(cls, options),
        )


WRITE_OPTIONS = declared(WriteOptions)


_ALLOWED_WITH_DELETE = frozenset(
    {
        *("path", "keys", "operation", "checkpointLocation", "allowMissingBatches"),
        *("txnAppId", "txnVersion", "onFullTimeout", "disableBackpressure"),
    }
)
"""Options allowed with operation=delete, in addition to storage options."""


def _refuse_with_delete(options: Options) -> None:
    """Raise for options about stored rows if the write only deletes by key."""
    if choice(options, "operation", Operation) is not Operation.DELETE:
        return
    for name in WRITE_OPTIONS.keys() - _ALLOWED_WITH_DELETE:
        is_given = bool(options.by_column(name)) if COLUMN in name else options.text(name)
        if is_given:
            raise OptionError.refused(
                name,
                "says how rows are stored, and operation=delete stores none",
                hint=f"drop '{name}'; mark deletes among other rows by 'applyAsDeletes', without "
                "'operation'.",
            )


def named_transaction(options: Options) -> tuple[str | None, int | None]:
    """Return transaction name and number for an idempotent batch write; both or neither."""
    app_id, app_version = options.text("txnAppId"), options.number("txnVersion")
    if (app_id is None) != (app_version is None):
        missing = "txnAppId" if app_id is None else "txnVersion"
        raise OptionError.missing(missing, "'txnAppId' and 'txnVersion' go together")
    return app_id, app_version


def no_aggregate_of_changes() -> OptionError:
    """Return the error for change rows in an aggregating table."""
    return OptionError.conflict(
        f"envelope={EnvelopeKind.CHANGELOG.value}",
        f"mergeEngine={Engine.AGGREGATION.value}",
        why="an aggregate cannot give back what a change took away",
        hint="use mergeEngine=deduplicate, and aggregate where the table is read; where rows are "
        "only ever inserted, drop the columns of the change feed, and write without 'envelope'.",
    )


def _engine(options: Options) -> MergeEngine | None:
    kind = choice(options, "mergeEngine", Engine)
    texts = options.by_column("aggregate.<column>")
    rules = {column: member(f"aggregate.{column}", text, Rule) for column, text in texts.items()}
    order = options.by_column("sequenceBy.<column>")
    if kind is None and not (rules or order):
        return None
    return MergeEngine.chosen(kind or Engine.DEDUPLICATE, rules, order)


def _properties(options: Options) -> dict[str, str]:
    property_texts = {name: options.text(name) for name in PROPERTIES}
    return checked({name: text for name, text in property_texts.items() if text is not None})
