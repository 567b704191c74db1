"""Commands for routed writes: ``tables``, ``dead-letters`` and ``replay``, and work on all tables.

One group table read returns its tables; each other folder costs one request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import click

from spark_upsert.cli.program import as_pairs, folders, json_option, storage_options, upsertflow
from spark_upsert.cli.render import print_facts, print_rows, print_text, progress
from spark_upsert.core.path_template import Template, is_routed
from spark_upsert.core.threads import map_in_order
from spark_upsert.errors import TableNotFoundError, UpsertFlowError, as_flag, masked
from spark_upsert.options.inputs import Pattern
from spark_upsert.routed.dead_letter import FOLDER as PARKED
from spark_upsert.routed.dead_letter import NAMELESS, DeadLetterRows, DeadLetterTable
from spark_upsert.routed.group import (
    FOLDER,
    Batch,
    GroupTable,
    Member,
    TableGroup,
    incomplete_batches,
)
from spark_upsert.routed.plan import require_same
from spark_upsert.routed.replay import ReplayResult, drop_dead_letters, replay_dead_letters
from spark_upsert.store import Store
from spark_upsert.store.open import PrefixStore, open_store
from spark_upsert.streams.inputs.discovered import Discovery
from spark_upsert.table.table import Table

THREADS = 16
"""Tables processed in parallel if each needs few requests."""

NEVER_WHOLE = "never_whole"
"""Result field: permanently incomplete batches, because their query lost the root."""

_ANY_FOLDER = Pattern(("*",))

TableWork = Callable[[Table], Mapping[str, Any]]
"""Processes a table and returns results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedLine:
    """A table below a root; values never recorded are None."""

    folder: str
    name: str | None
    """Path below the root with unescaped values."""
    values: tuple[str, ...] | None
    """Template column values."""
    version: int | None = None
    """Version with the table's newest batch."""
    query: str | None = None
    batch: int | None = None
    rows: int | None = None
    """The table's rows in that batch."""
    parked: int = 0
    """Dead-letter rows from all batches."""
    debt: int | None = None
    committed_ms: int | None = None
    note: str | None = None

    @classmethod
    def of_member(cls, member: Member, parked: int) -> RoutedLine:
        """Build from a group member."""
        return cls(
            folder=member.folder,
            name=member.name,
            values=member.values,
            version=member.place.version,
            query=member.writer,
            batch=member.batch,
            rows=member.rows,
            parked=parked,
            debt=member.debt,
            committed_ms=member.committed_ms,
        )

    @classmethod
    def of_stranger(
        cls, folder: str, template: Template, *, parked: int, is_there: bool = True
    ) -> RoutedLine:
        """Build for a table outside the group, or one not created yet."""
        values = template.try_values(folder)
        if not is_there:
            note = "not there: all its rows are parked"
        elif values is None:
            note = "not of the group: no values lead here"
        else:
            note = "not of the group: no whole batch had rows of it"
        name = None if values is None else template.name(values)
        return cls(folder=folder, name=name, values=values, parked=parked, note=note)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)

    def for_people(self) -> dict[str, Any]:
        """Return the columns for display."""
        return {
            "table": self.name,
            "folder": None if self.folder == self.name else self.folder,
            "version": self.version,
            "batch": self.batch,
            "rows_of_batch": self.rows,
            "parked": self.parked,
            "debt": self.debt,
            "committed_ms": self.committed_ms,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """All tables below a root."""

    template: str
    batch: Batch | None
    """Newest complete batch; None before the first."""
    lines: tuple[RoutedLine, ...]
    """Sorted by folder."""
    nameless: int
    """Dead-letter rows without a table name."""

    def facts(self) -> dict[str, Any]:
        """Return totals over all tables."""
        batch = self.batch
        return {
            "folder": "",
            "template": self.template,
            "tables": len(self.lines),
            "query": batch and batch.writer,
            "batch": batch and batch.number,
            "rows": batch and batch.rows,
            "parked": self.nameless + sum(line.parked for line in self.lines),
            "parked_nameless": self.nameless,
            "committed_ms": batch and batch.committed_ms,
            "patterns_that_match_no_table": list(batch.unmatched) if batch else [],
        }


def list_tables(path: str, storage: Mapping[str, str]) -> Listing:
    """List the tables below a root."""
    template = Template.parse(path) if is_routed(path) else None
    root = open_store(template.root if template else path, storage)
    group = GroupTable(root).at()
    if template is None:
        template = _recorded_template(path, group)
    parked = DeadLetterTable(root).counts()
    members = (
        RoutedLine.of_member(member, parked.get(folder, 0))
        for folder, member in group.members.items()
    )
    lines = [*members, *_iter_strangers(root, template, group, parked)]
    return Listing(
        template=template.relative,
        batch=group.batch,
        lines=tuple(sorted(lines, key=lambda line: line.folder)),
        nameless=parked.get(NAMELESS, 0),
    )


def _recorded_template(path: str, group: TableGroup) -> Template:
    if group.batch is None:
        raise _no_group_error(path)
    return Template.parse(f"/{group.batch.template}")


def _no_group_error(path: str) -> TableNotFoundError:
    return TableNotFoundError(
        f"below '{path}' no stream or write into many tables has completed a batch (there is no "
        "table in its folder '_group').",
        hint="give the root, which is the part of the 'path' before its first column. 'tables' "
        "takes the whole of it, too, as in '/lake/{topic}'.",
        path=path,
    )


def _iter_strangers(
    root: Store, template: Template, group: TableGroup, parked: Mapping[str, int]
) -> Iterator[RoutedLine]:
    """Yield tables outside the group, and tables with dead-letter rows only."""
    pattern = Pattern(tuple("*" for _ in template.segments))
    discovery = Discovery(root, pattern, threads=THREADS)
    there = discovery.tables(
        folder for folder in discovery.folders() if folder not in group.members
    )
    for folder in there:
        yield RoutedLine.of_stranger(folder, template, parked=parked.get(folder, 0))
    for folder in parked.keys() - group.members.keys() - {*there, NAMELESS}:
        yield RoutedLine.of_stranger(folder, template, parked=parked[folder], is_there=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWorkResult:
    """Result for one table in a group."""

    table: str
    """Table name, or the folder for the group's internal tables."""
    facts: Mapping[str, Any]
    problem: str | None = None


def for_each_table(
    root: str,
    storage: Mapping[str, str],
    work: TableWork,
    *,
    threads: int = 1,
) -> Iterator[TableWorkResult]:
    """Process each table in a group and its internal tables; errors do not stop the others.

    A missing table, or one no longer in the group, counts as failed.
    """
    store = open_store(root, storage)
    group_table = GroupTable(store)
    group, newest = group_table.at(), group_table.table.log.cached_head
    if group.batch is None or newest is None:
        raise _no_group_error(root)
    names = {folder: member.name for folder, member in sorted(group.members.items())}
    table_refs = {folder: member.place for folder, member in group.members.items()}
    own_tables = [
        folder for folder in (FOLDER, PARKED) if Discovery(store, _ANY_FOLDER).is_table(folder)
    ]

    def one(folder: str) -> TableWorkResult:
        name = names.get(folder, folder)
        try:
            table = Table(PrefixStore(store, folder))
            head = table.log.try_head()
            if head is None:
                raise TableNotFoundError.at(table.store.url)
            if folder in names:
                require_same(table_refs, folder, name, head, table.store.url)
            lost = incomplete_batches(head, newest) if folder in names else {}
            messages = {NEVER_WHOLE: [f"batch {n} of '{writer}'" for writer, n in lost.items()]}
            return TableWorkResult(table=name, facts={**work(table), **(messages if lost else {})})
        except (UpsertFlowError, OSError) as error:
            return TableWorkResult(
                table=name, facts={}, problem=masked(str(error)).partition("\n")[0]
            )

    yield from map_in_order(one, [*names, *own_tables], threads)


def open_in(path: str, storage: Mapping[str, str]) -> Table:
    """Open a table for a command; for a routed root, raise with a hint."""
    try:
        return Table.open(path, storage_options=storage)
    except TableNotFoundError:
        batch = GroupTable(open_store(path, storage)).at().batch
        if batch is None:
            raise
        raise TableNotFoundError(
            f"'{path}' is no table, but the root of those that one stream writes as "
            f"'{batch.template}'.",
            hint=f"'upsertflow tables {path}' lists them. Name one of them, or give --all to a "
            "command that has it.",
            path=path,
        ) from None


SHOWN = ("name", "folder", "query", "batch", "rows", "parked_ms", "age_ms", "error", "reason")
"""Displayed columns for dead-letter rows."""

RESULT_COLUMNS = tuple(field.name for field in fields(ReplayResult))


def open_root(path: str, storage: Mapping[str, str]) -> Store:
    """Open a root by its path or by a path template."""
    return open_store(Template.parse(path).root if is_routed(path) else path, storage)


def line_of(parked: DeadLetterRows, now_ms: int) -> dict[str, Any]:
    """Return one dead-letter batch as JSON fields."""
    names = ("folder", "name", "query", "batch", "rows", "parked_ms")
    return {
        **{name: getattr(parked, name) for name in names},
        "age_ms": max(0, now_ms - parked.parked_ms),
        **{name: getattr(parked, name) for name in ("error", "reason", "hint")},
    }


def advice_of(parked: Iterable[DeadLetterRows], root: str) -> Iterator[str]:
    """Yield the first error's hint for each table."""
    hints: dict[str, str] = {}
    for dead_letter in parked:
        if dead_letter.hint:
            hints.setdefault(dead_letter.name, dead_letter.hint)
    for name, hint in hints.items():
        yield f"{name or 'rows without a table'}: {hint}"
    if any(hints):
        yield f"Then: upsertflow replay {root} NAME, with the --set and --unset that are named."


@upsertflow.command()
@click.argument("root", shell_complete=folders)
@storage_options
@json_option
def tables(root: str, storage: Mapping[str, str], as_json: bool) -> None:
    """List the tables written by one stream. Shows name, query, rows and debt.

    ROOT is the folder before the first column in the stream's path. If no batch is complete yet,
    pass the full path, as in '/lake/{topic}'. JSON begins with a line about all tables, with an
    empty folder.
    """
    lines = list_tables(root, storage)
    if as_json:
        print_rows([lines.facts(), *(line.to_json() for line in lines.lines)], (), as_json=True)
        return
    print_facts(lines.facts(), as_json=False)
    if lines.lines:
        rows = [line.for_people() for line in lines.lines]
        print_rows(rows, rows[0], as_json=False)


@upsertflow.command("dead-letters")
@click.argument("root", shell_complete=folders)
@storage_options
@json_option
def show_dead_letters(root: str, storage: Mapping[str, str], as_json: bool) -> None:
    """Show dead-letter rows below ROOT. Lists tables, batches, row counts and reasons.

    ROOT is the folder before the first column in the stream's path, or the full path.
    """
    dead_letters = DeadLetterTable(open_root(root, storage)).list_batches()
    now_ms = round(time.time() * 1000)
    rows = [line_of(dead_letter, now_ms) for dead_letter in dead_letters]
    print_rows(rows, SHOWN, as_json=as_json)
    for advice in () if as_json else advice_of(dead_letters, root):
        print_text(advice)


@upsertflow.command("replay")
@click.argument("root", shell_complete=folders)
@click.argument("names", nargs=-1)
@storage_options
@click.option(
    "--set",
    "given",
    multiple=True,
    metavar="OPTION=VALUE",
    callback=as_pairs,
    help="A write option that replaces the stored one, such as mergeSchema=true.",
)
@click.option(
    "--unset",
    "taken_back",
    multiple=True,
    metavar="OPTION",
    help="A stored write option to remove.",
)
@click.option("--drop", "drops", is_flag=True, help="Delete the rows instead of applying them.")
@click.option("--nameless", is_flag=True, help="With --drop: the rows without a table.")
@json_option
def replay_rows(
    root: str,
    names: Sequence[str],
    storage: Mapping[str, str],
    given: Sequence[tuple[str, str]],
    taken_back: Sequence[str],
    drops: bool,
    nameless: bool,
    as_json: bool,
) -> None:
    """Replay dead-letter rows below ROOT. Pass table NAMES to select some.

    Each batch becomes a version, in order and exactly once; the stream may keep running. A still
    failing table does not stop the others. With --drop, delete the rows instead.
    """
    if nameless and not drops:
        raise click.UsageError("--nameless goes with --drop: such rows have no table.")
    if drops and not (names or nameless):
        raise click.UsageError("--drop needs NAMES, or --nameless.")
    store = open_root(root, storage)
    done: list[ReplayResult] = []
    try:
        if drops:
            done = drop_dead_letters(store, names, nameless=nameless)
        else:
            options = {**dict.fromkeys(taken_back, ""), **dict(given)}
            with progress("replay", as_json=as_json) as shown:

                def note(outcome: ReplayResult) -> None:
                    done.append(outcome)
                    shown(f"{len(done):,} tables")

                replay_dead_letters(store, names, options=options, on_result=note)
    except UpsertFlowError as error:
        error.name_settings(as_flag)
        raise
    finally:  # Also after an error: the tables before it are replayed.
        if done:
            print_rows([asdict(outcome) for outcome in done], RESULT_COLUMNS, as_json=as_json)
