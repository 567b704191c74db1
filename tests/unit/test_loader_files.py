"""Loading files: which rows and types, and files that are not what was planned."""

from __future__ import annotations

import logging
import os
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_upsert.errors import DataError, DataLossError, OptionError, SchemaError
from spark_upsert.loader import FileRows, Loader
from tests.support.loading import carried, flat, ids_of

VECTORS = pa.list_(pa.float32(), 2)


def rows(first: int, count: int) -> pa.Table:
    ids = np.arange(first, first + count)
    vectors = np.arange(2 * first, 2 * (first + count), dtype=np.float32)
    return pa.table(
        {
            "id": ids,
            "half": pa.array(ids.astype(np.float16)),
            "label": pa.array(["even" if i % 2 == 0 else "odd" for i in ids]).dictionary_encode(),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors), 2),
        }
    )


def write(path: Path, table: pa.Table, part_rows: int = 4) -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=part_rows)
        return
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table.unify_dictionaries(), max_chunksize=part_rows)


@pytest.fixture(params=["parquet", "arrow"])
def format_(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path, format_: str) -> Path:
    """Three files of ten rows each."""
    folder = tmp_path / "rows"
    folder.mkdir()
    for number in range(3):
        write(folder / f"{number}.{format_}", rows(10 * number, 10))
    (folder / "_marker").write_text("passed by")
    return folder


def loader_of(folder: Path, format_: str, **given: Any) -> Loader:
    own = {
        name: given.pop(name) for name in ("columns", "pattern", "is_recursive") if name in given
    }
    source = FileRows(path=str(folder), format=format_, **own)
    return Loader(source, **{"batch_rows": 4, "window_rows": 8, "seed": 2, **given})


def test_each_row_of_all_files_comes_once_as_it_was_written(folder: Path, format_: str) -> None:
    loader = loader_of(folder, format_)
    found = pa.Table.from_batches(loader).unify_dictionaries().sort_by("id")
    assert found.drop(["label"]) == pa.concat_tables(
        [rows(10 * number, 10).drop(["label"]) for number in range(3)]
    )
    assert found["label"].to_pylist() == ["even", "odd"] * 15
    assert list(loader.plan().counts) == [4, 4, 2] * 3


def test_without_a_seed_files_come_by_name_and_rows_as_they_lie(folder: Path, format_: str) -> None:
    assert flat(ids_of(loader_of(folder, format_, seed=None))) == list(range(30))


def test_columns_come_in_the_order_that_is_asked_for(folder: Path, format_: str) -> None:
    expected = ids_of(loader_of(folder, format_))
    batches = list(loader_of(folder, format_, columns=["vector", "id"]))
    assert batches[0].schema.names == ["vector", "id"]
    assert ids_of(batches) == expected


def test_vectors_become_rows_of_a_matrix(folder: Path, format_: str) -> None:
    for batch in loader_of(folder, format_).numpy():
        assert (batch["vector"].dtype, batch["half"].dtype) == (np.dtype("f4"), np.dtype("f2"))
        ids = batch["id"].astype(np.float32)
        assert np.array_equal(batch["vector"], np.stack([2 * ids, 2 * ids + 1], axis=1))


def test_whoever_goes_on_leaves_out_what_has_come_since(
    folder: Path, format_: str, caplog: pytest.LogCaptureFixture
) -> None:
    loader = loader_of(folder, format_)
    expected = ids_of(loader)
    loader.seek(0)
    list(islice(loader, 3))
    write(folder / f"3.{format_}", rows(30, 10))
    again = loader_of(folder, format_)
    with caplog.at_level(logging.WARNING):
        again.load_state_dict(carried(loader.state_dict()))
    assert "files=1" in caplog.text
    assert ids_of(again) == expected[3:]
    assert loader_of(folder, format_).rows == 40


def test_files_below_and_files_of_a_pattern(folder: Path, format_: str) -> None:
    (folder / "below").mkdir()
    write(folder / "below" / f"part.{format_}", rows(50, 2))
    assert loader_of(folder, format_, pattern=f"*.{format_}").rows == 30
    assert loader_of(folder, format_, is_recursive=True).rows == 32
    assert loader_of(folder, format_, is_recursive=True, pattern="part.*").rows == 2


# -- files that are not what was planned ---------------------------------------------


def vanish(file: Path) -> None:
    file.unlink()


def replace(file: Path) -> None:
    write(file, rows(70, 10))
    os.utime(file, (1, 1))


def grow(file: Path) -> None:
    with file.open("ab") as opened:
        opened.write(b"more")


CHANGES = [
    pytest.param(vanish, "is gone", id="it is gone"),
    pytest.param(replace, "of 1970-01-01T00:00:01", id="it was written again"),
    pytest.param(grow, "bytes of", id="it has grown"),
]


@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_a_checkpoint_of_files_that_have_changed_is_refused(
    folder: Path, format_: str, change: Any, said: str
) -> None:
    state = loader_of(folder, format_).state_dict()
    change(folder / f"1.{format_}")
    with pytest.raises(DataLossError, match=rf"(?s)1\.{format_}' was planned with .*{said}"):
        loader_of(folder, format_).load_state_dict(state)


@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_a_file_that_changes_while_it_is_loaded_is_an_error(
    folder: Path, format_: str, change: Any, said: str
) -> None:
    loader = loader_of(folder, format_, seed=None, ahead=0)
    batches = iter(loader)
    next(batches)
    change(folder / f"1.{format_}")
    with pytest.raises(DataLossError, match=rf"1\.{format_}"):
        list(batches)
    assert loader.batch == 2, "the rows before it were delivered"


def test_a_folder_that_is_not_there_or_empty(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="there is no folder"):
        iter(loader_of(tmp_path / "no", "parquet"))
    with pytest.raises(OptionError, match=r"there is no file that matches '\*\.parquet' in"):
        iter(loader_of(tmp_path, "parquet", pattern="*.parquet"))


def test_a_file_of_another_format(folder: Path, format_: str) -> None:
    (folder / f"2.{format_}").write_bytes(b"neither this nor that, but long enough to look at")
    with pytest.raises(DataError, match=rf"2\.{format_}' is no {format_} file, or damaged"):
        iter(loader_of(folder, format_))


def test_a_stream_of_arrow_is_no_file_of_arrow(tmp_path: Path) -> None:
    table = rows(0, 3)
    with pa.ipc.new_stream(tmp_path / "rows.arrow", table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match=r"(?s)no arrow file.*streams are read once"):
        iter(loader_of(tmp_path, "arrow"))


def test_an_unknown_format_names_the_nearest() -> None:
    with pytest.raises(OptionError, match="Did you mean 'parquet'"):
        FileRows(path="/rows", format="parquett")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (pa.table({"id": [1]}), "has no column 'half'"),
        (pa.table({"id": pa.array([1], pa.int32()), "half": [1.0]}), "has 'id' as int32"),
    ],
    ids=["a column is missing", "another type"],
)
def test_files_with_other_columns_are_refused(
    folder: Path, format_: str, other: pa.Table, said: str
) -> None:
    write(folder / f"2.{format_}", other)
    with pytest.raises(SchemaError, match=rf"2\.{format_}' {said}"):
        list(loader_of(folder, format_, columns=["id", "half"]))


def test_a_file_with_one_more_column_is_refused_unless_columns_are_chosen(
    folder: Path, format_: str
) -> None:
    more = rows(20, 10).append_column("more", pa.array([0] * 10))
    write(folder / f"2.{format_}", more)
    with pytest.raises(SchemaError, match="has the column 'more', which other files lack"):
        list(loader_of(folder, format_))
    assert len(flat(ids_of(loader_of(folder, format_, columns=["id"])))) == 30


def test_a_checkpoint_of_another_format(folder: Path, format_: str) -> None:
    state = loader_of(folder, format_).state_dict()
    other = {"parquet": "arrow", "arrow": "parquet"}[format_]
    with pytest.raises(OptionError, match=f"reads {other} files, .* of {format_} files"):
        loader_of(folder, other).load_state_dict(state)
