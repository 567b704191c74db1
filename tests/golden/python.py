"""Reads of other Python sources, of each kind of reader: their offsets, and the next ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark_upsertflow.python_source import KINDS
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.streams.planner.formats import plan_columns, stream_inputs
from spark_upsert.streams.planner.stream import Stream
from tests.golden.case import Case, Seen, plain
from tests.support import python_sources
from tests.support.clocked import Now
from tests.support.streams import Query

MODULE = python_sources.__name__
READS = {
    "lines": {"one": "Lines"},
    "bounded": {"one": "BoundedLines"},
    "simple": {"one": "SimpleLines"},
    "two": {"one": "BoundedLines", "two": "SimpleLines"},
    "concat": {"one": "BoundedLines", "two": "Lines"},
}
"""Classes of sources by the names of inputs, by the names of reads."""
MORE = {"two": {"mergeColumns": "_input"}, "concat": {"merge": "concat"}}


def options(name: str) -> dict[str, str]:
    """Return the options of a read."""
    given = {"inputs": ",".join(READS[name]), **MORE.get(name, {})}
    for each, cls in READS[name].items():
        given |= {f"input.{each}.format": f"python:{MODULE}:{cls}", f"input.{each}.path": each}
    return given


def query(name: str, noted: list[str]) -> Query:
    """Return the query of a read, in a process that has seen nothing."""

    def start() -> Stream:
        plan = ReadPlan.parse(options(name))
        inputs = stream_inputs(plan, plan_columns(plan, KINDS), KINDS)
        return Stream(inputs, plan.query, clock=Now(), wall=Now())

    found = Query(start)
    found.noted = list(noted)
    return found


def write(count: int) -> None:
    """Write the lines of all sources, so many."""
    for each in ("one", "two"):
        text = "".join(f"{number},{each} {number}\n" for number in range(count))
        Path(each).write_text(text, encoding="utf-8")


def build() -> Seen:
    """Run each query over lines that become more."""
    offsets: dict[str, list[str]] = {}
    rows: dict[str, list[Any]] = {}
    for name in READS:
        write(0)
        run = query(name, [])
        for count in (0, 2, 3):
            write(count)
            run.restart()
            run.drain()
        offsets[name], rows[name] = run.noted, run.batches
    return {"offsets": offsets, "rows": rows}


def see(kept: Seen) -> Seen:
    """Return the rows of the batches between the offsets."""
    rows: dict[str, list[Any]] = {}
    for name, noted in kept["offsets"].items():
        run = query(name, noted)
        rows[name] = [run.replayed(number) for number in range(len(noted) - 1)]
    assert rows == kept["rows"]
    return {"rows": rows}


def go_on(kept: Seen) -> Seen:
    """Write more lines, and run on from the last offset of each read until nothing is left."""
    write(5)
    found: Seen = {}
    for name, noted in kept["offsets"].items():
        run = query(name, noted[-1:])
        run.drain()
        found[name] = {"rows": plain(run.batches), "offsets": run.noted}
    return found


CASE = Case("python", build, see, go_on)
