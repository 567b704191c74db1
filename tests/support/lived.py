"""A table on a clock, an epoch an hour, and writers that sleep while its past is removed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from spark_upsert.core.schema import Scope
from spark_upsert.store import Store
from spark_upsert.table.log.codec import commit_path
from spark_upsert.table.log.manifest import Draft, Kind
from spark_upsert.table.table import Table
from tests.support.clocked import HOUR_S, ClockedStore, Now
from tests.support.model import Command
from tests.support.tables import append, schema_of

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
EVERY = 5
"""Versions between checkpoints, here: fewer versions show the same."""

MANY = 2 * EVERY + 4


class Lived:
    """A table on a clock: one epoch an hour, key 0 in all of them and a key of its own in each."""

    def __init__(self, epochs: int = 0, *, scope: Scope = Scope.EPOCH) -> None:
        self.now = Now()
        self.store = ClockedStore(self.now)
        self.scope = scope
        self.table = Table(self.store, clock=self.now)
        self.table.log.create(Draft(kind=Kind.CREATE, schema=schema_of(scope)))
        self.live(epochs)

    def live(self, epochs: int = 1) -> None:
        for _ in range(epochs):
            self.now.advance(HOUR_S)
            version = self.version + 1
            append(self.table, [Command(0, version, version), Command(version, 0, version)])

    def sweep(self) -> None:
        """Expire and remove all but the newest version."""
        self.now.advance(1)
        self.table.expire(retain_versions=0, safety_ms=0)
        self.table.vacuum(grace_ms=0)

    @property
    def version(self) -> int:
        return self.table.log.head().version

    @property
    def since(self) -> int:
        return self.table.log.head().since

    def reopened(self) -> Table:
        return Table(self.store, clock=self.now)

    def files(self, folder: str) -> set[str]:
        return {path for path in self.store.objects if path.startswith(folder + "/")}

    def expected(self, version: int) -> dict[int, int]:
        """Return the rows at a version, if all versions are epochs."""
        return {**({0: version} if version else {}), **dict.fromkeys(range(1, version + 1), 0)}


class Sleepy(ClockedStore):
    """A store whose next commit is put only after the world has gone on."""

    def __init__(self, lived: Lived, dream: Callable[[], None], *, before: bool) -> None:
        super().__init__(lived.now)
        self.objects, self.times = lived.store.objects, lived.store.times
        self._dream: Callable[[], None] | None = dream
        self._before = before

    def put_if_absent(self, path: str, data: bytes) -> bool:
        dream, self._dream = self._dream, None
        if dream and self._before:
            dream()
        done = super().put_if_absent(path, data)
        if dream and not self._before:
            dream()
        return done


def dreamt(seen: int, *, before: bool) -> tuple[Lived, Table]:
    """Return a table, and a writer that falls asleep around its put and wakes after a cut."""
    lived = Lived(seen)

    def dream() -> None:
        lived.live(MANY - seen)
        lived.table.expire(retain_versions=3)
        lived.table.vacuum()

    return lived, Table(Sleepy(lived, dream, before=before), clock=lived.now)


def body(data: bytes) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(data)
    record.pop("crc")
    return record


def body_of(store: Store, version: int) -> dict[str, Any]:
    return body(store.read(commit_path(version)))
