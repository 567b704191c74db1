"""Maintenance commands: check, compact, expire, vacuum, alter, index, publish and repairs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click
import pyarrow as pa

from spark_upsert.cli.program import (
    all_tables_option,
    as_duration,
    as_pairs,
    json_option,
    on_table,
    upsertflow,
)
from spark_upsert.cli.render import OnProgress, print_facts, print_rows, progress
from spark_upsert.cli.routed import NEVER_WHOLE, THREADS, for_each_table, open_in
from spark_upsert.cli.tables import show_view
from spark_upsert.core.durations import render_ms
from spark_upsert.core.names import split_names
from spark_upsert.delta.follow import default_mirror
from spark_upsert.delta.publish import check_mirror
from spark_upsert.errors import UpsertFlowError, as_flag
from spark_upsert.options.read import Metadata
from spark_upsert.payloads.ddl import parse_schema
from spark_upsert.store.open import open_store
from spark_upsert.table.changelog.read import ValidBy
from spark_upsert.table.compaction import Job
from spark_upsert.table.keep_history import keep_history as keep
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.log.properties import INDEX_BY
from spark_upsert.table.maintenance import serve as serve_compactions
from spark_upsert.table.observers import PublicationResult
from spark_upsert.table.retention.expiry import GRACE_MS, SAFETY_MS
from spark_upsert.table.table import Table
from spark_upsert.views.materialized import check_result_table

_EXAMPLES_MAX = 5
"""Maximum file names shown."""

_REASONS_MAX = 3
"""Maximum reasons shown for retained history: each table may have its own consumer."""


UpkeepWork = Callable[[Table, OnProgress], Mapping[str, Any]]
"""Maintains a table, reports progress, and returns results."""


def _ignore_progress(_: str) -> None:
    """Ignore progress."""


def _run_maintenance(
    path: str,
    storage: Mapping[str, str],
    work: UpkeepWork,
    *,
    doing: str,
    of_root: bool,
    as_json: bool,
    is_news: Callable[[Mapping[str, Any]], object],
    quiet: str = "unchanged",
    threads: int = 1,
) -> None:
    """Maintain a table, or each table below a root; print results; exit 1 on failures."""
    if of_root:
        failed = _maintain_all(path, storage, work, doing, as_json, is_news, quiet, threads)
    else:
        with progress(doing, as_json=as_json) as notify:
            facts = work(open_in(path, storage), notify)
        failed = not facts.get("is_sound", True)
        print_facts(facts, as_json=as_json)
    if failed:
        click.get_current_context().exit(1)


def _maintain_all(
    root: str,
    storage: Mapping[str, str],
    work: UpkeepWork,
    doing: str,
    as_json: bool,
    is_news: Callable[[Mapping[str, Any]], object],
    quiet: str,
    threads: int,
) -> bool:
    """Maintain all tables below a root; return whether any failed or is unsound."""
    count = failed = 0
    shown: list[dict[str, Any]] = []
    kept_by = Counter[str]()
    with progress(doing, as_json=as_json) as notify:
        # Several run at once, so only finished ones are reported.
        results = for_each_table(
            root, storage, lambda each: work(each, _ignore_progress), threads=threads
        )
        for done in results:
            count += 1
            notify(f"{count:,} tables")
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
    left_out = {"shown": len(shown)} if as_json else {quiet: count - len(shown)}
    total: dict[str, Any] = {"tables": count, **left_out, "failed": failed}
    if kept_by:  # Else the user would not know why nothing was done.
        few = kept_by.most_common(_REASONS_MAX)
        total["bound_by"] = "; ".join(f"{why} ({tables} tables)" for why, tables in few)
    print_facts({"table": "", **total} if as_json else total, as_json=as_json)
    return failed > 0


@upsertflow.command()
@on_table
@all_tables_option
@json_option
def check(path: str, storage: Mapping[str, str], of_root: bool, as_json: bool) -> None:
    """Verify every file and every number. Exits with 1 if anything is wrong."""

    def work(table: Table, notify: OnProgress) -> dict[str, Any]:
        report = table.check(lambda done, files: notify(f"file {done + 1:,} of {files:,}"))
        all_findings = (
            *report.findings,
            *check_result_table(table),
            *check_mirror(default_mirror(table)),
        )
        findings = [str(finding) for finding in all_findings]
        return {"is_sound": not findings, **asdict(report), "findings": findings}

    _run_maintenance(
        path,
        storage,
        work,
        doing="check",
        of_root=of_root,
        as_json=as_json,
        is_news=lambda facts: not facts["is_sound"] or NEVER_WHOLE in facts,
        quiet="sound",
    )


@upsertflow.command()
@on_table
@all_tables_option
@click.option("--full", is_flag=True, help="Leave one run everywhere, whatever the sizes.")
@click.option("--serve", is_flag=True, help="Merge after each new version, until interrupted.")
@json_option
def compact(
    path: str, storage: Mapping[str, str], of_root: bool, full: bool, serve: bool, as_json: bool
) -> None:
    """Merge runs in this process. For large tables use upsertflow.compact(spark, path).

    Several processes share the work.
    """
    if serve and (full or of_root):
        raise click.UsageError("--serve takes neither --full nor --all.")
    if serve:
        table = open_in(path, storage)
        for count in serve_compactions(
            table.log, lambda: table.compact(run=table.compact_leased), time.sleep
        ):
            facts = {"compactions": count, "runs": table.log.head().run_count}
            print_facts(facts, as_json=as_json)

    def work(table: Table, notify: OnProgress) -> dict[str, Any]:
        def run(base: Manifest, jobs: Sequence[Job]) -> int:
            def noted() -> Iterator[Job]:
                for number, job in enumerate(jobs, start=1):
                    notify(f"{number:,} of {len(jobs):,} merges")
                    yield job

            return table.compact_leased(base, noted())

        before = table.log.head().run_count
        compactions = table.compact(full=full, run=run)
        runs = table.log.head().run_count
        return {"compactions": compactions, "runs_before": before, "runs": runs}

    _run_maintenance(
        path,
        storage,
        work,
        doing="compact",
        of_root=of_root,
        as_json=as_json,
        is_news=lambda facts: facts["compactions"],
    )


@upsertflow.command()
@on_table
@all_tables_option
@click.option("--retain", callback=as_duration, help="Keep every time within this, such as 7d.")
@click.option("--retain-versions", type=int, help="Keep the changes of so many versions.")
@json_option
def expire(
    path: str,
    storage: Mapping[str, str],
    of_root: bool,
    retain: int | None,
    retain_versions: int | None,
    as_json: bool,
) -> None:
    """Expire old versions needed by no consumer. The next vacuum removes their files.

    If the table has the property rowTtl, also delete rows older than that.
    """
    if retain is None and retain_versions is None:
        raise click.UsageError("Say how much to keep: --retain 7d, or --retain-versions 1000.")

    if retain is not None and retain < SAFETY_MS:
        hour = render_ms(SAFETY_MS)
        raise click.UsageError(
            f"--retain is {hour} at least, found {render_ms(retain)}: what was the newest version "
            f"within the last {hour} is kept in any case, because running queries read it. Say "
            "--retain 1h."
        )

    def work(table: Table, _: OnProgress) -> dict[str, Any]:
        outcome = table.expire(retain_ms=retain, retain_versions=retain_versions)
        return {**asdict(outcome), "has_advanced": outcome.has_advanced}

    _run_maintenance(
        path,
        storage,
        work,
        doing="expire",
        of_root=of_root,
        as_json=as_json,
        is_news=lambda facts: facts["has_advanced"] or facts["rows_deleted"],
        threads=THREADS,
    )


@upsertflow.command()
@on_table
@json_option
def repair(path: str, storage: Mapping[str, str], as_json: bool) -> None:
    """Repair values rejected by readers. An earlier release could store them."""
    done = Table(open_store(path, storage)).repair()
    print_facts({**asdict(done), "has_changed": done.has_changed}, as_json=as_json)


@upsertflow.command("repair-clock")
@on_table
@json_option
def repair_clock(path: str, storage: Mapping[str, str], as_json: bool) -> None:
    """Repair commit times far in the future. These versions count as committed now."""
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
@on_table
@all_tables_option
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option(
    "--grace",
    callback=as_duration,
    default=render_ms(GRACE_MS),
    show_default=True,
    help="How long what a writer has staged may wait for its commit.",
)
@json_option
def vacuum(
    path: str,
    storage: Mapping[str, str],
    of_root: bool,
    dry_run: bool,
    grace: int,
    as_json: bool,
) -> None:
    """Remove files from expired versions and crashed writers."""

    def work(table: Table, _: OnProgress) -> dict[str, Any]:
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
            "foreign_examples": list(done.foreign[:_EXAMPLES_MAX]),
        }

    removed = ("expired_files", "orphans", "leftovers", "log_objects", "foreign")
    _run_maintenance(
        path,
        storage,
        work,
        doing="vacuum",
        of_root=of_root,
        as_json=as_json,
        is_news=lambda facts: any(facts[name] for name in removed),
        threads=THREADS,
    )


POLL_S = 0.2
"""Poll interval for new versions, one request each."""


def follow(
    table: Table,
    publish: Callable[[], PublicationResult],
    *,
    sleep: Callable[[float], Any] = time.sleep,
) -> Iterator[PublicationResult]:
    """Publish each new table version; yield each step that changed the mirror."""
    while True:
        done = publish()
        if done.has_changed:
            yield done
        while not table.log.has_newer():
            sleep(POLL_S)


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
    """Change columns and properties. Refuses changes requiring rewritten files."""
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
            declared, _ = parse_schema("column", columns, bare_name="column")
            named = {name.lower() for name in declared.names}
            remaining = [field for field in schema.columns if field.name.lower() not in named]
            schema = schema.accept(pa.schema([*remaining, *declared]), merge=True)
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
    """Update a table's indexes and build missing ones."""
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
    """Update a table's Delta mirror to the newest version."""
    table = open_in(path, storage)

    def step(rebuild: bool = False) -> PublicationResult:
        return table.publish(
            place,
            rebuild=rebuild,
            guard=guard,
            change_feed=change_feed,
            retention=retention,
            storage_options=storage,
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
    type=click.Choice([choice.value for choice in ValidBy]),
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
    """Store a table's history in another table. Creates or updates that table."""
    table, history_table = open_in(path, storage), Table(open_store(place, storage))
    with progress("keep history", as_json=as_json):
        done = keep(
            table,
            history_table,
            columns=None if columns is None else split_names("--columns", columns),
            by=ValidBy(by),
            tracked=() if track is None else split_names("--track", track),
            untracked=() if no_track is None else split_names("--no-track", no_track),
        )
    head = history_table.log.head() if done is None else history_table.log.at(done.version)
    facts = {"history": place, "version": head.version, "rows": head.live_rows}
    print_facts({**facts, "has_changed": done is not None}, as_json=as_json)


@upsertflow.command()
@on_table
@click.option("--to", "version", type=int, required=True, help="The version to go back to.")
@json_option
def restore(path: str, storage: Mapping[str, str], version: int, as_json: bool) -> None:
    """Restore an earlier version. Adds a new version with exact retractions."""
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
