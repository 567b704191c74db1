"""The observer of runs: what a package above the table prepares while a writer has the rows.

The writers of runs call the registered observer and import none. The package `spark_upsert`
registers a function that imports the mirror. The observer of commits is `table.observers`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from spark_upsert.store import Store
    from spark_upsert.table.log.manifest import Manifest
    from spark_upsert.table.state.prepared import Preparation


class RunObserver(Protocol):
    """Prepares the publication of tables from the rows of their runs."""

    def prepared(self, store: Store, manifest: Manifest) -> Preparation | None:
        """Return what takes the rows of one task; None if nothing is to be prepared."""
        ...


_PUBLISH = "publish"
"""The property of the tables that are observed. Its module would load all others with it."""

_registered: list[Callable[[], RunObserver]] = []


def register_run_observer(load: Callable[[], RunObserver]) -> None:
    """Let an observer see the runs of this process, in place of the one before.

    ``load`` returns it, and is called when a run of a published table is written.
    """
    _registered[:] = [load]


def prepare(store: Store, manifest: Manifest) -> Preparation | None:
    """Return what prepares the publication of a table; None if it is not published."""
    if _PUBLISH not in manifest.properties:
        return None
    assert _registered, "the face of the package registers one"
    return _registered[0]().prepared(store, manifest)
