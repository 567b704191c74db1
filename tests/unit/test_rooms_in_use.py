"""Public names of `task`, `merge` and `flow`: each is used by another room, or is for users.

What is for users stands on a page, or is what such a name takes, holds or gives. A name whose only
callers are its own tests is none of these.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from tools.layers import ROOT, modules, statements, tree_of

ROOMS = ("flow", "merge", "task")
AROUND = ("house.md",)
"""The page that names every module."""


@cache
def pages() -> str:
    paths = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    return "\n".join(path.read_text("utf-8") for path in paths if path.name not in AROUND)


@cache
def imported(path: Path) -> frozenset[tuple[str, str]]:
    """Return the module and the name of each name that a file imports from a module."""
    nodes = [node for node in statements(tree_of(path)) if isinstance(node, ast.ImportFrom)]
    return frozenset((node.module or "", each.name) for node in nodes for each in node.names)


def homes(room: str) -> dict[str, str]:
    """Return the module that defines each public name of a room."""
    package = f"spark_upsert.{room}"
    public = import_module(package).__all__
    found = {name: module for module, name in imported(modules()[package])}
    return {name: found[name] for name in public}


def used_elsewhere(room: str) -> set[str]:
    """Return the public names that modules of other rooms import."""
    package, home = f"spark_upsert.{room}", homes(room)
    outside = (path for name, path in modules().items() if not f"{name}.".startswith(f"{package}."))
    found = {each for path in outside for each in imported(path)}
    return {name for name in home if {(package, name), (home[name], name)} & found}


def named_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def taken_or_given(definition: ast.stmt) -> set[str]:
    """Return the names in the signatures, fields and bases of a definition, or in an alias."""
    parts: list[ast.AST | None] = []
    match definition:
        case ast.FunctionDef(name=name) if name == "__init__" or not name.startswith("_"):
            parts = [definition.args, definition.returns]
        case ast.ClassDef():
            inner = [taken_or_given(each) for each in definition.body]
            return set().union(*inner, *map(named_in, definition.bases))
        case ast.AnnAssign():
            parts = [definition.annotation, definition.value]
        case ast.Assign():
            parts = [definition.value]
    return set().union(*(named_in(part) for part in parts if part is not None))


def definition_of(name: str, module: str) -> ast.stmt:
    for node in tree_of(modules()[module]).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [getattr(node, "name", None), *(getattr(each, "id", None) for each in targets)]
        if name in names:
            return node
    raise AssertionError(f"{module} does not define {name}")


@pytest.mark.parametrize("room", ROOMS)
def test_a_public_name_is_used_by_another_room_or_for_users(room: str) -> None:
    home = homes(room)
    known = used_elsewhere(room) | {name for name in home if re.search(rf"\b{name}\b", pages())}
    looked_at: set[str] = set()
    while left := known - looked_at:
        name = left.pop()
        looked_at.add(name)
        known |= taken_or_given(definition_of(name, home[name])) & home.keys()
    assert sorted(home.keys() - known) == [], (
        "use it, tell users of it on a page, or keep it within"
    )


def test_a_name_of_a_signature_is_seen_and_one_of_a_body_is_not() -> None:
    source = "class A(B):\n    x: C\n    def f(self, y: D) -> E:\n        return F()\nG = H | I\n"
    a, g = ast.parse(source).body
    assert taken_or_given(a) == set("BCDE")
    assert taken_or_given(g) == set("HI")


def test_pages_are_read() -> None:
    assert "spark_upsert.flow" in pages()
    assert Path(ROOT / "docs" / AROUND[0]).exists()
