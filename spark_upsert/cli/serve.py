"""`upsertflow serve`: tables on one page in a browser, kept up to date by looks at their logs.

The page is one file without anything from elsewhere, so that it works where there is no network. It
asks the server for a look as often as it likes; the server looks at most once in `REST_S`, however
many pages are open. It answers this machine alone unless it is told otherwise, and only reads.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from spark_upsert.cli.table_lines import TableLine, TableLines
from spark_upsert.errors import UpsertFlowError
from spark_upsert.table.compaction import due_jobs
from spark_upsert.table.table import Table

EPOCHS_SHOWN = 60
"""Epochs whose counters are plotted; as many versions are read for them at most, and once."""

REST_S = 1.0
"""A look is as good for so long: pages that ask meanwhile get the same one."""

_PAGE = "serve.html"

_SECURITY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:"
)
"""Whatever a table is called, the page loads and runs nothing but what is in it."""


class Looks:
    """What the page shows, looked up when it is asked for. Safe for threads.

    Parameters
    ----------
    lines : TableLines
    clock : callable, optional
        Returns seconds that only grow.
    """

    def __init__(self, lines: TableLines, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lines = lines
        self._clock = clock
        self._lock = threading.Lock()
        self._told: tuple[float, bytes] | None = None

    def data(self) -> bytes:
        """Return the newest look as JSON."""
        with self._lock:
            if self._told is None or self._clock() >= self._told[0] + REST_S:
                lines = [self._shown(line) for line in self._lines.look()]
                told = {"tables": lines, "left_out": self._lines.left_out}
                self._told = self._clock(), json.dumps(told).encode()
            return self._told[1]

    def _shown(self, line: TableLine) -> dict[str, Any]:
        told = line.to_json()
        if line.problem is not None:
            return told
        try:
            return told | _more(self._lines.table(line.table))
        except (UpsertFlowError, OSError) as error:
            return told | {"problem": str(error).partition("\n")[0]}


def _more(table: Table) -> dict[str, Any]:
    """Return what a look at many tables leaves out: debt, frontiers, and what epochs did."""
    with table.log.last_look() as look:
        head = look.head()
        lower = max(head.since, head.upper - EPOCHS_SHOWN)
        epochs = [each for each in look.commits(lower, head.upper) if each.is_epoch]
        debt = len(due_jobs(look, table.log.now_ms()))
    history = [{"version": each.version, **each.counters} for each in epochs]
    return {"since": head.since, "debt": debt, "history": history}


def server_of(looks: Looks, host: str, port: int) -> ThreadingHTTPServer:
    """Return a server of the page; port 0 takes any that is free."""
    page = files("spark_upsert.cli").joinpath(_PAGE).read_bytes()

    class Handler(BaseHTTPRequestHandler):
        """Answers with the page, or with what it shows."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            match self.path.partition("?")[0]:
                case "/":
                    self._answer(page, "text/html; charset=utf-8")
                case "/data.json":
                    self._answer(looks.data(), "application/json")
                case _:
                    self.send_error(HTTPStatus.NOT_FOUND)

        def _answer(self, body: bytes, kind: str) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", _SECURITY)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a page asks every two seconds."""

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    return server
