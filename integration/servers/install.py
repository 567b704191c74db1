"""What servers need and this machine lacks: fetched once, below ``.servers``, without root."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parent.parent.parent / ".servers"
FETCH_SECONDS_MAX = 600
WAIT_SECONDS_MAX = 3 * FETCH_SECONDS_MAX
"""One after the other is fetched, and few are."""

_LOOK_SECONDS = 0.2
"""Between two looks whether another process is done."""

MAVEN_OPTS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""It copies some files and ends, so what the second compiler would gain is never earned back."""


def fetched(name: str, tool: str, remedy: str, *command: str, files: dict[str, str]) -> Path:
    """Return a folder that a command has filled; ``{}`` in its words is the folder.

    A folder is there whole or not at all, and one process fetches it: others wait for that one.
    """
    folder = HOME / name
    if folder.exists():
        return folder
    with alone(name):
        return folder if folder.exists() else _made(folder, tool, remedy, command, files)


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Hold the folder among all processes; the system gives it back where one dies."""
    HOME.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + WAIT_SECONDS_MAX
    folder = os.open(HOME, os.O_RDONLY)
    try:
        while not _is_held(folder):
            if time.monotonic() > until_s:
                pytest.fail(
                    f"{name} is not here, and for {WAIT_SECONDS_MAX} s another process has been "
                    f"fetching something into {HOME}: see which one.",
                    pytrace=False,
                )
            time.sleep(_LOOK_SECONDS)
        yield
    finally:
        os.close(folder)


def _is_held(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _made(
    folder: Path, tool: str, remedy: str, command: Sequence[str], files: Mapping[str, str]
) -> Path:
    name = folder.name
    if shutil.which(tool) is None:
        pytest.fail(
            f"there is no `{tool}` on the PATH, which fetches {name}: {remedy}", pytrace=False
        )
    making = HOME / f"{name}.{os.getpid()}"
    making.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (making / file).write_text(text)
    done = subprocess.run(
        [tool, *(word.replace("{}", str(making)) for word in command)],
        cwd=making,
        env={**os.environ, "GOBIN": str(making), "MAVEN_OPTS": MAVEN_OPTS},
        capture_output=True,
        text=True,
        timeout=FETCH_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        shutil.rmtree(making)
        said = (done.stdout + done.stderr).strip()[-1000:]
        pytest.fail(f"`{tool}` could not fetch {name}:\n{said}", pytrace=False)
    making.rename(folder)
    return folder


def jars(name: str, coordinates: Sequence[str], *, transitive: bool = True) -> list[Path]:
    """Return jars of Maven's central repository."""
    folder = fetched(
        f"{name}-{coordinates[0].rpartition(':')[2]}",
        "mvn",
        "install Maven (Debian: `apt install maven`).",
        *("--batch-mode", "--quiet", "dependency:copy-dependencies"),
        *("-DoutputDirectory={}", "-DincludeScope=runtime"),
        files={"pom.xml": _pom(coordinates, transitive=transitive)},
    )
    return sorted(folder.glob("*.jar"))


def _pom(coordinates: Sequence[str], *, transitive: bool) -> str:
    """Return a project that depends on artifacts, and on nothing else unless they do."""
    every = "<exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    exclusions = "" if transitive else f"<exclusions>{every}</exclusions>"
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>".format(
            *one.split(":")
        )
        + f"{exclusions}</dependency>"
        for one in coordinates
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>tests</groupId><artifactId>jars</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
    )


def debian_program(names: Sequence[str], package: str) -> Path:
    """Return a program; as root, and where there is `apt-get`, its package is installed first."""
    remedy = f"install it (Debian: `apt install {package}`)."
    if (program := _program(names)) is not None:
        return program
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        pytest.fail(f"there is no {', '.join(names)} on the PATH: {remedy}", pytrace=False)
    with alone(package):
        if _program(names) is None:
            _apt_get(remedy, "update")
            _apt_get(remedy, "install", "--yes", "--no-install-recommends", package)
    if (program := _program(names)) is None:
        pytest.fail(f"the package {package} has no {names[0]} on the PATH: {remedy}", pytrace=False)
    return program


def _program(names: Sequence[str]) -> Path | None:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    programs = (shutil.which(name, path=path) for name in names)
    return next((Path(program) for program in programs if program), None)


def _apt_get(remedy: str, *arguments: str) -> None:
    done = subprocess.run(
        ["apt-get", "--quiet", *arguments],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        capture_output=True,
        text=True,
        timeout=FETCH_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        output = (done.stdout + done.stderr).strip()[-1000:]
        pytest.fail(f"`apt-get {arguments[0]}` failed; {remedy}\n{output}", pytrace=False)


def go_program(name: str, package: str, version: str) -> Path:
    """Return a program that Go has built, as for debugging: to optimize takes half as long again."""
    folder = fetched(
        f"{name}-{version}",
        "go",
        "install Go 1.24 or newer (Debian: `apt install golang`).",
        *("install", "-gcflags=all=-N -l", "-ldflags=-s -w", f"{package}@{version}"),
        files={},
    )
    return folder / name
