"""Loading a table at a version: which rows, in which order, and what is no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.errors import (
    CorruptionError,
    DataLossError,
    OptionError,
    OtherTableError,
    SchemaError,
    TableNotFoundError,
)
from spark_upsert.loader import Loader, TableRows, table_rows
from spark_upsert.model.engines import Engine, MergeEngine
from spark_upsert.table.table import Table
from tests.support.leases import before_leases
from tests.support.loading import carried, flat, ids_of
from tests.support.stores import forget_runs_and_logs

COLUMNS = pa.schema({"id": pa.int64(), "x": pa.float32(), "name": pa.string()})
EXPIRE_ALL: dict[str, Any] = {"retain_versions": 1, "safety_ms": 0, "writers_ms": 0}


@pytest.fixture(autouse=True)
def small_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "SPLIT_ROWS", 16)


def rows(ids: Any, shift: float = 0.0) -> pa.Table:
    ids = list(ids)
    return pa.table(
        {"id": ids, "x": [i + shift for i in ids], "name": [f"n{i}" for i in ids]}, schema=COLUMNS
    )


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A hundred rows, of which some were updated and some deleted since."""
    table = Table.create(str(tmp_path / "points"), COLUMNS, keys=["id"])
    table.append(rows(range(100)))
    table.append(rows(range(0, 100, 4), shift=0.5))
    table.append(
        rows(range(0, 100, 10)).append_column("gone", pa.array([True] * 10)), deletes="gone"
    )
    return table


def loader_of(table: Table, source: dict[str, Any] | None = None, **settings: Any) -> Loader:
    given = {"path": table.store.url, **(source or {})}
    return Loader(TableRows(**given), **{"batch_rows": 7, "window_rows": 30, "seed": 5, **settings})


def test_each_row_of_the_version_comes_once(table: Table) -> None:
    loader = loader_of(table)
    found = pa.Table.from_batches(loader).sort_by("id")
    assert found == table.snapshot().sort_by("id")
    assert (loader.rows, len(loader), loader.schema) == (90, 13, COLUMNS)
    assert len(loader.plan().counts) > 3


def test_neither_columns_nor_files_have_a_part_in_the_order(table: Table) -> None:
    expected = ids_of(loader_of(table))
    assert ids_of(loader_of(table, {"columns": ["x", "id"]})) == expected
    by_hash = flat(ids_of(loader_of(table, seed=None)))
    table.compact(full=True)
    assert flat(ids_of(loader_of(table, seed=None))) == by_hash
    assert ids_of(loader_of(table, {"version": 3})) == expected


@pytest.mark.parametrize(
    "engine",
    [MergeEngine(), MergeEngine(kind=Engine.PARTIAL_UPDATE), MergeEngine(kind=Engine.FIRST_ROW)],
    ids=lambda engine: engine.kind.value,
)
def test_the_rows_are_those_of_the_engine(tmp_path: Path, engine: MergeEngine) -> None:
    table = Table.create(str(tmp_path / "points"), COLUMNS, keys=["id"], engine=engine)
    for shift in range(3):
        table.append(rows(range(shift, 40, shift + 1), shift=shift))
    assert pa.Table.from_batches(loader_of(table)).sort_by("id") == table.snapshot().sort_by("id")


def test_a_version_stays_the_same_while_others_write(table: Table) -> None:
    expected = ids_of(loader_of(table))
    loader = loader_of(table)
    batches = iter(loader)
    first = ids_of(islice(batches, 3))
    table.append(rows(range(1000, 1050)))
    table.compact(full=True)
    state = carried(loader.state_dict())
    assert first + ids_of(batches) == expected
    again = loader_of(table)
    again.load_state_dict(state)
    assert first + ids_of(again) == expected, "the version of the checkpoint, not the newest"
    assert loader_of(table).rows == 140


def test_an_older_version_is_read_by_its_number(table: Table) -> None:
    assert pa.Table.from_batches(loader_of(table, {"version": 1})).sort_by("id") == rows(range(100))


def test_an_empty_table_gives_nothing(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "none"), COLUMNS, keys=["id"])
    loader = loader_of(table, world=2, rank=1)
    assert (len(loader), list(loader)) == (0, [])
    assert loader.schema == COLUMNS


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError):
        iter(Loader(TableRows(path=str(tmp_path / "no")), batch_rows=1))


def test_a_column_that_is_not_there(table: Table) -> None:
    with pytest.raises(SchemaError, match=r"(?s)'nam'.*Did you mean 'name'"):
        iter(loader_of(table, {"columns": ["nam"]}))


def test_a_checkpoint_of_another_table_is_refused(table: Table, tmp_path: Path) -> None:
    state = loader_of(table).state_dict()
    other = Table.create(str(tmp_path / "other"), COLUMNS, keys=["id"])
    other.append(rows(range(9)))
    with pytest.raises(OtherTableError, match=r"the loader's checkpoint belongs to version 3"):
        loader_of(other).load_state_dict(state)


def test_a_checkpoint_of_another_version_than_the_one_that_is_named(table: Table) -> None:
    state = loader_of(table).state_dict()
    with pytest.raises(OptionError, match=r"reads version 2 of .* of version 3"):
        loader_of(table, {"version": 2}).load_state_dict(state)


def test_an_expired_version_is_no_more(table: Table) -> None:
    state = loader_of(table).state_dict()
    for _ in range(2):
        table.append(rows([500]))
    table.expire(**EXPIRE_ALL)
    with pytest.raises(DataLossError, match=r"version 3 .*expired"):
        loader_of(table).load_state_dict(state)
    with pytest.raises(DataLossError, match=r"version 1 .*expired"):
        iter(loader_of(table, {"version": 1}))


def test_a_version_that_is_expired_while_it_is_read_says_so(table: Table) -> None:
    loader = loader_of(table, window_rows=1, ahead=0)
    batches = iter(loader)
    next(batches)
    table.compact(full=True)
    table.append(rows([500]))
    table.expire(**EXPIRE_ALL)
    table.vacuum(grace_ms=0)
    forget_runs_and_logs()
    with pytest.raises(DataLossError, match="version 3, which was expired while it was read"):
        list(batches)
    assert 0 < loader.batch < len(loader)


def test_a_lost_file_is_damage(table: Table, tmp_path: Path) -> None:
    loader = loader_of(table, ahead=0)
    next(iter(loader))
    for file in (tmp_path / "points" / "data").iterdir():
        file.unlink()
    forget_runs_and_logs()
    with pytest.raises(CorruptionError):
        list(loader)


def test_a_lease_keeps_the_version(table: Table) -> None:
    loader = loader_of(table, {"consumer": "trainer"})
    expected = ids_of(loader_of(table))
    batches = iter(loader)
    first = ids_of(islice(batches, 2))
    table.append(rows([500]))
    table.expire(**EXPIRE_ALL)
    table.vacuum(grace_ms=0)
    forget_runs_and_logs()
    assert first + ids_of(batches) == expected
    assert [(lease.consumer, lease.version) for lease in table.consumers()] == [("trainer", 3)]


def test_a_newer_version_is_loaded_where_an_expiry_comes_before_the_lease(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def expire(number: int) -> None:
        table.append(rows([500 + number]))
        table.expire(retain_versions=0, safety_ms=0)
        table.vacuum(grace_ms=0)

    before_leases(monkeypatch, expire, times=2)
    loaded = flat(ids_of(loader_of(table, {"consumer": "trainer"})))
    assert {500, 501} <= set(loaded)


def test_a_lease_is_renewed_before_it_lapses(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_rows, "LEASE_MS", 0)
    held: list[int] = []
    monkeypatch.setattr(Table, "hold", lambda self, name, version: held.append(version))
    list(loader_of(table, {"consumer": "trainer"}))
    assert len(held) > 3
    assert set(held) == {3}


def test_numbers_of_a_column_keep_their_type(table: Table) -> None:
    batch = next(loader_of(table).numpy())
    assert (batch["id"].dtype, batch["x"].dtype) == (np.dtype("i8"), np.dtype("f4"))
    assert batch["name"][0] == f"n{batch['id'][0]}"


# -- other processes -----------------------------------------------------------------

ELSEWHERE = """
import json, multiprocessing, sys
from itertools import islice
from spark_upsert.loader import Loader, TableRows, table_rows
from tests.support.loading import ids_of

def rest_of(loader, answers):
    answers.send(ids_of(loader))

if __name__ == "__main__":
    path, state = json.load(sys.stdin)
    answers = {}
    for method in ("fork", "spawn"):
        loader = Loader(TableRows(path=path), batch_rows=7, window_rows=30, seed=5)
        loader.load_state_dict(state)
        batches = iter(loader)
        next(batches)  # A thread reads ahead at this moment.
        context = multiprocessing.get_context(method)
        ours, theirs = context.Pipe()
        child = context.Process(target=rest_of, args=(loader, theirs))
        child.start()
        answers[method] = ours.recv()
        child.join()
        answers[f"{method} {child.exitcode}"] = ids_of(batches)
    json.dump(answers, sys.stdout)
"""


@pytest.mark.slow
def test_a_new_process_goes_on_and_so_do_its_children(table: Table, tmp_path: Path) -> None:
    loader = loader_of(table)
    list(islice(loader, 4))
    script = tmp_path / "elsewhere.py"
    script.write_text(ELSEWHERE)
    with (tmp_path / "given.json").open("w+") as given:
        json.dump([table.store.url, loader.state_dict()], given)
        given.seek(0)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(script)],
            stdin=given,
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    assert done.returncode == 0, done.stderr.decode()
    rest = ids_of(loader)[1:]
    assert json.loads(done.stdout) == dict.fromkeys(("fork", "fork 0", "spawn", "spawn 0"), rest)


def test_splits_of_a_table_whose_keys_begin_alike_are_cut_where_rows_lie(tmp_path: Path) -> None:
    columns = pa.schema({"group": pa.int64(), "id": pa.int64()})
    table = Table.create(str(tmp_path / "groups"), columns, keys=["group", "id"], hash_prefix=1)
    table.append(pa.table({"group": [7] * 200, "id": range(200)}))
    loader = loader_of(table)
    assert max(loader.plan().counts) <= 40, "one group, and still not one split"
    list(islice(loader, 5))
    again = loader_of(table)
    again.load_state_dict(carried(loader.state_dict()))
    assert ids_of(again) == ids_of(loader)
