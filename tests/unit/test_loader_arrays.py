"""Batches as arrays and as tensors: types, nulls, and what a `DataLoader` is asked for.

torch is not here: what stands in for it has the few functions that are called. That the real one
gives the same rows is no claim of these tests.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from itertools import islice, zip_longest
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.errors import DataError, OptionError, SchemaError
from spark_upsert.loader import Loader
from spark_upsert.loader.arrays import as_numpy, as_torch
from tests.support.loading import MemoryRows, ids_of, loader_of


def one(column: pa.Array) -> pa.RecordBatch:
    """Return a batch that is a part of a window, as most are."""
    nulls = pa.nulls(1, column.type)
    return pa.record_batch({"c": pa.concat_arrays([nulls, column, nulls])}).slice(1, len(column))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, 2], pa.int8()), np.array([1, 2], np.int8)),
        (pa.array([1, 2], pa.uint64()), np.array([1, 2], np.uint64)),
        (pa.array([True, False]), np.array([True, False])),
        (pa.array([1.5, None], pa.float32()), np.array([1.5, np.nan], np.float32)),
        (pa.array([1.5, 2.5], pa.float64()), np.array([1.5, 2.5])),
        (
            pa.array([date(2026, 1, 2)]),
            np.array(["2026-01-02"], "datetime64[D]"),
        ),
        (
            pa.array([[1, 2, 3], [4, 5, 6]], pa.list_(pa.int16(), 3)),
            np.array([[1, 2, 3], [4, 5, 6]], np.int16),
        ),
        (
            pa.array([[1.5, None]], pa.list_(pa.float32(), 2)),
            np.array([[1.5, np.nan]], np.float32),
        ),
        (
            pa.array([[[1, 2]], [[3, 4]]], pa.list_(pa.list_(pa.int8(), 2), 1)),
            np.array([[[1, 2]], [[3, 4]]], np.int8),
        ),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_a_column_keeps_its_type(column: pa.Array, expected: Any) -> None:
    found = as_numpy(one(column))["c"]
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert np.array_equal(found, expected, equal_nan=found.dtype.kind == "f")


@pytest.mark.parametrize(
    "values", [["a", None], [b"a", b""], [[1], [2, 3]], [{"x": 1}, None]], ids=repr
)
def test_what_numpy_has_no_type_for_are_objects(values: list[Any]) -> None:
    found = as_numpy(one(pa.array(values)))["c"]
    assert found.dtype == np.object_
    assert found.tolist() == values


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None]),
        pa.array([True, None]),
        pa.array([None], pa.date32()),
        pa.array([[1, 2], None], pa.list_(pa.int8(), 2)),
        pa.array([[1, None]], pa.list_(pa.int8(), 2)),
    ],
    ids=lambda column: str(column.type),
)
def test_a_null_that_no_value_stands_for_is_refused(column: pa.Array) -> None:
    with pytest.raises(DataError, match=r"'c' has 1 nulls of"):
        as_numpy(one(column))


def test_a_loader_stays_before_a_batch_that_is_refused() -> None:
    loader = loader_of([4])
    batches = loader._begin(lambda stretch: stretch.batches(), lambda batch: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        next(batches)
    assert loader.batch == 0


# -- torch ---------------------------------------------------------------------------


def test_tensors_without_torch_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(OptionError, match=r"(?s)torch, which is not installed.*Hint: install"):
        next(loader_of([3]).torch())


@dataclass
class Tensor:
    array: Any


@dataclass
class Taken(Iterator[Any]):
    """What a `DataLoader` is iterated by; its workers are to be ended."""

    items: list[Any]
    data: ModuleType

    def __next__(self) -> Any:
        if not self.items:
            raise StopIteration
        return self.items.pop(0)

    def _shutdown_workers(self) -> None:
        vars(self.data)["is_over"] = True


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """What is called of torch; its workers take turns in this process."""
    torch, utils, data = (ModuleType(name) for name in ("torch", "torch.utils", "data"))
    names = {"from_numpy": Tensor, "utils": utils}
    vars(torch).update(names)
    vars(utils).update({"data": data})
    working: list[SimpleNamespace | None] = [None]

    class DataLoader:
        def __init__(self, dataset: Any, *, batch_size: None, num_workers: int, **options: Any):
            vars(data)["options"] = options
            self._dataset, self._workers = dataset, num_workers

        def __iter__(self) -> Iterator[Any]:
            parts = []
            for worker in range(self._workers):
                working[0] = SimpleNamespace(id=worker, num_workers=self._workers)
                part = iter(self._dataset)
                parts.append(list(part))
            turns = zip_longest(*parts)
            return Taken([item for turn in turns for item in turn if item is not None], data)

    vars(data).update(
        {
            "DataLoader": DataLoader,
            "IterableDataset": object,
            "get_worker_info": lambda: working[0],
        }
    )
    for name, module in (("torch", torch), ("torch.utils", utils), ("torch.utils.data", data)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "spark_upsert.loader.torch_data", raising=False)
    return torch


def test_a_tensor_may_be_written_to(torch: ModuleType) -> None:
    batch = one(pa.array([1, 2]))
    tensor = as_torch(batch)["c"]
    tensor.array[0] = 7
    assert (tensor.array.tolist(), batch["c"].to_pylist()) == ([7, 2], [1, 2])


@pytest.mark.parametrize(
    "column", [pa.array(["a"]), pa.array([date(2026, 1, 2)])], ids=["text", "date"]
)
def test_a_column_that_torch_has_no_type_for_is_named(torch: ModuleType, column: pa.Array) -> None:
    with pytest.raises(SchemaError, match=r"column 'c' is .* torch has no type"):
        as_torch(one(column))


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_workers_give_the_same_batches_and_the_position_is_that_of_the_trainer(
    torch: ModuleType, workers: int
) -> None:
    expected = ids_of(loader_of([5, 6, 7], lanes=2))
    loader = loader_of([5, 6, 7], lanes=2)
    batches = loader.torch(workers=workers)
    taken = [batch["id"].array.tolist() for batch in islice(batches, 2)]
    state = loader.state_dict()
    assert state["batch"] == 2, "whatever the workers have ready"
    batches.close()
    again = loader_of([5, 6, 7], lanes=2)
    again.load_state_dict(state)
    rest = [batch["id"].array.tolist() for batch in again.torch(workers=workers)]
    assert taken + rest == expected


@pytest.mark.parametrize("is_whole", [True, False], ids=["at its end", "when it is closed"])
def test_the_workers_end_with_the_pass(torch: ModuleType, is_whole: bool) -> None:
    batches = loader_of([5, 6]).torch(workers=2)
    next(batches)
    data = sys.modules["torch.utils.data"]
    assert not hasattr(data, "is_over")
    if is_whole:
        list(batches)
    batches.close()
    assert data.is_over


def test_options_are_those_of_the_data_loader_but_for_what_is_decided(torch: ModuleType) -> None:
    list(loader_of([5]).torch(workers=1, prefetch_factor=3))
    assert sys.modules["torch.utils.data"].options == {"prefetch_factor": 3}
    with pytest.raises(OptionError, match=r"(?s)'shuffle' of a DataLoader.*seed"):
        loader_of([5]).torch(workers=1, shuffle=True)
    with pytest.raises(OptionError, match="'workers' expects a number from 1"):
        loader_of([5]).torch(pin_memory=True)


def test_rows_in_a_bucket_are_not_read_by_forked_workers(torch: ModuleType) -> None:
    loader = Loader(MemoryRows([5], is_forkable=False), batch_rows=2)
    list(loader.torch(workers=1))
    assert sys.modules["torch.utils.data"].options == {"multiprocessing_context": "spawn"}
    with pytest.raises(OptionError, match="'fork'"):
        loader.torch(workers=1, multiprocessing_context="fork")
