"""Run files: what was written is read back, and damage is an error, never other data."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.core.key_hash import ALL_HASHES, HASH_END, HashRange, hash_keys
from spark_upsert.core.schema import DIFF, HASH, Scope, TableSchema
from spark_upsert.errors import CorruptionError
from spark_upsert.store.records import encode
from spark_upsert.table.changelog.epoch_ranges import cut_into_stretches
from spark_upsert.table.changelog.read import read_changes
from spark_upsert.table.changelog.render import ChangeOptions
from spark_upsert.table.log.codec import commit_path
from spark_upsert.table.run.file import RUNS, Run, RunCache, RunFile, Span, write_run
from spark_upsert.table.run.format import BLOCK_BYTES
from spark_upsert.table.run.rows import Rows, RunPart
from spark_upsert.table.state.lookup import find
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.commands import UpsertEnvelope
from tests.support.fuzz import FUZZ_TIMES
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
    "empty": pa.string(),
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
        "empty": "",
        "nothing": None,
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


def as_arrow(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=pa.schema(WIDE))


def test_what_is_written_is_read_back() -> None:
    table, _ = wide_table(500)
    expected = [wide_row(number, 1 if number % 4 else 2) for number in range(500)]
    assert contents(table.at().read()) == contents([as_arrow(expected)])


@pytest.mark.parametrize("column", WIDE)
def test_one_column_is_read_back(column: str) -> None:
    table, _ = wide_table(60)
    expected = as_arrow([wide_row(n, 1 if n % 4 else 2) for n in range(60)])
    assert contents(table.at().read([column])) == contents([expected.select([column])])


def test_without_columns_there_is_still_a_number_of_rows() -> None:
    table, _ = wide_table(60)
    assert sum(batch.num_rows for batch in table.at().read([])) == 60


def test_a_run_is_an_arrow_file_for_everyone() -> None:
    table, store = wide_table(30)
    file = table.log.commit(1).added[0]
    read = pa.ipc.open_file(store.map(file.path)).read_all()
    assert read.num_rows == 30
    assert read.schema.names == table.log.head().schema.run.names
    assert read.column(HASH).to_pylist() == sorted(read.column(HASH).to_pylist())


def test_the_log_knows_size_and_hashes_of_a_run() -> None:
    table, store = wide_table(30)
    file = table.log.commit(1).added[0]
    hashes = hash_keys([pa.array([wide_row(n, 1)["k"] for n in range(30)])], seed=3)
    assert file.rows == 30
    assert file.tombstones == 0
    assert file.bytes == len(store.read(file.path))
    assert file.hash_range == HashRange.spanning(int(hashes.min()), int(hashes.max()))


def test_a_run_file_survives_json() -> None:
    file = RunFile(
        path="data/x.arrow",
        rows=3,
        tombstones=1,
        bytes=999,
        body_bytes=500,
        tail_crc=2**32 - 1,
        hash_range=ALL_HASHES,
    )
    assert RunFile.from_json(json.loads(json.dumps(file.to_json()))) == file


def test_an_empty_run_is_never_written() -> None:
    schema = TableSchema.of(pa.schema({"k": pa.int64()}), keys=["k"]).run
    with pytest.raises(ValueError, match="never empty"):
        write_run(MemoryStore(), "data/x.arrow", pa.RecordBatch.from_pylist([], schema=schema))


# -- damage --------------------------------------------------------------------------


def read_all(table: Table) -> Any:
    return contents(table.at().read())


def read_keys_only(table: Table) -> Any:
    return contents(table.at().read(["k"]))


def read_in_ranges(table: Table) -> Any:
    snapshot = table.at()
    return [contents(snapshot.read(["k", "n"], hash_range=cut)) for cut in ALL_HASHES.cut(5)]


def look_up_some(table: Table) -> Any:
    return look_up(table, range(0, 3000, 37))


def look_up_all(table: Table) -> Any:
    return look_up(table, range(1500))


def look_up(table: Table, numbers: range) -> Any:
    keys = pa.array([wide_row(number, 1)["k"] for number in numbers])
    rows, at = table.at().look_up([keys], ["k", "n"])
    return at.tolist(), rows.to_pydict()


def read_changelog(table: Table) -> Any:
    head = table.log.head()
    options = ChangeOptions(columns=("k", "n"))
    return [
        contents(read_changes(table.store, stretch, options, hash_range=part))
        for stretch in cut_into_stretches(table.log, 1, 3, head.schema)
        for part in ALL_HASHES.split_at(HASH_END // 3)
    ]


READS: list[Callable[[Table], Any]] = [
    read_all,
    read_keys_only,
    read_in_ranges,
    look_up_some,
    look_up_all,
    read_changelog,
]


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


def outcomes_of_damage(
    columns: int, epoch: int, read: Callable[[Table], Any], positions: int
) -> tuple[int, int]:
    """Flip one bit at each of many positions; returns how often it was found, and harmless."""
    table, store = wide_table(1500, columns=columns)
    expected = read(table)
    file = table.log.commit(epoch).added[0]
    intact = store.objects[file.path]
    found = harmless = 0
    for position in flipped_positions(file, positions):
        store.objects[file.path] = flip(intact, position, 1 << (position % 8))
        RUNS._runs.clear()
        try:
            answer = read(table)
        except CorruptionError as error:
            require_name(error, file)
            found += 1
        else:
            assert answer == expected, f"other data after a flip of byte {position} of {file}"
            harmless += 1
    return found, harmless


@pytest.mark.parametrize("read", READS, ids=lambda read: read.__name__.replace("_", " "))
@pytest.mark.parametrize("epoch", rest_slow([1, 2]), ids=["in the large run", "in the small run"])
@pytest.mark.sweep(2)
def test_a_flipped_bit_is_named_or_harmless(read: Callable[[Table], Any], epoch: int) -> None:
    found, _ = outcomes_of_damage(0, epoch, read, 40)
    assert found > 0


@pytest.mark.slow
@pytest.mark.parametrize("read", READS, ids=lambda read: read.__name__.replace("_", " "))
@pytest.mark.parametrize("epoch", [1, 2], ids=["in the large run", "in the small run"])
def test_many_flipped_bits_are_named_or_harmless(read: Callable[[Table], Any], epoch: int) -> None:
    found, harmless = outcomes_of_damage(0, epoch, read, 300 * FUZZ_TIMES)
    assert found > harmless or read is not read_all


def test_a_flipped_bit_in_a_long_schema_is_named() -> None:
    table, store = wide_table(20, columns=300)
    file = table.log.commit(1).added[0]
    intact = store.objects[file.path]
    body_begins = first_buffer(intact)
    assert body_begins > 4 * BLOCK_BYTES
    expected = read_all(table)
    for position in range(40, body_begins, 997):
        store.objects[file.path] = flip(intact, position, 0x10)
        RUNS._runs.clear()
        try:
            answer = read_all(table)
        except CorruptionError as error:
            require_name(error, file)
        else:
            assert answer == expected


def first_buffer(data: bytes, name: str = HASH) -> int:
    buffer = pa.py_buffer(data)
    column = pa.ipc.open_file(buffer).get_batch(0).column(name)
    return int(column.buffers()[1].address - buffer.address)


@pytest.mark.parametrize("kept", [0, 1, 100, 50_000, -1], ids=lambda kept: f"to {kept} bytes")
def test_a_truncated_file_is_named(kept: int) -> None:
    table, store = wide_table(500)
    file = table.log.commit(1).added[0]
    assert file.bytes > 50_000
    store.objects[file.path] = store.objects[file.path][:kept]
    RUNS._runs.clear()
    with pytest.raises(CorruptionError, match=file.path):
        read_all(table)


def test_a_longer_file_is_named() -> None:
    table, store = wide_table(50)
    file = table.log.commit(1).added[0]
    store.objects[file.path] += b"\0"
    RUNS._runs.clear()
    with pytest.raises(CorruptionError, match=file.path):
        read_all(table)


def test_a_missing_file_is_named() -> None:
    table, store = wide_table(50)
    file = table.log.commit(2).added[0]
    store.delete(file.path)
    RUNS._runs.clear()
    with pytest.raises(CorruptionError, match=file.path):
        read_all(table)


def test_a_file_swapped_with_another_of_the_table_is_named() -> None:
    table, store = wide_table(50)
    one, other = table.log.commit(1).added[0], table.log.commit(2).added[0]
    store.objects[one.path] = store.objects[other.path]
    RUNS._runs.clear()
    with pytest.raises(CorruptionError, match=one.path):
        read_all(table)


def test_blocks_that_are_not_touched_are_not_verified() -> None:
    table, _ = wide_table(3000)
    RUNS._runs.clear()
    look_up(table, range(1))
    run = RUNS.open(table.store, table.log.commit(1).added[0])
    assert run._blocks.verified_count < len(run._blocks) / 4


@pytest.mark.parametrize("mask", [0x80, 0x01], ids=["its highest bit", "a lower bit"])
@pytest.mark.parametrize("place", [0, 1, 2, 4, 8, 16, 31, 32], ids=lambda n: f"at {n} of 32")
@pytest.mark.sweep(5)
def test_a_damaged_hash_misleads_no_search(place: int, mask: int) -> None:
    """A search probes the ends and the middle first: damage there must not hide other keys."""
    count = 20_000
    store, file = one_run(count)
    hashes = Run(file, store.map(file.path)).hashes.tolist()
    at = first_buffer(store.read(file.path)) + 8 * min(count - 1, count * place // 32) + 7
    damaged = pa.py_buffer(flip(store.read(file.path), at, mask))
    for each in (*ALL_HASHES.split_at(HASH_END // 3), HashRange(hashes[-9])):
        try:
            assert all_found(Run(file, damaged), each)
        except CorruptionError as error:
            require_name(error, file)
        try:
            span = Span.within(Run(file, damaged), each)
        except CorruptionError as error:
            require_name(error, file)
        else:
            assert len(span) == len([h for h in hashes if h in each])


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


def require_name(error: CorruptionError, file: RunFile) -> None:
    assert file.path in str(error)


def flip(data: bytes, position: int, mask: int) -> bytes:
    damaged = bytearray(data)
    damaged[position] ^= mask
    return bytes(damaged)


# -- open runs -----------------------------------------------------------------------


def one_run(count: int, *, few: bool = False) -> tuple[MemoryStore, RunFile]:
    schema = TableSchema.of(pa.schema({"k": pa.int64()}), keys=["k"])
    envelope = UpsertEnvelope(schema=schema, sources={"k": "k"}, order=(), deletes=None)
    batch = envelope.commands(pa.record_batch({"k": pa.array(range(count))}))
    store = MemoryStore()
    return store, write_run(store, "data/x.arrow", batch.sort_by(HASH))


def test_a_span_holds_just_the_hashes_of_its_range() -> None:
    store, file = one_run(1000)
    run = Run(file, store.map(file.path))
    for bounds in ((0, HASH_END), (0, 1), (HASH_END // 3, HASH_END // 2), (5, 5)):
        within = HashRange(*bounds)
        hashes = RunPart(Span.within(run, within)).hashes.tolist()
        assert hashes == [h for h in run.hashes.tolist() if h in within]


def test_open_runs_are_bounded_and_the_oldest_is_closed_first() -> None:
    cache = RunCache(count_max=2)
    opened = [one_run(count) for count in (1, 2, 3)]
    first, second, _ = (cache.open(store, file) for store, file in opened)
    assert cache.open(*opened[1]) is second
    assert cache.open(*opened[0]) is not first


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
    cache = RunCache(rested_max=2, rest_s=60.0, clock=lambda: now[0])
    opened = [one_run(count) for count in (1, 2)]
    first = cache.open(*opened[0])
    now[0] = 3_599.0
    cache.open(*opened[1])
    assert cache.open(*opened[0]) is first


def test_what_was_verified_counts_for_an_hour(tmp_path: Path) -> None:
    now = [0.0]
    cache = RunCache(clock=lambda: now[0])
    table = Table.create(str(tmp_path), pa.schema({"k": pa.int64()}), keys=["k"])
    table.upsert(pa.table({"k": range(10)}))
    [file] = table.log.commit(1).added
    first = cache.open(table.store, file)
    now[0] = 3_599.0
    assert cache.open(table.store, file) is first
    now[0] = 3_600.0
    assert cache.open(table.store, file) is not first, "asking does not make it younger"


Wrote = Callable[[Path, bytes], None]


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
def test_what_is_written_into_a_run_that_was_read_is_damage(wrote: Wrote, tmp_path: Path) -> None:
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


def test_a_file_that_is_as_it_was_is_not_verified_again(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path), pa.schema({"k": pa.int64()}), keys=["k"])
    table.upsert(pa.table({"k": range(10)}))
    [file] = table.log.commit(1).added
    cache = RunCache()
    assert cache.open(table.store, file) is cache.open(table.store, file)


def test_an_open_run_shows_how_much_of_it_was_verified() -> None:
    store, file = one_run(10)
    assert repr(Run(file, store.map(file.path))) == "Run(data/x.arrow, rows=10, blocks=1/1)"


def test_rows_are_gathered_over_parts_in_the_order_asked_for() -> None:
    opened = [one_run(5), one_run(7)]
    schema = TableSchema.of(pa.schema({"k": pa.int64(), "later": pa.string()}), keys=["k"])
    rows = Rows(schema, [RunPart(Span.within(Run(f, s.map(f.path)))) for s, f in opened])
    wanted = np.array([11, 0, 4, 5, 11], dtype=np.int64)
    keys, later = rows.take(["k", "later"], wanted)
    flat = [
        k for s, f in opened for k in pa.ipc.open_file(s.map(f.path)).read_all()["k"].to_pylist()
    ]
    assert keys.to_pylist() == [flat[position] for position in wanted.tolist()]
    assert later.to_pylist() == [None] * 5


def test_a_scope_is_no_matter_to_a_run() -> None:
    schema = TableSchema.of(
        pa.schema({"k": pa.int64()}), keys=["k"], order=[pa.field("s", pa.int8())]
    )
    assert replace(schema, scope=Scope.EPOCH).run == schema.run
    assert DIFF in schema.run.names


def test_a_snapshot_of_no_runs_has_no_rows() -> None:
    table, store = wide_table(0)
    assert contents(Snapshot(store, table.log.head()).read()) == []


class CopyingStore(MemoryStore):
    """Maps copies of its objects, as a store elsewhere does."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: dict[str, bytes] = {}

    def map(self, path: str) -> pa.Buffer:
        return pa.py_buffer(self.copies.setdefault(path, self.read(path)))

    def forget(self, path: str) -> None:
        self.copies.pop(path, None)


def test_a_damaged_copy_is_named_once_and_then_fetched_again() -> None:
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


# -- contents that no checksum can tell -----------------------------------------------------


@pytest.mark.parametrize("read", READS, ids=lambda read: read.__name__.replace("_", " "))
@pytest.mark.sweep(2)
def test_hashes_out_of_order_are_named_or_harmless(read: Callable[[Table], Any]) -> None:
    """With right checksums: a merge and a look-up would take one key for two, or for none."""
    table, store = wide_table(1500)
    expected = read(table)
    (file,) = table.log.commit(1).added
    rows = pa.ipc.open_file(store.map(file.path)).get_batch(0)
    found = 0
    for at in (0, 700, 1023, 1024, 1498):
        order = np.arange(len(rows))
        order[[at, at + 1]] = order[[at + 1, at]]
        hashes = rows.column(HASH).take(pa.array(order))
        other = MemoryStore()
        swapped = rows.set_column(0, rows.schema.field(0), hashes)
        damaged = write_run(other, file.path, swapped)
        store.objects[file.path] = other.objects[file.path]
        write_record(table, store, damaged)
        RUNS._runs.clear()
        try:
            assert read(Table(store)) == expected
        except CorruptionError as error:
            require_name(error, file)
            found += 1
    assert found or read in (look_up_some, read_changelog)


def write_record(table: Table, store: MemoryStore, file: RunFile) -> None:
    """Put another run into version 1."""
    path = commit_path(1)
    record = json.loads(store.objects[path])
    del record["crc"]
    store.objects[path] = encode({**record, "added": [file.to_json()]})
