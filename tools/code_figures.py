"""Measure the figures of the code that CONTRIBUTING lists, each next to its bound.

``make figures`` prints the table; `tests/unit/test_code_figures.py` holds the bounds. Counted are
the files that git tracks or would track; the product is the engine, the data source and the sink.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any, NamedTuple

from tools.layers import ROOT, imports, modules, tree_of, unit_of

TESTS = ("tests", "integration")
FILE_LINES_MIN = 100
"""Files below this size count as small; faces (``__init__.py``) are left out."""

FILLERS = frozenset(
    [
        "ahead",
        "anew",
        "apart",
        "asked",
        "behind",
        "below",
        "beside",
        "each",
        "found",
        "given",
        "kept",
        "known",
        "made",
        "only",
        "other",
        "own",
        "place",
        "places",
        "rest",
        "said",
        "seen",
        "stood",
        "told",
        "together",
        "wanted",
        "way",
        "ways",
        "what",
        "whole",
    ]
)
"""Names of local variables that do not say what the variable holds."""

_PARTICIPLES = frozenset(
    [
        "begun",
        "bound",
        "bought",
        "broken",
        "built",
        "caught",
        "chosen",
        "cut",
        "done",
        "drawn",
        "driven",
        "fallen",
        "felt",
        "found",
        "given",
        "gone",
        "held",
        "hidden",
        "kept",
        "known",
        "laid",
        "led",
        "left",
        "lent",
        "lost",
        "made",
        "meant",
        "met",
        "paid",
        "put",
        "read",
        "said",
        "seen",
        "sent",
        "set",
        "shown",
        "spent",
        "split",
        "stood",
        "taken",
        "told",
        "torn",
        "understood",
        "unsaid",
        "woken",
        "worn",
        "written",
    ]
)
_PARTICLES = frozenset(
    [
        "above",
        "after",
        "ahead",
        "alike",
        "anew",
        "apart",
        "around",
        "at",
        "before",
        "behind",
        "below",
        "beside",
        "beyond",
        "by",
        "down",
        "elsewhere",
        "ever",
        "fewer",
        "from",
        "how",
        "in",
        "meanwhile",
        "missing",
        "near",
        "of",
        "off",
        "on",
        "only",
        "other",
        "out",
        "over",
        "past",
        "rest",
        "said",
        "than",
        "then",
        "there",
        "through",
        "together",
        "under",
        "unsaid",
        "until",
        "up",
        "upon",
        "way",
        "what",
        "when",
        "where",
        "whole",
        "within",
        "without",
    ]
)
_TERMS = frozenset({"Seeded", "Fixed"})
"""Participles that are the field's own terms for a type."""

WORDS: Mapping[str, frozenset[str]] = {
    "what": frozenset({"what"}),
    "of": frozenset({"of"}),
    "behind": frozenset({"behind"}),
    "told/tell": frozenset({"told", "tell", "tells"}),
}


class Figure(NamedTuple):
    """A measured value and its bound."""

    name: str
    value: float
    most: float

    @property
    def is_met(self) -> bool:
        """Whether the value is within its bound."""
        return self.value <= self.most


# -- files ---------------------------------------------------------------------------------


@cache
def tracked() -> tuple[Path, ...]:
    """Return the files of the repository, sorted; ignored files are left out."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return tuple(sorted(p for n in listing.stdout.split("\0") if n and (p := ROOT / n).is_file()))


def line_count(path: Path) -> int:
    """Return the number of lines of a file."""
    return path.read_bytes().count(b"\n")


def test_files() -> list[Path]:
    """Return the Python files and text scenarios of the tests; recorded data is left out."""
    return [
        path
        for path in tracked()
        if path.relative_to(ROOT).parts[0] in TESTS and path.suffix in {".py", ".txt"}
    ]


# -- names ---------------------------------------------------------------------------------


def type_names() -> list[str]:
    """Return the names of all classes of the product."""
    trees = map(tree_of, modules().values())
    return [
        node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    ]


def is_bare(name: str) -> bool:
    """Return whether a type's name is a bare participle, adverb or preposition."""
    word = name.strip("_")
    if word in _TERMS or len(re.findall("[A-Z][a-z0-9]*", word)) != 1:
        return False
    lower = word.lower()
    is_participle = lower.endswith("ed") and not lower.endswith(("eed", "bed", "seed"))
    return is_participle or lower in _PARTICIPLES or lower in _PARTICLES


def local_names() -> Iterator[str]:
    """Yield the name of each local variable that a function of the product binds."""
    for path in modules().values():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from {
                    inner.id
                    for inner in ast.walk(node)
                    if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
                }


# -- words ---------------------------------------------------------------------------------


def docstrings() -> Iterator[str]:
    """Yield the docstrings of the product, those of attributes as well."""
    for path in modules().values():
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            for child in node.body:
                if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                    text = child.value.value
                    if isinstance(text, str):
                        yield text


def word_rates(texts: Iterator[str]) -> dict[str, float]:
    """Return how often each group of `WORDS` occurs in 1 000 words; code in backquotes is left out."""
    prose = " ".join(re.sub(r"``.*?``|`[^`]*`", " ", text, flags=re.DOTALL) for text in texts)
    words = re.findall(r"[a-z']+", prose.lower())
    return {
        label: 1000 * sum(word in group for word in words) / max(1, len(words))
        for label, group in WORDS.items()
    }


# -- imports -------------------------------------------------------------------------------


def circles() -> list[list[str]]:
    """Return the groups of modules that import each other, imports for types included."""
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for each in imports(dict(modules())):
        graph[each.module].add(each.imported)
    return [group for group in _components(graph) if len(group) > 1]


def upward_imports() -> list[str]:
    """Return the imports that lead to a higher layer or to a unit of the same layer."""
    from tools.layers import LAYERS

    level = {unit: index for index, layer in enumerate(LAYERS) for unit in layer}
    return [
        f"{each.module} -> {each.imported}"
        for each in imports(dict(modules()))
        if (above := unit_of(each.module)) is not None
        and (below := unit_of(each.imported)) is not None
        and above != below
        and level[below] >= level[above]
    ]


def _components(graph: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """Yield the strongly connected components (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    for root in graph:
        if root in index:
            continue
        work = [(root, iter(sorted(graph[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        while work:
            node, children = work[-1]
            for child in children:
                if child not in index:
                    index[child] = low[child] = len(index)
                    stack.append(child)
                    work.append((child, iter(sorted(graph[child]))))
                    break
                if child in stack:
                    low[node] = min(low[node], index[child])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    group: list[str] = []
                    while not group or group[-1] != node:
                        group.append(stack.pop())
                    yield group


# -- trips ---------------------------------------------------------------------------------


def modules_entered(work: Callable[[], Any]) -> set[str]:
    """Return the modules of the product in which functions are called, in a thread of its own."""
    files: set[str] = set()
    errors: list[Exception] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    def run() -> None:
        sys.setprofile(note)
        try:
            work()
        except Exception as error:  # noqa: BLE001  raised again in the calling thread
            errors.append(error)
        finally:
            sys.setprofile(None)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    product = {str(path): name for name, path in modules().items()}
    return {product[file] for file in files if file in product}


# -- all -----------------------------------------------------------------------------------


def figures() -> list[Figure]:
    """Return the figures that need no run of the product."""
    files = list(modules().values())
    sizes = {path: line_count(path) for path in files}
    bodies = [path for path in files if path.name != "__init__.py"]
    small = [path for path in bodies if sizes[path] < FILE_LINES_MIN]
    types, names = type_names(), list(local_names())
    pages = [p for p in tracked() if p.parent == ROOT / "docs" and p.suffix == ".md"]
    decisions = [p for p in tracked() if p.parent == ROOT / "docs" / "adr" and p.name[0].isdigit()]
    rates = word_rates(docstrings())
    return [
        Figure("lines of the product", sum(sizes.values()), 75_000),
        Figure("files of the product", len(files), 260),
        Figure("files under 100 lines, %", 100 * len(small) / len(bodies), 10),
        Figure("lines of the longest file", max(sizes.values()), 900),
        Figure("lines of tests and integration", sum(map(line_count, test_files())), 75_000),
        Figure("circles of imports", len(circles()), 0),
        Figure("upward imports", len(upward_imports()), 0),
        Figure(
            "types that are a bare participle, adverb or preposition", sum(map(is_bare, types)), 0
        ),
        Figure(
            "filler names among locals, %", 100 * sum(n in FILLERS for n in names) / len(names), 0.5
        ),
        Figure("'what' in 1 000 words of docstrings", rates["what"], 2),
        Figure("'of' in 1 000 words of docstrings", rates["of"], 26),
        Figure("'behind' in 1 000 words of docstrings", rates["behind"], 0.15),
        Figure("'told', 'tell' in 1 000 words of docstrings", rates["told/tell"], 0.15),
        Figure("pages", len(pages), 30),
        Figure("decisions", len(decisions), 40),
    ]


def main() -> None:
    """Print the table."""
    from tools.trips import trip_figures

    for each in (*figures(), *trip_figures()):
        mark = "" if each.is_met else "  <-"
        print(f"{each.name:58} {each.value:10.2f} {each.most:10g}{mark}")


if __name__ == "__main__":
    main()
