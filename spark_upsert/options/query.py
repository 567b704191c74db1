"""The checked options of a read as a whole, however many inputs it has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from spark_upsert.errors import OptionError
from spark_upsert.model.orders import Concat, Order, RoundRobin, Seeded
from spark_upsert.model.wyrand import SEED_END
from spark_upsert.options.declared import (
    NO_NAMES,
    Only,
    Option,
    at_least,
    flag,
    given_only,
    held_together,
    member_of,
    values,
)
from spark_upsert.options.lives import FREE, NEXT, REFUSED, Change, Life
from spark_upsert.options.parse import Options, absolute_path, one_of, whole_number

LATENCY_TARGET_MS = 60_000
"""Longer than most triggers wait, shorter than most people do."""

INPUT = "_input"
MERGE_SEQ = "_merge_seq"

MERGE_COLUMNS = (INPUT, MERGE_SEQ)
"""Settings of a merge, in the order in which they stand."""


DELAY_MS = 15 * 60_000
"""As Spark's source of Kafka has it."""


class Merge(Enum):
    """How the rows of several inputs become one sequence."""

    INTERLEAVE = "interleave"
    """What is ready first; with a seed, in an exact order that is drawn from it."""
    CONCAT = "concat"
    """An input has its turn when those before it have nothing left."""
    ROUND_ROBIN = "roundrobin"
    """One row of each in turn."""


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
    seen: dict[str, str] = {}
    for column in columns:
        if (other := seen.get(column.lower())) is not None:
            raise OptionError(
                f"option '{name}' names '{column}' twice"
                f"{'' if other == column else f', as {other!r}, too'}.",
                hint="name each column once.",
                option=name,
            )
        seen[column.lower()] = column
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
    # As of a table: a relative path is that of the process that was given it.
    return None if path is None else absolute_path(path, option=name)


def _merge_columns(options: Options, name: str) -> tuple[str, ...]:
    asked = {one_of(name, column, MERGE_COLUMNS) for column in options.names(name)}
    return tuple(column for column in MERGE_COLUMNS if column in asked)


@dataclass(frozen=True, kw_only=True)
class MergeOptions:
    """Options of the inputs of a read together, where it has several."""

    priorities: Mapping[str, int] = held_together(
        Option("input.<name>.priority", Options.text, FREE).means(
            "Stream with a limit per trigger: how urgent the input is, from -1000 to 1000. A more "
            "urgent one is served first and has the larger share; none starves. Default: the "
            "property `priority` of the table, else 0."
        ),
    )
    """How urgent inputs are, by name, as far as the read says so."""
    auto_priority: bool = Option("autoPriority", flag, FREE, default=False).held(
        "Stream with a limit per trigger: whether a table that has no priority is the more urgent "
        "the later it was read, as far as leases tell (`consumerId`), those of this query apart: "
        "500 at once, half of that after 30 seconds. Default `false`."
    )
    merge: Merge = Option("merge", member_of(Merge), REFUSED, default=Merge.INTERLEAVE).held(
        "How the rows of the inputs become one sequence. `interleave`: what is ready first, in "
        "several tasks; no order between inputs is promised. `concat`: an input has its turn when "
        "those before it have nothing left. `roundrobin`: one row of each input in turn. Exact "
        "orders are those of one task, and need all rows of a batch to be counted. Default "
        "`interleave`."
    )
    seed: int | None = Option("interleaveSeed", _seed, REFUSED).held(
        "With `merge=interleave`: makes the order exact, and drawn from this number (0 to "
        "18446744073709551615)."
    )
    merge_schema: bool = Option("mergeSchema", flag, NEXT, default=False).held(
        "Whether the inputs may differ in their columns: one that an input lacks is null, and the "
        "widest type holds. By the rules by which a table evolves. Default `false`."
    )
    allow_input_removal: bool = Option(
        "allowInputRemoval", flag, FREE, default=False, only=Only.STREAM
    ).held(
        "Stream: whether inputs that the checkpoint knows may be left out of `inputs`. What they "
        "still had is never read, and the checkpoint forgets them. Default `false`."
    )
    merge_columns: tuple[str, ...] = Option(
        "mergeColumns",
        _merge_columns,
        Life(Change.NEXT, "`_merge_seq` is refused where rows were not counted so far"),
        default=NO_NAMES,
    ).held(
        "Columns about the merge, behind all others: `_input`, the name of the input that a row "
        "is from; with an exact order `_merge_seq`, the number of a row in it, from 0 on over the "
        "whole life of a stream. Default: none."
    )
    """Names in the order in which they stand (`MERGE_COLUMNS`)."""
    discovery_ms: int | None = Option(
        "discoveryInterval", Options.duration_ms, FREE, only=Only.STREAM
    ).held(
        "Stream of more than 300 tables: how often one that does not change is looked at, at "
        "least; those that change are looked at more often. Default `30 seconds` in a bucket, "
        "`500 ms` on a file system. It is longer where requests or time do not suffice."
    )
    discovery_requests: int | None = Option(
        "discoveryRequests", at_least(0), FREE, only=Only.STREAM
    ).held(
        "Stream of more than 300 tables: how many requests a second the looks for what came may "
        "take, on average; `0`: any number. Default `200` in a bucket, `0` on a file system."
    )
    offsets_path: str | None = Option(
        "offsetsPath",
        _offsets_path,
        Life(Change.FREE, "where positions lie there, refused: they are not found"),
        only=Only.STREAM,
    ).held(
        "Stream of more than 300 inputs: the folder where the positions of the inputs are kept, "
        "which are too many for the checkpoint; keep it as long as that. Default: `_offsets` "
        "below `path` with `inputsPattern`; else all positions stand in the checkpoint."
    )


@dataclass(frozen=True, kw_only=True)
class QueryOptions(MergeOptions):
    """Options that are given once for all inputs of a read."""

    rows_max: int | None = Option(
        "maxRowsPerTrigger", at_least(1), FREE, is_of_whole=True, only=Only.STREAM
    ).held("Stream: soft bound of change rows per micro-batch; an epoch is never cut.")
    bytes_max: int | None = Option(
        "maxBytesPerTrigger", at_least(1), FREE, is_of_whole=True, only=Only.STREAM
    ).held("Stream: soft bound of bytes read per micro-batch.")
    epochs_max: int | None = Option(
        "maxEpochsPerTrigger", at_least(1), FREE, is_of_whole=True, only=Only.STREAM
    ).held("Stream: bound of epochs per micro-batch.")
    rows_min: int | None = Option(
        "minRowsPerTrigger", at_least(1), FREE, is_of_whole=True, only=Only.STREAM
    ).held(
        "Stream: no batch is made before so many change rows wait, as the log counts them, or the "
        "oldest has waited for `maxTriggerDelay`. The first batch does not wait, nor does one "
        "that an input joins. Without effect on `availableNow`. Default: none."
    )
    delay_ms: int = Option(
        "maxTriggerDelay", _delay_ms, FREE, default=DELAY_MS, is_of_whole=True
    ).held("Stream: how long a change waits at most for `minRowsPerTrigger`. Default `15 minutes`.")
    latency_target_ms: int = Option(
        "latencyTarget",
        Options.duration_ms,
        FREE,
        default=LATENCY_TARGET_MS,
        is_of_whole=True,
        only=Only.STREAM,
    ).held(
        "Stream: the time from a commit until its micro-batch is planned that counts as full "
        "pressure; longer than the trigger's interval. Default `1 minute`."
    )
    parallelism: int | None = Option("parallelism", at_least(1), FREE, is_of_whole=True).held(
        "Tasks that the cluster runs at once. `pyspark_upsertflow.register(spark)` fills in what "
        "the session knows then: its `defaultParallelism`, or the cores that its configuration "
        "asks for (Spark Connect tells neither). Default: the processors of the driver."
    )
    columns: tuple[str, ...] = Option(
        "columns", _columns, NEXT, default=NO_NAMES, is_of_whole=True
    ).held(
        "Comma-separated columns to read; `_change_type` and its like always come along. Default: "
        "all."
    )
    """Names as they were written; none: all."""
    deferred: bool = Option(
        "deferred",
        flag,
        Life(Change.NEXT, "set by `keep`"),
        default=False,
        is_of_whole=True,
        only=Only.STREAM,
    ).held(
        "Stream of a `plan`: hand on what each split would read, a row for each, to a sink of "
        "ours that is told of this read, and reads it there: rows do not go through Spark. Set by "
        "`keep`. Default `false`."
    )
    """Whether the sink reads what this read plans."""

    @classmethod
    def parse(cls, options: Options, priorities: Mapping[str, int] | None = None) -> QueryOptions:
        """Check the options, beside those of inputs that decide together; raises `OptionError`."""
        found = cls(priorities=priorities or {}, **values(cls, options))
        found._require_consistent()
        return found

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
        for name, bound in (
            ("maxBytesPerTrigger", self.bytes_max),
            ("maxEpochsPerTrigger", self.epochs_max),
            ("minRowsPerTrigger", self.rows_min),
        ):
            if bound is not None:
                raise OptionError(
                    f"option '{name}' has no meaning in an exact order, which is cut by rows.",
                    hint="give 'maxRowsPerTrigger' instead.",
                    option=name,
                )
        for name in self._told_priorities:
            raise OptionError(
                f"option '{name}' has no meaning in an exact order, which alone decides which "
                "input is next.",
                hint="drop the option; or leave out 'merge' and 'interleaveSeed'.",
                option=name,
            )

    @property
    def _told_priorities(self) -> list[str]:
        told = [f"input.{name}.priority" for name in self.priorities]
        return [*told, *(["autoPriority"] if self.auto_priority else [])]

    @property
    def order(self) -> Order | None:
        """The exact order that a read begins with; None: rows come as they are ready."""
        if self.merge is Merge.CONCAT:
            return Concat()
        if self.merge is Merge.ROUND_ROBIN:
            return RoundRobin()
        return None if self.seed is None else Seeded(state=self.seed)

    @property
    def slots(self) -> int:
        """How many tasks run at once, as far as it is known here."""
        return self.parallelism or os.cpu_count() or 1

    def require_batch(self) -> None:
        """Refuse options that only a stream knows."""
        for name in given_only(self, Only.STREAM):
            raise of_streams_only(name)
        for name in self._told_priorities:
            raise of_streams_only(name)


def of_streams_only(name: str) -> OptionError:
    """Return the error of an option of streams that a batch read was given."""
    return OptionError(
        f"option '{name}' has no meaning in a batch read.",
        hint="use spark.readStream, or drop the option.",
    )
