"""Aggregates for view groups (`spark_upsert.plan.agg`)."""

from __future__ import annotations

from spark_upsert.plan.agg import __getattr__, avg, count, max, min, sum

__all__ = ["__getattr__", "avg", "count", "max", "min", "sum"]
