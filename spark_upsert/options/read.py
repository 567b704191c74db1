"""The checked options of a read, batch or stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from spark_upsert.errors import OptionError
from spark_upsert.options.below import GROUP, path_below
from spark_upsert.options.parse import Options, choice, whole_number
from spark_upsert.options.query import QueryOptions, of_streams_only
from spark_upsert.options.reference import READ_OPTIONS
from spark_upsert.table.changes.modes import Deduplication
from spark_upsert.table.retention.leases import require_name
from spark_upsert.table.retention.policy import LEASE_MS


class Metadata(Enum):
    """What can be read about a table (`spark_upsert.metadata`)."""

    EPOCHS = "epochs"
    FILES = "files"
    HISTORY = "history"
    CONSUMERS = "consumers"
    PRESSURE = "pressure"
    INDEXES = "indexes"
    GROUP = "group"
    """Not of a table, but of all below a root that one query writes; at any version."""
    QUARANTINE = "quarantine"
    """Not of the log, but of the runs (`spark_upsert.table.entries.quarantine`); at any version."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The checked options of a read, batch or stream."""

    query: QueryOptions
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
    starting_position: str | None
    """Of a view alone: `options.view`."""
    ending_version: int | None
    ending_timestamp_ms: int | None
    starting_inclusive: bool
    ending_inclusive: bool
    deduplication: Deduplication
    compute_updates: bool
    splits: int | None
    fail_on_data_loss: bool
    consumer: str | None
    consumer_ttl_ms: int
    metadata: Metadata | None
    table_timeout_ms: int | None
    raw: bool
    """Whether a table that keeps a view shows its entries, not what they mean."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ReadOptions:
        """Check the options of a read; raises `OptionError`."""
        options = Options(given, READ_OPTIONS)
        for name in ("columns", "readChangeFeed", "startingVersion", "startingTimestamp"):
            options.refuse_together("metadata", name)
        options.refuse_together("versionAsOf", "timestampAsOf")
        options.refuse_together("startingVersion", "startingTimestamp")
        options.refuse_together("startingTimestamp", "startingPosition")
        options.refuse_together("endingVersion", "endingTimestamp")
        starting = options.text("startingVersion")
        version: int | str | None
        if starting is not None and starting.lower() in ("latest", "earliest"):
            version = starting.lower()
        else:
            version = _version(options, "startingVersion", "a version, 'latest' or 'earliest'")
        metadata = choice(options, "metadata", Metadata)
        path = options.path()
        return cls(
            query=QueryOptions.parse(options),
            path=path_below(path, GROUP) if metadata is Metadata.GROUP else path,
            storage=options.storage,
            columns=options.names("columns"),
            version_as_of=_version(options, "versionAsOf", "a version"),
            timestamp_as_of_ms=options.timestamp_ms("timestampAsOf"),
            change_feed=options.flag("readChangeFeed"),
            ignore_deletes=options.flag("ignoreDeletes"),
            starting_version=version,
            starting_timestamp_ms=options.timestamp_ms("startingTimestamp"),
            starting_position=options.text("startingPosition"),
            ending_version=_version(options, "endingVersion", "a version"),
            ending_timestamp_ms=options.timestamp_ms("endingTimestamp"),
            starting_inclusive=options.flag("startingBoundInclusive", default=True),
            ending_inclusive=options.flag("endingBoundInclusive", default=True),
            deduplication=_deduplication(options),
            compute_updates=options.flag("computeUpdates", default=True),
            splits=options.number("splits", least=1),
            fail_on_data_loss=options.flag("failOnDataLoss", default=True),
            consumer=_consumer(options),
            consumer_ttl_ms=options.duration_ms("consumerTtl") or LEASE_MS,
            metadata=metadata,
            table_timeout_ms=options.duration_ms("tableTimeout"),
            raw=options.flag("raw"),
        )

    def require_batch(self) -> None:
        """Refuse options that only a stream knows."""
        self.query.require_batch()
        self._refuse_position()
        for name, value in (
            ("consumerId", self.consumer),
            ("ignoreDeletes", self.ignore_deletes or None),
        ):
            if value is not None:
                raise of_streams_only(name)
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
            given_as_of = "timestampAsOf" if self.version_as_of is None else "versionAsOf"
            raise OptionError.conflict(
                "readChangeFeed",
                given_as_of,
                why="changes are of several versions",
                hint="use 'startingVersion' and 'endingVersion'.",
            )

    def require_stream(self) -> None:
        """Refuse options that only a batch read knows."""
        self._refuse_position()
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
            raise OptionError.conflict(
                "readChangeFeed",
                "ignoreDeletes",
                why="the change feed shows deletes",
                hint="drop one of them, or filter with where(\"_change_type != 'delete'\").",
            )
        if not self.change_feed and not self.compute_updates:
            raise OptionError(
                "option 'computeUpdates' has no meaning in a stream of new values.",
                hint="add .option('readChangeFeed', 'true'), or drop the option.",
            )

    def _refuse_position(self) -> None:
        if self.starting_position is not None:
            raise OptionError(
                "option 'startingPosition' is of views.",
                hint="drop it, or use 'startingVersion' to choose where the stream begins.",
                option="startingPosition",
            )


def _deduplication(options: Options) -> Deduplication:
    mode = choice(options, "deduplicationMode", Deduplication)
    everything = options.flag("emitUnchanged")
    if mode is None:
        return Deduplication.NONE if everything else Deduplication.DROP_CARRYOVERS
    if everything and mode is not Deduplication.NONE:
        raise OptionError.conflict(
            "emitUnchanged",
            f"deduplicationMode={mode.value}",
            hint="drop 'emitUnchanged', or use deduplicationMode=none.",
        )
    return mode


def _consumer(options: Options) -> str | None:
    name = options.text("consumerId")
    if name is None and options.text("consumerTtl") is not None:
        raise OptionError.missing("consumerId", "'consumerTtl' says how long its lease lives")
    return None if name is None else require_name(name)


def _version(options: Options, name: str, expected: str) -> int | None:
    value = options.text(name)
    if value is None:
        return None
    version = whole_number(value)
    if version is None or version < 0:
        raise OptionError.invalid(name, value, expected)
    return version
