"""Local copies of a bucket's objects through kills, damage, cut responses and too little space.

Readers and a writer share one folder for local copies, which is smaller than the table. Whatever
happens to the folder, a reader finds the rows of the table, or an error that the next try does not
meet.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_upsert.errors import CorruptionError, UpsertFlowError
from spark_upsert.store import cache
from spark_upsert.table.run.remote import REMOTE_RUNS
from spark_upsert.table.table import Table
from tests.support.counted_s3 import CountedS3, counted_s3
from tests.support.stores import KilledError, forget_runs_and_logs

COLUMNS = pa.schema({"k": pa.int64(), "a": pa.int64(), "b": pa.int64(), "text": pa.string()})
KEYS = 30_000
ORDER = "ascending"
SEEDS = range(int(os.environ.get("COPIES_SEEDS", "6")))


def rows_of(keys: np.ndarray, number: int) -> pa.Table:
    columns = [keys, keys * 3, np.full(len(keys), number), [f"{key} {number}" for key in keys]]
    return pa.Table.from_arrays([pa.array(column) for column in columns], schema=COLUMNS)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[CountedS3]:
    with counted_s3(tmp_path / "s3") as running:
        yield running


@contextmanager
def killed_while_writing(count: int) -> Iterator[None]:
    """End the process, so far as it can be played here, in a write to a copy: half is written."""
    lock, left = threading.Lock(), [count]

    def pwrite(handle: int, data: Any, offset: int) -> int:
        with lock:
            left[0] -= 1
        if left[0] < 0:
            if left[0] == -1:
                os.pwrite(handle, memoryview(data)[: len(data) // 2], offset)
            raise KilledError("pwrite")
        return os.pwrite(handle, data, offset)

    own = {name: getattr(os, name) for name in dir(os)}
    with patch.object(cache, "os", SimpleNamespace(**{**own, "pwrite": pwrite})):
        yield


def restart() -> None:
    """Remember nothing, as after the end of the process."""
    forget_runs_and_logs()
    REMOTE_RUNS._runs.clear()


def damage(dice: Random, folder: Path) -> bool:
    """Change, cut or remove a file among the local copies, which no process has read."""
    restart()
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.stat().st_size)
    if not files:
        return False
    file = dice.choice(files)
    match dice.choice(["change", "change", "zero", "cut", "remove"]):
        case "change" | "zero" as how:
            at = dice.randrange(file.stat().st_size)
            with file.open("r+b") as opened:
                opened.seek(at)
                data = opened.read(dice.choice([1, 3_000]))
                opened.seek(at)
                opened.write(bytes(len(data)) if how == "zero" else bytes(b ^ 1 for b in data))
        case "cut":
            # Under a new name: a cut file that is mapped would end the process.
            whole = file.read_bytes()
            file.unlink()
            file.write_bytes(whole[: dice.randrange(len(whole))])
        case "remove":
            file.unlink()
    return True


def reads(table: Table, dice: Random, low: int) -> Callable[[], object]:
    """Draw a read that has an answer."""
    keys = [dice.randrange(KEYS) for _ in range(dice.choice([1, 5, 60, 2_000]))]
    version = dice.randint(low, table.log.head().version)
    match dice.choice(["get", "column", "changes", "rows"]):
        case "get":
            return lambda: table.get(keys, version=version).sort_by("k")
        case "column":
            return lambda: pc.sum(table.scan(["a"], version=version).read_all()["a"])
        case "changes":
            return lambda: table.changes(version, version + 1).sort_by([("k", ORDER), ("b", ORDER)])
        case _:
            return lambda: table.snapshot(version).sort_by("k")


@pytest.mark.parametrize("seed", SEEDS)
def test_readers_find_their_rows_whatever_happens_to_the_copies(
    gateway: CountedS3, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, folder = Random(f"copies {seed}"), gateway.folder.parent / "copies"
    monkeypatch.setattr(REMOTE_RUNS, "bytes_min", dice.choice([0, 100_000, 8 << 20]))
    made = Table.create(str(gateway.path("t")), COLUMNS, keys=["k"])
    keys = np.random.default_rng(seed).permutation(KEYS)
    made.upsert(rows_of(keys, 0))
    bound = made.log.head().bytes // dice.choice([1, 3, 8])
    storage = gateway.storage(folder, f"{bound}")
    happened = dict.fromkeys(["kill", "damage", "cut", "error"], 0)
    cuts = Random(f"cuts {seed}")

    def cut(key: str, number: int) -> bool:
        is_cut = "/data/" in key and cuts.random() < 0.02
        happened["cut"] += is_cut
        return is_cut

    gateway.on_get = cut
    for step in range(25):
        near = Table.open(str(gateway.path("t")))
        match dice.choice(["write", "far write", "compact", "restart", "damage", "kill", "none"]):
            case "write":
                near.upsert(rows_of(keys[: dice.choice([3, 500])] + step % 2, step))
            case "far write":
                number = dice.choice([1, 40])
                far = Table.open(gateway.url("t"), storage_options=storage)
                retried(partial(far.upsert, rows_of(keys[:number], 9)), happened)
            case "compact":
                near.compact(full=dice.random() < 0.5)
            case "restart":
                restart()
            case "damage":
                happened["damage"] += damage(dice, folder)
            case "kill":
                restart()
                killed = Table.open(gateway.url("t"), storage_options=storage)
                act = reads(killed, dice, 1)
                with killed_while_writing(dice.randrange(6)):
                    try:
                        act()
                    except (KilledError, UpsertFlowError):
                        happened["kill"] += 1
                restart()
        far = Table.open(gateway.url("t"), storage_options=storage)
        seeds = [dice.random() for _ in range(2)]
        asked = [reads(far, Random(each), 1) for each in seeds]
        expected = [reads(near, Random(each), 1)() for each in seeds]
        with ThreadPoolExecutor(2) as threads:
            found = list(threads.map(lambda act: retried(act, happened), asked))
        assert found == expected, (seed, step)
    assert happened["cut"] + happened["kill"] + happened["damage"] > 0, happened


def retried(act: Callable[[], Any], happened: dict[str, int]) -> Any:
    """Do it again after an error about a damaged copy, which is then removed."""
    for _ in range(4):
        try:
            return act()
        except CorruptionError:
            happened["error"] += 1
    return act()


def read_rows(url: str, storage: Mapping[str, str]) -> None:
    """Read in a process of its own, until it is killed."""
    table = Table.open(url, storage_options=storage)
    table.get(list(range(0, KEYS, 1_000)))
    assert sum(batch.num_rows for batch in table.scan(["a"])) == KEYS
    table.upsert(rows_of(np.arange(50), 1))


@pytest.mark.slow
def test_killed_processes_leave_copies_that_others_can_use(gateway: CountedS3) -> None:
    table = Table.create(str(gateway.path("t")), COLUMNS, keys=["k"])
    for number in range(3):
        table.upsert(rows_of(np.random.default_rng(number).permutation(KEYS), number))
    storage = gateway.storage(gateway.folder.parent / "copies", "1m")
    spawn = get_context("spawn")
    killed = 0
    for fatal in (3, 5, 8, 12):
        process = spawn.Process(target=read_rows, args=(gateway.url("t"), storage))
        gateway.take()
        gateway.on_get = partial(kill, process, fatal)
        process.start()
        process.join()
        killed += process.exitcode == -signal.SIGKILL
        gateway.on_get = None
        restart()
        far = Table.open(gateway.url("t"), storage_options=storage)
        assert far.get([1, 2, 29_999]).sort_by("k") == table.get([1, 2, 29_999]).sort_by("k")
        assert far.snapshot().sort_by("k") == table.snapshot().sort_by("k")
    assert killed == 4


def kill(process: SpawnProcess, fatal: int, key: str, number: int) -> bool:
    """Kill a process in the middle of a response, from its n-th read on."""
    is_fatal = "/data/" in key and number >= fatal
    if is_fatal and process.pid is not None and process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
    return is_fatal
