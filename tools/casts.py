"""Where the code casts or rounds by Arrow itself, read from the files.

Conversions of user data go through `spark_upsert.core.casts`, which checks what Arrow does not. A
cast elsewhere is one of our own columns, and stands in the list of `tests/unit/test_one_door.py`.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tools.layers import ROOT, modules, tree_of

DOOR = frozenset(
    f"spark_upsert.core.{name}"
    for name in (
        *("casts", "decimals", "python_values", "reasons", "soundness"),
        *("source_positions", "timestamps"),
    )
)

METHODS = frozenset({"cast"})
"""Of arrays, tables and scalars; a method of the same name of something else is listed, too."""

KERNELS = frozenset(
    {
        "assume_timezone",
        "cast",
        "ceil",
        "ceil_temporal",
        "floor",
        "floor_temporal",
        "local_timestamp",
        "round",
        "round_binary",
        "round_temporal",
        "round_to_multiple",
        "strptime",
        "trunc",
    }
)
"""Of `pyarrow.compute`: named at all, since they are handed on as values."""

COMPUTE = frozenset({"pc", "compute"})


def casts() -> dict[str, int]:
    """Return how many casts stand in each ``module:function`` outside of the door."""
    found: Counter[str] = Counter()
    for module, path in modules().items():
        if module not in DOOR:
            found.update(f"{module.removeprefix('spark_upsert.')}:{name}" for name in _in(path))
    return dict(sorted(found.items()))


def _in(path: Path) -> Iterator[str]:
    yield from named(tree_of(ROOT / path))


def named(tree: ast.AST, within: str = "<module>") -> Iterator[str]:
    """Yield the function or class that each cast of a tree stands in."""
    for node in ast.iter_child_nodes(tree):
        inside = within
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inside = node.name if within == "<module>" else f"{within}.{node.name}"
        if _is_cast(node):
            yield inside
        yield from named(node, inside)


def _is_cast(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id=name), attr=kernel) if name in COMPUTE:
            return kernel in KERNELS
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name))) if name in COMPUTE:
            return False  # Its kernel is looked at by itself.
        case ast.Call(func=ast.Attribute(attr=method)):
            return method in METHODS
        case ast.keyword(arg="safe", value=ast.Constant(value=False)):
            return True
        case _:
            return False
