"""The commands: each opens a table, calls one method of it, and prints what it returns."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import islice
from typing import Any, TypeVar

import click
import pyarrow as pa

from spark_upsert._version import __version__
from spark_upsert.cli.doctor import examine, rendered
from spark_upsert.cli.find_value import sightings
from spark_upsert.cli.mirrors import follow
from spark_upsert.cli.parking import SHOWN, UNPARKED, advice_of, for_people, line_of, open_root
from spark_upsert.cli.render import (
    escaped,
    escaped_lines,
    heading,
    pretty,
    print_data,
    print_facts,
    print_rows,
    screen,
)
from spark_upsert.cli.routed import (
    NEVER_WHOLE,
    THREADS,
    TableWork,
    for_each_table,
    list_tables,
    open_in,
)
from spark_upsert.cli.serve import Looks, server_of
from spark_upsert.cli.top import Top
from spark_upsert.errors import (
    OptionError,
    SchemaError,
    UpsertFlowError,
    about,
    as_flag,
    did_you_mean,
    masked,
)
from spark_upsert.metadata import VIEWS, summary
from spark_upsert.mirror.check import check_mirror
from spark_upsert.mirror.facts import default_mirror, facts_below
from spark_upsert.model.durations import EXPECTED, render_ms, render_time, try_parse_ms
from spark_upsert.model.names import split_names
from spark_upsert.options.inputs import InputOptions, ReadPlan
from spark_upsert.options.parse import STORAGE_PREFIX
from spark_upsert.options.read import Metadata
from spark_upsert.payloads.ddl import parse_schema
from spark_upsert.routed.park import ParkedTable
from spark_upsert.routed.unpark import Unparked, drop, unpark
from spark_upsert.store.resolve import open_store
from spark_upsert.streams.inputs.table import open_table
from spark_upsert.streams.planner.explain_read import explain_read
from spark_upsert.streams.planner.kinds import with_found_inputs
from spark_upsert.table.changes.modes import ChangeOptions, ValidBy
from spark_upsert.table.entries.counters import Counters
from spark_upsert.table.keep_history import keep_history as keep
from spark_upsert.table.log.indexed import INDEX_BY
from spark_upsert.table.published import Published
from spark_upsert.table.retention.policy import GRACE_MS, SAFETY_MS
from spark_upsert.table.table import Table
from spark_upsert.table.versions import EARLIEST, first_wanted, upper_wanted
from spark_upsert.views.groups.settled import check_settled

_NAME = re.compile(r"\w[\w.-]*")

Command = TypeVar("Command", bound=Callable[..., Any])

_EXAMPLES = 5
"""Files that are shown by name where there may be thousands."""

_REASONS = 3
"""Why tables keep their past: each may have a consumer of its own."""


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


def _duration(ctx: click.Context, param: click.Parameter, text: str | None) -> int | None:
    """Return a duration in milliseconds."""
    milliseconds = None if text is None else try_parse_ms(text)
    if text is not None and milliseconds is None:
        raise click.BadParameter(f"{text!r} is not {EXPECTED}.")
    return milliseconds


def _pairs(
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
    for name, value in _pairs(ctx, param, pairs):
        key = name.lower().removeprefix(STORAGE_PREFIX)
        if key in found:
            raise click.BadParameter(f"'{key}' is given twice.")
        found[key] = value
    return found


_storage_options = click.option(
    "-o",
    "--option",
    "storage",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_storage,
    help="An option of the object store, such as region=eu-west-1. May be repeated.",
)


def _on_table(command: Command) -> Command:
    """Give a command the argument PATH and the options of the storage."""
    return click.argument("path")(_storage_options(command))


_all_tables = click.option(
    "--all",
    "of_root",
    is_flag=True,
    help="PATH is the root of a stream into many tables: do it for each of them, and show those "
    "for which something was done. One that fails does not stop the others.",
)

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")


_as_of = click.option(
    "--version", type=int, help="The table as of this version. Default: the newest."
)


_filter = click.option(
    "--filter", "condition", help='SQL that is true for the rows: "id IN (1, 2)".'
)


def _keys(names: tuple[str, ...], values: tuple[str, ...]) -> dict[str, pa.Array]:
    """Return keys as columns of texts: several of one column, or one of several."""
    if len(names) == 1:
        return {names[0]: pa.array(values, pa.string())}
    if len(names) != len(values):
        raise SchemaError(
            f"the key is {', '.join(names)}: expected {len(names)} values, found {len(values)}.",
            hint="give a value for each; of several keys: --filter.",
        )
    return {name: pa.array([value]) for name, value in zip(names, values, strict=True)}


def _limit(default: int) -> Callable[[Command], Command]:
    return click.option(
        "--limit", type=click.IntRange(min=0), default=default, show_default=True, help="Rows."
    )


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        values = [_values(column) for column in batch.columns]
        for row in zip(*values, strict=True):
            yield dict(zip(batch.schema.names, row, strict=True))


def _values(column: pa.Array) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except OverflowError:  # A date or time of a year that Python does not know, and Spark does.
        values = column.cast(pa.string()).to_pylist()
    return values


def _keep_in_order(
    path: str,
    storage: Mapping[str, str],
    work: TableWork,
    *,
    of_root: bool,
    as_json: bool,
    is_news: Callable[[Mapping[str, Any]], object],
    quiet: str = "unchanged",
    threads: int = 1,
) -> None:
    """Work on a table, or on each below a root, and print what was done; exit with 1 on failures.

    Parameters
    ----------
    is_news : callable
        Takes what `work` returned; says whether anything was done, so that the table is shown.
    quiet : str
        The word for the tables that are not shown.
    """
    if of_root:
        failed = _work_on_all(path, storage, work, as_json, is_news, quiet, threads)
    else:
        facts = work(open_in(path, storage))
        failed = not facts.get("is_sound", True)
        print_facts(facts, as_json=as_json)
    if failed:
        click.get_current_context().exit(1)


def _work_on_all(
    root: str,
    storage: Mapping[str, str],
    work: TableWork,
    as_json: bool,
    is_news: Callable[[Mapping[str, Any]], object],
    quiet: str,
    threads: int,
) -> bool:
    """Return whether a table failed, or is not sound."""
    count = failed = 0
    shown: list[dict[str, Any]] = []
    kept_by = Counter[str]()
    for done in for_each_table(root, storage, work, threads=threads):
        count += 1
        failed += done.problem is not None or not done.facts.get("is_sound", True)
        if done.problem is None and not is_news(done.facts):
            if (reason := done.facts.get("bound_by")) is not None:
                kept_by[reason] += 1
            continue
        shown.append({"table": done.table, **done.facts, "problem": done.problem})
        if as_json:
            print_rows(shown[-1:], (), as_json=True)
    if shown and not as_json:
        names = list(dict.fromkeys(name for line in shown for name in line))
        print_rows([dict.fromkeys(names) | line for line in shown], names, as_json=False)
    rest = {"shown": len(shown)} if as_json else {quiet: count - len(shown)}
    total: dict[str, Any] = {"tables": count, **rest, "failed": failed}
    if kept_by:  # Else the user would not know why nothing was done.
        few = kept_by.most_common(_REASONS)
        total["bound_by"] = "; ".join(f"{why} ({tables} tables)" for why, tables in few)
    print_facts({"table": "", **total} if as_json else total, as_json=as_json)
    return failed > 0


# -- looking -------------------------------------------------------------------------


@upsertflow.command()
@_on_table
@_as_json
def info(path: str, storage: Mapping[str, str], as_json: bool) -> None:
    """Show a table in a few numbers."""
    table = open_in(path, storage)
    facts, mirror = summary(table), facts_below(table)
    schema = table.log.head().schema
    print_facts(
        {
            **asdict(facts),
            "write_amplification": facts.write_amplification,
            "keys": list(schema.keys),
            "sequence_by": [field.name for field in schema.order],
            "scope": schema.scope.value,
            "columns": {field.name: str(field.type) for field in schema.columns},
            "properties": dict(table.log.head().properties),
            **({} if mirror is None else {"mirror": _nested(asdict(mirror), as_json=as_json)}),
        },
        as_json=as_json,
    )


def _nested(facts: Mapping[str, Any], *, as_json: bool) -> Mapping[str, Any]:
    """Return facts that stand within others: for people in words, and without what is not known."""
    if as_json:
        return facts
    return {
        heading(name): pretty(name, value) for name, value in facts.items() if value is not None
    }


def _show(
    metadata: Metadata, path: str, storage: Mapping[str, str], limit: int | None, *, as_json: bool
) -> None:
    """Print the last rows of a view."""
    view = VIEWS[metadata]
    batches = view.read(open_in(path, storage))
    rows = [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]
    shown = rows if limit is None else rows[max(0, len(rows) - limit) :]
    print_rows(shown, view.schema.names, as_json=as_json)


@upsertflow.command()
@_on_table
@_limit(20)
@_as_json
def history(path: str, storage: Mapping[str, str], limit: int, as_json: bool) -> None:
    """Show the newest versions: what each wrote, and what the table was behind it."""
    _show(Metadata.HISTORY, path, storage, limit, as_json=as_json)


@upsertflow.command()
@_on_table
@_limit(20)
@_as_json
def epochs(path: str, storage: Mapping[str, str], limit: int, as_json: bool) -> None:
    """Show the counters of the newest epochs. Counters that are zero everywhere are left out."""
    _show(Metadata.EPOCHS, path, storage, limit, as_json=as_json)


@upsertflow.command()
@_on_table
@_as_json
def files(path: str, storage: Mapping[str, str], as_json: bool) -> None:
    """Show the files that the newest version consists of."""
    _show(Metadata.FILES, path, storage, None, as_json=as_json)


@upsertflow.command()
@_on_table
@_as_of
@click.option("--filter", "condition", help='SQL that is true for the rows: "id IN (1, 2)".')
@_limit(20)
@_as_json
def snapshot(
    path: str,
    storage: Mapping[str, str],
    version: int | None,
    condition: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show some rows of the table, in no particular order."""
    found = open_in(path, storage).scan(filter=condition, version=version)
    print_data(list(islice(_rows(found), limit)), found.schema.names, as_json=as_json)


@upsertflow.command()
@_on_table
@click.argument("values", metavar="KEY...", nargs=-1, required=True)
@_as_of
@_as_json
def get(
    path: str,
    storage: Mapping[str, str],
    values: tuple[str, ...],
    version: int | None,
    as_json: bool,
) -> None:
    """Show the rows of some keys.

    KEY is one key or several, where the key is one column. Of several columns it is one key: a
    value for each of them, in their order.
    """
    table = open_in(path, storage)
    keys = _keys(table.schema.keys, values)
    found = table.get(keys, version=version)
    print_data(list(_rows(found.to_batches())), found.column_names, as_json=as_json)


@upsertflow.command()
@_on_table
@click.argument("values", metavar="[KEY]...", nargs=-1)
@_filter
@_as_json
def delete(
    path: str,
    storage: Mapping[str, str],
    values: tuple[str, ...],
    condition: str | None,
    as_json: bool,
) -> None:
    """Delete the rows of some keys, or those of a filter, as one version.

    KEY is as of `get`. What lies in older versions goes by `expire` and `vacuum`.
    """
    table = open_in(path, storage)
    keys = _keys(table.schema.keys, values) if values else None
    commit = table.delete(keys, filter=condition)
    rows = 0 if commit is None else Counters.from_json(commit.counters).deletes
    facts = {"deleted": rows, "version": None if commit is None else commit.version}
    print_facts(facts, as_json=as_json)


@upsertflow.command()
@_on_table
@click.option("--from", "lower", type=int, help="The first version. Default: the oldest.")
@click.option("--to", "last", type=int, help="The last version. Default: the newest.")
@_limit(20)
@_as_json
def changes(
    path: str,
    storage: Mapping[str, str],
    lower: int | None,
    last: int | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show what some versions changed."""
    table = open_in(path, storage)
    schema = table.log.head().schema
    options = ChangeOptions(columns=tuple(schema.columns.names))
    first = first_wanted(table.log, version=EARLIEST if lower is None else lower, name="--from")
    upper = upper_wanted(table.log, version=last, name="--to")
    batches = table.iter_changes(first or 0, upper, options)
    print_data(list(islice(_rows(batches), limit)), schema.changelog.names, as_json=as_json)


@upsertflow.command()
@click.argument("path")
@click.argument("value")
@_storage_options
@click.option("--column", help="Look at this column alone, and not at bytes.")
@_as_json
def find(
    path: str, value: str, storage: Mapping[str, str], column: str | None, as_json: bool
) -> None:
    """Show which files below PATH hold VALUE, whatever version they are of; exit with 1 if any do.

    PATH is a table, the root of many, or any other folder. Every file is read. Texts are found
    within longer ones, all other values where they are equal.
    """
    found = [asdict(each) for each in sightings(open_store(path, storage), value, column=column)]
    if found or as_json:
        print_rows(found, ("path", "column", "values"), as_json=as_json)
    if found:
        click.get_current_context().exit(1)
    if not as_json:
        print_facts({"files_with_it": 0}, as_json=False)


@upsertflow.command()
@click.argument("path", required=False)
@_storage_options
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=PATH",
    callback=_pairs,
    help="A table of a read of several, instead of PATH. May be repeated.",
)
@click.option(
    "--merge", help="How inputs are merged: interleave (the default), concat, roundrobin."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="OPTION=VALUE",
    callback=_pairs,
    help="Any option of the read, as Spark is told it. May be repeated.",
)
@click.option("--change-feed", is_flag=True, help="Explain a read of changes, not of rows.")
@click.option("--version", help="The rows as of this version. Default: the newest.")
@click.option("--starting-version", help="Changes from this version on; also earliest, latest.")
@click.option("--ending-version", help="Changes up to this version. Default: the newest.")
@click.option("--consumer", metavar="NAME", help="Changes that this consumer has yet to read.")
@click.option("--columns", help="Columns, separated by commas. Default: all.")
@click.option("--mode", help="none, dropCarryovers (the default) or netChanges.")
@click.option("--splits", help="How many splits. Default: by size, and by this machine's cores.")
def explain(
    path: str | None,
    storage: Mapping[str, str],
    inputs: Sequence[tuple[str, str]],
    merge: str | None,
    settings: Sequence[tuple[str, str]],
    change_feed: bool,
    version: str | None,
    starting_version: str | None,
    ending_version: str | None,
    consumer: str | None,
    columns: str | None,
    mode: str | None,
    splits: str | None,
) -> None:
    """Show what a read will do: versions, files, look-ups and splits. Reads the log alone.

    For several inputs it shows how they are merged, what is read of each, and the tasks.
    """
    if consumer is not None and starting_version is not None:
        raise click.UsageError("Say where changes begin once: --consumer or --starting-version.")
    of_changes = (starting_version, ending_version, mode, consumer)
    given = {
        "path": path,
        "inputs": ",".join(name for name, _ in inputs) or None,
        **{f"input.{name}.path": text for name, text in inputs},
        "merge": merge,
        "readChangeFeed": "true" if change_feed or any(of_changes) else None,
        "versionAsOf": version,
        "startingVersion": starting_version,
        "endingVersion": ending_version,
        "columns": columns,
        "deduplicationMode": mode,
        "splits": splits,
        **{f"{STORAGE_PREFIX}{name}": value for name, value in storage.items()},
    }
    options = {name: text for name, text in given.items() if text is not None}
    for name, text in settings:
        if name in options:  # Alike but for case is for the parser to see.
            raise click.UsageError(f"'{name}' is given twice.")
        options[name] = text
    plan = ReadPlan.parse(options)
    click.echo(escaped_lines(explain_read(plan if consumer is None else _behind(plan, consumer))))


def _behind(plan: ReadPlan, consumer: str) -> ReadPlan:
    """Return a plan of tables that begin where a consumer has yet to read."""
    inputs: list[InputOptions] = []
    for each in with_found_inputs(plan).inputs:
        with about("input", each.name):
            behind = {
                "startingVersion": str(_version_behind(open_table(each.of_table()), consumer))
            }
        inputs.append(replace(each, own={**each.own, **behind}))
    return replace(plan, inputs=tuple(inputs))


def _version_behind(table: Table, consumer: str) -> int:
    """Return the first version with changes that a consumer has yet to read."""
    held = {lease.consumer: lease.version for lease in table.consumers()}
    if consumer not in held:
        raise OptionError.invalid(
            "--consumer",
            consumer,
            "the name of a lease",
            hint="'upsertflow consumers' shows the consumers that hold one.",
        )
    return held[consumer] + 1


@upsertflow.command()
@_on_table
@click.option("--hold", metavar="NAME", help="Take a lease on all versions, as for a backup.")
@click.option("--release", metavar="NAME", help="Drop the lease of a consumer that is no more.")
@_as_json
def consumers(
    path: str, storage: Mapping[str, str], hold: str | None, release: str | None, as_json: bool
) -> None:
    """Show the consumers with a lease, on which version, and until when."""
    table = open_in(path, storage)
    if hold is not None:
        table.hold_all(hold)
    if release is not None and not table.release(release):
        held = [lease.consumer for lease in table.consumers()]
        raise OptionError(
            f"no consumer '{release}' has a lease on '{table.store.url}'.",
            hint=did_you_mean(release, held)
            if held
            else "there is none to release: leave it out, and look with 'upsertflow consumers'.",
            consumer=release,
        )
    _show(Metadata.CONSUMERS, path, storage, None, as_json=as_json)


@upsertflow.command()
@_on_table
@_as_json
def pressure(path: str, storage: Mapping[str, str], as_json: bool) -> None:
    """Show how far consumers are behind, against the caps, and which ones hold up writers."""
    _show(Metadata.PRESSURE, path, storage, None, as_json=as_json)


@upsertflow.command()
@_on_table
@_all_tables
@_as_json
def check(path: str, storage: Mapping[str, str], of_root: bool, as_json: bool) -> None:
    """Verify every file and every number; exit with 1 if something is wrong."""

    def work(table: Table) -> dict[str, Any]:
        report = table.check()
        found = (*report.findings, *check_settled(table), *check_mirror(default_mirror(table)))
        findings = [str(finding) for finding in found]
        return {"is_sound": not findings, **asdict(report), "findings": findings}

    _keep_in_order(
        path,
        storage,
        work,
        of_root=of_root,
        as_json=as_json,
        is_news=lambda facts: not facts["is_sound"] or NEVER_WHOLE in facts,
        quiet="sound",
    )


@upsertflow.command()
@click.argument("path", required=False)
@_storage_options
@_as_json
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
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@_storage_options
@click.option(
    "--pattern",
    default="*",
    show_default=True,
    help="Which folders below a PATH that is no table itself may be tables, such as 'eu/*'.",
)
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Tables.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Look once.")
@_as_json
@click.pass_context
def top(
    ctx: click.Context,
    paths: Sequence[str],
    storage: Mapping[str, str],
    pattern: str,
    limit: int,
    interval: float,
    once: bool,
    as_json: bool,
) -> None:
    """Show many tables, again and again: size, age, lagging consumers, priority, pressure.

    Each PATH is a table, or a folder of tables. A table that cannot be read is shown with what is
    wrong. In a pipe the lines of each look follow those of the look before.
    """
    view = Top(paths, pattern=pattern, limit=limit, storage=storage)
    with suppress(KeyboardInterrupt), screen() as show:
        for lines in view.looks(interval):
            if not lines:
                click.echo(f"There is no table at or below {', '.join(paths)}.", err=True)
                ctx.exit(1)
            more = f"and {view.left_out:,} more tables (--limit)" if view.left_out else ""
            if as_json:
                print_rows([line.to_json() for line in lines], (), as_json=True)
            else:
                show([line.for_people() for line in lines], more)
            if once:
                return
            sys.stdout.flush()


@upsertflow.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@_storage_options
@click.option("--pattern", default="*", show_default=True, help="As of top.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Tables.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to answer at.")
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True)
def serve(
    paths: Sequence[str],
    storage: Mapping[str, str],
    pattern: str,
    limit: int,
    host: str,
    port: int,
) -> None:
    """Show many tables on one page in a browser, until it is interrupted.

    Each PATH is a table, or a folder of tables, as of top. The page only reads; whatever reaches
    the address can see it.
    """
    looks = Looks(Top(paths, pattern=pattern, limit=limit, storage=storage))
    with suppress(KeyboardInterrupt), server_of(looks, host, port) as server:
        click.echo(f"http://{host}:{server.server_address[1]}/")
        server.serve_forever()


@upsertflow.command()
@click.argument("root")
@_storage_options
@_as_json
def tables(root: str, storage: Mapping[str, str], as_json: bool) -> None:
    """Show the tables that one stream writes below ROOT: name, query, rows and debt of each.

    ROOT is the folder before the first column of the stream's path; or the whole path, as in
    '/lake/{topic}', where no batch is in all tables yet. JSON begins with a line about all tables,
    with an empty folder.
    """
    found = list_tables(root, storage)
    if as_json:
        print_rows([found.facts(), *(line.to_json() for line in found.lines)], (), as_json=True)
        return
    print_facts({k: v for k, v in found.facts().items() if v not in (None, "", [])}, as_json=False)
    if found.lines:
        rows = [line.for_people() for line in found.lines]
        print_rows(rows, rows[0], as_json=False)


@upsertflow.command()
@click.argument("root")
@_storage_options
@_as_json
def parked(root: str, storage: Mapping[str, str], as_json: bool) -> None:
    """Show what is parked below ROOT: for which tables and batches, how many rows, and why.

    ROOT is the folder before the first column of the stream's path, or the whole path.
    """
    found = ParkedTable(open_root(root, storage)).parked()
    now_ms = round(time.time() * 1000)
    if as_json:
        print_rows([line_of(each, now_ms) for each in found], (), as_json=True)
        return
    rows = [for_people(each, now_ms) for each in found]
    print_rows(rows, SHOWN, as_json=False)
    for advice in advice_of(found, root):
        click.echo(escaped(advice))


# -- keeping in order ----------------------------------------------------------------


@upsertflow.command("unpark")
@click.argument("root")
@click.argument("names", nargs=-1)
@_storage_options
@click.option(
    "--set",
    "given",
    multiple=True,
    metavar="OPTION=VALUE",
    callback=_pairs,
    help="An option of the write, instead of what the rows came with, such as mergeSchema=true.",
)
@click.option(
    "--unset",
    "taken_back",
    multiple=True,
    metavar="OPTION",
    help="An option that the rows came with, and that is not to hold.",
)
@click.option("--drop", "drops", is_flag=True, help="Forget the rows, without applying them.")
@click.option("--nameless", is_flag=True, help="With --drop: the rows that have no table.")
@_as_json
def unpark_rows(
    root: str,
    names: Sequence[str],
    storage: Mapping[str, str],
    given: Sequence[tuple[str, str]],
    taken_back: Sequence[str],
    drops: bool,
    nameless: bool,
    as_json: bool,
) -> None:
    """Apply what is parked below ROOT: to the tables of some NAMES, or to all.

    Each batch becomes a version of its table, in order and exactly once; the stream may run
    meanwhile. A table that cannot take its rows yet does not stop the others. With --drop, the
    rows are forgotten instead.
    """
    if nameless and not drops:
        raise click.UsageError("--nameless goes with --drop: such rows have no table.")
    if drops and not (names or nameless):
        raise click.UsageError("--drop needs NAMES, or --nameless.")
    store = open_root(root, storage)
    done: list[Unparked] = []
    try:
        if drops:
            done = drop(store, names, nameless=nameless)
        else:
            told = {**dict.fromkeys(taken_back, ""), **dict(given)}
            unpark(store, names, given=told, told=done.append)
    except UpsertFlowError as error:
        error.name_settings(as_flag)
        raise
    finally:  # What was done is told beside what failed.
        print_rows([asdict(each) for each in done], UNPARKED, as_json=as_json)


@upsertflow.command()
@_on_table
@_all_tables
@click.option("--full", is_flag=True, help="Leave one run everywhere, whatever the sizes.")
@_as_json
def compact(
    path: str, storage: Mapping[str, str], of_root: bool, full: bool, as_json: bool
) -> None:
    """Merge runs in this process. For large tables: pyspark_upsertflow.compact(spark, path)."""

    def work(table: Table) -> dict[str, Any]:
        before = table.log.head().run_count
        compactions = table.compact(full=full)
        runs = table.log.head().run_count
        return {"compactions": compactions, "runs_before": before, "runs": runs}

    _keep_in_order(
        path,
        storage,
        work,
        of_root=of_root,
        as_json=as_json,
        is_news=lambda facts: facts["compactions"],
    )


@upsertflow.command()
@_on_table
@click.option("--column", "columns", metavar="DDL", help="Columns to add or to widen: 'n BIGINT'.")
@click.option("--drop", multiple=True, metavar="COLUMN", help="Give up a value column. May repeat.")
@click.option("--rename", metavar="OLD=NEW", help="Refused, with what to do instead.")
@click.option(
    "--set",
    "properties",
    multiple=True,
    callback=_pairs,
    metavar="NAME=VALUE",
    help="Set a property, such as rowTtl='30 days'. May repeat.",
)
@_as_json
def alter(
    path: str,
    storage: Mapping[str, str],
    columns: str | None,
    drop: tuple[str, ...],
    rename: str | None,
    properties: list[tuple[str, str]],
    as_json: bool,
) -> None:
    """Change columns and properties of a table, as far as nothing must be rewritten."""
    if rename is not None:
        raise click.UsageError(
            "A column is not renamed: files name their columns, so that all would be rewritten. "
            "Read the column under another name (in a view: select), or add the new column, "
            "write it, and --drop the old one."
        )
    table = open_in(path, storage)
    before = table.log.head().version
    if columns is not None or properties:
        schema = table.schema
        if columns is not None:
            given, _ = parse_schema("column", columns, bare_name="column")
            named = {name.lower() for name in given.names}
            kept = [field for field in schema.columns if field.name.lower() not in named]
            schema = schema.accept(pa.schema([*kept, *given]), merge=True)
        try:
            table.alter(schema, dict(properties))
        except UpsertFlowError as error:
            error.name_settings(as_flag)
            raise
    head = table.drop_columns(*drop)
    print_facts(
        {
            "version": head.version,
            "has_changed": head.version != before,
            "columns": {field.name: str(field.type) for field in head.schema.columns},
            "properties": dict(head.properties),
        },
        as_json=as_json,
    )


@upsertflow.command()
@_on_table
@click.option("--by", metavar="COLUMNS", help="Set what the table is indexed by, from now on.")
@click.option("--rebuild", is_flag=True, help="Build all anew, whatever they hold.")
@_as_json
def index(
    path: str, storage: Mapping[str, str], by: str | None, rebuild: bool, as_json: bool
) -> None:
    """Bring the indexes of a table up to date, and build those that are not there."""
    table = open_in(path, storage)
    if by is not None:
        table.alter(table.schema, {INDEX_BY: by})
    table.build_indexes(rebuild=rebuild)
    _show(Metadata.INDEXES, path, storage, None, as_json=as_json)


@upsertflow.command()
@_on_table
@click.option("--as", "kind", type=click.Choice(["delta"]), default="delta", show_default=True)
@click.option("--to", "place", help="Where the mirror lies. Default: _delta, below the table.")
@click.option("--follow", "follows", is_flag=True, help="Go on, version by version, until stopped.")
@click.option("--rebuild", is_flag=True, help="Write all of it again, whatever lies there.")
@click.option(
    "--guard/--no-guard",
    default=None,
    help="Whether other writers are kept out of the mirror. Default: as it is, and true at first.",
)
@click.option(
    "--change-feed/--no-change-feed",
    default=None,
    help="Whether the mirror has a change feed. Default: as it is, and none at first.",
)
@click.option(
    "--retention",
    help="How long versions of the mirror can be read. Default: as it is, and 6 hours at first.",
)
@_as_json
def publish(
    path: str,
    storage: Mapping[str, str],
    kind: str,
    place: str | None,
    follows: bool,
    rebuild: bool,
    guard: bool | None,
    change_feed: bool | None,
    retention: str | None,
    as_json: bool,
) -> None:
    """Bring the mirror of a table, a Delta table, to the newest version."""
    table = open_in(path, storage)

    def step(rebuild: bool = False) -> Published:
        return table.publish(
            place,
            rebuild=rebuild,
            guard=guard,
            change_feed=change_feed,
            retention=retention,
            storage=storage,
        )

    done = step(rebuild)
    print_facts({**asdict(done), "has_changed": done.has_changed}, as_json=as_json)
    if follows:
        for done in follow(table, step):
            names = ("shown", "newest", "delta_version")
            print_rows([asdict(done)], names, as_json=as_json)


@upsertflow.command("keep-history")
@_on_table
@click.option("--in", "place", required=True, help="Where the table lies that keeps it.")
@click.option(
    "--by",
    type=click.Choice([each.value for each in ValidBy]),
    default=ValidBy.TIME.value,
    show_default=True,
    help="What valid_from and valid_to are.",
)
@click.option("--columns", metavar="COLUMNS", help="Columns of the table. Default: all.")
@click.option(
    "--track", metavar="COLUMNS", help="Those that open a row when they change. Default: all."
)
@_as_json
def keep_history(
    path: str,
    storage: Mapping[str, str],
    place: str,
    by: str,
    columns: str | None,
    track: str | None,
    as_json: bool,
) -> None:
    """Bring the table that keeps the history of another one up to date, or make it."""
    table, kept = open_in(path, storage), Table(open_store(place, storage))
    done = keep(
        table,
        kept,
        columns=None if columns is None else split_names("--columns", columns),
        by=ValidBy(by),
        tracked=() if track is None else split_names("--track", track),
    )
    head = kept.log.head() if done is None else kept.log.at(done.version)
    facts = {"history": place, "version": head.version, "rows": head.live_rows}
    print_facts({**facts, "has_changed": done is not None}, as_json=as_json)


@upsertflow.command()
@_on_table
@click.option("--to", "version", type=int, required=True, help="The version to go back to.")
@_as_json
def restore(path: str, storage: Mapping[str, str], version: int, as_json: bool) -> None:
    """Turn the table into what it was at a version, by a new version with all retractions."""
    table = open_in(path, storage)
    commit = table.restore(version)
    head = table.log.head() if commit is None else table.log.at(commit.version)
    print_facts(
        {
            "restored": version,
            "version": head.version,
            "has_changed": commit is not None,
            "live_rows": head.live_rows,
        },
        as_json=as_json,
    )


@upsertflow.command()
@_on_table
@_all_tables
@click.option("--retain", callback=_duration, help="Keep every time within this, such as 7d.")
@click.option("--retain-versions", type=int, help="Keep the changes of so many versions.")
@_as_json
def expire(
    path: str,
    storage: Mapping[str, str],
    of_root: bool,
    retain: int | None,
    retain_versions: int | None,
    as_json: bool,
) -> None:
    """Give up old versions that no consumer needs. Files go with the next vacuum."""
    if retain is None and retain_versions is None:
        raise click.UsageError("Say how much to keep: --retain 7d, or --retain-versions 1000.")

    if retain is not None and retain < SAFETY_MS:
        hour = render_ms(SAFETY_MS)
        raise click.UsageError(
            f"--retain is {hour} at least, found {render_ms(retain)}: what was the newest version "
            f"within the last {hour} is kept in any case, because running queries read it. Say "
            "--retain 1h."
        )

    def work(table: Table) -> dict[str, Any]:
        outcome = table.expire(retain_ms=retain, retain_versions=retain_versions)
        return {**asdict(outcome), "has_advanced": outcome.has_advanced}

    _keep_in_order(
        path,
        storage,
        work,
        of_root=of_root,
        as_json=as_json,
        is_news=lambda facts: facts["has_advanced"],
        threads=THREADS,
    )


@upsertflow.command("expire-rows")
@_on_table
@_all_tables
@_as_json
def expire_rows(path: str, storage: Mapping[str, str], of_root: bool, as_json: bool) -> None:
    """Delete the rows that are older than the property rowTtl says, as behind a commit."""

    def work(table: Table) -> dict[str, Any]:
        done = table.expire_rows()
        return {
            "cutoff": None if done is None else render_time(done.cutoff_ms),
            "deletes": 0 if done is None else done.deletes,
            "versions": [] if done is None else list(done.versions),
        }

    _keep_in_order(
        path,
        storage,
        work,
        of_root=of_root,
        as_json=as_json,
        is_news=lambda facts: facts["deletes"],
        threads=THREADS,
    )


@upsertflow.command("repair-clock")
@_on_table
@_as_json
def repair_clock(path: str, storage: Mapping[str, str], as_json: bool) -> None:
    """Let versions that were committed far in the future count as committed now."""
    done = open_in(path, storage).repair_clock()
    print_facts(
        {
            "version": done and done.version,
            "repaired_from": done and done.wrong_from,
            "repaired_to": done and done.version - 1,
        },
        as_json=as_json,
    )


@upsertflow.command()
@_on_table
@_all_tables
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option(
    "--grace",
    callback=_duration,
    default=render_ms(GRACE_MS),
    show_default=True,
    help="How long what a writer has staged may wait for its commit.",
)
@_as_json
def vacuum(
    path: str,
    storage: Mapping[str, str],
    of_root: bool,
    dry_run: bool,
    grace: int,
    as_json: bool,
) -> None:
    """Remove the files of expired versions, and what crashes left behind."""

    def work(table: Table) -> dict[str, Any]:
        done = table.vacuum(grace_ms=grace, dry_run=dry_run)
        return {
            "is_dry_run": done.is_dry_run,
            "expired_files": len(done.expired),
            "orphans": len(done.orphans),
            "leftovers": len(done.leftovers),
            "bytes": done.bytes,
            "log_objects": len(done.log),
            "too_young": done.waiting_count,
            "foreign": len(done.foreign),
            "foreign_examples": list(done.foreign[:_EXAMPLES]),
        }

    removed = ("expired_files", "orphans", "leftovers", "log_objects", "foreign")
    _keep_in_order(
        path,
        storage,
        work,
        of_root=of_root,
        as_json=as_json,
        is_news=lambda facts: any(facts[name] for name in removed),
        threads=THREADS,
    )
