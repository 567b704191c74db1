"""The class that ``register`` gives to Spark finds its package where nobody prepared the way."""

import subprocess
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from pyspark_upsertflow.registration import by_value, find_parallelism

REAL = """
class DefaultSource:
    def __init__(self, options): self.options = options
    def schema(self): return f"{__file__} {self.options['path']}"
    def reader(self, schema): return self.options
    streamReader = reader
    def writer(self, schema, overwrite): return self.options
    streamWriter = writer
"""

# A worker: `root` is where Spark says its files are, and an installed package can be hidden.
WORKER = """
import importlib.machinery, os, pickle, sys
from pyspark import SparkFiles, cloudpickle

pickled, root, installed = sys.argv[1:]
SparkFiles._root_directory, SparkFiles._is_running_on_worker = root, True

class OnlyInArchives:
    def find_spec(name, path=None, target=None):
        if name == "pyspark_upsertflow":
            archives = filter(os.path.isfile, sys.path)
            spec = importlib.machinery.PathFinder.find_spec(name, list(archives))
            if spec is None:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return spec

if installed == "hidden":
    sys.meta_path.insert(0, OnlyInArchives)

source = pickle.load(open(pickled, "rb"))({"path": "/lake"})
source = pickle.loads(cloudpickle.dumps(source))
assert "pyspark_upsertflow" not in sys.modules, "to travel must import nothing"
print(source.name(), source.schema())
"""


def work(
    folder: Path, archive: str | None, root: Path, installed: str = "hidden"
) -> subprocess.CompletedProcess[str]:
    pickled = folder / "source.pickle"
    pickled.write_bytes(cloudpickle.dumps(by_value(archive)))  # type: ignore[no-untyped-call]
    return subprocess.run(
        [sys.executable, "-c", WORKER, pickled, root, installed],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def write_archive(file: Path) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("pyspark_upsertflow/__init__.py", "")
        archive.writestr("pyspark_upsertflow/source.py", REAL)
    return str(file)


@pytest.mark.parametrize(
    ("place", "root", "installed"),
    [
        pytest.param("files", "files", "hidden", id="the files of the session"),
        pytest.param("files", "files/streaming_job", "hidden", id="the folder above"),
        pytest.param("driver", "files", "hidden", id="where the driver has it"),
        pytest.param(".", "files", "hidden", id="the working folder"),
        # What the driver imported is what the workers must import, else their pickles do not fit.
        pytest.param("driver", "files", "visible", id="before an installed package"),
    ],
)
@pytest.mark.sweep(1)
def test_the_archive_is_found_in(tmp_path: Path, place: str, root: str, installed: str) -> None:
    archive = write_archive(tmp_path / place / "upsertflow.jar")
    driver = str(tmp_path / "driver" / "upsertflow.jar")
    # The class travels with every query. The engine does not.
    assert len(cloudpickle.dumps(by_value(driver))) < 8_192  # type: ignore[no-untyped-call]
    done = work(tmp_path, driver, tmp_path / root, installed)
    assert done.returncode == 0, done.stderr
    name, file, path = done.stdout.split()
    assert (name, path) == ("upsertflow", "/lake")
    assert Path(tmp_path, file).resolve().is_relative_to(archive)


def test_a_package_that_is_nowhere_is_an_error_with_a_hint(tmp_path: Path) -> None:
    done = work(tmp_path, "/gone/upsertflow.jar", tmp_path)
    assert "ModuleNotFoundError" in done.stderr
    assert "/gone/upsertflow.jar" in done.stderr
    assert "\n\nHint: run `pip install upsertflow`" in done.stderr


PATH = {"path": "/lake"}


@pytest.mark.parametrize(
    ("given", "parallelism", "read"),
    [
        (PATH, 7, {**PATH, "parallelism": "7"}),
        (PATH, None, PATH),
        ({**PATH, "Parallelism": "3"}, 7, {**PATH, "Parallelism": "3"}),
    ],
    ids=["the session's", "none, as the session does not know", "the user's"],
)
def test_a_read_takes_the_parallelism_and_a_write_does_not(
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
    parallelism: int | None,
    read: dict[str, str],
) -> None:
    package = types.ModuleType("pyspark_upsertflow.source")
    exec(REAL, package.__dict__)
    monkeypatch.setitem(sys.modules, "pyspark_upsertflow.source", package)
    source: Any = by_value(None, parallelism)(given)
    assert source.reader(None) == source.streamReader(None) == read
    assert source.writer(None, False) == source.streamWriter(None, False) == given


class Context:
    """As much of a session's context as tells its cores."""

    def __init__(self, master: str, known: int, **configured: str) -> None:
        self.master = master
        self.defaultParallelism = known
        self._configured = {f"spark.{k.replace('_', '.')}": v for k, v in configured.items()}

    def getConf(self) -> dict[str, str]:
        return self._configured


EXECUTORS = {"executor_instances": "10", "executor_cores": "4"}


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        pytest.param(Context("local[2]", 2), 2, id="threads of a local session"),
        pytest.param(Context("spark://host", 48), 48, id="executors that have come"),
        pytest.param(Context("yarn", 2, **EXECUTORS), 40, id="yet to come"),
        pytest.param(Context("yarn", 2, **EXECUTORS, task_cpus="2"), 20, id="tasks of two cores"),
        pytest.param(Context("spark://host", 2), None, id="nothing is known yet"),
        pytest.param(None, None, id="a session of Spark Connect"),
    ],
)
def test_how_many_tasks_a_session_runs_at_once(context: Context | None, expected: int) -> None:
    session: Any = types.SimpleNamespace(**({} if context is None else {"sparkContext": context}))
    assert find_parallelism(session) == expected


def test_a_client_of_spark_connect_has_no_files_of_a_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # `pyspark-client` lacks the name, and an installed package needs none.
    monkeypatch.delattr("pyspark.SparkFiles")
    source: Any = by_value(None)({"path": "/lake/orders"})
    assert type(source.real()).__name__ == "DefaultSource"
