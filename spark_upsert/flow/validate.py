"""Rules for a logical graph (`check`), and its operators' columns (`schemas_of`).

Each rule raises an error that names the operators. `operators.require_declared_columns` checks a
function's columns at run time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter
from typing import TypeVar

import pyarrow as pa

from spark_upsert.core.keys import is_hashable
from spark_upsert.errors import GraphError, about, did_you_mean
from spark_upsert.flow.graph import (
    ByChannel,
    ByReplica,
    Composite,
    Edge,
    Graph,
    GraphMember,
    LogicalOperator,
    OperatorKind,
    Parallel,
    Placement,
    PythonFunction,
    Region,
    coded_as,
)
from spark_upsert.plan.nodes import scans_of
from spark_upsert.task import Node, Task

WIDTH_MAX = (1 << 31) - 1
"""Maximum width in a graph; expansion has far lower limits (`flow.expand`)."""

MEMBERS_MAX = 1000
"""Maximum members per graph; larger graphs are generated, not written by hand."""

DEPTH_MAX = 20
"""Maximum nesting depth, because graphs are walked recursively."""

_NAME = re.compile(r"\w[\w-]*")

_T = TypeVar("_T", bound=Hashable)


def check(graph: Graph) -> None:
    """Raise GraphError if a graph cannot run.

    Columns are checked where they are known; `schemas_of` checks again with all columns.
    """
    _check_members(graph)
    _check_streams(graph)
    _check_ends(graph)
    _check_columns(graph)
    for region in graph.regions.values():
        _check_region(graph, region)
    _check_no_cycle(graph)


# -- members ---------------------------------------------------------------------------------


def check_name(name: object, what: str = "operator") -> None:
    """Raise GraphError for a name that full names such as ``totals.sum[3]`` cannot contain."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise GraphError(
            f"the name of {_with_article(what)} is letters, digits, '_' and '-', found {name!r}.",
            hint="give such a name; composites are put before it by dots.",
            operators=(name,),
        )


def check_parallel(name: str, parallel: Parallel) -> None:
    """Raise GraphError for region settings that are invalid in every graph."""
    width: object = parallel.width
    if not isinstance(width, int) or isinstance(width, bool) or not 1 <= width <= WIDTH_MAX:
        raise GraphError(
            f"region '{name}': its width is a whole number from 1 to {WIDTH_MAX}, found {width!r}.",
            hint="give the number of channels; without a region an operator runs once.",
            operators=(name,),
        )
    ports = [by_port.port for by_port in parallel.partition_by]
    for port in _iter_duplicates([*ports, *parallel.broadcast]):
        if port in ports and port in parallel.broadcast:
            problem, hint = "partition_by and in broadcast", "keep it in one of them."
        else:
            where = "partition_by" if port in ports else "broadcast"
            problem, hint = f"{where} twice", "name it once, with all its attributes."
        raise GraphError(
            f"region '{name}': the port '{port}' is in {problem}.", hint=hint, operators=(name,)
        )
    for partition in parallel.partition_by:
        if not partition.attributes:
            raise GraphError(
                f"region '{name}': the port '{partition.port}' is partitioned by nothing.",
                hint="name the columns whose equal values are to meet, or leave the port out: then "
                "its rows go to the channels in turn.",
                operators=(name,),
            )


def check_placement(name: str, placement: Placement) -> None:
    """Raise GraphError for values that are not placement ids."""
    for which in ("colocate", "exlocate"):
        ids = getattr(placement, which)
        if not isinstance(ids, tuple) or not all(map(_is_id, ids)):
            raise GraphError(
                f"'{name}': '{which}' is a tuple of ids, each a text, by_channel() or "
                f"by_replica(), found {ids!r}.",
                hint=f"give {which}=('name',).",
                operators=(name,),
            )


def _is_id(value: object) -> bool:
    return isinstance(value, ByChannel | ByReplica) or (isinstance(value, str) and value != "")


def check_kind(name: str, operator: LogicalOperator) -> None:
    """Raise GraphError if ports or function do not fit the operator type."""
    is_source = operator.kind is OperatorKind.SOURCE
    if is_source == bool(operator.inputs):
        expected = "no input ports" if is_source else "at least one input port"
        raise GraphError(
            f"{operator.kind.value} '{name}' has {expected}, found {len(operator.inputs)}.",
            hint="a source takes nothing; sinks and operators are fed by streams.",
            operators=(name,),
        )
    if isinstance(operator.work, PythonFunction):
        _check_function(name, operator.work)
    if isinstance(operator.work, PythonFunction) and len(operator.inputs) > 1:
        raise GraphError(
            f"'{name}' is a Python function, which takes the rows of one port, found ports "
            f"{', '.join(map(str, operator.inputs))}.",
            hint="let several streams merge in one port, or join them by a plan.",
            operators=(name,),
        )
    for port in operator.inputs:
        check_name(port, f"port of '{name}'")
    for port in _iter_duplicates(operator.inputs):
        raise GraphError(
            f"operator '{name}' has two ports '{port}'.",
            hint="give each port a name of its own.",
            operators=(name,),
        )


def _check_function(name: str, work: PythonFunction) -> None:
    for description, value, is_right in (
        ("a function over batches of Arrow", work.function, callable(work.function)),
        ("a pyarrow.Schema of what it gives", work.schema, isinstance(work.schema, pa.Schema)),
    ):
        if not is_right:
            raise GraphError(
                f"operator '{name}' takes {description}, found {value!r}.",
                hint="give PythonFunction(function, schema).",
                operators=(name,),
            )


def check_siblings(around: str, members: Iterable[GraphMember]) -> None:
    """Raise GraphError for duplicate names in a composite; ``around`` is its full name."""
    for name in _iter_duplicates(member.name for member in members):
        full = f"{around}.{name}" if around else name
        raise GraphError(
            f"two members of {repr(around) if around else 'the graph'} are called '{name}'.",
            hint="rename one of them, or put it into a composite.",
            operators=(full,),
        )


def _check_members(graph: Graph) -> None:
    count = 0
    check_siblings("", graph.members)
    for name, member, depth in _walk("", graph.members):
        count += 1
        if count > MEMBERS_MAX or depth > DEPTH_MAX:
            raise GraphError(
                f"a graph has at most {MEMBERS_MAX} members, and {DEPTH_MAX} one within the other; "
                f"with '{name}' it has more.",
                hint="cut it into several, or make one operator of several.",
                operators=(name,),
            )
        check_name(member.name, "operator" if isinstance(member, LogicalOperator) else "composite")
        check_placement(name, member.placement)
        if member.parallel is not None:
            check_parallel(name, member.parallel)
        if isinstance(member, LogicalOperator):
            check_kind(name, member)
        else:
            _check_composite(name, member)
    if not count:
        raise GraphError(
            "a graph has at least one source, found no operator at all.",
            hint="add a source and a sink.",
            operators=(),
        )


def _check_composite(name: str, composite: Composite) -> None:
    check_siblings(name, composite.members)
    if not composite.members:
        raise GraphError(
            f"composite '{name}' has no operator.",
            hint="add its operators within it, or leave it out.",
            operators=(name,),
        )


def _walk(
    around: str, members: Iterable[GraphMember], depth: int = 1
) -> Iterator[tuple[str, GraphMember, int]]:
    for member in members:
        name = f"{around}.{member.name}" if around else f"{member.name}"
        yield name, member, depth
        if isinstance(member, Composite):
            yield from _walk(name, member.members, depth + 1)


# -- streams ---------------------------------------------------------------------------------


def _check_streams(graph: Graph) -> None:
    placed_by_name = graph.places
    for stream in graph.streams:
        for role, name in (("producer", stream.producer), ("consumer", stream.consumer)):
            if name not in placed_by_name:
                raise GraphError(
                    f"the {role} '{name}' of the stream {stream} is no operator of the graph.",
                    hint=did_you_mean(name, placed_by_name),
                    operators=(stream.producer, stream.consumer),
                )
        if placed_by_name[stream.producer].operator.kind is OperatorKind.SINK:
            raise GraphError(
                f"the sink '{stream.producer}' gives no rows, but '{stream.consumer}' takes some.",
                hint="make it an operator, or take the rows from before it.",
                operators=(stream.producer, stream.consumer),
            )
        ports = placed_by_name[stream.consumer].operator.inputs
        if stream.port not in ports:
            raise GraphError(
                f"the stream from '{stream.producer}' goes to the port '{stream.port}' of "
                f"'{stream.consumer}', which has {_format_names(ports, 'port')}.",
                hint=did_you_mean(stream.port, ports) if ports else "a source takes no rows.",
                operators=(stream.producer, stream.consumer),
            )
    for stream in _iter_duplicates(graph.streams):
        raise GraphError(
            f"the stream {stream} is in the graph twice.",
            hint="connect them once; an operator that needs each row twice doubles it itself.",
            operators=(stream.producer, stream.consumer),
        )


def _check_ends(graph: Graph) -> None:
    fed = {(stream.consumer, stream.port) for stream in graph.streams}
    for name, placed in graph.places.items():
        for port in placed.operator.inputs:
            if (name, port) not in fed:
                raise GraphError(
                    f"nothing feeds the port '{port}' of '{name}'.",
                    hint="connect a stream to it, or take the port away.",
                    operators=(name,),
                )
        if placed.operator.kind is not OperatorKind.SINK and not graph.streams_of[name]:
            raise GraphError(
                f"nothing takes the rows of '{name}'.",
                hint="connect it to a sink, or take it away.",
                operators=(name,),
            )


def _check_columns(graph: Graph) -> None:
    """Raise GraphError if streams into one port have different columns."""
    first: dict[tuple[str, str], tuple[str, pa.Schema]] = {}
    for stream in graph.streams:
        schema = graph.places[stream.producer].operator.schema
        if schema is None:
            continue
        other_producer, expected = first.setdefault(
            (stream.consumer, stream.port), (stream.producer, schema)
        )
        if not schema.equals(expected):
            raise GraphError(
                f"'{other_producer}' and '{stream.producer}' both feed the port '{stream.port}' of "
                f"'{stream.consumer}', with other columns: {columns(expected)}; and "
                f"{columns(schema)}.",
                hint="bring them to one form before they meet.",
                operators=(other_producer, stream.producer, stream.consumer),
            )


# -- regions ---------------------------------------------------------------------------------


def _check_region(graph: Graph, region: Region) -> None:
    entering: dict[str, list[Edge]] = {}
    for stream in graph.entering(region):
        entering.setdefault(region.port(stream.consumer, stream.port), []).append(stream)
    named = [by_port.port for by_port in region.parallel.partition_by]
    for port in (*named, *region.parallel.broadcast):
        if port not in entering:
            where = "partition_by" if port in named else "broadcast"
            raise GraphError(
                f"region '{region.name}': {where} names the port '{port}', by which no stream "
                f"enters it; by {_format_names(entering, 'port')} some does.",
                hint=did_you_mean(port, entering)
                if entering
                else "leave it out: what is read within the region is not shared out.",
                operators=(region.name,),
            )
    for partition in region.parallel.partition_by:
        for stream in entering[partition.port]:
            for attribute in partition.attributes:
                _check_attribute(graph, region, stream, attribute)
    _check_matched(graph, region, entering)


def _check_attribute(graph: Graph, region: Region, stream: Edge, attribute: str) -> None:
    operators = (region.name, stream.producer, stream.consumer)
    schema = graph.places[stream.producer].operator.schema
    where = f"region '{region.name}' partitions what '{stream.producer}' gives"
    if schema is None:
        return
    count = schema.names.count(attribute)
    if count != 1:
        raise GraphError(
            f"{where} by '{attribute}', of which there are {count} among its columns "
            f"({', '.join(schema.names) or 'none'}).",
            hint="name columns apart." if count else did_you_mean(attribute, schema.names),
            operators=operators,
        )
    if not is_hashable(schema.field(attribute).type):
        raise GraphError(
            f"{where} by '{attribute}', which is {schema.field(attribute).type}.",
            hint="partition by numbers, texts or moments.",
            operators=operators,
        )


def _check_matched(graph: Graph, region: Region, entering: Mapping[str, Sequence[Edge]]) -> None:
    """Raise GraphError if an operator's hash-partitioned ports separate equal values."""
    first: dict[str, tuple[str, list[str]]] = {}
    for partition in region.parallel.partition_by:
        stream = entering[partition.port][0]
        schema = graph.places[stream.producer].operator.schema
        if schema is None:
            continue
        key_types = [coded_as(schema.field(name).type) for name in partition.attributes]
        port, other_types = first.setdefault(stream.consumer, (partition.port, key_types))
        if key_types != other_types:
            raise GraphError(
                f"region '{region.name}' partitions the port '{port}' by {', '.join(other_types)} "
                f"and '{partition.port}' by {', '.join(key_types)}: rows with equal values would "
                f"not meet in '{stream.consumer}'.",
                hint="bring the columns to one type before they enter, or broadcast one port.",
                operators=(region.name, stream.consumer),
            )


# -- cycles ----------------------------------------------------------------------------------


def _check_no_cycle(graph: Graph) -> None:
    """Raise GraphError if operators feed themselves, directly or through others."""
    waiting = Counter(stream.consumer for stream in graph.streams)
    ready = [name for name in graph.places if not waiting[name]]
    while ready:
        for stream in graph.streams_of[ready.pop()]:
            waiting[stream.consumer] -= 1
            if not waiting[stream.consumer]:
                ready.append(stream.consumer)
    left = {name for name, count in waiting.items() if count}
    if left:
        cycle = _cycle(graph, left)
        raise GraphError(
            f"these operators feed each other: {' -> '.join((*cycle, cycle[0]))}.",
            hint="rows go one way: give what comes back a graph of its own, by way of a table.",
            operators=tuple(cycle),
        )


def _cycle(graph: Graph, left: set[str]) -> list[str]:
    """Return one cycle, given the operators that are on a cycle or after one.

    Each operator feeds the next; the first is the one declared first.
    """
    feeds: Mapping[str, str] = {
        stream.consumer: stream.producer for stream in graph.streams if stream.producer in left
    }
    path: dict[str, None] = {}
    name = next(node for node in graph.places if node in left)
    while name not in path:
        path[name] = None
        name = feeds[name]
    names = list(path)
    cycle = names[names.index(name) :][::-1]
    first = cycle.index(next(node for node in graph.places if node in cycle))
    return cycle[first:] + cycle[:first]


# -- words -----------------------------------------------------------------------------------


def columns(schema: pa.Schema) -> str:
    """Return a schema as text for error messages."""
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "no columns"


def _iter_duplicates(values: Iterable[_T]) -> Iterator[_T]:
    earlier: set[_T] = set()
    for value in values:
        if value in earlier:
            yield value
        earlier.add(value)


def _format_names(names: Iterable[str], what: str) -> str:
    sorted_names = sorted(names)
    if len(sorted_names) > 1:
        return f"the {what}s {', '.join(sorted_names)}"
    return f"the {what} {sorted_names[0]}" if sorted_names else f"no {what}"


def _with_article(what: str) -> str:
    return f"{'an' if what[0] in 'aeiou' else 'a'} {what}"


def schemas_of(graph: Graph, sources: Mapping[str, pa.Schema]) -> dict[str, pa.Schema]:
    """Return the output columns by full name of source or operator.

    Raises GraphError if columns do not fit.
    """
    schemas: dict[str, pa.Schema] = {}
    fed: dict[tuple[str, str], str] = {
        (stream.consumer, stream.port): stream.producer for stream in graph.streams
    }
    for name in _sort_operators(graph):
        operator = graph.places[name].operator
        if operator.kind is OperatorKind.SOURCE:
            schemas[name] = _source_schema(name, operator, sources[name])
        elif operator.kind is OperatorKind.OPERATOR:
            taken = {port: fed[name, port] for port in operator.inputs}
            schemas[name] = _operator_schema(name, operator, taken, schemas)
    # Checks that were not possible before the columns were known.
    check(Graph(tuple(_with_schemas(graph.members, "", schemas)), graph.streams))
    return schemas


def require_sources(given: Iterable[str], sources: Iterable[str]) -> None:
    """Raise GraphError if rows are passed for an unknown source."""
    names = list(sources)
    for name in given:
        if name not in names:
            raise GraphError(
                f"rows are given for '{name}', which is no source of the graph.",
                hint=did_you_mean(name, names) if names else "the graph has none.",
                operators=(name,),
            )


def _source_schema(name: str, operator: LogicalOperator, found: pa.Schema) -> pa.Schema:
    schema = operator.schema
    if schema is not None and (schema.names != found.names or schema.types != found.types):
        raise GraphError(
            f"source '{name}' gives {columns(found)}, its schema is {columns(schema)}.",
            hint="give it the schema of what it reads, or none.",
            operators=(name,),
        )
    return found if schema is None else schema


def _operator_schema(
    name: str, operator: LogicalOperator, taken: Mapping[str, str], schemas: Mapping[str, pa.Schema]
) -> pa.Schema:
    work = operator.work
    if isinstance(work, PythonFunction):
        return work.schema
    if not isinstance(work, Node):
        raise GraphError(
            f"operator '{name}': {type(work).__name__} is no work of an operator.",
            hint="give it a plan or a PythonFunction.",
            operators=(name,),
        )
    _require_scans(name, work, taken, schemas)
    with about("operator", name), Task(work) as task:
        return task.schema


def _require_scans(
    name: str, plan: Node, taken: Mapping[str, str], schemas: Mapping[str, pa.Schema]
) -> None:
    """Raise GraphError unless the plan's scans match the ports and their input columns."""
    scans = {scan.id: scan for scan in scans_of(plan)}
    if set(scans) != set(taken):
        raise GraphError(
            f"operator '{name}' has the ports {', '.join(sorted(taken))}, its plan the scans "
            f"{', '.join(sorted(scans)) or 'of none'}.",
            hint="name a scan of Arrow as each port, and no other.",
            operators=(name,),
        )
    for port, producer in taken.items():
        expected, actual = scans[port].schema, schemas[producer]
        if expected is None or not expected.equals(actual):
            raise GraphError(
                f"the plan of '{name}' scans {columns(expected or pa.schema([]))} at its port "
                f"'{port}', but '{producer}' gives {columns(actual)}.",
                hint=f"give the scan '{port}' the schema of '{producer}'.",
                operators=(producer, name),
            )


def _sort_operators(graph: Graph) -> Iterator[str]:
    sorter: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(graph.places, ()))
    for stream in graph.streams:
        sorter.add(stream.consumer, stream.producer)
    yield from sorter.static_order()


def _with_schemas(
    members: tuple[GraphMember, ...], around: str, schemas: Mapping[str, pa.Schema]
) -> Iterator[GraphMember]:
    for member in members:
        name = f"{around}{member.name}"
        if isinstance(member, Composite):
            inner = tuple(_with_schemas(member.members, f"{name}.", schemas))
            yield replace(member, members=inner)
        else:
            yield replace(member, schema=schemas.get(name))
