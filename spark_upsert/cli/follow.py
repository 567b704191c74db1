"""The commands ``follow``, a PostgreSQL database into the tables below a root, and ``wait``."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import click
import pyarrow as pa

from spark_upsert.cli.program import (
    as_duration,
    as_pairs,
    folders,
    json_option,
    on_table,
    storage_options,
    upsertflow,
)
from spark_upsert.cli.render import escaped, print_facts, print_rows
from spark_upsert.core.lsn import format_lsn
from spark_upsert.errors import UpsertFlowError, as_flag
from spark_upsert.options.declare import STORAGE_PREFIX
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.postgres.connection import Address
from spark_upsert.replication.follower import FollowedBatch, Follower
from spark_upsert.replication.source import FollowOptions, describe_source, drop_source
from spark_upsert.replication.waiting import wait_for_lsn


@upsertflow.command()
@click.argument("url")
@click.argument("path", shell_complete=folders)
@storage_options
@click.option("--slot", default="upsertflow", show_default=True, help="Replication slot.")
@click.option("--publication", default="upsertflow", show_default=True, help="Publication.")
@click.option(
    "--include",
    multiple=True,
    metavar="REGEX",
    help="Tables to publish, as schema.table, if the publication is made. May be repeated.",
)
@click.option("--exclude", multiple=True, metavar="REGEX", help="Tables to leave out.")
@click.option("--once", is_flag=True, help="End at the log position that the server has now.")
@click.option(
    "--max-rows",
    type=click.IntRange(min=1),
    default=100_000,
    show_default=True,
    help="A batch ends with the first transaction at or after so many changes.",
)
@click.option(
    "--max-delay",
    callback=as_duration,
    default="250 ms",
    show_default=True,
    help="How long changes wait for others.",
)
@click.option("--plan", is_flag=True, help="Show what would be followed, and change nothing.")
@click.option(
    "--password-command",
    metavar="COMMAND",
    help="Prints the password; run for each connection, without a shell.",
)
@click.option(
    "--take-over",
    is_flag=True,
    help="End the other session that holds the slot. Otherwise wait 30 seconds for it.",
)
@click.option(
    "--resnapshot",
    is_flag=True,
    help="Make the slot again and copy all tables, as after lost changes. The tables stay readable.",
)
@click.option(
    "--drop",
    is_flag=True,
    help="End for good: drop the slot and the publication. Otherwise the server keeps its log.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=as_pairs,
    help="An option of the write, such as publish=delta. May be repeated.",
)
@json_option
def follow(
    url: str,
    path: str,
    storage: Mapping[str, str],
    slot: str,
    publication: str,
    include: Sequence[str],
    exclude: Sequence[str],
    once: bool,
    plan: bool,
    password_command: str | None,
    take_over: bool,
    resnapshot: bool,
    drop: bool,
    max_rows: int,
    max_delay: int,
    settings: Sequence[tuple[str, str]],
    as_json: bool,
) -> None:
    """Write a PostgreSQL database's changes into tables.

    The database is at URL, the tables are below PATH.

    PATH names a folder per table, such as 'lake/{_schema}.{_table}'. The first run copies the
    tables; each batch after that has whole transactions. A run after an interruption goes on.
    """
    texts = {f"{STORAGE_PREFIX}{name}": value for name, value in storage.items()}
    options = FollowOptions(
        url=Address(url, password_command),
        routed=RoutedOptions.parse({**texts, **dict(settings), "path": path}),
        slot=slot,
        publication=publication,
        include=tuple(include),
        exclude=tuple(exclude),
        rows_max=max_rows,
        delay_s=max_delay / 1000,
        take_over=take_over,
    )
    if plan:
        names = ("table", "keys", "columns", "note")
        print_rows(describe_source(options), names, as_json=as_json)
        return
    if drop:
        drop_source(options)
        return
    # It returns freed memory to the system, so that little stays after a large transaction.
    pa.set_memory_pool(pa.system_memory_pool())
    follower = Follower(options)
    if resnapshot:
        follower.forget_copies()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        follower.run(lambda batch: _show(batch, as_json=as_json), once=once)
    except UpsertFlowError as error:
        error.name_settings(as_flag)
        raise
    except KeyboardInterrupt:
        return  # The next run goes on.


@upsertflow.command()
@on_table
@click.option(
    "--lsn", required=True, help="Log position, as from SELECT pg_current_wal_insert_lsn()."
)
@click.option(
    "--timeout", callback=as_duration, default="30s", show_default=True, help="Longest wait."
)
@json_option
def wait(path: str, storage: Mapping[str, str], lsn: str, timeout: int, as_json: bool) -> None:
    """Wait until tables have all transactions before a log position.

    PATH is the folder that a follower writes to. An error after the timeout.
    """
    number = wait_for_lsn(path, lsn, timeout_s=timeout / 1000, storage_options=storage)
    print_facts({"batch": number}, as_json=as_json)


def _show(batch: FollowedBatch, *, as_json: bool) -> None:
    facts: dict[str, Any] = {
        "batch": batch.number,
        "lsn": format_lsn(batch.upper),
        "rows": batch.rows,
        "transactions": batch.transaction_count,
        "copied": list(batch.copied),
        "consistent": batch.is_consistent,
    }
    if as_json:
        click.echo(json.dumps(facts))
        return
    what = (
        f"copied {', '.join(batch.copied)}"
        if batch.copied
        else f"{batch.transaction_count} transactions"
    )
    state = "" if batch.is_consistent else ", joining"
    click.echo(escaped(f"batch {batch.number} at {facts['lsn']}: {what}, {batch.rows} rows{state}"))
