"""The first hour: a demonstration, a project of one's own, and completion by TAB."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from spark_upsert.cli.commands.program import folders, json_option, upsertflow
from spark_upsert.cli.demo import ROWS, steps, what_next
from spark_upsert.cli.new_folder import as_new_folder, filled
from spark_upsert.cli.projects import KINDS, write_project
from spark_upsert.cli.render import escaped, print_data, print_rows


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
