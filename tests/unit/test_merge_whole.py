"""Merges whose inputs are read to their end first: their order, their memory, and their files."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.errors import DataError, MemoryLimitError, SchemaError, StorageError
from spark_upsert.merge import spill
from spark_upsert.merge.merged import DocumentClose, DocumentOpen, merge
from spark_upsert.merge.readers import MergeConfig, Mode, OpenInput
from spark_upsert.merge.spill import MemoryPressure, Relief, SpillingStore
from tests.support.merging import batches_of, rows_in
from tests.support.waiting import merge_threads, passed

SEEDED = MergeConfig(mode=Mode.INTERLEAVE, seed=42)
LIVE = MergeConfig(mode=Mode.INTERLEAVE)
SMALL = MemoryPressure(limit_bytes=400)
"""So little that every few batches are spilled."""


def told(items: Iterator[Any]) -> str:
    return " ".join(f"{name}{row}" for name, row in rows_in(list(items)))


def test_18_a_seeded_order_does_not_depend_on_who_is_late() -> None:
    gate = threading.Event()

    def late() -> Iterator[pa.RecordBatch]:
        passed(gate)
        yield from batches_of("a", [1, 2])

    def other() -> Iterator[pa.RecordBatch]:
        yield from batches_of("b", [3])
        gate.set()

    assert told(merge({"a": late, "b": other}, SEEDED)) == "b1 a1 b2 a2 b3 a3"


def test_38_a_seeded_merge_reads_its_inputs_to_their_end_before_it_gives_a_row() -> None:
    ended = []

    def batches(name: str) -> Iterator[pa.RecordBatch]:
        yield from batches_of(name, [1_000] * 5)
        ended.append(name)

    out = merge({name: partial(batches, name) for name in "abc"}, SEEDED)
    next(out)
    assert sorted(ended) == ["a", "b", "c"]
    assert merge_threads() == []
    out.close()


@pytest.mark.parametrize(
    ("config", "is_live", "expected"),
    [
        pytest.param(None, True, "a1 a2 a3 b1 c1 c2", id="the default is concat"),
        pytest.param(LIVE, False, "a1 b1 c1 a2 c2 a3", id="interleave that cannot be live"),
        pytest.param(SEEDED, True, "c1 b1 c2 a1 a2 a3", id="seed 42"),
    ],
)
def test_a_merge_does_what_its_settings_say(
    config: MergeConfig | None, is_live: bool, expected: str
) -> None:
    inputs = {
        name: partial(batches_of, name, sizes)
        for name, sizes in {"a": [2, 1], "b": [0, 1], "c": [1, 1]}.items()
    }
    assert told(merge(inputs, config, is_live=is_live)) == expected
    assert told(merge(inputs, config, is_live=is_live, pressure=SMALL, rows=2)) == expected


# -- files


def rows_of(store: SpillingStore, names: str) -> dict[str, list[int]]:
    return {name: [row for _, row in rows_in(list(store.take(name)))] for name in names}


def fill(store: SpillingStore, sizes: dict[str, list[int]]) -> dict[str, list[int]]:
    for name, each in sizes.items():
        for batch in batches_of(name, each):
            store.add(name, batch)
    return {name: list(range(1, sum(each) + 1)) for name, each in sizes.items()}


SIZES = {"a": [3, 5, 1], "b": [20, 1], "c": [1] * 9}


def test_what_was_spilled_comes_back_in_its_order(tmp_path: Path) -> None:
    with SpillingStore(SMALL, folder=tmp_path) as store:
        expected = fill(store, SIZES)
        assert store.bytes_in_memory <= 400
        assert len(list(tmp_path.glob("*/*.arrow"))) >= 2
        assert store.rows == {"a": 9, "b": 21, "c": 9}
        assert "inputs=3, rows=39" in repr(store)
        assert rows_of(store, "abc") == expected
        assert rows_of(store, "abc") == {"a": [], "b": [], "c": []}
    assert list(tmp_path.iterdir()) == []


def test_what_fits_is_never_written(tmp_path: Path) -> None:
    with SpillingStore(folder=tmp_path) as store:
        expected = fill(store, SIZES)
        assert rows_of(store, "abc") == expected
        assert list(tmp_path.iterdir()) == []


def test_inputs_may_be_taken_side_by_side(tmp_path: Path) -> None:
    with SpillingStore(SMALL, folder=tmp_path) as store:
        fill(store, {"a": [4, 4, 4], "b": [4, 4, 4]})
        pairs = list(zip(store.take("a"), store.take("b"), strict=True))
        assert [batch.num_rows for pair in pairs for batch in pair] == [4] * 6
        assert store.bytes_in_memory == 0


def test_dictionaries_and_nested_columns_survive_the_disk(tmp_path: Path) -> None:
    kinds, tags = [["x", "y", None], ["z", "z", "q"]], [[["a"], [], None], [["b"], None, [None]]]
    batches = [
        pa.record_batch({"kind": pa.array(kind).dictionary_encode(), "tags": tag})
        for kind, tag in zip(kinds, tags, strict=True)
    ]
    with SpillingStore(MemoryPressure(limit_bytes=1), folder=tmp_path) as store:
        for batch in [*batches, *batches]:
            store.add("a", batch)
        spilled = [batch.to_pylist() for batch in store.take("a")]
    assert spilled == [batch.to_pylist() for batch in [*batches, *batches]]


def test_who_may_not_spill_is_told_of_the_limit() -> None:
    pressure = MemoryPressure(limit_bytes=400, relief=Relief.PAUSE)
    with SpillingStore(pressure) as store, pytest.raises(MemoryLimitError, match="only 400 are"):
        fill(store, SIZES)
    with pytest.raises(MemoryError):
        list(merge({"a": partial(batches_of, "a", [99])}, SEEDED, pressure=pressure))


@pytest.mark.parametrize("how", ["ends", "is closed", "fails"])
def test_files_are_removed_when_the_merge(tmp_path: Path, how: str) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from batches_of("a", [9] * 20)
        if how == "fails":
            raise DataError("a key is null.")

    inputs: dict[str, OpenInput] = {"a": batches, "b": partial(batches_of, "b", [9] * 20)}
    out = merge(inputs, SEEDED, pressure=SMALL, folder=tmp_path, rows=5)
    if how == "ends":
        assert len(rows_in(list(out))) == 360
    elif how == "is closed":
        next(out)
        assert list(tmp_path.glob("*/*.arrow"))
        out.close()
    else:
        with pytest.raises(DataError, match="input 'a'"):
            next(out)
    assert list(tmp_path.iterdir()) == []
    assert merge_threads() == []


class FaultyDisk:
    """Opens files whose n-th operation fails, once."""

    def __init__(self, fails_at: int) -> None:
        self.left = fails_at

    @property
    def has_failed(self) -> bool:
        return self.left <= 0

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    def open(self, path: Path, mode: str) -> BinaryIO:
        self.step()
        return FaultyFile(self, open(path, mode))  # type: ignore[return-value]


class FaultyFile:
    """A file each of whose operations may fail."""

    def __init__(self, disk: FaultyDisk, file: Any) -> None:
        self._disk, self._file = disk, file

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._file, name)
        if name not in ("write", "read", "readinto", "seek", "tell", "flush"):
            return found

        def step(*args: Any) -> Any:
            self._disk.step()
            return found(*args)

        return step

    def __enter__(self) -> FaultyFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        if error[0] is None:
            self._disk.step()


def until_it_works(attempt: Callable[[FaultyDisk], None]) -> int:
    """Let each operation of the disk fail once; return how many there are."""
    for fails_at in range(1, 10_000):
        disk = FaultyDisk(fails_at)
        with patch.object(spill, "open", disk.open, create=True):
            attempt(disk)
        if not disk.has_failed:
            return fails_at - 1
    raise AssertionError("it never works")


def test_each_operation_of_the_disk_may_fail_and_be_tried_again(tmp_path: Path) -> None:
    def attempt(disk: FaultyDisk) -> None:
        with SpillingStore(SMALL, folder=tmp_path) as store:
            found: dict[str, list[int]] = {name: [] for name in SIZES}
            for name, sizes in SIZES.items():
                for batch in batches_of(name, sizes):
                    files = len(list(tmp_path.glob("*/*")))
                    try:
                        store.add(name, batch)
                    except StorageError:
                        assert len(list(tmp_path.glob("*/*"))) == files
                        store.add(name, batch)
            for name in SIZES:
                while len(found[name]) < sum(SIZES[name]):
                    try:
                        for batch in store.take(name):
                            found[name] += batch["row"].to_pylist()
                    except StorageError:
                        assert disk.has_failed
            assert found == {name: list(range(1, sum(s) + 1)) for name, s in SIZES.items()}
        assert list(tmp_path.iterdir()) == []

    assert until_it_works(attempt) > 20


def test_a_merge_whose_disk_fails_leaves_nothing_and_may_be_run_again(tmp_path: Path) -> None:
    inputs = {name: partial(batches_of, name, [5] * 3) for name in "ab"}
    expected = told(merge(inputs, SEEDED))

    def attempt(disk: FaultyDisk) -> None:
        try:
            found = told(merge(inputs, SEEDED, pressure=SMALL, folder=tmp_path, rows=4))
        except StorageError:
            assert disk.has_failed
        else:
            assert not disk.has_failed
            assert found == expected
        assert list(tmp_path.iterdir()) == []
        assert merge_threads() == []

    assert until_it_works(attempt) > 10


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with (
        SpillingStore(SMALL, folder=tmp_path / "gone") as store,
        pytest.raises(StorageError, match="gone"),
    ):
        fill(store, SIZES)


# -- marks and schemas


def marked(name: str, *documents: str) -> Iterator[Any]:
    for index, document in enumerate(documents):
        yield DocumentOpen(document)
        yield pa.record_batch({"input": [name], "row": [index]})
        yield DocumentClose(document)


@pytest.mark.parametrize(
    ("config", "is_live"),
    [(MergeConfig(), True), (LIVE, True), (LIVE, False), (SEEDED, True)],
    ids=["concat", "live", "in turns", "seeded"],
)
def test_each_document_is_opened_once_and_closed_once_behind_all_rows(
    config: MergeConfig, is_live: bool
) -> None:
    inputs: dict[str, Callable[[], Iterator[Any]]] = {
        "a": partial(marked, "a", "d", "e"),
        "b": partial(marked, "b", "d"),
    }
    items = list(merge(inputs, config, is_live=is_live))
    assert sorted(x.document for x in items if isinstance(x, DocumentOpen)) == ["d", "e"]
    assert {type(x) for x in items[-2:]} == {DocumentClose}
    assert sorted(x.document for x in items[-2:]) == ["d", "e"]
    assert sum(x.num_rows for x in items if isinstance(x, pa.RecordBatch)) == 3
    if config is SEEDED:
        assert [isinstance(x, pa.RecordBatch) for x in items] == [True] + [False] * 4


@pytest.mark.parametrize("config", [MergeConfig(), LIVE, SEEDED], ids=["concat", "live", "seeded"])
@pytest.mark.parametrize(
    ("other", "expected"),
    [
        pytest.param({"id": [1]}, "'name' is only in", id="23: a column that is missing"),
        pytest.param(
            {"id": [1], "name": ["x"], "age": [1]}, "'age' is only in", id="23: one too many"
        ),
        pytest.param({"name": ["x"], "id": [1]}, "has 'name'", id="23: another order"),
        pytest.param({"id": ["1"], "name": ["x"]}, "'id' is (string|int64) in", id="another type"),
    ],
)
def test_inputs_with_different_columns_are_refused(
    config: MergeConfig, other: dict[str, Any], expected: str
) -> None:
    one = pa.record_batch({"id": [1], "name": ["x"]})
    inputs = {"a": partial(iter, [one]), "b": partial(iter, [pa.record_batch(other)])}
    with pytest.raises(SchemaError, match=expected) as caught:
        list(merge(inputs, config))
    assert "'a'" in str(caught.value)
    assert "'b'" in str(caught.value)
