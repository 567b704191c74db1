"""Reads of all rows whose key begins with some values, and tables where few are common."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.core.key_hash import ALL_HASHES, HashRange, hash_keys, prefix_ends
from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.precedence import Interval
from spark_upsert.core.schema import Scope, TableSchema
from spark_upsert.errors import OptionError, SchemaError
from spark_upsert.options.read import ReadOptions
from spark_upsert.options.views import ViewOptions
from spark_upsert.store.open import open_store
from spark_upsert.streams.inputs.view import ViewInput
from spark_upsert.streams.planner.rate_limit import Limits, pace
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.streams.reads.splits import rows_splits
from spark_upsert.table.compaction import worker
from spark_upsert.table.log.manifest import Slice
from spark_upsert.table.run.file import RUNS, RunFile
from spark_upsert.table.run.rows import PickedPart, RunPart
from spark_upsert.table.state import lookup, snapshot
from spark_upsert.table.state.partition import common, cut_by_files, cut_evenly
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.stash import Stash
from spark_upsert.views.plan_builder import Plan
from tests.support.stores import MemoryStore, forget_runs_and_logs
from tests.support.streams import Query, stream_of

COLUMNS = pa.schema({"c": pa.int64(), "id": pa.int64(), "v": pa.int64()})


def table_of(store: MemoryStore, **how: Any) -> Table:
    table = Table(store)
    table.ensure(TableSchema.of(COLUMNS, keys=["c", "id"], hash_prefix=1, **how))
    return table


def rows(c: Sequence[Any], ids: Sequence[Any], v: Sequence[Any]) -> pa.Table:
    return pa.table([pa.array(each, pa.int64()) for each in (c, ids, v)], schema=COLUMNS)


def wanted(*values: Any) -> pa.Table:
    return pa.table({"c": pa.array(values, pa.int64())})


def shown(found: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in found.to_pylist())


def test_rows_are_found_by_the_beginning_of_their_key() -> None:
    table = table_of(MemoryStore())
    table.upsert(rows([1, 1, 2, None], [1, 2, 1, 1], [10, 20, 30, 40]))
    table.upsert(rows([1, 3], [2, 1], [21, 50]))
    assert shown(table.having_prefix(wanted(1))) == [(1, 1, 10), (1, 2, 21)]
    assert shown(table.having_prefix(wanted(3, 2, 3, 9))) == [(2, 1, 30), (3, 1, 50)]
    assert shown(table.having_prefix(wanted(None))) == [(None, 1, 40)]
    assert table.having_prefix(wanted()).num_rows == 0
    assert shown(table.having_prefix(wanted(1), version=1, columns=["v"])) == [(10,), (20,)]
    both = pa.table({"id": [2, 1], "c": [1, 2]})
    assert shown(table.having_prefix(both)) == [(1, 2, 21), (2, 1, 30)]


def test_deleted_rows_are_not_found() -> None:
    table = table_of(MemoryStore())
    table.upsert(rows([1, 1], [1, 2], [10, 20]))
    gone = rows([1], [1], [0]).append_column("gone", pa.array([True]))
    table.upsert(gone, deletes="gone")
    assert shown(table.having_prefix(wanted(1))) == [(1, 2, 20)]


def test_folded_rows_are_found_folded() -> None:
    engine = MergeEngine(Engine.AGGREGATION, {"v": Rule.SUM})
    table = table_of(MemoryStore(), engine=engine)
    for number in range(3):
        table.upsert(rows([1, 2], [1, 1], [number, 1]))
    assert shown(table.having_prefix(wanted(1))) == [(1, 1, 3)]


def test_floats_are_found_as_keys_are_equal() -> None:
    columns = pa.schema({"c": pa.float64(), "id": pa.int64()})
    table = Table(MemoryStore())
    table.ensure(TableSchema.of(columns, keys=["c", "id"], hash_prefix=1))
    table.upsert(pa.table([[0.0, float("nan"), 1.5], [1, 2, 3]], schema=columns))
    values = pa.table({"c": [-0.0, float("nan")]})
    assert sorted(table.having_prefix(values).column("id").to_pylist()) == [1, 2]


def test_other_values_that_share_the_range_are_left_out() -> None:
    with patch.object(
        lookup,
        "prefix_ends",
        lambda columns, *, seed: (np.zeros(len(columns[0]), np.uint64),) * 2,
    ):
        table = table_of(MemoryStore())
        table.upsert(rows(range(50), [1] * 50, [1] * 50))
        with patch.object(lookup, "_LOWER", np.uint64(2**64 - 1)):
            assert shown(table.having_prefix(wanted(7, 9))) == [(7, 1, 1), (9, 1, 1)]


def test_many_values_are_sought_piece_by_piece() -> None:
    table = table_of(MemoryStore())
    table.upsert(rows([n // 3 for n in range(300)], range(300), [1] * 300))
    with patch.object(lookup, "_VALUES", 7), patch.object(snapshot, "CHUNK_ROWS", 5):
        found = table.having_prefix(wanted(*range(0, 100, 2)))
    assert found.num_rows == 150
    assert set(found.column("c").to_pylist()) == set(range(0, 100, 2))


def test_a_prefix_read_touches_the_blocks_of_its_rows_alone() -> None:
    """P7: of 400 blocks and more, some for the ends of the range in each run, and its rows."""
    table = table_of(MemoryStore())
    count = 20_000
    for begin in range(0, count, count // 2):
        ids = list(range(begin, begin + count // 2))
        table.upsert(rows([n % 1000 for n in ids], ids, ids))
    forget_runs_and_logs()
    assert table.having_prefix(wanted(17)).num_rows == count // 1000
    runs = [RUNS.open(table.store, slice_.file) for slice_ in table.at().manifest.slices]
    blocks = sum(len(run._blocks) for run in runs)
    touched = sum(run._blocks.verified_count for run in runs)
    assert blocks > 400
    assert touched <= 2 * 20, f"{touched} of {blocks} blocks for 20 rows in two runs"
    forget_runs_and_logs()
    assert sum(batch.num_rows for batch in table.at().read()) == count
    runs = [RUNS.open(table.store, slice_.file) for slice_ in table.at().manifest.slices]
    assert sum(run._blocks.verified_count for run in runs) > 300


HOT = 5_000


def hot_table(*, epochs: int = 4) -> Table:
    """Return a table with nine rows in ten of one value."""
    table = table_of(MemoryStore())
    for epoch in range(epochs):
        ids = list(range(epoch * HOT // epochs, (epoch + 1) * HOT // epochs))
        table.upsert(rows([0 if n % 10 else n for n in ids], ids, ids))
    return table


def test_a_common_value_is_read_in_pieces() -> None:
    table = hot_table()
    sizes = []

    def counted(self: Snapshot, parts: Any, names: list[str]) -> Any:
        sizes.append(sum(len(part) for part, _ in parts))
        return settled(self, parts, names)

    settled = Snapshot._settled
    with patch.object(snapshot, "CHUNK_ROWS", 500), patch.object(Snapshot, "_settled", counted):
        assert table.snapshot().num_rows == HOT
        assert table.having_prefix(wanted(0, 10)).num_rows == HOT * 9 // 10 + 2
    assert max(sizes) <= 600
    assert max(sizes) > 400


def test_a_common_value_is_compacted_into_files_of_the_usual_size() -> None:
    table = hot_table()
    with patch.object(worker, "FILE_BYTES", 30_000):
        table.compact(full=True)
    slices = table.at().manifest.slices
    assert len({slice_.epochs for slice_ in slices}) == 1
    assert max(slice_.file.rows for slice_ in slices) < 2 * HOT / len(slices)
    assert table.check().is_sound
    splits = rows_splits(table.at().manifest, ReadOptions.parse({"path": "/t", "splits": "4"}))
    counts = [
        sum(b.num_rows for b in Snapshot(table.store, s.manifest).read(hash_range=s.hash_range))
        for s in splits
    ]
    assert len(counts) == 4
    assert sum(counts) == HOT
    assert max(counts) < HOT / 2, f"one of four splits has most rows: {counts}"


@pytest.mark.parametrize("epochs", [1, 4])
@pytest.mark.parametrize("hot", [0, 3], ids=["one hot value", "three, and others"])
def test_a_stream_over_a_common_value_begins_in_pieces_of_the_limit(epochs: int, hot: int) -> None:
    table = table_of(MemoryStore())
    for epoch in range(epochs):
        ids = list(range(epoch * HOT // epochs, (epoch + 1) * HOT // epochs))
        values = [n % 3 if hot and n % 10 else 0 if n % 10 else n for n in ids]
        table.upsert(rows(values, ids, ids))

    def again() -> Stream:
        return stream_of(table, maxRowsPerTrigger=500)

    query = Query(again)
    query.drain()
    sizes = [len(batch) for batch in query.batches]
    assert sum(sizes) == len({row["id"] for batch in query.batches for row in batch}) == HOT
    assert max(sizes) <= 700, sizes
    assert len(sizes) <= 14, "and each is about as large as it may be"


def test_a_view_that_a_hot_table_drives_begins_in_pieces_of_the_limit(tmp_path: Path) -> None:
    table = Table(open_store(str(tmp_path)))
    table.ensure(TableSchema.of(COLUMNS, keys=["c", "id"], hash_prefix=1))
    ids = list(range(2_000))
    table.upsert(rows([0 if n % 10 else n for n in ids], ids, ids))
    view = ViewInput(ViewOptions.parse({"plan": Plan.of_table(str(tmp_path)).to_json()}))
    start = view.backlog(None).start
    sizes, limit = [], Limits(rows=200)
    while True:
        backlog = view.backlog(start)
        end = pace({"": backlog}, limit, {}).positions[""]
        if end == start:
            break
        splits = view.splits(start, end)
        sizes.append(sum(b.num_rows for split in splits for b in view.read(split)))
        start = end
    assert sum(sizes) == 2_000
    assert max(sizes) <= 300, sizes


def test_a_run_tells_where_many_keys_begin_alike() -> None:
    table = hot_table(epochs=1)
    [slice_] = table.at().manifest.slices
    [crowd] = slice_.file.crowds
    assert crowd.rows == HOT * 9 // 10 + 1  # Row 0 has the value, too.
    [first], _ = prefix_ends([pa.array([0])], seed=table.schema.hash_seed)
    assert crowd.upper == int(first) >> 32
    parts = sorted(slice_.file.spread(), key=lambda each: each[0].first)
    assert [a.end for (a, _) in parts[:-1]] == [b.first for (b, _) in parts[1:]]
    assert sum(count for _, count in parts) == pytest.approx(HOT, abs=2)
    assert RunFile.from_json(slice_.file.to_json()) == slice_.file
    whole = Table(MemoryStore())
    whole.ensure(TableSchema.of(COLUMNS, keys=["c", "id"]))
    whole.upsert(rows([0] * HOT, range(HOT), range(HOT)))
    [slice_] = whole.at().manifest.slices
    assert slice_.file.crowds == ()
    assert "crowds" not in slice_.file.to_json(), "hashes of whole keys do not crowd"


@pytest.mark.parametrize(
    "crowds",
    [
        [["00000001", 5], ["00000001", 5]],
        [["00000002", 5], ["00000001", 5]],
        [["00000009", 5]],
        [["00000001", 60], ["00000002", 60]],
        [["00000001", 0]],
        [["x", 5]],
        "x",
    ],
    ids=["twice", "falling", "elsewhere", "too many", "none", "no digits", "no list"],
)
def test_crowds_that_cannot_be_are_refused(crowds: Any) -> None:
    record = file_of(1 << 32, 3 << 32, 100).file.to_json()
    record |= {"path": "data/x.arrow", "crowds": crowds}
    with pytest.raises((ValueError, TypeError)):
        RunFile.from_json(record)


def test_a_common_value_is_spilled_and_sealed_in_pieces() -> None:
    store = MemoryStore()
    table = table_of(store)
    with patch.object(
        Stash.__init__, "__kwdefaults__", {"settle_bytes": 10_000, "spill_bytes": 20_000}
    ):
        ids = list(range(HOT))
        data = rows([0] * HOT, ids, ids)
        table.upsert(pa.Table.from_batches(data.to_batches(max_chunksize=200)))
    files = [slice_.file.rows for slice_ in table.at().manifest.slices]
    assert sum(files) == HOT
    assert max(files) < HOT / 4


def test_changes_of_a_common_value_are_computed_in_pieces() -> None:
    table = hot_table(epochs=2)
    with patch.object(snapshot, "CHUNK_ROWS", 500):
        assert table.changes(0).num_rows == HOT
        batches = list(table.iter_changes(0, 3, _options()))
    assert max(batch.num_rows for batch in batches) <= 600


def _options() -> Any:
    from spark_upsert.table.changelog.render import ChangeOptions

    return ChangeOptions(columns=("c", "id", "v"))


def test_an_even_cut_follows_the_entries() -> None:
    dense = np.arange(1000, 2000, dtype=np.uint64)
    sparse = np.arange(0, 2**63, 2**54, dtype=np.uint64)
    pieces = cut_evenly(ALL_HASHES, [(dense, 1.0), (sparse, 1.0)], 8)
    assert (pieces[0].first, pieces[-1].end) == (ALL_HASHES.first, ALL_HASHES.end)
    assert all(a.end == b.first for a, b in pairwise(pieces))
    total = len(dense) + len(sparse)
    for piece in pieces:
        held = sum(stop - start for start, stop in map(piece.rows_of, (dense, sparse)))
        assert held < 1.2 * total / 8


def file_of(first: int, end: int, rows: int) -> Slice:
    stored = HashRange(first, end)
    file = RunFile(
        path=f"data/{first}",
        rows=rows,
        tombstones=0,
        bytes=rows,
        body_bytes=rows,
        tail_crc=0,
        hash_range=stored,
    )
    return Slice(file=file, live=stored, epochs=Interval.at(1))


def test_a_cut_by_files_follows_what_the_log_says_of_them() -> None:
    dense, wide = file_of(1000, 2000, 9_000), file_of(0, 2**64, 1_000)
    pieces = cut_by_files(ALL_HASHES, [wide, dense], 10, is_uniform=False)
    assert len(pieces) == 10
    rows = [sum(each.rows_within(piece) for each in (wide, dense)) for piece in pieces]
    assert sum(rows) == pytest.approx(10_000, abs=20)
    assert max(rows) < 1_200
    assert cut_by_files(ALL_HASHES, [dense], 4, is_uniform=True) == ALL_HASHES.cut(4)
    assert cut_by_files(ALL_HASHES, [], 4, is_uniform=False) == ALL_HASHES.cut(4)
    assert cut_by_files(HashRange(0, 10), [dense], 2, is_uniform=False) == HashRange(0, 10).cut(2)


@pytest.mark.parametrize("count", [1, 3])
def test_a_cut_of_nothing_is_whole(count: int) -> None:
    assert cut_evenly(ALL_HASHES, [], count) == [ALL_HASHES]
    assert cut_evenly(ALL_HASHES, [(np.empty(0, np.uint64), 1.0)], count) == [ALL_HASHES]


def test_common_pieces_are_within_the_pieces_of_each_cut() -> None:
    whole = HashRange(0, 12)
    assert common(whole, [whole.cut(2), whole.cut(3)]) == [
        HashRange(0, 4),
        HashRange(4, 6),
        HashRange(6, 8),
        HashRange(8, 12),
    ]


def test_keys_that_begin_alike_have_hashes_of_one_range() -> None:
    c, ids = pa.array([5] * 100), pa.array(range(100))
    hashes = hash_keys([c, ids], seed=3, prefix=1)
    [first], [last] = (ends for ends in prefix_ends([pa.array([5])], seed=3))
    assert int(last) - int(first) == 2**32 - 1
    assert bool(((hashes >= first) & (hashes <= last)).all())
    assert len(set(hashes.tolist())) == 100
    lower = hash_keys([c, ids], seed=3) & np.uint64(2**32 - 1)
    assert (hashes & np.uint64(2**32 - 1)).tolist() == lower.tolist()


def test_picked_rows_of_a_run_are_a_part() -> None:
    table = table_of(MemoryStore())
    table.upsert(rows([1] * 20, range(20), range(20)))
    [(whole, _)] = table.at().parts()
    assert isinstance(whole, RunPart)
    run = RUNS.open(table.store, table.at().manifest.slices[0].file)
    places = np.array([3, 4, 9])
    part = PickedPart(run, places)
    assert part.unverified_hashes.tolist() == part.hashes.tolist() == whole.hashes[places].tolist()
    assert part.hash_ends == (part.hashes[0], part.hashes[-1])
    assert part.path == run.file.path
    assert (part.has("v"), part.has("w")) == (True, False)
    assert part.slice(["v"], 1, 3)[0].to_pylist() == whole.take(["v"], places[1:])[0].to_pylist()


def test_a_table_without_a_prefix_says_so() -> None:
    table = Table(MemoryStore())
    table.ensure(TableSchema.of(COLUMNS, keys=["c", "id"]))
    with pytest.raises(OptionError, match="a table hashed of whole keys alone"):
        table.having_prefix(wanted(1))


def test_a_prefix_is_shorter_than_the_key() -> None:
    with pytest.raises(OptionError, match="from 0 to 1, less than all keys, found 2"):
        TableSchema.of(COLUMNS, keys=["c", "id"], hash_prefix=2)


def test_values_are_those_of_the_leading_columns() -> None:
    table = table_of(MemoryStore())
    with pytest.raises(OptionError, match="the leading key columns, c,id"):
        table.having_prefix(pa.table({"id": [1]}))
    with pytest.raises(SchemaError, match="'c' is int64 in the table"):
        table.having_prefix(pa.table({"c": ["x"]}))


@pytest.mark.parametrize("prefix", [0, 1], ids=["whole", "prefix"])
def test_what_the_log_says_of_the_hash_is_read_again(prefix: int) -> None:
    own = TableSchema.of(COLUMNS, keys=["c", "id"], hash_prefix=prefix)
    record = own.to_json()
    assert record["hash"]["version"] == 1 + prefix, "only who needs the prefix must know of it"
    assert ("prefix" in record["hash"]) == bool(prefix)
    assert TableSchema.from_json(record) == own


@pytest.mark.parametrize("prefix", [0, -1, "1", True, None])
def test_a_bad_prefix_in_the_log_is_refused(prefix: Any) -> None:
    record = TableSchema.of(COLUMNS, keys=["c", "id"], hash_prefix=1).to_json()
    record["hash"]["prefix"] = prefix
    with pytest.raises(ValueError, match="no number of leading key columns"):
        TableSchema.from_json(record)


def test_tables_with_and_without_a_prefix_have_other_rules() -> None:
    own = TableSchema.of(COLUMNS, keys=["c", "id"], scope=Scope.ARRIVAL)
    assert not own.has_rules_of(TableSchema.of(COLUMNS, keys=["c", "id"], hash_prefix=1))


@pytest.mark.parametrize("prefix", [{"c": 2}, {"C": [2]}, {"c": 2, "id": [1]}], ids=str)
def test_a_prefix_is_given_as_a_mapping(prefix: dict[str, Any]) -> None:
    table = table_of(MemoryStore())
    table.upsert(rows([1, 2], [1, 1], [10, 20]))
    assert shown(table.having_prefix(prefix)) == [(2, 1, 20)]
