"""What is installed, under which names, and who imports whom: Spark and pickles rest on it."""

import ast
import importlib
import pkgutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path
from pickle import loads
from typing import Any

import pytest
from pyspark import cloudpickle

import pyspark_upsertflow
import spark_upsert
import spark_upsert_sink
from pyspark_upsertflow.registration import SOURCES
from spark_upsert.cli.commands import KINDS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "upsertflow": ROOT / "upsertflow",
    "spark_upsert": ROOT / "spark_upsert",
    "spark_upsert_sink": ROOT / "sink" / "spark_upsert_sink",
    "pyspark_upsertflow": ROOT / "datasource" / "pyspark_upsertflow",
}
ROOTS = [folder.parent for folder in PACKAGES.values()]

# `datasource` and `sink` are folders: through them a second copy of each class comes to life, whose
# pickle names a module that no worker has.
FOLDER_NAMES = {"datasource", "sink"}


def imported_names(file: Path) -> Iterator[tuple[int, str]]:
    """Yield line and top-level name of every absolute import, those inside functions included."""
    for node in ast.walk(ast.parse(file.read_text(), filename=str(file))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, (node.module or "").partition(".")[0]


def violations(folder: Path, forbidden: set[str]) -> list[str]:
    return [
        f"{file.relative_to(folder)}:{line} imports {name}"
        for file in sorted(folder.rglob("*.py"))
        for line, name in imported_names(file)
        if name in forbidden
    ]


def test_no_file_imports_a_source_root_by_its_folder_name(tmp_path: Path) -> None:
    folders = "spark_upsert sink datasource tests integration tools examples benchmarks"
    for folder in folders.split():
        assert violations(ROOT / folder, FOLDER_NAMES) == []
    hidden = "def f():\n    from sink.spark_upsert_sink import writer\n"
    (tmp_path / "sly.py").write_text(hidden)
    assert violations(tmp_path, FOLDER_NAMES) == ["sly.py:2 imports sink"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_with_a_module_is_a_typed_package(package: str) -> None:
    # A namespace package is importable from a checkout and not from a zip.
    folders = {file.parent for file in PACKAGES[package].rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []
    assert (PACKAGES[package] / "py.typed").exists()


def test_spark_sees_the_sources_and_no_other_package_of_ours() -> None:
    # The call that Spark's lookup worker makes; a package behind an import hook hides from it.
    seen = {module.name for module in pkgutil.iter_modules()}
    for format_name, module in SOURCES.items():
        assert module.partition(".")[0] in seen
        assert importlib.import_module(module).DefaultSource.name() == format_name
    assert [name for name in PACKAGES if name.startswith("pyspark_")] == ["pyspark_upsertflow"]


def test_the_source_is_pickled_by_reference() -> None:
    pickled = cloudpickle.dumps(pyspark_upsertflow.DefaultSource)  # type: ignore[no-untyped-call]
    assert len(pickled) < 200
    assert loads(pickled) is pyspark_upsertflow.DefaultSource


def test_no_module_is_known_by_its_folder_name() -> None:
    for package in (spark_upsert, spark_upsert_sink, pyspark_upsertflow):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    assert [name for name in sys.modules if name.partition(".")[0] in FOLDER_NAMES] == []


# Every user of any Python source pays for this import and, if it raises, loses every such source.
HEAVY = ("numpy", "pandas", "pyarrow", "spark_upsert", "spark_upsert_sink")


def run(program: str, *roots: Path) -> str:
    """Run a program in a fresh interpreter that looks for modules in `roots` first."""
    prelude = f"import sys; sys.path[:0] = {[str(root) for root in roots]!r}\n"
    command = [sys.executable, "-c", prelude + program]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_the_source_can_be_imported_where_pyarrow_cannot() -> None:
    program = f"""
for name in {HEAVY!r}:
    sys.modules[name] = None  # importing it raises
import pyspark_upsertflow
print(pyspark_upsertflow.DefaultSource.name())
"""
    assert run(program, *ROOTS) == "upsertflow"


def test_importing_the_source_loads_nothing_heavy() -> None:
    # pyspark itself may load numpy or pandas where they are installed; only what we add counts.
    program = f"""
import pyspark.sql.datasource, pyspark.sql.streaming.datasource, pyspark.sql.types
before = set(sys.modules)
import pyspark_upsertflow
print(sorted({{name.partition(".")[0] for name in set(sys.modules) - before}} & set({HEAVY!r})))
"""
    assert run(program, *ROOTS) == "[]"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    options = ["--target", "wheel", "--directory", str(target)]
    command = [sys.executable, "-m", "hatchling", "build", *options]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = target.glob("*.whl")
    return wheel


def test_the_wheel_holds_every_file_of_the_packages_and_no_more(wheel: Path) -> None:
    installed = set(zipfile.ZipFile(wheel).namelist())
    names = {name.partition("/")[0] for name in installed}
    shim = "pyspark_upsertflow_postgres.py"  # Spark finds one source per module.
    assert {name for name in names if not name.endswith(".dist-info")} == {*PACKAGES, shim}
    expected = {
        f"{package}/{file.relative_to(folder).as_posix()}"
        for package, folder in PACKAGES.items()
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert expected - installed == set()


def test_the_wheel_can_be_imported_without_being_unpacked(wheel: Path) -> None:
    # This is how `--packages` and `--py-files` bring it to a worker.
    program = """
import pyspark_upsertflow, spark_upsert, spark_upsert_sink, upsertflow
modules = (pyspark_upsertflow, spark_upsert, spark_upsert_sink, upsertflow)
print({module.__name__: module.__file__ for module in modules})
"""
    files = ast.literal_eval(run(program, wheel))
    assert files == {package: str(wheel / package / "__init__.py") for package in PACKAGES}


OF_THE_COMMAND = ("numpy", "numpy.libs", "pyarrow", "pyarrow.libs", "click", "rich", "pygments")
OFFLINE = """
import socket
def refuse(*_, **__): raise OSError("the network was asked for")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
"""


def test_the_wheel_shows_what_it_does_without_java_a_network_or_a_checkout(
    wheel: Path, tmp_path: Path
) -> None:
    """In an environment with what pip installs for `upsertflow[cli]`, linked, and nothing else."""
    environment = [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")]
    subprocess.run(environment, check=True)
    bin_ = tmp_path / "env" / "bin"
    install = [sys.executable, "-m", "pip", "--python", str(bin_ / "python"), "install"]
    options = ["--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*install, *options], check=True, capture_output=True)
    (site,) = (tmp_path / "env").glob("lib/*/site-packages")
    packages = Path(sysconfig.get_path("purelib"))
    for name in (*OF_THE_COMMAND, "markdown_it", "mdurl"):  # The last two are rich's.
        if (packages / name).exists():
            (site / name).symlink_to(packages / name)
    (site / "sitecustomize.py").write_text(OFFLINE)
    environ = {"PATH": str(bin_), "HOME": str(tmp_path)}

    def upsertflow(*arguments: str) -> str:
        command = [str(bin_ / "upsertflow"), *arguments]
        how: dict[str, Any] = {"cwd": tmp_path, "env": environ, "capture_output": True}
        result = subprocess.run(command, **how, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return str(result.stdout)

    shown = upsertflow("demo", "shown")
    assert "The table: the late rows lost, and the deleted one is gone." in shown
    assert "pip install polars deltalake" in shown
    for kind in KINDS:
        upsertflow("init", kind, kind)
        assert (tmp_path / kind / "README.md").is_file()
    assert (tmp_path / "shown" / "orders" / "_delta" / "_delta_log").is_dir()
