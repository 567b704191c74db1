"""From a plan to drivers (`build`): chains of operators between exchanges.

A chain begins at a leaf or where chains meet; a join's right side is a separate chain. Rows do not
depend on the driver count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from spark_upsert.core.keys import is_hashable
from spark_upsert.core.names import find_repeated, has_column
from spark_upsert.errors import PlanError, about, did_you_mean
from spark_upsert.plan.expressions import bind, bind_condition
from spark_upsert.plan.nodes import (
    ArrowScan,
    AssignUniqueId,
    FileScan,
    Filter,
    Group,
    IndexLookupJoin,
    Join,
    Limit,
    LocalPartition,
    MergeJoin,
    MixedUnion,
    Node,
    Project,
    SplitScan,
    Unnest,
    Values,
    require_names,
)
from spark_upsert.task import driver as exchanges
from spark_upsert.task.aggregation import aggregation
from spark_upsert.task.driver import (
    BatchDistributor,
    ChainStage,
    Consumer,
    Driver,
    Exchange,
    Feed,
    Partitioner,
    partition_by_keys,
)
from spark_upsert.task.hash_join import HashJoinRows
from spark_upsert.task.join_output import SHOWS_RIGHT_ALONE
from spark_upsert.task.lifecycle import Monitor
from spark_upsert.task.lookup_join import Lookup, LookupJoinRows
from spark_upsert.task.merge_join import MergeJoinRows
from spark_upsert.task.operator import (
    BatchSource,
    Operator,
    Signal,
    Streaming,
    limit_rows,
    number_rows,
    unnest_lists,
)
from spark_upsert.task.sources import (
    ScanFeed,
    SplitQueue,
    SplitReader,
    ValuesFeed,
    files_reader,
    read_arrow,
)


def make_operator(
    node: Node,
    schema: pa.Schema,
    *,
    right: BatchSource | None,
    lookup: Lookup | None,
    drop_input: Callable[[str], None],
) -> Operator:
    """Return the operator for a node."""
    match node:
        case Filter():
            return Streaming(schema, bind_condition(node.where, schema).true_rows)
        case Project():
            return _project(node, schema)
        case Unnest():
            return unnest_lists(node, schema)
        case Limit():
            return limit_rows(node, schema)
        case AssignUniqueId():
            return number_rows(node, schema)
        case Group():
            return aggregation(node, schema)
        case Join():
            assert right is not None, "a join without the rows of its right side"
            if isinstance(node, MergeJoin):
                return MergeJoinRows(node, schema, right, drop_input)
            return HashJoinRows(node, schema, right)
        case IndexLookupJoin():
            if lookup is None:
                raise PlanError(
                    "nothing says where its keys are looked up.",
                    hint=f"give the task a lookup: lookups={{'{node.id}': ...}}.",
                )
            return LookupJoinRows(node, schema, lookup)
        case _:
            raise PlanError(f"a {node.kind} cannot be run.", hint="use another node.")


def is_silent(node: Node) -> bool:
    """Return whether a node's operator emits no rows for empty input."""
    match node:
        case Group():
            return bool(node.keys)
        case Join():
            return node.how not in SHOWS_RIGHT_ALONE
        case _:
            return True


def _project(node: Project, schema: pa.Schema) -> Streaming:
    names = [name for name, _ in node.columns]
    repeated = find_repeated(names, is_exact=True)
    if repeated is not None:
        raise PlanError(f"two columns are called '{repeated[0]}'.", hint="rename one of them.")
    bound = [bind(expression, schema) for _, expression in node.columns]
    projected = pa.schema(
        [pa.field(name, expression.type) for name, expression in zip(names, bound, strict=True)]
    )

    def apply(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [expression(batch) for expression in bound], schema=projected
        )

    return Streaming(projected, apply)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """The components passed by a task to its pipeline builder.

    Parameters
    ----------
    progress : Monitor
        The lock for all queues, and the change counter for waking waiting threads.
    width : int
        Maximum drivers per chain.
    readers : mapping of str to SplitReader
        The split reader for each scan, by scan name.
    lookups : mapping of str to Lookup
        The look-up for each index lookup join, by join name.
    stands_next : callable
        `Signal.DRAINED` under a barrier, `Signal.ENDED` if no more splits come, else `Signal.WAIT`.
    has_tail : callable
        Whether splits came after the last barrier, or there was none.
    """

    progress: Monitor
    width: int
    readers: Mapping[str, SplitReader]
    lookups: Mapping[str, Lookup]
    next_signal: Callable[[], Signal]
    has_tail: Callable[[], bool]


@dataclass(slots=True)
class Pipelines:
    """The drivers, queues and exchanges for a plan.

    Parameters
    ----------
    drivers : list of Driver
        Drivers near the output first: run in this order, they produce only consumed rows.
    queues : dict of str to SplitQueue
        Each scan's queue, by scan name.
    exchanges : list of Exchange
        The first one is the task's output.
    drops : dict of str to callable
        A function for each node: it discards, until the barrier, the rows of the node and all
        nodes below it.
    """

    drivers: list[Driver] = field(default_factory=list)
    queues: dict[str, SplitQueue] = field(default_factory=dict)
    exchanges: list[Exchange] = field(default_factory=list)
    drops: dict[str, Callable[[], None]] = field(default_factory=dict)

    @property
    def output(self) -> Exchange:
        """The exchange emitting the complete plan's rows."""
        return self.exchanges[0]

    @property
    def bare_scan(self) -> Driver | None:
        """The driver returning all rows as they are read; None if there are other operators."""
        [first, *others] = self.drivers
        return first if first.is_bare and not others else None

    def drop_input(self, node: str) -> None:
        """Discard the output of a node and all nodes below it."""
        self.drops[node]()


def build(plan: Node, settings: TaskSettings) -> Pipelines:
    """Return a plan's pipelines."""
    require_names(plan)
    _require_nodes(plan, settings.readers, SplitScan, "a reader", "scan")
    _require_nodes(plan, settings.lookups, IndexLookupJoin, "a lookup", "index lookup join")
    builder = _Builder(plan, settings)
    # One driver gives rows in one order, whatever has to wait for storage meanwhile.
    builder.run([plan], is_ordered=settings.width == 1, is_top=True)
    return builder.built


def _require_nodes(plan: Node, given: Iterable[str], kind: Any, what: str, whose: str) -> None:
    """Raise if an argument names a node missing from the plan."""
    names = {node.id for node in plan.walk() if isinstance(node, kind)}
    for name in given:
        if name not in names:
            raise PlanError(
                f"there is {what} for '{name}', but no {whose} of that name.",
                hint=did_you_mean(name, names) if names else "leave it out.",
            )


@dataclass(slots=True)
class _Chain:
    """A chain's nodes, from its feed to its end, and its driver count."""

    nodes: list[Node]
    width: int
    is_ordered: bool


def _make_chain(top: Node, *, width: int, is_ordered: bool) -> _Chain:
    """Return a node's chain; it has one driver if more would change its output."""
    nodes = [top]
    while not isinstance(nodes[-1], SplitScan | Values | LocalPartition | MixedUnion):
        child = nodes[-1]
        nodes.append(child.left if isinstance(child, Join) else child.inputs[0])
    nodes.reverse()
    is_ordered = is_ordered or any(map(_needs_order, nodes))
    is_single = (
        is_ordered
        or any(isinstance(node, Values | Join) for node in nodes)
        or not _are_groups_whole(nodes)
    )
    return _Chain(nodes, 1 if is_single else width, is_ordered)


def _needs_order(node: Node) -> bool:
    """Return whether a node's output depends on its input order."""
    is_clustered = isinstance(node, Group) and node.is_clustered
    return is_clustered or isinstance(node, MergeJoin | Limit | AssignUniqueId | MixedUnion)


def _are_groups_whole(nodes: Sequence[Node]) -> bool:
    """Return whether each aggregation in a chain gets equal keys in one driver."""
    for index, node in enumerate(nodes):
        if isinstance(node, Group):
            feed, between = nodes[0], nodes[1:index]
            # Other nodes may give other values to a column of the same name.
            if not isinstance(feed, LocalPartition) or not feed.keys:
                return False
            if not all(isinstance(node, Filter | Group) for node in between):
                return False
            if not set(feed.keys) <= set(node.keys):
                return False
    return True


class _Builder:
    def __init__(self, plan: Node, settings: TaskSettings) -> None:
        self._plan = plan
        self._settings = settings
        self.built = Pipelines()

    def run(
        self,
        tops: Sequence[Node],
        *,
        is_ordered: bool,
        is_top: bool = False,
        consumers: int = 1,
        route: Partitioner | None = None,
        capacity: int = exchanges.QUEUED_BATCHES,
    ) -> Exchange:
        """Build the chains ending in some nodes, and return the exchange they fill."""
        exchange: Exchange | None = None
        own_drivers: list[Driver] = []
        for top in tops:
            chain = _make_chain(top, width=self._settings.width, is_ordered=is_ordered)
            index = len(self.built.drivers)
            stages = self._stages(chain)
            schema = stages[0][1]
            if exchange is None:
                exchange = Exchange(
                    self._settings.progress,
                    schema,
                    consumers=consumers,
                    route=route,
                    capacity=capacity,
                )
                self.built.exchanges.insert(0, exchange)
            elif not schema.equals(exchange.schema):
                raise _other_columns(top, schema, exchange.schema)
            drivers = [
                Driver(
                    _feed_name(chain.nodes[0]),
                    feed,
                    own_stages,
                    exchange.add_producer(),
                    is_top=is_top and len(stages) == 1,
                )
                for feed, own_stages in ((stage[0], stage[2]) for stage in stages)
            ]
            self._note_drops(chain, drivers)
            # Before the drivers built meanwhile, because these take from them.
            self.built.drivers[index:index] = drivers
            own_drivers.extend(drivers)
        assert exchange is not None, "a node without inputs"
        exchange.is_dropped = partial(_drop_all, own_drivers)
        return exchange

    def _note_drops(self, chain: _Chain, drivers: Sequence[Driver]) -> None:
        for index, node in enumerate(chain.nodes):
            if isinstance(node, MergeJoin):
                [driver] = drivers
                self.built.drops[node.left.id] = partial(driver.drop_before, index)

    # -- stages

    def _stages(self, chain: _Chain) -> list[tuple[Feed, pa.Schema, list[ChainStage]]]:
        """Return each driver's feed and operators, and the output columns."""
        feeds = self._feeds(chain)
        rights = {
            node.id: self._right(node, is_ordered=chain.is_ordered)
            for node in chain.nodes
            if isinstance(node, Join)
        }
        built_stages = []
        for feed in feeds:
            schema, stages = feed.schema, []
            for node in chain.nodes[1:]:
                with about("node", node.id):
                    operator = self._operator(node, schema, rights)
                stages.append(_stage(node, operator, rights.get(node.id)))
                schema = operator.schema
            built_stages.append((feed, schema, stages))
        return built_stages

    def _right(self, node: Join, *, is_ordered: bool) -> Consumer:
        is_ordered = is_ordered or isinstance(node, MergeJoin)
        exchange = self.run([node.right], is_ordered=is_ordered)
        consumer = exchange.consumer()
        self.built.drops[node.right.id] = consumer.drop
        return consumer

    def _operator(self, node: Node, schema: pa.Schema, rights: Mapping[str, Consumer]) -> Operator:
        right, lookup = rights.get(node.id), self._settings.lookups.get(node.id)
        return make_operator(
            node, schema, right=right, lookup=lookup, drop_input=self.built.drop_input
        )

    # -- feeds

    def _feeds(self, chain: _Chain) -> Sequence[Feed]:
        node = chain.nodes[0]
        match node:
            case Values():
                return [ValuesFeed(node.rows, self._settings.next_signal, self._settings.has_tail)]
            case MixedUnion():
                return [self._union(node.id, node.parts)]
            case LocalPartition():
                return self._partitions(node, chain)
            case _:
                return self._scans(node, chain.width)

    def _scans(self, node: Node, width: int) -> Sequence[Feed]:
        assert isinstance(node, SplitScan)
        reader = self._settings.readers.get(node.id) or _builtin_reader(node)
        if reader is None:
            raise PlanError(
                f"node '{node.id}': a {node.kind} has no reader of its own.",
                hint=f"give the task one: readers={{'{node.id}': ...}}.",
                node=node.id,
            )
        if node.schema is None and node is not self._plan:
            raise PlanError(
                f"node '{node.id}': a {node.kind} without a schema stands below other nodes.",
                hint="give it the schema of its rows.",
                node=node.id,
            )
        queue = self.built.queues[node.id] = SplitQueue(self._settings.progress)
        return [ScanFeed(queue, reader, node.schema) for _ in range(width)]

    def _union(self, name: str, parts: Sequence[Node]) -> Feed:
        _require_parts(name, parts)
        feeds = [self.run([part], is_ordered=True, capacity=1).consumer() for part in parts]
        for part, feed in zip(parts, feeds, strict=True):
            if not feed.schema.equals(feeds[0].schema):
                raise _other_columns(part, feed.schema, feeds[0].schema)
        return exchanges.Union(feeds)

    def _partitions(self, node: LocalPartition, chain: _Chain) -> Sequence[Feed]:
        _require_parts(node.id, node.parts)
        if chain.is_ordered:
            # In turn and not as they come, so that threads do not change the order.
            union = self._union(node.id, node.parts)
            _require_keys(node, union.schema)
            return [union]
        exchange = self.run(
            node.parts,
            is_ordered=False,
            consumers=chain.width,
            route=partition_by_keys(node.keys) if node.keys else BatchDistributor(),
        )
        _require_keys(node, exchange.schema)
        return [exchange.consumer(index) for index in range(chain.width)]


def _stage(node: Node, operator: Operator, right: Consumer | None) -> ChainStage:
    """Return an operator's chain stage."""
    is_counting = isinstance(node, Limit | AssignUniqueId)
    return ChainStage(node.id, operator, is_silent(node), is_counting, right)


def _builtin_reader(node: SplitScan) -> SplitReader | None:
    """Return the built-in split reader for a scan without a given one, or None."""
    match node:
        case ArrowScan():
            return read_arrow
        case FileScan():
            return files_reader(node.schema.names)
        case _:
            return None


def _feed_name(node: Node) -> str:
    """Return a feed's name for error messages; empty for a plan with a single unnamed scan."""
    return "" if isinstance(node, SplitScan) and node.schema is None else node.id


def _drop_all(drivers: Sequence[Driver]) -> None:
    for driver in drivers:
        driver.drop_all()


def _require_parts(name: str, parts: Sequence[Node]) -> None:
    if not parts:
        raise PlanError(f"node '{name}': it has no parts.", hint="give it at least one.", node=name)


def _require_keys(node: LocalPartition, schema: pa.Schema) -> None:
    with about("node", node.id):
        for name in node.keys:
            if not has_column(schema, name):
                raise PlanError.missing_column(name, schema.names)
            if not is_hashable(schema.field(name).type):
                raise PlanError(
                    f"rows cannot be shared out by '{name}', which is {schema.field(name).type}.",
                    hint="name columns of numbers, texts or moments.",
                )


def _other_columns(node: Node, found: pa.Schema, expected: pa.Schema) -> PlanError:
    return PlanError(
        f"node '{node.id}': its columns are not those of the part before it: "
        f"{_columns(found)}, and {_columns(expected)}.",
        hint="bring them to one form by a project.",
        node=node.id,
    )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema)
