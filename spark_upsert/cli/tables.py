"""Commands showing one table: facts, history, files, consumers, plans, rows and changes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from typing import Any

import click
import pyarrow as pa

from spark_upsert.cli.find_value import sightings
from spark_upsert.cli.program import (
    ValuesCommand,
    as_pairs,
    filter_option,
    folders,
    json_option,
    limit_option,
    on_table,
    storage_options,
    upsertflow,
    version_option,
)
from spark_upsert.cli.render import (
    add_units,
    escaped,
    heading,
    pretty,
    print_data,
    print_facts,
    print_rows,
    print_text,
    progress,
)
from spark_upsert.cli.routed import open_in
from spark_upsert.delta.follow import status_of_mirror
from spark_upsert.errors import OptionError, SchemaError, UpsertFlowError, about, did_you_mean
from spark_upsert.metadata import VIEWS, summary
from spark_upsert.options.declare import STORAGE_PREFIX
from spark_upsert.options.inputs import InputOptions, ReadPlan
from spark_upsert.options.read import Metadata
from spark_upsert.plan.json import plan_from_json
from spark_upsert.plan.nodes import Node, Scan
from spark_upsert.store.open import open_store
from spark_upsert.streams.inputs.table import open_table
from spark_upsert.streams.planner.formats import explain_read, with_discovered_inputs
from spark_upsert.streams.reads.explain import plan_lines
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import (
    VIEW_PLAN,
    VIEW_PROPERTIES,
    VIEW_RESULT,
    KeptPosition,
)
from spark_upsert.table.log.snapshot import (
    EARLIEST,
    require_ordered,
    resolve_ending_version,
    resolve_starting_version,
)
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.table import Table
from spark_upsert.table.write.outcomes import NOTHING, recorded_position


def read_view_facts(table: Table, storage: Mapping[str, str]) -> dict[str, Any] | None:
    """Return a materialized view's plan and source tables; None if the table has no view.

    For a grouped view, each source also has the version reached by the view.
    """
    properties = table.log.head().properties
    if VIEW_PLAN not in properties:
        return None
    plan = plan_from_json(properties[VIEW_PLAN])
    reached = _reached_versions(table) if VIEW_RESULT in properties else {}
    return {
        "view": list(plan_lines(plan)),
        "tables": {
            scan.path: {
                "at": scan.version if scan.version is not None else reached.get(scan.path),
                "newest": _newest_version(scan.path, storage),
            }
            for scan in _collect_scans(plan)
        },
    }


def format_view_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Format `read_view_facts` for display."""
    tables = {path: _describe_versions(**versions) for path, versions in facts["tables"].items()}
    return {"keeps": facts["view"], "of": tables}


def _describe_versions(at: int | None, newest: int | None) -> str:
    there = "not found from here" if newest is None else f"newest version {newest}"
    if at is None:
        return there
    lag = f", {newest - at} behind" if newest is not None and newest > at else ""
    return f"at version {at}, {there}{lag}"


def _reached_versions(table: Table) -> dict[str, int]:
    recorded = recorded_position(table.at())
    if recorded == NOTHING:
        return {}
    return {
        path: version_ref.version for path, version_ref in KeptPosition.read(recorded).at.items()
    }


def _newest_version(path: str, storage: Mapping[str, str]) -> int | None:
    try:
        return Log(open_store(path, storage)).head().version
    except UpsertFlowError:
        return None


def _collect_scans(node: Node) -> list[Scan]:
    scans = [scan for child in node.inputs for scan in _collect_scans(child)]
    return [node, *scans] if isinstance(node, Scan) else scans


@upsertflow.command()
@on_table
@json_option
def info(path: str, storage: Mapping[str, str], as_json: bool) -> None:
    """Show a table's key figures."""
    table = open_in(path, storage)
    facts, mirror = summary(table), status_of_mirror(table)
    schema, properties = table.log.head().schema, dict(table.log.head().properties)
    view_facts = read_view_facts(table, storage)
    if view_facts is not None and not as_json:
        # The plan stands there in words.
        properties = {
            name: text for name, text in properties.items() if name not in VIEW_PROPERTIES
        }
        view_facts = format_view_facts(view_facts)
    print_facts(
        {
            **asdict(facts),
            "write_amplification": facts.write_amplification,
            "keys": list(schema.keys),
            "sequence_by": [field.name for field in schema.order],
            "scope": schema.scope.value,
            "columns": {field.name: str(field.type) for field in schema.columns},
            "properties": properties,
            **(view_facts or {}),
            **(
                {}
                if mirror is None
                else {"mirror": _format_nested(asdict(mirror), as_json=as_json)}
            ),
        },
        as_json=as_json,
    )


def _format_nested(facts: Mapping[str, Any], *, as_json: bool) -> Mapping[str, Any]:
    """Format nested facts for display, without unknown values."""
    if as_json:
        return facts
    return {
        heading(name): pretty(name, value) for name, value in facts.items() if value is not None
    }


def show_view(
    metadata: Metadata, path: str, storage: Mapping[str, str], limit: int | None, *, as_json: bool
) -> None:
    """Print the last rows from a metadata view."""
    view = VIEWS[metadata]
    batches = view.read(open_in(path, storage))
    rows = [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]
    shown = rows if limit is None else rows[max(0, len(rows) - limit) :]
    print_rows(shown, view.schema.names, as_json=as_json)


@upsertflow.command()
@on_table
@limit_option(20)
@json_option
def history(path: str, storage: Mapping[str, str], limit: int, as_json: bool) -> None:
    """Show the newest versions. Each has its changes, and the table size afterwards."""
    show_view(Metadata.HISTORY, path, storage, limit, as_json=as_json)


@upsertflow.command()
@on_table
@limit_option(20)
@json_option
def epochs(path: str, storage: Mapping[str, str], limit: int, as_json: bool) -> None:
    """Show counters for the newest epochs. Counters with only zeros are omitted."""
    show_view(Metadata.EPOCHS, path, storage, limit, as_json=as_json)


@upsertflow.command()
@on_table
@json_option
def files(path: str, storage: Mapping[str, str], as_json: bool) -> None:
    """Show the newest version's files."""
    show_view(Metadata.FILES, path, storage, None, as_json=as_json)


@upsertflow.command()
@on_table
@click.option("--hold", metavar="NAME", help="Take a lease on all versions, as for a backup.")
@click.option("--release", metavar="NAME", help="Drop the lease of a consumer that is no more.")
@json_option
def consumers(
    path: str, storage: Mapping[str, str], hold: str | None, release: str | None, as_json: bool
) -> None:
    """Show consumers and their leases. A lease prevents expiry of versions still to be read."""
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
    show_view(Metadata.CONSUMERS, path, storage, None, as_json=as_json)


@upsertflow.command()
@on_table
@json_option
def pressure(path: str, storage: Mapping[str, str], as_json: bool) -> None:
    """Show consumer lag and back-pressure. Compares lag with the caps."""
    show_view(Metadata.PRESSURE, path, storage, None, as_json=as_json)


_FACT = re.compile(r"  (?P<name>[a-z-]{1,9}) +(?<=^.{12})(?P<value>\S.*)")
"""A field line in an explanation (`explain.field`)."""


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
    """Show a read's versions, files and splits. Reads only the log.

    For several inputs, also show the merge, each input's part, and the tasks.
    """
    if consumer is not None and starting_version is not None:
        raise click.UsageError("Say where changes begin once: --consumer or --starting-version.")
    of_changes = (starting_version, ending_version, mode, consumer)
    read_options = {
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
    options = {name: text for name, text in read_options.items() if text is not None}
    for name, text in settings:
        if name in options:  # Alike but for case is for the parser to see.
            raise click.UsageError(f"'{name}' is given twice.")
        options[name] = text
    plan = ReadPlan.parse(options)
    text = explain_read(plan if consumer is None else _start_at_unread(plan, consumer))
    if as_json:
        print_rows(list(_iter_sections(text)), (), as_json=True)
    else:
        print_text(add_units(text))


def _iter_sections(text: str) -> Iterator[dict[str, Any]]:
    """Yield each unindented line with the facts and lines below it."""
    for section in re.split(r"\n(?! )", text):
        title, *body = section.splitlines()
        named = [_FACT.fullmatch(line) for line in body]
        facts = {
            named_fact["name"]: named_fact["value"]
            for named_fact in named
            if named_fact is not None
        }
        lines = [
            line.strip() for line, named_fact in zip(body, named, strict=True) if named_fact is None
        ]
        yield {"title": title, "facts": facts, "lines": lines}


def _start_at_unread(plan: ReadPlan, consumer: str) -> ReadPlan:
    """Return a plan starting at a consumer's unread changes."""
    inputs: list[InputOptions] = []
    for source in with_discovered_inputs(plan).inputs:
        with about("input", source.name):
            options = {
                "startingVersion": str(_first_unread(open_table(source.of_table()), consumer))
            }
        inputs.append(replace(source, own={**source.own, **options}))
    return replace(plan, inputs=tuple(inputs))


def _first_unread(table: Table, consumer: str) -> int:
    """Return a consumer's first unread version."""
    held = {lease.consumer: lease.version for lease in table.consumers()}
    if consumer not in held:
        raise OptionError.invalid(
            "--consumer",
            consumer,
            "the name of a lease",
            hint="'upsertflow consumers' shows the consumers that hold one.",
        )
    return held[consumer] + 1


def _key_columns(names: tuple[str, ...], values: tuple[str, ...]) -> dict[str, pa.Array]:
    """Return key columns: several keys for a single column, or one key for several columns."""
    if len(names) == 1:
        return {names[0]: pa.array(values, pa.string())}
    if len(names) != len(values):
        raise SchemaError(
            f"the key is {', '.join(names)}: expected {len(names)} values, found {len(values)}.",
            hint="give a value for each; of several keys: --filter.",
        )
    return {name: pa.array([value]) for name, value in zip(names, values, strict=True)}


def _put_keys_first(table: Table, names: Sequence[str], *first: str) -> dict[str, None]:
    """Return the columns, with the keys first: columns that do not fit are omitted from the end."""
    keys = [name for name in table.schema.keys if name in names]
    return dict.fromkeys((*first, *keys, *names))


def _iter_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        values = [_to_values(column) for column in batch.columns]
        for row in zip(*values, strict=True):
            yield dict(zip(batch.schema.names, row, strict=True))


def _to_values(column: pa.Array) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except OverflowError:  # A date or time in a year unknown to Python but not to Spark.
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
    """Show some rows, in no particular order."""
    table = open_in(path, storage)
    rows = table.scan(filter=condition, version=version)
    names = _put_keys_first(table, rows.schema.names)
    print_data(list(islice(_iter_rows(rows), limit)), names, as_json=as_json)


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
    """Show the rows for some keys. Exits with 1 if a key has no row.

    If the key is one column, pass one KEY or several. If it has several columns, pass one value for
    each, in order. Put a non-numeric KEY beginning with '-' after '--'.
    """
    table = open_in(path, storage)
    keys = _key_columns(table.schema.keys, values)
    rows = table.get(keys, version=version)
    if rows.num_rows:
        names = _put_keys_first(table, rows.column_names)
        print_data(list(_iter_rows(rows.to_batches())), names, as_json=as_json)
    is_single = len(table.schema.keys) == 1
    given_keys = [(value,) for value in values] if is_single else [values]
    if rows.num_rows < len(given_keys):
        absent = [
            ", ".join(key)
            for key in given_keys
            if not table.get(_key_columns(table.schema.keys, key), version=version).num_rows
        ]
        at = "" if version is None else f" in version {version}"
        raise click.ClickException(escaped(f"no row has the key {' or '.join(absent)}{at}."))


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
    """Delete rows by key or by filter, as one version.

    Pass KEY as for `get`. Run `expire` and `vacuum` to remove the rows from older versions.
    """
    table = open_in(path, storage)
    keys = _key_columns(table.schema.keys, values) if values else None
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
    """Show the changes in a range of versions."""
    table = open_in(path, storage)
    first = resolve_starting_version(
        table.log, version=EARLIEST if lower is None else lower, name="--from"
    )
    upper = resolve_ending_version(table.log, version=last, name="--to")
    require_ordered(first or 0, upper, name="--to", may_be_empty=last is None)
    change_reader = table.scan_changes(first or 0, upper)
    names = _put_keys_first(table, change_reader.schema.names, "_commit_version", "_change_type")
    print_data(list(islice(_iter_rows(change_reader), limit)), names, as_json=as_json)


@upsertflow.command(cls=ValuesCommand)
@click.argument("path", shell_complete=folders)
@click.argument("value")
@storage_options
@click.option("--column", help="Look at this column alone, and not at bytes.")
@json_option
def find(
    path: str, value: str, storage: Mapping[str, str], column: str | None, as_json: bool
) -> None:
    """Show files below PATH containing VALUE. Exits with 1 if there are any.

    PATH is a table, a root with many tables, or any other folder. Every file is read, from any
    version. Texts match within longer texts, other values by equality.
    """
    with progress("find", as_json=as_json) as notify:
        store = open_store(path, storage)
        matches = [
            asdict(sighting)
            for sighting in sightings(store, value, column=column, on_progress=notify)
        ]
    if matches or as_json:
        print_rows(matches, ("path", "column", "values"), as_json=as_json)
    if matches:
        click.get_current_context().exit(1)
    if not as_json:
        print_facts({"files_with_it": 0}, as_json=False)
