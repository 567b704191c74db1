"""Flows in one process (`run_local`, `collect`): a thread per processing element, bounded channels.

Rows between two replicas keep their order. An error is raised at the reader with the operator's
name, after all threads have ended (except a blocked source).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from spark_upsert.core.key_hash import ALL_HASHES
from spark_upsert.core.names import find_columns
from spark_upsert.envelopes.write_plan import plan_table_write
from spark_upsert.errors import BatchTooLargeError, GraphError, TableFullError, about
from spark_upsert.flow.expand import Replica, expanded
from spark_upsert.flow.fusion import FusedGraph, Legacy, fused
from spark_upsert.flow.graph import (
    ArrowSource,
    Graph,
    InputRows,
    OperatorKind,
    TableSink,
    TableSource,
)
from spark_upsert.flow.operators import Element, require_declared_columns
from spark_upsert.flow.partitioner import READ, AddressBook, Marker, Parcel, Port, by_address
from spark_upsert.flow.validate import require_sources, schemas_of
from spark_upsert.merge.readers import CHANNEL_EVENTS, Channel, Gauge
from spark_upsert.options.declare import STORAGE_PREFIX, fold
from spark_upsert.options.read import ReadOptions
from spark_upsert.options.write import WriteOptions
from spark_upsert.store.open import open_store
from spark_upsert.table.log.manifest import Commit, Transaction
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from spark_upsert.views.group_rows import ShownGroups, grouping_of
from spark_upsert.views.grouping import Grouping

_ROW_OPTIONS = tuple(map(fold, ("path", "columns", "versionAsOf", "raw")))
"""Read options supported in a single process, next to storage options."""


@dataclass(frozen=True, slots=True)
class VersionRows:
    """Rows at a table version: its own, or the groups that the table materializes."""

    schema: pa.Schema
    snapshot: Snapshot
    grouping: Grouping | None

    def items(self, replica: Replica) -> Iterator[pa.RecordBatch]:
        """Yield a replica's rows; several replicas split the key hash range."""
        ranges = ALL_HASHES.cut(max(1, replica.channel.count))
        range_ = ranges[max(0, replica.channel.index)]
        if self.grouping is None:
            yield from self.snapshot.read(self.schema.names, hash_range=range_)
            return
        shown = ShownGroups(self.grouping, self.snapshot.store)
        for rows in shown.rows(self.snapshot.manifest, range_):
            yield rows.select(self.schema.names)


def rows_of(name: str, source: TableSource) -> VersionRows:
    """Return a source's rows at the newest version, or at option ``versionAsOf``.

    Raises GraphError for read options that need Spark.
    """
    reader_options = {**_stringify_options(source.options), "path": source.path}
    options = ReadOptions.parse(reader_options)
    plain = {
        option_name: text
        for option_name, text in reader_options.items()
        if _is_row_option(option_name)
    }
    if options != ReadOptions.parse(plain):
        others = ", ".join(sorted(reader_options.keys() - plain.keys()))
        raise GraphError(
            f"source '{name}' reads its table with {others}, which in one process nothing does.",
            hint="run the flow on Spark, or give the rows: make it InputRows(schema).",
            operators=(name,),
        )
    with about("operator", name):
        table = Table.open(options.path, storage_options=options.storage)
        snapshot = table.at(options.version_as_of)
        grouping = None if options.raw else grouping_of(snapshot.manifest.properties)
        columns = snapshot.manifest.schema.columns if grouping is None else grouping.result_schema
        names = list(find_columns(options.columns, columns.names, role="column"))
    fields = pa.schema([columns.field(column_name) for column_name in names]) if names else columns
    return VersionRows(fields, snapshot, grouping)


def _is_row_option(option: str) -> bool:
    return fold(option) in _ROW_OPTIONS or option.lower().startswith(STORAGE_PREFIX)


def targets_of(graph: Graph) -> dict[str, TableSink]:
    """Return the table sinks by full name; GraphError if a sink is no table sink."""
    sinks: dict[str, TableSink] = {}
    for name, placed in graph.places.items():
        work = placed.operator.work
        if placed.operator.kind is not OperatorKind.SINK:
            continue
        if not isinstance(work, TableSink):
            raise GraphError(
                f"sink '{name}' is {type(work).__name__}, which nothing writes.",
                hint="make it a TableSink, or take its rows instead of writing them.",
                operators=(name,),
            )
        sinks[name] = work
    return sinks


def write(sink: TableSink, rows: pa.Table, **more: str) -> Commit | None:
    """Commit rows as one version; None if the table already has the transaction."""
    options = WriteOptions.parse({**_stringify_options(sink.options), **more, "path": sink.path})
    table = Table(open_store(options.path, options.storage))
    plan = plan_table_write(table, options, rows.schema)
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
        table.discard(staged)  # No commit was attempted.
        raise


def _transactions(options: WriteOptions) -> tuple[Transaction, ...]:
    if options.app_id is None or options.app_version is None:
        return ()
    writer = Transaction.writer_of_app(options.app_id)
    return (Transaction(writer=writer, number=options.app_version),)


def _stringify_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Return option values as text, like Spark passes them."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }


JOIN_SECONDS = 60.0
"""Seconds to wait for a thread at the end; a blocked source's daemon thread keeps running."""

Item: TypeAlias = pa.RecordBatch | Marker
"""Batch or marker, from a source or at an address."""

ReadSource: TypeAlias = Callable[[], Iterable[Item]]


def collect(
    plan: Graph | FusedGraph, sources: Mapping[str, ReadSource] | None = None
) -> dict[str, pa.Table]:
    """Run a graph and return each sink's rows by full sink name; see `run_local`.

    >>> import pyarrow as pa
    >>> from spark_upsert.flow import ArrowSource, CollectSink, Flow
    >>> flow = Flow()
    >>> flow.sink("all", CollectSink(), flow.source("rows", ArrowSource(pa.table({"n": [1, 2]}))))
    >>> collect(flow.graph())["all"]["n"].to_pylist()
    [1, 2]
    """
    run = _Run(plan, sources or {}, CHANNEL_EVENTS)
    batches: dict[str, list[pa.RecordBatch]] = {name: [] for name in run.sinks}
    for sink, item in run.items():
        if isinstance(item, pa.RecordBatch):
            batches[sink].append(item)
    return {name: pa.Table.from_batches(batches[name], run.sinks[name]) for name in batches}


def run(
    plan: Graph | FusedGraph,
    sources: Mapping[str, ReadSource] | None = None,
    *,
    transaction: tuple[str, int] | None = None,
) -> dict[str, Commit | None]:
    """Run a graph, then write each sink's rows to its table.

    Returns the commit by full sink name; None for a table that already has ``transaction``.
    """
    targets = targets_of(plan if isinstance(plan, Graph) else plan.physical.graph)
    named: dict[str, str] = {}
    if transaction is not None:
        named = {"txnAppId": transaction[0], "txnVersion": str(transaction[1])}
    rows = collect(plan, sources)
    return {name: write(sink, rows[name], **named) for name, sink in targets.items()}


def run_local(
    plan: Graph | FusedGraph,
    sources: Mapping[str, ReadSource] | None = None,
    *,
    capacity: int = CHANNEL_EVENTS,
) -> Iterator[tuple[str, Item]]:
    """Run a graph and yield full sink names with items.

    No thread runs before the first ``next``. Closing the iterator ends all threads.
    """
    return _Run(plan, sources or {}, capacity).items()


class _RunEnd(BaseException):
    """Stops a thread after the run has ended."""


class _Channels:
    """All channels in a run, with one lock."""

    def __init__(self, producers: Sequence[int], capacity: int) -> None:
        self._changed = Condition()
        self._channels = [Channel(capacity, Gauge()) for _ in producers]
        self._producers = list(producers)
        """Number of open producers per channel."""
        self._failure: BaseException | None = None
        self._is_ended = False
        for index, count in enumerate(producers):
            if not count:
                self._channels[index].close()

    def put(self, index: int, address: int, item: Item) -> None:
        """Put an item into a channel; blocks until there is room."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_ended or self._channels[index].has_room(item))
            if self._is_ended:
                raise _RunEnd
            self._channels[index].put(_AddressedItem(address, item))
            self._changed.notify_all()

    def take(self, index: int, *, is_waiting: bool = True) -> tuple[int, Item] | None:
        """Return a channel's next item; None at its end or, without waiting, if it is empty."""
        channel = self._channels[index]
        with self._changed:
            if is_waiting:
                self._changed.wait_for(
                    lambda: self._is_ended or not channel.is_empty or channel.is_drained
                )
            if self._failure is not None:
                raise self._failure
            if self._is_ended:
                raise _RunEnd
            if channel.is_empty:
                return None
            taken: _AddressedItem = channel.take()
            self._changed.notify_all()
            return taken.address, taken.item

    def leave(self, index: int) -> None:
        """Remove a producer from a channel; the last one closes the channel."""
        with self._changed:
            self._producers[index] -= 1
            if not self._producers[index]:
                self._channels[index].close()
                self._changed.notify_all()

    def end(self, failure: BaseException | None = None) -> None:
        """Wake all waiting threads; the reader raises the first failure."""
        with self._changed:
            self._failure = self._failure or failure
            self._is_ended = True
            self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class _AddressedItem:
    """Queued item with its address."""

    address: int
    item: Item

    @property
    def num_rows(self) -> int:
        """Event count: rows in a batch, or 1 for a marker."""
        return self.item.num_rows if isinstance(self.item, pa.RecordBatch) else 1

    @property
    def nbytes(self) -> int:
        """Bytes in a batch; 0 for a marker."""
        return self.item.nbytes if isinstance(self.item, pa.RecordBatch) else 0


class _Run:
    """Run with a thread and an input channel per processing element.

    An *element* executes one or more operator replicas in one thread (a fused PE). An *address* is
    the number of a replica's input port; every item in a channel has its target address. All sinks
    share a further channel, which the caller reads.
    """

    def __init__(
        self, plan: Graph | FusedGraph, sources: Mapping[str, ReadSource], capacity: int
    ) -> None:
        if isinstance(plan, Graph):
            plan = fused(expanded(plan), Legacy())
        graph = plan.physical.graph
        self._build_readers = _build_readers(graph, sources)
        schemas = schemas_of(
            graph, {name: read.schema for name, read in self._build_readers.items()}
        )
        self.sinks = {
            stream.consumer: schemas[stream.producer]
            for stream in graph.streams
            if graph.places[stream.consumer].operator.kind is OperatorKind.SINK
        }
        self._addresses = AddressBook(plan.physical)
        self._elements = [pe.names for pe in plan.pes]
        self._output = len(self._elements)
        self._channel_of = [self._channel(port.replica, plan) for port in self._addresses.ports]
        self._output_channels = [
            self._find_output_channels(index, names) for index, names in enumerate(self._elements)
        ]
        self._capacity = capacity

    def items(self) -> Iterator[tuple[str, Item]]:
        """Yield full sink names with items; starts the threads and ends them."""
        producers = [0] * (len(self._elements) + 1)
        for lead in itertools.chain.from_iterable(self._output_channels):
            producers[lead] += 1
        channels = _Channels(producers, self._capacity)
        threads = [
            Thread(target=self._work, args=(index, channels), name=f"element {index}", daemon=True)
            for index in range(len(self._elements))
        ]
        try:
            for thread in threads:
                thread.start()
            while (taken := channels.take(self._output)) is not None:
                address, item = taken
                replica = self._addresses.physical.replica[self._addresses.ports[address].replica]
                yield replica.logical, item
        finally:
            channels.end()
            for thread in threads:
                thread.join(JOIN_SECONDS)

    def _channel(self, replica: str, plan: FusedGraph) -> int:
        """Return the index of the channel that carries a replica's input."""
        kind = plan.physical.replica[replica].operator.kind
        return self._output if kind is OperatorKind.SINK else plan.pe_of[replica].index

    def _find_output_channels(self, index: int, names: tuple[str, ...]) -> set[int]:
        """Return the channels that an element writes to."""
        addresses = itertools.chain.from_iterable(self._addresses.leading[name] for name in names)
        return {self._channel_of[address] for address in addresses} - {index}

    # -- in an element's thread

    def _work(self, index: int, channels: _Channels) -> None:
        """Execute an element in this thread, until its input or the run ends."""
        try:
            with Element(self._addresses, self._elements[index]) as element:
                for address, item in self._iter_inputs(index, channels):
                    if isinstance(item, pa.RecordBatch):
                        self._put(element.feed(address, item), channels)
                    else:
                        self._put(element.pass_window(address), channels)
                self._put(element.drain(), channels)
            for lead in self._output_channels[index]:
                channels.leave(lead)
        except _RunEnd:
            pass
        except BaseException as error:  # noqa: BLE001  (raised where the sinks are read)
            channels.end(error)

    def _put(self, outputs: Iterator[Parcel | int], channels: _Channels) -> None:
        """Put an element's output into channels: rows, or a window marker for an address."""
        for output in outputs:
            if isinstance(output, int):
                channels.put(self._channel_of[output], output, Marker.WINDOW)
            else:
                for address, batch in by_address(output):
                    channels.put(self._channel_of[address], address, batch)

    def _iter_inputs(self, index: int, channels: _Channels) -> Iterator[tuple[int, Item]]:
        """Yield an element's input with addresses, alternating between its sources and its channel.

        An error from a source names the source's replica.
        """
        open_sources = deque(self._iter_source_items(self._elements[index]))
        while open_sources:
            address, items = open_sources.popleft()
            with about("operator", self._addresses.ports[address].replica):
                item = next(items, None)
            if item is not None:
                yield address, item
                open_sources.append((address, items))
            taken = channels.take(index, is_waiting=False)
            if taken is not None:
                yield taken
        while (taken := channels.take(index)) is not None:
            yield taken

    def _iter_source_items(self, names: tuple[str, ...]) -> Iterator[tuple[int, Iterator[Item]]]:
        """Yield the items of each source among an element's replicas, with the source's address."""
        for name in names:
            replica = self._addresses.physical.replica[name]
            if replica.operator.kind is OperatorKind.SOURCE:
                read = self._build_readers[replica.logical]
                yield self._addresses.address[Port(name, READ)], read.items(replica)


class _Reading(Protocol):
    """Source reader."""

    @property
    def schema(self) -> pa.Schema:
        """Output columns."""
        ...

    def items(self, replica: Replica) -> Iterator[Item]:
        """Yield a replica's items."""
        ...


@dataclass(frozen=True, slots=True)
class _SourceReader:
    """Source reader over Arrow rows or caller input."""

    schema: pa.Schema
    read: ReadSource

    def items(self, replica: Replica) -> Iterator[Item]:
        """Yield a replica's items; several replicas take items round robin."""
        width, channel = max(1, replica.channel.count), max(0, replica.channel.index)
        for item in itertools.islice(self.read(), channel, None, width):
            yield (
                item
                if isinstance(item, Marker)
                else require_declared_columns(item, self.schema, replica)
            )


def _build_readers(graph: Graph, sources: Mapping[str, ReadSource]) -> dict[str, _Reading]:
    reads: dict[str, _Reading] = {}
    for name, placed in graph.places.items():
        if placed.operator.kind is not OperatorKind.SOURCE:
            continue
        work = placed.operator.work
        if isinstance(work, ArrowSource):
            reads[name] = _SourceReader(work.schema, work.rows.to_batches)
        elif isinstance(work, TableSource):
            reads[name] = rows_of(name, work)
        elif isinstance(work, InputRows) and name in sources:
            reads[name] = _SourceReader(work.schema, sources[name])
        else:
            raise GraphError(
                f"nothing reads the source '{name}' here.",
                hint=f"make it InputRows(schema), and give what reads it: sources={{'{name}': ...}}.",
                operators=(name,),
            )
    require_sources(sources, reads)
    return reads
