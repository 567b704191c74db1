"""The checked options of a read, batch or stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from spark_upsert.errors import OptionError, setting
from spark_upsert.model.durations import render_time
from spark_upsert.options.below import GROUP, path_below
from spark_upsert.options.declared import (
    NO_NAMES,
    Only,
    Option,
    at_least,
    declared,
    flag,
    given_only,
    held_together,
    member_of,
    part,
    values,
)
from spark_upsert.options.lives import BATCH, BEGINNING, COUNTED, FREE, NEXT, Change, Life
from spark_upsert.options.parse import Options, choice, whole_number
from spark_upsert.options.query import QueryOptions, of_streams_only
from spark_upsert.table.changes.modes import Deduplication, ValidBy
from spark_upsert.table.retention.leases import require_name
from spark_upsert.table.retention.policy import LEASE_MS


class Metadata(Enum):
    """The kinds of metadata of a table that can be read (`spark_upsert.metadata`)."""

    EPOCHS = "epochs"
    FILES = "files"
    HISTORY = "history"
    CONSUMERS = "consumers"
    PRESSURE = "pressure"
    INDEXES = "indexes"
    MIRROR = "mirror"
    GROUP = "group"
    """Not of a table, but of all below a root that one query writes; at any version."""
    QUARANTINE = "quarantine"
    """Not of the log, but of the runs (`spark_upsert.table.entries.quarantine`); at any version."""


def _deduplication(options: Options, name: str) -> Deduplication:
    mode = choice(options, name, Deduplication)
    everything = options.flag("emitUnchanged")
    if mode is None:
        return Deduplication.NONE if everything else Deduplication.DROP_CARRYOVERS
    if everything and mode is not Deduplication.NONE:
        raise OptionError.conflict(
            "emitUnchanged",
            f"{name}={mode.value}",
            hint="drop 'emitUnchanged', or use deduplicationMode=none.",
        )
    return mode


def _consumer(options: Options, name: str) -> str | None:
    consumer = options.text(name)
    if consumer is None and options.text("consumerTtl") is not None:
        raise OptionError.missing(name, "'consumerTtl' says how long its lease lives")
    return None if consumer is None else require_name(consumer)


def _version(options: Options, name: str, expected: str = "a version") -> int | None:
    value = options.text(name)
    if value is None:
        return None
    version = whole_number(value)
    if version is None or version < 0:
        raise OptionError.invalid(name, value, expected)
    return version


def _start(options: Options, name: str) -> int | str | None:
    text = (options.text(name) or "").lower()
    if text in ("latest", "earliest"):
        return text
    return _version(options, name, "a version, 'latest' or 'earliest'")


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The checked options of a read, batch or stream."""

    path: str = Option(
        "path",
        Options.path,
        Life(Change.REFUSED, "the same table may be reached by another path"),
        required=True,
    ).held("Where the table lies. Required.")
    storage: Mapping[str, str] = field(repr=False)
    version_as_of: int | None = Option(
        "versionAsOf", _version, BATCH, only=Only.BATCH, excludes=("timestampAsOf",)
    ).held("Batch: read the table as of this version.")
    timestamp_as_of_ms: int | None = Option(
        "timestampAsOf", Options.timestamp_ms, BATCH, only=Only.BATCH
    ).held(
        "Batch: read the table as of this time (ISO 8601, UTC if it names no zone, or ms since "
        "1970), which must not be in the future."
    )
    filter: str | None = Option("filter", Options.text, BATCH, only=Only.BATCH).held(
        "Batch: SQL that is true for the rows that are read, such as `id IN (1, 2)` or `day >= "
        "DATE '2026-01-01' AND n > 3` (expressions: docs/tasks.md). Where it pins the key, the "
        "leading columns of `hashPrefix` or a column of `indexBy` to some values, only what can "
        "have them is read. Default: all rows."
    )
    change_feed: bool = Option(
        "readChangeFeed", flag, COUNTED, default=False, is_of_whole=True
    ).held(
        "Read changes, old values and deletes included, with the columns `_change_type`, "
        "`_commit_version`, `_commit_timestamp` and `_diff`. Without it a batch reads the rows, "
        "and a stream their new values. Default `false`."
    )
    ignore_deletes: bool = Option(
        "ignoreDeletes", flag, COUNTED, default=False, only=Only.STREAM
    ).held(
        "Stream of new values: leave deletes out. What is made of such a stream keeps rows that "
        "the table has no more. Without it the query stops at a delete. Default `false`."
    )
    starting_version: int | str | None = Option[int | str](
        "startingVersion",
        _start,
        Life(Change.BEGINNING, "while a first batch waits to be delivered, refused"),
        excludes=("startingTimestamp",),
    ).held(
        "First version of which changes are read: a number, `earliest` or `latest` (only what "
        "comes). A stream without it begins with the whole table as inserts."
    )
    """A number, ``"latest"`` or ``"earliest"``."""
    starting_timestamp_ms: int | None = Option(
        "startingTimestamp", Options.timestamp_ms, BEGINNING
    ).held("The same by time: the first version committed at or after it. Not in the future.")
    starting_position: str | None = Option("startingPosition", Options.text, BEGINNING).held(
        "Stream of a `plan`: where it goes on, as a table that keeps the view has recorded it. "
        "Set by `keep`; a checkpoint stands above it."
    )
    """Of a view alone: `options.view`."""
    ending_version: int | None = Option(
        "endingVersion", _version, BATCH, only=Only.BATCH, excludes=("endingTimestamp",)
    ).held(
        "Batch change feed: the last version, inclusive; not before `startingVersion`. Default: "
        "the newest."
    )
    ending_timestamp_ms: int | None = Option(
        "endingTimestamp", Options.timestamp_ms, BATCH, only=Only.BATCH
    ).held(
        "Batch change feed: the last version committed at or before this time, which must be at or "
        "after `startingTimestamp` and not in the future."
    )
    starting_inclusive: bool = Option("startingBoundInclusive", flag, BEGINNING, default=True).held(
        "Whether the starting version itself is read. Default `true`."
    )
    ending_inclusive: bool = Option("endingBoundInclusive", flag, BATCH, default=True).held(
        "Whether the ending version itself is read. Default `true`."
    )
    deduplication: Deduplication = held_together(
        Option("deduplicationMode", member_of(Deduplication), COUNTED).means(
            "`none`: every change. `dropCarryovers`: no update that leaves all values as they "
            "were. `netChanges`: at most one change per key over the epochs of one read or "
            "micro-batch. Default `dropCarryovers`."
        ),
        Option("emitUnchanged", flag, COUNTED).means(
            "`true` is short for `deduplicationMode=none`. Default `false`."
        ),
        default=Deduplication.DROP_CARRYOVERS,
    )
    compute_updates: bool = Option("computeUpdates", flag, NEXT, default=True).held(
        "With `readChangeFeed`: whether a changed row is shown as an update pair; otherwise as a "
        "delete and an insert. Default `true`."
    )
    history: bool = Option(
        "readHistory",
        flag,
        BATCH,
        default=False,
        is_of_whole=True,
        only=Only.BATCH,
        excludes=("readChangeFeed", "filter", "versionAsOf", "timestampAsOf"),
    ).held(
        "Batch: read all rows that the table held, each with `valid_from`, `valid_to` (exclusive; "
        "NULL: it still holds) and `is_current` (SCD type 2). `startingVersion` or "
        "`startingTimestamp` says with which version it begins, by default the first that can be "
        "read; rows that were there then count from it. Default `false`."
    )
    valid_by: ValidBy = Option(
        "validBy", member_of(ValidBy), BATCH, default=ValidBy.TIME, only=Only.BATCH
    ).held(
        "With `readHistory`: what `valid_from` and `valid_to` are. `time`: of the commits; "
        "`version`: of the table; `order`: what `sequenceBy` orders by, as AUTO CDC has it in "
        "`__START_AT` and `__END_AT`. Default `time`."
    )
    tracked: tuple[str, ...] = Option(
        "trackHistoryColumnList", Options.names, BATCH, default=NO_NAMES, only=Only.BATCH
    ).held(
        "With `readHistory`: the columns that open a row of the history when they change; changes "
        "of others replace the values of the row that holds. Default: all that are read."
    )
    untracked: tuple[str, ...] = Option(
        "trackHistoryExceptColumnList",
        Options.names,
        BATCH,
        default=NO_NAMES,
        only=Only.BATCH,
        excludes=("trackHistoryColumnList",),
    ).held(
        "With `readHistory`: the columns that open no row of the history when they change, where "
        "all others that are read do. Default: none."
    )
    query: QueryOptions = part(QueryOptions)
    splits: int | None = Option("splits", at_least(1), FREE).held(
        "Number of read tasks. Default: by the amount of data, at most the parallelism."
    )
    fail_on_data_loss: bool = Option(
        "failOnDataLoss", flag, Life(Change.FREE, "where nothing is lost"), default=True
    ).held(
        "Whether changes that are expired stop a read. `false`: it goes on behind them with a "
        "warning in the log, and sums over the changes are wrong from there on. Default `true`."
    )
    consumer: str | None = Option(
        "consumerId",
        _consumer,
        Life(Change.FREE, "the lease of the old name stays until `consumerTtl`"),
        only=Only.STREAM,
    ).held(
        "Stream: the name of a lease, one per query, that keeps what the query still has to read "
        "from being expired. Without it, only the ages given to `upsertflow expire` do."
    )
    consumer_ttl_ms: int = Option("consumerTtl", Options.duration_ms, FREE, default=LEASE_MS).held(
        "Stream: how long the lease outlasts a query that stopped. Default `7 days`."
    )
    table_timeout_ms: int | None = Option("tableTimeout", Options.duration_ms, FREE).held(
        "How long a read waits for a table that is not there yet: a streaming query makes it with "
        "its first batch. Default: not at all."
    )
    raw: bool = Option(
        "raw",
        flag,
        Life(
            Change.NEXT,
            "sums over rows of both kinds mean nothing: let the sink begin anew",
            exact=Change.REFUSED,
        ),
        default=False,
    ).held(
        "Of a table that keeps a grouped view: read its entries, which are sums, and not the "
        "groups that they make. Default `false`."
    )
    """Whether a table that keeps a view shows its entries, not what they mean."""
    metadata: Metadata | None = Option(
        "metadata",
        member_of(Metadata),
        BATCH,
        is_of_whole=True,
        only=Only.BATCH,
        excludes=(
            "columns",
            "filter",
            "readChangeFeed",
            "readHistory",
            "startingVersion",
            "startingTimestamp",
        ),
    ).held(
        "Batch: read about the table instead of its rows: `epochs`, `files`, `history`, "
        "`consumers` or `pressure` (how far each consumer is behind, against the caps, and "
        "whether it holds up writers), `indexes` (`indexBy`); or the rows that could not be "
        "applied (`onError=quarantine`): `quarantine`. `group`: `path` is a root that a query "
        "with a template writes below; a row for each of its tables, with the version that its "
        "last batch made, and one with an empty `folder` for that batch."
    )

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ReadOptions:
        """Check the options of a read; raises `OptionError`."""
        options = Options(given, READ_OPTIONS)
        why = "is of a view, which may have rows that cannot be computed, or of a write"
        options.refuse("onError", why, hint="drop it, or give it beside 'plan'.")
        options.refuse_together("startingTimestamp", "startingPosition")
        found = cls(
            query=QueryOptions.parse(options),
            storage=options.storage,
            deduplication=_deduplication(options, "deduplicationMode"),
            **values(cls, options),
        )
        if found.metadata is not Metadata.GROUP:
            return found
        return replace(found, path=path_below(found.path, GROUP))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are chosen, as they were written; none: all."""
        return self.query.columns

    def require_batch(self) -> None:
        """Refuse options that only a stream knows."""
        self.query.require_batch()
        self._refuse_position()
        if self.change_feed:
            self._refuse_filter("a change feed")
        for name in given_only(self, Only.STREAM):
            raise of_streams_only(name)
        self._refuse_apart_from_history()
        refuse_wrong_bounds(self)
        if not self.change_feed:
            other = "a history" if self.history else "metadata" if self.metadata else ""
            refuse_of_changes(self, other)
        if not self.change_feed and not self.history:
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
        self._refuse_filter("a stream")
        self._refuse_history()
        for name in given_only(self, Only.BATCH):
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
        refuse_of_new_values(self)
        refuse_wrong_bounds(self)

    def _refuse_filter(self, read: str) -> None:
        if self.filter is not None:
            raise OptionError(
                f"option 'filter' has no meaning in {read}: of a change, the row before may be "
                "wanted and the row behind not.",
                hint="read a view, whose changes are exact, by pyspark_upsertflow.view(path)"
                ".filter(...); or filter behind the read, with where(...).",
                option="filter",
            )

    def _refuse_history(self) -> None:
        if self.history:
            raise OptionError(
                "option 'readHistory' has no meaning in a stream: a row of a history is ended by "
                "a later one, which no stream of rows can take back.",
                hint="use spark.read; or keep the history in a table ('upsertflow keep-history'), "
                "and read the changes of that.",
                option="readHistory",
            )

    def _refuse_apart_from_history(self) -> None:
        given = (
            ("validBy", self.valid_by is not ValidBy.TIME),
            ("trackHistoryColumnList", self.tracked),
            ("trackHistoryExceptColumnList", self.untracked),
        )
        for name, is_given in given:
            if is_given and not self.history:
                raise OptionError(
                    f"option '{name}' says something of a history, and none is read.",
                    hint=f"add {setting('readHistory', 'true')}, or drop it.",
                    option=name,
                )
        if self.history and not self.starting_inclusive:
            raise OptionError.conflict(
                "startingBoundInclusive=false",
                "readHistory",
                why="a history begins with the whole table as of a version",
                hint="name the version with which it is to begin.",
            )

    def _refuse_position(self) -> None:
        if self.starting_position is not None:
            raise OptionError(
                "option 'startingPosition' is of views.",
                hint="drop it, or use 'startingVersion' to choose where the stream begins.",
                option="startingPosition",
            )


class _Read(Protocol):
    """A read of a table, or of a view."""

    @property
    def change_feed(self) -> bool: ...
    @property
    def compute_updates(self) -> bool: ...
    @property
    def deduplication(self) -> Deduplication: ...
    @property
    def starting_version(self) -> int | str | None: ...
    @property
    def starting_timestamp_ms(self) -> int | None: ...
    @property
    def starting_inclusive(self) -> bool: ...
    @property
    def ending_version(self) -> int | None: ...
    @property
    def ending_timestamp_ms(self) -> int | None: ...
    @property
    def ending_inclusive(self) -> bool: ...


def refuse_of_changes(read: _Read, other: str = "") -> None:
    """Refuse, in a batch of rows or of an `other` thing, what says how changes are shown."""
    add = "" if other else f"add {setting('readChangeFeed', 'true')}, or "
    given = (
        ("computeUpdates", not read.compute_updates),
        ("deduplicationMode", read.deduplication is not Deduplication.DROP_CARRYOVERS),
    )
    for name, is_given in given:
        if is_given:
            raise OptionError(
                f"option '{name}' has no meaning in {other or 'a batch of rows'}, which shows no "
                "changes.",
                hint=f"{add}drop the option"
                f"{', or emitUnchanged' if name == 'deduplicationMode' else ''}.",
                option=name,
            )


def refuse_of_new_values(read: _Read) -> None:
    """Refuse, in a stream of new values, what says how old ones are shown."""
    if not read.change_feed and not read.compute_updates:
        raise OptionError(
            "option 'computeUpdates' has no meaning in a stream of new values.",
            hint="add .option('readChangeFeed', 'true'), or drop the option.",
            option="computeUpdates",
        )


def is_open(read: _Read) -> bool:
    """Return whether both bounds are excluded: then a range from a version to itself is empty."""
    return not (read.starting_inclusive or read.ending_inclusive)


def refuse_wrong_bounds(read: _Read) -> None:
    """Refuse an end before the start, and what is said of a bound that is not given."""
    version, last = read.starting_version, read.ending_version
    time_ms, last_ms = read.starting_timestamp_ms, read.ending_timestamp_ms
    if isinstance(version, int) and last is not None and last < version:
        raise OptionError.conflict(
            f"endingVersion={last}",
            f"startingVersion={version}",
            why="the changes end before they begin",
            hint="let 'endingVersion' be the start or later, or drop it.",
        )
    if time_ms is not None and last_ms is not None and last_ms < time_ms:
        raise OptionError.conflict(
            f"endingTimestamp={render_time(last_ms)}",
            f"startingTimestamp={render_time(time_ms)}",
            why="the changes end before they begin",
            hint="let 'endingTimestamp' be the start or later, or drop it.",
        )
    for name, is_inclusive, version, time_ms in (
        ("starting", read.starting_inclusive, read.starting_version, read.starting_timestamp_ms),
        ("ending", read.ending_inclusive, read.ending_version, read.ending_timestamp_ms),
    ):
        if not is_inclusive and version is None and time_ms is None:
            raise OptionError(
                f"option '{name}BoundInclusive' is about a bound, and this read has none.",
                hint=f"give '{name}Version' or '{name}Timestamp' beside it, or drop it.",
                option=f"{name}BoundInclusive",
            )


class OnError(Enum):
    """The fate of a row of which a formula of a view has no value (`views.failing`)."""

    FAIL = "fail"
    """The batch stops, as long as the row is so in the newest version of its table."""
    NULL = "null"
    """The formula is NULL there."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of a read that concern a view."""

    plan: str = Option(
        "plan",
        Options.text,
        Life(Change.REFUSED, "another view is another stream"),
        required=True,
        is_of_whole=True,
    ).held(
        "Instead of `path`: the plan of a view over one or several tables, as `to_json()` of "
        "`pyspark_upsertflow.view(...)` gives it. Times, `latest` and `earliest` mean what they "
        "mean of a table; numbers of versions are for plans that follow one table (others may be "
        "pinned)."
    )
    """JSON."""
    on_error: OnError = Option(
        "onError",
        member_of(OnError),
        Life(Change.FREE, "it decides whether a batch stops, and no row"),
        default=OnError.FAIL,
        is_of_whole=True,
    ).held(
        "Read of a `plan`: what becomes of a row of which a formula has no value (a division by "
        "zero, an overflow, a cast that fails). `fail`: the batch stops, as long as the row is so "
        "in the newest version of its table. `null`: the formula is NULL there, and a warning "
        "counts it. Default `fail`."
    )


READ_OPTIONS = declared(PlanOptions, ReadOptions)
