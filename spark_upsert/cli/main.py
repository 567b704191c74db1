"""The command itself: how it fails, and the arguments that its commands share.

Errors, a check of the machine, and the page of its tables.

A folder that a command fills: new or empty before, and as it was if that fails.

`upsertflow init`: projects that run as they are, written into a folder of the user's own.

They stand in `examples/projects` of a checkout, where they are linted and tested; a wheel brings
them along beside this module. A project is copied file by file but for two things: what pip is to
install is this very package, and paths below `/lake` lie in the project's own folder.

The first hour: a demonstration, a project of one's own, and completion by TAB.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem, get_completion_class

from spark_upsert._version import __version__
from spark_upsert.cli.demo import ROWS, steps, what_next
from spark_upsert.cli.doctor import examine, rendered, requirement
from spark_upsert.cli.error_codes import ENTRIES
from spark_upsert.cli.render import escaped, escaped_lines, print_data, print_rows
from spark_upsert.cli.serve import Looks, TableLines, server_of
from spark_upsert.core.durations import EXPECTED, try_parse_ms
from spark_upsert.errors import UpsertFlowError, did_you_mean, is_url, masked
from spark_upsert.options.declare import STORAGE_PREFIX
from spark_upsert.store.local import translated

_NAME = re.compile(r"\w[\w.-]*")

Command = TypeVar("Command", bound=Callable[..., Any])


class _Group(click.Group):
    """Shows our errors as sentences; a traceback is for bugs."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # The reader of the pipe has seen enough; click ends without a word.
        except (UpsertFlowError, OSError) as error:
            # What is wrong may be data, or the name of a file.
            click.echo(escaped_lines(masked(f"Error: {error}")), err=True)
            ctx.exit(1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="upsertflow")
def upsertflow() -> None:
    """Look at a table, and keep it in order. PATH is a folder or an object store's URL."""


_NEGATIVE = re.compile(r"-\.?[0-9]")


class ValuesCommand(click.Command):
    """A command whose arguments may be negative numbers, which Click reads as options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Pass the options first, and the other arguments after ``--``."""
        with_value = {
            name
            for option in self.params
            if isinstance(option, click.Option) and not option.is_flag
            for name in option.opts
        }
        options: list[str] = []
        values: list[str] = []
        rest = iter(args)
        for arg in rest:
            if arg == "--":
                values += rest
            elif not arg.startswith("-") or arg == "-" or _NEGATIVE.match(arg):
                values.append(arg)
            else:
                options += [arg, *islice(rest, int(arg in with_value))]
        return super().parse_args(ctx, [*options, "--", *values])


def as_duration(ctx: click.Context, param: click.Parameter, text: str | None) -> int | None:
    """Return a duration in milliseconds."""
    milliseconds = None if text is None else try_parse_ms(text)
    if text is not None and milliseconds is None:
        raise click.BadParameter(f"{text!r} is not {EXPECTED}.")
    return milliseconds


def as_pairs(
    ctx: click.Context, param: click.Parameter, pairs: Iterable[str]
) -> list[tuple[str, str]]:
    """Return names and values."""
    found: list[tuple[str, str]] = []
    for number, pair in enumerate(pairs, start=1):
        name, _, value = pair.partition("=")
        # A secret alone may end with '=', as base64 does.
        if not _NAME.fullmatch(name) or not value.strip("="):
            # Not shown: it may well be a secret.
            raise click.BadParameter(
                f"number {number} of them, of {len(pair)} characters, is not of the form "
                f"{param.metavar}."
            )
        found.append((name, value))
    return found


def _storage(ctx: click.Context, param: click.Parameter, pairs: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in as_pairs(ctx, param, pairs):
        key = name.lower().removeprefix(STORAGE_PREFIX)
        if key in found:
            raise click.BadParameter(f"'{key}' is given twice.")
        found[key] = value
    return found


def folders(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let a shell complete the path of a table by the folders that are there."""
    return [CompletionItem(incomplete, type="dir")]


storage_options = click.option(
    "-o",
    "--option",
    "storage",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_storage,
    help="An option of the object store, such as region=eu-west-1. May be repeated.",
)


def on_table(command: Command) -> Command:
    """Give a command the argument PATH and the options of the storage."""
    return click.argument("path", shell_complete=folders)(storage_options(command))


all_tables_option = click.option(
    "--all",
    "of_root",
    is_flag=True,
    help="PATH is the root of a stream into many tables: do it for each of them, and show those "
    "for which something was done. One that fails does not stop the others.",
)

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one object per line."
)

version_option = click.option(
    "--version", type=int, help="The table as of this version. Default: the newest."
)

filter_option = click.option(
    "--filter", "condition", help='SQL that is true for the rows: "id IN (1, 2)".'
)


def limit_option(default: int) -> Callable[[Command], Command]:
    """Return the option that bounds how many rows are shown."""
    return click.option(
        "--limit", type=click.IntRange(min=0), default=default, show_default=True, help="Rows."
    )


def as_code(ctx: click.Context, param: click.Parameter, text: str) -> str:
    """Return the code of an error, which may be given in the brackets of its message."""
    code = text.strip("[] ").upper().replace("-", "_")
    if code not in ENTRIES:
        raise click.BadParameter(f"there is no error {code!r}. {did_you_mean(code, ENTRIES)}")
    return code


@upsertflow.command("explain-error")
@click.argument("code", callback=as_code)
@json_option
def explain_error(code: str, as_json: bool) -> None:
    """Say what the CODE in the brackets of an error means, and what to do."""
    told = {"code": code, **asdict(ENTRIES[code])}
    if as_json:
        print_rows([told], told, as_json=True)
    else:
        click.echo(f"[{code}] {told['means']}\n\nDo: {told['do']}")


@upsertflow.command()
@click.argument("path", required=False, shell_complete=folders)
@storage_options
@json_option
@click.pass_context
def doctor(ctx: click.Context, path: str | None, storage: Mapping[str, str], as_json: bool) -> None:
    """Look for what keeps Spark from finding the source; exit with 1 if something is wrong.

    Looks at Java, at the interpreters of driver and workers, at versions, and at how Spark
    searches for sources; with PATH also at whether a table there can be written. Run it on each
    node, in the environment in which Spark is started.
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
    """Show many tables on one page in a browser, until it is interrupted.

    Each PATH is a table, or a folder of tables. The page only reads; whatever reaches
    the address can see it.
    """
    looks = Looks(TableLines(paths, pattern=pattern, limit=limit, storage=storage))
    with suppress(KeyboardInterrupt), server_of(looks, host, port) as server:
        url = f"http://{host}:{server.server_address[1]}/"
        if as_json:
            print_rows([{"url": url}], (), as_json=True)
        else:
            click.echo(url)
        sys.stdout.flush()
        server.serve_forever()


def as_new_folder(ctx: click.Context, param: click.Parameter, folder: Path | None) -> Path | None:
    """Return a folder that is not there yet, or has nothing in it."""
    if folder is not None and is_url(str(folder)):
        raise click.BadParameter("expected a folder of this machine, found a URL.")
    if folder is None or not folder.exists():
        return folder
    if not folder.is_dir():
        raise click.BadParameter(f"expected a new or an empty folder, found the file {folder}.")
    found = sorted(each.name for each in folder.iterdir())
    if found:
        raise click.BadParameter(
            f"expected a new or an empty folder, found {len(found)} files or folders in "
            f"{folder}, such as {found[0]!r}. Nothing is overwritten: name another one."
        )
    return folder


@contextmanager
def filled(folder: Path | None) -> Iterator[Path]:
    """Lend a folder that `as_new_folder` has let pass, or one for temporary files.

    What is in it goes again if filling it fails, so that a command whose disk was full can be typed
    again, as its hint says.
    """
    was_there = folder is not None and folder.exists()
    at = folder or Path(tempfile.mkdtemp(prefix="upsertflow-demo-"))
    try:
        yield at
    except BaseException:
        for each in at.iterdir() if at.is_dir() else ():
            if each.is_dir():
                shutil.rmtree(each, ignore_errors=True)
            else:
                each.unlink(missing_ok=True)
        if not was_there and at.is_dir():
            at.rmdir()
        raise


KINDS = ("debezium", "files", "kafka", "pipelines", "polars")
"""Names of the projects."""

_PACKAGE = re.compile(r"^upsertflow\[(?P<extras>[a-z,]+)\]$", re.MULTILINE)
"""The line of a requirements.txt that asks for us."""

_LAKE = re.compile(r"(?<=[\"/])/lake(?=[\"/])")
"""The folder of a project that must name it from the root, in a text or a URL."""

_MADE = {"__pycache__", ".pytest_cache", ".venv", "lake", "spark-warehouse"}
"""Names of what tools leave in a folder."""


def write_project(kind: str, directory: Path) -> list[str]:
    """Write a project into a folder that is empty, or not there; return the names of its files.

    Raises
    ------
    StorageError
        The file system refused. What was written is gone again: the command can be repeated.
    """
    texts = sorted(_texts(_home() / kind))
    with filled(directory):
        for name, text in texts:
            target = directory / name
            with translated("write", target):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(_own(text, target, directory), encoding="utf-8")
    return [name for name, _ in texts]


def _home() -> Traversable:
    """Return the folder of all projects."""
    here = files("spark_upsert.cli")
    packed = here / "projects"
    return packed if packed.is_dir() else Path(str(here)).parents[1] / "examples" / "projects"


def _texts(folder: Traversable, below: str = "") -> Iterator[tuple[str, str]]:
    for each in folder.iterdir():
        if each.name in _MADE:
            continue
        if each.is_dir():
            yield from _texts(each, f"{below}{each.name}/")
        else:
            yield f"{below}{each.name}", each.read_text(encoding="utf-8")


def _own(text: str, target: Path, directory: Path) -> str:
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
    """Show what upsertflow does, on a table that it makes: no Java, no server, no network.

    The table stays in DIRECTORY, or in a folder for temporary files, for you to look at. Exits
    with 1 if a sum is not what it has to be.
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
    """Write a project that runs as it is into DIRECTORY: a job, its tests, a Makefile, a README.

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


_WHERE = """\b
Type once:
  echo 'eval "$(upsertflow completion bash)"' >> ~/.bashrc
  echo 'eval "$(upsertflow completion zsh)"' >> ~/.zshrc
  upsertflow completion fish > ~/.config/fish/completions/upsertflow.fish
"""


@upsertflow.command(epilog=_WHERE)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what lets SHELL complete commands, options and paths by TAB."""
    made = get_completion_class(shell)
    assert made is not None, shell
    # It asks the command itself at each TAB, so that it is never older than what is installed.
    click.echo(made(upsertflow, {}, "upsertflow", "_UPSERTFLOW_COMPLETE").source())
