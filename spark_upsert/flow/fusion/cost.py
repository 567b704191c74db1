"""Costs as far as they are known, and how much goes where.

The figures of `Costs` are measured, not guessed: ``python -m benchmarks.fusion --fit`` writes
``costs.json``. What a plan costs is told by `models`.

**Rows** follow from the estimates (`estimates.Estimate`): sources give theirs, operators their
selectivity of what they take. A splitter gives each of N channels 1/N; by hash the first
channel gets ``skew / N``. Of a broadcast all channels get everything.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Self

from spark_upsert.flow.estimates import Estimate
from spark_upsert.flow.expansion import Connection, Physical, Splitter, SplitterKind

# -- what things cost ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOff:
    """The cost of moving rows from one element to another, in seconds of a processor."""

    batch_s: float
    row_s: float
    byte_s: float

    def cost(self, rows: float, row_bytes: float, *, batch_rows: int) -> float:
        """Return what some rows cost."""
        batches = -(-rows // batch_rows)
        return batches * self.batch_s + rows * (self.row_s + row_bytes * self.byte_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs of elements and hand-offs where a plan runs."""

    element_s: float
    """An element, whatever it does."""
    stage_s: float
    """A stage, whatever runs in it."""
    straight: HandOff
    exchange: HandOff
    batch_rows: int
    is_staged: bool
    """Whether a stage waits for the one before it."""

    @classmethod
    def of(cls, place: str) -> Self:
        """Return the measured costs of a place, ``"spark"`` or ``"local"``."""
        return cls.from_json(_measured()[place])

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return costs from what `dataclasses.asdict` gave."""
        hand_offs = {name: HandOff(**values[name]) for name in ("straight", "exchange")}
        return cls(**{**values, **hand_offs})


@cache
def _measured() -> dict[str, Any]:
    text = resources.files("spark_upsert.flow").joinpath("costs.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


# -- what flows ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Traffic:
    """How much goes where, by names of replicas."""

    work_s: dict[str, float]
    """Processor time of each replica."""
    given: dict[str, float]
    """Rows that each replica gives, before splitters share them out."""
    given_bytes: dict[str, float]
    """The bytes of one of them."""
    rows: dict[Connection, float]

    def bytes_of(self, connection: Connection) -> float:
        """Return the bytes of a row that takes a connection."""
        return self.given_bytes[connection.producer]


def traffic_of(physical: Physical, estimates: Mapping[str, Estimate] | None = None) -> Traffic:
    """Return how much goes where.

    Parameters
    ----------
    estimates : mapping of str to Estimate, optional
        By the full names of operators; they go before those that the operators have.
    """
    given_estimates = estimates or {}
    shares = dict(_shares(physical, given_estimates))
    outputs: dict[str, list[Connection]] = defaultdict(list)
    awaited = dict.fromkeys(physical.replica, 0)
    for each in physical.connections:
        outputs[each.producer].append(each)
        awaited[each.consumer] += 1
    ready = [name for name, count in awaited.items() if not count]
    taken = dict.fromkeys(physical.replica, 0.0)
    traffic = Traffic({}, {}, {}, {})
    while ready:
        replica = physical.replica[ready.pop()]
        estimate = _estimate(replica.logical, physical, given_estimates)
        given = taken[replica.name] * estimate.selectivity
        if not replica.operator.inputs:
            rows = estimate.rows_of(replica.operator.work)
            given = taken[replica.name] = rows / max(1, replica.channel.count)
        traffic.work_s[replica.name] = taken[replica.name] * estimate.row_s
        traffic.given[replica.name] = given
        traffic.given_bytes[replica.name] = estimate.bytes_of(replica.operator.schema)
        for each in outputs[replica.name]:
            traffic.rows[each] = given * shares.get(each, 1.0)
            taken[each.consumer] += traffic.rows[each]
            awaited[each.consumer] -= 1
            if not awaited[each.consumer]:
                ready.append(each.consumer)
    return traffic


def _estimate(name: str, physical: Physical, given: Mapping[str, Estimate]) -> Estimate:
    return given.get(name) or physical.graph.places[name].operator.estimate


def _shares(
    physical: Physical, estimates: Mapping[str, Estimate]
) -> Iterator[tuple[Connection, float]]:
    """Yield what part of its producer's rows each connection behind a splitter carries."""
    for splitter in physical.splitters:
        skew = _estimate(splitter.consumer, physical, estimates).skew
        for name, share in _shares_of(splitter, 1.0, skew):
            yield Connection(splitter.owner, name, splitter.port, True), share


def _shares_of(splitter: Splitter, rows: float, skew: float) -> Iterator[tuple[str, float]]:
    """Yield what each replica gets of the rows that come to a splitter."""
    targets: tuple[str | Splitter, ...] = splitter.targets
    for target, share in zip(targets, _split(splitter, skew), strict=True):
        if isinstance(target, Splitter):
            yield from _shares_of(target, rows * share, skew)
        else:
            yield target, rows * share


def _split(splitter: Splitter, skew: float) -> list[float]:
    width = splitter.width
    if splitter.kind is SplitterKind.BROADCAST:
        return [1.0] * width
    if splitter.kind is SplitterKind.ROUND_ROBIN or width == 1:
        return [1.0 / width] * width
    busiest = min(1.0, skew / width)
    return [busiest, *[(1.0 - busiest) / (width - 1)] * (width - 1)]
