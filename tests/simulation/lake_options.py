"""How the query of a lake reads: all options that a stream of several inputs has, drawn at once."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from spark_upsert.core.schema import CHANGELOG_FIELDS
from spark_upsert.options.read import Merge
from spark_upsert.table.changelog.read import Deduplication

ROOT = "/lake"

PRIORITIES = (-1000, -500, 0, 250, 500, 1000)
"""One of each band, and of the lowest two."""


STARTS: tuple[dict[str, str], ...] = (
    {},
    {"startingVersion": "earliest"},
    {"startingVersion": "latest"},
    {"startingVersion": "0"},
    {"startingVersion": "1"},
    {"startingVersion": "0", "startingBoundInclusive": "false"},
    {"startingTimestamp": "1000000001000"},
)
"""The time is a second behind the first moment of a lake."""


@dataclass
class Drawn:
    """The options of one query, which its user may change while the lake lives."""

    dice: random.Random
    pressure_dice: random.Random
    """Draws what concerns caps, pressure and waits."""
    is_lenient: bool = False
    starts: dict[str, dict[str, str]] = field(default_factory=dict)
    """What is said of an input that is named, beside where it lies."""

    def __post_init__(self) -> None:
        draw = self.dice
        self.merge, self.seed = draw.choice(
            [
                (Merge.INTERLEAVE, None),
                (Merge.INTERLEAVE, None),
                (Merge.INTERLEAVE, None),
                (Merge.INTERLEAVE, draw.randrange(1, 6)),
                (Merge.CONCAT, None),
                (Merge.ROUND_ROBIN, None),
            ]
        )
        self.is_exact = self.merge is not Merge.INTERLEAVE or self.seed is not None
        self.pattern = draw.choice([None, None, "t*", "*/t?"])
        self.is_feed = draw.random() < 0.75
        self.merge_schema = draw.random() < 0.4
        self.columns = draw.choice([None, None, "k,v", "v,k"])
        self.is_numbered = self.is_exact and draw.random() < 0.8
        modes = [Deduplication.DROP_CARRYOVERS, Deduplication.DROP_CARRYOVERS, Deduplication.NONE]
        modes += [] if self.is_exact else [Deduplication.NET_CHANGES]
        self.mode = draw.choice(modes)
        self.has_pairs = not self.is_feed or draw.random() < 0.8
        self.limits = {
            name: draw.choice(bounds)
            for name, bounds in (
                ("maxRowsPerTrigger", [None, 1, 2, 5]),
                ("maxBytesPerTrigger", [None, None, None, 800, 2_500, 6_000]),
                ("maxEpochsPerTrigger", [None, None, None, 1, 3]),
            )
            if name == "maxRowsPerTrigger" or not self.is_exact
        }
        self.has_lease = draw.random() < 0.7
        self.is_lenient = not self.is_exact and draw.random() < 0.3
        self.start = dict(draw.choice(STARTS if self.pattern is None else STARTS[:3]))
        self.has_priorities = not self.is_exact and draw.random() < 0.4
        self.parallelism = draw.randint(1, 3)
        self.splits = draw.choice([None, None, 1, 3])
        self.has_offsets_path = draw.random() < 0.7
        self.may_lack = False
        self.may_show_all = self.columns is None
        """Whether the query may show all columns: inputs that differ agree in some alone."""
        self.lease_ttl: str | None = None
        self._draw_pressure(self.pressure_dice)

    def _draw_pressure(self, draw: random.Random) -> None:
        self.is_pressed = draw.random() < 0.25
        """Whether tables have caps and heed their readers, some of which cannot keep up."""
        self.has_lease |= self.is_pressed and draw.random() < 0.8
        if self.is_pressed and draw.random() < 0.4:
            self.limits["maxRowsPerTrigger"] = 1  # It cannot keep up.
        self.rows_min: int | None = None
        """How many rows a batch waits for."""
        if not self.is_exact and draw.random() < 0.3:
            self.rows_min = min(draw.choice([2, 3, 6]), self.rows_max or 6)
        self.was_without_lease = not self.has_lease
        """Whether a life of the query held nothing, so that what it had to read may be gone."""
        self.delay_s = draw.choice([1, 4])
        """How long the oldest of them waits at most."""
        self.latency_target = "300 ms" if self.is_pressed and draw.random() < 0.8 else None
        self.has_auto_priority = self.has_priorities and draw.random() < 0.5

    def change(self, draw: random.Random) -> None:
        """Be given other options where the query starts again: those that it may be (`lives`)."""
        self.parallelism = draw.randint(1, 3)
        self.splits = draw.choice([None, 1, 2, 3])
        # Where one row is all that a batch takes, whose turn it is is seen best.
        if not self.is_pressed and self.rows_max != 1 and draw.random() < 0.5:
            most = draw.choice([None, 2, 5, 9])
            if most is None or self.rows_min is None or most >= self.rows_min:
                self.limits["maxRowsPerTrigger"] = most
            if not self.is_exact:
                self.limits["maxBytesPerTrigger"] = draw.choice([None, 800, 6_000])
                self.limits["maxEpochsPerTrigger"] = draw.choice([None, 1, 3])
        if not self.is_exact and draw.random() < 0.5:
            self.mode = draw.choice(list(Deduplication))
        if self.is_feed and draw.random() < 0.3:
            self.has_pairs = not self.has_pairs

    def change_what_is_shown(self, draw: random.Random, *, has_sink: bool) -> None:
        """Be given other columns, another feed, another lease.

        Parameters
        ----------
        has_sink : bool
            Whether a table is fed by the changes, which then must come.
        """
        if draw.random() < 0.4:
            whole = [None] if self.may_show_all else []
            self.columns = draw.choice([*whole, "k,v", "v,k"])
        is_free = not (self.is_exact or has_sink)
        if is_free and draw.random() < 0.3:
            self.is_feed = not self.is_feed
            self.has_pairs = True
        # What a table under pressure says of its readers is told by one lease, without a break.
        if not self.has_age and draw.random() < 0.3:
            self.has_lease = not self.has_lease
            self.was_without_lease |= not self.has_lease
        self.lease_ttl = draw.choice([None, "7 days"])

    def forbidden(self, draw: random.Random, names: list[str]) -> tuple[dict[str, str], str] | None:
        """Draw a change that is refused, and what is said of it; None if there is none.

        Parameters
        ----------
        names : list of str
            The inputs that are named, in their order.
        """
        if not self.is_exact:
            changes = [({"merge": "roundrobin"}, "takes what is ready first")]
        else:
            other = {Deduplication.NONE: "dropCarryovers"}.get(self.mode, "none")
            changes = [
                ({"deduplicationMode": other}, "'deduplicationMode' was"),
                ({"merge": "interleave", "interleaveSeed": "99"}, "is that of another order"),
                (
                    {"merge": "interleave", "interleaveSeed": "", "mergeColumns": "_input"},
                    "is that of an exact order",
                ),
            ]
            if self.pattern is None and len(names) > 1:
                changes.append(({"inputs": ",".join(reversed(names))}, "in another order"))
        return draw.choice(changes)

    def __str__(self) -> str:
        return ", ".join(f"{name}={text}" for name, text in self.of_query().items())

    @property
    def has_age(self) -> bool:
        """Whether who waits grows older, and is more urgent for it."""
        return self.is_pressed or self.rows_min is not None

    @property
    def rows_max(self) -> int | None:
        """The bound of the rows of a batch."""
        return self.limits["maxRowsPerTrigger"]

    def say(self, name: str) -> None:
        """Draw what is said of one input that is named."""
        told = {"path": f"{ROOT}/{name}"}
        if self.dice.random() < 0.5:
            told |= self.dice.choice(STARTS)
        if self.has_priorities and self.dice.random() < 0.5:
            told["priority"] = str(self.dice.choice(PRIORITIES))
        self.starts[name] = told

    def start_of(self, name: str) -> dict[str, str]:
        """Return where a table begins."""
        own = self.starts.get(name, {})
        chosen = {key: text for key, text in own.items() if key.startswith("starting")}
        if not chosen.keys() & {"startingVersion", "startingTimestamp"}:
            chosen = {**self.start, **chosen}
        elif "startingBoundInclusive" in self.start:
            chosen = {"startingBoundInclusive": "false", **chosen}
        return chosen

    def priority_of(self, name: str, of_table: int | None) -> int | None:
        """Return how urgent an input is said to be."""
        own = self.starts.get(name, {}).get("priority")
        return int(own) if own is not None else of_table

    def start_where_it_is_left(self) -> None:
        """Begin with the oldest changes that can be read instead of those of a number or a time."""
        told = [self.start, *self.starts.values()]
        for each in told:
            if each.get("startingVersion", "").isdigit() or "startingTimestamp" in each:
                each.pop("startingTimestamp", None)
                each.pop("startingBoundInclusive", None)
                each["startingVersion"] = "earliest"

    def given(self, names: list[str]) -> dict[str, str]:
        """Return the options as a user gives them."""
        found = self.of_query()
        if self.pattern is not None:
            return {**found, "path": ROOT, "inputsPattern": self.pattern}
        for name in names:
            found |= {f"input.{name}.{key}": text for key, text in self.starts[name].items()}
        return {**found, "inputs": ",".join(names)}

    def of_query(self) -> dict[str, str]:
        """Return what is said of the query."""
        asked = ["_input", *(["_merge_seq"] if self.is_numbered else [])]
        found = {
            "merge": self.merge.value,
            "mergeColumns": ",".join(asked),
            "parallelism": str(self.parallelism),
            "failOnDataLoss": str(not self.is_lenient).lower(),
            "deduplicationMode": self.mode.value,
            "readChangeFeed": str(self.is_feed).lower(),
            "mergeSchema": str(self.merge_schema).lower(),
            **self.start,
        }
        found |= {name: str(most) for name, most in self.limits.items() if most is not None}
        for name, text in (
            ("interleaveSeed", self.seed),
            ("columns", self.columns),
            ("splits", self.splits),
            ("consumerId", "lake" if self.has_lease else None),
            ("consumerTtl", self.lease_ttl if self.has_lease else None),
            ("ignoreDeletes", None if self.is_feed else "true"),
            ("computeUpdates", None if self.has_pairs else "false"),
            ("allowInputRemoval", "true" if self.may_lack else None),
            ("minRowsPerTrigger", self.rows_min),
            ("maxTriggerDelay", None if self.rows_min is None else f"{self.delay_s} seconds"),
            ("latencyTarget", self.latency_target),
            ("autoPriority", "true" if self.has_auto_priority else None),
        ):
            if text is not None:
                found[name] = str(text)
        if self.has_offsets_path and self.pattern is None:
            found["offsetsPath"] = f"{ROOT}/_offsets"
        return found


CHANGE_COLUMNS = frozenset(each.name for each in CHANGELOG_FIELDS)
