"""Retention: how long the past stays readable, who is waited for, and what is then removed.

Leases say who still reads, a policy chooses a frontier, a worker commits it and removes.
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
