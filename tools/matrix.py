"""`make matrix`: try releases of Spark, Arrow and Python, each in an environment of its own.

Writes the table of docs/compatibility.md. What cannot be tried on this machine is said to be not tried.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree, which

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
FOLDER = ROOT / ".servers" / "matrix"
SECONDS_MAX = 900
LANES = 2
BEGIN, END = "<!-- made by `make matrix` -->\n", "<!-- end -->\n"


@dataclass(frozen=True, slots=True)
class Cell:
    """What is installed together."""

    python: str
    packages: tuple[str, ...]
    kind: str = "spark"
    """What serves the session (`integration.release_probe`)."""

    @property
    def name(self) -> str:
        return " ".join((self.python, *self.packages))


_REST = ("pandas>=2.2,<3", "numpy", "grpcio", "grpcio-status", "zstandard")
OLDEST = Cell("python3.11", ("pyspark[sql]==4.1.1", "pyarrow"))
"""What Fabric 2.0 and Glue 6.0 have."""

WITHOUT_JAVA = Cell("python3.11", ("pysail", "pyspark-client==4.1.*", "pyarrow"), kind="sail")

CELLS = (
    OLDEST,
    Cell("python3.12", ("pyspark[sql]==4.2.*", "pyarrow")),
    Cell("python3.11", ("pyspark[sql]==4.3.*", "pyarrow==20.*")),
    Cell("python3.13", ("pyspark[sql]==4.3.*", "pyarrow")),
    Cell("python3.14", ("pyspark[sql]==4.3.*", "pyarrow")),
    Cell("python3.11", ("pyspark[sql]==4.0.*", "pyarrow")),
    WITHOUT_JAVA,
    Cell("python3.13", ("pysail", "pyspark-client==4.2.*", "pyarrow"), kind="sail"),
    Cell("python3.11", ("pyspark[sql]==4.3.*", "pyarrow")),
)


def interpreter(name: str) -> str | None:
    """Return an interpreter of a name that runs; the shim of a version manager may not."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for found in (which(name), *map(str, sorted(root.glob(f"versions/*/bin/{name}")))):
        if found and not subprocess.run([found, "-c", ""], capture_output=True).returncode:
            return found
    return None


def prepared(cell: Cell) -> Path | str:
    """Return the interpreter of an environment with what a cell asks for, or why there is none."""
    python = interpreter(cell.python)
    if python is None:
        return f"no {cell.python} on this machine"
    at = FOLDER / "".join(c if c.isalnum() else "-" for c in cell.name)
    own = at / "bin" / "python"
    if not (at / "complete").exists():
        rmtree(at, ignore_errors=True)
        # By the pip that is here, and without compiling what no cell may ever import.
        subprocess.run([python, "-m", "venv", "--without-pip", str(at)], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(own), "install"]
        wanted = ["--quiet", "--no-compile", *cell.packages, *_REST]
        done = subprocess.run([*pip, *wanted], capture_output=True, text=True)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return said[-1] if said else "pip failed"
        (at / "complete").touch()
    return own


def asked(python: Path, kind: str) -> tuple[str, dict[str, str]]:
    """Return the releases that an environment has, and of each thing that is tried its problem.

    What works has an empty one. Nothing is returned where not even a session begins.
    """
    roots = os.pathsep.join(str(ROOT / each) for each in ("", "datasource", "sink"))
    own = ("SPARK_HOME", "SPARK_CONF_DIR", "PYTHONPATH")
    environ = {
        **{name: text for name, text in os.environ.items() if name not in own},
        "PYTHONPATH": roots,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
    }
    done = subprocess.run(
        [str(python), "-m", "integration.release_probe", kind],
        env=environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if len(said) < 2:
        return done.stderr.strip().splitlines()[-1], {}
    releases = (
        f"PySpark {said[0]['pyspark']}, pyarrow {said[0]['pyarrow']}, Python {said[0]['python']}"
    )
    return releases, {line["tried"]: line["problem"] for line in said[1:]}


def tried(cell: Cell) -> tuple[str, str]:
    """Return what was found of a cell: releases, and what works."""
    python = prepared(cell)
    if isinstance(python, str):
        return "", f"not tried: {python}"
    try:
        releases, problems = asked(python, cell.kind)
    except subprocess.TimeoutExpired:
        return "", f"not tried: it took longer than {SECONDS_MAX} s"
    if not problems:
        return "", f"not tried: {releases}"
    works = [name for name, problem in problems.items() if not problem]
    fails = {name: problem for name, problem in problems.items() if problem}
    told = f"tried: {', '.join(works)}" if works else "tried: nothing works"
    if fails:
        why = next(iter(fails.values())).partition(" Hint: ")[0].replace(str(python), "python")
        told += f". Refused: {', '.join(fails)} ({why})"
    return releases, told


def write(found: Mapping[Cell, tuple[str, str]]) -> None:
    """Write the page: of each cell what was found, or that it was not reached."""
    lines = ["| asked for | found | result |", "|---|---|---|"]
    for cell in CELLS:
        releases, told = found.get(cell, ("", "not tried: not reached"))
        lines.append(f"| `{cell.name}` | {releases} | {told.replace('|', '/')} |")
    head, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(head + BEGIN + "\n" + "\n".join(lines) + "\n\n" + END + rest.split(END)[1])


def main() -> None:
    """Try all, a few at a time, and write the page behind each."""
    found: dict[Cell, tuple[str, str]] = {}
    with ThreadPoolExecutor(LANES) as lanes:
        tries = {lanes.submit(tried, cell): cell for cell in CELLS}
        for done in as_completed(tries):
            found[tries[done]] = done.result()
            print(tries[done].name, *done.result(), flush=True)
            write(found)


if __name__ == "__main__":
    main()
