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
    """The part of a table read by an observer (`Table`)."""

    log: Log
    store: Store


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationResult:
    """A publication's result."""

    place: str
    shown_before: int | None
    """The mirror's previous version; None without a mirror."""
    shown: int
    """The mirror's present version: the newest, or an older one with equal rows."""
    newest: int
    """The table's newest version at the start."""
    delta_version: int
    """The Delta table's version."""
    retention_ms: int
    """Minimum time for which that version stays readable after its successor."""
    has_feed: bool
    """Whether the Delta table has a change feed, readable as long as its versions."""

    @property
    def has_changed(self) -> bool:
        """Whether the mirror has changed."""
        return self.shown != self.shown_before


class CommitObserver(Protocol):
    """Publishes tables and follows their commits."""

    def require_mirrored(self, schema: TableSchema, properties: Mapping[str, str]) -> None:
        """Raise if a table with this schema and these properties cannot be published."""
        ...

    def require_place(self, table: ObservedTable, given: Mapping[str, str]) -> None:
        """Raise if new properties name a location where a mirror is impossible."""
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
        storage_options: Mapping[str, str] | None = None,
    ) -> PublicationResult:
        """Publish the newest version of a table."""
        ...

    def follow(
        self, table: ObservedTable, version: int | None, prepared_files: Iterable[PreparedFiles]
    ) -> None:
        """Follow a commit within a limit on the work; called after each commit, raises no error.

        ``version`` is None after several commits; ``prepared_files`` comes from the tasks.
        """
        ...

    def vacuum(self, table: ObservedTable, dry_run: bool) -> Iterator[tuple[str, VacuumResult]]:
        """Remove the mirrors' unused files; yield each location's result."""
        ...


_registered: list[Callable[[], CommitObserver]] = []


def register_commit_observer(load: Callable[[], CommitObserver]) -> None:
    """Register the observer for this process's commits, replacing the previous one.

    ``load`` returns it; it is called when a table is published or its property is set.
    """
    _registered[:] = [load]


def commit_observer() -> CommitObserver:
    """Return the registered observer."""
    assert _registered, "the face of the package registers one"
    return _registered[0]()
