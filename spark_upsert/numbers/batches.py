"""The numbers of one micro-batch: its rows by what became of them, and how far behind it is.

A batch is one value, whose `to_json` is the dict for programs and whose `line` is one line of a
log. A number that is not known is None, and is left out of the line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_upsert.errors import masked
from spark_upsert.model.log_fields import Fields
from spark_upsert.model.template import Template, is_routed
from spark_upsert.table.entries.counters import STALE_MIN

SHOWN = (
    *("inserts", "updates", "deletes", "absent", "stale", "superseded", "duplicates"),
    *("tied", "late", "rejected", "quarantined", "displaced", "skipped", "retracted", "restored"),
)
"""The counters of an epoch that a batch tells: those of `Counters` but for the sum of them."""

TROUBLES: Mapping[str, str] = {
    "tied": "sequenceBy does not tell two changes of a key apart: order by more columns",
    "late": "rows are older than the deletes that are remembered: raise tombstoneRetention",
    "rejected": "rows are older than the deletes that are remembered: raise tombstoneRetention",
    "quarantined": "rows could not be applied: read them by metadata=quarantine",
    "parked": "tables cannot take their rows: see 'upsertflow parked ROOT'",
    "stale": "all rows are older than the table's: a replay catches up by itself; if the order of "
    "the source has restarted, as after a database was restored, take a new snapshot into a new "
    "table",
}
"""Numbers that should be 0, and what to do if they are not; `stale` where all rows are stale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLag:
    """How far a query is behind one of its inputs, after a batch."""

    source: str
    """The name of the input; ``""`` if the query has one without a name."""
    versions: int
    """Versions of the input behind the batch."""
    seconds: float | None = None
    """How long the first of them has waited by now; None if it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkNumbers:
    """What a batch did to the table that it wrote, and what this table is now."""

    table: str
    version: int | None
    """The version that the batch became; of many tables that of their group."""
    counters: Mapping[str, int]
    """Rows by what became of them (`SHOWN`), without zeros."""
    parked: int | None = None
    """Rows of all batches that wait beside the tables of a root; None for a table of its own."""
    tables: int = 1
    """The tables that the batch wrote."""
    uncounted: int = 0
    """Those of them whose counters are not in the sum, because they are too many."""
    runs: int | None = None
    live_rows: int | None = None
    mirror_versions: int | None = None
    """Versions that the mirror does not show; None without a mirror."""
    mirror_seconds: float | None = None
    """How long the first of them that changed rows has waited."""
    stale_rows: int = 0
    """Rows of the batch in tables whose rows of the batch were all stale."""
    stale_epochs: int = 0
    """Epochs in a row, up to the batch's own, whose rows were all stale."""

    @property
    def is_stale(self) -> bool:
        """Whether that is more than a few late rows (`STALE_MIN`)."""
        return max(self.stale_rows, self.stale_epochs) >= STALE_MIN


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNumbers:
    """A micro-batch of a query in numbers."""

    query: str
    """The name of the query, or its id if it has none."""
    query_id: str
    batch: int
    seconds: float
    """How long it took."""
    rows: int
    """Rows that the query read for it."""
    sink: SinkNumbers | None = None
    """None: the query writes no table of ours, or it is not known which."""
    lags: tuple[SourceLag, ...] = ()
    """The inputs that the batch leaves furthest behind; none where nothing is left."""
    lag_versions: int | None = None
    """Versions behind the batch in all inputs of ours; None if the query has none."""
    problem: str | None = None
    """Why the table could not be looked at."""

    @property
    def lag_seconds(self) -> float | None:
        """How long the oldest change that the batch left has waited; 0 if it left none."""
        if self.lag_versions is None:
            return None
        known = [lag.seconds for lag in self.lags if lag.seconds is not None]
        return max(known) if known else (None if self.lag_versions else 0.0)

    @property
    def troubles(self) -> tuple[str, ...]:
        """The numbers that mean trouble, by their names (`TROUBLES`)."""
        if self.sink is None:
            return ()
        counted = {**self.sink.counters, "parked": self.sink.parked or 0}
        counted["stale"] = int(self.sink.is_stale)
        return tuple(name for name in TROUBLES if counted.get(name))

    def to_json(self) -> dict[str, Any]:
        """Return the form for programs: all counters, zeros included."""
        return {name: value for name, value in self._told() if value is not None} | {
            "lags": {
                lag.source: {"versions": lag.versions, "seconds": lag.seconds} for lag in self.lags
            },
            "troubles": list(self.troubles),
        }

    def line(self) -> str:
        """Return one line of fields; counters of 0 are left out."""
        told = ((k, v) for k, v in self._told() if v is not None and not (k in SHOWN and not v))
        return f"batch done: {Fields(**dict(told))}"

    def advice(self) -> str:
        """Return what to do about the numbers that mean trouble."""
        told = "; ".join(f"{name}: {TROUBLES[name]}" for name in self.troubles)
        if self.sink is None or not is_routed(self.sink.table):
            return told
        return told.replace("ROOT", f"{masked(Template.parse(self.sink.table).root)}")

    def _told(self) -> Iterator[tuple[str, Any]]:
        yield from (("query", self.query), ("query_id", self.query_id), ("batch", self.batch))
        yield from (("seconds", self.seconds), ("rows", self.rows))
        if (sink := self.sink) is not None:
            yield from (("table", masked(sink.table)), ("version", sink.version))
            yield from ((name, sink.counters.get(name, 0)) for name in SHOWN)
            yield "parked", sink.parked
            if sink.parked is not None:
                yield from (("tables", sink.tables), ("uncounted", sink.uncounted))
            yield from (("runs", sink.runs), ("live_rows", sink.live_rows))
            yield "stale_epochs", sink.stale_epochs or None
            yield "mirror_versions", sink.mirror_versions
            yield "mirror_seconds", sink.mirror_seconds
        yield from (("lag_versions", self.lag_versions), ("lag_seconds", self.lag_seconds))
        yield "problem", self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Spark's report of a batch, as far as it is told on."""

    query: str
    query_id: str
    batch: int
    seconds: float
    rows: int
    reports: tuple[Mapping[str, Any], ...] = field(default=())
    """Reports of our sources about themselves (`streams.planner.progress`)."""

    @property
    def has_source(self) -> bool:
        """Whether a source of the query is ours."""
        return bool(self.reports)

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> Progress:
        """Return what the JSON of a query's progress says."""
        latest = [each.get("latestOffset") for each in told.get("sources", ())]
        return cls(
            query=told.get("name") or told["id"],
            query_id=told["id"],
            batch=int(told["batchId"]),
            seconds=(told.get("batchDuration") or 0) / 1000,
            rows=int(told.get("numInputRows") or 0),
            reports=tuple(each for each in latest if _is_ours(each)),
        )

    def numbers(
        self, sink: SinkNumbers | None, *, now_ms: int, problem: str | None = None
    ) -> BatchNumbers:
        """Return the batch in numbers, given what it did to its table.

        Parameters
        ----------
        sink : SinkNumbers or None
        now_ms : int
            The time, in ms since 1970, at which changes that wait are looked at.
        problem : str, optional
            Why the table could not be looked at.
        """
        lags = [lag for report in self.reports for lag in _lags(report, now_ms)]
        behind = [report["lag"]["versions"] for report in self.reports if "lag" in report]
        return BatchNumbers(
            query=self.query,
            query_id=self.query_id,
            batch=self.batch,
            seconds=self.seconds,
            rows=self.rows,
            sink=sink,
            lags=tuple(lags),
            lag_versions=sum(behind) if behind else None,
            problem=problem,
        )


def _is_ours(offset: Any) -> bool:
    return isinstance(offset, Mapping) and "inputs" in offset and "pressure" in offset


def _lags(report: Mapping[str, Any], now_ms: int) -> Iterator[SourceLag]:
    lag = report.get("lag", {})
    for source, versions in lag.get("most", {}).items():
        since_ms = lag.get("since_ms", {}).get(source)
        seconds = None if since_ms is None else max(0, now_ms - since_ms) / 1000
        yield SourceLag(source=source, versions=versions, seconds=seconds)
