"""Say in one sentence what a machine lacks, before anything else fails with a page of traceback.

Runs before the environment exists, on whatever Python 3 the machine has: standard library only,
and no syntax that Python 3.6 does not know (hence the annotations in quotes). Each check returns
the sentence to print, or None. Nothing is installed and nothing is changed.
"""

import os
import re
import shutil
import subprocess
import sys

PYTHON_MIN = (3, 11)
JAVA_MIN = 17
PYSPARK_MIN = (4, 2)


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


def java_problem(environ: "dict[str, str] | os._Environ[str]" = os.environ) -> "str | None":
    """Say what is wrong with the Java that Spark will start: JAVA_HOME's, else that on the PATH."""
    remedy = "install one (Debian: `apt install openjdk-17-jre-headless`) or set JAVA_HOME to one."
    home = environ.get("JAVA_HOME")
    if home:
        java = os.path.join(home, "bin", "java")
        if not os.path.isfile(java):
            return f"JAVA_HOME is {home}, which holds no bin/java: correct it or unset it."
    else:
        java = shutil.which("java", path=environ.get("PATH", os.defpath)) or ""
        if not java:
            return (
                f"Spark needs Java {JAVA_MIN} or newer and there is no java on the PATH: {remedy}"
            )
    try:
        # Java prints its version to the standard error. A minute is for a machine that is swapping.
        output = subprocess.run(
            [java, "-version"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=False,
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java} does not run ({error}): {remedy}"
    found = java_version(output)
    if found is None:
        return f"{java} does not say which version it is: {remedy}"
    if found < JAVA_MIN:
        return f"Spark needs Java {JAVA_MIN} or newer and {java} is Java {found}: {remedy}"
    return None


def java_version(output: str) -> "int | None":
    """Read the release from ``java -version``: ``"1.8.0_392"`` is 8, ``"22-ea"`` is 22."""
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match.group(1)) if match else None


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
    """Check what an installation needs or, with ``--installed``, what it made; 1 says: not good."""
    if "--installed" in arguments:
        found = [python_problem(), java_problem(), pyspark_problem()]
    else:
        found = [python_problem(), venv_problem(), java_problem()]
    problems = [problem for problem in found if problem]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
