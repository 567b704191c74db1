"""Retention: how long the past stays readable, which consumers hold it, and what is removed.

Leases name the consumers that still read, a policy chooses a frontier, and a worker commits it and
removes files.
"""

from spark_upsert.table.retention.backlog import BacklogCounter, ConsumerLag, slowest
from spark_upsert.table.retention.leases import (
    Lease,
    hold,
    keep_held,
    leases,
    readable_leases,
    release,
)
from spark_upsert.table.retention.policy import (
    GRACE_MS,
    LEASE_MS,
    SAFETY_MS,
    WRITERS_MS,
    RetentionBound,
)
from spark_upsert.table.retention.pressure import (
    PressureGauge,
    PressureReport,
    report,
    reports,
    withdraw,
)
from spark_upsert.table.retention.worker import Expiry, Vacuumed, expire, vacuum

__all__ = [
    "GRACE_MS",
    "LEASE_MS",
    "SAFETY_MS",
    "WRITERS_MS",
    "BacklogCounter",
    "ConsumerLag",
    "Expiry",
    "Lease",
    "PressureGauge",
    "PressureReport",
    "RetentionBound",
    "Vacuumed",
    "expire",
    "hold",
    "keep_held",
    "leases",
    "readable_leases",
    "release",
    "report",
    "reports",
    "slowest",
    "vacuum",
    "withdraw",
]
