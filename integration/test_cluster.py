"""A standalone cluster whose executors are killed in the middle of writing and of reading.

The executors are processes of their own, so that nothing works only because the driver has it in
memory; and they are killed by SIGKILL while a task has read and written some of its rows.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from integration import chain
from integration.chaos import Chaos, Process, kill, processes
from integration.environ import from_checkout
from integration.queries import wait_until
from integration.servers.spark import EXECUTOR, Cluster

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
