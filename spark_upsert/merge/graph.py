"""The graph around a merge (`MergeGraph`): does a slow sink slow its sources?

It does if `fusion` (the merge reads through bounded channels) and `streaming_output` (the sink
writes as rows come) are both true; each answer contains its reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from spark_upsert.errors import OptionError, SchemaError, did_you_mean
from spark_upsert.merge.readers import MergeConfig, Mode

_MERGE_KEYS = ("inputs", "config")


class UnmappedPolicy(Enum):
    """A source's policy for unexpected columns."""

    DROP = "drop"
    REJECT = "reject"
    AUTO_WIDEN = "auto_widen"
    """Unexpected columns are collected in an additional column."""


class TransformWork(Enum):
    """Transform type, as far as a downstream sink depends on it."""

    TRANSFORM = "transform"
    ROUTE = "route"
    AGGREGATE = "aggregate"
    COMBINE = "combine"
    WINDOW = "window"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceNode:
    """Source in a merge graph.

    Parameters
    ----------
    name : str
    columns : tuple of str
        Column names in order.
    unmapped : UnmappedPolicy
    correlation : tuple of str
        Key columns for rows that are accepted or rejected together.
    """

    name: str
    columns: tuple[str, ...] = ()
    unmapped: UnmappedPolicy = UnmappedPolicy.DROP
    correlation: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """Transform between sources and sinks.

    Parameters
    ----------
    name : str
    inputs : tuple of str
        Node names, optionally with a port, as ``node.port``.
    work : TransformWork
        A window is *rooted* at its input node.
    is_streaming : bool
        For an aggregate or a combine: whether it emits rows before its input ends.
    """

    name: str
    inputs: tuple[str, ...]
    work: TransformWork = TransformWork.TRANSFORM
    is_streaming: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeNode:
    """A merge; an exact order uses `inputs` in declaration order."""

    name: str
    inputs: tuple[str, ...]
    config: MergeConfig = field(default_factory=MergeConfig)

    @classmethod
    def parse(cls, name: str, record: Mapping[str, Any]) -> MergeNode:
        """Return a merge from a mapping with ``inputs`` and, optionally, ``config``.

        Raises OptionError for unknown keys, and for invalid or duplicate inputs.
        """
        for key in record:
            if key not in _MERGE_KEYS:
                raise OptionError.unknown(key, _MERGE_KEYS)
        inputs = record.get("inputs")
        if not isinstance(inputs, list | tuple) or not all(type(name) is str for name in inputs):
            raise OptionError.invalid("inputs", inputs, "a list of names")
        for input_name in inputs:
            if inputs.count(input_name) > 1:
                raise OptionError.invalid(
                    "inputs", inputs, f"each input once, not '{input_name}' twice"
                )
        return cls(
            name=name, inputs=tuple(inputs), config=MergeConfig.parse(record.get("config") or {})
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """Sink in a merge graph.

    Parameters
    ----------
    name : str
    inputs : tuple of str
    needs_all : tuple of str
        Reasons for writing nothing before all rows are there: ``"split"``, ``"sort_order"``,
        ``"one file per source"``, ``"correlation keys"``, ``"an envelope"``. Usually empty.
    """

    name: str
    inputs: tuple[str, ...]
    needs_all: tuple[str, ...] = ()


AnyNode = SourceNode | Transform | MergeNode | Sink


@dataclass(frozen=True, slots=True)
class Answer:
    """Yes or no, with a reason."""

    is_yes: bool
    why: str

    def __bool__(self) -> bool:
        return self.is_yes

    def __str__(self) -> str:
        return f"{'yes' if self.is_yes else 'no'}: {self.why}"


class MergeGraph:
    """Nodes by name, with the readers of each.

    The constructor raises OptionError for duplicate names and unknown inputs. It raises SchemaError
    if merged sources differ, or if a window is rooted at a merge.
    """

    def __init__(self, nodes: Iterable[AnyNode]) -> None:
        self.nodes: dict[str, AnyNode] = {}
        for node in nodes:
            if node.name in self.nodes:
                raise OptionError(f"two nodes are named '{node.name}'.", hint="rename one of them.")
            self.nodes[node.name] = node
        for node in self.nodes.values():
            for reference in node.inputs:
                if _node_of(reference) not in self.nodes:
                    raise OptionError(
                        f"'{node.name}' reads '{reference}', which is not there.",
                        hint=did_you_mean(reference, self.nodes),
                    )
        for node in self.nodes.values():
            if isinstance(node, MergeNode):
                _check_that_inputs_agree(self, node)
            elif isinstance(node, Transform) and node.work is TransformWork.WINDOW:
                _check_root(self, node)

    def before(self, name: str) -> list[AnyNode]:
        """Return a node's inputs, one per edge."""
        return [self.nodes[_node_of(reference)] for reference in self.nodes[name].inputs]

    def readers(self, name: str) -> list[AnyNode]:
        """Return the nodes that read a node, one per edge."""
        return [
            node
            for node in self.nodes.values()
            for reference in node.inputs
            if _node_of(reference) == name
        ]

    def merge(self, name: str) -> MergeNode:
        node = self.nodes[name]
        if not isinstance(node, MergeNode):
            raise ValueError(f"'{name}' is no merge")
        return node


def fusion(graph: MergeGraph, merge: str) -> Answer:
    """Return whether a merge is live, which applies to all its inputs or to none."""
    node = graph.merge(merge)
    if node.config.mode is not Mode.INTERLEAVE:
        return Answer(False, f"its mode is {node.config.mode.value}, which has an exact order")
    if node.config.seed is not None:
        return Answer(False, f"the seed {node.config.seed} gives it an exact order")
    before = graph.before(merge)
    if not before:
        return Answer(False, "it has no inputs")
    for predecessor in before:
        if not isinstance(predecessor, SourceNode):
            return Answer(False, f"'{predecessor.name}' is no source")
    for predecessor in before:
        if len(graph.readers(predecessor.name)) > 1:
            return Answer(False, _describe_readers(graph, predecessor))
    return Answer(True, f"no other operator reads its inputs ({len(before)}), and all are sources")


def streaming_output(graph: MergeGraph, sink: str, *, is_starting: bool = False) -> Answer:
    """Return whether a sink writes rows as they arrive."""
    node = graph.nodes[sink]
    if not isinstance(node, Sink):
        raise ValueError(f"'{sink}' is no sink")
    if len(node.inputs) != 1:
        return Answer(False, f"it reads {len(node.inputs)} inputs")
    (producer,) = graph.before(sink)
    readers = graph.readers(producer.name)
    for reader in readers:
        if isinstance(reader, Transform) and reader.work is TransformWork.WINDOW:
            return Answer(False, f"the window '{reader.name}' is rooted at '{producer.name}'")
    if len(readers) != 1:
        return Answer(False, _describe_readers(graph, producer))
    if not (gives := _is_streaming_producer(graph, producer)):
        return gives
    if is_starting:
        return Answer(False, "the graph is still starting")
    if node.needs_all:
        return Answer(False, f"it needs all rows first, for {', '.join(node.needs_all)}")
    return Answer(True, gives.why)


def explain(graph: MergeGraph) -> str:
    """Return both answers for every merge and sink, one per line."""
    lines = []
    for name, node in graph.nodes.items():
        if isinstance(node, MergeNode):
            lines.append(f"merge {name}: live {fusion(graph, name)}")
        elif isinstance(node, Sink):
            lines.append(f"sink {name}: streaming {streaming_output(graph, name)}")
    return "\n".join(lines)


def _is_streaming_producer(graph: MergeGraph, producer: AnyNode) -> Answer:
    name = producer.name
    match producer:
        case MergeNode():
            return Answer(True, f"the merge '{name}' gives rows as it goes")
        case Transform(work=TransformWork.TRANSFORM):
            before = graph.before(name)
            if len(before) == 1 and isinstance(before[0], SourceNode):
                if len(graph.readers(before[0].name)) == 1:
                    return Answer(True, f"'{name}' works on the rows of '{before[0].name}' at once")
                return Answer(False, _describe_readers(graph, before[0]))
            return Answer(False, f"'{name}' does not stand behind one source")
        case Transform(work=TransformWork.ROUTE):
            # Further branches would be further readers, which were counted.
            return Answer(True, f"the route '{name}' has one branch")
        case Transform(work=TransformWork.AGGREGATE | TransformWork.COMBINE) if (
            producer.is_streaming
        ):
            return Answer(True, f"'{name}' gives rows before it has seen all")
    return Answer(False, f"'{name}' gives nothing before it has seen all rows")


def _describe_readers(graph: MergeGraph, node: AnyNode) -> str:
    readers = [f"'{reader.name}'" for reader in graph.readers(node.name)]
    return f"'{node.name}' has {len(readers)} readers: {', '.join(sorted(readers))}"


def _node_of(reference: str) -> str:
    return reference.partition(".")[0]


def _check_that_inputs_agree(graph: MergeGraph, merge: MergeNode) -> None:
    """Raise SchemaError if a merge's sources differ from its first source."""
    sources = [node for node in graph.before(merge.name) if isinstance(node, SourceNode)]
    for other_source in sources[1:]:
        first = sources[0]
        for difference, mine, theirs in (
            ("have different columns", first.columns, other_source.columns),
            ("treat unexpected columns differently", first.unmapped, other_source.unmapped),
            (
                "have different correlation keys",
                set(first.correlation),
                set(other_source.correlation),
            ),
        ):
            if mine != theirs:
                raise SchemaError(
                    f"the inputs of the merge '{merge.name}' {difference}: '{first.name}' has "
                    f"{_describe_value(mine)}, '{other_source.name}' {_describe_value(theirs)}.",
                    hint="declare them alike in all inputs.",
                    merge=merge.name,
                )


def _check_root(graph: MergeGraph, window: Transform) -> None:
    for root in graph.before(window.name):
        if isinstance(root, MergeNode):
            raise SchemaError(
                f"the window '{window.name}' is rooted at the merge '{root.name}', whose rows have "
                "no order across inputs.",
                hint="root it at a source, or sort first.",
            )


def _describe_value(value: Any) -> str:
    if isinstance(value, UnmappedPolicy):
        return value.value
    return ", ".join(value if isinstance(value, tuple) else sorted(value)) or "none"
