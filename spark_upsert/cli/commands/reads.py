"""The plan of a read, before anything is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from spark_upsert.cli.commands.program import (
    as_pairs,
    folders,
    json_option,
    storage_options,
    upsertflow,
)
from spark_upsert.cli.render import escaped_lines, print_rows
from spark_upsert.errors import OptionError, about
from spark_upsert.options.inputs import InputOptions, ReadPlan
from spark_upsert.options.parse import STORAGE_PREFIX
from spark_upsert.streams.inputs.table import open_table
from spark_upsert.streams.planner.explain_read import explain_read
from spark_upsert.streams.planner.kinds import with_found_inputs
from spark_upsert.table.table import Table

_FACT = re.compile(r"  (?P<name>[a-z-]{1,9}) +(?<=^.{12})(?P<value>\S.*)")
"""A line of an explanation that is a field (`explain.field`)."""


@upsertflow.command()
@click.argument("path", required=False, shell_complete=folders)
@storage_options
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=PATH",
    callback=as_pairs,
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
    callback=as_pairs,
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
@json_option
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
    as_json: bool,
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
    text = explain_read(plan if consumer is None else _behind(plan, consumer))
    if as_json:
        print_rows(list(_sections(text)), (), as_json=True)
    else:
        click.echo(escaped_lines(text))


def _sections(text: str) -> Iterator[dict[str, Any]]:
    """Yield each line at the margin, with the facts and the other lines that stand below it."""
    for section in re.split(r"\n(?! )", text):
        title, *below = section.splitlines()
        named = [_FACT.fullmatch(line) for line in below]
        facts = {found["name"]: found["value"] for found in named if found is not None}
        lines = [line.strip() for line, found in zip(below, named, strict=True) if found is None]
        yield {"title": title, "facts": facts, "lines": lines}


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
