"""`upsertflow doctor` sees what keeps Spark from finding the source, and says what to do."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_upsert._version import __version__
from spark_upsert.cli.commands import upsertflow
from spark_upsert.cli.doctor import examine, requirement
from tests.support.stores import MemoryStore

# It starts interpreters.
pytestmark = pytest.mark.slow


def program(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment in which all is well, and whose ``python3`` has no packages at all."""
    program(tmp_path / "jdk" / "bin" / "java", "echo 'openjdk version \"17.0.15\"' >&2")
    program(tmp_path / "bin" / "python3", f'exec {sys.executable} -I -S "$@"')
    return {
        "JAVA_HOME": str(tmp_path / "jdk"),
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "PYSPARK_PYTHON": sys.executable,
    }


def problems(environ: Mapping[str, str], path: str | None = None) -> dict[str, str]:
    return {check.name: check.problem for check in examine(environ, path, {}) if check.problem}


def test_nothing_is_wrong_where_all_is_well(environ: dict[str, str], tmp_path: Path) -> None:
    assert problems(environ, str(tmp_path / "lake" / "orders")) == {}
    assert not (tmp_path / "lake").exists()
    driver = {**environ, "PYSPARK_DRIVER_PYTHON": sys.executable}
    assert problems(driver) == {}


def test_an_old_java_is_named(environ: dict[str, str], tmp_path: Path) -> None:
    program(tmp_path / "jdk" / "bin" / "java", "echo 'java version \"1.8.0_392\"' >&2")
    assert "Java 8" in problems(environ)["java"]


def test_without_a_setting_spark_takes_another_python(environ: dict[str, str]) -> None:
    del environ["PYSPARK_PYTHON"]
    checks = {check.name: check for check in examine(environ, None, {}) if check.problem}
    assert {"pyarrow", "upsertflow"} <= checks.keys()
    assert "DATA_SOURCE_NOT_FOUND" in (checks["upsertflow"].problem or "")
    python = sys.executable
    remedy = f"export PYSPARK_PYTHON={python} PYSPARK_DRIVER_PYTHON={python}"
    assert checks["upsertflow"].remedies[0] == remedy


def test_the_drivers_setting_wins_as_it_does_in_spark(environ: dict[str, str]) -> None:
    assert "upsertflow" in problems({**environ, "PYSPARK_DRIVER_PYTHON": "python3"})
    other = {**environ, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": "no"}
    [(name, problem)] = problems(other).items()
    assert name == "interpreter of workers"
    assert "no program no" in problem


def test_a_python_that_is_none_or_another_one_is_named(
    environ: dict[str, str], tmp_path: Path
) -> None:
    notebook = program(tmp_path / "jupyter", "echo 'no such command: -c' >&2; exit 2")
    [(name, problem)] = problems({**environ, "PYSPARK_DRIVER_PYTHON": notebook}).items()
    assert name == "interpreter of sources"
    assert "no such command: -c" in problem
    line = '{"python": "3.1.4", "executable": "x", "prefix": "x", "versions": {}, "sources": [], '
    other = program(tmp_path / "python3.1", f"echo '{line}\"broken\": {{}}}}'")
    environ = {**environ, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": other}
    [(name, problem)] = problems(environ).items()
    assert name == "interpreter of workers"
    assert "a Python other than" in problem


def test_a_broken_module_that_ends_sparks_search_is_named(
    environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "pyspark_ours.py").write_text("import a_module_that_is_not_there\n")
    problem = problems({**environ, "PYTHONPATH": str(tmp_path)})["upsertflow"]
    assert "pyspark_ours cannot be imported (ModuleNotFoundError" in problem


def test_a_place_that_cannot_be_written_is_named_and_columns_are_tried_at_their_root(
    environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    [(name, problem)] = problems(environ, str(tmp_path / "file" / "orders")).items()
    assert name == "write"
    assert "orders" in problem
    assert "write" not in problems(environ, f"{tmp_path}/lake/{{topic}}")
    assert not (tmp_path / "lake").exists()
    checks = {check.name: check for check in examine(environ, f"{tmp_path}/file/{{topic}}", {})}
    assert checks["write"].found == f"{tmp_path}/file"


def test_a_storage_that_replaces_commits_is_named(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()

    def replace(path: str, data: bytes) -> bool:
        """Take no notice of ``If-None-Match``."""
        store.put(path, data)
        return True

    monkeypatch.setattr(store, "put_if_absent", replace)
    monkeypatch.setattr("spark_upsert.cli.doctor.open_store", lambda *_: store)
    [problem] = problems(environ, "s3://lake/orders").values()
    assert "commits would be lost" in problem
    assert list(store.list("")) == []


def test_the_command_prints_each_remedy_once_and_exits_with_1(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", environ)
    result = CliRunner().invoke(upsertflow, ["doctor", str(tmp_path / "orders")])
    assert result.exit_code == 0, result.output
    assert "ok     upsertflow: " in result.stdout
    del environ["PYSPARK_PYTHON"]
    result = CliRunner().invoke(upsertflow, ["doctor"])
    assert result.exit_code == 1
    assert "WRONG  upsertflow: " in result.stdout
    assert result.stdout.count("export PYSPARK_PYTHON=") == 1
    assert CliRunner().invoke(upsertflow, ["doctor", "--json"]).exit_code == 1


GIT = '"vcs_info": {"vcs": "git", "commit_id": "1"}'
MONOREPO = (
    '{"url": "ssh://git@host/mono.git", "subdirectory": "py/upsertflow",'
    ' "vcs_info": {"vcs": "git", "requested_revision": "main", "commit_id": "1f"}}'
)
ARCHIVE = (
    '{"url": "https://host/x.tar.gz", "subdirectory": "py",'
    ' "archive_info": {"hash": "sha256=0a", "hashes": {"sha256": "0a", "md5": "1"}}}'
)
REVISION = '{"url": "https://h/x.git", "vcs_info": {"vcs": "hg", "requested_revision": "v1"}}'
OLDER = '{"url": "https://host/x.whl", "archive_info": {"hash": "sha256=0a"}}'
EDITABLE = '{"url": "file:///home/me/mono", "subdirectory": "py", "dir_info": {"editable": true}}'

RECORDS: dict[str, tuple[str | None, str]] = {
    "a release": (None, f"=={__version__}"),
    "a checkout": (
        '{"url": "file:///home/upsertflow", "dir_info": {}}',
        " @ file:///home/upsertflow",
    ),
    "a repository": (f'{{"url": "https://h/x.git", {GIT}}}', " @ git+https://h/x.git@1"),
    "a folder of a repository": (
        MONOREPO,
        " @ git+ssh://git@host/mono.git@1f#subdirectory=py/upsertflow",
    ),
    "a revision alone": (REVISION, " @ hg+https://h/x.git@v1"),
    "an archive": (ARCHIVE, " @ https://host/x.tar.gz#sha256=0a&subdirectory=py"),
    "an archive with an older record": (OLDER, " @ https://host/x.whl#sha256=0a"),
    "an archive without a hash": ('{"url": "https://h/x", "archive_info": {}}', " @ https://h/x"),
    "a folder of a checkout": (EDITABLE, " @ file:///home/me/mono/py"),
    "a password": (f'{{"url": "https://me:hush@h/x.git", {GIT}}}', " @ git+https://h/x.git@1"),
    "variables": (
        f'{{"url": "https://${{U}}:${{K}}@h/x", {GIT}}}',
        " @ git+https://${U}:${K}@h/x@1",
    ),
    "a damaged record": ("no JSON", f"=={__version__}"),
    "a record of another form": ('["url"]', f"=={__version__}"),
}


@pytest.mark.parametrize(("record", "named"), RECORDS.values(), ids=RECORDS)
def test_a_remedy_installs_what_is_installed_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: str | None, named: str
) -> None:
    about = tmp_path / f"upsertflow-{__version__}.dist-info"
    about.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: upsertflow\nVersion: {__version__}\n"
    (about / "METADATA").write_text(metadata)
    if record is not None:
        (about / "direct_url.json").write_text(record)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert requirement("spark") == f"upsertflow[spark]{named}"
