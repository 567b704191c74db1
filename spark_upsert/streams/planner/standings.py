"""The urgency of the inputs of a stream: the priority that the read sets, else the input's own.

With ``autoPriority`` an input without a priority is the more urgent the later another query read
it. The planner asks for that only now and then, and few inputs at once: it costs requests, and only
the last half minute matters anyway. For the other inputs the last answer stands.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from spark_upsert.errors import about
from spark_upsert.model.log_fields import Fields
from spark_upsert.model.parallel import in_order
from spark_upsert.options.query import QueryOptions
from spark_upsert.schedule import Urgency
from spark_upsert.store.records import UNREADABLE
from spark_upsert.streams.inputs.input import Ranked
from spark_upsert.streams.inputs.inputs import Inputs

_LOGGER = logging.getLogger(__name__)

ASKED_MAX = 16
"""The most inputs that are asked for their last read, at once, whenever a batch is planned."""

REST_MS = 30_000
"""The least time between two questions to one input: in it the weight of a read halves."""

_KEPT_MIN = 1_000
"""The number of answers beyond which those of inputs that do not wait are forgotten."""


class Standings:
    """The urgency of a stream's inputs, as far as it is known.

    Parameters
    ----------
    inputs : Inputs
    query : QueryOptions
    """

    def __init__(self, inputs: Inputs, query: QueryOptions) -> None:
        self._inputs = inputs
        self._query = query
        self._read: dict[str, tuple[int, int | None]] = {}
        """Times by input: when it was asked, and when it was last read; the oldest answer first."""

    def of(self, names: Collection[str], now_ms: int) -> dict[str, Urgency]:
        """Return the urgency of inputs, as far as it is known; called right after `backlog`."""
        found: dict[str, Urgency] = {}
        without: list[str] = []
        for name in names:
            priority = self._priority(name)
            if priority is None:
                without.append(name)
            else:
                found[name] = Urgency(manual=priority)
        if self._query.auto_priority:
            self._ask(without, now_ms)
            for name in without:
                _, read_ms = self._read.get(name, (0, None))
                found[name] = Urgency(read_ms=read_ms)
        return found

    def _priority(self, name: str) -> int | None:
        told = self._query.priorities.get(name)
        if told is not None:
            return told
        each = self._inputs[name]
        if not isinstance(each, Ranked):
            return None
        with about("input", name):
            return each.priority()

    # -- when other queries read an input ---------------------------------------------

    def _ask(self, names: Collection[str], now_ms: int) -> None:
        """Ask the few that were not asked for longest."""
        due = [name for name in names if self._is_due(name, now_ms)]
        due.sort(key=lambda name: self._read.get(name, (-1, None))[0])
        due = due[:ASKED_MAX]
        for name, read_ms in zip(due, in_order(self._last_read_ms, due, len(due)), strict=True):
            self._read[name] = now_ms, read_ms
        if len(self._read) > len(names) + _KEPT_MIN:
            self._read = {name: self._read[name] for name in names if name in self._read}

    def _is_due(self, name: str, now_ms: int) -> bool:
        asked = self._read.get(name)
        return asked is None or not asked[0] <= now_ms < asked[0] + REST_MS

    def _last_read_ms(self, name: str) -> int | None:
        each = self._inputs[name]
        if not isinstance(each, Ranked):
            return None
        try:
            with about("input", name):
                return each.last_read_ms()
        except UNREADABLE as error:
            # Not knowing the other readers of an input is no reason to stop.
            _LOGGER.warning(
                "nobody can tell who read an input: %s", Fields(input=name, error=error.message)
            )
            return None
