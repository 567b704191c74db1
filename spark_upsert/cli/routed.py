"""`upsertflow tables`: the tables below the root of a write into many, and what each has.

The group table answers for the tables that it knows, in one read. Folders that it does not know are
looked at, each by one request: a table that no whole batch has brought rows, or somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from spark_upsert.errors import TableNotFoundError
from spark_upsert.options.below import Pattern
from spark_upsert.routed.group import Batch, Group, GroupTable, Member
from spark_upsert.routed.template import Template, is_routed
from spark_upsert.source.discovery import Discovery
from spark_upsert.store import Store, open_store

_THREADS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedLine:
    """A table below a root; what nobody recorded is None."""

    folder: str
    name: str | None
    """The path below the root with the values as they are."""
    values: tuple[str, ...] | None
    """Of the columns of the template."""
    version: int | None = None
    """That has the newest batch with rows of it."""
    query: str | None = None
    batch: int | None = None
    rows: int | None = None
    """That came in that batch."""
    parked: int | None = None
    debt: int | None = None
    committed_ms: int | None = None
    note: str | None = None

    @classmethod
    def of_member(cls, member: Member) -> RoutedLine:
        """Return the line of a table that a whole batch has brought rows."""
        return cls(
            folder=member.folder,
            name=member.name,
            values=member.values,
            version=member.place.version,
            query=member.writer,
            batch=member.batch,
            rows=member.rows,
            parked=member.parked,
            debt=member.debt,
            committed_ms=member.committed_ms,
        )

    @classmethod
    def of_stranger(cls, folder: str, template: Template) -> RoutedLine:
        """Return the line of a table that the group does not know."""
        values = template.try_values(folder)
        if values is None:
            note = "not of the group: no values lead here"
            return cls(folder=folder, name=None, values=None, note=note)
        note = "not of the group: no whole batch had rows of it"
        return cls(folder=folder, name=template.name(values), values=values, note=note)

    def to_json(self) -> dict[str, Any]:
        """Return the form for programs."""
        return asdict(self)

    def for_people(self) -> dict[str, Any]:
        """Return the columns of a line on a screen."""
        return {
            "table": self.name,
            "folder": None if self.folder == self.name else self.folder,
            "version": self.version,
            "batch": self.batch,
            "rows": self.rows,
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
    """The newest that is whole; None before the first."""
    lines: tuple[RoutedLine, ...]
    """Sorted by folder."""

    def facts(self) -> dict[str, Any]:
        """Return what is said of all tables."""
        batch = self.batch
        return {
            "folder": "",
            "template": self.template,
            "tables": len(self.lines),
            "query": batch and batch.writer,
            "batch": batch and batch.number,
            "rows": batch and batch.rows,
            "parked": batch and batch.parked,
            "committed_ms": batch and batch.committed_ms,
            "patterns_that_match_no_table": list(batch.unmatched) if batch else [],
        }


def list_tables(path: str, storage: Mapping[str, str]) -> Listing:
    """Return the tables below a root.

    Parameters
    ----------
    path : str
        The root, or the template: of a root that has no whole batch yet only this finds them.

    Raises
    ------
    TableNotFoundError
        The root has no group table, and the path names no columns.
    """
    template = Template.parse(path) if is_routed(path) else None
    root = open_store(template.root if template else path, storage)
    group = GroupTable(root).at()
    if template is None:
        template = _recorded(path, group)
    known = (RoutedLine.of_member(member) for member in group.members.values())
    lines = sorted([*known, *_strangers(root, template, group)], key=lambda line: line.folder)
    return Listing(template=template.relative, batch=group.batch, lines=tuple(lines))


def _recorded(path: str, group: Group) -> Template:
    if group.batch is None:
        raise TableNotFoundError(
            f"below '{path}' no stream or write into many tables has completed a batch (there is "
            "no table in its folder '_group').",
            hint="give the root, which is the part of the 'path' before its first column, or the "
            "whole of it, as in '/lake/{topic}'.",
            path=path,
        )
    return Template.parse(f"/{group.batch.template}")


def _strangers(root: Store, template: Template, group: Group) -> Iterator[RoutedLine]:
    """Yield the tables that the group does not know."""
    pattern = Pattern(tuple("*" for _ in template.segments))
    below = Discovery(root, pattern, threads=_THREADS)
    for folder in below.tables(each for each in below.folders() if each not in group.members):
        yield RoutedLine.of_stranger(folder, template)
