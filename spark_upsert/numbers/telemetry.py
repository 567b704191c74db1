"""Totals as OpenTelemetry has them: instruments that are observed when a reader asks.

Needs ``opentelemetry-api``: ``pip install upsertflow[opentelemetry]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter_provider

from spark_upsert._version import __version__
from spark_upsert.numbers.totals import METRICS, Totals

_METER = "upsertflow"


def observe(totals: Totals, provider: MeterProvider | None = None) -> None:
    """Make an instrument for each metric, such as ``upsertflow.lag_seconds``.

    Parameters
    ----------
    totals : Totals
    provider : opentelemetry.metrics.MeterProvider, optional
        By default the one of the program.
    """
    meter = (provider or get_meter_provider()).get_meter(_METER, __version__)
    for metric in METRICS.values():
        is_counter = metric.kind == "counter"
        make = meter.create_observable_counter if is_counter else meter.create_observable_gauge
        callback: Callable[[CallbackOptions], Iterable[Observation]]
        callback = partial(_observations, totals, metric.name)
        make(f"{_METER}.{metric.name}", [callback], unit=metric.unit, description=metric.text)


def _observations(totals: Totals, name: str, _: CallbackOptions) -> Iterable[Observation]:
    told = (sample for sample in totals.samples() if sample.metric.name == name)
    return [Observation(sample.value, dict(sample.labels)) for sample in told]
