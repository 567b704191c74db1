"""Scheduling: which input is served next, and what gives way under pressure.

>>> from spark_upsert.schedule import Schedule

The names below are the public ones of the scheduler; `governor` is the other half. Nothing here
knows a table or Spark, and times are handed in, in milliseconds.
"""

from spark_upsert.schedule.bands import BANDS, Band
from spark_upsert.schedule.dirty import DirtySet
from spark_upsert.schedule.priority import (
    PRIORITY_MAX,
    PRIORITY_MIN,
    Urgency,
    parse_priority,
    priority_of,
)
from spark_upsert.schedule.scheduler import Schedule, Service, Turn

__all__ = [
    "BANDS",
    "PRIORITY_MAX",
    "PRIORITY_MIN",
    "Band",
    "DirtySet",
    "Schedule",
    "Service",
    "Turn",
    "Urgency",
    "parse_priority",
    "priority_of",
]
