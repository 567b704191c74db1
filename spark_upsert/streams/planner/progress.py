"""The progress report of a stream in ``query.lastProgress``: small JSON, whatever the inputs.

Spark asks for the report after each question for a batch (``reportLatestOffset``), and shows it as
the source's ``latestOffset``. It is no part of the offsets, so names may be added to it. Numbers
describe the state after the batch that was planned last: what that batch does not hold.

=============  ===================================================================
``inputs``     how many there are
``dirty``      how many hold something behind the batch; not in an exact order
``lag``        ``versions``: how many lie behind it in all tables; ``most``: the
               tables with the most, `NAMED_MAX` of them; ``since_ms``: when the first
               change behind the batch was committed in these, where it is known
``waiting``    how many inputs the batch left over in each band, by its name (``B4`` is
               served first); bands without any are left out; not in an exact order
``positions``  the ends of the inputs, if they are `POSITIONS_MAX` at most
``newest``     of tables that are `POSITIONS_MAX` at most: the ``version`` of the newest epoch,
               and what became of its rows (`Counters`, without zeros)
``complete``   with ``consistent``: the newest batch of the query that writes all tables, as
               far as the stream has the batch whole; null before the first
``discovery``  of more than 300 tables: ``looks`` and ``requests`` so far, and
               ``rest_ms``, how long a table at rest is left alone
``pressure``   from the governor: ``rung``, ``ratio`` (0 to 1), ``latency_ms``
=============  ===================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from heapq import nlargest
from typing import Any

from spark_upsert.schedule.governor import Governor
from spark_upsert.streams.inputs.group import GroupInputs
from spark_upsert.streams.inputs.input import Backlog
from spark_upsert.streams.inputs.inputs import Heads, Inputs
from spark_upsert.streams.offsets.position import Position
from spark_upsert.streams.planner.poll_schedule import PollSchedule

POSITIONS_MAX = 10
NAMED_MAX = 5

_NAME_LENGTH_MAX = 200


@dataclass(frozen=True, kw_only=True)
class PlannedLast:
    """The planner's note of the batch that it planned last, or of the question without one."""

    backlogs: Mapping[str, Backlog]
    """The backlog of each input; an input that is left out had none."""
    positions: Mapping[str, Position]
    """Where the stream stands then, or will stand."""
    waiting: Callable[[], Mapping[str, int]] = dict
    """Returns how many inputs wait behind the batch in each band."""

    @cached_property
    def told(self) -> dict[str, Any]:
        """Lag and waiting rows behind the batch; Spark asks often while nothing new is planned."""
        return _lag(self.backlogs, self.positions) | {"waiting": dict(self.waiting())}


def report(
    inputs: Inputs,
    heads: Heads,
    last: PlannedLast | None,
    *,
    schedule: PollSchedule | None,
    governor: Governor,
) -> dict[str, Any]:
    """Return what is told, the names of the table above.

    Parameters
    ----------
    inputs : Inputs
    heads : mapping of str to Position
        As they were seen last.
    last : PlannedLast or None
        None: no batch was planned yet, or batches have an exact order.
    schedule : PollSchedule or None
        What was looked at beside planning, where inputs are many.
    governor : Governor
    """
    found: dict[str, Any] = {"inputs": len(heads)}
    if len(heads) <= POSITIONS_MAX:
        found["positions"] = {name: each.record for name, each in sorted(heads.items())}
        found["newest"] = _newest(inputs, heads)
    if last is not None:
        found |= last.told
    if isinstance(inputs, GroupInputs):
        found["complete"] = inputs.complete({} if last is None else last.positions)
    if schedule is not None:
        found["discovery"] = {
            "looks": schedule.looks,
            "requests": schedule.requests,
            "rest_ms": round(schedule.most_s * 1000),
        }
    latency_ms = governor.latency_ms
    found["pressure"] = {
        "latency_ms": None if latency_ms is None else round(latency_ms),
        "ratio": round(governor.pressure, 3),
        "rung": governor.rung,
    }
    return found


def _newest(inputs: Inputs, heads: Heads) -> dict[str, Mapping[str, int]]:
    newest = ((name, inputs[name].newest()) for name in sorted(heads))
    return {name: counters for name, counters in newest if counters is not None}


def _lag(backlogs: Mapping[str, Backlog], positions: Mapping[str, Position]) -> dict[str, Any]:
    left = {
        name: backlog.behind(positions[name])
        for name, backlog in backlogs.items()
        if name in positions
    }
    dirty = {name: versions for name, versions in left.items() if versions}
    most = nlargest(NAMED_MAX, dirty, key=lambda name: dirty[name])
    asked = ((name, backlogs[name].left_since_ms) for name in most)
    since = {name: ask(positions[name]) for name, ask in asked if ask is not None}
    return {
        "dirty": len(dirty) + len(backlogs.keys() - positions.keys()),
        "lag": {
            "most": {name[:_NAME_LENGTH_MAX]: dirty[name] for name in most},
            "since_ms": {name[:_NAME_LENGTH_MAX]: ms for name, ms in since.items() if ms},
            "versions": sum(dirty.values()),
        },
    }
