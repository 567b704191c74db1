"""Run files: what was written is read back, and damage is an error, never other data."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.core.key_hash import ALL_HASHES, HASH_END, HashRange, hash_keys
from spark_upsert.core.schema import HASH, TableSchema
from spark_upsert.errors import CorruptionError
from spark_upsert.store.records import encode
from spark_upsert.table.changelog.changes import cut_into_ranges
from spark_upsert.table.changelog.read import ChangeOptions, read_changes
from spark_upsert.table.log.codec import commit_path
from spark_upsert.table.run.file import RUNS, Run, RunCache, RunFile, Span, write_run
from spark_upsert.table.run.format import BLOCK_BYTES
from spark_upsert.table.run.rows import RunPart
from spark_upsert.table.state.lookup import find
from spark_upsert.table.table import Table
from spark_upsert.table.write.commands import UpsertEnvelope
from tests.support.fuzz import FUZZ_TIMES
from tests.support.lived import body_of
from tests.support.seeds import rest_slow
from tests.support.stores import MemoryStore
from tests.support.tables import make_table

WIDE = {
    "k": pa.string(),
    "n": pa.int64(),
    "flag": pa.bool_(),
    "price": pa.decimal128(10, 2),
    "at": pa.timestamp("us", tz="UTC"),
    "tags": pa.list_(pa.string()),
    "m": pa.map_(pa.string(), pa.int64()),
    "s": pa.struct({"x": pa.int64(), "y": pa.string()}),
    "nothing": pa.int64(),
}


def wide_row(number: int, version: int) -> dict[str, Any]:
    return {
        "k": f"key {number}" + "!" * (number % 90),
        "n": None if number % 7 == 0 else number * 10 + version,
        "flag": None if number % 5 == 0 else number % 2 == 0,
        "price": Decimal(number) / 100,
        "at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=number),
        "tags": None if number % 3 == 0 else [f"t{i}" for i in range(number % 4)],
        "m": [(str(i), None if i else number) for i in range(number % 3)],
        "s": None if number % 11 == 0 else {"x": number, "y": None if number % 2 else "y"},
    }


def wide_table(count: int, *, columns: int = 0) -> tuple[Table, MemoryStore]:
    """Return a table of two epochs, the second of which updates every fourth key."""
    names = {**WIDE, **{f"column_{i:03d}": pa.int32() for i in range(columns)}}
    schema = TableSchema.of(pa.schema(names), keys=["k"], hash_seed=3)
    store = MemoryStore()
    table = make_table(store, schema)
    for version, step in ((1, 1), (2, 4)):
        rows = [wide_row(number, version) for number in range(0, count, step)]
        table.upsert(pa.Table.from_pylist(rows, schema=schema.columns))
    return table, store


def contents(batches: Any) -> list[str]:
    return sorted(repr(row) for batch in batches for row in batch.to_pylist())


def test_written_rows_are_read_back_in_whole_and_by_column() -> None:
    table, store = wide_table(60)
    rows = [wide_row(n, 1 if n % 4 else 2) for n in range(60)]
    expected = pa.Table.from_pylist(rows, schema=pa.schema(WIDE))
    assert contents(table.at().read()) == contents([expected])
    for column in WIDE:
        assert contents(table.at().read([column])) == contents([expected.select([column])])
    assert sum(batch.num_rows for batch in table.at().read([])) == 60
    file = table.log.commit(1).added[0]
    run = pa.ipc.open_file(store.map(file.path)).read_all()
    assert run.schema.names == table.log.head().schema.run.names
    hashes = np.sort(hash_keys([expected["k"].combine_chunks()], seed=3)).tolist()
    assert run.column(HASH).to_pylist() == hashes
    assert (file.rows, file.tombstones, file.bytes) == (60, 0, len(store.read(file.path)))
    assert file.hash_range == HashRange.spanning(hashes[0], hashes[-1])
    assert RunFile.from_json(json.loads(json.dumps(file.to_json()))) == file
    with pytest.raises(ValueError, match="never empty"):
        write_run(store, "data/x.arrow", pa.RecordBatch.from_pylist([], schema=run.schema))


# -- damage --------------------------------------------------------------------------


def read_all(table: Table) -> Any:
    return contents(table.at().read())


def read_in_ranges(table: Table) -> Any:
    snapshot = table.at()
    return [contents(snapshot.read(["k", "n"], hash_range=cut)) for cut in ALL_HASHES.cut(5)]


def look_up(table: Table, numbers: range = range(0, 3000, 7)) -> Any:
    keys = pa.array([wide_row(number, 1)["k"] for number in numbers])
    rows, at = table.at().look_up([keys], ["k", "n"])
    return at.tolist(), rows.to_pydict()


def read_changelog(table: Table) -> Any:
    head = table.log.head()
    options = ChangeOptions(columns=("k", "n"))
    return [
        contents(read_changes(table.store, stretch, options, hash_range=part))
        for stretch in cut_into_ranges(table.log, 1, 3, head.schema)
        for part in ALL_HASHES.split_at(HASH_END // 3)
    ]


READS: list[Callable[[Table], Any]] = [read_all, read_in_ranges, look_up, read_changelog]


def is_named(file: RunFile, expected: Any, read: Callable[..., Any], *args: Any) -> bool:
    """Return whether a read of a damaged run names it; otherwise it must give what it gave."""
    RUNS._runs.clear()
    try:
        answer = read(*args)
    except CorruptionError as error:
        if file.path not in str(error):
            raise
        return True
    assert answer == expected
    return False


def flipped_positions(file: RunFile, count: int) -> list[int]:
    """Return positions all over a file, denser where its structure stands."""
    generator = np.random.default_rng(1)
    anywhere = generator.integers(0, file.bytes, count).tolist()
    ends = [*range(0, 64, 7), *range(file.bytes - 64, file.bytes, 7)]
    borders = [
        block + shift
        for block in range(BLOCK_BYTES, file.bytes, 16 * BLOCK_BYTES)
        for shift in (-1, 0)
    ]
    return sorted({*anywhere, *ends, *borders})


def count_named_flips(
    table: Table, epoch: int, read: Callable[[Table], Any], positions: Sequence[int]
) -> int:
    """Flip a bit at each position of a run; return how often a read finds it."""
    store = table.store
    assert isinstance(store, MemoryStore)
    expected = read(table)
    file = table.log.commit(epoch).added[0]
    intact = store.objects[file.path]
    count = 0
    for position in positions:
        store.objects[file.path] = flip(intact, position, 1 << (position % 8))
        count += is_named(file, expected, read, table)
    return count


@pytest.mark.parametrize("read", READS, ids=lambda read: read.__name__.replace("_", " "))
@pytest.mark.parametrize("epoch", rest_slow([1, 2]), ids=["in the large run", "in the small run"])
@pytest.mark.parametrize(
    "count", [40, pytest.param(300 * FUZZ_TIMES, marks=pytest.mark.slow)], ids=["some", "many"]
)
@pytest.mark.sweep(2)
def test_flipped_bits_are_named_or_harmless(
    read: Callable[[Table], Any], epoch: int, count: int
) -> None:
    table, _ = wide_table(1500)
    positions = flipped_positions(table.log.commit(epoch).added[0], count)
    found = count_named_flips(table, epoch, read, positions)
    assert found > (len(positions) / 2 if count > 40 and read is read_all else 0)


def test_flipped_bits_in_a_long_schema_are_named_or_harmless() -> None:
    table, store = wide_table(20, columns=300)
    body_begins = first_buffer(store.read(table.log.commit(1).added[0].path))
    assert body_begins > 4 * BLOCK_BYTES
    count_named_flips(table, 1, read_all, range(40, body_begins, 997))


def first_buffer(data: bytes, name: str = HASH) -> int:
    buffer = pa.py_buffer(data)
    column = pa.ipc.open_file(buffer).get_batch(0).column(name)
    return int(column.buffers()[1].address - buffer.address)


def damaged_by(damage: str, run: bytes, other: bytes) -> bytes | None:
    if damage.startswith("cut to"):
        return run[: int(damage.split()[-2])]
    return {"longer": run + b"\0", "missing": None, "another run of the table": other}[damage]


CUTS = [f"cut to {kept} bytes" for kept in (0, 1, 100, 9000, -1)]


@pytest.mark.parametrize("damage", [*CUTS, "longer", "missing", "another run of the table"])
def test_run_file_is_named_that_is(damage: str) -> None:
    table, store = wide_table(60)
    file, other = (table.log.commit(epoch).added[0] for epoch in (1, 2))
    assert file.bytes > 9001
    damaged = damaged_by(damage, store.objects.pop(file.path), store.read(other.path))
    if damaged is not None:
        store.objects[file.path] = damaged
    RUNS._runs.clear()
    with pytest.raises(CorruptionError, match=file.path):
        read_all(table)


@pytest.mark.parametrize("mask", [0x80, 0x01], ids=["its highest bit", "a lower bit"])
@pytest.mark.parametrize("place", [0, 1, 2, 4, 8, 16, 31, 32], ids=lambda n: f"at {n} of 32")
@pytest.mark.sweep(5)
def test_a_damaged_hash_misleads_no_search(place: int, mask: int) -> None:
    """A search probes the ends and the middle first: damage there must not hide other keys."""
    store, file = one_run(20_000)
    hashes = Run(file, store.map(file.path)).hashes.tolist()
    at = first_buffer(store.read(file.path)) + 8 * min(19_999, 625 * place) + 7
    damaged = pa.py_buffer(flip(store.read(file.path), at, mask))
    for each in (*ALL_HASHES.split_at(HASH_END // 3), HashRange(hashes[-9])):
        is_named(file, True, lambda part: all_found(Run(file, damaged), part), each)
        count = len([h for h in hashes if h in each])
        is_named(file, count, lambda part: len(Span.within(Run(file, damaged), part)), each)


def all_found(run: Run, within: HashRange) -> bool:
    """Look up keys whose hashes are in a range; all are in the run."""
    schema = TableSchema.of(pa.schema({"k": pa.int64()}), keys=["k"])
    keys = pa.array(range(0, run.file.rows, 61))
    hashes = hash_keys([keys], seed=0)
    order = np.argsort(hashes)
    start, stop = within.rows_of(hashes[order])
    wanted = order[start:stop]
    part = RunPart(Span(run, 0, run.file.rows))
    found = find(schema, [(part, 1)], hashes[wanted], [keys.take(pa.array(wanted))])
    return bool(found.present.all())


def test_keys_that_share_a_hash_over_a_damaged_block_are_not_lost() -> None:
    """The last of many keys of one hash lies blocks behind the place that a search finds."""
    schema = TableSchema.of(pa.schema({"k": pa.string()}), keys=["k"])
    count = 1500
    columns = [
        pa.array([5] * count, pa.uint64()),
        pa.array([f"{number:04d}" for number in range(count)]),
        pa.array([1] * count, pa.int8()),
    ]
    store = MemoryStore()
    file = write_run(store, "data/x.arrow", pa.RecordBatch.from_arrays(columns, schema=schema.run))
    at = first_buffer(store.read(file.path)) + 8 * 1200
    store.objects[file.path] = flip(store.read(file.path), at, 0xFF)
    run = Run(file, store.map(file.path))
    probe = np.array([5], dtype=np.uint64)
    with pytest.raises(CorruptionError, match=r"x\.arrow"):
        find(schema, [(RunPart(Span(run, 0, count)), 1)], probe, [pa.array([f"{count - 1:04d}"])])


def flip(data: bytes, position: int, mask: int) -> bytes:
    damaged = bytearray(data)
    damaged[position] ^= mask
    return bytes(damaged)


# -- open runs -----------------------------------------------------------------------


def one_run(count: int) -> tuple[MemoryStore, RunFile]:
    schema = TableSchema.of(pa.schema({"k": pa.int64()}), keys=["k"])
    envelope = UpsertEnvelope(schema=schema, sources={"k": "k"}, order=(), deletes=None)
    batch = envelope.commands(pa.record_batch({"k": pa.array(range(count))}))
    store = MemoryStore()
    return store, write_run(store, "data/x.arrow", batch.sort_by(HASH))


def test_beyond_some_runs_those_are_closed_that_nobody_asks_for() -> None:
    now = [0.0]
    cache = RunCache(rested_max=2, rest_s=60.0, clock=lambda: now[0])
    opened = [one_run(count) for count in (1, 2, 3, 4, 5)]
    first, second, third, fourth = (cache.open(store, file) for store, file in opened[:4])
    now[0] = 61.0
    assert cache.open(*opened[1]) is second, "nothing is closed before another run is opened"
    cache.open(*opened[4])
    now[0] = 62.0
    assert cache.open(*opened[1]) is second, "it was asked for"
    assert cache.open(*opened[0]) is not first, "nobody asked for it in a while"
    assert cache.open(*opened[2]) is not third
    assert cache.open(*opened[3]) is not fourth


def test_few_runs_stay_open_however_long_nobody_asks_for_them() -> None:
    now = [0.0]
    cache = RunCache(rested_max=2, rest_s=60.0, count_max=2, clock=lambda: now[0])
    opened = [one_run(count) for count in (1, 2, 3)]
    first = cache.open(*opened[0])
    now[0] = 3_599.0
    second = cache.open(*opened[1])
    assert cache.open(*opened[0]) is first
    cache.open(*opened[2])
    assert cache.open(*opened[0]) is first
    assert cache.open(*opened[1]) is not second, "no more than 2 are open"


def test_run_is_verified_again_after_an_hour(tmp_path: Path) -> None:
    now = [0.0]
    cache = RunCache(clock=lambda: now[0])
    table = Table.create(str(tmp_path), pa.schema({"k": pa.int64()}), keys=["k"])
    table.upsert(pa.table({"k": range(10)}))
    [file] = table.log.commit(1).added
    first = cache.open(table.store, file)
    now[0] = 3_599.0
    assert cache.open(table.store, file) is first
    now[0] = 3_600.0
    assert cache.open(table.store, file) is not first, "a use does not make it younger"


def _in_place(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.write(data)


def _in_place_with_old_times(path: Path, data: bytes) -> None:
    status = path.stat()
    _in_place(path, data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _renamed(path: Path, data: bytes) -> None:
    path.with_name("new").write_bytes(data)
    path.with_name("new").replace(path)


@pytest.mark.parametrize("wrote", [_in_place, _in_place_with_old_times, _renamed])
def test_what_is_written_into_a_run_that_was_read_is_damage(
    wrote: Callable[[Path, bytes], None], tmp_path: Path
) -> None:
    """A living process that has verified every byte of it, and reads it again."""
    table = Table.create(str(tmp_path), pa.schema({"k": pa.int64(), "v": pa.int64()}), keys=["k"])
    table.upsert(pa.table({"k": range(60), "v": range(1, 61)}))
    [file] = table.log.commit(1).added
    path = tmp_path / file.path
    whole = path.read_bytes()
    os.utime(path, ns=(0, 0))  # Written long ago: a clock of files ticks in milliseconds.
    before = table.snapshot()
    zeros = bytes(200)
    wrote(path, whole[:600] + zeros + whole[800:])
    with pytest.raises(CorruptionError, match=file.path):
        table.snapshot()
    with pytest.raises(CorruptionError, match=file.path):
        table.upsert(pa.table({"k": range(60), "v": [0] * 60}))
    wrote(path, whole)
    assert table.snapshot().equals(before)


class CopyingStore(MemoryStore):
    """Maps copies of its objects, as a store elsewhere does."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: dict[str, bytes] = {}

    def map(self, path: str) -> pa.Buffer:
        return pa.py_buffer(self.copies.setdefault(path, self.read(path)))

    def forget(self, path: str) -> None:
        self.copies.pop(path, None)


def test_damaged_copy_is_named_once_and_then_fetched_again() -> None:
    store = CopyingStore()
    table = make_table(store, TableSchema.of(pa.schema({"k": pa.int64()}), keys=["k"]))
    table.upsert(pa.table({"k": range(5000)}))
    file = table.log.commit(1).added[0]
    intact = store.objects[file.path]
    store.copies[file.path] = flip(intact, first_buffer(intact, "k") + 20_000, 1)
    RUNS._runs.clear()
    with pytest.raises(CorruptionError):
        table.snapshot()
    assert sorted(table.snapshot().column("k").to_pylist()) == list(range(5000))


@pytest.mark.parametrize("read", READS, ids=lambda read: read.__name__.replace("_", " "))
@pytest.mark.sweep(2)
def test_hashes_out_of_order_are_named_or_harmless(read: Callable[[Table], Any]) -> None:
    """With right checksums: a merge and a look-up would take one key for two, or for none."""
    table, store = wide_table(1500)
    expected = read(table)
    (file,) = table.log.commit(1).added
    rows = pa.ipc.open_file(store.map(file.path)).get_batch(0)
    record = body_of(store, 1)
    found = 0
    for at in (0, 700, 1023, 1024, 1498):
        order = np.arange(len(rows))
        order[[at, at + 1]] = order[[at + 1, at]]
        hashes = rows.column(HASH).take(pa.array(order))
        del store.objects[file.path]
        damaged = write_run(store, file.path, rows.set_column(0, rows.schema.field(0), hashes))
        store.put(commit_path(1), encode({**record, "added": [damaged.to_json()]}))
        found += is_named(file, expected, read, Table(store))
    assert found or read in (look_up, read_changelog)
