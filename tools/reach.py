"""Reach: what a module loads of ours, directly and by what it imports, in modules and lines.

The table of layers (`tools.layers`) says which way imports may point; it does not say what they
cost. One line that points down may still load half of the house, for a name or for an annotation.
So a few modules have a bound on the lines that they need. And no files import each other in a
circle: of such files each needs all.

Imports within functions count, because they are needed when the function runs; those under ``if
TYPE_CHECKING`` do not, for nothing is loaded by them. With a module its packages are loaded. A room
behind a *late door* (`spark_upsert.late`) does not count: `doors` lists them, and
`tests/unit/test_late.py` runs what has a bound without them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from tools.layers import module_of, modules, names, tree_of

Graph = Mapping[str, frozenset[str]]
"""What each module imports."""


class Bound(NamedTuple):
    """The most that a module may need."""

    module: str
    lines_max: int
    """Lines of files, as they are now and some room for other changes under way."""
    aim: int
    """What the bound is to become."""
    why: str
    """What the module stands for."""


BOUNDS = (
    Bound("spark_upsert.streams.reads.serve", 25_500, 22_000, "a task that reads rows or changes"),
    Bound("spark_upsert.table.write.commit", 18_500, 15_000, "a commit"),
    Bound("spark_upsert.table.table", 23_500, 20_000, "a program that opens a table"),
)
"""They fall, but where a program can do more than before; a cut that brings a module below its aim
makes the aim its bound."""


class Chain(NamedTuple):
    """A way of imports, from a module to the one whose import costs most."""

    modules: tuple[str, ...]
    lines: int
    """What the module would not need without the last import."""

    def __str__(self) -> str:
        return f"{' -> '.join(self.modules)} ({self.lines} lines)"


@cache
def loaded() -> Graph:
    """Return what each module of ours loads at first hand: what it imports, and the packages."""
    return {
        module: frozenset((*imported, *_packages(module, *imported))) - {module}
        for module, imported in imported_by_name().items()
    }


@cache
def imported_by_name() -> Graph:
    """Return what each module of ours imports."""
    known = modules()
    found = {
        module: {module_of(name, known) for node in run_of(tree_of(path)) for name in names(node)}
        for module, path in known.items()
    }
    return {
        module: frozenset(each for each in imported if each not in (None, module))
        for module, imported in found.items()
    }


@cache
def lines_of() -> Mapping[str, int]:
    """Return how many lines each module of ours has."""
    texts = {module: path.read_text(encoding="utf-8") for module, path in modules().items()}
    return {module: len(text.splitlines()) for module, text in texts.items()}


class Door(NamedTuple):
    """A module that another one loads when it first asks for a name of it."""

    module: str
    opens: str


def doors() -> list[Door]:
    """Return all late doors: each ``Late("...")`` that a module says."""
    # Most files have none: their trees are not gone through, expression by expression.
    opening = [
        (name, path) for name, path in modules().items() if "Late(" in path.read_text("utf-8")
    ]
    return [
        Door(module, node.args[0].value)
        for module, path in opening
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Late"
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    ]


def needed(graph: Graph, module: str) -> dict[str, tuple[str, ...]]:
    """Return a shortest way of imports to each module that one needs, itself first."""
    ways: dict[str, tuple[str, ...]] = {module: (module,)}
    waiting = [module]
    for each in waiting:
        for imported in sorted(graph[each] - ways.keys()):
            ways[imported] = (*ways[each], imported)
            waiting.append(imported)
    return ways


def reach(graph: Graph, lines: Mapping[str, int], module: str) -> int:
    """Return the lines that a module needs."""
    return sum(lines[each] for each in needed(graph, module))


def dearest_chain(graph: Graph, lines: Mapping[str, int], module: str) -> Chain:
    """Return the way to the import without which a module would need least.

    Each import of what it needs is left out once; of those that save the same the nearest is told.
    """
    ways = needed(graph, module)
    whole = sum(lines[each] for each in ways)
    dearest = Chain((module,), 0)
    for importer, way in ways.items():
        for imported in sorted(graph[importer]):
            less = {**graph, importer: graph[importer] - {imported}}
            saved = whole - reach(less, lines, module)
            if saved > dearest.lines:
                dearest = Chain((*way, imported), saved)
    return dearest


def circles(graph: Graph) -> list[tuple[str, ...]]:
    """Return the modules that need each other, each circle once."""
    needs = {module: needed(graph, module).keys() for module in graph}
    found = {
        tuple(sorted(other for other in needs[module] if module in needs[other]))
        for module in graph
    }
    return sorted(circle for circle in found if len(circle) > 1)


def run_of(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements below one that are run: not those for checkers of types.

    What stands in an expression is left out, as most of a tree does: no import is in one.
    """
    waiting = [node]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if isinstance(child, ast.expr):
                continue
            if isinstance(child, ast.If) and _is_for_checkers(child.test):
                yield from child.orelse
                waiting.extend(child.orelse)
            else:
                yield child
                waiting.append(child)


def _is_for_checkers(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _packages(*found: str) -> Iterator[str]:
    known = modules()
    for module in found:
        while module := module.rpartition(".")[0]:
            if module in known:
                yield module


if __name__ == "__main__":
    for bound in BOUNDS:
        ways = needed(loaded(), bound.module)
        found = reach(loaded(), lines_of(), bound.module)
        print(f"{bound.module}: {found} lines of {len(ways)} modules, {bound.why}")
        print(f"    bound {bound.lines_max}, aim {bound.aim}")
        print(f"    {dearest_chain(loaded(), lines_of(), bound.module)}")
    for door in doors():
        print(f"{door.module} opens {door.opens} late")
