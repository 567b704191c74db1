"""From a table's path to its store."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from spark_upsert.errors import OptionError, is_url, require_plain
from spark_upsert.store.local import LocalStore
from spark_upsert.store.protocol import Store
from spark_upsert.store.settings import cloud_of


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
        The path is empty, not supported or contains a secret (`require_plain`), or it is an object
        store's and obstore is not installed.
    """
    if not path:
        raise OptionError.missing("path", "where the table lies")
    require_plain(path)
    if "\0" in path:
        raise OptionError.invalid("path", path, "a path without null characters")
    if not is_url(path):
        return LocalStore(path)
    if urlsplit(path).scheme == "file":
        return LocalStore(_path_of(path))
    cloud_of(path)
    try:
        # It needs obstore, which a table on a file system does not.
        from spark_upsert.store.objects import ObjectStore

        opened = ObjectStore
    except ModuleNotFoundError as error:
        raise OptionError(
            f"the path '{path}' needs obstore, which is not installed ({error}).",
            hint="pip install 'upsertflow[objectstore]' on the driver and on every executor.",
        ) from error
    return opened(path, options or {})


def is_remote(path: str) -> bool:
    """Return whether a path that `open_store` takes is not one of a file system."""
    return is_url(path) and urlsplit(path).scheme != "file"


def _path_of(url: str) -> str:
    """Return the path of a ``file:`` URL."""
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise OptionError(
            f"the path '{url}' names the host '{parts.netloc}', and files of another host "
            "cannot be reached.",
            hint=f"write file:///{parts.netloc}{parts.path} for the folder "
            f"/{parts.netloc}{parts.path}, or mount what that host shares.",
            option="path",
        )
    return unquote(parts.path)
