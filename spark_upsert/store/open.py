"""The store for a path (`open_store`), and a folder in a store as a separate store."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from spark_upsert.errors import OptionError, is_url, require_plain
from spark_upsert.store.local import LocalStore
from spark_upsert.store.protocol import OBJECT_BYTES_MAX, MappedFile, ObjectInfo, ObjectSink, Store
from spark_upsert.store.settings import cloud_of


def path_text(path: object) -> str:
    """Return a path argument as text; `OptionError` if it is neither text nor a path object."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise OptionError.invalid("path", text, "a text or a pathlib.Path")
    return text


def checked_storage(options: object) -> dict[str, str]:
    """Return the argument ``storage_options`` as a dict; `OptionError` unless it maps str to str.

    No value is shown: it may be secret.
    """
    if options is None:
        return {}
    found = type(options).__name__
    if isinstance(options, Mapping):
        others = [name for name, text in options.items() if not isinstance(text, str)]
        others += [name for name in options if not isinstance(name, str)]
        if not others:
            return dict(options)
        found = f"the name {others[0]!r} with a value of type {type(options[others[0]]).__name__}"
    raise OptionError(
        f"'storage_options' expects a mapping of str to str, found {found}.",
        hint='write for example storage_options={"region": "eu-west-1"}.',
        option="storage_options",
    )


def open_store(path: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> Store:
    """Return the store for a local path or a URL."""
    options, path = checked_storage(options), path_text(path)
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
        from spark_upsert.store.object_store import ObjectStore

        opened = ObjectStore
    except ModuleNotFoundError as error:
        raise OptionError(
            f"the path '{path}' needs obstore, which is not installed ({error}).",
            hint="pip install 'upsertflow[s3]' on the driver and on every executor.",
        ) from error
    return opened(path, options)


def is_remote(path: str) -> bool:
    """Return whether a path for `open_store` is not on a file system."""
    return is_url(path) and urlsplit(path).scheme != "file"


def _path_of(url: str) -> str:
    """Return the path in a ``file:`` URL."""
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


class PrefixStore:
    """A folder in a store as a separate store."""

    def __init__(self, store: Store, folder: str) -> None:
        self._store = store
        self._folder = folder

    @property
    def url(self) -> str:
        return f"{self._store.url}/{self._folder}"

    @property
    def cache_key(self) -> Hashable | None:
        """The store's cache key with the folder (`Store.cache_key`)."""
        store_key = self._store.cache_key
        return None if store_key is None else (store_key, self._folder)

    def iter_above(self) -> Iterator[Store]:
        """Yield the folders between this one and the store, the nearest first, and the store."""
        for folder in list(PurePosixPath(self._folder).parents)[:-1]:
            yield PrefixStore(self._store, str(folder))
        yield self._store

    def _path(self, path: str) -> str:
        return f"{self._folder}/{path}" if path else self._folder

    def _relative_to_folder(self, found: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        for info in found:
            yield replace(info, path=info.path[len(self._folder) + 1 :])

    def read(self, path: str, *, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        return self._store.read(self._path(path), bytes_max=bytes_max)

    def prepare(self, folder: str) -> None:
        self._store.prepare(self._path(folder))

    def put_if_absent(self, path: str, data: bytes) -> bool:
        return self._store.put_if_absent(self._path(path), data)

    def sync(self, path: str) -> None:
        self._store.sync(self._path(path))

    def put(self, path: str, data: bytes) -> None:
        self._store.put(self._path(path), data)

    def create(self, path: str) -> ObjectSink:
        return self._store.create(self._path(path))

    def fetch(self, sizes: Mapping[str, int]) -> None:
        self._store.fetch({self._path(path): size for path, size in sizes.items()})

    def map(self, path: str) -> pa.Buffer:
        return self._store.map(self._path(path))

    def needs_fetch(self, path: str) -> bool:
        return self._store.needs_fetch(self._path(path))

    def reserve(self, size: int) -> bool:
        return self._store.reserve(size)

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]], size: int) -> Sequence[Any]:
        return self._store.read_ranges(self._path(path), ranges, size)

    def mapped_file(self, path: str) -> MappedFile | None:
        return self._store.mapped_file(self._path(path))

    def release(self, buffer: pa.Buffer) -> None:
        self._store.release(buffer)

    def forget(self, path: str) -> None:
        self._store.forget(self._path(path))

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        after = after and self._path(after)
        return self._relative_to_folder(self._store.list(self._path(prefix), after=after))

    def folders(self, prefix: str) -> Iterator[str]:
        return self._store.folders(self._path(prefix))

    def temporaries(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._relative_to_folder(self._store.temporaries(self._path(prefix)))

    def delete(self, path: str) -> None:
        self._store.delete(self._path(path))
