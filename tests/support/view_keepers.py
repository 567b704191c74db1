"""Queries that keep views in tables, driven as Spark drives them, and streams over such tables."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.sql.datasource import InputPartition

from pyspark_upsertflow.limited_stream_reader import LimitedStreamReader
from pyspark_upsertflow.readers import read_schema
from pyspark_upsertflow.views import planned
from spark_upsert.options.inputs import UNNAMED
from spark_upsert.plan.nodes import Node
from spark_upsert.streams.inputs.table import TablePosition
from spark_upsert.streams.offsets.offset import Position
from spark_upsert_sink import UpsertStreamWriter, writers
from tests.support.view_cases import Row
from tests.support.view_plays import canonical
from tests.support.view_queries import Query

Meanwhile = Callable[[], object] | None


class Keeper:
    """The query that `keep` starts, with a checkpoint of its own.

    Parameters
    ----------
    plan : Node
    path : pathlib.Path
        Of the table that keeps.
    checkpoint : pathlib.Path
        Its name is the id of the query. If it is there, the table has batches of the query.
    options : mapping of str to str
        Of the read.
    """

    def __init__(
        self, plan: Node, path: Path, checkpoint: Path, options: Mapping[str, str]
    ) -> None:
        self._plan, self._path, self.checkpoint = plan, path, checkpoint
        self.offset: dict[str, Any] = {}
        self.done = 0
        """Batches that the checkpoint has as done."""
        self._end: dict[str, Any] | None = None
        """Of the batch that it has as begun."""
        self.start(options)
        checkpoint.mkdir(parents=True, exist_ok=True)
        (checkpoint / "metadata").write_text(json.dumps({"id": checkpoint.name}))

    def start(self, options: Mapping[str, str]) -> None:
        """Begin as a new process does."""
        paths = str(self._path), str(self.checkpoint)
        reads, self._writes = planned(self._plan, *paths, storage={}, options=options)
        self._schema = read_schema(reads)
        self._reader = LimitedStreamReader(reads, self._schema)
        self.offset = self.offset or self._reader.initialOffset()
        self._options = options

    def run(self, *, before_commit: Meanwhile = None, behind_commit: Meanwhile = None) -> bool:
        """Run the next batch, or the one that was begun; False if there is none.

        Parameters
        ----------
        before_commit, behind_commit : callable, optional
            The process dies there, this happens, and the next process runs the batch again.
        """
        if self._end is None:
            limit = self._reader.getDefaultReadLimit()
            self._end = self._reader.latestOffset(self.offset, limit)
            if self._end == self.offset:
                self._end = None
                return False
        self._commit_to(before_commit, self._staged(self._end))
        if behind_commit is not None:
            self._commit_to(behind_commit, None)
        self._reader.commit(self._end)
        self.offset, self._end = json.loads(json.dumps(self._end)), None
        self.done += 1
        return True

    def _commit_to(self, meanwhile: Meanwhile, messages: list[Any] | None) -> None:
        assert self._end is not None
        if meanwhile is not None:
            meanwhile()
            self.start(self._options)
            messages = self._staged(self._end)
        UpsertStreamWriter(self._writes, self._schema, False).commit(messages or [], self.done)

    def _staged(self, end: dict[str, Any]) -> list[Any]:
        """Return what the tasks of a batch say, each in a process of its own."""
        partitions = self._reader.partitions(self.offset, end) or [InputPartition(None)]
        sent = pickle.dumps((self._reader, UpsertStreamWriter(self._writes, self._schema, False)))
        found = []
        with patch.object(writers, "query_of_task", lambda: self.checkpoint.name):
            for partition in partitions:
                reader, writer = pickle.loads(sent)
                rows = reader.read(pickle.loads(pickle.dumps(partition)))
                found.append(pickle.loads(pickle.dumps(writer.write(rows))))
        return found

    def position(self) -> dict[str, int] | None:
        """Return where its tables stand; None as long as the first rows are not all there."""
        found = self.offset["positions"].get(UNNAMED, {"snapshot": ""})
        if found["snapshot"] is not None:
            return None
        return {path: version for path, (_, version, _) in found["at"].items()}


Contents = Counter[Row]
"""Rows, as the engine compares them."""


Promised = Mapping[int, Contents | None]
"""What a table must hold from a version on, up to the next; None: nothing is promised."""


def contents_of(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> Contents:
    """Return some columns of rows as they are compared."""
    return Counter(canonical(tuple(row[name] for name in names)) for row in rows)


class Follower:
    """A stream over a table, folded: at each version it must be what the table was promised to be.

    Parameters
    ----------
    path : pathlib.Path
    names : sequence of str
        The columns that are compared.
    options : mapping of str to str
    """

    def __init__(self, path: Path, names: Sequence[str], options: Mapping[str, str]) -> None:
        self._names = names
        self.is_leased = "consumerId" in options
        self._is_net = "deduplicationMode" in options
        self._query = Query({"path": str(path)}, **options)
        self._state: Contents = Counter()

    @property
    def place(self) -> TablePosition | None:
        """Where it stands; None before its first batch."""
        found = self._query.offset["positions"].get(UNNAMED)
        return None if found is None else TablePosition.from_position(Position.of(found))

    def step(self, promised: Promised, meanwhile: Meanwhile) -> bool:
        """Run a batch, and compare what it amounts to at each version that it shows."""
        before = self.place
        batch = self._query.batch(meanwhile=meanwhile)
        place = self.place
        if batch is None or place is None:
            return False
        behind: dict[int, Contents] = {}
        for row in batch:
            shown = canonical(tuple(row[name] for name in self._names))
            behind.setdefault(row["_commit_version"], Counter())[shown] += row["_diff"]
        if place.is_in_snapshot:  # Rows of one version, in some batches.
            reached = []
        else:
            first = before.upper if before and not before.is_in_snapshot else place.origin
            reached = [
                v for v in range(first, place.upper) if v in promised or v == place.upper - 1
            ]
        for version in reached[-1:] if self._is_net else reached:
            self._fold(behind, version)
            wanted = promised[max(v for v in promised if v <= version)]
            assert wanted is None or self.shown == wanted, f"at version {version}"
        self._fold(behind, place.upper - 1)
        assert not behind, "changes of versions that were not reached"
        return True

    def _fold(self, behind: dict[int, Contents], version: int) -> None:
        """Apply changes up to a version."""
        for epoch in [each for each in sorted(behind) if each <= version]:
            self._state.update(behind.pop(epoch))  # Which adds up.

    @property
    def shown(self) -> Contents:
        """What there is, by what came out."""
        return Counter({row: count for row, count in self._state.items() if count})
