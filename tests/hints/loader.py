"""Hints of what is loaded for training."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from spark_upsert.loader import FileRows, Loader, TableRows
from spark_upsert.loader.arrays import as_numpy, imported
from spark_upsert.loader.windows import _as_batch
from spark_upsert.store.folder import LocalFolder
from spark_upsert.table.table import Table
from tests.hints.hint import Told, follows
from tests.support.loading import loader_of

ROWS = pa.table({"id": [1, 2, 3], "w": [0.5, 1.5, 2.5]})


def files(folder: Path, *tables: pa.Table) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(tables or (ROWS,)):
        pq.write_table(table, folder / f"{number}.parquet")
    return str(folder)


def loaded(source: Any, **settings: Any) -> list[dict[str, Any]]:
    """Return the rows of an epoch, in the order of the source."""
    loader = Loader(source, batch_rows=2, **settings)
    return [row for batch in loader for row in batch.to_pylist()]


@follows("loader.arrays:_require_no_nulls")
def _(told: Told) -> None:
    holes = pa.record_batch({"n": pa.array([1, None], pa.int64())})
    with told:
        as_numpy(holes)
    told("fill them where the rows are written")
    as_numpy(pa.record_batch({"n": holes["n"].fill_null(0)}))
    told("cast the column to a float")
    as_numpy(pa.record_batch({"n": holes["n"].cast(pa.float64())}))
    told("take Arrow batches, which have nulls")
    assert holes["n"].null_count == 1


@follows("loader.arrays:imported")
def _(told: Told) -> None:
    with patch.dict(sys.modules, {"torch": None}), told:
        imported("torch")
    told("take batches of numpy or Arrow")
    assert as_numpy(ROWS.to_batches()[0])["id"].tolist() == [1, 2, 3]


@follows("loader.checkpoint:Checkpoint.from_json")
def _(told: Told) -> None:
    loader = loader_of([3, 3])
    with told:
        loader.load_state_dict({**loader.state_dict(), "format": 99})
    told("begin without it")
    assert next(iter(loader_of([3, 3])))


@follows("loader.checkpoint:understood")
def _(told: Told) -> None:
    loader = loader_of([3, 3])
    state = loader.state_dict()
    with told:
        loader.load_state_dict({**state, "epoch": "first"})
    told("give it back as it was")
    loader.load_state_dict(state)


@follows("loader.file_rows:FileRows.plan")
def _(told: Told) -> None:
    path = files(told.folder / "deep" / "er")
    with told:
        loaded(FileRows(path=str(told.folder / "deep"), pattern="*.arrow"))
    for advice, source in (
        ("check the path", FileRows(path=path)),
        ("'is_recursive'", FileRows(path=str(told.folder), is_recursive=True)),
    ):
        told(advice)
        assert len(loaded(source)) == 3
    told("write the files first")
    files(told.folder / "deep")
    told("'pattern'")
    assert len(loaded(FileRows(path=str(told.folder / "deep"), pattern="*.parquet"))) == 3


@follows("loader.file_rows:FileRows._listed")
def _(told: Told) -> None:
    path = files(told.folder / "files")
    with told:
        loaded(FileRows(path=f"{path}/0.parquet"))
    told("the folder of the files is meant, not a file")
    assert len(loaded(FileRows(path=path))) == 3


@follows("loader.file_rows:FileRows.plan_again")
def _(told: Told) -> None:
    source = FileRows(path=files(told.folder / "files"))
    state = Loader(source, batch_rows=2).state_dict()
    other = FileRows(path=source.path, format="arrow")
    with told:
        Loader(other, batch_rows=2).load_state_dict(state)
    told("give the source that the checkpoint is of")
    Loader(source, batch_rows=2).load_state_dict(state)


@follows("loader.file_rows:_Reader._require_columns")
def _(told: Told) -> None:
    path = files(told.folder / "files", ROWS, ROWS.select(["id"]))
    with told:
        loaded(FileRows(path=path))
    told("choose among them by 'columns'")
    assert len(loaded(FileRows(path=path, columns=["id"]))) == 6
    told("and 'pattern'")
    assert len(loaded(FileRows(path=path, pattern="0.*"))) == 3
    told("write all files with the same columns")
    assert len(loaded(FileRows(path=files(told.folder / "files", ROWS, ROWS)))) == 6


@follows("loader.file_rows:_Reader._require_columns:2")
def _(told: Told) -> None:
    path = files(told.folder / "files", ROWS.select(["id"]), ROWS)
    with told:
        loaded(FileRows(path=path))
    told("choose among them by 'columns'")
    assert len(loaded(FileRows(path=path, columns=["id"]))) == 6


@follows("loader.file_rows:_Reader._opened:2")
def _(told: Told) -> None:
    path = files(told.folder / "files")
    (told.folder / "files" / "notes.txt").write_text("no rows")
    with told:
        loaded(FileRows(path=path))
    told("choose other files by 'pattern'")
    assert len(loaded(FileRows(path=path, pattern="*.parquet"))) == 3
    told("take it out of the folder")
    (told.folder / "files" / "notes.txt").unlink()
    assert len(loaded(FileRows(path=path))) == 3


@follows("loader.file_rows:_Reader.changed")
def _(told: Told) -> None:
    path = files(told.folder / "files")
    file = told.folder / "files" / "0.parquet"
    before, status = file.read_bytes(), file.stat()
    state = Loader(FileRows(path=path), batch_rows=2).state_dict()
    files(told.folder / "files", ROWS.slice(1))
    with told:
        Loader(FileRows(path=path), batch_rows=2).load_state_dict(state)
    told("begin with a new loader and without a checkpoint")
    assert len(loaded(FileRows(path=path))) == 2
    told("put it back as it was")
    file.write_bytes(before)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    Loader(FileRows(path=path), batch_rows=2).load_state_dict(state)


@follows("loader.loader:Loader._fit")
def _(told: Told) -> None:
    def first(**settings: Any) -> object:
        return next(iter(loader_of([3, 3], **{"world": 4, "remainder": "drop", **settings})))

    with told:
        first()
    told("use fewer ranks")
    first(world=2)
    told("smaller batches")
    first(batch_rows=1)
    told("give remainder='repeat'")
    first(remainder="repeat")


@follows("loader.loader:Loader.load_state_dict")
def _(told: Told) -> None:
    state = loader_of([3, 3]).state_dict()
    source = FileRows(path=files(told.folder / "files"))
    with told:
        Loader(source, batch_rows=3).load_state_dict(state)
    told("give the source that the checkpoint is of")
    loader_of([3, 3]).load_state_dict(state)
    told("begin without it")
    loaded(source)


@follows("loader.loader:Loader.load_state_dict:2")
def _(told: Told) -> None:
    state = loader_of([3, 3], seed=7).state_dict()
    with told:
        loader_of([3, 3], seed=8).load_state_dict(state)
    told("give seed=7")
    loader_of([3, 3], seed=7).load_state_dict(state)


def table(folder: Path, name: str) -> str:
    path = str(folder / name)
    Table.create(path, ROWS.schema, keys=["id"]).append(ROWS)
    return path


@follows("loader.table_rows:TableRows.plan_again")
def _(told: Told) -> None:
    path = table(told.folder, "table")
    Table.open(path).append(ROWS.slice(1))
    state = Loader(TableRows(path=path, version=1), batch_rows=2).state_dict()
    with told:
        Loader(TableRows(path=path, version=0), batch_rows=2).load_state_dict(state)
    told("leave the version out")
    Loader(TableRows(path=path), batch_rows=2).load_state_dict(state)
    told("or give 1")
    Loader(TableRows(path=path, version=1), batch_rows=2).load_state_dict(state)


@follows("loader.table_rows:TableRows.plan_again:2")
def _(told: Told) -> None:
    path, other = table(told.folder, "table"), table(told.folder, "other")
    state = Loader(TableRows(path=path), batch_rows=2).state_dict()
    with told:
        Loader(TableRows(path=other), batch_rows=2).load_state_dict(state)
    told("give the path of the table that the checkpoint is of")
    Loader(TableRows(path=path), batch_rows=2).load_state_dict(state)


@follows("loader.file_rows:_Reader._opened")
def _(told: Told) -> None:
    path = files(told.folder / "files")
    source = FileRows(path=path)
    failing = OSError(errno.EIO, "the disk hangs")
    with patch.object(LocalFolder, "open", side_effect=failing), told:
        loaded(source)
    told("try again")
    assert len(loaded(source)) == 3


@follows("loader.windows:_as_batch")
def _(told: Told) -> None:
    class Huge:
        """What a table does whose texts do not fit into one array: it stays in pieces."""

        num_rows = ROWS.num_rows

        def combine_chunks(self) -> pa.Table:
            return pa.concat_tables([ROWS, ROWS])

    huge: Any = Huge()
    with told:
        _as_batch(huge)
    path = files(told.folder / "files")
    told("give a smaller 'window_rows'")
    assert len(loaded(FileRows(path=path), window_rows=2)) == 3
    told("or write smaller row groups")
    pq.write_table(ROWS, f"{path}/0.parquet", row_group_size=1)
    assert len(loaded(FileRows(path=path))) == 3
