"""Commands for the first hour: ``doctor``, ``demo``, ``init``, ``serve``, completion, errors.

Importing this module registers all commands.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from spark_upsert.cli import follow, maintenance, routed, tables
from spark_upsert.cli.demo import ROWS, steps, what_next
from spark_upsert.cli.doctor import examine, rendered, requirement
from spark_upsert.cli.error_codes import ENTRIES
from spark_upsert.cli.program import folders, json_option, storage_options, upsertflow
from spark_upsert.cli.render import escaped, escaped_lines, print_data, print_rows, print_text
from spark_upsert.cli.serve import CachedPoll, TableLines, server_of
from spark_upsert.errors import did_you_mean, is_url
from spark_upsert.store.local import translated

__all__ = ["KINDS", "follow", "maintenance", "routed", "tables", "upsertflow", "write_project"]


def as_code(ctx: click.Context, param: click.Parameter, text: str) -> str:
    """Validate an error code; accepts the brackets from its message."""
    code = text.strip("[] ").upper().replace("-", "_")
    if code not in ENTRIES:
        raise click.BadParameter(f"there is no error {code!r}. {did_you_mean(code, ENTRIES)}")
    return code


@upsertflow.command("explain-error")
@click.argument("code", callback=as_code)
@json_option
def explain_error(code: str, as_json: bool) -> None:
    """Explain an error CODE and its remedy. Messages show the code in brackets."""
    entry = {"code": code, **asdict(ENTRIES[code])}
    if as_json:
        print_rows([entry], entry, as_json=True)
    else:
        print_text(f"[{code}] {entry['means']}\n\nDo: {entry['do']}")


@upsertflow.command()
@click.argument("path", required=False, shell_complete=folders)
@storage_options
@json_option
@click.pass_context
def doctor(ctx: click.Context, path: str | None, storage: Mapping[str, str], as_json: bool) -> None:
    """Check whether Spark can find the source. Exits with 1 if it finds a problem.

    Checks Java, driver and worker interpreters, package versions, and Spark's search for sources;
    with PATH also whether a table there is writable. Run it on each node, in the environment that
    starts Spark.
    """
    checks = examine(os.environ, path, storage)
    if as_json:
        print_rows([asdict(check) for check in checks], asdict(checks[0]), as_json=True)
    else:
        click.echo(escaped_lines("\n".join(rendered(checks))))
    if any(check.problem for check in checks):
        ctx.exit(1)


@upsertflow.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", shell_complete=folders)
@storage_options
@click.option(
    "--pattern",
    default="*",
    show_default=True,
    help="Which folders below a PATH that is no table itself may be tables, such as 'eu/*'.",
)
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Tables.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to answer at.")
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True)
@json_option
def serve(
    paths: Sequence[str],
    storage: Mapping[str, str],
    pattern: str,
    limit: int,
    host: str,
    port: int,
    as_json: bool,
) -> None:
    """Show many tables on a web page. Interrupt the command to stop it.

    Each PATH is a table, or a folder containing tables. The page is read only, and visible to
    anyone with access to the address.
    """
    poll = CachedPoll(TableLines(paths, pattern=pattern, limit=limit, storage=storage))
    with suppress(KeyboardInterrupt), server_of(poll, host, port) as server:
        url = f"http://{host}:{server.server_address[1]}/"
        if as_json:
            print_rows([{"url": url}], (), as_json=True)
        else:
            click.echo(url)
        sys.stdout.flush()
        server.serve_forever()


def as_new_folder(ctx: click.Context, param: click.Parameter, folder: Path | None) -> Path | None:
    """Validate a new or empty folder."""
    if folder is not None and is_url(str(folder)):
        raise click.BadParameter("expected a folder of this machine, found a URL.")
    if folder is None or not folder.exists():
        return folder
    if not folder.is_dir():
        raise click.BadParameter(f"expected a new or an empty folder, found the file {folder}.")
    names = sorted(child.name for child in folder.iterdir())
    if names:
        raise click.BadParameter(
            f"expected a new or an empty folder, found {len(names)} files or folders in "
            f"{folder}, such as {names[0]!r}. Nothing is overwritten: name another one."
        )
    return folder


@contextmanager
def filled(folder: Path | None) -> Iterator[Path]:
    """Yield a folder accepted by `as_new_folder`, or a temporary one.

    Removes its contents on an error: the command can be repeated, for example after a full disk.
    """
    was_there = folder is not None and folder.exists()
    at = folder or Path(tempfile.mkdtemp(prefix="upsertflow-demo-"))
    try:
        yield at
    except BaseException:
        for child in at.iterdir() if at.is_dir() else ():
            if child.is_dir():
                shutil.rmtree(child, ignore_errors=True)
            else:
                child.unlink(missing_ok=True)
        if not was_there and at.is_dir():
            at.rmdir()
        raise


KINDS = ("debezium", "files", "kafka", "pipelines", "polars")
"""Project names."""

_PACKAGE = re.compile(r"^upsertflow\[(?P<extras>[a-z,]+)\]$", re.MULTILINE)
"""This package's line in a requirements.txt."""

_LAKE = re.compile(r"(?<=[\"/])/lake(?=[\"/])")
"""An absolute lake folder in a project, as text or in a URL."""

_GENERATED = {"__pycache__", ".pytest_cache", ".venv", "lake", "spark-warehouse"}
"""Files and folders generated by tools."""


def write_project(kind: str, directory: Path) -> list[str]:
    """Write a project into a new or empty folder; return its file names.

    Templates are in ``examples/projects`` in a checkout, or next to this module in a wheel. The
    requirement for this package and paths below ``/lake`` are replaced.
    """
    texts = sorted(_iter_texts(_projects_folder() / kind))
    with filled(directory):
        for name, text in texts:
            target = directory / name
            with translated("write", target):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(_adapt(text, target, directory), encoding="utf-8")
    return [name for name, _ in texts]


def _projects_folder() -> Traversable:
    """Return the folder with all project templates."""
    here = files(__name__.rpartition(".")[0])
    packed = here / "projects"
    return packed if packed.is_dir() else Path(str(here)).parents[1] / "examples" / "projects"


def _iter_texts(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, str]]:
    for child in folder.iterdir():
        if child.name in _GENERATED:
            continue
        if child.is_dir():
            yield from _iter_texts(child, f"{prefix}{child.name}/")
        else:
            yield f"{prefix}{child.name}", child.read_text(encoding="utf-8")


def _adapt(text: str, target: Path, directory: Path) -> str:
    if target.name == "requirements.txt":
        return _PACKAGE.sub(lambda found: requirement(found["extras"]), text)
    return _LAKE.sub(lambda _: f"{directory.resolve()}/lake", text)


@upsertflow.command()
@click.argument(
    "directory", required=False, type=click.Path(path_type=Path), callback=as_new_folder
)
@click.option(
    "--rows",
    type=click.IntRange(10, 10_000_000),
    default=ROWS,
    show_default=True,
    help="Orders that come first.",
)
@json_option
def demo(directory: Path | None, rows: int, as_json: bool) -> None:
    """Demonstrate upsertflow on a new table. Needs no Java, server or network.

    The table stays in DIRECTORY, or in a temporary folder, for you to inspect. Exits with 1 if a
    sum is wrong.
    """
    began_s = time.monotonic()
    is_right = True
    with filled(directory) as folder:
        path = str(folder.resolve() / "orders")
        for step in steps(path, rows, time.monotonic):
            is_right &= step.is_right
            if as_json:
                print_rows([asdict(step)], (), as_json=True)
                continue
            click.echo(escaped(f"{'' if step.is_right else 'WRONG: '}{step.title}"))
            if step.rows:
                print_data(step.rows, step.rows[0], as_json=False)
    seconds = time.monotonic() - began_s
    if as_json:
        print_rows([{"path": path, "seconds": seconds, "is_right": is_right}], (), as_json=True)
    else:
        click.echo(f"\nAll of it took {seconds:.1f} s. Type next:\n")
        for command, purpose in what_next(path):
            click.echo(escaped(f"  {command}  # {purpose}"))
    if not is_right:
        click.get_current_context().exit(1)


@upsertflow.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.argument(
    "directory", type=click.Path(path_type=Path), callback=as_new_folder, shell_complete=folders
)
@json_option
def init(kind: str, directory: Path | None, as_json: bool) -> None:
    """Write a runnable project into DIRECTORY. It has a job, its tests, a Makefile and a README.

    DIRECTORY must be new or empty: nothing is overwritten.
    """
    assert directory is not None
    names = write_project(kind, directory)
    if as_json:
        print_rows([{"directory": str(directory), "files": names}], (), as_json=True)
        return
    click.echo(escaped(f"{directory} has {', '.join(names)}. Type next:") + "\n")
    for command in (f"cd {shlex.quote(str(directory))}", "make install", "make test", "make run"):
        click.echo(escaped(f"  {command}"))


_COMPLETION_HELP = """\b
Type once:
  echo 'eval "$(upsertflow completion bash)"' >> ~/.bashrc
  echo 'eval "$(upsertflow completion zsh)"' >> ~/.zshrc
  upsertflow completion fish > ~/.config/fish/completions/upsertflow.fish
"""


@upsertflow.command(epilog=_COMPLETION_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script for SHELL. It completes commands, options and paths with TAB."""
    completion_class = get_completion_class(shell)
    assert completion_class is not None, shell
    # It asks the command itself at each TAB, so that it is never older than what is installed.
    click.echo(completion_class(upsertflow, {}, "upsertflow", "_UPSERTFLOW_COMPLETE").source())
