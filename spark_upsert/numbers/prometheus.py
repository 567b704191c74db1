"""Totals as Prometheus has them: a collector for any registry, and the text of its own.

Needs ``prometheus_client``: ``pip install upsertflow[prometheus]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from spark_upsert.numbers.totals import METRICS, Metric, Totals

_PREFIX = "upsertflow_"

_Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily


class TotalsCollector:
    """Tells a registry of Prometheus the totals of the moment at which it asks.

    Parameters
    ----------
    totals : Totals
    """

    def __init__(self, totals: Totals) -> None:
        self._totals = totals

    def describe(self) -> Iterator[_Family]:
        """Yield the metrics without values, so that a registry need not ask for these."""
        yield from (_family(metric, ()) for metric in METRICS.values())

    def collect(self) -> Iterator[_Family]:
        """Yield the metrics that have values."""
        for metric, samples in groupby(self._totals.samples(), lambda each: each.metric):
            told = list(samples)
            family = _family(metric, tuple(name for name, _ in told[0].labels))
            for sample in told:
                family.add_metric([value for _, value in sample.labels], sample.value)
            yield family


def _family(metric: Metric, labels: tuple[str, ...]) -> _Family:
    made = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return made(_PREFIX + metric.name, metric.text, labels=labels)


def text_of(totals: Totals) -> str:
    """Return the totals in the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(TotalsCollector(totals))
    return generate_latest(registry).decode()
