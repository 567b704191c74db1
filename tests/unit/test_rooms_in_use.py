"""Public names of `task`, `merge` and `flow`: each is used by another room, or is for users.

A name is for users if it stands on a page, or if such a name takes, holds or gives it.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from tools.layers import ROOT, modules, statements, tree_of


@cache
def pages() -> str:
    """Return all pages but the one that names every module."""
    paths = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    return "\n".join(path.read_text("utf-8") for path in paths if path.name != "house.md")


@cache
def imported(path: Path) -> frozenset[tuple[str, str]]:
    """Return the module and the name of each name that a file imports from a module."""
    nodes = [node for node in statements(tree_of(path)) if isinstance(node, ast.ImportFrom)]
    return frozenset((node.module or "", each.name) for node in nodes for each in node.names)


def signature_names(definition: ast.AST) -> set[str]:
    """Return the names in the signatures, fields and bases of a definition, or in an alias."""
    parts: list[ast.AST | None] = []
    for node in ast.walk(definition):
        match node:
            case ast.FunctionDef():
                parts += [node.args, node.returns]
            case ast.ClassDef():
                parts += node.bases
            case ast.AnnAssign():
                parts += [node.annotation]
            case ast.Assign() if node is definition:
                parts += [node.value]
    nodes = (node for part in parts if part is not None for node in ast.walk(part))
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def definition_of(name: str, module: str) -> ast.stmt:
    for node in tree_of(modules()[module]).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if name in (getattr(node, "name", None), *(getattr(each, "id", None) for each in targets)):
            return node
    raise AssertionError(f"{module} does not define {name}")


@pytest.mark.parametrize("room", ["flow", "merge", "task"])
def test_a_public_name_is_used_by_another_room_or_for_users(room: str) -> None:
    package = f"spark_upsert.{room}"
    module_of = {name: module for module, name in imported(modules()[package])}
    public = set(import_module(package).__all__)
    outside = [path for name, path in modules().items() if not f"{name}.".startswith(f"{package}.")]
    imports = {each for path in outside for each in imported(path)}
    used = {name for name in public if {(package, name), (module_of[name], name)} & imports}
    known = used | {name for name in public if re.search(rf"\b{name}\b", pages())}
    left = set(known)
    while left:
        name = left.pop()
        new = signature_names(definition_of(name, module_of[name])) & public - known
        known, left = known | new, left | new
    assert public - known == set(), "use it, tell users of it on a page, or keep it within"
