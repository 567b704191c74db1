"""Contenders and programs that a section runs, in processes of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.contest import Place
from benchmarks.host import ROOT, Host
from benchmarks.sections.size import K
from benchmarks.workload import Workload


@contextmanager
def hosted(
    place: Place,
    contender: str,
    workload: Workload,
    *,
    folder: str | None = None,
    keep: bool = False,
    **setting: Any,
) -> Iterator[Host]:
    """Run a contender in an empty folder, or in the one that is there."""
    at = place.work / (folder or contender.replace(" ", "-"))
    if not keep:
        shutil.rmtree(at, ignore_errors=True)
    place.work.mkdir(parents=True, exist_ok=True)
    log = place.work / f"{contender.replace(' ', '-')}.log"
    host = Host(contender, at, workload, log=log, **setting)
    try:
        yield host
    finally:
        host.close()
        shutil.rmtree(at, ignore_errors=True)


@contextmanager
def inputs_on_spark(place: Place) -> Iterator[Host]:
    """Run the contender that makes, writes and reads very many small tables."""
    with hosted(place, "inputs on Spark", Workload(table_rows=K, batch_rows=K)) as host:
        host.call("open")
        yield host


def program(name: str, *asked: str) -> dict[str, Any]:
    """Run a benchmark that starts a Spark of its own, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *asked],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found
