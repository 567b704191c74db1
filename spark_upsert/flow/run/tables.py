"""Tables at the ends of a flow that runs in one process: read at one version, written as one epoch.

A replica of a source reads a range of hashes of its own. Options for change feeds, streams and a
chosen number of splits are refused here: those need Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_upsert.envelopes.write_plan import plan_upon
from spark_upsert.errors import BatchTooLargeError, GraphError, TableFullError, about
from spark_upsert.flow.expansion import Replica
from spark_upsert.flow.graph import Graph, OperatorKind
from spark_upsert.flow.work import TableSink, TableSource
from spark_upsert.model.hash_range import ALL_HASHES
from spark_upsert.model.names import find_columns
from spark_upsert.options.parse import STORAGE_PREFIX, fold
from spark_upsert.options.read import ReadOptions
from spark_upsert.options.write import WriteOptions
from spark_upsert.store.resolve import open_store
from spark_upsert.table.entries.snapshot import Snapshot
from spark_upsert.table.log.manifest import Commit, Transaction
from spark_upsert.table.log.tombstones import LateRows
from spark_upsert.table.table import Table
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from spark_upsert.views.groups.grouping import Grouping
from spark_upsert.views.groups.shown import ShownGroups, grouping_of

_OF_ROWS = tuple(map(fold, ("path", "columns", "versionAsOf", "raw")))
"""Options of which a read in one process knows."""


@dataclass(frozen=True, slots=True)
class VersionRows:
    """The rows that a table shows at one version: its own, or the groups that it keeps."""

    schema: pa.Schema
    snapshot: Snapshot
    grouping: Grouping | None

    def items(self, replica: Replica) -> Iterator[pa.RecordBatch]:
        """Yield what a replica of the source reads: of several each has a range of hashes."""
        ranges = ALL_HASHES.cut(max(1, replica.channel.count))
        own = ranges[max(0, replica.channel.index)]
        if self.grouping is None:
            yield from self.snapshot.read(self.schema.names, hash_range=own)
            return
        shown = ShownGroups(self.grouping, self.snapshot.store)
        for rows in shown.rows(self.snapshot.manifest, own):
            yield rows.select(self.schema.names)


def rows_of(name: str, source: TableSource) -> VersionRows:
    """Return the rows of a source, as the table is now or at the version that it asks for.

    Raises
    ------
    GraphError
        It asks for more than rows at a version.
    """
    given = {**_texts(source.options), "path": source.path}
    options = ReadOptions.parse(given)
    plain = {each: text for each, text in given.items() if _is_of_rows(each)}
    if options != ReadOptions.parse(plain):
        others = ", ".join(sorted(given.keys() - plain.keys()))
        raise GraphError(
            f"source '{name}' reads its table with {others}, which in one process nothing does.",
            hint="run the flow on Spark, or give the rows: make it Given(schema).",
            operators=(name,),
        )
    with about("operator", name):
        table = Table.open(options.path, storage=options.storage)
        snapshot = table.at(options.version_as_of)
        grouping = None if options.raw else grouping_of(snapshot.manifest.properties)
        columns = snapshot.manifest.schema.columns if grouping is None else grouping.result
        names = list(find_columns(options.columns, columns.names, role="column"))
    fields = pa.schema([columns.field(each) for each in names]) if names else columns
    return VersionRows(fields, snapshot, grouping)


def _is_of_rows(option: str) -> bool:
    return fold(option) in _OF_ROWS or option.lower().startswith(STORAGE_PREFIX)


def targets_of(graph: Graph) -> dict[str, TableSink]:
    """Return what each sink writes, by its full name.

    Raises
    ------
    GraphError
        A sink is no table.
    """
    found: dict[str, TableSink] = {}
    for name, place in graph.places.items():
        work = place.operator.work
        if place.operator.kind is not OperatorKind.SINK:
            continue
        if not isinstance(work, TableSink):
            raise GraphError(
                f"sink '{name}' is {type(work).__name__}, which nothing writes.",
                hint="make it a TableSink, or take its rows instead of writing them.",
                operators=(name,),
            )
        found[name] = work
    return found


def write(sink: TableSink, rows: pa.Table, **more: str) -> Commit | None:
    """Write rows as one epoch; None if its transaction is in the table already.

    Parameters
    ----------
    more : str
        Options beside those of the sink.
    """
    options = WriteOptions.parse({**_texts(sink.options), **more, "path": sink.path})
    table = Table(open_store(options.path, options.storage))
    plan = plan_upon(table, options, rows.schema)
    base = Snapshot(table.store, plan.base)
    commands = plan.commands(base, rows.to_batches())
    staged = (stage(base, commands, late_rows=LateRows.FAIL),)
    epoch = WriteSet(
        base=base,
        staged=staged,
        transactions=_transactions(options),
        allow_unordered=options.allow_unordered,
        late_rows=LateRows.FAIL,
    )
    try:
        return table.commit(epoch, admission=table.admission(options.full_wait_ms))
    except (TableFullError, BatchTooLargeError):
        table.discard(staged)  # It was not tried.
        raise


def _transactions(options: WriteOptions) -> tuple[Transaction, ...]:
    if options.app_id is None or options.app_version is None:
        return ()
    writer = Transaction.writer_of_app(options.app_id)
    return (Transaction(writer=writer, number=options.app_version),)


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options as Spark hands them on."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }
