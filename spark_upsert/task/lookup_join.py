"""Index lookup join (`LookupJoinRows`) and its look-ups, in a table version or in memory.

Several batches are looked up concurrently; output rows are in input order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from spark_upsert.core.keys import Positions
from spark_upsert.core.names import has_column, names_of
from spark_upsert.errors import PlanError, about
from spark_upsert.plan.join_keys import NOWHERE, KeyIndex
from spark_upsert.plan.nodes import IndexLookupJoin, JoinType
from spark_upsert.table.state.reduce import ABSENT
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.task.join_output import (
    JoinOutput,
    Matches,
    Side,
    require_names,
    require_types,
    schema_of,
)


class LookupResult(NamedTuple):
    """The rows by key: each key's first position and row count."""

    rows: pa.RecordBatch
    starts: Positions
    counts: Positions
    order: Positions | None = None
    """The row at each position; without an order, the position itself."""


class Lookup(Protocol):
    """Finds rows by key; thread-safe."""

    @property
    def keys(self) -> Sequence[pa.Field]:
        """The key fields."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """Return the rows' columns."""
        ...

    def look_up(self, keys: Sequence[pa.Array]) -> LookupResult:
        """Return the rows for keys, which contain no nulls; there is at least one."""
        ...


class TableLookup:
    """A table's rows at one version, by complete key.

    Parameters
    ----------
    snapshot : Snapshot
    columns : sequence of str, optional
        Output columns; by default all except the key columns.
    """

    def __init__(self, snapshot: Snapshot, columns: Sequence[str] | None = None) -> None:
        self._snapshot = snapshot
        table = snapshot.manifest.schema
        self.keys = [table.columns.field(name) for name in table.keys]
        self.schema = _chosen(table.columns, table.keys, columns)

    def look_up(self, keys: Sequence[pa.Array]) -> LookupResult:
        rows, at = self._snapshot.look_up(keys, self.schema.names)
        is_match = at != ABSENT
        return LookupResult(rows, np.where(is_match, at, 0), is_match.astype(np.int64))


class ArrowLookup:
    """Rows in memory, by columns with possibly repeated values.

    Parameters
    ----------
    rows : pyarrow.Table
    keys : sequence of str
        The look-up columns; a row with a null in one of them never matches.
    columns : sequence of str, optional
        Output columns; by default all except the key columns.
    """

    def __init__(
        self, rows: pa.Table, keys: Sequence[str], columns: Sequence[str] | None = None
    ) -> None:
        keys = names_of(keys, "keys")
        for name in keys:
            if not has_column(rows.schema, name):
                raise PlanError.missing_column(name, rows.schema.names)
        self.keys = [rows.schema.field(name) for name in keys]
        self.schema = _chosen(rows.schema, keys, columns)
        side = Side(rows.schema, tuple(keys))
        batches = rows.to_batches()
        keyed, _ = side.split(pa.concat_batches(batches) if batches else side.empty_rows)
        self._rows = keyed.select(self.schema.names)
        self._index = KeyIndex(side.keys_of(keyed))

    def look_up(self, keys: Sequence[pa.Array]) -> LookupResult:
        groups = self._index.find(keys)
        is_match = groups != NOWHERE
        starts, counts = np.zeros_like(groups), np.zeros_like(groups)
        starts[is_match] = self._index.starts[groups[is_match]]
        counts[is_match] = self._index.counts[groups[is_match]]
        return LookupResult(self._rows, starts, counts, self._index.order)


def _chosen(schema: pa.Schema, keys: Sequence[str], columns: Sequence[str] | None) -> pa.Schema:
    if columns is None:
        columns = [name for name in schema.names if name not in keys]
    columns = names_of(columns, "columns")
    for name in columns:
        if not has_column(schema, name):
            raise PlanError.missing_column(name, schema.names)
    return pa.schema([schema.field(name) for name in columns])


THREADS_MAX = 16
"""Threads per join, for any number of look-ups: storage serves no more concurrent requests."""


class _UnderWay(NamedTuple):
    """A batch with a look-up in progress."""

    batch: pa.RecordBatch
    found: Future[LookupResult | None]


class LookupJoinRows:
    """An index lookup join: inner, or left.

    Parameters
    ----------
    node : IndexLookupJoin
    left : pyarrow.Schema
        The input rows' schema.
    lookup : Lookup
        Its keys are the node's, in order.
    """

    def __init__(self, node: IndexLookupJoin, left: pa.Schema, lookup: Lookup) -> None:
        self._node = node
        self._lookup = lookup
        self._side = Side(left, node.keys)
        with about("node", node.id):
            self._check(left)
            self.schema = schema_of(node.how, left, lookup.schema)
            require_names(self.schema)
        self._nothing = Side(lookup.schema, ()).empty_rows
        self._threads: ThreadPoolExecutor | None = None
        self._under_way: deque[_UnderWay] = deque()
        self._joined: JoinOutput | None = None
        self._is_draining = False
        self._is_at_end = False

    def _check(self, left: pa.Schema) -> None:
        kinds = (JoinType.INNER, JoinType.LEFT)
        if self._node.how not in kinds:
            raise PlanError(
                f"an index lookup join is inner or left, found {self._node.how.value}: it sees "
                "only the rows that it is asked for.",
                hint="use a merge join or a hash join.",
            )
        if len(self._node.keys) != len(self._lookup.keys):
            names = ", ".join(field.name for field in self._lookup.keys)
            raise PlanError(
                f"rows are looked up by {names}, but there are {len(self._node.keys)} keys.",
                hint="give a key for each of them, in their order.",
            )
        for name in self._node.keys:
            if not has_column(left, name):
                raise PlanError.missing_column(name, left.names)
        require_types([left.field(name) for name in self._node.keys], self._lookup.keys)

    def needs_input(self) -> bool:
        return (
            len(self._under_way) < self._node.prefetch
            and not self._is_draining
            and not self._is_at_end
        )

    def add_input(self, batch: pa.RecordBatch) -> None:
        if self._threads is None:
            count = min(self._node.prefetch, THREADS_MAX)
            self._threads = ThreadPoolExecutor(count, f"lookup-{self._node.id}")
        future = self._threads.submit(copy_context().run, self._look_up, batch)
        self._under_way.append(_UnderWay(batch, future))

    def output(self) -> pa.RecordBatch | None:
        while True:
            if self._joined is not None:
                batch = self._joined.next(self._node.batch_rows)
                if batch is not None:
                    return batch
                self._joined = None
            if not self._under_way or not self._under_way[0].found.done():
                return None
            future = self._under_way.popleft()
            with about("node", self._node.id):
                self._joined = self._join(future.batch, future.found.result())

    def start_drain(self) -> bool:
        self._is_draining = not self._is_empty
        return self._is_draining

    def is_drained(self) -> bool:
        self._is_draining = not self._is_empty
        return not self._is_draining

    def no_more_input(self) -> None:
        self._is_at_end = True

    def is_finished(self) -> bool:
        return self._is_at_end and self._is_empty

    def waiting_on(self) -> Future[Any] | None:
        if self._joined is not None or not self._under_way:
            return None
        return self._under_way[0].found

    def close(self) -> None:
        self._under_way.clear()
        self._joined = None
        threads, self._threads = self._threads, None
        if threads is not None:
            # The table may be closed directly after this, but never during a look-up.
            threads.shutdown(wait=True, cancel_futures=True)

    @property
    def _is_empty(self) -> bool:
        return not self._under_way and self._joined is None

    def _look_up(self, batch: pa.RecordBatch) -> LookupResult | None:
        """Return the matches for the rows with a key; runs in a thread."""
        keyed, _ = self._side.split(batch)
        return self._lookup.look_up(self._side.keys_of(keyed)) if keyed.num_rows else None

    def _join(self, batch: pa.RecordBatch, looked: LookupResult | None) -> JoinOutput:
        starts, counts = (np.zeros(batch.num_rows, dtype=np.int64) for _ in range(2))
        rows, order = self._nothing, None
        if looked is not None:
            has_key = self._side.has_key(batch)
            chosen = slice(None) if has_key is None else has_key
            starts[chosen], counts[chosen] = looked.starts, looked.counts
            rows, order = looked.rows, looked.order
        matches = Matches.of(self._node.how, starts, counts)
        return JoinOutput(self.schema, matches, batch, rows, order)
