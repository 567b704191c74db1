"""Planted bugs of caps, of pressure and of batches that wait, for lakes to notice."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any
from unittest.mock import patch

from spark_upsert.errors import UpsertFlowError
from spark_upsert.streams.planner.pressure import StreamGauge
from spark_upsert.streams.planner.stream import BatchDelay, Debounce, Stream
from spark_upsert.table.log.properties import Caps, OnFull
from spark_upsert.table.retention import lag
from spark_upsert.table.retention.lag import BacklogCounter
from spark_upsert.table.retention.leases import Lease
from spark_upsert.table.table import Table
from tests.planted.bug import Patch, together, wrapped


def caps_forgotten() -> Patch:
    def count_what_comes(original: Any, self: BacklogCounter, lease: Lease, *how: Any) -> Any:
        _, head, _ = how
        first = self.__dict__.setdefault("_first", head.version)
        return original(self, replace(lease, version=max(lease.version, first)), *how)

    return wrapped(BacklogCounter, "count", count_what_comes)


def refused_behind_its_commit() -> Patch:
    def judge_late(original: Any, self: Table, epoch: Any, *, admission: Any = None) -> Any:
        with patch.object(Caps, "admits", lambda *_, **how: True):
            done = original(self, epoch, admission=admission)
        refusal = (admission or self.admission()).refusal(self.log.head())
        if refusal is not None:
            raise refusal
        return done

    return wrapped(Table, "commit", judge_late)


def reject_waits() -> Patch:
    return wrapped(Caps, "of", lambda original, *of: replace(original(*of), on_full=OnFull.WAIT))


def everybody_heeds() -> Patch:
    def heed(
        original: Any, self: Table, *wait: Any, heeds_pressure: bool = True, **how: Any
    ) -> Any:
        return original(self, *wait, **how)

    return wrapped(Table, "admission", heed)


def reports_hidden() -> Patch:
    """The first report that cannot be read ends the look."""

    def look(original: Any, *of: Any) -> Any:
        try:
            return original(*of)
        except UpsertFlowError:
            return []

    return together(wrapped(lag, "reports", look), patch.object(lag, "UNREADABLE", KeyError))


def never_taken_back() -> Patch:
    return patch.object(StreamGauge, "_withdraw_all", lambda self: None)


def room_with_the_next_batch() -> Patch:
    def plan(original: Any, self: Stream, *args: Any) -> Any:
        with patch.object(self, "_release", lambda positions: None):
            return original(self, *args)

    return wrapped(Stream, "_plan", plan)


def forgotten_at_a_restart() -> Patch:
    return patch.object(StreamGauge, "resume", lambda self, offset: None)


def rows_held_for_ever() -> Patch:
    def hold(original: Any, self: Debounce, backlogs: Any) -> Any:
        found = original(self, backlogs)
        is_few = self._count(backlogs)[0] < self._rows_min
        return BatchDelay(inf) if is_few else found

    return wrapped(Debounce, "hold", hold)


def no_debounce() -> Patch:
    return patch.object(Debounce, "hold", lambda *_: None)
