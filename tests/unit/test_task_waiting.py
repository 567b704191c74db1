"""Who waits for what came a moment ago is not left waiting."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from spark_upsert.task import Filter, Task, pipelines
from spark_upsert.task.operator import Streaming
from tests.support.tasks import NUMBERS, numbers, run, scan

WAIT_SECONDS = 120
"""Only a test that hangs comes to it."""


class Late(Streaming):
    """Gives a batch when what it waits for is there, which comes right behind the look at it."""

    def __init__(self) -> None:
        super().__init__(NUMBERS, lambda batch: batch)
        self._found: Future[None] = Future()

    def output(self) -> Any:
        if self._found.done():
            return super().output()
        self._found.set_result(None)
        return None

    def waiting_on(self) -> Future[Any] | None:
        return self._found


@pytest.mark.parametrize("drivers", [1, 2], ids=["one driver", "two drivers"])
def test_what_came_between_two_looks_is_not_waited_for(
    drivers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Late] = []

    def late(*_: object) -> Late:
        made.append(Late())
        return made[-1]

    monkeypatch.setattr(pipelines._Builder, "_operator", late)
    plan = Filter(id="late", input=scan(), where="TRUE")
    with Task(plan, drivers=drivers) as task:
        assert run(task, [{"rows": [numbers(1), numbers(2)]}]) in ([[(1,), (2,)]], [[(2,), (1,)]])
    assert len(made) == drivers
