"""What a plan costs: processor time, and how long it takes on so many processors.

A processing element is one thread of work, on Spark a Python worker. Its **load** is

    element_s + sum over its operators of (rows in) * row_s + half of each hand-off it has part in

A **hand-off** moves rows from one element to another; within an element rows are handed over for
nothing. It costs ``batch_s``, ``row_s`` and ``byte_s`` for each batch, row and byte. On Spark it is
*straight* where a channel goes on in the same channel, in the same task, and an *exchange*
elsewhere. Behind an exchange a new stage begins, which waits for the whole one before it. So

    elapsed = sum over stages of (stage_s + max(greatest load, sum of loads / slots))

Where elements of all stages run at once (threads with queues between them) there is but one stage.
What is the same in all plans is left out: to compute the channel of a row, to read and to write.

**Rows** follow from the estimates (`estimates.Estimate`): sources give theirs, operators their
selectivity of what they take. A splitter gives each of N channels 1/N; by hash the first
channel gets ``skew / N``. Of a broadcast all channels get everything.

The figures are measured, not guessed: ``python -m benchmarks.fusion --fit`` writes ``costs.json``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Self

from spark_upsert.flow.estimates import Estimate
from spark_upsert.flow.expansion import Connection, Physical, Splitter, SplitterKind
from spark_upsert.flow.partitions import Cost, Partition

# -- what things cost ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOff:
    """What it costs to move rows from one element to another, in seconds of a processor."""

    batch_s: float
    row_s: float
    byte_s: float

    def cost(self, rows: float, row_bytes: float, *, batch_rows: int) -> float:
        """Return what some rows cost."""
        batches = -(-rows // batch_rows)
        return batches * self.batch_s + rows * (self.row_s + row_bytes * self.byte_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What elements and hand-offs cost where a plan runs."""

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
class Flow:
    """How much goes where, by names of replicas."""

    work_s: dict[str, float]
    """Processor time of each replica."""
    rows: dict[Connection, float]
    row_bytes: dict[Connection, float]


def flow_of(physical: Physical, estimates: Mapping[str, Estimate] | None = None) -> Flow:
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
    flow = Flow({}, {}, {})
    while ready:
        replica = physical.replica[ready.pop()]
        estimate = _estimate(replica.logical, physical, given_estimates)
        given = taken[replica.name] * estimate.selectivity
        if not replica.operator.inputs:
            given = taken[replica.name] = estimate.rows / max(1, replica.channel.count)
        flow.work_s[replica.name] = taken[replica.name] * estimate.row_s
        for each in outputs[replica.name]:
            flow.rows[each] = given * shares.get(each, 1.0)
            flow.row_bytes[each] = estimate.bytes_of(replica.operator.schema)
            taken[each.consumer] += flow.rows[each]
            awaited[each.consumer] -= 1
            if not awaited[each.consumer]:
                ready.append(each.consumer)
    return flow


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


# -- what a plan costs -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a plan is taken to cost."""

    elapsed_s: float
    processor_s: float
    """Of all processors together."""
    stage_count: int

    def __str__(self) -> str:
        stages = "1 stage" if self.stage_count == 1 else f"{self.stage_count} stages"
        return f"{self.elapsed_s:.3g} s, {self.processor_s:.3g} s of processors, {stages}"


@dataclass(frozen=True, slots=True)
class _Moved:
    """What goes from one unit to another."""

    producer: int
    consumer: int
    cost_s: float
    is_exchange: bool


class Model:
    """Tells what partitions of some units cost; units are lists of names of replicas."""

    def __init__(
        self,
        physical: Physical,
        units: Sequence[Sequence[str]],
        *,
        costs: Costs,
        slots: int,
        estimates: Mapping[str, Estimate] | None = None,
    ) -> None:
        flow = flow_of(physical, estimates or {})
        self._costs = costs
        self._slots = slots
        self._work = [sum(flow.work_s[name] for name in names) for names in units]
        self._moved = _moved(physical, units, flow, costs)

    def cost_of(self, partition: Partition, order: Sequence[int]) -> Cost:
        """Return elapsed and processor time of an allowed partition; see `partitions.CostOf`."""
        found = self.predict(partition, order)
        # The same loads in another order sum up to another last bit, which must decide nothing.
        return _rounded(found.elapsed_s), _rounded(found.processor_s)

    def predict(self, partition: Partition, order: Sequence[int]) -> Prediction:
        """Return what a partition costs, from its elements in an order in which rows flow."""
        loads = [self._costs.element_s] * len(order)
        for element, work in zip(partition, self._work, strict=True):
            loads[element] += work
        inputs: list[dict[int, bool]] = [{} for _ in order]
        for each in self._moved:
            producer, consumer = partition[each.producer], partition[each.consumer]
            if producer != consumer:
                loads[producer] += each.cost_s / 2
                loads[consumer] += each.cost_s / 2
                known = inputs[consumer].get(producer, False)
                inputs[consumer][producer] = known or each.is_exchange
        stages = self._stages(order, inputs)
        return self._summed(loads, stages)

    def _stages(self, order: Sequence[int], inputs: list[dict[int, bool]]) -> list[int]:
        """Return the stage of each element: how many exchanges lie before it at most."""
        stages = [0] * len(order)
        if self._costs.is_staged:
            for element in order:
                before = inputs[element].items()
                stages[element] = max((stages[p] + new for p, new in before), default=0)
        return stages

    def _summed(self, loads: list[float], stages: list[int]) -> Prediction:
        count = max(stages) + 1
        total, greatest = [0.0] * count, [0.0] * count
        for load, stage in zip(loads, stages, strict=True):
            total[stage] += load
            greatest[stage] = max(greatest[stage], load)
        took = (max(g, t / self._slots) for g, t in zip(greatest, total, strict=True))
        fixed = count * self._costs.stage_s
        return Prediction(
            elapsed_s=fixed + sum(took), processor_s=fixed + sum(total), stage_count=count
        )


def _rounded(value: float) -> float:
    return float(f"{value:.9g}")


def _moved(
    physical: Physical, units: Sequence[Sequence[str]], flow: Flow, costs: Costs
) -> list[_Moved]:
    unit_of = {name: unit for unit, names in enumerate(units) for name in names}
    found: dict[tuple[int, int, bool], float] = defaultdict(float)
    for each, rows in flow.rows.items():
        pair = unit_of[each.producer], unit_of[each.consumer]
        if pair[0] != pair[1]:
            is_exchange = not is_straight(physical, each)
            hand_off = costs.exchange if is_exchange else costs.straight
            found[(*pair, is_exchange)] += hand_off.cost(
                rows, flow.row_bytes[each], batch_rows=costs.batch_rows
            )
    return [
        _Moved(producer, consumer, cost, is_exchange)
        for (producer, consumer, is_exchange), cost in found.items()
    ]


def is_straight(physical: Physical, connection: Connection) -> bool:
    """Say whether rows stay in the channels that they are in, or outside of all."""
    producer, consumer = (
        physical.replica[connection.producer],
        physical.replica[connection.consumer],
    )
    return (producer.regions, producer.channel) == (consumer.regions, consumer.channel)
