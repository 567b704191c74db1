"""Machine checks (``upsertflow doctor``): everything Spark needs to find the source.

Each interpreter named in Spark's environment is started and imports every ``pyspark_*`` module, as
Spark does. Spark only logs a failure there.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from spark_upsert._version import __version__
from spark_upsert.cli.java import find_java
from spark_upsert.core.path_template import Template, is_routed
from spark_upsert.errors import OptionError, UpsertFlowError, is_url, masked, require_plain
from spark_upsert.store.open import open_store

SECONDS_MAX = 120
"""Timeout for an interpreter; its imports take a few seconds at most."""

_SOURCE_RULES = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")
_WORKER_RULES = ("PYSPARK_PYTHON",)

MINIMA = {"pyspark": (4, 1), "pyarrow": (20,), "numpy": (1, 26)}

_WEB_USER = re.compile(r"^(https?://)(?!\$\{\w+\}(?::\$\{\w+\})?@)[^/@]*@")

_PROBE = """
import importlib, json, pkgutil, sys
found = {"python": "%d.%d.%d" % sys.version_info[:3], "executable": sys.executable}
found.update(prefix=sys.prefix, versions={}, sources=[], broken={})
for name in ("pyspark", "pyarrow", "numpy", "spark_upsert"):
    try:
        found["versions"][name] = importlib.import_module(name).__version__
    except Exception as error:
        found["versions"][name] = None
for module in pkgutil.iter_modules():
    if module.name.startswith("pyspark_"):
        try:
            source = getattr(importlib.import_module(module.name), "DefaultSource", None)
            if source is not None:
                found["sources"].append(source.name())
        except Exception as error:
            found["broken"][module.name] = "%s: %s" % (type(error).__name__, error)
print()
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check and its result."""

    name: str
    found: str
    problem: str | None = None
    """None if the check passed."""
    remedies: tuple[str, ...] = ()
    """Alternative remedies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """An interpreter's report about itself."""

    python: str
    executable: str
    prefix: str
    """Package folder: environments may share one executable."""
    versions: Mapping[str, str | None]
    sources: Sequence[str]
    broken: Mapping[str, str]

    @property
    def remedies(self) -> tuple[str, ...]:
        """Remedies for a missing package."""
        install = f"{self.executable} -m pip install {shlex.quote(requirement('spark'))}"
        return (
            (install,) if self.prefix == sys.prefix else (_export_command(_SOURCE_RULES), install)
        )


def requirement(extra: str) -> str:
    """Return the pip requirement for this installation: its release, or its origin.

    The origin comes from the installation's ``direct_url.json``: a folder, an archive with its
    hash, or a repository commit, each with the package's subdirectory.

    Source: PEP 610 (the record), PEP 440 "Direct references" (the requirement). Credentials in the
    record are omitted, except environment variable names and the SSH user.
    """
    record: Any = None
    with suppress(PackageNotFoundError, ValueError):
        record = json.loads(distribution("upsertflow").read_text("direct_url.json") or "null")
    if not isinstance(record, dict) or not isinstance(record.get("url"), str):
        return f"upsertflow[{extra}]=={__version__}"
    url = _WEB_USER.sub(r"\1", record["url"])
    url = masked(url) if "?" in url else url
    subdirectory, fragment = record.get("subdirectory"), list[str]()
    match record:
        case {"vcs_info": {"vcs": str(system), **version}}:
            revision = version.get("commit_id") or version.get("requested_revision")
            url = f"{system}+{url}{f'@{revision}' if revision else ''}"
        case {"archive_info": {"hashes": {"sha256": str(digest)}}}:
            fragment = [f"sha256={digest}"]
        case {"archive_info": {"hash": str(digest)}}:
            fragment = [digest]
        case {"dir_info": _} if subdirectory:  # pip takes no fragment of a folder.
            url, subdirectory = f"{url.rstrip('/')}/{subdirectory}", None
    if subdirectory:
        fragment.append(f"subdirectory={subdirectory}")
    return f"upsertflow[{extra}] @ {url}{'#' * bool(fragment)}{'&'.join(fragment)}"


def examine(
    environ: Mapping[str, str], path: str | None, storage: Mapping[str, str]
) -> list[Check]:
    """Run all checks, lowest level first."""
    java, java_problem = find_java(dict(environ))
    here = ".".join(map(str, sys.version_info[:3]))
    checks = [
        Check(name="java", found=java or "none", problem=java_problem),
        Check(name="this program", found=f"{sys.executable} (Python {here})"),
        *_check_interpreters(environ),
    ]
    if path is not None:
        checks.append(_check_write(path, storage))
    return checks


def rendered(checks: Sequence[Check]) -> Iterator[str]:
    """Yield output lines: each check, then each distinct remedy for copying."""
    for check in checks:
        yield f"{'WRONG' if check.problem else 'ok':5}  {check.name}: {check.found}"
        if check.problem:
            yield f"       {check.problem}"
    remedies = list(dict.fromkeys(remedy for check in checks for remedy in check.remedies))
    if remedies:
        yield ""
        yield "Do one of these, and start Spark again:" if len(remedies) > 1 else "Do this:"
        yield from (f"    {remedy}" for remedy in remedies)


def _check_interpreters(environ: Mapping[str, str]) -> Iterator[Check]:
    source, why = _select_interpreter(environ, _SOURCE_RULES)
    interpreter = _probe(source, environ)
    yield _check_interpreter(
        "interpreter of sources", f"{source} ({why})", interpreter, _SOURCE_RULES
    )
    if isinstance(interpreter, Interpreter):
        yield from _check_versions(interpreter)
        yield _check_discovery(interpreter)
    worker, why = _select_interpreter(environ, _WORKER_RULES)
    workers = interpreter if worker == source else _probe(worker, environ)
    yield _check_interpreter("interpreter of workers", f"{worker} ({why})", workers, _WORKER_RULES)


def _check_interpreter(
    name: str, chosen: str, interpreter: Interpreter | str, rules: Sequence[str]
) -> Check:
    """Check an interpreter's Python version."""
    remedies = (_export_command(rules),)
    if isinstance(interpreter, str):
        return Check(name=name, found=chosen, problem=interpreter, remedies=remedies)
    description = f"{chosen}, Python {interpreter.python}"
    major, minor = sys.version_info[:2]
    if interpreter.python.split(".")[:2] == [str(major), str(minor)]:
        return Check(name=name, found=description)
    problem = f"Spark refuses a Python other than the {major}.{minor} of this program."
    return Check(name=name, found=description, problem=problem, remedies=remedies)


def _select_interpreter(environ: Mapping[str, str], rules: Sequence[str]) -> tuple[str, str]:
    """Return the interpreter Spark will start, and the rule selecting it."""
    for name in rules:
        if environ.get(name):
            return environ[name], f"by {name}"
    return "python3", f"{' and '.join(rules)} {'are' if len(rules) > 1 else 'is'} not set"


def _export_command(names: Sequence[str]) -> str:
    settings = " ".join(f"{name}={sys.executable}" for name in reversed(names))
    return f"export {settings}"


def _probe(program: str, environ: Mapping[str, str]) -> Interpreter | str:
    """Start an interpreter and return its report, or an error text."""
    path = shutil.which(program, path=environ.get("PATH", os.defpath))
    if path is None:
        return f"There is no program {program}."
    try:
        done = subprocess.run(
            [path, "-c", _PROBE],
            env=_spark_environment(environ),
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError) as error:
        return f"{path} does not run: {error}."
    try:
        return Interpreter(**json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError, TypeError):
        return f"{path} does not run Python code: {_last_line(done.stderr)}."


def _spark_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with Spark's own pyspark copy on Python's path."""
    spec = importlib.util.find_spec("pyspark")
    package_folder = os.path.dirname(spec.origin) if spec and spec.origin else None
    home = environ.get("SPARK_HOME") or package_folder
    copies = sorted(map(str, Path(home, "python", "lib").glob("*.zip"))) if home else []
    paths = [*copies, *filter(None, [environ.get("PYTHONPATH")])]
    return {**environ, "PYTHONPATH": os.pathsep.join(paths)}


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it prints nothing"


def _check_versions(interpreter: Interpreter) -> Iterator[Check]:
    for name, least in MINIMA.items():
        version = interpreter.versions.get(name)
        numbers = tuple(map(int, re.findall(r"\d+", version or "")[: len(least)]))
        problem = None
        if version is None:
            problem = "cannot be imported there."
        elif numbers < least:
            problem = f"{'.'.join(map(str, least))} or newer is needed."
        yield Check(
            name=name,
            found=version or "not there",
            problem=problem,
            remedies=interpreter.remedies if problem else (),
        )


def _check_discovery(interpreter: Interpreter) -> Check:
    """Check whether Spark's source discovery would find this package."""
    version = interpreter.versions.get("spark_upsert")
    problem, remedies = None, interpreter.remedies
    if interpreter.broken:
        module, error = next(iter(interpreter.broken.items()))
        problem = (
            f"the module {module} cannot be imported ({error}), and Spark gives up its whole "
            "search for sources at the first that fails."
        )
        remedies = (f"repair {module}, or: {interpreter.executable} -m pip uninstall {module}",)
    elif "upsertflow" not in interpreter.sources:
        problem = "Spark will not find it there (DATA_SOURCE_NOT_FOUND)."
    elif version != __version__:
        problem = f"this program is of version {__version__}."
    return Check(
        name="upsertflow",
        found=version or "not there",
        problem=problem,
        remedies=remedies if problem else (),
    )


def _check_write(path: str, storage: Mapping[str, str]) -> Check:
    """Write and commit a small object as a writer would, and remove it.

    For a path with column names, the path's root is checked.
    """
    try:
        require_plain(path)
        path = Template.parse(path).root if is_routed(path) else path
    except OptionError as error:
        return Check(name="write", found="refused", problem=str(error))
    root = Path(path)
    missing = (
        [] if is_url(path) else [folder for folder in (root, *root.parents) if not folder.exists()]
    )
    name = f"_doctor-{uuid.uuid4().hex}"
    problem = None
    try:
        store = open_store(path, storage)
        try:
            store.put(name, b"")
            store.put_if_absent(f"{name}-commit", b"")
            if store.put_if_absent(f"{name}-commit", b""):
                problem = "an object that exists was created again: commits would be lost there."
        finally:
            store.delete(name)
            store.delete(f"{name}-commit")
    except (UpsertFlowError, OSError) as error:
        problem = masked(str(error))
    for folder in missing:
        with suppress(OSError):
            folder.rmdir()
    return Check(name="write", found=path, problem=problem)
