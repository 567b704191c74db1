"""The logical graph builder (`Flow`), operator by operator.

Invalid input raises in the call that passes it if possible, else in `Flow.graph`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pyarrow as pa

from spark_upsert.core.names import names_of
from spark_upsert.errors import GraphError
from spark_upsert.flow.graph import (
    INPUT,
    Composite,
    Edge,
    Graph,
    GraphMember,
    LogicalOperator,
    OperatorKind,
    Parallel,
    PartitionBy,
    Placement,
    Region,
    Work,
)
from spark_upsert.flow.validate import (
    check,
    check_kind,
    check_name,
    check_parallel,
    check_placement,
    check_siblings,
)
from spark_upsert.plan.nodes import AssignUniqueId, Limit, Node


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """Output stream of an operator, to be passed to its consumers."""

    name: str
    """Full operator name."""
    flow: Flow = field(repr=False)


InputStreams: TypeAlias = Output | Sequence[Output]
PartitionKeys: TypeAlias = Sequence[str] | Mapping[str, Sequence[str]]
"""Columns for every port through which a stream enters, or columns by port."""


@dataclass(slots=True)
class _OpenComposite:
    """Open composite that collects its members."""

    name: str
    """Full composite name, "" for the graph itself."""
    members: list[GraphMember] = field(default_factory=list)


class Flow:
    """Graph builder; `graph` returns the graph built so far.

    >>> import pyarrow as pa
    >>> from spark_upsert.flow import ArrowSource, CollectSink, Flow, PythonFunction
    >>> rows = pa.table({"customer": [1, 2], "amount": [10, 20]})
    >>> flow = Flow()
    >>> orders = flow.source("orders", ArrowSource(rows))
    >>> same = PythonFunction(iter, rows.schema)
    >>> with flow.parallel("clean", width=3, partition_by=["customer"]):
    ...     cleaned = flow.operator("drop_nulls", same, orders)
    >>> flow.sink("kept", CollectSink(), cleaned)
    >>> list(flow.graph().places)
    ['orders', 'clean.drop_nulls', 'kept']
    """

    def __init__(self) -> None:
        self._open = [_OpenComposite("")]
        self._streams: list[Edge] = []
        self._all_port_columns: dict[str, tuple[str, ...]] = {}
        """All-port partition columns by full region name."""

    def source(
        self,
        name: str,
        work: Work,
        *,
        schema: pa.Schema | None = None,
        parallel: Parallel | None = None,
        placement: Placement = Placement(),  # noqa: B008  (a frozen value)
    ) -> Output:
        """Add a source and return its output.

        Parameters
        ----------
        schema : pyarrow.Schema, optional
            Output columns; by default the schema from ``work``, if it has one.
        """
        return self._add(
            LogicalOperator(
                name=name,
                kind=OperatorKind.SOURCE,
                work=work,
                schema=_schema_of(work, schema),
                parallel=parallel,
                placement=placement,
            ),
            {},
        )

    def operator(
        self,
        name: str,
        work: Work,
        *inputs: Output,
        ports: Mapping[str, InputStreams] | None = None,
        schema: pa.Schema | None = None,
        parallel: Parallel | None = None,
        placement: Placement = Placement(),  # noqa: B008
        keeps_state: bool | None = None,
    ) -> Output:
        """Add an operator and return its output.

        Parameters
        ----------
        inputs : Output
            Streams into its single port, ``input``; several streams merge in any order.
        ports : mapping of str to Output, or a sequence of them, optional
            Streams by port name, instead of ``inputs``, for several ports.
        schema : pyarrow.Schema, optional
            Output columns; by default the schema from ``work``, if it has one.
        parallel : Parallel, optional
            Makes this operator a region.
        keeps_state : bool, optional
            Whether the operator keeps state across barriers. Default: True for plans with a limit
            or unique ids, else False.
        """
        fed = _streams_by_port(name, inputs, ports)
        return self._add(
            LogicalOperator(
                name=name,
                kind=OperatorKind.OPERATOR,
                work=work,
                inputs=tuple(fed),
                schema=_schema_of(work, schema),
                parallel=parallel,
                placement=placement,
                keeps_state=_keeps_state(work) if keeps_state is None else keeps_state,
            ),
            fed,
        )

    def sink(
        self,
        name: str,
        work: Work,
        *inputs: Output,
        ports: Mapping[str, InputStreams] | None = None,
        parallel: Parallel | None = None,
        placement: Placement = Placement(),  # noqa: B008
    ) -> None:
        """Add a sink; see `operator` for ``inputs`` and ``ports``."""
        fed = _streams_by_port(name, inputs, ports)
        self._add(
            LogicalOperator(
                name=name,
                kind=OperatorKind.SINK,
                work=work,
                inputs=tuple(fed),
                parallel=parallel,
                placement=placement,
            ),
            fed,
        )

    @contextmanager
    def composite(
        self,
        name: str,
        *,
        parallel: Parallel | None = None,
        placement: Placement = Placement(),  # noqa: B008
    ) -> Iterator[None]:
        """Add the operators from the ``with`` block to a composite.

        If the block fails, none of its operators is in the graph.
        """
        check_name(name, "composite")
        full = self._full_name(name)
        check_placement(full, placement)
        if parallel is not None:
            check_parallel(full, parallel)
        count = len(self._streams)
        opened = _OpenComposite(full)
        self._open.append(opened)
        try:
            yield
        except BaseException:
            del self._streams[count:]
            raise
        finally:
            self._open.remove(opened)
        members = tuple(opened.members)
        self._add_member(
            Composite(name=name, members=members, parallel=parallel, placement=placement)
        )

    @contextmanager
    def parallel(
        self,
        name: str,
        width: int,
        *,
        partition_by: PartitionKeys | None = None,
        broadcast: Iterable[str] = (),
        placement: Placement = Placement(),  # noqa: B008
    ) -> Iterator[None]:
        """Add the operators from the ``with`` block to a composite with ``width`` channels.

        Parameters
        ----------
        partition_by : sequence of str, or mapping of str to sequence of str, optional
            Columns: rows with equal values go to the same channel, from every port. Or columns by
            port, as ``{"sum.input": ["customer"]}``. Other ports distribute rows round robin.
        broadcast : iterable of str
            Ports that copy every row to each channel.
        """
        everywhere, by_port = _split_partition_keys(name, partition_by)
        parallel = Parallel(
            width=width,
            partition_by=by_port,
            broadcast=names_of(broadcast, "broadcast"),
        )
        full = self._full_name(name)
        with self.composite(name, parallel=parallel, placement=placement):
            yield
        if everywhere:
            self._all_port_columns[full] = everywhere

    def graph(self) -> Graph:
        """Validate and return the graph.

        Raises
        ------
        GraphError
            The graph cannot run or a composite is open; the error names the operators.
        """
        if len(self._open) > 1:
            raise GraphError(
                f"composite '{self._open[-1].name}' is still open.",
                hint="ask for the graph behind its 'with'.",
                operators=(self._open[-1].name,),
            )
        graph = Graph(tuple(self._open[0].members), tuple(self._streams))
        if self._all_port_columns:
            graph = Graph(tuple(self._resolve_members(graph, "", graph.members)), graph.streams)
        check(graph)
        return graph

    # -- adding

    def _add(self, operator: LogicalOperator, fed: Mapping[str, Sequence[Output]]) -> Output:
        check_name(operator.name)
        full = self._full_name(operator.name)
        check_kind(full, operator)
        check_placement(full, operator.placement)
        if operator.parallel is not None:
            check_parallel(full, operator.parallel)
        for port, outputs in fed.items():
            for output in outputs:
                self._require_same_flow(full, port, output)
        self._add_member(operator)
        self._streams.extend(
            Edge(output.name, full, port) for port, outputs in fed.items() for output in outputs
        )
        return Output(full, self)

    def _require_same_flow(self, full: str, port: str, output: object) -> None:
        if not isinstance(output, Output) or output.flow is not self:
            raise GraphError(
                f"the port '{port}' of '{full}' is fed by what operators of this flow give, found "
                f"{output!r}.",
                hint="give it what source() or operator() of the same flow returned.",
                operators=(full,),
            )

    def _add_member(self, member: GraphMember) -> None:
        around = self._open[-1]
        check_siblings(around.name, [*around.members, member])
        around.members.append(member)

    def _full_name(self, name: str) -> str:
        around = self._open[-1].name
        return f"{around}.{name}" if around else name

    # -- partition_by without ports

    def _resolve_members(
        self, graph: Graph, around: str, members: Iterable[GraphMember]
    ) -> Iterator[GraphMember]:
        """Yield members with all-port partition columns replaced by columns per port."""
        for member in members:
            if isinstance(member, LogicalOperator):
                yield member
                continue
            full = f"{around}.{member.name}" if around else member.name
            inner = tuple(self._resolve_members(graph, full, member.members))
            columns = self._all_port_columns.get(full)
            parallel = member.parallel
            if columns is not None and parallel is not None:
                parallel = _partition_all_ports(graph, Region(full, parallel), columns)
            yield replace(member, members=inner, parallel=parallel)


def _partition_all_ports(graph: Graph, region: Region, columns: tuple[str, ...]) -> Parallel:
    entering = (region.port(edge.consumer, edge.port) for edge in graph.entering(region))
    ports = dict.fromkeys(port for port in entering if port not in region.parallel.broadcast)
    if not ports:
        raise GraphError(
            f"region '{region.name}' is partitioned by {', '.join(columns)}, but no stream enters "
            "it that could be.",
            hint="leave partition_by out: what is read within a region is not shared out.",
            operators=(region.name,),
        )
    return replace(
        region.parallel, partition_by=tuple(PartitionBy(port, columns) for port in ports)
    )


def _split_partition_keys(
    name: str, given: PartitionKeys | None
) -> tuple[tuple[str, ...], tuple[PartitionBy, ...]]:
    """Return the all-port columns and the columns per port; at least one is empty."""
    if given is None:
        return (), ()
    if isinstance(given, Mapping):
        pairs = ((port, names_of(columns, "partition_by")) for port, columns in given.items())
        return (), tuple(PartitionBy(port, columns) for port, columns in pairs)
    columns = names_of(given, "partition_by")
    if not columns:
        raise GraphError(
            f"region '{name}': partition_by names no column.",
            hint="name the columns whose equal values are to meet, or leave it out: then rows go "
            "to the channels in turn.",
            operators=(name,),
        )
    return columns, ()


def _streams_by_port(
    name: str, inputs: tuple[Output, ...], ports: Mapping[str, InputStreams] | None
) -> dict[str, Sequence[Output]]:
    """Return the input streams by port."""
    if ports is None:
        return {INPUT: inputs} if inputs else {}
    if inputs:
        raise GraphError(
            f"'{name}' is fed both by position and by ports.",
            hint="name all its ports: ports={'left': ..., 'right': ...}.",
            operators=(name,),
        )
    return {port: (fed,) if isinstance(fed, Output) else fed for port, fed in ports.items()}


def _schema_of(work: Work, given: pa.Schema | None) -> pa.Schema | None:
    return given if given is not None else getattr(work, "schema", None)


def _keeps_state(work: Work) -> bool:
    return isinstance(work, Node) and any(
        isinstance(node, Limit | AssignUniqueId) for node in work.walk()
    )
