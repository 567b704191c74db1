"""An S3 gateway to a folder that counts requests and bytes and adds a latency.

It is for cost: a table on it is read by the client that users have, over HTTP, so that the counts
are those of a bill. It verifies no signature and has no policies, which `tests.support.s3` is for.
A file below the folder is an object; a bucket is a folder. A put replaces a file atomically, so
tables may share files by hard links. Requests are served by one thread, so that a conditional put is
atomic.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from time import gmtime, strftime
from urllib.parse import parse_qsl, unquote, urlsplit
from uuid import uuid4
from xml.sax.saxutils import escape

BUCKET = "bucket"

_PIECE_BYTES = 256 << 10
"""Bytes handed to the socket in one step; more than that is not counted beyond a client's end."""

_PART = ".part~"
"""Suffix for unfinished uploads, which no listing shows."""

_LIST_MAX = 1_000


@dataclass
class Traffic:
    """Requests and their body bytes since the last `CountedS3.take`."""

    gets: int = 0
    """Reads, including those of absent objects."""
    puts: int = 0
    """Puts, parts of uploads, starts and ends of uploads; deletes are free."""
    lists: int = 0
    deletes: int = 0
    refused: int = 0
    """Conditional puts to existing objects, which are among the puts."""
    get_bytes: int = 0
    data_bytes: int = 0
    """Those of runs: what is not the log."""
    put_bytes: int = 0
    at_once: int = 0
    """Most requests in progress at one time."""

    @property
    def requests(self) -> int:
        """All requests but deletes."""
        return self.gets + self.puts + self.lists

    def to_json(self) -> dict[str, int]:
        """Return the counts that a figure is made from."""
        return {"bytes": self.get_bytes, "requests": self.requests, "put_bytes": self.put_bytes}


@dataclass
class CountedS3:
    """A running gateway."""

    folder: Path
    endpoint: str = ""
    latency_s: float = 0.0
    on_get: Callable[[str, int], bool] | None = None
    """Called for each read of an object, with its key and its number since `take`; True cuts the
    body in half, and the connection."""
    _traffic: Traffic = field(default_factory=Traffic)
    _now: int = 0
    _uploads: dict[str, dict[int, Path]] = field(default_factory=dict)

    def url(self, table: str) -> str:
        """Return the address of a table."""
        return f"s3://{BUCKET}/{table}"

    def path(self, table: str) -> Path:
        """Return a table's folder on the disk; a table made there by `LocalStore` is the same."""
        return self.folder / BUCKET / table

    def storage(self, cache: Path, cache_bytes: str | None = None) -> dict[str, str]:
        """Return the storage options of a machine with this folder for local copies."""
        cache.mkdir(parents=True, exist_ok=True)
        options = {
            "endpoint": self.endpoint,
            "access_key_id": "any",
            "secret_access_key": "any",
            "region": "us-east-1",
            "allow_http": "true",
            "cache_dir": str(cache),
        }
        return options if cache_bytes is None else {**options, "cache_bytes": cache_bytes}

    def take(self) -> Traffic:
        """Return the counts since the last call, and begin again from zero."""
        taken, self._traffic = self._traffic, Traffic()
        return taken

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        ended = (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError)
        with suppress(*ended):
            while line := await reader.readline():
                method, target, _ = line.decode().split(" ", 2)
                headers = {}
                while (header := (await reader.readline()).decode("latin1").strip()) != "":
                    name, _, value = header.partition(":")
                    headers[name.lower()] = value.strip()
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self._now += 1
                self._traffic.at_once = max(self._traffic.at_once, self._now)
                try:
                    if self.latency_s:
                        await asyncio.sleep(self.latency_s)
                    parts = urlsplit(target)
                    query = dict(parse_qsl(parts.query, keep_blank_values=True))
                    key = unquote(parts.path).lstrip("/")
                    if method in ("GET", "HEAD") and "list-type" not in query:
                        if not await self._get(method, key, headers, writer):
                            break
                    else:
                        answer = self._answer(method, key, query, headers, body)
                        writer.write(answer)
                    await writer.drain()
                finally:
                    self._now -= 1
        writer.close()

    async def _get(
        self, method: str, key: str, headers: Mapping[str, str], writer: asyncio.StreamWriter
    ) -> bool:
        """Send an object or a range of it; returns whether the connection stays open."""
        traffic = self._traffic
        traffic.gets += 1
        path = self._path(key)
        if not path.is_file():
            writer.write(_response(404, b"" if method == "HEAD" else _error("NoSuchKey")))
            return True
        status, code = path.stat(), 200
        low, high = 0, status.st_size
        extra = [_etag(path), f"Last-Modified: {formatdate(status.st_mtime, usegmt=True)}"]
        if (given := headers.get("range")) is not None:
            first, _, last = given.partition("=")[2].partition("-")
            if first:
                low, high = int(first), min(high, int(last) + 1) if last else high
            else:
                low = max(0, high - int(last))
            code = 206
            extra.append(f"Content-Range: bytes {low}-{high - 1}/{status.st_size}")
        writer.write(_response(code, b"", extra, length=high - low))
        if method == "HEAD":
            return True
        is_cut = self.on_get is not None and self.on_get(key, traffic.gets)
        is_data = "/_log/" not in key
        with path.open("rb") as file:
            file.seek(low)
            high = (low + high) // 2 if is_cut else high
            while low < high:
                piece = file.read(min(_PIECE_BYTES, high - low))
                low += len(piece)
                # Before the client can have it, and look at the counts.
                traffic.get_bytes += len(piece)
                traffic.data_bytes += is_data * len(piece)
                writer.write(piece)
                await writer.drain()
        return not is_cut

    def _answer(
        self,
        method: str,
        key: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes,
    ) -> bytes:
        """Do everything but reads; returns the response."""
        traffic, path = self._traffic, self._path(key)
        match method:
            case "GET":
                traffic.lists += 1
                return _response(200, self._listing(key.split("/")[0], query))
            case "DELETE":
                traffic.deletes += 1
                path.unlink(missing_ok=True)
                return _response(204)
            case "PUT" if "partNumber" in query:
                part = path.with_name(f"{query['uploadId']}-{query['partNumber']}{_PART}")
                self._write(part, body)
                self._uploads[query["uploadId"]][int(query["partNumber"])] = part
                return _response(200, b"", [f'ETag: "{uuid4().hex}"'])
            case "PUT" if headers.get("if-none-match") == "*" and path.exists():
                traffic.puts += 1
                traffic.refused += 1
                return _response(412, _error("PreconditionFailed"))
            case "PUT":
                self._write(path, body)
                return _response(200, b"", [_etag(path)])
            case "POST" if "uploads" in query:
                traffic.puts += 1
                upload = uuid4().hex
                self._uploads[upload] = {}
                return _response(200, _xml("InitiateMultipartUploadResult", UploadId=upload))
            case "POST" if "uploadId" in query:
                traffic.puts += 1
                whole = path.with_name(f"{query['uploadId']}{_PART}")
                parts = self._uploads.pop(query["uploadId"])
                with whole.open("wb") as file:
                    for number in sorted(parts):
                        file.write(parts[number].read_bytes())
                        parts[number].unlink()
                whole.replace(path)
                etag = _etag(path).partition(" ")[2]
                return _response(200, _xml("CompleteMultipartUploadResult", ETag=etag))
        return _response(501)

    def _write(self, path: Path, body: bytes) -> None:
        self._traffic.puts += 1
        self._traffic.put_bytes += len(body)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{uuid4().hex}{_PART}")
        unfinished.write_bytes(body)
        unfinished.replace(path)

    def _path(self, key: str) -> Path:
        path = Path(os.path.normpath(self.folder / key))
        assert path.is_relative_to(self.folder), key
        return path

    def _listing(self, bucket: str, query: Mapping[str, str]) -> bytes:
        prefix, root = query.get("prefix", ""), self.folder / bucket
        after = query.get("continuation-token") or query.get("start-after", "")
        keys, folders = [], []
        for place, below, names in os.walk(root / prefix.rpartition("/")[0]):
            base = "" if place == str(root) else f"{Path(place).relative_to(root)}/"
            if "delimiter" in query:
                folders += [f"{base}{name}/" for name in below]
                below.clear()
            keys += [base + name for name in names if not name.endswith(_PART)]
        keys = sorted(key for key in keys if key.startswith(prefix) and key > after)
        entries = "".join(
            _element(
                "Contents",
                Key=key,
                LastModified=_time((root / key).stat().st_mtime),
                ETag='"0"',
                Size=str((root / key).stat().st_size),
            )
            for key in keys[:_LIST_MAX]
        )
        commons = [
            _element("CommonPrefixes", Prefix=f) for f in sorted(folders) if f.startswith(prefix)
        ]
        ends = {"IsTruncated": "false"}
        if len(keys) > _LIST_MAX:
            ends = {"IsTruncated": "true", "NextContinuationToken": keys[_LIST_MAX - 1]}
        fields = _fields(Name=bucket, **ends)
        return f"<ListBucketResult>{fields}{entries}{''.join(commons)}</ListBucketResult>".encode()


def _response(
    status: int, body: bytes = b"", headers: Sequence[str] = (), *, length: int | None = None
) -> bytes:
    length = len(body) if length is None else length
    lines = [f"HTTP/1.1 {status} -", f"Content-Length: {length}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def _time(seconds: float) -> str:
    return strftime("%Y-%m-%dT%H:%M:%S.000Z", gmtime(seconds))


def _etag(path: Path) -> str:
    status = path.stat()
    return f'ETag: "{status.st_mtime_ns:x}-{status.st_size:x}"'


def _fields(**fields: str) -> str:
    return "".join(f"<{name}>{escape(text)}</{name}>" for name, text in fields.items())


def _element(element: str, **fields: str) -> str:
    return f"<{element}>{_fields(**fields)}</{element}>"


def _xml(element: str, **fields: str) -> bytes:
    return _element(element, **fields).encode()


def _error(code: str) -> bytes:
    return _xml("Error", Code=code)


@contextmanager
def counted_s3(folder: Path) -> Iterator[CountedS3]:
    """Run a gateway to a folder, on a free loopback port, until the context ends."""
    (folder / BUCKET).mkdir(parents=True, exist_ok=True)
    gateway = CountedS3(folder.resolve())
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(
        asyncio.start_server(gateway.serve, "127.0.0.1", 0, limit=1 << 20, backlog=512)
    )
    gateway.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def stop() -> None:
        server.close()
        open_connections = [
            task for task in asyncio.all_tasks() if task is not asyncio.current_task()
        ]
        for connection in open_connections:
            connection.cancel()
        await asyncio.gather(*open_connections, return_exceptions=True)

    try:
        yield gateway
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
