"""Say in one sentence what a machine lacks, before anything else fails with a page of traceback.

Runs before the environment exists, on whatever Python 3 the machine has: standard library only,
and no syntax that Python 3.6 does not know (hence the annotations in quotes). Each check returns
the sentence to print, or None. Nothing is installed and nothing is changed.
"""

import importlib.util
import os
import re
import sys
from typing import Any

PYTHON_MIN = (3, 11)
PYSPARK_MIN = (4, 1)


def python_problem(version: "tuple[int, ...]" = sys.version_info[:2]) -> "str | None":
    """Say why this interpreter is too old."""
    if version >= PYTHON_MIN:
        return None
    return (
        f"Python {dotted(PYTHON_MIN)} or newer is needed and {sys.executable} is "
        f"{dotted(version)}: install one and run `make PYTHON=/path/to/python3` with its path."
    )


def venv_problem() -> "str | None":
    """Say that this interpreter cannot make environments: Debian packages that part apart."""
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return (
            f"{sys.executable} cannot create virtual environments: run `apt install python3-venv`, "
            "or name another interpreter with `make PYTHON=/path/to/python3`."
        )
    return None


def _load_java() -> "Any":
    """Load the rules about Java by their file: the package around it may not be importable yet."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.path.join(folder, "spark_upsert", "cli", "java.py")
    spec = importlib.util.spec_from_file_location("java", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_JAVA = _load_java()
java_problem = _JAVA.java_problem
java_version = _JAVA.java_version


def pyspark_problem(version: "str | None" = None) -> "str | None":
    """Say that pyspark is missing or too old; `version` is the installed one unless given."""
    from importlib import metadata

    minimum = dotted(PYSPARK_MIN)
    remedy = f"run `{sys.executable} -m pip install --upgrade 'pyspark[sql]>={minimum},<5'`."
    try:
        version = version or metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return f"pyspark is not installed: {remedy}"
    if tuple(map(int, re.findall(r"\d+", version)[:2])) >= PYSPARK_MIN:
        return None
    return f"pyspark {minimum} or newer is needed and {version} is installed: {remedy}"


def dotted(version: "tuple[int, ...]") -> str:
    """Write a version as people do."""
    return ".".join(map(str, version[:2]))


def main(arguments: "list[str]") -> int:
    """Check what an installation needs or, with ``--installed``, what it made; 1 says: not good.

    Java is asked for with ``--java`` alone: most of the work on the engine needs none.
    """
    found = [python_problem()]
    found += [pyspark_problem()] if "--installed" in arguments else [venv_problem()]
    found += [java_problem()] if "--java" in arguments else []
    problems = [problem for problem in found if problem]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
