"""The run observer: an interface for a higher-level package preparing files from run rows.

`spark_upsert` registers the Delta mirror. The observer of commits is `table.observers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from spark_upsert.store import Store
    from spark_upsert.table.log.manifest import Manifest
    from spark_upsert.table.state.prepared import Preparation


class RunObserver(Protocol):
    """Prepares table publications from the rows being written to runs."""

    def start_preparation(self, store: Store, manifest: Manifest) -> Preparation | None:
        """Return the receiver for one task's rows; None if nothing is to be prepared."""
        ...


_PUBLISH = "publish"
"""Table property enabling observation; importing its module would load all others."""

_registered: list[Callable[[], RunObserver]] = []


def register_run_observer(load: Callable[[], RunObserver]) -> None:
    """Register an observer for this process's runs; it replaces the previous one.

    ``load`` returns it, and is called when a run for a published table is written.
    """
    _registered[:] = [load]


def prepare(store: Store, manifest: Manifest) -> Preparation | None:
    """Return the publication preparation for a table; None if it is not published."""
    if _PUBLISH not in manifest.properties:
        return None
    assert _registered, "the face of the package registers one"
    return _registered[0]().start_preparation(store, manifest)
