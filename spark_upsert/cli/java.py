"""The Java that Spark will start, and problems with it.

``tools/check_machine.py`` loads this file alone: standard library and Python 3.6 syntax only.
"""

import os
import re
import shutil
import subprocess

JAVA_MIN = 17


def java_problem(environ: "dict[str, str] | os._Environ[str]" = os.environ) -> "str | None":
    """Return the problem with JAVA_HOME's Java, else the PATH's; None if it works."""
    return find_java(environ)[1]


def find_java(environ: "dict[str, str] | os._Environ[str]") -> "tuple[str, str | None]":
    """Return the Java Spark will start, with its release, and its problem or None."""
    remedy = "install one (Debian: `apt install openjdk-17-jre-headless`) or set JAVA_HOME to one."
    home = environ.get("JAVA_HOME")
    if home:
        java = os.path.join(home, "bin", "java")
        if not os.path.isfile(java):
            return "", (f"JAVA_HOME is {home}, which holds no bin/java: correct it or unset it.")
    else:
        java = shutil.which("java", path=environ.get("PATH", os.defpath)) or ""
        if not java:
            return "", (
                f"Spark needs Java {JAVA_MIN} or newer and there is no java on the PATH: {remedy}"
            )
    try:
        # Java prints its version to the standard error. A minute is for a swapping machine.
        output = subprocess.run(
            [java, "-version"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=False,
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        return java, f"{java} does not run ({error}): {remedy}"
    version = java_version(output)
    if version is None:
        return java, f"{java} does not say which version it is: {remedy}"
    if version < JAVA_MIN:
        return java, f"Spark needs Java {JAVA_MIN} or newer and {java} is Java {version}: {remedy}"
    return f"{java} (Java {version})", None


def java_version(output: str) -> "int | None":
    """Parse the release from ``java -version``: ``"1.8.0_392"`` is 8, ``"22-ea"`` is 22."""
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match.group(1)) if match else None
