"""A table in facts: what stands in its log, its files, and what its consumers hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from spark_upsert.cli.commands.program import json_option, limit_option, on_table, upsertflow
from spark_upsert.cli.kept import kept_facts, told
from spark_upsert.cli.render import heading, pretty, print_facts, print_rows
from spark_upsert.cli.routed import open_in
from spark_upsert.errors import OptionError, did_you_mean
from spark_upsert.metadata import VIEWS, summary
from spark_upsert.mirror.facts import facts_below
from spark_upsert.options.read import Metadata
from spark_upsert.table.log.kept_position import VIEW_PROPERTIES


@upsertflow.command()
@on_table
@json_option
def info(path: str, storage: Mapping[str, str], as_json: bool) -> None:
    """Show a table in a few numbers."""
    table = open_in(path, storage)
    facts, mirror = summary(table), facts_below(table)
    schema, properties = table.log.head().schema, dict(table.log.head().properties)
    kept = kept_facts(table, storage)
    if kept is not None and not as_json:
        # The plan stands there in words.
        properties = {
            name: text for name, text in properties.items() if name not in VIEW_PROPERTIES
        }
        kept = told(kept)
    print_facts(
        {
            **asdict(facts),
            "write_amplification": facts.write_amplification,
            "keys": list(schema.keys),
            "sequence_by": [field.name for field in schema.order],
            "scope": schema.scope.value,
            "columns": {field.name: str(field.type) for field in schema.columns},
            "properties": properties,
            **(kept or {}),
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


def show_view(
    metadata: Metadata, path: str, storage: Mapping[str, str], limit: int | None, *, as_json: bool
) -> None:
    """Print the last rows of a view."""
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
    """Show the newest versions: what each wrote, and what the table was behind it."""
    show_view(Metadata.HISTORY, path, storage, limit, as_json=as_json)


@upsertflow.command()
@on_table
@limit_option(20)
@json_option
def epochs(path: str, storage: Mapping[str, str], limit: int, as_json: bool) -> None:
    """Show the counters of the newest epochs. Counters that are zero everywhere are left out."""
    show_view(Metadata.EPOCHS, path, storage, limit, as_json=as_json)


@upsertflow.command()
@on_table
@json_option
def files(path: str, storage: Mapping[str, str], as_json: bool) -> None:
    """Show the files that the newest version consists of."""
    show_view(Metadata.FILES, path, storage, None, as_json=as_json)


@upsertflow.command()
@on_table
@click.option("--hold", metavar="NAME", help="Take a lease on all versions, as for a backup.")
@click.option("--release", metavar="NAME", help="Drop the lease of a consumer that is no more.")
@json_option
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
    show_view(Metadata.CONSUMERS, path, storage, None, as_json=as_json)


@upsertflow.command()
@on_table
@json_option
def pressure(path: str, storage: Mapping[str, str], as_json: bool) -> None:
    """Show how far consumers are behind, against the caps, and which ones hold up writers."""
    show_view(Metadata.PRESSURE, path, storage, None, as_json=as_json)
