"""The door to preparing a table's mirror, for the writers of its runs (`entries.ahead`)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from spark_upsert.store import Store
from spark_upsert.table.log.manifest import Manifest

if TYPE_CHECKING:
    from spark_upsert.table.entries.ahead import Preparation


_PUBLISH = "publish"
"""The property that is asked for. Its module would load all others with it."""


def prepare(store: Store, manifest: Manifest) -> Preparation | None:
    """Return what makes ready for the mirror of a table; None if it has none that takes this."""
    if _PUBLISH not in manifest.properties:
        return None
    # By its name: what writes does not load the mirror, unless there is one.
    found: Preparation | None = import_module("spark_upsert.mirror.ahead").prepared(store, manifest)
    return found
