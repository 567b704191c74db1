"""The pressure of a stream (`StreamGauge`): each planned batch is a sample for the governor.

Signals are inputs left waiting, the age of the oldest change, and the share of batches cut by
limits. A query reports none until it has caught up once (docs/adr/0031).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spark_upsert.core.durations import Fields
from spark_upsert.options.inputs import UNNAMED
from spark_upsert.options.read import QueryOptions
from spark_upsert.scheduler.governor import (
    LATENCY_WEIGHT,
    RETRY_AFTER_MS,
    SUSTAINED_SAMPLES,
    Governor,
    Sample,
)
from spark_upsert.store.records import MALFORMED, whole
from spark_upsert.streams.inputs.inputs import Inputs
from spark_upsert.streams.inputs.protocol import Backlog, Input, StreamPressure
from spark_upsert.streams.offsets.offset import Json, Offset, no_offset, without
from spark_upsert.streams.planner.rate_limit import waiting_count

_LOGGER = logging.getLogger(__name__)

REPORTS_MAX = 64
"""Maximum inputs with a report per sample, the ones read first; each report is one put."""

REPORT_INTERVAL_MS = 1_000

LASTS_MS_MIN = 5_000
LASTS_MS_MAX = 60_000
"""A report to writers lasts twice the time since the last sample, within these bounds.

During a batch, which may take long, no report is sent.
"""

_CUTS_FULL = 2

PRESSURE = "pressure"
"""State key in an offset from which a restarted process resumes."""

_IS_BEHIND = {"is_behind": True}
_THOUSAND = 1000


class StreamGauge:
    """Samples the stream's lag for the governor, and reports pressure to writers.

    It uses two rungs on the governor's ladder: deferral for the lowest band, and reports to
    writers.

    Parameters
    ----------
    inputs : Inputs
    query : QueryOptions
    """

    def __init__(self, inputs: Inputs, query: QueryOptions) -> None:
        self._inputs = inputs
        # A configured delay is not lag.
        wanted_ms = 0 if query.rows_min is None else query.delay_ms
        self._target_ms = query.latency_target_ms + wanted_ms
        self._slots = query.slots
        self._reported: dict[str, tuple[int, Input]] = {}
        """Last report time per input."""
        self._reset()
        self._has_kept_up = False
        self._is_resumed = False

    def _reset(self) -> None:
        self._governor = Governor(target_ms=self._target_ms)
        self._busy = 0.0
        self._cuts = 0

    @property
    def governor(self) -> Governor:
        """The governor, with its estimate from the samples so far."""
        return self._governor

    @property
    def defers_lowest(self) -> bool:
        """Whether the lowest band waits."""
        return self._governor.is_deferring

    def resume(self, offset: Offset) -> None:
        """Restore the state from an offset; only the first call has an effect."""
        if self._is_resumed:
            return
        self._is_resumed = True
        record = offset.state.get(PRESSURE)
        self._has_kept_up = bool(offset.positions) and record != _IS_BEHIND
        if self._has_kept_up and PRESSURE in offset.state:
            self._restore(record)

    def _restore(self, record: Any) -> None:
        try:
            latency_ms = record["latency_ms"]
            self._governor = replace(
                self._governor,
                latency_ms=None if latency_ms is None else float(whole(latency_ms)),
                sampled_ms=whole(record["sampled_ms"]),
                high_count=min(SUSTAINED_SAMPLES, whole(record["high"])),
                is_deferring=record["is_deferring"] is True,
            )
            self._busy = min(1.0, whole(record["busy"]) / _THOUSAND)
            self._cuts = whole(record["cuts"])
        except MALFORMED as error:
            raise no_offset({PRESSURE: record}) from error

    def offset_state(self, reached: Offset) -> dict[str, Json]:
        """Return the offset state for the end of the last planned batch.

        Its entry `PRESSURE` exists while inputs wait: ``is_behind`` alone (never caught up), or
        ``busy`` (busy ratio in thousandths), ``cuts`` (consecutive cut batches, up to two),
        ``high`` (consecutive samples for a deferral), ``is_deferring``, ``latency_ms`` (moving
        average) and ``sampled_ms``.
        """
        state = without(reached.state, PRESSURE)
        governor = self._governor
        if not self._has_kept_up:
            state[PRESSURE] = dict(_IS_BEHIND)
        elif self._cuts and governor.sampled_ms is not None:
            latency_ms = governor.latency_ms
            state[PRESSURE] = {
                "busy": round(self._busy * _THOUSAND),
                "cuts": min(_CUTS_FULL, self._cuts),
                "high": governor.high_count,
                "is_deferring": governor.is_deferring,
                "latency_ms": None if latency_ms is None else round(latency_ms),
                "sampled_ms": governor.sampled_ms,
            }
        return state

    def record_unlimited_batch(self) -> None:
        """Record a batch without limits, which leaves no backlog."""
        self._has_kept_up = True
        self._cuts = 0

    def record_idle(self) -> None:
        """Record a stream without unread data: withdraw all reports."""
        self._has_kept_up = True
        if self._governor.rung:
            self._log_pressure(Governor(target_ms=self._target_ms), waiting=0)
        self._reset()
        self._withdraw_all()

    def record_batch(self, backlogs: Mapping[str, Backlog], reached: Offset, now_ms: int) -> None:
        """Record a planned batch; sample and report if due."""
        waiting = _count_waiting(backlogs, reached)
        self._cuts = self._cuts + 1 if waiting else 0
        self._busy += LATENCY_WEIGHT * (float(waiting > 0) - self._busy)
        self._has_kept_up |= not waiting
        if not (self._has_kept_up and self._governor.is_due(now_ms)):
            return
        before = self._governor
        self._governor = before.after_sample(
            Sample(
                waiting=waiting,
                slots=self._slots,
                latency_ms=_latency_ms(backlogs, reached, now_ms),
                busy=self._busy,
                is_full=self._cuts >= _CUTS_FULL,
            ),
            now_ms,
        )
        if self._governor.rung != before.rung:
            self._log_pressure(self._governor, waiting=waiting)
        since_ms = 0 if before.sampled_ms is None else max(0, now_ms - before.sampled_ms)
        self._report_all(backlogs, now_ms, lasts_ms=2 * since_ms)

    def _report_all(self, backlogs: Mapping[str, Backlog], now_ms: int, *, lasts_ms: int) -> None:
        if not self._governor.rung:
            self._withdraw_all()
            return
        pressure = StreamPressure(
            rung=self._governor.rung,
            ratio=self._governor.pressure,
            said_ms=now_ms,
            lasts_ms=min(LASTS_MS_MAX, max(LASTS_MS_MIN, lasts_ms)),
            retry_after_ms=RETRY_AFTER_MS,
        )
        due = [name for name in backlogs if self._is_due(name, now_ms)]
        for name in due[:REPORTS_MAX]:
            input_ = self._inputs[name]
            self._reported.pop(name, None)  # The latest report is the last entry.
            self._reported[name] = now_ms, input_
            input_.report_pressure(pressure)
        for name in list(self._reported)[:-REPORTS_MAX]:
            del self._reported[name]  # It expires by itself.

    def _is_due(self, name: str, now_ms: int) -> bool:
        if name not in self._reported:
            return True
        reported_ms, _ = self._reported[name]
        return not 0 <= now_ms - reported_ms < REPORT_INTERVAL_MS

    def _withdraw_all(self) -> None:
        """Withdraw all reports; a removed input is not recreated."""
        for _, input_ in self._reported.values():
            input_.report_pressure(None)
        self._reported.clear()

    def _log_pressure(self, governor: Governor, *, waiting: int) -> None:
        latency_ms = governor.latency_ms
        _LOGGER.info(
            "pressure of the stream: %s",
            Fields(
                rung=governor.rung,
                pressure=round(governor.pressure, 3),
                waiting=waiting,
                slots=self._slots,
                latency_ms=None if latency_ms is None else round(latency_ms),
                busy=round(self._busy, 3),
            ),
        )


def _count_waiting(backlogs: Mapping[str, Backlog], reached: Offset) -> int:
    """Return how many inputs have data left after the batch."""
    if UNNAMED in backlogs:
        # A single unnamed input is never in the state: its position shows whether it waits.
        return int(reached.positions[UNNAMED] != backlogs[UNNAMED].reach())
    return waiting_count(reached.state)


_LATENCIES_MAX = 64
"""Maximum inputs whose ages are read: old changes are old in many inputs."""


def _latency_ms(backlogs: Mapping[str, Backlog], reached: Offset, now_ms: int) -> float | None:
    """Return the age of the batch's oldest change, None if unknown."""
    ages: list[int] = []
    for name, backlog in backlogs.items():
        if reached.positions[name] == backlog.start or backlog.committed_ms is None:
            continue
        committed_ms = backlog.committed_ms()
        if committed_ms is not None:
            ages.append(now_ms - committed_ms)
        if len(ages) == _LATENCIES_MAX:
            break
    return max(ages, default=None)
