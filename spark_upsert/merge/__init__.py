"""Several streams of Arrow batches become one: in an exact order, or as they are ready."""

from spark_upsert.merge.arrange import HAND_OFF_ROWS, arrange
from spark_upsert.merge.config import MergeConfig, Mode
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

__all__ = [
    "HAND_OFF_ROWS",
    "Concat",
    "MergeConfig",
    "Mode",
    "Order",
    "RoundRobin",
    "Seeded",
    "advance",
    "arrange",
    "iter_picks",
    "order_from_json",
    "spend",
]
