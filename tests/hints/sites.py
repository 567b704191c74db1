"""Every hint of the product, by name: found in the sources, whatever raises it.

A hint is what an error is given as ``hint=``, and what `UpsertFlowError.advise` adds. Its name is
the module without the package, a colon, the function, and from the second hint of a function on
its number: ``options.write:_on_error``, ``options.write:EnvelopeOptions.parse:3``. The text is read
as a pattern, in which a value that is filled in stands for any text.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.layers import ROOT, modules, tree_of

ANY = "(?:.|\n)*"


@dataclass(frozen=True, slots=True)
class Site:
    """Where a hint is written, and the pattern of what it says."""

    name: str
    pattern: str
    place: str

    def says(self, hint: str) -> bool:
        """Return whether a hint of an error may be this one, with other advice around it."""
        return re.search(self.pattern, hint) is not None


@cache
def sites() -> dict[str, Site]:
    """Return all hints by their names."""
    return {
        site.name: site
        for module, path in sorted(modules().items())
        for site in _of_module(module.removeprefix("spark_upsert."), path)
    }


def texts() -> Iterator[tuple[str, str]]:
    """Yield the place and the literal text of each hint; a value that is filled in is left out.

    The name in a call of `setting` is part of the text.
    """
    for path in modules().values():
        for _, text in _hints(tree_of(path), ()):
            parts = [
                node.value
                for node in ast.walk(text)
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            ]
            yield f"{path.relative_to(ROOT)}:{text.lineno}", "\0".join(parts)


def _of_module(module: str, path: Path) -> Iterator[Site]:
    tree = tree_of(path)
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    seen: Counter[str] = Counter()
    for function, text in _hints(tree, ()):
        seen[function] += 1
        number = f":{seen[function]}" if seen[function] > 1 else ""
        yield Site(
            f"{module}:{function}{number}",
            _pattern(text, constants),
            f"{path.relative_to(ROOT)}:{text.lineno}",
        )


def _hints(node: ast.AST, within: tuple[str, ...]) -> Iterator[tuple[str, ast.expr]]:
    """Yield each hint below a node, in the order of the text, with the function that says it."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        within = (*within, node.name)
    if isinstance(node, ast.Call):
        where = ".".join(within)
        yield from ((where, each.value) for each in node.keywords if each.arg == "hint")
        if isinstance(node.func, ast.Attribute) and node.func.attr == "advise":
            yield where, node.args[0]
    for child in ast.iter_child_nodes(node):
        yield from _hints(child, within)


def _pattern(text: ast.expr, constants: dict[str, ast.expr]) -> str:
    match text:
        case ast.Constant(value=str(value)):
            return re.escape(value)
        case ast.JoinedStr(values=values):
            return "".join(_pattern(each, constants) for each in values)
        case ast.FormattedValue(value=value):
            return _pattern(value, constants)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _pattern(left, constants) + _pattern(right, constants)
        case ast.IfExp(body=one, orelse=other) | ast.BoolOp(values=[one, other]):
            return f"(?:{_pattern(one, constants)}|{_pattern(other, constants)})"
        case ast.Name(id=name) if name in constants:
            return _pattern(constants[name], {})
        case _:
            return ANY
