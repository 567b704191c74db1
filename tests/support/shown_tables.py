"""Two tables, one of them with a hostile name, and the page that shows them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from spark_upsert.cli.serve import Looks, server_of
from spark_upsert.cli.top import Top
from spark_upsert.table.table import Table

COLUMNS = pa.schema({"k": pa.int64(), "v": pa.int64()})
HOSTILE = "<img src=x onerror=document.title='taken'>"


def two_tables(root: Path) -> Path:
    """Make both below a folder, each with three epochs and a consumer that is behind."""
    for name in ("orders", HOSTILE):
        table = Table.create(str(root / name), COLUMNS, keys=["k"])
        for epoch in range(3):
            table.append(pa.table({"k": [0, epoch], "v": [epoch, epoch]}, schema=COLUMNS))
        table.hold("slow", 1)
    return root


@contextmanager
def served(root: Path) -> Iterator[str]:
    """Serve the page of all tables below a folder; gives its address."""
    with server_of(Looks(Top([str(root)])), "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
