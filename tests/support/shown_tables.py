"""Tables with all that a look at many may show, one with a hostile name, and the page of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from spark_upsert.cli.serve import CachedPoll, TableLines, server_of
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.routed.commit import commit_routed
from spark_upsert.routed.plan import plan_routed
from spark_upsert.routed.stage import stage_routed
from spark_upsert.store import LocalStore
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.table import Table
from tests.support.routed_worlds import transaction

COLUMNS = pa.schema({"k": pa.int64(), "v": pa.int64()})
HOSTILE = "<img src=x onerror=document.title='taken'>"


def two_tables(root: Path) -> Path:
    """Make both below a folder, each with three epochs and a consumer that is behind."""
    for name in ("orders", HOSTILE):
        table = Table.create(str(root / name), COLUMNS, keys=["k"])
        for epoch in range(3):
            table.upsert(pa.table({"k": [0, epoch], "v": [epoch, epoch]}, schema=COLUMNS))
        table.hold("slow", 1)
    return root


def write_parked(root: Path) -> None:
    """Write two tables by one write, and publish one; park rows of it, and of no table."""
    rows = pa.schema({"topic": pa.string(), "k": pa.int64(), "v": pa.int64()})
    store = LocalStore(root)
    path = f"{root}/{{topic}}"
    options = RoutedOptions.parse(
        {"path": path, "keys": "k", "columnList": "k,v", "onTableError": "park"}
    )
    Table.create(str(root / "a"), pa.schema({"k": pa.int64()}), keys=["k"]).publish()
    late, batch = LateRows.REJECT, transaction(0)
    plan = plan_routed(options, rows, root=store, overwrite=False, late_rows=late)
    columns = {"topic": ["a", "a", "b", None], "k": [1, 2, 1, 1], "v": [1, 1, 1, 1]}
    given = [pa.RecordBatch.from_pydict(columns, schema=rows)]
    staged = [stage_routed(plan, store, given, batch, 0, threads=1)]
    commit_routed(store, options, staged, batch, overwrite=False, late_rows=late)


@contextmanager
def served(root: Path) -> Iterator[str]:
    """Serve the page of all tables below a folder; gives its address."""
    with server_of(CachedPoll(TableLines([str(root)])), "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
