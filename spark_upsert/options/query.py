"""The checked options of a read as a whole, however many inputs it has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from spark_upsert.errors import OptionError
from spark_upsert.model.orders import Concat, Order, RoundRobin, Seeded
from spark_upsert.model.wyrand import SEED_END
from spark_upsert.options.parse import Options, choice, one_of, whole_number

LATENCY_TARGET_MS = 60_000
"""Longer than most triggers wait, shorter than most people do."""

INPUT = "_input"
MERGE_SEQ = "_merge_seq"

MERGE_COLUMNS = (INPUT, MERGE_SEQ)
"""What can be asked for about a merge, in the order in which it stands."""


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


@dataclass(frozen=True, kw_only=True)
class QueryOptions:
    """What is said once for all inputs of a read."""

    rows_max: int | None = None
    """Of one micro-batch, like the other bounds."""
    bytes_max: int | None = None
    epochs_max: int | None = None
    latency_target_ms: int = LATENCY_TARGET_MS
    """The time from a commit to its batch that counts as full pressure."""
    rows_min: int | None = None
    """Of one micro-batch, unless its oldest row has waited for long."""
    delay_ms: int = DELAY_MS
    """How long that is."""
    parallelism: int | None = None
    merge: Merge = Merge.INTERLEAVE
    seed: int | None = None
    columns: tuple[str, ...] = ()
    """Those that are chosen, as they were written; none: all."""
    merge_schema: bool = False
    """Whether inputs may lack columns, and have narrower types."""
    allow_input_removal: bool = False
    merge_columns: tuple[str, ...] = ()
    """In the order in which they stand (`MERGE_COLUMNS`)."""
    offsets_path: str | None = None
    """Where the positions of very many inputs lie."""
    priorities: Mapping[str, int] = field(default_factory=dict)
    """How urgent inputs are, by name, as far as the read says so."""
    discovery_ms: int | None = None
    """How often each of very many inputs is looked at, at least."""
    discovery_requests: int | None = None
    """In a second, for looks at very many inputs; 0: any number."""
    auto_priority: bool = False
    """Whether others are the more urgent the later somebody else read them."""
    deferred: bool = False
    """Whether the sink reads what this read plans."""

    @classmethod
    def parse(cls, options: Options, priorities: Mapping[str, int] | None = None) -> QueryOptions:
        """Check the options, beside those of inputs that decide together; raises `OptionError`."""
        found = cls(
            rows_max=options.number("maxRowsPerTrigger", least=1),
            bytes_max=options.number("maxBytesPerTrigger", least=1),
            epochs_max=options.number("maxEpochsPerTrigger", least=1),
            latency_target_ms=options.duration_ms("latencyTarget") or LATENCY_TARGET_MS,
            rows_min=options.number("minRowsPerTrigger", least=1),
            delay_ms=_delay_ms(options),
            parallelism=options.number("parallelism", least=1),
            merge=choice(options, "merge", Merge) or Merge.INTERLEAVE,
            seed=_seed(options),
            columns=_columns(options),
            merge_schema=options.flag("mergeSchema"),
            allow_input_removal=options.flag("allowInputRemoval"),
            merge_columns=_merge_columns(options),
            offsets_path=_offsets_path(options),
            priorities=priorities or {},
            discovery_ms=options.duration_ms("discoveryInterval"),
            discovery_requests=options.number("discoveryRequests", least=0),
            auto_priority=options.flag("autoPriority"),
            deferred=options.flag("deferred"),
        )
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
                f"option '{name}' has no meaning in an exact order, which alone decides who is "
                "next.",
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
        for name, value in (
            ("maxRowsPerTrigger", self.rows_max),
            ("maxBytesPerTrigger", self.bytes_max),
            ("maxEpochsPerTrigger", self.epochs_max),
            ("latencyTarget", None if self.latency_target_ms == LATENCY_TARGET_MS else True),
            ("minRowsPerTrigger", self.rows_min),
            ("offsetsPath", self.offsets_path),
            ("discoveryInterval", self.discovery_ms),
            ("discoveryRequests", self.discovery_requests),
            ("allowInputRemoval", self.allow_input_removal or None),
            ("deferred", self.deferred or None),
            *((name, True) for name in self._told_priorities),
        ):
            if value is not None:
                raise of_streams_only(name)


def of_streams_only(name: str) -> OptionError:
    """Return the error of an option of streams that a batch read was given."""
    return OptionError(
        f"option '{name}' has no meaning in a batch read.",
        hint="use spark.readStream, or drop the option.",
    )


def _seed(options: Options) -> int | None:
    text = options.text("interleaveSeed")
    if text is None:
        return None
    seed = whole_number(text, bits=64)
    if seed is None or seed < 0:
        raise OptionError.invalid(
            "interleaveSeed", text, f"a whole number from 0 up to {SEED_END - 1}"
        )
    return seed


def _columns(options: Options) -> tuple[str, ...]:
    names = options.names("columns")
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.get(name.lower())) is not None:
            raise OptionError(
                f"option 'columns' names '{name}' twice"
                f"{'' if other == name else f', as {other!r}, too'}.",
                hint="name each column once.",
                option="columns",
            )
        seen[name.lower()] = name
    return names


def _delay_ms(options: Options) -> int:
    delay_ms = options.duration_ms("maxTriggerDelay")
    if delay_ms is not None and options.text("minRowsPerTrigger") is None:
        raise OptionError.missing(
            "minRowsPerTrigger", "'maxTriggerDelay' says how long a batch waits for so many rows"
        )
    return delay_ms or DELAY_MS


def _offsets_path(options: Options) -> str | None:
    path = options.text("offsetsPath")
    # As of a table: a relative path is that of the process that was given it.
    return path if path is None or ":/" in path else os.path.abspath(path)


def _merge_columns(options: Options) -> tuple[str, ...]:
    asked = {one_of("mergeColumns", name, MERGE_COLUMNS) for name in options.names("mergeColumns")}
    return tuple(name for name in MERGE_COLUMNS if name in asked)
