"""A standalone cluster whose executors are killed in the middle of writing and of reading.

The executors are processes of their own, so that nothing works only because the driver has it in
memory; and they are killed by SIGKILL while a task has read and written some of its rows.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from integration import chain
from integration.chaos import Chaos, Process, kill, processes
from integration.environ import from_checkout
from integration.queries import wait_until
from integration.servers.spark import EXECUTOR, Cluster
from spark_upsert.table.table import Table
from tests.support.counted_s3 import counted_s3

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def executor_of(worker: int) -> Process:
    """Return the executor that a Python worker belongs to."""
    every = {process.pid: process for process in processes()}
    process = every[worker]
    while EXECUTOR not in process.command:
        process = every[process.parent]
    return process


def test_executors_die_while_they_write_and_while_they_read(
    cluster: Cluster, plain_environ: dict[str, str], tmp_path: Path
) -> None:
    environ = from_checkout(plain_environ)
    run = Chaos(tmp_path, seed=2, environ=environ, master=cluster.url, gates=True)
    run.batches += chain.add_commands(tmp_path, 2, batches=3)
    killed = []
    with run.program() as driver:
        for gate in (tmp_path / name for name in chain.GATES):
            wait_until(
                lambda gate=gate: gate.exists() and gate.read_text().endswith("\n"),
                f"a task is at {gate.name}",
            )
            victim = executor_of(int(gate.read_text()))
            kill([victim])
            killed.append(victim.pid)
        run.finished(driver)
    assert len(set(killed)) == len(chain.GATES)
    run.check()


UPSERT = """
import json, sys
from integration.chain import session
from upsertflow import by_hash
master, url, storage, rows, count = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), *map(int, sys.argv[4:])
spark = session(master, connect=False)
keys = spark.range(0, rows, rows // count, 2)
frame = keys.selectExpr("id", *(f"id AS c{index}" for index in range(10)))
frame = by_hash(frame, url, 2, storage_options=storage)
options = {f"storage.{name}": text for name, text in storage.items()}
frame.write.format("upsertflow").options(keys="id", **options).mode("append").save(url)
spark.stop()
"""


def test_executors_fetch_their_shares_of_a_table(
    cluster: Cluster, plain_environ: dict[str, str], tmp_path: Path
) -> None:
    rows, count = 800_000, 2_000
    columns = pa.schema({"id": pa.int64(), **{f"c{index}": pa.int64() for index in range(10)}})
    with counted_s3(tmp_path / "s3") as gateway:
        table = Table.create(str(gateway.path("t")), columns, keys=["id"])
        table.upsert(pa.Table.from_arrays([pa.array(range(rows))] * len(columns), schema=columns))
        table.compact(full=True)
        storage = gateway.storage(tmp_path / "unused")
        del storage["cache_dir"]  # Each worker has a folder of its own.
        arguments = [cluster.url, gateway.url("t"), json.dumps(storage), str(rows), str(count)]
        environ = {**from_checkout(plain_environ), "TMPDIR": str(tmp_path)}
        gateway.take()
        subprocess.run([sys.executable, "-c", UPSERT, *arguments], check=True, env=environ)
        fetched = gateway.take()
    commit = table.log.commit(table.log.head().version)
    assert commit.counters["updates"] == count, commit.counters
    assert fetched.data_bytes <= 0.25 * table.log.head().bytes
    folders = [list(w.program.log.parent.rglob("upsertflow-cache-*/*")) for w in cluster.workers]
    assert all(folders), "each worker has local copies"
