"""What a module needs has a bound: lines of ours, whatever they come by; and no circle of files."""

from __future__ import annotations

import ast

import pytest

from tools.layers import modules, names
from tools.reach import (
    BOUNDS,
    Bound,
    Chain,
    circles,
    dearest_chain,
    imported_by_name,
    lines_of,
    loaded,
    needed,
    reach,
    run_of,
)

GRAPH = {
    "reader": frozenset({"columns", "rows"}),
    "columns": frozenset({"table"}),
    "table": frozenset({"envelopes", "rows"}),
    "envelopes": frozenset({"decoder"}),
    "decoder": frozenset[str](),
    "rows": frozenset[str](),
}
LINES = {"reader": 10, "columns": 20, "table": 300, "envelopes": 400, "decoder": 500, "rows": 50}


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.module)
def test_a_module_needs_no_more_than_its_bound(bound: Bound) -> None:
    found = reach(loaded(), lines_of(), bound.module)
    if found > bound.lines_max:
        chain = dearest_chain(loaded(), lines_of(), bound.module)
        pytest.fail(
            f"{bound.module} ({bound.why}) needs {found} lines of ours, and may need "
            f"{bound.lines_max} (the aim is {bound.aim}). Its dearest import: {chain}"
        )


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.module)
def test_nothing_that_reads_or_commits_loads_the_mirror(bound: Bound) -> None:
    ways = needed(loaded(), bound.module)
    assert [way for module, way in ways.items() if module.startswith("spark_upsert.mirror")] == []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circles(imported_by_name()) == []


def test_all_that_is_needed_is_counted_once() -> None:
    assert reach(GRAPH, LINES, "reader") == 1280
    assert reach(GRAPH, LINES, "envelopes") == 900
    assert needed(GRAPH, "table")["decoder"] == ("table", "envelopes", "decoder")


def test_the_dearest_import_is_the_nearest_of_those_that_save_most() -> None:
    assert dearest_chain(GRAPH, LINES, "reader") == Chain(("reader", "columns"), 1220)
    assert str(dearest_chain(GRAPH, LINES, "table")) == "table -> envelopes (900 lines)"


def test_a_circle_is_found_once() -> None:
    graph = {**GRAPH, "decoder": frozenset({"table"})}
    assert circles(graph) == [("decoder", "envelopes", "table")]


def test_what_only_checkers_of_types_see_is_not_needed() -> None:
    tree = ast.parse(
        "import a\n"
        "if TYPE_CHECKING:\n    import b\n"
        "else:\n    import c\n"
        "def f():\n    from d import e\n"
    )
    assert [name for node in run_of(tree) for name in names(node)] == ["a", "c", "d.e"]


def test_with_a_module_its_packages_are_loaded() -> None:
    assert {"spark_upsert", "spark_upsert.table", "spark_upsert.table.log"} <= loaded()[
        "spark_upsert.table.log.log"
    ]
    assert loaded().keys() == modules().keys()
