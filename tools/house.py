"""Draw the house from the code: `docs/house.md`, which room knows which, and what each is about.

Run ``make pages`` after adding, moving or renaming a module; a test compares.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.layers import LAYERS, ROOT, imports, modules, tree_of, unit_of

TARGET = ROOT / "docs" / "house.md"

Graph = Mapping[str, frozenset[str]]
"""What each unit imports."""

GROUND = LAYERS[0]
"""Every unit stands on it, so that lines to it would say nothing."""

PARTS_MAX = 2
"""Paragraphs of a docstring that the page has: what a room does, and how it is laid out."""

_HEAD = """# The house

This page is made from the code by `tools/house.py`.

A *room* is a folder, or a module that stands alone. A line leads from a room to one that it imports; what follows from
other lines is left out. No line leads up, which `tests/unit/test_layers.py` holds: the table of layers stands in
`tools/layers.py`. `spark_upsert` imports no Spark. Every room may import {ground}, so no lines lead there.

How the rooms work together is told in [CONTRIBUTING.md](../CONTRIBUTING.md); what a module is about stands at its head.
"""

_HELD = """
## What is held

| what | at most | held by |
|---|---|---|
| names of types with two meanings | 0 | `tests/unit/test_names.py` |
| languages and texts of plans; homes of equal keys | 1 | `tests/unit/test_golden.py`, `tests/laws/test_one_plan.py`, `tests/laws/test_equal_keys.py` |
| files in a folder | 20 | `tests/unit/test_layers.py` |
| modules of `streams` that plan a batch of one table | 12 | `tests/unit/test_planning_modules.py` |
| places that declare an option | 1 | `tests/unit/test_declared_options.py` |
| public names of `task`, `merge` and `flow` that are neither used by another room nor for users | 0 | `tests/unit/test_rooms_in_use.py` |
| "who" and its like in 1 000 words of docstrings | 1 | `tests/unit/test_prose.py` |

No test holds what a change costs. Three were made on branches and their files counted, those left out that `make pages`
writes: an option touched 6, a column type 5, a command 4. Nor does one hold the time of `make check`:
{check}

Decisions: [plan nodes without a caller in the product](adr/0033-tasks-joins-and-plan-nodes.md), [flows and views](adr/0041-flows.md),
[layers](adr/0070-package-structure.md).
"""

_CHECK = """\
it takes a few of the cases of each sweep (`tests/conftest.py`), and `make test-all` takes all; `make times` says where the
time goes. Without a cache of types, on two cores with nothing beside it, it took 260 s of processor time and 146 s by the
clock when it had 10 127 tests. With 9 004 it took 238 s of processor time on the same machine under a load of 8, where
the quick tests alone, in one process, fell from 278 s to 182 s.
"""
"""How long `make check` took, and where."""

_ROOMS = """
## Rooms

From the doors down to the ground.
"""


def page() -> str:
    """Return the whole page."""
    known = modules()
    whole = graph(known)
    ground = ", ".join(f"`{_short(unit)}`" for unit in GROUND)
    lines = [
        _HEAD.format(ground=ground),
        "```mermaid",
        *_picture(whole),
        "```",
        _HELD.format(check=_CHECK.rstrip()),
        _ROOMS,
    ]
    for unit in (unit for layer in reversed(LAYERS) for unit in layer):
        lines += [f"### {_short(unit)}", "", *_described(unit, known), _neighbours(unit, whole), ""]
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


def rooms_of(unit: str, known: Mapping[str, Path]) -> list[Path]:
    """Return the files that describe a unit: its folders' own, or the module that it is."""
    own = [path for module, path in known.items() if unit_of(module) == unit]
    folders = [path for path in own if path.name == "__init__.py"]
    return sorted(folders or own, key=lambda path: path.parent)


def _picture(whole: Graph) -> Iterator[str]:
    """Yield a mermaid flow chart, the doors on top."""
    shown = {unit: below - set(GROUND) for unit, below in whole.items() if unit not in GROUND}
    yield "flowchart TD"
    for unit in shown:
        yield f'    {_id(unit)}["{_short(unit)}"]'
    for unit, below in reversed(list(reduced(shown).items())):
        for each in sorted(below):
            yield f"    {_id(unit)} --> {_id(each)}"


def _described(unit: str, known: Mapping[str, Path]) -> Iterator[str]:
    """Yield what the docstring of each folder of a unit says, examples left out."""
    for path in rooms_of(unit, known):
        place = path.relative_to(ROOT)
        folder = place.parent if place.name == "__init__.py" else place
        told = (ast.get_docstring(tree_of(path)) or "").replace("``", "`").split("\n\n")
        prose = [part.replace("\n", " ") for part in told if _is_prose(part)][:PARTS_MAX]
        yield f"[`{folder.as_posix()}`](../{folder.as_posix()}): {' '.join(prose)}"
        yield ""


def _is_prose(part: str) -> bool:
    return not part.startswith((">>>", " ", "-", "="))


def _neighbours(unit: str, whole: Graph) -> str:
    above = [each for each, below in whole.items() if unit in below]
    if unit in GROUND:
        return "Every room may import it."
    imported = _listed(whole[unit] - set(GROUND)) or "the ground alone"
    return f"Imports {imported}. Imported by {_listed(above) or 'no other room'}."


def _listed(units: frozenset[str] | list[str]) -> str:
    return ", ".join(f"`{_short(each)}`" for each in sorted(units))


def _short(unit: str) -> str:
    return unit.removeprefix("spark_upsert.").replace(".", "/")


def _id(unit: str) -> str:
    return unit.replace(".", "_")


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
