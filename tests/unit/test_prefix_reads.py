"""Reads of all rows whose key begins with some values, and tables where few are common."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.core.key_hash import ALL_HASHES, HashRange, prefix_ends
from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.precedence import Interval
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import OptionError, SchemaError
from spark_upsert.options.read import ReadOptions
from spark_upsert.options.views import ViewOptions
from spark_upsert.store import LocalStore, Store
from spark_upsert.streams.inputs.view import ViewInput
from spark_upsert.streams.planner.rate_limit import Limits, plan_limited_batch
from spark_upsert.streams.reads.splits import rows_splits
from spark_upsert.table.compaction import worker
from spark_upsert.table.log.manifest import Slice
from spark_upsert.table.run.file import RUNS, RunFile
from spark_upsert.table.run.rows import PickedPart, RunPart
from spark_upsert.table.state import lookup, snapshot
from spark_upsert.table.state.snapshot import Snapshot, cut_by_files, cut_evenly
from spark_upsert.table.table import Table
from spark_upsert.table.write.stage import Stash
from spark_upsert.views.plan_builder import Plan
from tests.support.stores import MemoryStore, forget_runs_and_logs

COLUMNS = pa.schema({"c": pa.int64(), "id": pa.int64(), "v": pa.int64()})


def table_of(store: Store, **how: Any) -> Table:
    table = Table(store)
    table.ensure(TableSchema.of(COLUMNS, keys=["c", "id"], hash_prefix=1, **how))
    return table


def rows(c: Sequence[Any], ids: Sequence[Any], v: Sequence[Any]) -> pa.Table:
    return pa.table([pa.array(each, pa.int64()) for each in (c, ids, v)], schema=COLUMNS)


def wanted(*values: Any) -> pa.Table:
    return pa.table({"c": pa.array(values, pa.int64())})


def shown(rows: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in rows.to_pylist())


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
    for mapping in ({"c": 2}, {"C": [2]}, {"c": 2, "id": [1]}):
        assert shown(table.having_prefix(mapping)) == [(2, 1, 30)]
    with pytest.raises(OptionError, match="the leading key columns, c,id"):
        table.having_prefix(pa.table({"id": [1]}))
    with pytest.raises(SchemaError, match="'c' is int64 in the table"):
        table.having_prefix(pa.table({"c": ["x"]}))
    whole = Table(MemoryStore())
    whole.ensure(TableSchema.of(COLUMNS, keys=["c", "id"]))
    with pytest.raises(OptionError, match="a table hashed of whole keys alone"):
        whole.having_prefix(wanted(1))


def test_folded_rows_are_found_folded() -> None:
    table = table_of(MemoryStore(), engine=MergeEngine(Engine.AGGREGATION, {"v": Rule.SUM}))
    for number in range(3):
        table.upsert(rows([1, 2], [1, 1], [number, 1]))
    assert shown(table.having_prefix(wanted(1))) == [(1, 1, 3)]


def test_floats_are_found_by_prefix_as_keys_are_equal() -> None:
    columns = pa.schema({"c": pa.float64(), "id": pa.int64()})
    table = Table(MemoryStore())
    table.ensure(TableSchema.of(columns, keys=["c", "id"], hash_prefix=1))
    table.upsert(pa.table([[0.0, float("nan"), 1.5], [1, 2, 3]], schema=columns))
    values = pa.table({"c": [-0.0, float("nan")]})
    assert sorted(table.having_prefix(values).column("id").to_pylist()) == [1, 2]


def test_other_values_that_share_the_range_are_left_out() -> None:
    def zeros(columns: Any, *, seed: int) -> Any:
        return (np.zeros(len(columns[0]), np.uint64),) * 2

    table = table_of(MemoryStore())
    table.upsert(rows(range(50), [1] * 50, [1] * 50))
    every_hash = patch.object(lookup, "_LOWER", np.uint64(2**64 - 1))
    with patch.object(lookup, "prefix_ends", zeros), every_hash:
        assert shown(table.having_prefix(wanted(7, 9))) == [(7, 1, 1), (9, 1, 1)]


def test_many_values_are_sought_piece_by_piece() -> None:
    table = table_of(MemoryStore())
    table.upsert(rows([n // 3 for n in range(300)], range(300), [1] * 300))
    with patch.object(lookup, "_VALUES", 7), patch.object(snapshot, "CHUNK_ROWS", 5):
        found = table.having_prefix(wanted(*range(0, 100, 2)))
    assert found.num_rows == 150
    assert set(found.column("c").to_pylist()) == set(range(0, 100, 2))


def test_prefix_read_touches_the_blocks_of_its_rows_alone() -> None:
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


HOT = 5_000


def hot_table(epochs: int, store: Store | None = None) -> Table:
    """Return a table with nine rows in ten of one value."""
    table = table_of(store or MemoryStore())
    for epoch in range(epochs):
        ids = list(range(epoch * HOT // epochs, (epoch + 1) * HOT // epochs))
        table.upsert(rows([0 if n % 10 else n for n in ids], ids, ids))
    return table


def test_common_value_is_compacted_into_files_of_the_usual_size() -> None:
    table = hot_table(4)
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


def test_view_that_a_hot_table_drives_begins_in_pieces_of_the_limit(tmp_path: Path) -> None:
    hot_table(1, LocalStore(tmp_path))
    view = ViewInput(ViewOptions.parse({"plan": Plan.of_table(str(tmp_path)).to_json()}))
    start = view.backlog(None).start
    sizes = []
    while True:
        backlog = view.backlog(start)
        end = plan_limited_batch({"": backlog}, Limits(rows=500), {}).positions[""]
        if end == start:
            break
        splits = view.splits(start, end)
        sizes.append(sum(b.num_rows for split in splits for b in view.read(split)))
        start = end
    assert sum(sizes) == HOT
    assert max(sizes) <= 750, sizes


def test_run_says_where_many_keys_begin_alike() -> None:
    table = hot_table(1)
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


def test_common_value_is_spilled_and_sealed_in_pieces() -> None:
    table = table_of(MemoryStore())
    data = rows([0] * HOT, range(HOT), range(HOT)).to_batches(max_chunksize=200)
    sizes = {"compact_bytes": 10_000, "spill_bytes": 20_000}
    with patch.object(Stash.__init__, "__kwdefaults__", sizes):
        table.upsert(pa.Table.from_batches(data))
    files = [slice_.file.rows for slice_ in table.at().manifest.slices]
    assert sum(files) == HOT
    assert max(files) < HOT / 4


def file_of(first: int, end: int, rows: int) -> Slice:
    live = HashRange(first, end)
    sizes: dict[str, Any] = {
        "rows": rows,
        "bytes": rows,
        "body_bytes": rows,
        "tombstones": 0,
        "tail_crc": 0,
    }
    file = RunFile(path=f"data/{first}", hash_range=live, **sizes)
    return Slice(file=file, live=live, epochs=Interval.at(1))


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


def test_picked_rows_of_a_run_are_a_part() -> None:
    table = table_of(MemoryStore())
    table.upsert(rows([1] * 20, range(20), range(20)))
    [(whole, _)] = table.at().parts()
    assert isinstance(whole, RunPart)
    run = RUNS.open(table.store, table.at().manifest.slices[0].file)
    places = np.array([3, 4, 9])
    part = PickedPart(run, places)
    assert part.unverified_hashes.tolist() == part.hashes.tolist() == whole.hashes[places].tolist()
    assert part.first_and_last_hash == (part.hashes[0], part.hashes[-1])
    assert part.path == run.file.path
    assert part.slice(["v"], 1, 3)[0].equals(whole.take(["v"], places[1:])[0])


def test_cut_of_no_hashes_is_whole() -> None:
    assert cut_evenly(ALL_HASHES, [(np.empty(0, np.uint64), 1.0)], 3) == [ALL_HASHES]


def test_prefix_is_shorter_than_the_key_and_a_rule_of_the_table_that_its_log_keeps() -> None:
    with pytest.raises(OptionError, match="from 0 to 1, less than all keys, found 2"):
        TableSchema.of(COLUMNS, keys=["c", "id"], hash_prefix=2)
    whole, prefixed = (TableSchema.of(COLUMNS, keys=["c", "id"], hash_prefix=n) for n in (0, 1))
    assert not whole.has_rules_of(prefixed)
    for schema, version in ((whole, 1), (prefixed, 2)):
        record = schema.to_json()
        assert record["hash"]["version"] == version, "only who needs the prefix must know of it"
        assert ("prefix" in record["hash"]) == (version == 2)
        assert TableSchema.from_json(record) == schema


@pytest.mark.parametrize("prefix", [0, -1, "1", True, None])
def test_bad_prefix_in_the_log_is_refused(prefix: Any) -> None:
    record = TableSchema.of(COLUMNS, keys=["c", "id"], hash_prefix=1).to_json()
    record["hash"]["prefix"] = prefix
    with pytest.raises(ValueError, match="no number of leading key columns"):
        TableSchema.from_json(record)
