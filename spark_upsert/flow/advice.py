"""Warnings about graphs that run and are mostly not meant: a channel sees only a part of a group.

Such parts may be meant: sums of each channel that are added up further on, or by a table that folds
them. So the program's log warns, and the graph is not refused. The same holds for matches, and for
parts that one batch sees.

The judgement goes by how rows that enter a region are shared out, by the names of columns. An
operator between the border and the judged one may rename columns: then a warning may be wrong or
missing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from spark_upsert.flow.graph import Edge, Graph, OperatorKind, PlacedOperator, Region
from spark_upsert.plan.nodes import Join, scans_of
from spark_upsert.task import Group, How, Node

_LOGGER = logging.getLogger(__name__)


def advise(graph: Graph, *, is_stream: bool = False) -> None:
    """Warn the program's log of groups and matches that may be shown in parts."""
    for each in advice(graph, is_stream=is_stream):
        _LOGGER.warning("flow: %s", each)


def advice(graph: Graph, *, is_stream: bool = False) -> Iterator[str]:
    """Yield what may not be meant, with the name of the operator that it is about.

    Parameters
    ----------
    is_stream : bool
        Whether the graph runs over what comes, batch by batch.
    """
    for place in graph.places.values():
        work = place.operator.work
        nodes = list(work.walk()) if isinstance(work, Node) else []
        groups = next((node for node in nodes if isinstance(node, Group)), None)
        if groups is not None:
            yield from _of_groups(graph, place, groups.keys, is_stream)
        for join in (node for node in nodes if isinstance(node, Join)):
            yield from _of_join(graph, place, join, is_stream)


def _of_groups(
    graph: Graph, place: PlacedOperator, keys: tuple[str, ...], is_stream: bool
) -> Iterator[str]:
    for region in _wide(place):
        if not _reaching(graph, region, place, place.operator.inputs).keeps_groups(keys):
            yield (
                f"'{place.name}' groups by {', '.join(keys) or 'nothing'} in each channel of "
                f"'{region.name}', which shares rows out by other columns or in turn: a group "
                "comes out once for each channel that has rows of it. If that is not meant, "
                f"partition '{region.name}' by some of these columns."
            )
    if is_stream:
        yield (
            f"'{place.name}' groups the rows of each micro-batch: a group comes out once for "
            "each that has rows of it. A table that takes it adds up if its merge engine does "
            "(aggregation); for totals kept up to date see views."
        )


def _of_join(graph: Graph, place: PlacedOperator, join: Join, is_stream: bool) -> Iterator[str]:
    sides = [
        tuple(scan.id for scan in scans_of(side) if scan.id in place.operator.inputs)
        for side in (join.left, join.right)
    ]
    for region in _wide(place):
        left, right = (_reaching(graph, region, place, ports) for ports in sides)
        if not _keeps_matches(join, left, right):
            yield (
                f"'{place.name}' joins in each channel of '{region.name}', which shares out the "
                f"left rows {left}, the right ones {right}: rows that match may come to different "
                "channels, or what matches in each. If that is not meant, partition "
                f"'{region.name}' at both ports by columns of the keys "
                f"({', '.join(join.left_keys)}; {', '.join(join.right_keys)}), or broadcast the "
                "side of which all rows are needed."
            )
    if is_stream and all(sides):
        yield (
            f"'{place.name}' joins the rows of each micro-batch: rows that match and come in "
            "different ones do not find each other. For joins kept up to date see views."
        )


def _wide(place: PlacedOperator) -> Iterator[Region]:
    return (region for region in place.regions if region.parallel.width > 1)


# -- how rows come to a channel --------------------------------------------------------------


class _Way(Enum):
    BY_HASH = "by hash"
    TO_ALL = "to all"
    IN_TURN = "in turn"


@dataclass(frozen=True, slots=True)
class _Shared:
    """The ways in which rows that come to some ports are shared out among a region's channels."""

    ways: frozenset[tuple[_Way, tuple[str, ...]]]
    """Ways, each with the columns of a hash; empty: each channel has the same rows of its own."""

    def keeps_groups(self, keys: tuple[str, ...]) -> bool:
        """Return whether rows that are alike in some columns come to one channel, and to no other.

        Rows that all channels have are looked up by the others, or else they are alone.
        """
        hashes = [columns for way, columns in self.ways if way is _Way.BY_HASH]
        return (
            bool(hashes)
            and not self._has(_Way.IN_TURN)
            and all(set(columns) <= set(keys) for columns in hashes)
        )

    def shared_by(self, keys: tuple[str, ...]) -> tuple[int, ...] | None:
        """Return by which of the keys all rows are shared out; None if by anything else, too."""
        found = {
            tuple(map(keys.index, by)) if way is _Way.BY_HASH and set(by) <= set(keys) else None
            for way, by in self.ways
        }
        return found.pop() if len(found) == 1 else None

    @property
    def is_in_all(self) -> bool:
        """Return whether each channel has all of them."""
        return all(way is _Way.TO_ALL for way, _ in self.ways)

    def _has(self, way: _Way) -> bool:
        return any(each is way for each, _ in self.ways)

    def __str__(self) -> str:
        said = (f"{way.value} of {', '.join(by)}" if by else way.value for way, by in self.ways)
        return " and ".join(sorted(said)) or "not at all"


def _keeps_matches(join: Join, left: _Shared, right: _Shared) -> bool:
    """Return whether each pair that matches meets once, and each row that matches none is seen so.

    What all channels have must not be given by each of them.
    """
    if left.is_in_all and right.is_in_all:
        return False
    if right.is_in_all:
        return join.how in (How.INNER, How.LEFT, How.SEMI, How.ANTI)
    if left.is_in_all:
        # A left row is given where its partners are, all of them in one channel.
        is_once = join.how is How.SEMI and right.shared_by(join.right_keys) is not None
        return is_once or join.how in (How.INNER, How.RIGHT)
    by = left.shared_by(join.left_keys)
    return by is not None and by == right.shared_by(join.right_keys)


def _reaching(
    graph: Graph, region: Region, place: PlacedOperator, ports: tuple[str, ...]
) -> _Shared:
    """Return how rows enter a region that come to some ports of an operator within."""
    found: set[tuple[_Way, tuple[str, ...]]] = set()
    seen: set[str] = set()
    following = [each for each in _fed(graph, place.name) if each.port in ports]
    while following:
        stream = following.pop()
        producer = graph.places[stream.producer]
        if region not in producer.regions:
            found.add(_way(region, stream))
        elif producer.operator.kind is OperatorKind.SOURCE:
            # Its replicas share its parts out.
            found.add((_Way.IN_TURN, ()))
        elif producer.name not in seen:
            seen.add(producer.name)
            following += _fed(graph, producer.name)
    return _Shared(frozenset(found))


def _fed(graph: Graph, name: str) -> list[Edge]:
    return [each for each in graph.streams if each.consumer == name]


def _way(region: Region, stream: Edge) -> tuple[_Way, tuple[str, ...]]:
    port = region.port(stream.consumer, stream.port)
    by = {each.port: each.attributes for each in region.parallel.partition_by}
    if port in by:
        return _Way.BY_HASH, by[port]
    return _Way.TO_ALL if port in region.parallel.broadcast else _Way.IN_TURN, ()
