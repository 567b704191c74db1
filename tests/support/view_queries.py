"""Streaming queries over views, driven as Spark drives them, and what their rows amount to."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from spark_upsert.options.inputs import UNNAMED, ReadPlan
from spark_upsert.plan.nodes import Node
from spark_upsert.streams.planner.formats import batch_inputs, plan_columns, stream_inputs
from spark_upsert.streams.planner.stream import Stream
from tests.support.view_cases import Row


class Query:
    """A streaming query over a plan, or what else options say, as Spark drives it."""

    def __init__(self, of: Node | Mapping[str, str], **options: str) -> None:
        own = {"plan": of.to_json()} if isinstance(of, Node) else of
        self._fixed = {**own, "readChangeFeed": "true"}
        self.given = {**self._fixed, **options}
        self.offset: dict[str, Any] = {}
        self.batches: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.start()

    def start(self, **options: str) -> None:
        """Begin anew, with the offsets that are there; perhaps with other options."""
        if options:
            self.given = {**self._fixed, **options}
        plan = ReadPlan.parse(self.given)
        columns = plan_columns(plan)
        self.stream = Stream(stream_inputs(plan, columns), plan.query)
        self.offset = self.offset or self.stream.initial()

    def batch(
        self, *, meanwhile: Callable[[], object] | None = None
    ) -> list[dict[str, Any]] | None:
        """Run a micro-batch; None if there is nothing to do.

        Parameters
        ----------
        meanwhile : callable, optional
            The process dies before it has noted the batch, this happens, and the next process runs
            the batch again.
        """
        end = dict(self.stream.latest(self.offset))
        if end == self.offset:
            return None
        rows = self.read(self.offset, end)
        if meanwhile is not None:
            meanwhile()
            self.start()
            again = self.read(self.offset, end)
            assert sorted(map(str, again)) == sorted(map(str, rows)), "a batch came otherwise"
        self.batches.append((self.offset, end))
        self.stream.commit(end)
        self.offset = json.loads(json.dumps(end))
        return rows

    def position(self) -> dict[str, int] | None:
        """Return where the tables stand; None as long as the first rows are not all there."""
        found = self.offset["positions"].get(UNNAMED, {"snapshot": ""})
        if found["snapshot"] is not None:
            return None
        return {path: version for path, (_, version, _) in found["at"].items()}

    def all(self) -> list[dict[str, Any]]:
        found = []
        while (rows := self.batch()) is not None:
            found += rows
        return found

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
        """Read a batch in tasks: pickled copies."""
        return [
            row
            for work in self.stream.splits(start, end)
            for batch in pickle.loads(pickle.dumps(self.stream)).read(
                pickle.loads(pickle.dumps(work))
            )
            for row in batch.to_pylist()
        ]


def folded(rows: list[dict[str, Any]]) -> set[Row]:
    """Apply changes in the order of their versions; a retraction must be of a row that is there."""
    state: dict[Row, int] = {}
    for row in sorted(rows, key=lambda row: row["_commit_version"]):
        key = tuple(value for name, value in row.items() if not name.startswith("_"))
        state[key] = state.get(key, 0) + row["_diff"]
    assert set(state.values()) <= {0, 1}, state
    return {key for key, count in state.items() if count}


def batch_rows(plan: Node, **options: str) -> set[Row]:
    read = ReadPlan.parse({"plan": plan.to_json(), **options})
    [(_, each)] = batch_inputs(read, plan_columns(read)).items()
    splits = each.splits()
    copy = pickle.loads(pickle.dumps(each))
    names = plan_columns(read).names
    return {
        tuple(row[name] for name in names)
        for split in splits
        for batch in copy.read(pickle.loads(pickle.dumps(split)))
        for row in batch.to_pylist()
    }
