"""Several streams of Arrow batches become one: in an exact order, or as they are ready.

>>> from spark_upsert.merge import merge

The names below are the public ones. Nothing here knows a table, and nothing knows Spark.
"""

from spark_upsert.merge.assembly import arrange
from spark_upsert.merge.channel import CHANNEL_EVENTS, OUTPUT_EVENTS
from spark_upsert.merge.config import MergeConfig, Mode
from spark_upsert.merge.counters import InputCounters, MergeCounters
from spark_upsert.merge.documents import DocumentClose, DocumentOpen
from spark_upsert.merge.merged import merge
from spark_upsert.merge.pressure import MemoryPressure, Relief
from spark_upsert.merge.readers import WIDTH, Delivery
from spark_upsert.merge.threaded import concat, live, streamed
from spark_upsert.model.orders import (
    Concat,
    Order,
    RoundRobin,
    Seeded,
    advance,
    iter_picks,
    order_from_json,
    spend,
)
from spark_upsert.model.portions import HAND_OFF_ROWS

__all__ = [
    "CHANNEL_EVENTS",
    "HAND_OFF_ROWS",
    "OUTPUT_EVENTS",
    "WIDTH",
    "Concat",
    "Delivery",
    "DocumentClose",
    "DocumentOpen",
    "InputCounters",
    "MemoryPressure",
    "MergeConfig",
    "MergeCounters",
    "Mode",
    "Order",
    "Relief",
    "RoundRobin",
    "Seeded",
    "advance",
    "arrange",
    "concat",
    "iter_picks",
    "live",
    "merge",
    "order_from_json",
    "spend",
    "streamed",
]
