"""Bugs in how a flow runs: rows that get lost, come to the wrong one, or twice."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np

from spark_upsert.flow import fusion, local, partitioner, passes, wire_format
from spark_upsert.flow import operators as element
from spark_upsert.flow.fusion import PassPlan
from spark_upsert.flow.graph import OperatorKind
from tests.planted.bug import Patch, bug, wrapped
from tests.promises import test_flow_promises as promises

SAME_ROWS = promises.test_p6_every_fusion_gives_the_rows_of_width_one
OF_NOTHING = promises.test_p6_a_sum_over_nothing_is_a_row


@bug("an element ends without draining", SAME_ROWS)
def _() -> Patch:
    return patch.object(element.Element, "drain", lambda _: iter(()))


@bug("replicas drain before those that feed them", SAME_ROWS)
def _() -> Patch:
    def backwards(original: Any, *given: Any) -> Any:
        return reversed(list(original(*given)))

    return wrapped(element, "_sort_replicas", backwards)


@bug("rows for a later stage are lost", SAME_ROWS)
def _() -> Patch:
    def feed(original: Any, self: Any, address: int, rows: Any) -> Any:
        return original(self, address, rows) if address in self._element_of else iter(())

    return wrapped(passes._Elements, "feed", feed)


@bug("a task that got no rows runs nothing", OF_NOTHING)
def _() -> Patch:
    def drain(_: Any, self: Any, task: int) -> Any:
        del task
        for running in self._running.values():
            yield from running.drain()

    return wrapped(passes._Elements, "drain", drain)


@bug("who is woken wakes nobody", OF_NOTHING)
def _() -> Patch:
    return patch.object(passes.Pass, "_wakes", lambda *_: iter(()))


@bug("each task wakes the first", OF_NOTHING)
def _() -> Patch:
    def wakes(original: Any, self: Any, tasks: Any) -> Any:
        return original(self, [0 for _ in tasks])

    return wrapped(wire_format.Border, "wakes", wakes)


@bug("nobody notices a wake", OF_NOTHING)
def _() -> Patch:
    return patch.object(passes, "is_woken", lambda _: False)


@bug("the rows of a source enter behind it, whatever it feeds", SAME_ROWS)
def _() -> Patch:
    def is_direct(_: Any, replica: Any, physical: Any) -> bool:
        del physical
        return replica.operator.kind is OperatorKind.SOURCE

    return wrapped(fusion, "_is_direct", is_direct)


@bug("an element is aligned with one of several that feed it", SAME_ROWS)
def _() -> Patch:
    def aligned(_: Any, self: Any, here: list[int], tasks: Any) -> Any:
        known = {each: self._before[each] & set(tasks) for each in here}
        if not all(known.values()):
            return None
        found = {element: tasks[min(producers)] for element, producers in known.items()}
        return found if len(set(found.values())) == len(found) else None

    return wrapped(PassPlan, "_aligned", aligned)


@bug("a splitter by keys takes turns", SAME_ROWS)
def _() -> Patch:
    def send(_: Any, self: Any, batch: Any) -> Any:
        yield partitioner.Parcel(batch, np.resize(self._of_target, batch.num_rows))

    return wrapped(partitioner.Outlet, "send", send)


@bug("the end counts when it has come from one", SAME_ROWS)
def _() -> Patch:
    def leave(_: Any, self: Any, index: int) -> None:
        with self._changed:
            if not self._channels[index].is_closed:
                self._channels[index].close()
            self._changed.notify_all()

    return wrapped(local._Channels, "leave", leave)
