"""The tables of a group, kept as columns; a table becomes a value when it is asked for.

A batch asks for the tables that it touches. Those that it does not touch cost what columns of them
cost to read, to send to the tasks and to look through, some hundred nanoseconds each: a value of
each took most of the time of a small batch beside 1 500 tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.table.log.manifest import TableVersion

FIELDS: Mapping[str, pa.DataType] = {
    "folder": pa.string(),
    "name": pa.string(),
    "values": pa.list_(pa.string()),
    "table_id": pa.string(),
    "version": pa.int64(),
    "token": pa.string(),
    "query": pa.string(),
    "batch": pa.int64(),
    "rows": pa.int64(),
    "tasks": pa.int64(),
    "parked": pa.int64(),
    "debt": pa.int64(),
    "debt_since": pa.timestamp("us", "UTC"),
    "priority": pa.int64(),
    "turn": pa.list_(pa.int64()),
    "committed": pa.timestamp("us", "UTC"),
    "terms": pa.string(),
}
"""The columns of the group table (`routed.group`)."""

_OF_PLACES = ("folder", "table_id", "version", "token")

_US_PER_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A table of the group, as its last whole batch left it."""

    folder: str
    name: str
    """The name that options use: the text that the template makes of the values as they are."""
    values: tuple[str, ...]
    place: TableVersion
    """The version that has the batch."""
    writer: str
    """The writer of that batch (`Transaction.writer`); ``""`` is a batch write without a name."""
    batch: int | None
    rows: int
    """Rows that came in that batch."""
    tasks: int = 1
    """Tasks that had rows of it."""
    parked: int = 0
    """Rows of all batches that are parked and not applied yet."""
    debt: int = 0
    """Compactions that are due."""
    debt_since_ms: int | None = None
    """The time since when it waits for its turn (`routed.debts`); None if nothing is due."""
    priority: int | None = None
    """The table's own priority, by which it gets its turn (`schedule`)."""
    committed_ms: int = 0

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Member:
        """Return what a row of the group table says of a table."""
        return cls(
            folder=row["folder"],
            name=row["name"],
            values=tuple(row["values"]),
            place=TableVersion(
                table_id=row["table_id"], version=row["version"], token=row["token"]
            ),
            writer=row["query"],
            batch=row["batch"],
            rows=row["rows"],
            tasks=row["tasks"],
            parked=row["parked"],
            debt=row["debt"],
            debt_since_ms=ms_of(row["debt_since"]),
            priority=row["priority"],
            committed_ms=ms_of(row["committed"]) or 0,
        )

    def to_row(self) -> dict[str, Any]:
        """Return its row of the group table."""
        return {
            "folder": self.folder,
            "name": self.name,
            "values": list(self.values),
            "table_id": self.place.table_id,
            "version": self.place.version,
            "token": self.place.token,
            "query": self.writer,
            "batch": self.batch,
            "rows": self.rows,
            "tasks": self.tasks,
            "parked": self.parked,
            "debt": self.debt,
            "debt_since": us_of(self.debt_since_ms),
            "priority": self.priority,
            "committed": us_of(self.committed_ms),
        }


class Members(Mapping[str, Member]):
    """Tables by folder.

    Parameters
    ----------
    rows : pyarrow.Table
        Columns as `FIELDS`, a row for each table.
    """

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows.combine_chunks()
        self._made: dict[str, Member] = {}

    @classmethod
    def of(cls, members: Iterable[Member]) -> Members:
        """Return some tables."""
        return cls(pa.Table.from_pylist([each.to_row() for each in members], pa.schema(FIELDS)))

    def __repr__(self) -> str:
        return f"Members({len(self)} tables)"

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __contains__(self, folder: object) -> bool:
        return folder in self._index

    def __getitem__(self, folder: str) -> Member:
        found = self._made.get(folder)
        if found is None:
            [row] = self._rows.slice(self._index[folder], 1).to_pylist()
            found = self._made[folder] = Member.of_row(row)
        return found

    @cached_property
    def _index(self) -> dict[str, int]:
        return {folder: at for at, folder in enumerate(self._rows["folder"].to_pylist())}

    @property
    def names(self) -> list[str]:
        """The names of the tables."""
        found: list[str] = self._rows["name"].to_pylist()
        return found

    @property
    def places(self) -> TableVersions:
        """The version that each table has."""
        return TableVersions(self._rows.select(_OF_PLACES))

    def waiting(self) -> list[Member]:
        """Return the tables that are due for compaction, or have parked rows."""
        waits = pc.or_(
            pc.greater(self._rows["debt"], 0).combine_chunks(),
            pc.greater(self._rows["parked"], 0).combine_chunks(),
        )
        return [self[folder] for folder in self._rows["folder"].filter(waits).to_pylist()]


class TableVersions(Mapping[str, TableVersion]):
    """The versions of tables, by folder. Travels by pickle, as columns.

    Parameters
    ----------
    rows : pyarrow.Table
        Columns ``folder``, ``table_id``, ``version``, ``token``.
    """

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def __reduce__(self) -> tuple[Any, ...]:
        return TableVersions, (self._rows,)  # What is derived does not travel.

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __contains__(self, folder: object) -> bool:
        return folder in self._index

    def __getitem__(self, folder: str) -> TableVersion:
        _, table_id, version, token = self._rows.slice(self._index[folder], 1).columns
        return TableVersion(
            table_id=table_id[0].as_py(), version=version[0].as_py(), token=token[0].as_py()
        )

    def folder_of(self, table_id: str) -> str | None:
        """Return the folder of a table by its identity; None if it is none of these."""
        at = pc.index(self._rows["table_id"], table_id).as_py()
        return None if at < 0 else str(self._rows["folder"][at].as_py())

    @cached_property
    def _index(self) -> dict[str, int]:
        return {folder: at for at, folder in enumerate(self._rows["folder"].to_pylist())}


def ms_of(value: Any) -> int | None:
    """Return a time in ms since 1970."""
    return None if value is None else round(value.timestamp() * 1000)


def us_of(ms: int | None) -> int | None:
    """Return a time as the group table keeps it."""
    return None if ms is None else ms * _US_PER_MS
