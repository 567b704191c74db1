"""The columns of every operator, followed from the sources: what can be wrong before rows move."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from graphlib import TopologicalSorter

import pyarrow as pa

from spark_upsert.errors import GraphError, about, did_you_mean
from spark_upsert.flow.checks import check, columns
from spark_upsert.flow.graph import Composite, Graph, GraphMember, LogicalOperator, OperatorKind
from spark_upsert.flow.work import PythonFunction
from spark_upsert.plan.nodes import scans_of
from spark_upsert.task import Node, Task


def schemas_of(graph: Graph, sources: Mapping[str, pa.Schema]) -> dict[str, pa.Schema]:
    """Return the columns that each source and operator gives, by its full name.

    Parameters
    ----------
    sources : mapping of str to pyarrow.Schema
        What each source gives, by its full name.

    Raises
    ------
    GraphError
        A source gives other columns than it said, a plan takes others than it is fed with, or has
        no scan for a port; the operators are named.
    PlanError
        A plan cannot be run.
    """
    schemas: dict[str, pa.Schema] = {}
    fed: dict[tuple[str, str], str] = {
        (each.consumer, each.port): each.producer for each in graph.streams
    }
    for name in _in_order(graph):
        operator = graph.places[name].operator
        if operator.kind is OperatorKind.SOURCE:
            schemas[name] = _of_source(name, operator, sources[name])
        elif operator.kind is OperatorKind.OPERATOR:
            taken = {port: fed[name, port] for port in operator.inputs}
            schemas[name] = _of_operator(name, operator, taken, schemas)
    # Checks that were not possible before the columns were known.
    check(Graph(tuple(_with_schemas(graph.members, "", schemas)), graph.streams))
    return schemas


def require_sources(given: Iterable[str], sources: Iterable[str]) -> None:
    """Refuse rows that are given under a name that no source has."""
    names = list(sources)
    for name in given:
        if name not in names:
            raise GraphError(
                f"rows are given for '{name}', which is no source of the graph.",
                hint=did_you_mean(name, names) if names else "the graph has none.",
                operators=(name,),
            )


def _of_source(name: str, operator: LogicalOperator, found: pa.Schema) -> pa.Schema:
    said = operator.schema
    if said is not None and (said.names != found.names or said.types != found.types):
        raise GraphError(
            f"source '{name}' gives {columns(found)}, its schema is {columns(said)}.",
            hint="give it the schema of what it reads, or none.",
            operators=(name,),
        )
    return found if said is None else said


def _of_operator(
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
    """Refuse a plan unless its scans are the ports, with the columns of what feeds them."""
    scans = {scan.id: scan for scan in scans_of(plan)}
    if set(scans) != set(taken):
        raise GraphError(
            f"operator '{name}' has the ports {', '.join(sorted(taken))}, its plan the scans "
            f"{', '.join(sorted(scans)) or 'of none'}.",
            hint="name a scan of Arrow as each port, and no other.",
            operators=(name,),
        )
    for port, producer in taken.items():
        expected, found = scans[port].schema, schemas[producer]
        if expected is None or not expected.equals(found):
            raise GraphError(
                f"the plan of '{name}' scans {columns(expected or pa.schema([]))} at its port "
                f"'{port}', but '{producer}' gives {columns(found)}.",
                hint=f"give the scan '{port}' the schema of '{producer}'.",
                operators=(producer, name),
            )


def _in_order(graph: Graph) -> Iterator[str]:
    sorter: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(graph.places, ()))
    for each in graph.streams:
        sorter.add(each.consumer, each.producer)
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
