"""Leases: the version from which each consumer still needs the table.

A lease lapses unless it is renewed. An unreadable lease stops an expiry, and `hold` checks after
its put that no expiry was faster.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from spark_upsert.core.python_values import whole_argument
from spark_upsert.errors import CorruptionError, DataLossError, OptionError, VersionNotFoundError
from spark_upsert.store import Store
from spark_upsert.store.records import (
    FORMAT_VERSION,
    UNREADABLE,
    checked_record,
    read_record,
    text,
    whole,
)
from spark_upsert.table.log.codec import TIME_MS_MAX
from spark_upsert.table.log.log import Log

_LOGGER = logging.getLogger(__name__)

FOLDER = "_consumers"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A consumer's claim to the state at ``version`` and all later changes."""

    consumer: str
    version: int
    renewed_ms: int
    """Renewal time, in ms since 1970, by the consumer's clock."""
    ttl_ms: int

    def __post_init__(self) -> None:
        require_name(self.consumer)
        for name, least in (("version", 0), ("renewed_ms", 0), ("ttl_ms", 1)):
            number = whole_argument(name, getattr(self, name), least=least)
            object.__setattr__(self, name, number)

    @property
    def lapses_ms(self) -> int:
        """Expiration time without a renewal, in ms since 1970."""
        return self.renewed_ms + self.ttl_ms

    def is_live(self, now_ms: int) -> bool:
        """Return whether an expiry must respect it."""
        return now_ms < self.lapses_ms

    def to_json(self) -> dict[str, Any]:
        """Return the stored form."""
        return {
            "format": FORMAT_VERSION,
            "consumer": self.consumer,
            "version": self.version,
            "renewed_ms": self.renewed_ms,
            "ttl_ms": self.ttl_ms,
        }


def require_name(consumer: str) -> str:
    """Return a consumer's name; raise unless it is a portable file name."""
    if type(consumer) is not str or _NAME.fullmatch(consumer) is None:
        raise OptionError.invalid(
            "consumerId",
            consumer,
            "up to 100 letters, digits, '.', '_' and '-', a letter or digit first",
        )
    return consumer


def lease_path(consumer: str) -> str:
    """Return the path for a consumer's lease."""
    return f"{FOLDER}/{require_name(consumer)}.json"


def hold(store: Store, log: Log, lease: Lease) -> None:
    """Take or renew a lease durably."""
    _require_readable(log, lease)
    path = lease_path(lease.consumer)
    checked_record(path, lease, lease.to_json(), partial(lease_in, path)).put(store)
    _require_held(store, log, lease)


def keep_held(store: Store, log: Log, lease: Lease) -> None:
    """Hold a lease (`hold`), without a write if the stored one has the version and enough time."""
    try:
        standing = _read(store, lease_path(lease.consumer))
    except UNREADABLE:
        standing = None
    if (
        standing is None
        or standing.version != lease.version
        or standing.lapses_ms < lease.renewed_ms + lease.ttl_ms // 2
    ):
        hold(store, log, lease)
        return
    # Its writer may have been killed before it was durable.
    store.sync(lease_path(lease.consumer))
    _require_held(store, log, lease)


def _require_held(store: Store, log: Log, lease: Lease) -> None:
    """Check that no expiry was faster than a lease; release the lease and raise otherwise."""
    try:
        _require_readable(log, lease)
    except DataLossError:
        release(store, lease.consumer)
        raise


def _require_readable(log: Log, lease: Lease) -> None:
    head = log.head()
    if lease.version > head.version:
        raise VersionNotFoundError.future(
            f"for the lease of '{lease.consumer}', version",
            lease.version,
            since=head.since,
            newest=head.version,
        )
    if lease.version < head.since:
        raise DataLossError.changes_expired(
            f"what follows version {lease.version}, for the consumer '{lease.consumer}',",
            lower=lease.version + 1,
            since=head.since,
            newest=head.version,
        )


def release(store: Store, consumer: str) -> bool:
    """Remove a consumer's lease, readable or not; return whether it existed."""
    path = lease_path(consumer)
    has_lease = any(info.path == path for info in store.list(FOLDER))
    store.delete(path)
    return has_lease


def leases(store: Store) -> list[Lease]:
    """Return all leases, including lapsed ones, sorted by consumer."""
    all_leases = (_read(store, info.path) for info in store.list(FOLDER))
    return [lease for lease in all_leases if lease is not None]  # None: released meanwhile.


def readable_leases(store: Store) -> list[Lease]:
    """Return the readable leases, sorted by consumer; log a warning for each other one.

    For lag reports, not for data removal.
    """
    readable: list[Lease] = []
    for info in store.list(FOLDER):
        try:
            lease = _read(store, info.path)
        except UNREADABLE as error:
            _LOGGER.warning("a lease is passed by: %s", error.message)
            continue
        if lease is not None:
            readable.append(lease)
    return readable


def lease_in(path: str, record: Mapping[str, Any]) -> Lease:
    """Parse a lease file's record."""
    lease = Lease(
        consumer=text(record["consumer"]),
        version=whole(record["version"]),
        renewed_ms=whole(record["renewed_ms"], most=TIME_MS_MAX),
        ttl_ms=whole(record["ttl_ms"]),
    )
    if lease_path(lease.consumer) != path:
        raise ValueError(f"it is the lease of '{lease.consumer}'")
    return lease


def _read(store: Store, path: str) -> Lease | None:
    try:
        return read_record(store, path, partial(lease_in, path))
    except CorruptionError as error:
        where = f"{store.url}/{path}"
        raise CorruptionError(
            f"'{where}' is not a readable lease ({error.message}), and what its consumer still "
            "needs is not known. Nothing was expired.",
            hint="restart that consumer, which writes its lease anew, or delete the file if the "
            "consumer is no more.",
            path=where,
        ) from error
