"""A table, its indexes, its mirror and its history, changed or brought up to date."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import click
import pyarrow as pa

from spark_upsert.cli.commands.facts import show_view
from spark_upsert.cli.commands.program import as_pairs, json_option, on_table, upsertflow
from spark_upsert.cli.mirrors import follow
from spark_upsert.cli.progress import progress
from spark_upsert.cli.render import print_facts, print_rows
from spark_upsert.cli.routed import open_in
from spark_upsert.errors import UpsertFlowError, as_flag
from spark_upsert.model.names import split_names
from spark_upsert.options.read import Metadata
from spark_upsert.payloads.ddl import parse_schema
from spark_upsert.store.resolve import open_store
from spark_upsert.table.changes.modes import ValidBy
from spark_upsert.table.keep_history import keep_history as keep
from spark_upsert.table.log.indexed import INDEX_BY
from spark_upsert.table.published import Published
from spark_upsert.table.table import Table


@upsertflow.command()
@on_table
@click.option("--column", "columns", metavar="DDL", help="Columns to add or to widen: 'n BIGINT'.")
@click.option("--drop", multiple=True, metavar="COLUMN", help="Give up a value column. May repeat.")
@click.option("--rename", metavar="OLD=NEW", help="Refused, with what to do instead.")
@click.option(
    "--set",
    "properties",
    multiple=True,
    callback=as_pairs,
    metavar="NAME=VALUE",
    help="Set a property, such as rowTtl='30 days'. May repeat.",
)
@json_option
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
        schema = upon = table.schema
        if columns is not None:
            given, _ = parse_schema("column", columns, bare_name="column")
            named = {name.lower() for name in given.names}
            kept = [field for field in schema.columns if field.name.lower() not in named]
            schema = schema.accept(pa.schema([*kept, *given]), merge=True)
        try:
            table.alter(schema, dict(properties), upon=upon)
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
@on_table
@click.option("--by", metavar="COLUMNS", help="Set what the table is indexed by, from now on.")
@click.option("--rebuild", is_flag=True, help="Build all anew, whatever they hold.")
@json_option
def index(
    path: str, storage: Mapping[str, str], by: str | None, rebuild: bool, as_json: bool
) -> None:
    """Bring the indexes of a table up to date, and build those that are not there."""
    table = open_in(path, storage)
    if by is not None:
        schema = table.schema
        table.alter(schema, {INDEX_BY: by}, upon=schema)
    with progress("index", as_json=as_json):
        table.build_indexes(rebuild=rebuild)
    show_view(Metadata.INDEXES, path, storage, None, as_json=as_json)


@upsertflow.command()
@on_table
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
@json_option
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

    with progress("publish", as_json=as_json):
        done = step(rebuild)
    print_facts({**asdict(done), "has_changed": done.has_changed}, as_json=as_json)
    if follows:
        for done in follow(table, step):
            names = ("shown", "newest", "delta_version")
            print_rows([asdict(done)], names, as_json=as_json)


@upsertflow.command("keep-history")
@on_table
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
@click.option("--no-track", metavar="COLUMNS", help="Those that open none, where all others do.")
@json_option
def keep_history(
    path: str,
    storage: Mapping[str, str],
    place: str,
    by: str,
    columns: str | None,
    track: str | None,
    no_track: str | None,
    as_json: bool,
) -> None:
    """Bring the table that keeps the history of another one up to date, or make it."""
    table, kept = open_in(path, storage), Table(open_store(place, storage))
    with progress("keep history", as_json=as_json):
        done = keep(
            table,
            kept,
            columns=None if columns is None else split_names("--columns", columns),
            by=ValidBy(by),
            tracked=() if track is None else split_names("--track", track),
            untracked=() if no_track is None else split_names("--no-track", no_track),
        )
    head = kept.log.head() if done is None else kept.log.at(done.version)
    facts = {"history": place, "version": head.version, "rows": head.live_rows}
    print_facts({**facts, "has_changed": done is not None}, as_json=as_json)


@upsertflow.command()
@on_table
@click.option("--to", "version", type=int, required=True, help="The version to go back to.")
@json_option
def restore(path: str, storage: Mapping[str, str], version: int, as_json: bool) -> None:
    """Turn the table into what it was at a version, by a new version with all retractions."""
    table = open_in(path, storage)
    with progress("restore", as_json=as_json):
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
