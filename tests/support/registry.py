"""A schema registry to test against: the part of Confluent's REST interface that readers use.

Real HTTP on loopback, and the answers of the real one, errors with their codes included; ids count
from 1. What a test wants to go wrong it says: `refuse_next`, `user`,
`hostile`.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from typing import Any
from urllib.parse import unquote

Answer = tuple[int, dict[str, Any]]

Answering = Callable[[BufferedIOBase], None]
"""Writes an answer, headers and all; it may go on until nobody listens."""

_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def endless(out: BufferedIOBase) -> None:
    """Answer without end."""
    out.write(_OK + b"Connection: close\r\n\r\n")
    while True:
        out.write(b" " * 65_536)


def slow(out: BufferedIOBase) -> None:
    """Answer a byte at a time, without end."""
    out.write(_OK + b"Content-Length: 1000000000\r\n\r\n")
    while True:
        out.write(b" ")


def slow_headers(out: BufferedIOBase) -> None:
    """Send headers without end, each of which says to go on."""
    while True:
        out.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def bomb(out: BufferedIOBase) -> None:
    """Answer with a gigabyte, packed to a megabyte."""
    packer = zlib.compressobj(9, wbits=31)
    zeros = bytes(1 << 24)
    packed = b"".join(packer.compress(zeros) for _ in range(64)) + packer.flush()
    head = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    out.write(_OK + head + packed)


class RegistryDouble:
    """What a registry holds, and what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        self.headers: list[Mapping[str, str]] = []
        self.user: tuple[str, str] | None = None
        """If it is set: who may ask."""
        self.refuse_next: list[int] = []
        """The statuses of the next answers."""
        self.hostile: Answering | None = None
        """If it is set: what answers, instead of the registry."""
        self._schemas: list[dict[str, Any]] = []
        self._subjects: dict[str, list[int]] = {}
        self._lock = threading.Lock()

    def register(
        self,
        subject: str,
        schema: Any,
        kind: str = "AVRO",
        references: Sequence[tuple[str, str, int]] = (),
    ) -> int:
        """Add a version of a subject; returns the schema's id, the same for the same schema."""
        record: dict[str, Any] = {
            "schema": schema if isinstance(schema, str) else json.dumps(schema)
        }
        if kind != "AVRO":
            record["schemaType"] = kind
        if references:
            names = ("name", "subject", "version")
            record["references"] = [dict(zip(names, each, strict=True)) for each in references]
        with self._lock:
            if record not in self._schemas:
                self._schemas.append(record)
            number = self._schemas.index(record) + 1
            versions = self._subjects.setdefault(subject, [])
            if number not in versions:
                versions.append(number)
        return number

    def answer(self, path: str, authorization: str | None) -> Answer:
        """Return the answer to a request."""
        self.asked.append(path)
        if self.refuse_next:
            return self.refuse_next.pop(0), {"error_code": 50001, "message": "not now"}
        if self.user is not None:
            expected = base64.b64encode(":".join(self.user).encode()).decode()
            if authorization != f"Basic {expected}":
                return 401, {"error_code": 401, "message": "Unauthorized"}
        if match := re.fullmatch(r"/schemas/ids/(\d+)", path):
            number = int(match[1])
            if not 1 <= number <= len(self._schemas):
                return 404, {"error_code": 40403, "message": "Schema not found"}
            return 200, self._schemas[number - 1]
        if match := re.fullmatch(r"/subjects/([^/]+)/versions/(latest|\d+)", path):
            subject = unquote(match[1])
            versions = self._subjects.get(subject)
            if versions is None:
                return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
            version = len(versions) if match[2] == "latest" else int(match[2])
            if not 1 <= version <= len(versions):
                return 404, {"error_code": 40402, "message": "Version not found."}
            number = versions[version - 1]
            known = {"subject": subject, "version": version, "id": number}
            return 200, {**known, **self._schemas[number - 1]}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


@contextmanager
def running_registry() -> Iterator[RegistryDouble]:
    """Run an empty registry on loopback."""
    double = RegistryDouble()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Else a body waits for the client to confirm its headers: 40 ms for each answer.
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            double.headers.append(dict(self.headers))
            if double.hostile is not None:
                self.close_connection = True
                with suppress(OSError):  # Who asked has heard enough.
                    double.hostile(self.wfile)
                return
            status, body = double.answer(self.path, self.headers.get("Authorization"))
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    double.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield double
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def framed(schema_id: int, payload: bytes) -> bytes:
    """Return a payload behind Confluent's header."""
    return struct.pack(">bI", 0, schema_id) + payload
