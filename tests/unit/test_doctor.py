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
from spark_upsert.cli.doctor import Check, examine, requirement
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


def problems(environ: Mapping[str, str], path: str | None = None) -> dict[str, Check]:
    return {check.name: check for check in examine(environ, path, {}) if check.problem}


def test_nothing_is_wrong_where_all_is_well(environ: dict[str, str], tmp_path: Path) -> None:
    assert problems(environ, str(tmp_path / "lake" / "orders")) == {}
    assert not (tmp_path / "lake").exists()
    driver = {**environ, "PYSPARK_DRIVER_PYTHON": sys.executable}
    assert problems(driver) == {}


def test_an_old_java_is_told(environ: dict[str, str], tmp_path: Path) -> None:
    program(tmp_path / "jdk" / "bin" / "java", "echo 'java version \"1.8.0_392\"' >&2")
    (found,) = problems(environ).values()
    assert found.name == "java"
    assert "Java 8" in (found.problem or "")


def test_without_a_setting_spark_takes_another_python(environ: dict[str, str]) -> None:
    del environ["PYSPARK_PYTHON"]
    found = problems(environ)
    assert {"pyarrow", "upsertflow"} <= found.keys()
    assert "DATA_SOURCE_NOT_FOUND" in (found["upsertflow"].problem or "")
    remedy = found["upsertflow"].remedies[0]
    assert (
        remedy == f"export PYSPARK_PYTHON={sys.executable} PYSPARK_DRIVER_PYTHON={sys.executable}"
    )


def test_the_drivers_setting_wins_as_it_does_in_spark(environ: dict[str, str]) -> None:
    found = problems({**environ, "PYSPARK_DRIVER_PYTHON": "python3"})
    assert "upsertflow" in found
    found = problems({**environ, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": "no"})
    assert found.keys() == {"interpreter of workers"}
    assert "no program no" in (found["interpreter of workers"].problem or "")


def test_a_program_that_is_no_python_is_told(environ: dict[str, str], tmp_path: Path) -> None:
    notebook = program(tmp_path / "jupyter", "echo 'no such command: -c' >&2; exit 2")
    found = problems({**environ, "PYSPARK_DRIVER_PYTHON": notebook})
    assert found.keys() == {"interpreter of sources"}
    assert "no such command: -c" in (found["interpreter of sources"].problem or "")


def test_workers_of_another_python_are_told(environ: dict[str, str], tmp_path: Path) -> None:
    line = '{"python": "3.1.4", "executable": "x", "prefix": "x", "versions": {}, "sources": [], '
    other = program(tmp_path / "python3.1", f"echo '{line}\"broken\": {{}}}}'")
    environ = {**environ, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": other}
    (found,) = problems(environ).values()
    assert found.name == "interpreter of workers"
    assert "a Python other than" in (found.problem or "")


def test_a_broken_module_that_ends_sparks_search_is_named(
    environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "pyspark_ours.py").write_text("import a_module_that_is_not_there\n")
    found = problems({**environ, "PYTHONPATH": str(tmp_path)})
    assert "pyspark_ours cannot be imported (ModuleNotFoundError" in (
        found["upsertflow"].problem or ""
    )


def test_a_place_that_cannot_be_written_is_told(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (found,) = problems(environ, str(tmp_path / "file" / "orders")).values()
    assert found.name == "write"
    assert "orders" in (found.problem or "")


def test_a_path_that_names_columns_is_tried_at_its_root(
    environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert "write" not in problems(environ, f"{tmp_path}/lake/{{topic}}")
    assert not (tmp_path / "lake").exists()
    found = problems(environ, f"{tmp_path}/file/{{topic}}")["write"]
    assert found.found == f"{tmp_path}/file"


class Replacing(MemoryStore):
    """A storage that takes no notice of ``If-None-Match``."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self.put(path, data)
        return True


def test_a_storage_that_replaces_commits_is_told(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Replacing()
    monkeypatch.setattr("spark_upsert.cli.doctor.open_store", lambda *_: store)
    (found,) = problems(environ, "s3://lake/orders").values()
    assert "commits would be lost" in (found.problem or "")
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


@pytest.mark.parametrize(
    ("told", "named"),
    [
        (None, f"upsertflow[spark]=={__version__}"),
        (
            '{"url": "file:///home/me/upsertflow", "dir_info": {}}',
            "upsertflow[spark] @ file:///home/me/upsertflow",
        ),
        (
            '{"url": "https://host/upsertflow.git", "vcs_info": {"vcs": "git", "commit_id": "1"}}',
            "upsertflow[spark] @ git+https://host/upsertflow.git@1",
        ),
        (
            (
                '{"url": "ssh://git@host/mono.git", "subdirectory": "py/upsertflow",'
                ' "vcs_info": {"vcs": "git", "requested_revision": "main", "commit_id": "1f"}}'
            ),
            "upsertflow[spark] @ git+ssh://git@host/mono.git@1f#subdirectory=py/upsertflow",
        ),
        (
            '{"url": "https://host/x.git", "vcs_info": {"vcs": "hg", "requested_revision": "v1"}}',
            "upsertflow[spark] @ hg+https://host/x.git@v1",
        ),
        (
            (
                '{"url": "https://host/x.tar.gz", "subdirectory": "py",'
                ' "archive_info": {"hash": "sha256=0a", "hashes": {"sha256": "0a", "md5": "1"}}}'
            ),
            "upsertflow[spark] @ https://host/x.tar.gz#sha256=0a&subdirectory=py",
        ),
        (
            '{"url": "https://host/x.whl", "archive_info": {"hash": "sha256=0a"}}',
            "upsertflow[spark] @ https://host/x.whl#sha256=0a",
        ),
        (
            '{"url": "https://host/x.whl", "archive_info": {}}',
            "upsertflow[spark] @ https://host/x.whl",
        ),
        (
            '{"url": "file:///home/me/mono", "subdirectory": "py", "dir_info": {"editable": true}}',
            "upsertflow[spark] @ file:///home/me/mono/py",
        ),
        (
            '{"url": "https://me:hush@host/x.git", "vcs_info": {"vcs": "git", "commit_id": "1"}}',
            "upsertflow[spark] @ git+https://host/x.git@1",
        ),
        (
            '{"url": "https://${USER}:${KEY}@h/x", "vcs_info": {"vcs": "git", "commit_id": "1"}}',
            "upsertflow[spark] @ git+https://${USER}:${KEY}@h/x@1",
        ),
        ("no JSON", f"upsertflow[spark]=={__version__}"),
        ('["url"]', f"upsertflow[spark]=={__version__}"),
    ],
    ids=[
        *("a release", "a checkout", "a repository", "a folder of a repository"),
        *("a revision alone", "an archive", "an archive with an older record"),
        *("an archive without a hash", "a folder of a checkout", "a password"),
        *("variables", "a damaged record", "a record of another form"),
    ],
)
def test_a_remedy_installs_what_is_installed_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str | None, named: str
) -> None:
    about = tmp_path / f"upsertflow-{__version__}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: upsertflow\nVersion: {__version__}\n"
    )
    if told is not None:
        (about / "direct_url.json").write_text(told)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert requirement("spark") == named
