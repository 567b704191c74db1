"""Late doors: what a module opens when it first asks for it, and what runs without that."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from spark_upsert.late import Late
from spark_upsert.options.read import ReadOptions
from spark_upsert.streams.reads.splits import changes_splits, rows_splits
from spark_upsert.table.table import Table
from tools.layers import level_of, module_of, modules, names, statements, tree_of, unit_of
from tools.reach import BOUNDS, Door, doors, imported_by_name, lines_of, needed

DOORS_MAX = 16
"""Each door is a name that no checker of imports follows: one more needs a reason."""

READS = """
import json, pickle, sys
from spark_upsert.options.read import ReadOptions
from spark_upsert.store import LocalStore
from spark_upsert.streams.reads.serve import serve
store, options = LocalStore(sys.argv[1]), ReadOptions(path=sys.argv[1], storage={})
splits = pickle.loads(bytes.fromhex(sys.argv[2]))
read = [list(serve(store, split, options, ["id"])) for split in splits]
assert all(read), read
"""

OPENS = """
import json, sys
from spark_upsert.table.table import Table
table = Table.open(sys.argv[1])
assert table.snapshot().num_rows and table.get(1).num_rows and table.changes().num_rows
assert list(table.quarantine()) == []
"""

TELLS = "print(json.dumps(sorted(name for name in sys.modules if name.startswith('spark_upsert'))))"


def loaded_by(code: str, *arguments: str) -> set[str]:
    """Return the modules of ours that a fresh process has when it has run some code."""
    command = [sys.executable, "-c", code + TELLS, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table.create(str(tmp_path / "t"), pa.schema({"id": pa.int64()}), keys=["id"])
    made.append(pa.table({"id": [1, 2, 3]}))
    return made


def test_a_late_module_gives_the_names_of_the_module() -> None:
    late = Late("spark_upsert.model.names")
    assert repr(late) == "Late('spark_upsert.model.names')"
    assert late.find_column("B", ["a", "b"], role="key") == "b"


def test_a_name_that_a_late_module_lacks_is_an_error_of_python() -> None:
    with pytest.raises(AttributeError, match="find_colum'"):
        _ = Late("spark_upsert.model.names").find_colum


def test_there_are_no_more_doors_than_are_worth_their_price() -> None:
    assert len(doors()) <= DOORS_MAX


@pytest.mark.parametrize("door", doors(), ids=lambda door: door.opens)
def test_a_door_opens_a_module_that_is_there_and_is_not_loaded_already(door: Door) -> None:
    assert door.opens in modules()
    assert door.opens not in needed(imported_by_name(), door.module)


@pytest.mark.parametrize("door", doors(), ids=lambda door: door.opens)
def test_a_door_runs_downwards_as_an_import_does(door: Door) -> None:
    own, opened = (level_of(unit_of(module) or "") for module in door)
    assert opened <= own, door
    # With the import for checkers of types beside it.
    known = modules()
    nodes = statements(tree_of(known[door.module]))
    assert door.opens in {module_of(name, known) for node in nodes for name in names(node)}, door


@pytest.mark.slow
def test_a_task_reads_rows_and_changes_with_what_its_bound_counts(table: Table) -> None:
    options = ReadOptions(path=table.store.url, storage={})
    splits = [*rows_splits(table.at().manifest, options), *changes_splits(table.log, options, 0, 1)]
    found = loaded_by(READS, table.store.url, pickle.dumps(splits).hex())
    assert_within("spark_upsert.streams.reads.serve", found)
    assert "spark_upsert.task.operators.choice" not in found


@pytest.mark.slow
def test_a_program_opens_and_reads_a_table_with_what_its_bound_counts(table: Table) -> None:
    found = loaded_by(OPENS, table.store.url)
    assert_within("spark_upsert.table.table", found)
    assert not {door.opens for door in doors()} & found


def assert_within(module: str, found: set[str]) -> None:
    [bound] = [bound for bound in BOUNDS if bound.module == module]
    lines = sum(lines_of()[each] for each in found)
    assert lines <= bound.lines_max, f"{lines} lines are loaded, {bound.lines_max} may be"
