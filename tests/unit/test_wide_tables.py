"""Tables with thousands of columns: the work grows with the columns, and no step is quadratic.

The time is a figure of the report (`benchmarks.wide`). Here the code is searched for the pattern
that made it quadratic: a list of all names for each column.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_upsert.core.names import find_columns, find_in_schema, has_column
from spark_upsert.errors import SchemaError
from spark_upsert.table.table import Table
from tools.layers import modules, tree_of

LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
NAMES = ("names", "column_names")

FEW = {
    "spark_upsert.streams.planner.poller": "names of inputs, in a dictionary",
}
"""Modules whose ``names`` are no list of columns."""


def searches(tree: ast.AST, is_within: bool = False) -> Iterator[ast.AST]:
    """Yield each search of a schema's list of names that is within a loop."""
    for node in ast.iter_child_nodes(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.Lambda)
        is_repeated = isinstance(node, LOOPS) or (is_within and not is_function)
        if is_repeated and is_search(node):
            yield node
        yield from searches(node, is_repeated)


def is_search(node: ast.AST) -> bool:
    """Return whether code looks a name up in ``schema.names``."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        return _is_list(node.comparators[0])
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Name) and function.id == "find_column":
            return _is_list(node.args[1])
        if isinstance(function, ast.Attribute) and function.attr in ("count", "index"):
            return _is_list(function.value)
    return False


def _is_list(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in NAMES


def test_no_loop_searches_the_names_of_a_schema() -> None:
    paths = modules()
    assert len(paths) > 250
    found = {
        module: [ast.unparse(each) for each in searches(tree_of(path))]
        for module, path in paths.items()
        if module not in FEW
    }
    assert not {module: lines for module, lines in found.items() if lines}, (
        "Within a loop over columns the time is quadratic. Take `has_column`, `find_columns` or "
        "`find_in_schema` of spark_upsert.core.names, or a set."
    )


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("[n for n in a if n in schema.names]", 1),
        ("for n in a:\n    if n not in batch.schema.names: pass", 1),
        ("{find_column(n, s.names, role='x') for n in a}", 1),
        ("for n in a:\n    s.names.index(n)", 1),
        ("if n in schema.names: pass", 0),
        ("[n for n in schema.names]", 0),
        ("for n in schema.names:\n    has_column(schema, n)", 0),
    ],
)
def test_a_search_within_a_loop_is_found(code: str, count: int) -> None:
    assert len(list(searches(ast.parse(code)))) == count


# -- the functions ---------------------------------------------------------------------------


def test_columns_are_found_exactly_or_but_for_case() -> None:
    names = find_columns(["NAME", "id", "A", "a"], ["id", "Name", "a", "A"], role="column")
    assert names == ("Name", "id", "A", "a")
    with pytest.raises(SchemaError, match="the column 'nam' is not among"):
        find_columns(["id", "nam"], ["id", "name"], role="column")
    with pytest.raises(SchemaError, match="the column 'B' is not among"):
        find_columns(["B"], ["b", "b"], role="column")
    schema = pa.schema({"id": pa.int64(), "Name": pa.string()})
    assert [has_column(schema, name) for name in ("id", "name", "Name", "")] == [1, 0, 1, 0]
    assert find_in_schema("NAME", schema, role="column") == "Name"


def test_a_table_of_many_columns_works(tmp_path: Path) -> None:
    width = 2_000
    schema = pa.schema({"id": pa.int64(), **{f"c{index}": pa.int32() for index in range(width)}})
    table = Table.create(str(tmp_path), schema, keys=["id"])

    def rows(value: int) -> pa.Table:
        columns = [pa.array([value, value], pa.int32())] * width
        return pa.Table.from_arrays([pa.array([1, 2]), *columns], schema=schema)

    table.upsert(rows(1))
    table.upsert(rows(2).rename_columns([name.upper() for name in schema.names]))
    assert table.changes(2).num_rows == 4
    table.compact(full=True)
    table.upsert(rows(3).append_column("more", [[7, 8]]), merge_schema=True)
    assert table.delete(1) is not None
    [row] = Table.open(str(tmp_path)).snapshot(filter=f"c{width - 1} = 3").to_pylist()
    assert row == {"id": 2, **{f"c{index}": 3 for index in range(width)}, "more": 8}
