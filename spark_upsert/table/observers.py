"""The commit observer: an interface for packages above the table (docs/adr/0070).

`spark_upsert` registers the Delta mirror. The observer of run writers is `table.state.observer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from spark_upsert.core.schema import TableSchema
    from spark_upsert.store import Store
    from spark_upsert.table.log.log import Log
    from spark_upsert.table.retention.expiry import VacuumResult
    from spark_upsert.table.state.prepared import PreparedFiles


class ObservedTable(Protocol):
    """The part of a table that an observer reads (`Table`)."""

    log: Log
    store: Store


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationResult:
    """The result of a publication."""

    place: str
    shown_before: int | None
    """The version that the mirror showed before; None if there was no mirror."""
    shown: int
    """The version that it shows now: the newest, or an older one with the same rows."""
    newest: int
    """The newest version of the table when the step began."""
    delta_version: int
    """The version of the Delta table."""
    retention_ms: int
    """How long that version can be read, at least, once another one follows."""
    has_feed: bool
    """Whether the Delta table has a change feed; it can be read as long as its versions."""

    @property
    def has_changed(self) -> bool:
        """Whether there was anything to do."""
        return self.shown != self.shown_before


class CommitObserver(Protocol):
    """Publishes tables, and follows their commits."""

    def require_mirrored(self, schema: TableSchema, properties: Mapping[str, str]) -> None:
        """Raise if no table with this schema and these properties can be published."""
        ...

    def require_place(self, table: ObservedTable, given: Mapping[str, str]) -> None:
        """Raise if properties that are to be set name a place where nothing can be published."""
        ...

    def publish(
        self,
        table: ObservedTable,
        to: str | None = None,
        *,
        rebuild: bool = False,
        guard: bool | None = None,
        change_feed: bool | None = None,
        retention: str | None = None,
        storage: Mapping[str, str] | None = None,
    ) -> PublicationResult:
        """Publish the newest version of a table."""
        ...

    def follow(
        self, table: ObservedTable, version: int | None, prepared: Iterable[PreparedFiles]
    ) -> None:
        """Follow a commit, as far as that is cheap; called after each one, and raises no error.

        ``version`` is None if there may have been several; ``prepared`` is from the tasks.
        """
        ...

    def vacuum(self, table: ObservedTable, dry_run: bool) -> Iterator[tuple[str, VacuumResult]]:
        """Remove unused files of what was published, and yield what was removed at each place."""
        ...


_registered: list[Callable[[], CommitObserver]] = []


def register_commit_observer(load: Callable[[], CommitObserver]) -> None:
    """Let an observer follow the commits of this process, in place of the one before.

    ``load`` returns it, and is called when a table is published or its property is set.
    """
    _registered[:] = [load]


def commit_observer() -> CommitObserver:
    """Return the observer that is registered."""
    assert _registered, "the face of the package registers one"
    return _registered[0]()
