"""A table in S3, GCS or Azure (`ObjectStore`), by obstore with conditional puts.

Runs are fetched once into a bounded local folder (`store.cache`), in ranges, and mapped from there.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import tempfile
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import obstore
import pyarrow as pa
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from spark_upsert.core.threads import map_in_order
from spark_upsert.errors import CorruptionError, OptionError, StorageError, UpsertFlowError, masked
from spark_upsert.store.cache import CopyFile, LocalCopies, usable
from spark_upsert.store.local import release_mapped
from spark_upsert.store.protocol import OBJECT_BYTES_MAX, PROBE, MappedFile, ObjectInfo
from spark_upsert.store.settings import Cloud, ObjectSettings

_TEXT_LENGTH_MAX = 400

_NO_BUCKET = re.compile(
    r"NoSuchBucket|ContainerNotFound|FilesystemNotFound|bucket does not exist", re.IGNORECASE
)
_NO_IDENTITY = re.compile(
    r"169\.254\.|metadata\.google|token request|credential error", re.IGNORECASE
)
_BAD_IDENTITY = re.compile(
    r"<Code>(ExpiredToken|TokenRefreshRequired|InvalidToken|AuthenticationFailed|InvalidAccessKeyId"
    r"|XAdminUserNotFound)</Code>"
)
"""Error codes for rejected credentials.

The Versity gateway sends the last one with status 404: the account is missing, not the object.
"""
_OTHER_REGION = re.compile(
    r"incorrectly configured region|AuthorizationHeaderMalformed|PermanentRedirect"
)
_NO_TLS = re.compile(r"HTTP error: builder error")
"""The client's text about an ``http://`` address in the environment, which is not allowed."""

_EMPTY_RANGE = re.compile(r"status code: 416|Invalid range|InvalidRange")
"""Texts of servers and of obstore's local stores for a range in an empty object."""

_CONFLICT = "ConditionalRequestConflict"


def translate(error: Exception, *, verb: str, url: str) -> Exception:
    """Return the error to raise for an obstore error.

    `FileNotFoundError`: no such object. `OptionError`: the server refuses, so only other options
    help. `StorageError`: it failed now, and the request may have taken effect or not.
    """
    text = str(error).split("\n\nDebug source")[0]
    status = _status(text)
    tried = f"could not {verb} '{url}': {_brief(text)}"
    is_nobody = _BAD_IDENTITY.search(text) is not None
    is_absent = not is_nobody and (isinstance(error, FileNotFoundError) or status == 404)
    # Only reading and deleting need an object: anything else can miss nothing but the bucket.
    if _NO_BUCKET.search(text) or (is_absent and verb not in ("read", "delete")):
        return OptionError(
            tried,
            hint="make the bucket, or check the 'path' and 'storage.endpoint' options: this "
            "package never makes buckets.",
            option="path",
        )
    if is_absent:
        return FileNotFoundError(f"there is no object '{url}'")
    if _NO_IDENTITY.search(text):
        return OptionError(
            tried,
            hint="give credentials by 'storage' options (docs/object-stores.md names those of each "
            "cloud), or by the environment of the driver and of every executor.",
            option="storage",
        )
    if _NO_TLS.search(text):
        return OptionError(
            tried,
            hint="an endpoint of the environment that begins with http:// needs "
            "'storage.allow_http' = 'true'.",
            option="storage.allow_http",
        )
    if _OTHER_REGION.search(text):
        return OptionError(
            tried,
            hint="set 'storage.region' to the region of the bucket.",
            option="storage.region",
        )
    is_denied = isinstance(error, PermissionDeniedError | UnauthenticatedError)
    if is_nobody or is_denied or status in (401, 403):
        return OptionError(
            tried,
            hint="check the credentials among the 'storage' options and in the environment, and "
            "that they allow to get, put, delete and list below the path. Without the right to "
            "list, S3 denies access to objects that do not exist.",
            option="storage",
        )
    if isinstance(error, NotSupportedError | NotImplementedError) or status == 501:
        return OptionError(
            tried,
            hint="use a storage that can put an object only if it is absent (If-None-Match); "
            "commits depend on it.",
            option="path",
        )
    return StorageError(
        tried,
        hint="check 'storage.endpoint' and the network, then try again; 'storage.max_retries' and "
        "'storage.retry_timeout' say how long to be patient.",
        status=status,
        url=url,
    )


def is_conflict(error: Exception) -> bool:
    """Return whether S3 refused only because another request for the key was in progress."""
    return isinstance(error, AlreadyExistsError) and _CONFLICT in str(error)


def is_cut_short(error: StorageError) -> bool:
    """Return whether a response body ended early in a request not repeated by the client.

    The client repeats such requests for object bodies, but not for the body with "there is no such
    object".
    """
    return "response body error" in error.message


def may_pass(error: StorageError) -> bool:
    """Return whether a repeated request may succeed: no response, or a server error."""
    status = error.fields.get("status")
    return status is None or status >= 500 or status in (408, 409, 429)


def _status(text: str) -> int | None:
    match = re.search(r"status code: (\d{3})", text)
    return int(match[1]) if match else None


def _brief(text: str) -> str:
    """Return the useful part of an error text; without queries, which may contain a signature."""
    match = re.search(
        r"status code: (\d{3}[^:]*).*?<Code>([^<]*)</Code>(?:.*?<Message>([^<]*)</Message>)?",
        text,
        re.DOTALL,
    )
    if match:
        status, code, message = match.groups()
        words = " ".join((message or "").split())
        return f"the server answered {status}, {code}" + (f": {words}" if words else "")
    plain = re.sub(r"(https?://[^\s?]+)\?\S+", r"\1?...", " ".join(text.split()))
    return plain if len(plain) <= _TEXT_LENGTH_MAX else f"{plain[:_TEXT_LENGTH_MAX]}..."


RANGE_BYTES = 8 << 20
"""Bytes per request for a large object, in either direction: seconds on a slow line."""

RANGES_AT_ONCE = 4
"""Parallel requests for one object; with `RANGE_BYTES`, at most 32 MiB in memory."""

FETCHED_AT_ONCE, FETCHED_BYTES = 32, 64 << 20
"""Maximum small objects fetched in parallel, and their total bytes in memory."""

_PARTS_MAX = 10_000
"""S3's maximum number of parts in one upload."""

_ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL_S3"
_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_")
"""Prefixes for obstore's environment variables."""
_LIST_CHUNK = 1000
_PAUSE_SECONDS = 0.1
_PAUSE_SECONDS_MAX = 15.0


class ObjectStore:
    """A bucket prefix.

    Parameters
    ----------
    url : str
        For example ``s3://bucket/folder``.
    options : mapping
        Settings without the prefix ``storage.``; see `store.settings`.
    client : optional
        An obstore store to use in place of one made for the URL.
    settings : ObjectSettings, optional
        Checked settings, in place of ``options``.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any],
        *,
        client: Any = None,
        settings: ObjectSettings | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._settings = settings = settings or ObjectSettings.of(self._url, options)
        if client is None:
            self._client = _client(self._url, settings, retries_max=settings.retries_max)
            self._client_once = _client(self._url, settings, retries_max=0)
            self._cache_key: Hashable | None = (self._url, _digest(settings))
        else:
            self._client = self._client_once = client
            self._cache_key = None  # The client's settings are unknown.
        self._copies = LocalCopies(settings.cache_dir, settings.cache_bytes)

    @property
    def url(self) -> str:
        return self._url

    @property
    def cache_key(self) -> Hashable | None:
        return self._cache_key

    def __repr__(self) -> str:
        return f"ObjectStore({masked(self.url)!r})"

    def iter_above(self) -> Iterator[ObjectStore]:
        """Yield the prefixes above this one, the nearest first, and the bucket."""
        parts = urlsplit(self._url)
        for folder in PurePosixPath(parts.path).parents:
            url = f"{parts.scheme}://{parts.netloc}{str(folder).rstrip('/')}"
            yield ObjectStore(url, {}, settings=self._settings)

    def read(self, path: str, *, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        for _ in range(self._settings.retries_max):
            try:
                return self._read_once(path, bytes_max)
            except StorageError as error:
                if not is_cut_short(error):
                    raise
            time.sleep(random.random() * _PAUSE_SECONDS)
        return self._read_once(path, bytes_max)

    def _read_once(self, path: str, bytes_max: int) -> bytes:
        with self._translated("read", path):
            answer = obstore.get(self._client, path)
            size: int = answer.meta["size"]
            if size > bytes_max:
                raise CorruptionError.in_file(
                    f"{self._url}/{path}", f"at most {bytes_max} bytes", f"{size}"
                )
            return answer.bytes().to_bytes()

    def prepare(self, folder: str) -> None:
        """Require conditional puts; a bucket has no folders."""
        self._require_conditional_put()

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create an object; False if another one exists (`Store.put_if_absent`).

        A response may be lost after the put took effect. So it is repeated here and not by the
        client, and an object existing after an uncertain try is compared.
        """
        self._require_conditional_put()
        deadline = time.monotonic() + self._settings.retry_seconds_max
        tries = 0
        while True:
            try:
                created = self._try_create(path, data)
            except StorageError as error:
                late = time.monotonic() >= deadline or tries >= self._settings.retries_max
                if late or not may_pass(error):
                    raise
            else:
                # After a doubtful try, an object with our bytes is ours: they contain a token
                # unique to this writer.
                return created or (tries > 0 and self.read(path) == data)
            time.sleep(random.random() * min(_PAUSE_SECONDS * 2**tries, _PAUSE_SECONDS_MAX))
            tries += 1

    def _require_conditional_put(self) -> None:
        """Raise if the server ignores the condition and replaces an existing object.

        Writers would then replace each other's versions without an error. A bucket's refusal is
        remembered for the process; after a storage error the next call tries again. The empty probe
        object remains.
        """
        bucket = f"{self._server} {urlsplit(self._url).netloc}"
        if bucket in _conditional_buckets:
            return
        try:
            is_ignored = self._try_create(PROBE, b"") and self._try_create(PROBE, b"")
        except StorageError:
            return  # Unknown: the put itself reports an error, and the next put tests again.
        if is_ignored:
            raise OptionError(
                f"'{self._url}' lies in a storage that replaces an object although it was asked "
                "to put it only if absent (If-None-Match: *).",
                hint="use a storage with conditional puts; docs/object-stores.md names some.",
                option="path",
            )
        _conditional_buckets.add(bucket)

    def _try_create(self, path: str, data: bytes) -> bool:
        with self._translated("create", path):
            try:
                obstore.put(self._client_once, path, data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError) as error:
                if is_conflict(error):
                    raise
                return False
            return True

    def sync(self, path: str) -> None:
        """Do nothing: a readable object is durable."""

    def put(self, path: str, data: bytes) -> None:
        with self._translated("write", path):
            obstore.put(self._client, path, data)

    def create(self, path: str) -> ObjectUpload:
        return ObjectUpload(self, path)

    def upload(self, path: str, file: Any, size: int) -> None:
        """Put an open file; a large one in parts, visible together."""
        with self._translated("write", path):
            obstore.put(
                self._client,
                path,
                file,
                chunk_size=max(RANGE_BYTES, -(-size // _PARTS_MAX)),
                max_concurrency=RANGES_AT_ONCE,
            )
        if size <= RANGE_BYTES:
            self._keep(path, file, size)

    def _keep(self, path: str, file: Any, size: int) -> None:
        """Copy a small new object locally, because its keys are looked up soon.

        Errors are ignored: the copy is optional.
        """

        def fill(copy: CopyFile) -> int:
            file.seek(0)
            copy.write_at(file.read(), 0)
            return size

        with suppress(OSError, UpsertFlowError):
            self._copies.map(self._copy_name(path), fill)

    def fetch(self, sizes: Mapping[str, int]) -> None:
        small = [
            path
            for path, size in sizes.items()
            if size <= RANGE_BYTES and self.mapped_file(path) is None
        ]
        if sum(sizes[path] for path in small) > self._copies.capacity_bytes:
            return  # One would push the other out before it is mapped.
        for few in _group_for_fetch(small, sizes):
            for _ in map_in_order(self._fetch_copy, few, len(few)):
                pass

    def _fetch_copy(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self.map(path)

    def map(self, path: str) -> pa.Buffer:
        return self._copies.map(self._copy_name(path), lambda file: self._fetch(path, file))

    def needs_fetch(self, path: str) -> bool:
        return self.mapped_file(path) is None

    def reserve(self, size: int) -> bool:
        return self._copies.reserve(size)

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]], size: int) -> Sequence[Any]:
        fetch = partial(self._fetch_ranges, path)
        return self._copies.read_ranges(self._copy_name(path), ranges, size, fetch)

    def _fetch_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[Any]:
        with self._translated("read", path):
            buffers = obstore.get_ranges(
                self._client,
                path,
                starts=[low for low, _ in ranges],
                ends=[high for _, high in ranges],
                coalesce=0,
            )
        return [
            self._require_whole(path, low, high, data)
            for (low, high), data in zip(ranges, buffers, strict=True)
        ]

    def mapped_file(self, path: str) -> MappedFile | None:
        return self._copies.file_of(self._copy_name(path))

    def release(self, buffer: pa.Buffer) -> None:
        release_mapped(buffer)

    def forget(self, path: str) -> None:
        """Remove an object's local copy, so the next `map` fetches it again."""
        self._copies.forget(self._copy_name(path))

    def _copy_name(self, path: str) -> str:
        return hashlib.sha256(f"{self._server} {self._url}/{path}".encode()).hexdigest()[:40]

    @property
    def _server(self) -> str:
        """The configured server or account; empty for the cloud's default."""
        config = self._settings.config
        return config.get("endpoint") or config.get("base_url") or config.get("account_name", "")

    def _fetch(self, path: str, file: CopyFile) -> int:
        with self._translated("read", path):
            try:
                answer = obstore.get(self._client, path, options={"range": (0, RANGE_BYTES)})
            except BaseError as error:
                if not _EMPTY_RANGE.search(str(error)):
                    raise
                answer = obstore.get(self._client, path)  # An empty object has no range.
            size: int = answer.meta["size"]
            self._write_range(path, file, 0, min(size, RANGE_BYTES), answer.bytes())
            if size <= RANGE_BYTES:
                return size

            def fetch_range(start: int) -> None:
                stop = min(start + RANGE_BYTES, size)
                data = obstore.get_range(self._client, path, start=start, end=stop)
                self._write_range(path, file, start, stop, data)

            with ThreadPoolExecutor(RANGES_AT_ONCE) as pool:
                ranges = [
                    pool.submit(fetch_range, at) for at in range(RANGE_BYTES, size, RANGE_BYTES)
                ]
                try:
                    for byte_range in ranges:
                        byte_range.result()
                finally:
                    pool.shutdown(wait=False, cancel_futures=True)
        return size

    def _write_range(self, path: str, file: CopyFile, start: int, stop: int, data: Any) -> None:
        file.write_at(self._require_whole(path, start, stop, data), start)

    def _require_whole(self, path: str, start: int, stop: int, data: Any) -> memoryview:
        view = memoryview(data)
        if view.nbytes != stop - start:
            raise StorageError(
                f"'{self._url}/{path}' sent {view.nbytes} bytes for those from {start} to {stop}.",
                hint="try again; if it persists, check what stands between here and the storage.",
                url=f"{self._url}/{path}",
            )
        return view

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        with self._translated("list", prefix):
            if after:
                # Starts after `after` at the server; lists subfolders too, unlike the other.
                chunks = obstore.list(
                    self._client, prefix or None, offset=after, chunk_size=_LIST_CHUNK
                )
                entries = [entry for chunk in chunks for entry in chunk]
            else:
                entries = list(obstore.list_with_delimiter(self._client, prefix or None)["objects"])
        depth = prefix.count("/") + bool(prefix)
        for entry in sorted(entries, key=lambda entry: entry["path"]):
            if entry["path"] > after and entry["path"].count("/") == depth:
                yield ObjectInfo(
                    path=entry["path"],
                    bytes=entry["size"],
                    modified_s=entry["last_modified"].timestamp(),
                )

    def folders(self, prefix: str) -> Iterator[str]:
        with self._translated("list", prefix):
            answer = obstore.list_with_delimiter(self._client, prefix or None)
        yield from sorted(path.rpartition("/")[2] for path in answer["common_prefixes"])

    def temporaries(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield nothing: objects appear complete, and upload parts are not listed."""
        return iter(())

    def delete(self, path: str) -> None:
        # Some servers answer "not found" to a delete; the object is absent either way.
        try:
            with self._translated("delete", path):
                obstore.delete(self._client, path)
        except FileNotFoundError:
            return

    @contextmanager
    def _translated(self, verb: str, path: str) -> Iterator[None]:
        """Translate obstore's errors into ours; nothing else catches them."""
        _refuse_after_fork()
        try:
            yield
        except (BaseError, FileNotFoundError, NotImplementedError) as error:
            raise translate(error, verb=verb, url=f"{self._url}/{path}") from error

    def spool(self) -> tuple[Any, Path]:
        """Return an unnamed file, in memory while it is small, and its folder."""
        folder = self._copies.folder()
        return tempfile.SpooledTemporaryFile(max_size=RANGE_BYTES, dir=str(folder)), folder


class ObjectUpload:
    """An object put, complete, when closed without an error."""

    def __init__(self, store: ObjectStore, path: str) -> None:
        self._store = store
        self._path = path
        self._file, self._folder = store.spool()

    def write(self, data: bytes) -> int:
        with usable(self._folder):
            written: int = self._file.write(data)
        return written

    def __enter__(self) -> ObjectUpload:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._file as file:
            if error is None:
                size = file.tell()
                file.seek(0)
                self._store.upload(self._path, file, size)


_conditional_buckets: set[str] = set()
"""Buckets refusing a put to an existing object."""

_runtime_process: int | None = None
"""The process owning obstore's request threads."""


def _refuse_after_fork() -> None:
    """Raise in a forked child whose parent has used obstore: without its threads it would hang."""
    global _runtime_process
    process = os.getpid()
    if _runtime_process is None:
        _runtime_process = process
    elif _runtime_process != process:
        raise UpsertFlowError(
            f"process {process} was forked from {_runtime_process} after that one had used object "
            "storage; obstore does not survive a fork.",
            hint="start processes with multiprocessing's 'spawn' or 'forkserver' method.",
        )


def _refuse_other_endpoint(endpoint: str | None) -> None:
    """Raise if an environment variable would override the option in obstore."""
    variable = os.environ.get(_ENDPOINT_VARIABLE)
    if endpoint and variable and endpoint.rstrip("/") != variable.rstrip("/"):
        raise OptionError(
            f"'storage.endpoint' is '{endpoint}', but the environment variable "
            f"{_ENDPOINT_VARIABLE} is '{variable}' and would win.",
            hint=f"unset {_ENDPOINT_VARIABLE}, or leave 'storage.endpoint' away.",
            option="storage.endpoint",
        )


def _digest(settings: ObjectSettings) -> str:
    """Return a digest over all settings, environment variables included."""
    identity = (
        settings.cloud.value,
        sorted(settings.config.items()),
        sorted(settings.client.items()),
    )
    ambient = sorted(item for item in os.environ.items() if item[0].startswith(_VARIABLES))
    return hashlib.sha256(repr((identity, ambient)).encode()).hexdigest()


def _client(url: str, settings: ObjectSettings, *, retries_max: int) -> Any:
    """Create a client; no request is sent yet."""
    address = f"s3{url[3:]}" if url.startswith("s3a") else url
    config: dict[str, Any] = dict(settings.config)
    if settings.cloud is Cloud.S3:
        _refuse_other_endpoint(config.get("endpoint"))
        # Objects are deleted one by one, and not every server knows the request for many.
        config.setdefault("disable_bulk_delete", "true")
    from_url: Any = obstore.store.from_url  # Its overloads take the options of one cloud each.
    try:
        return from_url(
            address,
            config=config,
            client_options={**settings.client},
            retry_config={
                "max_retries": retries_max,
                "retry_timeout": timedelta(seconds=settings.retry_seconds_max),
            },
        )
    except (BaseError, ValueError) as error:
        text = str(error).split("\n\nDebug source")[0]
        raise OptionError(
            f"the 'storage' options for '{url}' do not make a connection: {text}.",
            hint="docs/object-stores.md lists the options of each cloud.",
            option="storage",
        ) from error


def _group_for_fetch(paths: Sequence[str], sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Yield paths in groups for parallel fetches."""
    few: list[str] = []
    held = 0
    for path in paths:
        if few and (len(few) == FETCHED_AT_ONCE or held + sizes[path] > FETCHED_BYTES):
            yield few
            few, held = [], 0
        few.append(path)
        held += sizes[path]
    if few:
        yield few
