"""A pinned version list (`LogSnapshot`): answers requests about versions up to the newest one read.

Used in a ``with`` block, it proves at the end that the bytes read belong to this log.
Also version arguments: a number, a time or a word becomes a version or a range of versions.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol

from spark_upsert.core.durations import Fields, render_time
from spark_upsert.errors import (
    CorruptionError,
    DataLossError,
    OptionError,
    TableNotFoundError,
    UpsertFlowError,
    VersionNotFoundError,
)
from spark_upsert.table.log.codec import checkpoint_path
from spark_upsert.table.log.manifest import Commit, Manifest, TableVersion
from spark_upsert.table.log.storage import (
    StoredLog,
    block_after,
    iter_windows,
    newest_checkpoint_up_to,
)

_LOGGER = logging.getLogger(__name__)


class Versions(Protocol):
    """Requests about a table's versions: a `LogSnapshot`, or a `LogReader`, which polls per request."""

    def head(self) -> Manifest:
        """Return the newest version."""
        ...

    def at(self, version: int) -> Manifest:
        """Return a version's manifest."""
        ...

    def before(self, version: int) -> Manifest:
        """Return the table just before a version."""
        ...

    def commit(self, version: int) -> Commit:
        """Return one commit."""
        ...

    def commits(self, lower: int, upper: int) -> Iterator[Commit]:
        """Yield the commits of the versions ``lower <= v < upper``."""
        ...

    def require_changes(self, lower: int) -> None:
        """Raise unless changes from version ``lower`` on can be read."""
        ...

    def at_timestamp(self, timestamp_ms: int) -> Manifest:
        """Return the newest manifest committed at or before a time (ms since 1970)."""
        ...

    def require_past(self, timestamp_ms: int) -> None:
        """Raise if a time is in the future."""
        ...

    def version_at(self, timestamp_ms: int) -> int:
        """Return the last version committed at or before a time, expired or not, or -1."""
        ...


class LogSnapshot:
    """A pinned list of a log's versions, up to the newest one seen (`Versions`).

    Parameters
    ----------
    stored : StoredLog
    head : Manifest
        The newest version in the snapshot.
    newest_base : Manifest, optional
        An older cached version: a follower needs the state before the head.
    now_ms : callable
        Returns the time in ms since 1970.
    find_end : callable
        Polls the log's end again, and raises if it is another log; called if an expected version is
        missing.
    """

    __slots__ = ("_find_end", "_has_read", "_head", "_newest_base", "_now_ms", "_stored")

    def __init__(
        self,
        stored: StoredLog,
        head: Manifest,
        *,
        newest_base: Manifest | None = None,
        now_ms: Callable[[], int],
        find_end: Callable[[], Manifest | None],
    ) -> None:
        self._stored = stored
        self._head = head
        self._newest_base = newest_base
        self._find_end = find_end
        self._now_ms = now_ms
        self._has_read = False

    def __repr__(self) -> str:
        return f"LogSnapshot({self._head.version_ref})"

    def __enter__(self) -> LogSnapshot:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.prove()
        elif issubclass(kind, CorruptionError):
            self._find_end()  # A removed version is no damage.

    def prove(self) -> None:
        """Prove by one request that all bytes read so far belong to this log."""
        if self._has_read and not self._stored.contains(self._head):
            self._find_end()

    def head(self) -> Manifest:
        """Return the snapshot's version: the newest at its time."""
        return self._head

    def at(self, version: int) -> Manifest:
        """Return a version's manifest."""
        head, newest = self._head, self._newest_base
        if version == head.version:
            return head
        if not head.since <= version <= head.version:
            raise no_version(version, head)
        if newest is not None and newest.version == version:
            return newest
        self._has_read = True
        store = self._stored.store
        self._stored.prefetch_blocks(block_after(version, head.version))
        manifest = self._stored.apply_commits(newest_checkpoint_up_to(store, version), version)
        if manifest is None or manifest.version != version:
            raise self._gone(version, missing=0 if manifest is None else manifest.version + 1)
        if manifest.token != self.commit(version).token:
            raise CorruptionError.in_file(
                f"{store.url}/{checkpoint_path(version)}",
                f"the checkpoint of table '{head.table_id}'",
                f"one of '{manifest.table_id}'",
            )
        return manifest

    def equivalent_version(self, version: int) -> int | None:
        """Return a readable version with the same rows as a possibly expired version.

        That is the version itself or, if it is expired, ``since``; None if rows changed in between.
        """
        head = self._head
        if version >= head.since:
            return version
        if head.changed <= version:
            return head.since
        return head.since if self.at(head.since).changed <= version else None

    def before(self, version: int) -> Manifest:
        """Return the table just before a version; before version 0 it was empty."""
        if version > 0:
            return self.at(version - 1)
        first = self.at(0)
        return Manifest.unborn(first.schema, table_id=first.table_id)

    def commit(self, version: int) -> Commit:
        """Return one commit."""
        stored_commit = None if version < self._head.since else self._commit(version)
        if stored_commit is None:
            raise self._gone(version)
        return stored_commit

    def commits(self, lower: int, upper: int) -> Iterator[Commit]:
        """Yield the commits of the versions ``lower <= v < upper``."""
        for window in iter_windows(lower, upper):
            self._has_read |= not all(map(self._stored.is_cached, window))
            self._stored.prefetch_blocks(window)
            yield from map(self.commit, window)

    def require_changes(self, lower: int) -> None:
        """Raise unless changes from version ``lower`` on can be read.

        The rule is `Manifest.first_changes`.
        """
        head = self._head
        if lower < head.first_changes:
            raise DataLossError.changes_expired(
                f"the change feed from version {lower} on",
                lower=lower,
                since=head.since,
                newest=head.version,
            )

    def at_timestamp(self, timestamp_ms: int) -> Manifest:
        """Return the newest manifest committed at or before a time (ms since 1970)."""
        self.require_past(timestamp_ms)
        version, head = self.version_at(timestamp_ms), self._head
        if version < head.since and head.since > 0:
            raise VersionNotFoundError.expired(
                f"the time {render_time(timestamp_ms)}", since=head.since, newest=head.version
            )
        if version < 0:
            first, requested = render_time(self.commit(0).timestamp_ms), render_time(timestamp_ms)
            raise VersionNotFoundError(
                f"the table has no version at {requested}: its first version was committed at "
                f"{first}.",
                hint=f"give a time at or after {first}, or version 0.",
            )
        return self.at(version)

    def require_past(self, timestamp_ms: int) -> None:
        """Raise if a time is in the future: further versions may be committed before it."""
        if timestamp_ms > self._head.timestamp_ms and timestamp_ms > (now_ms := self._now_ms()):
            raise VersionNotFoundError(
                f"the time {render_time(timestamp_ms)} is in the future: it is "
                f"{render_time(now_ms)}, and versions until then do not exist yet.",
                hint=f"give a time up to {render_time(now_ms)}, or no time for all that there is.",
            )

    def version_at(self, timestamp_ms: int) -> int:
        """Return the last version committed at or before a time, expired or not, or -1.

        Versions cut off the log count as the oldest.
        """
        head = self._head

        def time_ms(version: int) -> int:
            commit = self._commit(version)
            if commit is None and version >= head.since:
                raise self._gone(version)
            return 0 if commit is None else head.time_ms(version, commit.timestamp_ms)

        return bisect_right(range(head.upper), timestamp_ms, key=time_ms) - 1

    def version_ref(self, version: int) -> TableVersion:
        """Return a reference to a version, for a later `require`."""
        head = self._head
        if version == head.version:
            return head.version_ref
        return TableVersion(
            table_id=head.table_id, version=version, token=self.commit(version).token
        )

    def require(self, version_ref: TableVersion, who: str, *, hint: str = "") -> Manifest:
        """Return the head, which must descend from a recorded version; raises `OtherTableError`."""
        head = self._head
        if head.table_id != version_ref.table_id:
            description = str(head.version_ref)
        elif head.version < version_ref.version:
            description = f"a copy of it that ends at version {head.version}"
        # Where the version was expired since, only the identity is left to compare.
        elif (
            version_ref.version >= head.since
            and self._token_at(version_ref.version) != version_ref.token
        ):
            description = f"a copy of it with another version {version_ref.version}"
        else:
            return head
        raise self._stored.other_table_error(version_ref, description, who, hint)

    def _token_at(self, version: int) -> str | None:
        if version == self._head.version:
            return self._head.token
        commit = self._commit(version)
        return None if commit is None else commit.token

    def _commit(self, version: int) -> Commit | None:
        if not self._stored.is_cached(version):
            self._has_read = True
        return self._stored.commit(version)

    def _gone(self, version: int, *, missing: int | None = None) -> UpsertFlowError:
        """Return the error for an unreadable version; it may have expired just now."""
        head = self._find_end()
        if head is None:
            return TableNotFoundError.at(self._stored.store.url)
        if head.since <= version <= head.version:
            return self._stored.gap(version if missing is None else missing, head.version)
        return no_version(version, head)


def no_version(version: int, head: Manifest) -> VersionNotFoundError:
    """Return the error for an expired or not yet existing version."""
    since, newest = head.since, head.version
    if 0 <= version < since:
        return VersionNotFoundError.expired(f"version {version}", since=since, newest=newest)
    return VersionNotFoundError.future("version", version, since=since, newest=newest)


LATEST = "latest"
"""Start option for future changes only."""

EARLIEST = "earliest"
"""Start option for the first version with readable changes."""


def manifest_at(
    log: Versions, *, version: int | None = None, time_ms: int | None = None
) -> Manifest:
    """Return the table at a version or time, by default the newest."""
    if version is not None:
        return log.at(version)
    return log.head() if time_ms is None else log.at_timestamp(time_ms)


def resolve_starting_version(
    log: Versions,
    *,
    version: int | str | None = None,
    time_ms: int | None = None,
    is_inclusive: bool = True,
    name: str = "startingVersion",
) -> int | None:
    """Return the first requested change version; None if no option specifies one."""
    if time_ms is not None:
        log.require_past(time_ms)
        return log.version_at(time_ms - int(is_inclusive)) + 1
    head = log.head()
    if version == LATEST:
        return head.upper
    if version == EARLIEST:
        return head.first_changes
    if not isinstance(version, int):
        return None
    require_bound(version, head, name=name)
    return version + int(not is_inclusive)


def resolve_ending_version(
    log: Versions,
    *,
    version: int | None = None,
    time_ms: int | None = None,
    is_inclusive: bool = True,
    name: str = "endingVersion",
) -> int:
    """Return the exclusive end version for the requested changes, by default after the newest.

    For the parameters see `resolve_starting_version`.
    """
    if time_ms is not None:
        log.require_past(time_ms)
        return log.version_at(time_ms - int(not is_inclusive)) + 1
    head = log.head()
    if version is None:
        return head.upper
    if version > head.version:
        raise VersionNotFoundError.future(name, version, since=head.since, newest=head.version)
    return version + int(is_inclusive)


def require_bound(version: int, head: Manifest, *, name: str) -> None:
    """Raise unless changes can start or end at a version: an existing one or the next."""
    if not 0 <= version <= head.upper:
        raise VersionNotFoundError.future(
            name, version, since=head.first_changes, newest=head.version, last=head.upper
        )


def require_ordered(
    lower: int, upper: int, *, name: str = "endingVersion", may_be_empty: bool = True
) -> None:
    """Raise if the changes for ``lower <= v < upper`` end before they start."""
    if lower > upper - int(not may_be_empty):
        raise OptionError(
            f"the changes begin at version {lower} and end before version {upper}.",
            hint="let the changes end at their first version or later, or leave out their end.",
            option=name,
        )


def readable_from(newest: Manifest, lower: int, *, path: str, fail_on_data_loss: bool) -> int:
    """Return the start version for a read of changes from ``lower`` on.

    Notes
    -----
    If the requested changes are expired, ``fail_on_data_loss`` decides: the plan will raise, or the
    read continues at `Manifest.first_changes`. The skipped changes may have altered rows, so a
    later retraction may name a row missing from the reader: folding such changes no longer
    reproduces the table.
    """
    if fail_on_data_loss or lower >= newest.first_changes:
        return lower
    _LOGGER.warning(
        "changes are expired and left out: %s",
        Fields(
            path=path,
            gap_from=lower,
            gap_to=newest.first_changes - 1,
            reason="expired",
            hint="what is folded from this read is not the table; read it anew",
        ),
    )
    return newest.first_changes
