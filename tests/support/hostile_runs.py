"""Run files with right checksums and wrong contents, read in a process that may die of them.

    python -m tests.support.hostile_runs FIRST COUNT

makes ``COUNT`` mutants of a run, one per seed, puts the checksums right as a hostile author
would, reads each through every public read, and prints a line per seed before and after. So
whoever started the process knows which mutant killed it. An outcome is

- ``answer``: every batch is valid by Arrow's own full validation,
- ``CORRUPTION``: our error,
- anything else: a defect.
"""

from __future__ import annotations

import datetime as dt
import json
import resource
import shutil
import signal
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from spark_upsert.core.key_hash import ALL_HASHES
from spark_upsert.core.schema import OnUnknown, TableSchema
from spark_upsert.errors import CorruptionError
from spark_upsert.store.local import LocalStore
from spark_upsert.store.records import encode
from spark_upsert.table.log.codec import commit_path
from spark_upsert.table.run.format import END_OF_STREAM, block_count, checksums
from spark_upsert.table.table import Table
from spark_upsert.table.write.commands import DecodedRows, to_commands
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.support.stores import forget_runs_and_logs

ROWS = 400
SECONDS_MAX = 120
MEMORY_BYTES_MAX = 4 << 30

COLUMNS = pa.schema(
    {
        "k": pa.string(),
        "n": pa.int64(),
        "flag": pa.bool_(),
        "price": pa.decimal128(10, 2),
        "at": pa.timestamp("us", tz="UTC"),
        "day": pa.date32(),
        "data": pa.binary(),
        "tags": pa.list_(pa.string()),
        "m": pa.map_(pa.string(), pa.int64()),
        "s": pa.struct({"x": pa.int64(), "y": pa.string()}),
    }
)

_NUMBERS = [0, 1, -1, 7, 8, 255, 1 << 15, (1 << 31) - 1, -(1 << 31), 1 << 40, (1 << 63) - 1]


def row(number: int) -> dict[str, Any]:
    """Return a row with nulls, empty values and long ones."""
    return {
        "k": f"key {number}" + "!" * (number % 40),
        "n": None if number % 7 == 0 else number,
        "flag": None if number % 5 == 0 else number % 2 == 0,
        "price": Decimal(number) / 100,
        "at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=number),
        "day": dt.date(2024, 1, 1) + dt.timedelta(days=number),
        "data": bytes(range(number % 9)),
        "tags": None if number % 3 == 0 else [f"t{i}" for i in range(number % 4)],
        "m": [(str(i), None if i else number) for i in range(number % 3)],
        "s": None if number % 11 == 0 else {"x": number, "y": None if number % 2 else "y"},
    }


def complete_rows(folder: Path) -> Table:
    """Return a table of two runs of complete rows."""
    table = Table.create(str(folder), COLUMNS, keys=["k"])
    for step in (1, 9):
        rows = [row(number) for number in range(0, ROWS, step)]
        table.upsert(pa.Table.from_pylist(rows, schema=COLUMNS))
    return table


def rows_with_marks(folder: Path) -> Table:
    """Return a table whose rows leave values unchanged, and move to other keys."""
    order = [pa.field("o", pa.int64())]
    schema = TableSchema.of(COLUMNS, keys=["k"], order=order, on_unknown=OnUnknown.NULL)
    table = Table(LocalStore(str(folder)))
    table.ensure(schema)
    dice = np.random.default_rng(7)
    for version in range(3):
        base = table.at()
        batch = to_commands(base.manifest.schema, _marked_rows(version, dice))
        table.commit(WriteSet(base=base, staged=(stage(base, [batch]),)))
    return table


def _marked_rows(version: int, dice: np.random.Generator) -> DecodedRows:
    rows = pa.Table.from_pylist([row(number) for number in range(ROWS)], schema=COLUMNS)
    columns = {name: rows[name].combine_chunks() for name in COLUMNS.names}
    is_delete = dice.random(ROWS) < 0.1
    new_keys = [f"new {n}" if moves else None for n, moves in enumerate(is_delete)]
    names = COLUMNS.names[1:]
    return DecodedRows(
        columns=columns,
        order=[pa.array(dice.integers(0, 10, ROWS) + 5 * version)],
        tombstones=is_delete,
        raw_values=lambda chosen: pa.nulls(len(chosen), pa.binary()),
        unchanged={name: (dice.random(ROWS) < 0.4) & ~is_delete for name in names},
        resets=(dice.random(ROWS) < 0.2) & ~is_delete,
        moved_to=[pa.array(new_keys, pa.string())],
    )


class Original:
    """A table of several runs, of which the first is mutated."""

    def __init__(self, folder: Path, make: Callable[[Path], Table]) -> None:
        self.folder = folder
        table = make(folder)
        head = table.log.head()
        self.seed = head.schema.hash_seed
        self.version = head.version
        number = next(n for n in range(1, head.upper) if table.log.commit(n).added)
        self.commit = folder / commit_path(number)
        self.record = json.loads(self.commit.read_bytes())
        self.record.pop("crc")
        self.path = folder / self.record["added"][0]["path"]
        self.data = self.path.read_bytes()
        self.body_bytes: int = self.record["added"][0]["body_bytes"]
        whole = pa.py_buffer(self.data)
        self.extents = list(_extents(pa.ipc.open_file(whole).get_batch(0), whole.address))
        self.head_bytes = min(low for low, _ in self.extents)
        sums = block_count(self.body_bytes) * 4
        self.footer = self.data[self.body_bytes + len(END_OF_STREAM) + sums :]

    def install(self, body: bytes, footer: bytes) -> None:
        """Write a body and a footer, with checksums that are right everywhere."""
        padded = body.ljust(block_count(len(body)) * 1024, b"\0")
        sums = checksums(np.frombuffer(padded, dtype="<u8").reshape(-1, 128)).tobytes()
        tail = END_OF_STREAM + sums + footer
        # Another file each time, as files never change.
        self.path.unlink(missing_ok=True)
        self.path.write_bytes(body + tail)
        added = {
            **self.record["added"][0],
            "bytes": len(body) + len(tail),
            "body_bytes": len(body),
            "tail_crc": zlib.crc32(tail),
        }
        self.commit.unlink()
        self.commit.write_bytes(encode({**self.record, "added": [added]}))


def _extents(batch: pa.RecordBatch, base: int) -> Iterator[tuple[int, int]]:
    """Yield where the buffers of a batch are."""
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is not None and buffer.size:
                yield buffer.address - base, buffer.address - base + buffer.size


def mutant(original: Original, random: np.random.Generator) -> tuple[bytes, bytes]:
    """Return another body and footer."""
    body, footer = bytearray(original.data[: original.body_bytes]), bytearray(original.footer)
    for _ in range(int(random.integers(1, 4))):
        match int(random.integers(0, 10)):
            case 0 | 1 | 2 | 3:
                _overwrite(body, 8, original.head_bytes, random)
            case 4 | 5 | 6 | 7:
                low, high = original.extents[random.integers(len(original.extents))]
                _overwrite(body, low, high, random)
            case 8:
                _overwrite(footer, 0, len(footer), random)
            case _:
                size = int(random.integers(0, len(body) + 1))
                body = body[:size] if random.random() < 0.7 else body + body[:size]
    return bytes(body), bytes(footer)


def _overwrite(data: bytearray, low: int, high: int, random: np.random.Generator) -> None:
    """Flip a bit, or put another number in the place of one."""
    low, high = min(low, len(data)), min(high, len(data))
    if high - low < 8:
        return
    at = int(random.integers(low, high))
    if random.random() < 0.3:
        data[at] ^= 1 << int(random.integers(8))
        return
    size = int(random.choice([1, 2, 4, 8]))
    at -= (at - low) % size
    number = int(random.choice(_NUMBERS)) & ((1 << 8 * size) - 1)
    data[at : at + size] = number.to_bytes(size, "little")


# -- every public read -----------------------------------------------------------------


def _whole(table: Table, seed: int) -> Any:
    return table.snapshot()


def _one_column(table: Table, seed: int) -> Any:
    return [table.snapshot(columns=[name]) for name in COLUMNS.names]


def _ranges(table: Table, seed: int) -> Any:
    return [batch for cut in ALL_HASHES.cut(5) for batch in table.at().read(hash_range=cut)]


def _look_up(table: Table, seed: int) -> Any:
    answers = []
    for step in (1, 40):
        keys = pa.array([row(number)["k"] for number in range(0, ROWS, step)])
        answers.append(table.at().look_up([keys]).rows)
    return answers


def _changes(table: Table, seed: int) -> Any:
    return [table.changes(1), table.changes(2)]


def _check(table: Table, seed: int) -> Any:
    table.check()
    return []


def _compact(table: Table, seed: int) -> Any:
    table.compact(full=True)
    return table.snapshot()


READS: list[Callable[[Table, int], Any]] = [
    _whole,
    _one_column,
    _ranges,
    _look_up,
    _changes,
    _check,
    _compact,
]


def outcome(original: Original, seed: int) -> str:
    """Return what became of the reads of one mutant."""
    random = np.random.default_rng(seed)
    original.install(*mutant(original, random))
    found = set()
    for read in READS:
        forget_runs_and_logs()
        try:
            answer = read(Table.open(str(original.folder)), original.seed)
            for each in answer if isinstance(answer, list) else [answer]:
                each.validate(full=True)
            found.add("answer")
        except CorruptionError:
            found.add("CORRUPTION")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding.
            return f"{read.__name__}: {type(error).__name__}: {error}".replace("\n", " ")[:300]
    return " ".join(sorted(found))


def main(first: int, count: int) -> None:
    """Judge some mutants."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    folder = Path(tempfile.mkdtemp(prefix="upsertflow-hostile-"))
    try:
        makers = (complete_rows, rows_with_marks)
        originals = [Original(folder / make.__name__, make) for make in makers]
        for seed in range(first, first + count):
            original = originals[seed % len(originals)]
            print(f"{seed} ", end="", flush=True)
            signal.alarm(SECONDS_MAX)
            print(outcome(original, seed), flush=True)
            for later in range(6):  # What compactions have committed.
                path = original.folder / commit_path(original.version + 1 + later)
                path.unlink(missing_ok=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
