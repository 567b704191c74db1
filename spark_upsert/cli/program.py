"""The command group, its error output, and the commands' shared arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from spark_upsert._version import __version__
from spark_upsert.cli.render import WIDE, escaped_lines
from spark_upsert.core.durations import EXPECTED, try_parse_ms
from spark_upsert.errors import UpsertFlowError, masked
from spark_upsert.options.declare import STORAGE_PREFIX

_NAME = re.compile(r"\w[\w.-]*")

Command = TypeVar("Command", bound=Callable[..., Any])


_SECTIONS = {
    "Read and inspect a table": (
        *("info", "history", "epochs", "files", "consumers", "pressure"),
        *("explain", "get", "snapshot", "changes", "find"),
    ),
    "Change and maintain a table": (
        *("delete", "alter", "restore", "compact", "expire", "vacuum", "check"),
        *("index", "publish", "keep-history", "repair", "repair-clock"),
    ),
    "Many tables and databases": ("tables", "dead-letters", "replay", "follow", "wait", "serve"),
    "Start and get help": ("demo", "init", "doctor", "explain-error", "completion"),
}
"""The commands, in the order of the help."""


class _Group(click.Group):
    """Lists commands in sections; prints expected errors as sentences, and a traceback for bugs."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, with the first sentence of each command's help."""
        for title, names in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name, self.commands[name].get_short_help_str(limit=200)) for name in names]
                )

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
    """Inspect and maintain a table. PATH is a folder or an object store's URL."""


_NEGATIVE = re.compile(r"-\.?[0-9]")


class ValuesCommand(click.Command):
    """A command accepting negative numbers as arguments; Click would parse them as options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move options to the front and other arguments after ``--``."""
        with_value = {
            name
            for option in self.params
            if isinstance(option, click.Option) and not option.is_flag
            for name in option.opts
        }
        options: list[str] = []
        values: list[str] = []
        remaining = iter(args)
        for arg in remaining:
            if arg == "--":
                values += remaining
            elif not arg.startswith("-") or arg == "-" or _NEGATIVE.match(arg):
                values.append(arg)
            else:
                options += [arg, *islice(remaining, int(arg in with_value))]
        return super().parse_args(ctx, [*options, "--", *values])


def as_duration(ctx: click.Context, param: click.Parameter, text: str | None) -> int | None:
    """Parse a duration in milliseconds."""
    milliseconds = None if text is None else try_parse_ms(text)
    if text is not None and milliseconds is None:
        raise click.BadParameter(f"{text!r} is not {EXPECTED}.")
    return milliseconds


def as_pairs(
    ctx: click.Context, param: click.Parameter, pairs: Iterable[str]
) -> list[tuple[str, str]]:
    """Parse name-value pairs; errors do not show the text, which may be a secret."""
    split_pairs: list[tuple[str, str]] = []
    for number, pair in enumerate(pairs, start=1):
        name, _, value = pair.partition("=")
        # A secret alone may end with '=', as base64 does.
        if not _NAME.fullmatch(name) or not value.strip("="):
            # Not shown: it may well be a secret.
            raise click.BadParameter(
                f"number {number} of them, of {len(pair)} characters, is not of the form "
                f"{param.metavar}."
            )
        split_pairs.append((name, value))
    return split_pairs


def _storage(ctx: click.Context, param: click.Parameter, pairs: Iterable[str]) -> dict[str, str]:
    storage: dict[str, str] = {}
    for name, value in as_pairs(ctx, param, pairs):
        key = name.lower().removeprefix(STORAGE_PREFIX)
        if key in storage:
            raise click.BadParameter(f"'{key}' is given twice.")
        storage[key] = value
    return storage


def folders(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let shells complete a table path with existing folders."""
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
    """Add the argument PATH and storage options to a command."""
    return click.argument("path", shell_complete=folders)(storage_options(command))


all_tables_option = click.option(
    "--all",
    "of_root",
    is_flag=True,
    help="PATH is the root of a stream into many tables: do it for each of them, and show those "
    "for which something was done. One that fails does not stop the others.",
)


def _set_wide(ctx: click.Context, param: click.Parameter, is_wide: bool) -> None:
    ctx.meta[WIDE] = is_wide


def json_option(command: Command) -> Command:
    """Add ``--json``, and ``--wide``, which `render` reads from the context."""
    with_wide = click.option(
        "--wide",
        is_flag=True,
        expose_value=False,
        callback=_set_wide,
        help="Print all columns and complete ids, whatever the terminal's width.",
    )(command)
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")(
        with_wide
    )


version_option = click.option(
    "--version", type=int, help="The table as of this version. Default: the newest."
)

filter_option = click.option(
    "--filter", "condition", help='SQL that is true for the rows: "id IN (1, 2)".'
)


def limit_option(default: int) -> Callable[[Command], Command]:
    """Return an option limiting displayed rows."""
    return click.option(
        "--limit", type=click.IntRange(min=0), default=default, show_default=True, help="Rows."
    )
