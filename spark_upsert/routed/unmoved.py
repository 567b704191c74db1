"""Commits that must directly follow the version that was read, with retries (`commit_behind`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spark_upsert.errors import ContentionError
from spark_upsert.table.log.manifest import Draft, Manifest
from spark_upsert.table.retention.lag import BacklogCounter
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.guards import Admission
from spark_upsert.table.write.write_set import StagedRuns, WriteSet

TRIES_MAX = 100
"""Each try that fails means that another writer succeeded."""


def commit_behind(table: Table, chosen: Callable[[], Sequence[StagedRuns]]) -> Sequence[StagedRuns]:
    """Commit what is chosen upon the newest version right behind that version."""
    for _ in range(TRIES_MAX):
        head = table.log.head()
        staged = chosen()
        if not staged:
            return ()
        with table.log.last_look() as look:
            base = look.at(min(routed_part.base_version for routed_part in staged))
        write_set = WriteSet(base=Snapshot(table.store, base), staged=tuple(staged))
        guard = _VersionAdmission(table, head)
        try:
            table.commit(write_set, admission=guard)
        except ContentionError:
            if not guard.has_moved:
                raise
            continue
        return staged
    raise ContentionError(
        f"others changed the table at '{table.store.url}' {TRIES_MAX} times between a look and a "
        "commit.",
        hint="try again when fewer write.",
    )


class _VersionAdmission(Admission):
    """Lets an epoch in behind one version alone."""

    def __init__(self, table: Table, head: Manifest) -> None:
        super().__init__(table.log, table.store, BacklogCounter())
        self._expected = head.place
        self.has_moved = False
        """Whether another version came between."""

    def refusal(self, head: Manifest, draft: Draft | None = None) -> ContentionError | None:
        self.has_moved = head.place != self._expected
        return ContentionError("another version came between.") if self.has_moved else None
