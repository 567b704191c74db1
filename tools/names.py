"""The names of types, read from the files: which class or alias is defined where.

A name has one meaning across all modules, so that a reader that met `Step` in one room need not ask
which `Step` another room speaks of. Two definitions have the same meaning if both are the same
expression, as a `TypeVar` or an alias of the same numpy type is. Private names are left out: no other
module may use them.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tools.layers import modules, tree_of


class Definition(NamedTuple):
    """A class or an alias."""

    module: str
    meaning: str
    """The expression of an alias; of a class the module, since no two classes are the same."""


def definitions() -> Mapping[str, list[Definition]]:
    """Return the public classes and aliases of all modules, by their names."""
    found = defaultdict(list)
    for module, path in modules().items():
        for name, meaning in _of_module(tree_of(path)):
            found[name].append(Definition(module, meaning or module))
    return found


def several_meanings() -> dict[str, list[str]]:
    """Return the names that mean several things, each with the modules that define it."""
    return {
        name: [each.module for each in found]
        for name, found in sorted(definitions().items())
        if len({each.meaning for each in found}) > 1
    }


def _of_module(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, ""
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and _is_of_type(target.id):
                yield target.id, ast.unparse(node.value)


def _is_of_type(name: str) -> bool:
    """Return whether a name is written as those of types are: in CapWords."""
    return name[:1].isupper() and not name.isupper()
