"""Errors, a check of the machine, and the page of its tables."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict

import click

from spark_upsert.cli.commands.program import folders, json_option, storage_options, upsertflow
from spark_upsert.cli.doctor import examine, rendered
from spark_upsert.cli.error_codes import ENTRIES
from spark_upsert.cli.render import escaped_lines, print_rows
from spark_upsert.cli.serve import Looks, server_of
from spark_upsert.cli.table_lines import TableLines
from spark_upsert.errors import did_you_mean


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
