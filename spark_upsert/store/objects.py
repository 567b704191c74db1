"""A table in a bucket: S3, GCS or Azure, by obstore, with conditional puts.

A version is created with a put that the server refuses if the key exists. Runs are
immutable, so that each is fetched once into a bounded folder on local disk and mapped from
there; the oldest are removed when the folder grows beyond its bound.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, PreconditionError

from spark_upsert.store.protocol import ObjectInfo

CACHE_BYTES_MAX = 8 << 30
"""Default bound of the local copies of one user's processes on one machine."""

_UPLOAD_MEMORY_BYTES = 64 << 20
"""An upload is kept in memory up to here, then on disk."""


class ObjectStore:
    """A prefix of a bucket."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._url = url.rstrip("/")
        address = "s3" + self._url[3:] if self._url.startswith("s3a://") else self._url
        settings: dict[str, Any] = dict(options)
        cache_bytes = settings.pop("cache_bytes", None)
        client = {
            name: settings.pop(name) for name in ("allow_http", "timeout") if name in settings
        }
        client["allow_http"] = str(client.get("allow_http", "false")).lower() == "true"
        self._store = obstore.store.from_url(address, config=settings, client_options=client)
        self._cache = RunCache(_cache_folder(self._url), int(cache_bytes or CACHE_BYTES_MAX))

    @property
    def url(self) -> str:
        return self._url

    def __repr__(self) -> str:
        return f"ObjectStore({self.url!r})"

    def read(self, path: str) -> bytes:
        return bytes(obstore.get(self._store, path).bytes())

    def put_if_absent(self, path: str, data: bytes) -> bool:
        try:
            obstore.put(self._store, path, data, mode="create")
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    def put(self, path: str, data: bytes) -> None:
        obstore.put(self._store, path, data)

    def create(self, path: str) -> ObjectUpload:
        return ObjectUpload(self._store, path)

    def map(self, path: str) -> pa.Buffer:
        return self._cache.map(path, lambda file: self._fetch(path, file))

    def _fetch(self, path: str, file: IO[bytes]) -> None:
        for chunk in obstore.get(self._store, path).stream():
            file.write(chunk)

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        found = obstore.list_with_delimiter(self._store, prefix)["objects"]
        for entry in sorted(found, key=lambda entry: entry["path"]):
            if entry["path"] > after:
                yield ObjectInfo(
                    path=entry["path"],
                    bytes=entry["size"],
                    modified_s=entry["last_modified"].timestamp(),
                )

    def delete(self, path: str) -> None:
        # Some servers answer "not found" to a delete; the object is absent either way.
        try:
            obstore.delete(self._store, path)
        except FileNotFoundError:
            return


class ObjectUpload:
    """An object that is put, whole, when closed without an error."""

    def __init__(self, store: Any, path: str) -> None:
        self._store = store
        self._path = path
        self._file = tempfile.SpooledTemporaryFile(max_size=_UPLOAD_MEMORY_BYTES)  # noqa: SIM115

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def __enter__(self) -> ObjectUpload:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._file:
            if error is None:
                self._file.seek(0)
                obstore.put(self._store, self._path, self._file)  # type: ignore[arg-type]


def _cache_folder(url: str) -> Path:
    name = hashlib.sha256(url.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"upsertflow-cache-{os.getuid()}" / name


class RunCache:
    """Local copies of immutable objects, the least recently used removed first.

    Processes share the folder: a copy appears by an atomic rename, and a removed one stays
    readable for those that mapped it.
    """

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder = folder
        self._bytes_max = bytes_max

    def map(self, path: str, fetch: Any) -> pa.Buffer:
        """Return the mapped copy of an object, fetched first if it is absent."""
        copy = self._folder / path.replace("/", "_")
        for _ in range(3):  # Another process may remove the copy between two steps.
            try:
                with pa.memory_map(str(copy)) as mapped:
                    buffer = mapped.read_buffer()
                os.utime(copy)
                return buffer
            except FileNotFoundError:
                self._fill(copy, fetch)
        raise TimeoutError(f"the local copy '{copy}' was removed again and again")

    def _fill(self, copy: Path, fetch: Any) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = self._folder / f".tmp-{uuid.uuid4().hex}"
        try:
            with open(temporary, "xb") as file:
                fetch(file)
            os.replace(temporary, copy)
        finally:
            temporary.unlink(missing_ok=True)
        self._evict(keep=copy)

    def _evict(self, *, keep: Path) -> None:
        found = []
        for file in self._folder.iterdir():
            try:
                status = file.stat()
            except FileNotFoundError:
                continue
            found.append((status.st_mtime, status.st_size, file))
        excess = sum(size for _, size, _ in found) - self._bytes_max
        for modified_s, size, file in sorted(found):
            abandoned = file.name.startswith(".tmp-") and modified_s < time.time() - 3600
            if (
                file != keep
                and (excess > 0 or abandoned)
                and not (file.name.startswith(".tmp-") and not abandoned)
            ):
                file.unlink(missing_ok=True)
                excess -= size
