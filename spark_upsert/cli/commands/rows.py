"""Rows and changes of a table, and the places where a value still lies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any

import click
import pyarrow as pa

from spark_upsert.cli.commands.program import (
    ValuesCommand,
    filter_option,
    folders,
    json_option,
    limit_option,
    on_table,
    storage_options,
    upsertflow,
    version_option,
)
from spark_upsert.cli.find_value import sightings
from spark_upsert.cli.progress import progress
from spark_upsert.cli.render import print_data, print_facts, print_rows
from spark_upsert.cli.routed import open_in
from spark_upsert.errors import SchemaError
from spark_upsert.store.resolve import open_store
from spark_upsert.table.entries.counters import Counters
from spark_upsert.table.versions import EARLIEST, first_wanted, require_ordered, upper_wanted


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


@upsertflow.command()
@on_table
@version_option
@filter_option
@limit_option(20)
@json_option
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


@upsertflow.command(cls=ValuesCommand)
@on_table
@click.argument("values", metavar="KEY...", nargs=-1, required=True)
@version_option
@json_option
def get(
    path: str,
    storage: Mapping[str, str],
    values: tuple[str, ...],
    version: int | None,
    as_json: bool,
) -> None:
    """Show the rows of some keys.

    KEY is one key or several, where the key is one column. Of several columns it is one key: a
    value for each of them, in their order. A KEY that begins with '-' and is no number follows
    '--'.
    """
    table = open_in(path, storage)
    keys = _keys(table.schema.keys, values)
    found = table.get(keys, version=version)
    print_data(list(_rows(found.to_batches())), found.column_names, as_json=as_json)


@upsertflow.command(cls=ValuesCommand)
@on_table
@click.argument("values", metavar="[KEY]...", nargs=-1)
@filter_option
@json_option
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
@on_table
@click.option("--from", "lower", type=int, help="The first version. Default: the oldest.")
@click.option("--to", "last", type=int, help="The last version. Default: the newest.")
@limit_option(20)
@json_option
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
    first = first_wanted(table.log, version=EARLIEST if lower is None else lower, name="--from")
    upper = upper_wanted(table.log, version=last, name="--to")
    require_ordered(first or 0, upper, name="--to", may_be_empty=last is None)
    found = table.scan_changes(first or 0, upper)
    print_data(list(islice(_rows(found), limit)), found.schema.names, as_json=as_json)


@upsertflow.command(cls=ValuesCommand)
@click.argument("path", shell_complete=folders)
@click.argument("value")
@storage_options
@click.option("--column", help="Look at this column alone, and not at bytes.")
@json_option
def find(
    path: str, value: str, storage: Mapping[str, str], column: str | None, as_json: bool
) -> None:
    """Show which files below PATH hold VALUE, whatever version they are of; exit with 1 if any do.

    PATH is a table, the root of many, or any other folder. Every file is read. Texts are found
    within longer ones, all other values where they are equal.
    """
    with progress("find", as_json=as_json) as told:
        store = open_store(path, storage)
        found = [asdict(each) for each in sightings(store, value, column=column, told=told)]
    if found or as_json:
        print_rows(found, ("path", "column", "values"), as_json=as_json)
    if found:
        click.get_current_context().exit(1)
    if not as_json:
        print_facts({"files_with_it": 0}, as_json=False)
