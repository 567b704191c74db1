"""A proxy in front of an object store that loses answers, invents errors and cuts bodies.

It stands on a loopback port of its own and forwards real HTTP, so that what is tested is the
client that users have. A fault strikes a given number of requests that match, then the line
is good again.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_CONFLICT = b"<Error><Code>ConditionalRequestConflict</Code><Message>Busy</Message></Error>"

_REFUSED = b"<Error><Code>InvalidDigest</Code><Message>No</Message></Error>"


class Fault(Enum):
    """What happens to a request."""

    LOST_REQUEST = "the connection closes; the server never hears of it"
    LOST_ANSWER = "the server obeys; the connection closes without an answer"
    UNAVAILABLE = "503; the server never hears of it"
    ERROR_AFTER_EFFECT = "the server obeys; a gateway answers 500"
    REFUSED = "400; the server never hears of it"
    CONFLICT = "409, as S3 answers while another conditional put is under way"
    CONDITION_IGNORED = "412 becomes 200, as of a server that does not know the condition"
    SILENCE = "the server never hears of it, and the connection stays open"
    CUT_BODY = "the answer ends after half of its body"


@dataclass
class _Trap:
    fault: Fault
    method: str
    part: str
    count: int


@dataclass
class Proxy:
    """A running proxy; `requests` are the methods and targets that it has seen."""

    endpoint: str
    requests: list[tuple[str, str]] = field(default_factory=list)
    _traps: list[_Trap] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def strike(self, fault: Fault, method: str, part: str = "", *, count: int = 1) -> None:
        """Let a fault happen to the next requests of a method whose target contains a part."""
        with self._lock:
            self._traps.append(_Trap(fault, method, part, count))

    def seen(self, method: str, part: str = "") -> int:
        """Return how many such requests came."""
        with self._lock:
            return sum(each == method and part in target for each, target in self.requests)

    def fault_of(self, method: str, target: str) -> Fault | None:
        """Note a request; returns what is to happen to it."""
        with self._lock:
            self.requests.append((method, target))
            for trap in self._traps:
                if trap.count > 0 and trap.method == method and trap.part in target:
                    trap.count -= 1
                    return trap.fault
            return None


@contextmanager
def proxy_before(endpoint: str) -> Iterator[Proxy]:
    """Start a proxy in front of a server."""
    upstream = urlsplit(endpoint).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Else a body waits for the client to confirm its headers: 40 ms for each answer.
        disable_nagle_algorithm = True

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = proxy.fault_of(self.command, self.path)
            match fault:
                case Fault.LOST_REQUEST:
                    self.hang_up()
                    return
                case Fault.SILENCE:
                    self.connection.recv(1)  # Until the client is gone.
                    self.hang_up()
                    return
                case Fault.UNAVAILABLE:
                    self.answer(503, {}, b"")
                    return
                case Fault.REFUSED:
                    self.answer(400, {}, _REFUSED)
                    return
                case Fault.CONFLICT:
                    self.answer(409, {}, _CONFLICT)
                    return
            # The header `Host` is forwarded as it is: it is part of the signature.
            line = http.client.HTTPConnection(upstream, timeout=60)
            line.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                line.putheader(name, value)
            line.endheaders(body)
            response = line.getresponse()
            data = response.read()
            line.close()
            match fault:
                case Fault.LOST_ANSWER:
                    self.hang_up()
                case Fault.ERROR_AFTER_EFFECT:
                    self.answer(500, {}, b"")
                case Fault.CONDITION_IGNORED if response.status == 412:
                    self.answer(200, {"ETag": '"0"'}, b"")
                case Fault.CUT_BODY:
                    self.answer(response.status, dict(response.headers), data, cut=True)
                case _:
                    self.answer(response.status, dict(response.headers), data)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward

        def answer(
            self, status: int, headers: dict[str, str], data: bytes, *, cut: bool = False
        ) -> None:
            self.send_response_only(status)
            kept = {name.lower(): value for name, value in headers.items()}
            for name in ("connection", "transfer-encoding"):
                kept.pop(name, None)
            if self.command != "HEAD":
                kept["content-length"] = str(len(data))
            for name, value in kept.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data[: len(data) // 2] if cut else data)
            if cut:
                self.hang_up()

        def hang_up(self) -> None:
            self.close_connection = True
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, format: str, *args: object) -> None:
            """Be quiet."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: object, client_address: object) -> None:
            """Be quiet: clients hang up as they please."""

    with Server(("127.0.0.1", 0), Handler) as server:
        proxy = Proxy(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()
