"""The layers of the house, and which module imports which, read from the files.

A module may import from its own unit and from units of lower layers, never from a unit beside it or
above it. So no two units import each other, and what a unit knows can be read off this page. Imports
within functions and those for types count, too, and so does each text that is the name of a module,
whatever takes it: `import_module("...")`, ``__import__("...")`` or a list of names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]

SOURCE_ROOTS = (
    Path("spark_upsert"),
    Path("datasource/pyspark_upsertflow"),
    Path("sink/spark_upsert_sink"),
    Path("upsertflow"),
)

LAYERS: tuple[tuple[str, ...], ...] = (
    ("spark_upsert._version", "spark_upsert.errors"),
    ("spark_upsert.core",),
    ("spark_upsert.scheduler",),
    ("spark_upsert.store", "spark_upsert.payloads", "spark_upsert.plan"),
    ("spark_upsert.table.run", "spark_upsert.merge", "spark_upsert.postgres"),
    ("spark_upsert.table.log",),
    ("spark_upsert.table.retention",),
    ("spark_upsert.table.state",),
    ("spark_upsert.table.compaction",),
    ("spark_upsert.table.changelog",),
    ("spark_upsert.table.write",),
    ("spark_upsert.table.index",),
    ("spark_upsert.table",),
    ("spark_upsert.options", "spark_upsert.task"),
    ("spark_upsert.envelopes",),
    ("spark_upsert.views", "spark_upsert.routed"),
    ("spark_upsert.delta", "spark_upsert.replication"),
    ("spark_upsert.flow",),
    ("spark_upsert.streams", "spark_upsert.streams.offsets"),
    ("spark_upsert.streams.reads",),
    ("spark_upsert.streams.inputs",),
    (
        "spark_upsert.metadata",
        "spark_upsert.feedback",
        "spark_upsert.metrics",
        "spark_upsert.streams.planner",
    ),
    ("spark_upsert",),
    ("spark_upsert.cli", "spark_upsert_sink"),
    ("pyspark_upsertflow",),
    ("upsertflow",),
)
"""The units, the lowest layer first: folders without the folders named apart, or single modules."""


_QUOTED = re.compile(r"""["'](spark_upsert|pyspark_upsertflow|upsertflow\.)""")


@dataclass(frozen=True, slots=True, order=True)
class Import:
    """A module imports another."""

    module: str
    imported: str


@cache
def modules() -> dict[str, Path]:
    """Return the file of each module; the folders are read once."""
    files = {
        path: path.relative_to(ROOT / root.parent)
        for root in SOURCE_ROOTS
        for path in sorted((ROOT / root).rglob("*.py"))
    }
    return {".".join(_parts(name)): path for path, name in files.items()}


def _parts(path: Path) -> tuple[str, ...]:
    parts = path.with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imports(known: dict[str, Path]) -> Iterator[Import]:
    """Yield which module imports which."""
    for module, path in known.items():
        for name in _imported(path):
            found = module_of(name, known)
            if found not in (None, module):
                yield Import(module, found or "")


@cache
def tree_of(path: Path) -> ast.Module:
    """Return what a file says; each is read once."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _imported(path: Path) -> tuple[str, ...]:
    tree = tree_of(path)
    found = [name for node in statements(tree) for name in names(node)]
    # Most files have no such text: their trees are not gone through, expression by expression.
    has_texts = _QUOTED.search(path.read_text(encoding="utf-8")) is not None
    return (*found, *(named(tree) if has_texts else ()))


def named(tree: ast.AST) -> Iterator[str]:
    """Yield the modules of ours whose names are texts of a file.

    A text that is a package with a dot, as in ``f"spark_upsert.{homes[name]}"``, is a prefix of each
    other text. The bare name of a package may be that of a distribution, and counts in a call that
    loads it alone.
    """
    nodes, known = list(ast.walk(tree)), modules()
    texts = set(_texts(nodes))
    prefixes = [text for text in texts if text.endswith(".") and text[:-1] in known]
    calls = [node for node in nodes if isinstance(node, ast.Call) and _is_load(node.func)]
    loaded = set(_texts(argument for call in calls for argument in call.args))
    for text in texts:
        for name in (text, *(prefix + text for prefix in prefixes)):
            if name in known and ("." in name or name in loaded):
                yield name


def _texts(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _is_load(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("import_module", "__import__")


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is below a node but expressions: most of a tree, and none holds a statement."""
    waiting = [node]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if not isinstance(child, ast.expr):
                yield child
                waiting.append(child)


def names(node: ast.AST) -> Iterator[str]:
    """Yield the names that an import takes, with the modules before them."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(name: str, known: dict[str, Path]) -> str | None:
    """Return the module that a name lies in."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None


def unit_of(module: str) -> str | None:
    """Return the unit of a module, None if no layer names it."""
    named = {unit for layer in LAYERS for unit in layer}
    if module == "spark_upsert":
        return "spark_upsert"
    # The package is a module like others, not the folder of all that lies in no other unit.
    while module and (module not in named or module == "spark_upsert"):
        module = module.rpartition(".")[0]
    return module or None


def level_of(unit: str) -> int:
    """Return the layer of a unit, the lowest is 0."""
    return next(level for level, layer in enumerate(LAYERS) if unit in layer)
