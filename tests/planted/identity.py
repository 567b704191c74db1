"""Bugs in whose table, log and query it is."""

from __future__ import annotations

from typing import Any

from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Manifest, TableVersion
from spark_upsert.table.log.reader import LogReader
from spark_upsert.table.log.snapshot import LogSnapshot
from spark_upsert.table.log.storage import StoredLog
from spark_upsert.table.retention import expiry as retention
from spark_upsert.table.retention.expiry import UnreferencedFiles
from spark_upsert_sink import writers
from tests.planted.bug import Patch, bug, together, wrapped
from tests.promises import test_identity_promises as identity_promises
from tests.promises import test_promises as promises


@bug(
    "a commit is not looked for behind its put",
    identity_promises.test_p1_what_is_put_where_the_table_was_is_not_reported,
)
def _() -> Patch:
    return wrapped(StoredLog, "contains", lambda original, self, manifest: True)


@bug(
    "a commit is not looked for before its put",
    identity_promises.test_p1_a_writer_that_dies_leaves_nothing_in_another_tables_log,
)
def _() -> Patch:
    return wrapped(LogReader, "has", lambda original, self, manifest: True)


@bug(
    "a stray commit is left in another table's log",
    identity_promises.test_p1_what_is_put_where_the_table_was_is_not_reported,
)
def _() -> Patch:
    return wrapped(Log, "_remove_own_put", lambda original, self, commit: None)


@bug(
    "an abort removes what a commit may yet name",
    identity_promises.test_p1_a_put_that_lands_behind_the_abort_finds_its_files,
)
def _() -> Patch:
    def abort(original: Any, self: writers._Write, messages: list[Any]) -> None:
        self.table().discard(writers._staged(messages), writers._compacted(messages))

    return wrapped(writers._Write, "abort", abort)


@bug(
    "a vacuum removes what was left behind without a frontier",
    identity_promises.test_p1_a_put_that_lands_behind_a_vacuum_creates_nothing,
)
def _() -> Patch:
    def before(original: Any, self: UnreferencedFiles, fence: Any) -> Any:
        return self.orphans

    def leave(original: Any, *args: Any) -> None:
        """Raise no frontier."""

    return together(
        wrapped(UnreferencedFiles, "before", before), wrapped(retention, "_raise_fence", leave)
    )


@bug(
    "what a process remembers of a log is believed",
    identity_promises.test_p1_what_a_process_remembers_is_not_what_there_is,
)
def _() -> Patch:
    def proven(original: Any, self: LogReader, base: Manifest | None, newest: int) -> Any:
        if base is not None and base is self._cached_version():
            return self._stored.apply_commits(base, None)
        return original(self, base, newest)

    return wrapped(LogReader, "_prove_end", proven)


@bug(
    "where a log is said to end is believed",
    identity_promises.test_p1_where_a_log_is_said_to_end_is_looked_for,
)
def _() -> Patch:
    def end(original: Any, self: LogReader, base: Manifest | None) -> Manifest | None:
        told = self._reported
        return original(self, base) if told is None else self._roll_to(base, told)

    return wrapped(LogReader, "_end_at_reported", end)


@bug(
    "a version that was read before the look proves its end",
    identity_promises.test_p1_where_a_log_is_said_to_end_is_looked_for,
)
def _() -> Patch:
    def end(original: Any, self: LogReader, base: Manifest | None) -> Manifest | None:
        told = self._reported
        if told is None or self._stored.commit(told.version + 1) is not None:
            return None
        return self._roll_to(base, told)

    return wrapped(LogReader, "_end_at_reported", end)


@bug(
    "a commit begins behind whatever the process remembers",
    identity_promises.test_p1_a_commit_begins_behind_what_a_task_has_proven,
)
def _() -> Patch:
    def seen(original: Any, self: LogReader, place: TableVersion) -> LogSnapshot | None:
        self._head = self._head or self._cached_version()
        return original(self, place) if self._head is None else self._snapshot_from(self._head)

    return wrapped(LogReader, "snapshot_at", seen)


@bug(
    "a check believes what the process remembers",
    promises.test_p5_a_check_finds_damage_of_what_the_process_has_read,
)
def _() -> Patch:
    return wrapped(LogReader, "without_cache", lambda original, self: self)


@bug(
    "a query may leave batches out",
    promises.test_p1_a_query_goes_on_only_behind_its_earlier_batches,
)
def _() -> Patch:
    return wrapped(Manifest, "lacks", lambda original, self, transaction: False)
