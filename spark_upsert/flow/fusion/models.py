"""The cost of a plan: processor time, and how long it takes on so many processors.

An element is one thread of work; its **load** is

    element_s + sum over its operators of (rows in) * row_s + its part of the hand-offs

Within an element rows are handed over for nothing. What is the same in all plans is left out: to
read, to write, and to compute the channels of rows.

*Threads* (`Threads`) run all at once, with queues between them. A hand-off is shared by both ends:

    elapsed = max(greatest load, sum of loads / slots)

*Spark* (`Passes`) runs elements in passes (`pass_plan`). A pass costs ``straight`` for what comes
in, one half, and for what goes out, the other half; before most there is an ``exchange``, behind
which a new stage begins that waits for the whole one before it:

    elapsed = sum over stages of (stage_s + max(greatest load, sum of loads / slots))

Sources and sinks are Spark's own: what a source gives comes in, in whatever element it is.
Plans are compared by `Prediction.cost`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from spark_upsert.flow.estimates import Estimate
from spark_upsert.flow.expansion import Physical
from spark_upsert.flow.fusion.cost import Costs, Traffic, traffic_of
from spark_upsert.flow.fusion.partitions import Partition
from spark_upsert.flow.fusion.pass_plan import SPARK, PassPlan, RowTransfer, wiring_of
from spark_upsert.flow.graph import OperatorKind

Names: TypeAlias = Sequence[Sequence[str]]
"""The replicas of each unit."""


THRIFT = 0.5
"""The weight of processor time, shared out over all slots, beside elapsed time.

Workers that are chained in one task work at the same time, so that a chain that is cut in two is a
little faster on idle processors, at twice their time. Few are idle for long.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The predicted cost of a plan."""

    elapsed_s: float
    processor_s: float
    """The time of all processors together."""
    stage_count: int
    slots: int

    @property
    def cost(self) -> float:
        """The figure by which plans are compared: ``elapsed_s + THRIFT * processor_s / slots``."""
        cost = self.elapsed_s + THRIFT * self.processor_s / self.slots
        # The same loads in another order sum up to another last bit, which must decide nothing.
        return float(f"{cost:.9g}")

    def __str__(self) -> str:
        stages = "1 stage" if self.stage_count == 1 else f"{self.stage_count} stages"
        return f"{self.elapsed_s:.3g} s, {self.processor_s:.3g} s of processors, {stages}"


Model: TypeAlias = "Threads | Passes"


def model_of(
    physical: Physical,
    units: Names,
    *,
    costs: Costs,
    slots: int,
    estimates: Mapping[str, Estimate] | None = None,
) -> Model:
    """Return what tells the cost of partitions of some units, where the costs are from."""
    kind = Passes if costs.is_staged else Threads
    return kind(physical, units, traffic_of(physical, estimates), costs, slots)


# -- threads ---------------------------------------------------------------------------------


class Threads:
    """All elements run at once."""

    def __init__(
        self, physical: Physical, units: Names, traffic: Traffic, costs: Costs, slots: int
    ) -> None:
        self._element_s = costs.element_s
        self._slots = slots
        self._work = [sum(traffic.work_s[name] for name in names) for names in units]
        of = {name: unit for unit, names in enumerate(units) for name in names}
        self._handed = [
            (
                of[each.producer],
                of[each.consumer],
                _cost(traffic.rows[each], traffic.bytes_of(each), costs)[each.is_split],
            )
            for each in physical.connections
            if of[each.producer] != of[each.consumer]
        ]

    def predict(self, partition: Partition, order: Sequence[int]) -> Prediction:
        """Return what an allowed partition costs, its elements in an order in which rows flow."""
        loads = [self._element_s] * len(order)
        for element, work in zip(partition, self._work, strict=True):
            loads[element] += work
        for producer, consumer, cost in self._handed:
            if partition[producer] != partition[consumer]:
                loads[partition[producer]] += cost / 2
                loads[partition[consumer]] += cost / 2
        total = sum(loads)
        elapsed = max(max(loads), total / self._slots)
        return Prediction(elapsed_s=elapsed, processor_s=total, stage_count=1, slots=self._slots)


def _cost(rows: float, row_bytes: float, costs: Costs) -> tuple[float, float]:
    """Return what it costs to hand rows over: straight, and by an exchange."""
    return (
        costs.straight.cost(rows, row_bytes, batch_rows=costs.batch_rows),
        costs.exchange.cost(rows, row_bytes, batch_rows=costs.batch_rows),
    )


# -- passes of Spark -------------------------------------------------------------------------


class Passes:
    """Elements run pass by pass, those of a stage at once."""

    def __init__(
        self, physical: Physical, units: Names, traffic: Traffic, costs: Costs, slots: int
    ) -> None:
        self._costs = costs
        self._slots = slots
        self._wiring = wiring_of(physical)
        of = {name: unit for unit, names in enumerate(units) for name in names}
        self._unit = [of[name] for name in physical.replica]
        self._work = [
            traffic.work_s[each.name] if each.operator.kind is OperatorKind.OPERATOR else 0.0
            for each in physical.replicas
        ]
        self._hand_offs = [
            *(
                _cost(traffic.rows[each], traffic.bytes_of(each), costs)
                for each in physical.connections
            ),
            *(_cost(traffic.given[n], traffic.given_bytes[n], costs) for n in physical.replica),
        ]
        """The cost of each connection, then of all that each replica gives."""

    def predict(self, partition: Partition, order: Sequence[int]) -> Prediction:
        """Return what an allowed partition costs, its elements in an order in which rows flow."""
        element = [partition[unit] for unit in self._unit]
        plan = PassPlan(self._wiring, element, order)
        loads = [self._costs.element_s if runs else 0.0 for runs in plan.runs]
        for at, work in zip(element, self._work, strict=True):
            loads[at] += work
        spread = self._handed_over(plan, loads)
        return self._summed(plan, loads, spread)

    def _handed_over(self, plan: PassPlan, loads: list[float]) -> list[float]:
        """Add what hand-offs cost to the loads; return what each pass shares out among its tasks.

        What a pass takes in and what it gives cost one half each.
        """
        spread = [0.0] * len(plan.ways)
        for each in plan.iter_under_way():
            straight, exchange = self._hand_offs[each.flow]
            if each.producer != SPARK:
                loads[each.producer] += straight / 2
            if each.consumer != SPARK:
                loads[each.consumer] += straight / 2
            for level in range(each.first, min(each.last + 1, len(plan.ways))):
                if plan.ways[level] is RowTransfer.EXCHANGED:
                    spread[level] += exchange
                if level < each.last:
                    spread[level] += straight
        return spread

    def _summed(self, plan: PassPlan, loads: list[float], spread: list[float]) -> Prediction:
        total, greatest = [0.0], [0.0]
        for level, way in enumerate(plan.ways):
            if way is RowTransfer.EXCHANGED:
                total.append(0.0)
                greatest.append(0.0)
            here = [loads[element] for element in plan.elements_at(level)]
            total[-1] += spread[level] + sum(here)
            if way is not RowTransfer.IN_PLACE:
                greatest[-1] = max(greatest[-1], spread[level] / len(here) + max(here))
        took = (max(g, t / self._slots) for g, t in zip(greatest, total, strict=True))
        fixed = self._costs.stage_s * (len(total) - 1)
        return Prediction(
            elapsed_s=fixed + sum(took),
            processor_s=fixed + sum(total),
            stage_count=len(total),
            slots=self._slots,
        )
