"""A Docker engine that runs nothing: it answers as one does, and notes what it was asked for."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

ID = "c0ffee" * 10


@dataclass
class Engine:
    """What the engine has heard."""

    port: int = 0
    images: tuple[str, ...] = ()
    """Those that it has; it finds no others."""
    created: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """Methods and what they were about, such as ``POST kill``."""
    status: str = "created"

    @property
    def address(self) -> str:
        """The value of DOCKER_HOST."""
        return f"tcp://127.0.0.1:{self.port}"

    def answer(self, method: str, words: list[str], body: Any) -> tuple[int, Any]:
        """Return status and body of the answer to a request."""
        self.asked.append(f"{method} {words[-1]}")
        match method, words:
            case "GET", ["version"]:
                return 200, {"ApiVersion": "1.44", "Version": "0"}
            case "GET", ["_ping"]:
                return 200, "OK"
            case "GET", ["images", *name, "json"] if "/".join(name) in self.images:
                return 200, {"Id": ID, "RepoTags": ["/".join(name)]}
            case "POST", ["containers", "create"] if body["Image"] in self.images:
                self.created.append(body)
                return 201, {"Id": ID, "Warnings": []}
            case ("POST", ["containers", "create"]) | ("POST", ["images", "create"]):
                return 404, {"message": "no such image"}
            case "POST", ["containers", _, verb]:
                self.status = "running" if verb == "start" else "exited"
                return 204, None
            case "GET", ["containers", _, "json"]:
                state = {"Status": self.status}
                return 200, {"Id": ID, "Name": "/server", "State": state, "Config": {"Tty": True}}
            case "GET", ["containers", _, "logs"]:
                return 200, "its last words"
            case "DELETE", ["containers", _]:
                self.status = "removed"
                return 204, None
        return 404, {"message": "not known here"}


@contextmanager
def running_engine(*images: str) -> Iterator[Engine]:
    """Start an engine that has some images."""
    engine = Engine(images=images)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Else a body waits for the client to confirm its headers: 40 ms for each answer.
        disable_nagle_algorithm = True

        def handle_request(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            words = urlsplit(self.path).path.strip("/").split("/")
            if words[0].startswith("v1."):
                words = words[1:]
            status, found = engine.answer(self.command, words, json.loads(text) if text else None)
            data = b"" if found is None else json.dumps(found).encode()
            if isinstance(found, str):
                data = found.encode()
            self.send_response_only(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = do_HEAD = handle_request

        def log_message(self, format: str, *args: object) -> None:
            """Be quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        engine.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield engine
        finally:
            server.shutdown()
            thread.join()
