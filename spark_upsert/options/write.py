"""The checked options of a write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import pyarrow as pa

from spark_upsert.errors import OptionError
from spark_upsert.model.engines import Engine, MergeEngine, Rule
from spark_upsert.model.schema import ErrorPolicy, Scope, Ties
from spark_upsert.options.parse import Options, choice, member, one_of
from spark_upsert.options.reference import WRITE_OPTIONS
from spark_upsert.options.registry import SchemaFrom, registry_settings, schema_sources
from spark_upsert.options.view import ViewOptions
from spark_upsert.payloads.connect.logical import DecimalForm, TimeUnit, Unsaid
from spark_upsert.payloads.registry import RegistrySettings
from spark_upsert.table.log.caps import FULL_WAIT_MS
from spark_upsert.table.log.properties import PROPERTIES, checked
from spark_upsert.table.log.tombstones import LateRows


class Truncates(Enum):
    """What becomes of an event that empties the table."""

    ERROR = "error"
    OVERWRITE = "overwrite"
    """Rows that are not younger than it go (`table.write.truncate`)."""
    IGNORE = "ignore"


class EnvelopeKind(Enum):
    """What the rows of a write are."""

    UPSERT = "upsert"
    DEBEZIUM = "debezium"
    KAFKA = "kafka"
    CHANGELOG = "changelog"


SIDES = ("key", "value")


@dataclass(frozen=True, kw_only=True)
class EnvelopeOptions:
    """The envelope, and what only one of them knows."""

    kind: EnvelopeKind = EnvelopeKind.UPSERT
    payloads: Mapping[str, str | None] = field(default_factory=dict)
    """``keyFormat``, ``keySchema``, ``valueFormat`` and ``valueSchema``."""
    schema_ids: Mapping[str, int | None] = field(default_factory=dict)
    """By ``key`` and ``value``."""
    nulls_as_deletes: bool = False
    unsaid: Unsaid = field(default_factory=Unsaid)
    """What messages of Debezium without a schema leave open."""
    truncates: Truncates = Truncates.ERROR
    sources: Mapping[str, SchemaFrom] = field(default_factory=dict)
    """By side; absent: `SchemaFrom.OPTION`."""
    registry: RegistrySettings | None = None
    subjects: Mapping[str, str | None] = field(default_factory=dict)
    """``keySubject`` and ``valueSubject``, by side."""
    found: Mapping[str, pa.Schema] = field(default_factory=dict)
    """What payloads turned out to hold, by side (`envelopes.found`)."""
    left_out: frozenset[str] = frozenset()
    """Fields of payloads that do not count, in lower case."""
    is_tolerant: bool = False
    """Whether payloads whose schema no table can hold, or contradicts what was found, are rows that
    cannot be applied."""

    @property
    def finds(self) -> bool:
        """Whether columns are to be found in payloads, which no option names."""
        return bool(self.sources) and not self.found

    @classmethod
    def parse(cls, options: Options) -> EnvelopeOptions:
        """Check the options of the envelope."""
        kind = choice(options, "envelope", EnvelopeKind) or EnvelopeKind.UPSERT
        registry = registry_settings(options)
        names = [
            *(f"{side}{what}" for side in SIDES for what in ("Format", "Schema", "SchemaId")),
            *(f"{side}Subject" for side in SIDES),
        ]
        if kind in (EnvelopeKind.UPSERT, EnvelopeKind.CHANGELOG):
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
        payloads = {
            name: options.text(name) for name in names if name.endswith(("Format", "Schema"))
        }
        sources = schema_sources(
            payloads, has_registry=registry is not None, is_debezium=kind is EnvelopeKind.DEBEZIUM
        )
        _refuse_what_schemas_say(options, sources)
        if registry is not None and SchemaFrom.REGISTRY not in sources.values():
            raise OptionError(
                "option 'schemaRegistry.url' is given, and no schema is to be asked for there.",
                hint="use the envelope 'kafka' or 'debezium' with a format 'avro-confluent' or "
                "'json-confluent', and without the schema; or drop the option.",
                option="schemaRegistry.url",
            )
        return cls(
            kind=kind,
            payloads=payloads,
            schema_ids={side: options.number(f"{side}SchemaId") for side in SIDES},
            sources=sources,
            registry=registry,
            subjects={side: options.text(f"{side}Subject") for side in SIDES},
            nulls_as_deletes=options.flag("nullsAsDeletes"),
            unsaid=_unsaid(options),
            truncates=choice(options, "onTruncate", Truncates) or Truncates.ERROR,
        )


def _refuse_what_schemas_say(options: Options, sources: Mapping[str, SchemaFrom]) -> None:
    """Refuse options that say what a schema that is found says itself."""
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
        for name in ("timeUnit", "decimalHandling"):
            options.refuse(
                name,
                "has no meaning for payloads whose schema says what values mean",
                hint="drop it.",
            )
        if options.by_column("timeUnit.<column>"):
            raise OptionError(
                "option 'timeUnit' has no meaning for payloads whose schema says what values mean.",
                hint="drop it.",
                option="timeUnit",
            )


def _unsaid(options: Options) -> Unsaid:
    units = options.by_column("timeUnit.<column>")
    return Unsaid(
        unit=choice(options, "timeUnit", TimeUnit),
        units={name.lower(): member("timeUnit", text, TimeUnit) for name, text in units.items()},
        decimals=choice(options, "decimalHandling", DecimalForm),
    )


def _on_error(options: Options) -> ErrorPolicy | None:
    policy = choice(options, "onError", ErrorPolicy)
    if policy not in (None, ErrorPolicy.INLINE):
        options.refuse(
            "errorColumn",
            f"has no meaning with onError={options.text('onError')}",
            hint="use onError=inline, or drop it.",
        )
    return policy


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """The checked options of a write; None where the write does not say."""

    path: str
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    keys: tuple[str, ...] = ()
    sequence_by: tuple[str, ...] = ()
    hash_prefix: int | None = None
    scope: Scope | None = None
    deletes: str | None = None
    columns: tuple[str, ...] = ()
    except_columns: tuple[str, ...] = ()
    merge_schema: bool = False
    allow_unordered: bool = False
    allow_missing_batches: bool = False
    envelope: EnvelopeOptions = field(default_factory=EnvelopeOptions)
    on_error: ErrorPolicy | None = None
    error_column: str | None = None
    ties: Ties | None = None
    late_rows: LateRows | None = None
    engine: MergeEngine | None = None
    """Its column names are as the user wrote them."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Properties of the table that this write sets."""
    full_wait_ms: int = FULL_WAIT_MS
    """How long it waits for room in a table with ``onFull=wait``, and for relief of a consumer."""
    disable_backpressure: bool = False
    app_id: str | None = None
    app_version: int | None = None
    checkpoint: str | None = None
    deferred: ViewOptions | None = None
    """The view whose splits come in the place of rows, and are still to be read."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        """Check the options of a write; raises `OptionError`."""
        options = Options(given, WRITE_OPTIONS)
        options.refuse_together("columnList", "exceptColumnList")
        envelope, engine = EnvelopeOptions.parse(options), _engine(options)
        if (
            envelope.kind is EnvelopeKind.CHANGELOG
            and engine is not None
            and engine.kind is Engine.AGGREGATION
        ):
            raise no_aggregate_of_changes()
        app_id, app_version = named_transaction(options)
        return cls(
            path=options.path(),
            storage=options.storage,
            keys=options.names("keys"),
            sequence_by=options.names("sequenceBy"),
            hash_prefix=options.number("hashPrefix"),
            scope=_scope(options),
            deletes=options.text("applyAsDeletes"),
            columns=options.names("columnList"),
            except_columns=options.names("exceptColumnList"),
            merge_schema=options.flag("mergeSchema"),
            allow_unordered=options.flag("allowUnordered"),
            allow_missing_batches=options.flag("allowMissingBatches"),
            envelope=envelope,
            on_error=_on_error(options),
            error_column=options.text("errorColumn"),
            ties=choice(options, "ties", Ties),
            late_rows=choice(options, "lateRows", LateRows),
            engine=engine,
            properties=_properties(options),
            full_wait_ms=_wait_ms(options),
            disable_backpressure=options.flag("disableBackpressure"),
            app_id=app_id,
            app_version=app_version,
            checkpoint=options.text("checkpointLocation"),
            deferred=_deferred(options),
        )


def _deferred(options: Options) -> ViewOptions | None:
    text = options.raw("deferred")
    return None if text is None else ViewOptions.put_off(text, options.storage)


def named_transaction(options: Options) -> tuple[str | None, int | None]:
    """Return the name and number under which a batch write is idempotent; both or none."""
    app_id, app_version = options.text("txnAppId"), options.number("txnVersion")
    if (app_id is None) != (app_version is None):
        missing = "txnAppId" if app_id is None else "txnVersion"
        raise OptionError.missing(missing, "'txnAppId' and 'txnVersion' go together")
    return app_id, app_version


def no_aggregate_of_changes() -> OptionError:
    """Return the error of change rows for a table that aggregates."""
    return OptionError.conflict(
        f"envelope={EnvelopeKind.CHANGELOG.value}",
        f"mergeEngine={Engine.AGGREGATION.value}",
        why="an aggregate cannot give back what a change took away",
        hint="use mergeEngine=deduplicate, and aggregate where the table is read; where rows are "
        "only ever inserted, drop the columns of the change feed, and write without 'envelope'.",
    )


def _scope(options: Options) -> Scope | None:
    scope = options.text("sequenceScope")
    chosen = (Scope.TABLE.value, Scope.EPOCH.value)
    return None if scope is None else Scope(one_of("sequenceScope", scope, chosen))


def _engine(options: Options) -> MergeEngine | None:
    kind = choice(options, "mergeEngine", Engine)
    texts = options.by_column("aggregate.<column>")
    rules = {column: member(f"aggregate.{column}", text, Rule) for column, text in texts.items()}
    order = options.by_column("sequenceBy.<column>")
    if kind is None and not (rules or order):
        return None
    return MergeEngine.chosen(kind or Engine.DEDUPLICATE, rules, order)


def _wait_ms(options: Options) -> int:
    given = options.duration_ms("onFullTimeout")
    return FULL_WAIT_MS if given is None else given


def _properties(options: Options) -> dict[str, str]:
    given = {name: options.text(name) for name in PROPERTIES}
    return checked({name: text for name, text in given.items() if text is not None})
