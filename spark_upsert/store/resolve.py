"""From a table's path to its store."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from spark_upsert.errors import OptionError
from spark_upsert.store.local import LocalStore
from spark_upsert.store.protocol import Store


def open_store(path: str, options: Mapping[str, str] | None = None) -> Store:
    """Return the store for a local path or a URL.

    Parameters
    ----------
    path : str
        A local path, ``file:///...``, or an address that obstore knows: ``s3://``, ``gs://``,
        ``az://``, ``abfss://``. Hadoop's ``s3a://`` is taken as ``s3://``.
    options : mapping, optional
        Settings of the object store (``storage.*`` options without the prefix).

    Raises
    ------
    OptionError
        The path is empty, or object storage is asked for and obstore is not installed.
    """
    if not path:
        raise OptionError.missing("path", "where the table lies")
    parts = urlsplit(path)
    if parts.scheme == "file":
        return LocalStore(unquote(parts.path))
    if "://" not in path:
        return LocalStore(path)
    try:
        from spark_upsert.store.objects import ObjectStore
    except ModuleNotFoundError as error:
        raise OptionError(
            f"the path '{path}' needs obstore, which is not installed ({error}).",
            hint="pip install 'upsertflow[objectstore]' on the driver and on every executor.",
        ) from error
    return ObjectStore(path, options or {})
