"""Several streams of Arrow batches become one: in an exact order, or as they are ready."""

from spark_upsert.merge.arrange import HAND_OFF_ROWS, arrange
from spark_upsert.merge.channel import CHANNEL_EVENTS, OUTPUT_EVENTS
from spark_upsert.merge.config import MergeConfig, Mode
from spark_upsert.merge.counters import Counters, InputCounters
from spark_upsert.merge.live import concat, live, streamed
from spark_upsert.merge.orders import (
    Concat,
    Order,
    RoundRobin,
    Seeded,
    advance,
    iter_picks,
    order_from_json,
    spend,
)
from spark_upsert.merge.readers import WIDTH, Handed

__all__ = [
    "CHANNEL_EVENTS",
    "HAND_OFF_ROWS",
    "OUTPUT_EVENTS",
    "WIDTH",
    "Concat",
    "Counters",
    "Handed",
    "InputCounters",
    "MergeConfig",
    "Mode",
    "Order",
    "RoundRobin",
    "Seeded",
    "advance",
    "arrange",
    "concat",
    "iter_picks",
    "live",
    "order_from_json",
    "spend",
    "streamed",
]
