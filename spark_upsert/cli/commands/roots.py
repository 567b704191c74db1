"""The tables that one stream writes below a root, and the rows that wait for them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import click

from spark_upsert.cli.commands.program import (
    as_pairs,
    folders,
    json_option,
    storage_options,
    upsertflow,
)
from spark_upsert.cli.parking import SHOWN, UNPARKED, advice_of, for_people, line_of, open_root
from spark_upsert.cli.progress import progress
from spark_upsert.cli.render import escaped, print_facts, print_rows
from spark_upsert.cli.routed import list_tables
from spark_upsert.errors import UpsertFlowError, as_flag
from spark_upsert.routed.park import ParkedTable
from spark_upsert.routed.unpark import Unparked, drop, unpark


@upsertflow.command()
@click.argument("root", shell_complete=folders)
@storage_options
@json_option
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
@click.argument("root", shell_complete=folders)
@storage_options
@json_option
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


@upsertflow.command("unpark")
@click.argument("root", shell_complete=folders)
@click.argument("names", nargs=-1)
@storage_options
@click.option(
    "--set",
    "given",
    multiple=True,
    metavar="OPTION=VALUE",
    callback=as_pairs,
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
@json_option
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
            with progress("unpark", as_json=as_json) as shown:

                def note(batch: Unparked) -> None:
                    done.append(batch)
                    shown(f"{len(done):,} batches")

                unpark(store, names, given=told, told=note)
    except UpsertFlowError as error:
        error.name_settings(as_flag)
        raise
    finally:  # What was done is told beside what failed.
        print_rows([asdict(each) for each in done], UNPARKED, as_json=as_json)
