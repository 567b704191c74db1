"""Options of reads: `ReadOptions` for one table, `QueryOptions` for a read of several inputs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from spark_upsert.core.durations import render_time
from spark_upsert.core.input_order import SEED_END, Concat, Order, RoundRobin, Seeded
from spark_upsert.errors import OptionError, setting
from spark_upsert.options.declare import (
    BATCH,
    BEGINNING,
    COUNTED,
    FREE,
    GROUP,
    NEXT,
    NO_NAMES,
    REFUSED,
    AppliesTo,
    Change,
    Life,
    Option,
    Options,
    absolute_path,
    at_least,
    choice,
    combined_field,
    declared,
    flag,
    member_of,
    nested_field,
    one_of,
    options_only_for,
    path_below,
    read_values,
    select_given,
    whole_number,
)
from spark_upsert.table.changelog.read import Deduplication, ValidBy
from spark_upsert.table.retention.expiry import LEASE_MS
from spark_upsert.table.retention.leases import require_name

LATENCY_TARGET_MS = 60_000
"""Longer than most trigger intervals, shorter than most people wait."""

INPUT = "_input"
MERGE_SEQ = "_merge_seq"

MERGE_COLUMNS = (INPUT, MERGE_SEQ)
"""Merge columns in output order."""


DELAY_MS = 15 * 60_000
"""Same default as Spark's Kafka source."""


class Merge(Enum):
    """Strategy for merging rows from several inputs."""

    INTERLEAVE = "interleave"
    """Ready rows first; with a seed, an exact random order."""
    CONCAT = "concat"
    """One input after another, each until it is exhausted."""
    ROUND_ROBIN = "roundrobin"
    """One row per input in turn."""


def _seed(options: Options, name: str) -> int | None:
    text = options.text(name)
    if text is None:
        return None
    seed = whole_number(text, bits=64)
    if seed is None or seed < 0:
        raise OptionError.invalid(name, text, f"a whole number from 0 up to {SEED_END - 1}")
    return seed


def _columns(options: Options, name: str) -> tuple[str, ...]:
    columns = options.names(name)
    first_spellings: dict[str, str] = {}
    for column in columns:
        if (first_spelling := first_spellings.get(column.lower())) is not None:
            raise OptionError.refused(
                name,
                f"names '{column}' "
                f"twice{'' if first_spelling == column else f', as {first_spelling!r}, too'}",
                hint="name each column once.",
            )
        first_spellings[column.lower()] = column
    return columns


def _delay_ms(options: Options, name: str) -> int | None:
    delay_ms = options.duration_ms(name)
    if delay_ms is not None and options.text("minRowsPerTrigger") is None:
        raise OptionError.missing(
            "minRowsPerTrigger", "'maxTriggerDelay' says how long a batch waits for so many rows"
        )
    return delay_ms


def _offsets_path(options: Options, name: str) -> str | None:
    path = options.text(name)
    # As for a table: a relative path is resolved in the process receiving it.
    return None if path is None else absolute_path(path, option=name)


def _merge_columns(options: Options, name: str) -> tuple[str, ...]:
    requested = {one_of(name, column, MERGE_COLUMNS) for column in options.names(name)}
    return tuple(column for column in MERGE_COLUMNS if column in requested)


@dataclass(frozen=True, kw_only=True)
class MergeOptions:
    """Options for reads from several inputs."""

    priority_by_input: Mapping[str, int] = combined_field(
        Option("input.<name>.priority", Options.text, FREE).with_meaning(
            "Stream with a limit per trigger: input priority, from -1000 to 1000. Inputs with "
            "higher priority are read first and get a larger share; none starves. Default: the "
            "table property `priority`, else 0."
        ),
    )
    """Explicit priorities (``input.<name>.priority``) by input name."""
    auto_priority: bool = Option("autoPriority", flag, FREE, default=False).as_field(
        "Stream with a limit per trigger: derive the priority of a table without one from its last "
        "read by other consumers (leases, see `consumerId`): 500 right after a read, half of that "
        "after 30 seconds. Default `false`."
    )
    merge: Merge = Option("merge", member_of(Merge), REFUSED, default=Merge.INTERLEAVE).as_field(
        "How rows from the inputs are merged. `interleave`: available rows first, in parallel "
        "tasks, without a guaranteed order between inputs. `concat`: one input after another, each "
        "until it has no more rows. `roundrobin`: one row from each input in turn. `concat` and "
        "`roundrobin` are exact orders: they use one task and count all rows in a batch. Default "
        "`interleave`."
    )
    seed: int | None = Option("interleaveSeed", _seed, REFUSED).as_field(
        "With `merge=interleave`: the seed for an exact random order (0 to 18446744073709551615)."
    )
    merge_schema: bool = Option("mergeSchema", flag, NEXT, default=False).as_field(
        "Whether inputs may have different columns: missing columns are null, and the widest type "
        "is used, by the rules of table schema evolution. Default `false`."
    )
    allow_input_removal: bool = Option(
        "allowInputRemoval", flag, FREE, default=False, only=AppliesTo.STREAM
    ).as_field(
        "Stream: whether you may remove inputs from `inputs` that the checkpoint contains. Their "
        "unread changes are never read, and the checkpoint drops them. Default `false`."
    )
    merge_columns: tuple[str, ...] = Option(
        "mergeColumns",
        _merge_columns,
        Life(Change.NEXT, "adding `_merge_seq` is refused if the stream has not counted its rows"),
        default=NO_NAMES,
    ).as_field(
        "Columns to append: `_input`, the name of the row's input; with an exact order also "
        "`_merge_seq`, the row number from 0, which continues across restarts of the stream. "
        "Default: none."
    )
    """Names in output order (`MERGE_COLUMNS`)."""
    discovery_ms: int | None = Option(
        "discoveryInterval", Options.duration_ms, FREE, only=AppliesTo.STREAM
    ).as_field(
        "Stream over more than 300 tables: maximum time between checks of an idle table; active "
        "tables are checked more often. Longer if `discoveryRequests` or CPU time do not suffice. "
        "Default `30 seconds` in an object store, `500 ms` on a file system."
    )
    discovery_requests: int | None = Option(
        "discoveryRequests", at_least(0), FREE, only=AppliesTo.STREAM
    ).as_field(
        "Stream over more than 300 tables: average number of requests per second for table checks; "
        "`0`: unlimited. Default `200` in an object store, `0` on a file system."
    )
    offsets_path: str | None = Option(
        "offsetsPath",
        _offsets_path,
        Life(Change.FREE, "refused if the old folder contains positions"),
        only=AppliesTo.STREAM,
    ).as_field(
        "Stream over more than 300 inputs: folder for input positions, which are too many for the "
        "checkpoint. Keep the folder as long as the checkpoint. Default: `_offsets` below `path` "
        "with `inputsPattern`; otherwise the checkpoint contains all positions."
    )


@dataclass(frozen=True, kw_only=True)
class QueryOptions(MergeOptions):
    """Options set once for all inputs."""

    rows_max: int | None = Option(
        "maxRowsPerTrigger", at_least(1), FREE, is_of_whole=True, only=AppliesTo.STREAM
    ).as_field(
        "Stream: approximate maximum of change rows per micro-batch; an epoch is never split."
    )
    bytes_max: int | None = Option(
        "maxBytesPerTrigger", at_least(1), FREE, is_of_whole=True, only=AppliesTo.STREAM
    ).as_field("Stream: approximate maximum of bytes read per micro-batch.")
    epochs_max: int | None = Option(
        "maxEpochsPerTrigger", at_least(1), FREE, is_of_whole=True, only=AppliesTo.STREAM
    ).as_field("Stream: maximum number of epochs per micro-batch.")
    rows_min: int | None = Option(
        "minRowsPerTrigger", at_least(1), FREE, is_of_whole=True, only=AppliesTo.STREAM
    ).as_field(
        "Stream: delay a micro-batch until this many change rows are available, by the counts in "
        "the log, or the oldest has waited for `maxTriggerDelay`. The first batch is not delayed, "
        "nor is a batch with a new input. No effect with `availableNow`. Default: none."
    )
    delay_ms: int = Option(
        "maxTriggerDelay", _delay_ms, FREE, default=DELAY_MS, is_of_whole=True
    ).as_field("Stream: maximum time a change waits for `minRowsPerTrigger`. Default `15 minutes`.")
    latency_target_ms: int = Option(
        "latencyTarget",
        Options.duration_ms,
        FREE,
        default=LATENCY_TARGET_MS,
        is_of_whole=True,
        only=AppliesTo.STREAM,
    ).as_field(
        "Stream: latency from commit to planning that counts as full pressure. Set it longer than "
        "the trigger interval. Default `1 minute`."
    )
    parallelism: int | None = Option("parallelism", at_least(1), FREE, is_of_whole=True).as_field(
        "Number of tasks the cluster runs at the same time. `upsertflow.register(spark)` sets it "
        "from the session: `defaultParallelism`, or the cores in its configuration (neither is "
        "available in Spark Connect). Default: the CPU count of the driver."
    )
    columns: tuple[str, ...] = Option(
        "columns", _columns, NEXT, default=NO_NAMES, is_of_whole=True
    ).as_field(
        "Comma-separated columns to read; metadata columns such as `_change_type` are always "
        "included. Default: all."
    )
    """Names as written; empty selects all."""
    deferred: bool = Option(
        "deferred",
        flag,
        Life(Change.NEXT, "set by `keep`"),
        default=False,
        is_of_whole=True,
        only=AppliesTo.STREAM,
    ).as_field(
        "Stream with `plan`: deliver one row per planned split to an upsertflow sink, which reads "
        "the splits itself, so no rows pass through Spark. Set by `keep`. Default `false`."
    )
    """Whether the sink executes the planned splits."""

    @classmethod
    def parse(
        cls, options: Options, priority_by_input: Mapping[str, int] | None = None
    ) -> QueryOptions:
        """Parse and cross-check query options; raises `OptionError`.

        ``priority_by_input`` has the explicit ``input.<name>.priority`` values.
        """
        query_options = cls(priority_by_input=priority_by_input or {}, **read_values(cls, options))
        query_options._require_consistent()
        return query_options

    def _require_consistent(self) -> None:
        if (self.rows_min or 0) > (self.rows_max or self.rows_min or 0):
            raise OptionError.conflict(
                "minRowsPerTrigger",
                "maxRowsPerTrigger",
                why=f"no batch of {self.rows_max} rows at most has {self.rows_min}",
                hint=f"give minRowsPerTrigger={self.rows_max} or less.",
            )
        if self.merge is not Merge.INTERLEAVE and self.seed is not None:
            raise OptionError.conflict(
                "interleaveSeed",
                f"merge={self.merge.value}",
                why="nothing is drawn there",
                hint="drop 'interleaveSeed', or use merge=interleave for an order drawn from it.",
            )
        if self.order is None:
            if MERGE_SEQ in self.merge_columns:
                raise OptionError(
                    f"the column '{MERGE_SEQ}' numbers the rows of an exact order, and this read "
                    "has none: it takes what is ready first.",
                    hint="add merge=concat, merge=roundrobin or 'interleaveSeed', or drop "
                    f"'{MERGE_SEQ}'.",
                    option="mergeColumns",
                )
            return
        bounds = ("maxBytesPerTrigger", "maxEpochsPerTrigger", "minRowsPerTrigger")
        for name in select_given(self, *bounds):
            raise OptionError.refused(
                name,
                "has no meaning in an exact order, which is cut by rows",
                hint="give 'maxRowsPerTrigger' instead.",
            )
        for name in self._priority_options:
            raise OptionError.refused(
                name,
                "has no meaning in an exact order, which alone decides which input is next",
                hint="drop the option; or leave out 'merge' and 'interleaveSeed'.",
            )

    @property
    def _priority_options(self) -> list[str]:
        priority_names = [f"input.{name}.priority" for name in self.priority_by_input]
        return [*priority_names, *(["autoPriority"] if self.auto_priority else [])]

    @property
    def order(self) -> Order | None:
        """Initial exact order; None if rows are taken as they become ready."""
        if self.merge is Merge.CONCAT:
            return Concat()
        if self.merge is Merge.ROUND_ROBIN:
            return RoundRobin()
        return None if self.seed is None else Seeded(state=self.seed)

    @property
    def slots(self) -> int:
        """Concurrent tasks: the option, or the CPU count here."""
        return self.parallelism or os.cpu_count() or 1

    def require_batch(self) -> None:
        """Raise for stream-only options."""
        for name in (*options_only_for(self, AppliesTo.STREAM), *self._priority_options):
            raise of_streams_only(name)


def of_streams_only(name: str) -> OptionError:
    """Return the error for a stream-only option in a batch read."""
    return OptionError(
        f"option '{name}' has no meaning in a batch read.",
        hint="use spark.readStream, or drop the option.",
    )


AS_OF = ("versionAsOf", "timestampAsOf")
STARTS = ("startingVersion", "startingTimestamp")
ENDS = ("endingVersion", "endingTimestamp")
"""Options for a snapshot version, and for start and end bounds in a change feed."""


class Metadata(Enum):
    """Readable table metadata (`spark_upsert.metadata`)."""

    EPOCHS = "epochs"
    FILES = "files"
    HISTORY = "history"
    CONSUMERS = "consumers"
    PRESSURE = "pressure"
    INDEXES = "indexes"
    MIRROR = "mirror"
    GROUP = "group"
    """Describes all tables written by one query below a root; readable at any version."""
    QUARANTINE = "quarantine"
    """Read from runs (`spark_upsert.table.state.snapshot`), not the log; at any version."""


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
    """Parsed options for a batch or streaming read."""

    path: str = Option(
        "path",
        Options.path,
        Life(Change.REFUSED, "except another path to the same table"),
        required=True,
    ).as_field("Table location. Required.")
    storage: Mapping[str, str] = field(repr=False)
    version_as_of: int | None = Option(
        "versionAsOf", _version, BATCH, only=AppliesTo.BATCH, excludes=("timestampAsOf",)
    ).as_field("Batch: read the table at this version.")
    timestamp_as_of_ms: int | None = Option(
        "timestampAsOf", Options.timestamp_ms, BATCH, only=AppliesTo.BATCH
    ).as_field(
        "Batch: read the table at this time (ISO 8601, UTC by default, or milliseconds since "
        "1970). Must not be in the future."
    )
    filter: str | None = Option("filter", Options.text, BATCH, only=AppliesTo.BATCH).as_field(
        "Batch: SQL condition for the rows to read, such as `id IN (1, 2)` or `day >= DATE "
        "'2026-01-01' AND n > 3` (expressions: docs/tasks.md). If it restricts the key, the "
        "`hashPrefix` columns or an `indexBy` column to some values, only parts of the table that "
        "may match are read. Default: all rows."
    )
    change_feed: bool = Option(
        "readChangeFeed", flag, COUNTED, default=False, is_of_whole=True
    ).as_field(
        "Read the change feed, with old values and deletes and the columns `_change_type`, "
        "`_commit_version`, `_commit_timestamp` and `_diff`. Otherwise a batch reads rows, and a "
        "stream new values. Default `false`."
    )
    ignore_deletes: bool = Option(
        "ignoreDeletes", flag, COUNTED, default=False, only=AppliesTo.STREAM
    ).as_field(
        "Stream of new values: skip deletes; the result then keeps rows that the table has "
        "deleted. Otherwise the query fails at the first delete. Default `false`."
    )
    starting_version: int | str | None = Option[int | str](
        "startingVersion",
        _start,
        Life(Change.BEGINNING, "refused while the first batch is not delivered yet"),
        excludes=("startingTimestamp",),
    ).as_field(
        "First version whose changes are read: a number, `earliest` or `latest` (new changes "
        "only). By default a stream begins with all rows of the table as inserts."
    )
    """A number, ``"latest"`` or ``"earliest"``."""
    starting_timestamp_ms: int | None = Option(
        "startingTimestamp", Options.timestamp_ms, BEGINNING
    ).as_field(
        "Start with the first version committed at or after this time. Must not be in the future."
    )
    starting_position: str | None = Option("startingPosition", Options.text, BEGINNING).as_field(
        "Stream with `plan`: the start position, from the table that materializes the view. A "
        "checkpoint takes precedence. Set by `keep`."
    )
    """For views only: `options.views`."""
    ending_version: int | None = Option(
        "endingVersion", _version, BATCH, only=AppliesTo.BATCH, excludes=("endingTimestamp",)
    ).as_field(
        "Batch change feed: the last version, inclusive; at or after `startingVersion`. Default: "
        "the newest."
    )
    ending_timestamp_ms: int | None = Option(
        "endingTimestamp", Options.timestamp_ms, BATCH, only=AppliesTo.BATCH
    ).as_field(
        "Batch change feed: end with the last version committed at or before this time. Must be at "
        "or after `startingTimestamp` and not in the future."
    )
    starting_inclusive: bool = Option(
        "startingBoundInclusive", flag, BEGINNING, default=True
    ).as_field("Whether to read the starting version itself. Default `true`.")
    ending_inclusive: bool = Option("endingBoundInclusive", flag, BATCH, default=True).as_field(
        "Whether to read the ending version itself. Default `true`."
    )
    deduplication: Deduplication = combined_field(
        Option("deduplicationMode", member_of(Deduplication), COUNTED).with_meaning(
            "`none`: every change. `dropCarryovers`: no updates with identical values. "
            "`netChanges`: at most one change per key in each read or micro-batch. Default "
            "`dropCarryovers`."
        ),
        Option("emitUnchanged", flag, COUNTED).with_meaning(
            "`true` is short for `deduplicationMode=none`. Default `false`."
        ),
        default=Deduplication.DROP_CARRYOVERS,
    )
    compute_updates: bool = Option("computeUpdates", flag, NEXT, default=True).as_field(
        "With `readChangeFeed`: whether a changed row becomes an update pair; otherwise a delete "
        "and an insert. Default `true`."
    )
    history: bool = Option(
        "readHistory",
        flag,
        BATCH,
        default=False,
        is_of_whole=True,
        only=AppliesTo.BATCH,
        excludes=("readChangeFeed", "filter", "versionAsOf", "timestampAsOf"),
    ).as_field(
        "Batch: read the row history (SCD type 2): every past and current row with `valid_from`, "
        "`valid_to` (exclusive; NULL for current rows) and `is_current`. Begins at "
        "`startingVersion` or `startingTimestamp`, by default at the first readable version; rows "
        "of that version are valid from it. Default `false`."
    )
    valid_by: ValidBy = Option(
        "validBy", member_of(ValidBy), BATCH, default=ValidBy.TIME, only=AppliesTo.BATCH
    ).as_field(
        "With `readHistory`: the unit of `valid_from` and `valid_to`. `time`: commit time; "
        "`version`: table version; `order`: the `sequenceBy` value, as in `__START_AT` and "
        "`__END_AT` of AUTO CDC. Default `time`."
    )
    tracked: tuple[str, ...] = Option(
        "trackHistoryColumnList", Options.names, BATCH, default=NO_NAMES, only=AppliesTo.BATCH
    ).as_field(
        "With `readHistory`: columns whose changes open a new history row; changes to other "
        "columns update the open row. Default: all columns read."
    )
    untracked: tuple[str, ...] = Option(
        "trackHistoryExceptColumnList",
        Options.names,
        BATCH,
        default=NO_NAMES,
        only=AppliesTo.BATCH,
        excludes=("trackHistoryColumnList",),
    ).as_field(
        "With `readHistory`: columns whose changes do not open a new history row. Default: none."
    )
    query: QueryOptions = nested_field(QueryOptions)
    splits: int | None = Option("splits", at_least(1), FREE).as_field(
        "Number of read tasks. Default: by data size, at most `parallelism`."
    )
    fail_on_data_loss: bool = Option(
        "failOnDataLoss", flag, Life(Change.FREE, "if no changes are lost"), default=True
    ).as_field(
        "Whether a read fails if changes have expired before it read them. `false`: skip them and "
        "log a warning; sums over the changes are wrong from then on. Default `true`."
    )
    consumer: str | None = Option(
        "consumerId",
        _consumer,
        Life(Change.FREE, "the old lease remains until `consumerTtl`"),
        only=AppliesTo.STREAM,
    ).as_field(
        "Stream: lease name, unique per query. The lease prevents expiry of changes that the query "
        "has not read. Without it, only the ages you pass to `upsertflow expire` do."
    )
    consumer_ttl_ms: int = Option(
        "consumerTtl", Options.duration_ms, FREE, default=LEASE_MS
    ).as_field("Stream: how long the lease remains valid after the query stops. Default `7 days`.")
    table_timeout_ms: int | None = Option("tableTimeout", Options.duration_ms, FREE).as_field(
        "How long to wait for a table that does not exist yet; a streaming query creates it with "
        "its first batch. Default: no wait."
    )
    raw: bool = Option(
        "raw",
        flag,
        Life(
            Change.NEXT,
            "do not mix both types of rows in a sink: rebuild it",
            exact=Change.REFUSED,
        ),
        default=False,
    ).as_field(
        "For a table that materializes a grouped view: read the stored entries, which are partial "
        "sums, instead of the groups. Default `false`."
    )
    """Whether to read a materialized view's stored entries, not the rows computed from them."""
    metadata: Metadata | None = Option(
        "metadata",
        member_of(Metadata),
        BATCH,
        is_of_whole=True,
        only=AppliesTo.BATCH,
        excludes=(
            "columns",
            "filter",
            "readChangeFeed",
            "readHistory",
            "startingVersion",
            "startingTimestamp",
        ),
    ).as_field(
        "Batch: read table metadata instead of rows: `epochs`, `files`, `history`, `indexes` "
        "(`indexBy`), `mirror` (`publish`), `consumers`, or `pressure` (consumer lag relative to "
        "the limits, and whether the consumer slows down writers). `quarantine`: the rows that "
        "could not be applied (`onError=quarantine`). `group`: for a `path` that is the root of a "
        "write to many tables; one row per table with its version in the last batch, and a row "
        "with an empty `folder` for the batch."
    )

    @classmethod
    def parse(cls, texts_by_name: Mapping[str, str]) -> ReadOptions:
        """Parse the options for a read; raises `OptionError`."""
        options = Options(texts_by_name, READ_OPTIONS)
        why = "is of a view, which may have rows that cannot be computed, or of a write"
        options.refuse("onError", why, hint="drop it, or give it beside 'plan'.")
        options.refuse_together("startingTimestamp", "startingPosition")
        read_options = cls(
            query=QueryOptions.parse(options),
            storage=options.storage,
            deduplication=_deduplication(options, "deduplicationMode"),
            **read_values(cls, options),
        )
        if read_options.metadata is not Metadata.GROUP:
            return read_options
        return replace(read_options, path=path_below(read_options.path, GROUP))

    @property
    def columns(self) -> tuple[str, ...]:
        """Selected columns as written; empty selects all."""
        return self.query.columns

    def require_batch(self) -> None:
        """Raise for stream-only options, and for contradictions in a batch read."""
        self.query.require_batch()
        self._refuse_position()
        if self.change_feed:
            self._refuse_filter("a change feed")
        for name in options_only_for(self, AppliesTo.STREAM):
            raise of_streams_only(name)
        self._refuse_apart_from_history()
        refuse_wrong_bounds(self)
        if not self.change_feed:
            unsuitable = "a history" if self.history else "metadata" if self.metadata else ""
            refuse_of_changes(self, unsuitable)
        if not self.change_feed and not self.history:
            for name in select_given(self, *STARTS, *ENDS):
                raise OptionError(
                    f"option '{name}' needs the change feed.",
                    hint="add .option('readChangeFeed', 'true'), or use 'versionAsOf' to "
                    "read the table as it was.",
                )
            return
        for name in select_given(self, *AS_OF):
            raise OptionError.conflict(
                "readChangeFeed",
                name,
                why="changes are of several versions",
                hint="use 'startingVersion' and 'endingVersion'.",
            )

    def require_stream(self) -> None:
        """Raise for batch-only options, and for contradictions in a stream."""
        self._refuse_position()
        self._refuse_filter("a stream")
        self._refuse_history()
        for name in options_only_for(self, AppliesTo.BATCH):
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
            raise OptionError.refused(
                "filter",
                f"has no meaning in {read}: of a change, the row before may be "
                "wanted and the row behind not",
                hint="read a view, whose changes are exact, by upsertflow.view(path)"
                ".filter(...); or filter behind the read, with where(...).",
            )

    def _refuse_history(self) -> None:
        if self.history:
            raise OptionError.refused(
                "readHistory",
                "has no meaning in a stream: a row of a history is ended by "
                "a later one, which no stream of rows can take back",
                hint="use spark.read; or keep the history in a table ('upsertflow keep-history'), "
                "and read the changes of that.",
            )

    def _refuse_apart_from_history(self) -> None:
        of_history = ("validBy", "trackHistoryColumnList", "trackHistoryExceptColumnList")
        for name in () if self.history else select_given(self, *of_history):
            raise OptionError.refused(
                name,
                "says something of a history, and none is read",
                hint=f"add {setting('readHistory', 'true')}, or drop it.",
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
            raise OptionError.refused(
                "startingPosition",
                "is of views",
                hint="drop it, or use 'startingVersion' to choose where the stream begins.",
            )


def refuse_of_changes(read: ReadOptions, other: str = "") -> None:
    """Raise for change feed options in a read without changes, described by `other`."""
    add = "" if other else f"add {setting('readChangeFeed', 'true')}, or "
    conflicting = (
        ("computeUpdates", not read.compute_updates),
        ("deduplicationMode", read.deduplication is not Deduplication.DROP_CARRYOVERS),
    )
    for name, is_given in conflicting:
        if is_given:
            raise OptionError.refused(
                name,
                f"has no meaning in {other or 'a batch of rows'}, which shows no changes",
                hint=f"{add}drop the option"
                f"{', or emitUnchanged' if name == 'deduplicationMode' else ''}.",
            )


def refuse_of_new_values(read: ReadOptions) -> None:
    """Raise for options about old values in a stream with only new values."""
    if not read.change_feed and not read.compute_updates:
        raise OptionError.refused(
            "computeUpdates",
            "has no meaning in a stream of new values",
            hint="add .option('readChangeFeed', 'true'), or drop the option.",
        )


def is_open(read: ReadOptions) -> bool:
    """Return whether both bounds are exclusive; a single-version range is then empty."""
    return not (read.starting_inclusive or read.ending_inclusive)


def refuse_wrong_bounds(read: ReadOptions) -> None:
    """Raise for an end before the start, or an inclusive flag without its bound."""
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
    """Policy for rows on which a view expression fails (`views.row_errors`)."""

    FAIL = "fail"
    """The batch fails while the row still fails in its table's newest version."""
    NULL = "null"
    """The expression yields NULL."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options for view reads."""

    plan: str = Option(
        "plan",
        Options.text,
        Life(Change.REFUSED, "a different view requires a new checkpoint"),
        required=True,
        is_of_whole=True,
    ).as_field(
        "Instead of `path`: the plan of a view over one or more tables, from `to_json()` of "
        "`upsertflow.view(...)`. Times, `latest` and `earliest` work as for tables; version "
        "numbers require a plan that follows a single table (others may be pinned)."
    )
    """JSON."""
    on_error: OnError = Option(
        "onError",
        member_of(OnError),
        Life(Change.FREE, "it only decides whether a batch fails"),
        default=OnError.FAIL,
        is_of_whole=True,
    ).as_field(
        "Read with `plan`: the policy for rows on which an expression fails (division by zero, "
        "overflow, invalid cast). `fail`: the batch fails as long as the row in the newest version "
        "of its table fails. `null`: the result is NULL, and a logged warning has the count. "
        "Default `fail`."
    )


READ_OPTIONS = declared(PlanOptions, ReadOptions)
