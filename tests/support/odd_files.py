"""A table one of whose files is a FIFO, a device, a socket, a link to one of these, or a folder.

Run as a program, in a process of its own: ``python -m tests.support.odd_files "a FIFO"`` puts the
odd thing in the place of each file of a table in turn, calls each verb of a table, and prints a
line of each. A verb that waits is ended by an alarm; one that reads a device for ever, by the bound
of its process's memory.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa

from spark_upsert.errors import UpsertFlowError
from spark_upsert.store import LocalStore
from spark_upsert.streams.offsets.delta import BaseName, Bases
from spark_upsert.streams.offsets.offset import Position
from spark_upsert.table.log import storage
from spark_upsert.table.retention.lag import PressureReport, report
from spark_upsert.table.table import Table
from tests.support.stores import forget_runs_and_logs

_MEMORY_BYTES = 8 << 30
_WAIT_S = 30
"""A guard: what comes back does so in milliseconds."""

COLUMNS = pa.schema({"k": pa.int64(), "v": pa.int64()})
STREAM, BASE = "5" * 32, BaseName(1, "e0559ad1ffe65eac5e381e53beeb768c")


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _link_to_a_fifo(path: Path) -> None:
    os.mkfifo(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _socket(path: Path) -> None:
    # Bound below the folder: a socket's name may have 107 bytes.
    here = os.open(path.parent, os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)


KINDS: dict[str, Callable[[Path], None]] = {
    "a FIFO": _fifo,
    "a link to a FIFO": _link_to_a_fifo,
    "a socket": _socket,
    "a link to an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a terminal": lambda path: path.symlink_to("/dev/tty"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a folder": Path.mkdir,
}

Call = Callable[[Path, str], object]
"""Takes the table's folder, and the odd file below it."""


def _called(verb: Callable[[Table], object], folder: Path, _: str) -> object:
    return verb(Table.open(str(folder)))


VERBS: dict[str, Callable[[Table], object]] = {
    "snapshot": lambda table: table.snapshot(),
    "changes": lambda table: table.changes(0),
    "quarantine": lambda table: list(table.quarantine()),
    "check": lambda table: table.check(),
    "consumers": lambda table: table.consumers(),
    "pressure": lambda table: table.pressure(),
    "indexes": lambda table: table.indexes(),
    "rows_having": lambda table: table.rows_having("v", [1]),
    "admission": lambda table: table.admission(1),
    "append": lambda table: table.upsert(pa.table({"k": [1, 9], "v": [7, 7]})),
    "hold": lambda table: table.hold("reader", 2),
    "release": lambda table: table.release("reader"),
    "restore": lambda table: table.restore(1),
    "compact": lambda table: table.compact(full=True),
    "build_indexes": lambda table: table.build_indexes(),
    "expire": lambda table: table.expire(retain_versions=1),
    "vacuum": lambda table: table.vacuum(),
    "repair_clock": lambda table: table.repair_clock(),
}

CALLS: dict[str, Call] = {
    **{name: partial(_called, verb) for name, verb in VERBS.items()},
    "read": lambda folder, file: LocalStore(folder).read(file),
    "map": lambda folder, file: LocalStore(folder).map(file),
    "a base": lambda folder, _: Bases(LocalStore(folder)).read(STREAM, BASE),
}


def make(folder: Path) -> None:
    """Make a table that has a file of each kind."""
    table = Table.create(str(folder), COLUMNS, keys=["k"], properties={"indexBy": "v"})
    for version in range(4):
        table.upsert(pa.table({"k": [version, version + 1], "v": [version, version]}))
    table.hold("reader", 1)
    said = PressureReport(
        consumer="reader", rung=4, pressure=1.0, reported_ms=time.time_ns() // 10**6
    )
    report(table.store, said)
    Bases(table.store).write(STREAM, BASE.number, {"a": Position.of({"n": 1})})


def outcomes(kind: str) -> Iterator[str]:
    """Yield of each file and verb what became of it."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # Thousands of folders are removed.
    with tempfile.TemporaryDirectory(dir=memory) as held:
        whole = Path(held) / "whole"
        make(whole)
        files = sorted(p.relative_to(whole) for p in whole.rglob("*") if p.is_file())
        for file in files:
            for name, call in CALLS.items():
                played = Path(held) / "played"
                shutil.copytree(whole, played)
                (played / file).unlink()
                KINDS[kind](played / file)
                yield f"{file}: {name}: {outcome(call, played, str(file))}"
                shutil.rmtree(played)


def outcome(call: Call, folder: Path, file: str) -> str:
    """Return what became of a call: ``answer``, or its error."""
    forget_runs_and_logs()
    signal.alarm(_WAIT_S)
    try:
        call(folder, file)
    except UpsertFlowError as error:
        return f"{error.code} {error.message}"
    except BaseException as error:  # noqa: BLE001 - told to the one who asked
        return f"{type(error).__name__} {error}"
    finally:
        signal.alarm(0)
    return "answer"


def _waits(number: int, frame: object) -> None:
    raise SystemExit("it waits")


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, _waits)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    storage.CHECKPOINT_EVERY = 3
    os.fsync = lambda _: None  # type: ignore[assignment]  # Of tables of no worth.
    for line in outcomes(sys.argv[1]):
        print(line, flush=True)
