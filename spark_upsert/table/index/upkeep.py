"""Index upkeep: each committing process updates the indexes after its commit, at bounded cost.

No failure here fails the commit. An index that lags too far waits for ``upsertflow index``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from spark_upsert.core.durations import Fields
from spark_upsert.errors import CorruptionError, masked
from spark_upsert.store import Store
from spark_upsert.table.index.build import Advance, advance
from spark_upsert.table.index.index import Index
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Commit, Manifest
from spark_upsert.table.log.properties import INDEX_BY, indexed_columns
from spark_upsert.table.log.storage import Clock

_LOGGER = logging.getLogger(__name__)

STEP_ROWS = 1 << 20
"""Entries of the table that a step after a commit may read, however small the commit was."""

_TIMES = 4
"""The bound of a step as a multiple of what the commit wrote, if that is more."""


_RACES_MAX = 3
"""The most lost races, each of which brought the index further; then the winners go on."""


class Indexes:
    """The indexes of one table.

    Parameters
    ----------
    log : Log
        Of the table.
    store : Store
    clock : callable
    compact : callable
        Does one compaction that is due in a table, if any.
    """

    def __init__(
        self, log: Log, store: Store, *, clock: Clock, compact: Callable[[Store], object]
    ) -> None:
        self._log = log
        self._store = store
        self._clock = clock
        self._compact = compact
        self._known: dict[str, Index] = {}
        self.failures = 0
        """Steps of this process that failed: the table went on without them."""

    def of(self, head: Manifest) -> list[Index]:
        """Return the indexes that a version of the table has, built or not."""
        return [self._index(column) for column in indexed_columns(head.schema, head.properties)]

    def _index(self, column: str) -> Index:
        if column not in self._known:
            self._known[column] = Index(self._log, self._store, column, clock=self._clock)
        return self._known[column]

    def usable(self, head: Manifest, column: str) -> Index | None:
        """Return the index on a column, or None if no usable one exists at present."""
        for index in self.of(head):
            if index.column == column:
                try:
                    return None if index.place() is None else index
                except CorruptionError as error:
                    self.note(column, error)
        return None

    def follow(self, commit: Commit) -> None:
        """Bring the indexes up to date behind a commit, as far as is cheap; raises no error."""
        cached_head = self._log.seen
        # Behind the commit that made the table, nothing of it was read yet.
        properties = (commit.properties or {}) if cached_head is None else cached_head.properties
        if not properties.get(INDEX_BY):
            return
        try:
            self._follow(cached_head or self._log.head(), commit)
        except Exception as error:  # noqa: BLE001 - an index is never worth a commit
            self.note(properties[INDEX_BY], error)

    def _follow(self, head: Manifest, commit: Commit) -> None:
        written = sum(file.rows for file in commit.added)
        rows_max = max(STEP_ROWS, _TIMES * written)
        for index in self.of(head):
            try:
                done = self._advance(index, rows_max=rows_max)
                self._compact(index.store)
            except Exception as error:  # noqa: BLE001 - an index is never worth a commit
                self.note(index.column, error)
            else:
                if done.is_too_much:
                    self._tell(index, done)

    def note(self, column: str, error: Exception) -> None:
        """Count an error that is not to stop what it came upon, and tell of it."""
        self.failures += 1
        fields = Fields(path=self._store.url, column=column, failures=self.failures)
        _LOGGER.warning("index not kept up: %s error=%s", fields, masked(f"{error!r}"))

    def _tell(self, index: Index, done: Advance) -> None:
        fields = Fields(
            path=self._store.url,
            column=index.column,
            shows=done.shows,
            versions_left=done.versions_left,
        )
        _LOGGER.warning("index left behind, run 'upsertflow index': %s", fields)

    def bring_up(self, head: Manifest, *, rebuild: bool = False) -> Iterator[tuple[Index, Advance]]:
        """Bring all indexes up to date, or build them, whatever it costs; yield each when done."""
        for index in self.of(head):
            yield index, self._advance(index, rebuild=rebuild)

    def _advance(
        self, index: Index, *, rows_max: int | None = None, rebuild: bool = False
    ) -> Advance:
        """Do a step; where another process was faster, do the next step upon its result."""
        done = advance(index, rows_max=rows_max, rebuild=rebuild)
        for _ in range(_RACES_MAX):
            if done.is_done or done.is_too_much:
                break
            done = advance(index, rows_max=rows_max)
        return done
