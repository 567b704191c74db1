"""Merges: several streams of Arrow batches become one, in an exact order or as they are ready.

It depends on no table and not on Spark (docs/adr/0024). `merge` is the entry function.
"""

from spark_upsert.core.input_order import (
    Concat,
    Order,
    RoundRobin,
    Seeded,
    advance,
    iter_picks,
    order_from_json,
    spend,
)
from spark_upsert.core.threads import HAND_OFF_ROWS
from spark_upsert.merge.merged import (
    DocumentClose,
    DocumentOpen,
    arrange,
    concat,
    live,
    merge,
    streamed,
)
from spark_upsert.merge.readers import (
    CHANNEL_EVENTS,
    OUTPUT_EVENTS,
    WIDTH,
    Delivery,
    InputCounters,
    MergeConfig,
    MergeCounters,
    Mode,
)
from spark_upsert.merge.spill import MemoryPressure, Relief

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
