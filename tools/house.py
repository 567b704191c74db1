"""Draw the house from the code: `docs/house.md`, which unit knows which, and what each module is about.

Run ``make pages`` after adding, moving or renaming a module; a test compares.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tools.layers import LAYERS, ROOT, imports, modules, tree_of, unit_of

TARGET = ROOT / "docs" / "house.md"

Graph = Mapping[str, frozenset[str]]
"""What each unit imports."""

GROUND = LAYERS[0]
"""Everybody stands on it, so that lines to it would say nothing."""

_HEAD = """# The house

This page is made from the code by `tools/house.py`.

A *unit* is a folder, or a module that stands alone. A line leads from a unit to one that it imports; what follows from
other lines is left out. No line leads up, which `tests/unit/test_layers.py` holds: the table of layers stands in
`tools/layers.py`. `spark_upsert` imports no Spark. Everything may import {ground}, so no lines lead there.

How the rooms work together is told in [CONTRIBUTING.md](../CONTRIBUTING.md).
"""

_MAP = """
## Modules

From the doors down to the ground.
"""


def page() -> str:
    """Return the whole page."""
    known = modules()
    ground = ", ".join(f"`{_short(unit)}`" for unit in GROUND)
    lines = [_HEAD.format(ground=ground), "```mermaid", *_picture(graph(known)), "```", _MAP]
    for unit in (unit for layer in reversed(LAYERS) for unit in layer):
        own = {module: path for module, path in known.items() if unit_of(module) == unit}
        lines += [f"### {_short(unit)}", "", *_described(own), ""]
    return "\n".join(lines).rstrip() + "\n"


def graph(known: Mapping[str, Path]) -> Graph:
    """Return which unit imports which, itself left out."""
    found: dict[str, set[str]] = {unit: set() for layer in LAYERS for unit in layer}
    for each in imports(dict(known)):
        above, below = unit_of(each.module), unit_of(each.imported)
        if above is not None and below not in (above, None):
            found[above].add(below or "")
    return {unit: frozenset(below) for unit, below in found.items()}


def reduced(whole: Graph) -> Graph:
    """Return the least graph with the same ways from unit to unit; the whole has no circle."""
    return {
        unit: below - frozenset(far for near in below for far in reachable(whole, near))
        for unit, below in whole.items()
    }


def reachable(whole: Graph, unit: str) -> frozenset[str]:
    """Return all units below one."""
    below = whole[unit]
    return below.union(*(reachable(whole, each) for each in below))


def _picture(whole: Graph) -> Iterator[str]:
    """Yield a mermaid flow chart, the doors on top."""
    shown = {unit: below - set(GROUND) for unit, below in whole.items() if unit not in GROUND}
    yield "flowchart TD"
    for unit in shown:
        yield f'    {_id(unit)}["{_short(unit)}"]'
    for unit, below in reversed(list(reduced(shown).items())):
        for each in sorted(below):
            yield f"    {_id(unit)} --> {_id(each)}"


def _described(own: Mapping[str, Path]) -> Iterator[str]:
    """Yield a line for each module: its place and the first sentence of its docstring."""
    for path in _folder_first(own.values()):
        told = ast.get_docstring(tree_of(path)) or ""
        first = told.split("\n\n")[0].replace("\n", " ").replace("``", "`")
        place = path.relative_to(ROOT).as_posix()
        yield f"- [`{place.removeprefix('spark_upsert/')}`](../{place}): {first}"


def _folder_first(paths: Iterable[Path]) -> list[Path]:
    """Return paths in order, what a folder is about before what lies in it."""
    return sorted(paths, key=lambda path: (path.parent, path.name != "__init__.py", path.name))


def _short(unit: str) -> str:
    return unit.removeprefix("spark_upsert.").replace(".", "/")


def _id(unit: str) -> str:
    return unit.replace(".", "_")


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
