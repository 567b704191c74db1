"""What holds of those that train on rows.

Plain functions, as those of `test_promises`, and for the same reason.
"""

from __future__ import annotations

import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_upsert.errors import DataLossError, OptionError
from spark_upsert.loader import FileRows, Loader, TableRows
from spark_upsert.loader.stretch import RankBatches
from spark_upsert.table.table import Table
from tests.support.loading import (
    MemoryRows,
    carried,
    check_turns,
    flat,
    ids_of,
    loader_of,
    loading_threads,
    slow_epoch,
)

COUNTS = [4, 0, 7, 3, 5, 6]


def test_p1_each_row_of_an_epoch_comes_once_over_all_ranks() -> None:
    for epoch in range(2):
        found = []
        for rank in range(3):
            loader = loader_of(COUNTS, rank=rank, world=3, lanes=2)
            loader.set_epoch(epoch)
            batches = ids_of(loader)
            assert [len(batch) for batch in batches[:-1]] == [3] * (len(loader) - 1)
            found += flat(batches)
        assert sorted(found) == list(range(25))


def test_p1_ranks_have_equally_many_whole_batches() -> None:
    for remainder, most in (("drop", 1), ("repeat", 2)):
        ranks = [loader_of(COUNTS, rank=r, world=2, remainder=remainder) for r in range(2)]
        batches = [ids_of(loader) for loader in ranks]
        assert {len(batch) for each in batches for batch in each} == {3}
        assert len(batches[0]) == len(batches[1]) == len(ranks[0])
        times = np.bincount(flat([flat(each) for each in batches]), minlength=25)
        assert times.max() <= most
        assert remainder == "drop" or times.min() == 1


def test_p6_whoever_goes_on_gets_the_rest_and_nothing_twice() -> None:
    whole = loader_of(COUNTS, lanes=2)
    expected = ids_of(whole)
    for cut in range(len(expected) + 1):
        loader = loader_of(COUNTS, lanes=2, ahead=3)
        assert ids_of(islice(loader, cut)) == expected[:cut]
        again = loader_of(COUNTS, lanes=2)
        again.load_state_dict(carried(loader.state_dict()))
        assert ids_of(again) == expected[cut:]


def test_p4_the_order_is_the_same_everywhere() -> None:
    for seed in (0, 2**64 - 1):
        for epoch in range(2):
            loader = loader_of(COUNTS, seed=seed)
            loader.set_epoch(epoch)
            assert flat(ids_of(loader)) == slow_epoch(COUNTS, seed, epoch, window_rows=5)


def test_p4_workers_in_turn_give_what_one_gives() -> None:
    loader = loader_of(COUNTS, lanes=3)
    whole = ids_of(iter(loader))
    stretch = RankBatches(
        splits=MemoryRows(COUNTS), settings=loader._settings, rank=0, epoch=0, first=2, ahead=0
    )
    assert ids_of(stretch.batches()) == whole[2:]
    for workers in (1, 2, 3):
        check_turns(stretch, workers)


def test_p4_the_rows_of_a_version_do_not_depend_on_its_files() -> None:
    with tempfile.TemporaryDirectory() as folder:
        columns = pa.schema({"id": pa.int64(), "v": pa.int64()})
        table = Table.create(f"{folder}/t", columns, keys=["id"])
        for version in range(4):
            ids = list(range(version, 60, version + 1))
            table.append(pa.table({"id": ids, "v": [version] * len(ids)}))
        loader = Loader(TableRows(path=f"{folder}/t"), batch_rows=7, seed=3)
        found = pa.Table.from_batches(loader)
        assert found.sort_by("id") == table.snapshot().sort_by("id")
        table.compact(full=True)
        newest = Loader(TableRows(path=f"{folder}/t", columns=["v", "id"]), batch_rows=7, seed=3)
        assert pa.Table.from_batches(newest).select(["id", "v"]) == found


def test_p5_a_file_that_is_another_one_is_never_read_as_if_it_were_the_same() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a", "b"):
            pq.write_table(pa.table({"id": range(6)}), f"{folder}/{name}.parquet", row_group_size=3)
        source = FileRows(path=folder)
        loader = Loader(source, batch_rows=3, ahead=0)
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        pq.write_table(pa.table({"id": range(7, 13)}), f"{folder}/b.parquet", row_group_size=2)
        with pytest.raises(DataLossError):
            list(batches)
        with pytest.raises(DataLossError):
            Loader(source, batch_rows=3).load_state_dict(state)
        Path(folder, "b.parquet").unlink()
        with pytest.raises(DataLossError):
            Loader(source, batch_rows=3).load_state_dict(state)


def test_p5_a_checkpoint_of_other_settings_is_refused() -> None:
    state = loader_of(COUNTS).state_dict()
    others: dict[str, tuple[Any, Any]] = {
        "seed": (1, 2),
        "batch_rows": (3, 4),
        "window_rows": (5, 6),
        "world": (1, 2),
        "remainder": ("keep", "drop"),
        "lanes": (1, 2),
    }
    for name, (own, value) in others.items():
        with pytest.raises(OptionError, match=rf"(?s){name}={value!r}.*{name}={own!r}.*Hint: give"):
            loader_of(COUNTS, **{name: value}).load_state_dict(state)


def test_p5_an_error_is_not_the_end_of_the_epoch() -> None:
    source = MemoryRows([3, 3])

    def fail(index: int) -> None:
        if index == 1:
            raise DataLossError("it is gone.")

    source.before_read = fail
    loader = Loader(source, batch_rows=3)
    batches = iter(loader)
    next(batches)
    for error in (DataLossError, ValueError):
        with pytest.raises(error):
            list(batches)
    assert (loader.epoch, loader.batch) == (0, 1)


def test_p7_no_more_is_read_ahead_than_may_wait_and_no_thread_is_left() -> None:
    for ahead in range(3):
        source = MemoryRows([3] * 9)
        batches = iter(Loader(source, batch_rows=3, ahead=ahead))
        next(batches)
        batches.close()
        assert len(source.reads) <= 1 + ahead
        assert loading_threads() == []
