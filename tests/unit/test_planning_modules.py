"""To plan a batch of one table few modules take part: what very many inputs need stays outside.

A module takes part if a function that stands in its file is called. A constructor that a dataclass
makes stands in none. Only the wing of streams is counted: the kernel reads a log and cuts files in
whatever modules it likes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any

import pytest

import spark_upsert.streams
from spark_upsert.core.schema import Scope
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.store import LocalStore
from spark_upsert.streams.planner.formats import (
    plan_columns,
    shared_columns,
    stream_heads,
    stream_inputs,
    stream_offsets,
)
from spark_upsert.streams.planner.stream import Stream
from tests.support.model import Command
from tests.support.tables import append, make_table, schema_of

MODULES_MAX = 12
"""The most that take part in a batch; it was 24."""

WING = Path(spark_upsert.streams.__path__[0])

BEGINNING = frozenset({"inputs/rest.py", "planner/lives.py"})
"""The first batch also notes how the stream began, and takes a piece of a snapshot."""


def entered(work: Callable[[], Any]) -> set[str]:
    """Return the modules of the wing in which functions are called, by some work in a new thread.

    Raises what the work raises.
    """
    files: set[str] = set()
    failed: list[Exception] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    def run() -> None:
        sys.setprofile(note)
        try:
            work()
        except Exception as error:  # noqa: BLE001  raised where it is waited for
            failed.append(error)
        finally:
            sys.setprofile(None)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    found = (Path(file) for file in files)
    return {str(file.relative_to(WING)) for file in found if file.is_relative_to(WING)}


class Planned:
    """A stream over one table, as Spark's reader makes it, and the batches that it plans."""

    def __init__(self, path: Path, given: Mapping[str, str]) -> None:
        self.table = make_table(LocalStore(path), schema_of(Scope.ARRIVAL))
        self.append()
        self.append()
        plan = ReadPlan.parse({"path": str(path), **given})
        columns = plan_columns(plan)
        inputs = stream_inputs(plan, columns)
        self.stream = Stream(
            inputs,
            plan.query,
            heads=stream_heads(plan, inputs),
            offsets=stream_offsets(plan),
            columns=shared_columns(plan, columns),
        )
        self.offset: dict[str, Any] = self.stream.initial()

    def append(self) -> None:
        append(self.table, [Command(key, 1) for key in range(10)])

    def batch(self) -> None:
        """Plan a batch that is not empty, and say that it is done."""
        start = self.offset
        self.offset = json.loads(json.dumps(self.stream.latest(start)))
        assert self.stream.splits(start, self.offset)
        self.stream.commit(self.offset)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({}, id="new values"),
        pytest.param({"readChangeFeed": "true"}, id="changes"),
        pytest.param({"maxRowsPerTrigger": "1000"}, id="a limit"),
        pytest.param({"consumerId": "one", "maxEpochsPerTrigger": "5"}, id="a lease and a limit"),
    ],
)
def test_few_modules_take_part_in_planning_a_batch_of_one_table(
    tmp_path: Path, given: dict[str, str]
) -> None:
    planned = Planned(tmp_path / "t", given)
    first = entered(planned.batch)
    for modules in (first - BEGINNING, *(_next(planned) for _ in range(2))):
        assert "planner/stream.py" in modules
        assert "inputs/table.py" in modules
        assert len(modules) <= MODULES_MAX, "\n".join(
            [f"{len(modules)} modules take part, {MODULES_MAX} may:", *sorted(modules)]
        )
    assert len(first) <= MODULES_MAX + len(BEGINNING), sorted(first)


def _next(planned: Planned) -> set[str]:
    planned.append()
    return entered(planned.batch)
