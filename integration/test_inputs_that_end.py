"""The readers of a merge end when Spark has enough, stops or kills, and when an input fails.

Their source notes in files when a reading begins and when it ends. Spark kills the process of a
reader that it waits for in vain, so that a reading is over when it has ended or its process has.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration.queries import END_SECONDS, end, wait_until
from tests.support import python_sources

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SOURCE = f"python:{python_sources.__name__}:Watched"
FLOWS, WAITS, FAILS = "flows", "waits", "fails"


class Watched:
    """Inputs that note what becomes of them, all of which one task reads.

    Parameters
    ----------
    folder : Path
        Where they do.
    """

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        for conduct in (WAITS, FAILS):
            os.mkfifo(self._gate(conduct))

    def options(self, conducts: dict[str, str]) -> dict[str, str]:
        """Return the options of a read of inputs, each with its conduct (`python_sources`)."""
        given = {"inputs": ",".join(conducts), "parallelism": "1"}
        for name, conduct in conducts.items():
            own = {
                "format": SOURCE,
                "folder": self._folder,
                "conduct": conduct,
                "gate": self._gate(conduct),
                "label": name,  # Two inputs that are told the same would be one.
            }
            given |= {f"input.{name}.{key}": str(text) for key, text in own.items()}
        return given

    def read(self, **conducts: str) -> Any:
        return self._spark.read.format("upsertflow").options(**self.options(conducts)).load()

    def start(self, **conducts: str) -> StreamingQuery:
        """Start a query, and wait until all of its inputs are read."""
        rows = self._spark.readStream.format("upsertflow").options(**self.options(conducts)).load()
        writer = rows.writeStream.format("noop")
        query = writer.option("checkpointLocation", str(self._folder / "checkpoint")).start()
        wait_until(lambda: query.exception() or self.are_read(**conducts), "the inputs are read")
        return query

    def are_read(self, **conducts: str) -> bool:
        flowing = list(conducts.values()).count(FLOWS)
        return len(self.noted("begun")) == len(conducts) and len(self.noted("flowing")) == flowing

    def noted(self, what: str) -> list[int]:
        """Return the processes in which something was noted."""
        path = self._folder / what
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def are_over(self) -> bool:
        """Return whether each reading has ended, or its process has."""
        alive = Counter(pid for pid in self.noted("begun") if is_alive(pid))
        return not alive - Counter(self.noted("ended"))

    def open_gate(self, conduct: str) -> bool:
        """Let the readers go on that wait at a gate; return whether one did."""
        try:
            os.close(os.open(self._gate(conduct), os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # There is no reader.
            return False
        return True

    def _gate(self, conduct: str) -> Path:
        return self._folder / f"gate-{conduct}"


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def watched(spark: SparkSession, tmp_path: Path) -> Iterator[Watched]:
    made = Watched(spark, tmp_path)
    yield made
    for query in spark.streams.active:
        query.stop()
    for conduct in (WAITS, FAILS):
        made.open_gate(conduct)


def test_a_limit_ends_all_readers(watched: Watched) -> None:
    assert len(watched.read(a=FLOWS, b=FLOWS).limit(10).collect()) == 10
    assert watched.noted("begun")
    wait_until(watched.are_over, "all readers have ended")


def test_a_worker_that_is_used_again_has_no_thread_of_a_reader(watched: Watched) -> None:
    assert len(watched.read(a="ends", b="ends").collect()) == 2
    [reader] = {*watched.noted("begun")}
    seen: dict[int, str] = {}

    def is_used_again() -> bool:
        [row] = watched.read(only="tells").collect()
        seen[row.n] = row.text
        return reader in seen

    wait_until(is_used_again, "the worker is used again")
    assert "MainThread" in seen[reader]
    assert "merge-" not in seen[reader]


@pytest.mark.parametrize(
    "conducts",
    [(FLOWS, FLOWS), (WAITS, WAITS), (FLOWS, WAITS)],
    ids=["rows flow", "inputs are silent", "one of them is silent"],
)
def test_a_query_that_is_stopped_ends_its_readers(
    watched: Watched, conducts: tuple[str, str]
) -> None:
    query = watched.start(**dict(zip("ab", conducts, strict=True)))
    assert not watched.are_over()
    query.stop()
    assert query.exception() is None
    wait_until(watched.are_over, "all readers have ended")


def test_a_task_that_is_killed_ends_its_readers(spark: SparkSession, watched: Watched) -> None:
    def count() -> None:
        with suppress(Exception):  # It is cancelled.
            watched.read(a=WAITS, b=WAITS).count()

    job = threading.Thread(target=count, daemon=True)
    job.start()
    wait_until(lambda: watched.are_read(a=WAITS, b=WAITS), "the inputs are read")
    assert not watched.are_over()
    spark.sparkContext.cancelAllJobs()
    wait_until(watched.are_over, "all readers have ended")
    job.join(END_SECONDS)
    assert not job.is_alive()


def test_an_input_that_fails_is_named_and_the_others_are_released(watched: Watched) -> None:
    query = watched.start(flowing=FLOWS, broken=FAILS, silent=WAITS)
    assert not watched.are_over()
    wait_until(lambda: watched.open_gate(FAILS), "the gate is open")
    failure = r"input 'broken': the Python source .* failed in read\(\): OSError: the line is dead"
    with pytest.raises(StreamingQueryException, match=failure):
        end(query)
    wait_until(watched.are_over, "all readers have ended")
