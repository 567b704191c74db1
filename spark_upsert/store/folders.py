"""Find the folder of files that others write (`store.folder`), at a local path or in a bucket."""

from __future__ import annotations

from collections.abc import Mapping

from spark_upsert.store.folder import Folder, LocalFolder
from spark_upsert.store.local import LocalStore
from spark_upsert.store.resolve import open_store


def open_folder(path: str, options: Mapping[str, str] | None = None) -> Folder:
    """Return the folder at a local path or a URL.

    Parameters and errors are those of `store.open_store`.
    """
    store = open_store(path, options)
    if isinstance(store, LocalStore):
        return LocalFolder(store.url)
    from spark_upsert.store.object_folder import ObjectFolder
    from spark_upsert.store.objects import ObjectStore

    assert isinstance(store, ObjectStore)
    return ObjectFolder(store)
