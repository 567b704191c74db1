"""Destinations of a database's batches (`Destination`): tables below a root, or a spool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import pyarrow as pa

from spark_upsert.core.lsn import format_lsn
from spark_upsert.core.path_template import Template
from spark_upsert.errors import OptionError
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.postgres.feed import BatchEnd
from spark_upsert.postgres.spool import RowsByTable
from spark_upsert.replication.rows import BatchRows, Target
from spark_upsert.replication.state import FollowerState
from spark_upsert.routed.commit import commit_routed
from spark_upsert.routed.group import GroupTable, SourcePosition
from spark_upsert.routed.plan import plan_routed, root_of, table_below
from spark_upsert.routed.router import Route, route_of
from spark_upsert.routed.stage import stage_tables
from spark_upsert.store import Store
from spark_upsert.table.log.manifest import Transaction

SCHEMA, TABLE = "_schema", "_table"
"""The columns that name a table in the path."""

_INCOMING = pa.schema([(SCHEMA, pa.string()), (TABLE, pa.string())])

_THREADS = 4
"""Tables staged and committed side by side, at least."""

_SPILL_BYTES = 32 << 20
"""Changes of one table in memory; more go to the local disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBatch:
    """The contents of a batch."""

    rows: RowsByTable
    targets: Mapping[tuple[str, str], Target]
    """By schema and name."""
    end: BatchEnd
    is_copy: bool
    """Whether the rows replace the tables'."""
    is_consistent: bool
    """Whether all tables together then show the source's state."""

    @property
    def row_count(self) -> int:
        """Rows, with those that a copy has."""
        return sum(
            self.rows.counts[part.name] for target in self.targets.values() for part in target.parts
        )


class Destination(Protocol):
    """Where batches are written."""

    @property
    def store(self) -> Store:
        """The folder with the state."""
        ...

    def prepare(self) -> None:
        """Raise, before anything is read, if nothing can be written."""
        ...

    def has(self, state: FollowerState) -> bool:
        """Return whether the batch planned last is complete."""
        ...

    def has_table(self, state: FollowerState, target: tuple[str, str]) -> bool:
        """Return whether a table has the batch planned last."""
        ...

    def write(self, state: FollowerState, batch: PlannedBatch) -> None:
        """Write the batch planned last, completely and durably."""
        ...

    def confirmable(self, state: FollowerState, position: int) -> int:
        """Return the position to confirm to the server when everything up to one is written."""
        ...

    def releases(self, state: FollowerState, log_bytes: int) -> bool:
        """Return whether an idle source lets the server remove so much log of others."""
        ...

    def wait_for_room(self) -> None:
        """Wait until another batch may be written."""
        ...


class RoutedDestination:
    """The tables below a root: each batch is a batch of the root's group.

    Parameters
    ----------
    options : RoutedOptions
    """

    def __init__(self, options: RoutedOptions) -> None:
        require_no_parking(options)
        # Tables wait for the disk side by side, also where one thread would do for a large batch.
        threads = max(options.commit_threads, _THREADS)
        self._options = options = replace(options, commit_threads=threads)
        self._root = root_of(options)

    @property
    def store(self) -> Store:
        return self._root

    @cached_property
    def _group(self) -> GroupTable:
        return GroupTable(self._root)

    def prepare(self) -> None:
        plan_routed(self._options, _INCOMING, root=self._root)

    def has(self, state: FollowerState) -> bool:
        return self._group.has(_transaction(state))

    def has_table(self, state: FollowerState, target: tuple[str, str]) -> bool:
        folder = route_to(self._options.template, target).folder
        assert folder is not None
        head = table_below(self._root, folder).log.try_head()
        return head is not None and head.has(_transaction(state))

    def write(self, state: FollowerState, batch: PlannedBatch) -> None:
        """Write into the tables, then record the batch in the group."""
        routed, overwrite = self._options, batch.is_copy
        routes = {route_to(routed.template, name): t for name, t in batch.targets.items()}
        rows = BatchRows(batch.rows, routes)
        plan = plan_routed(routed, _INCOMING, root=self._root, overwrite=overwrite)
        threads = routed.commit_threads
        staged = stage_tables(
            plan,
            self._root,
            rows,
            rows.counts,
            _transaction(state),
            0,
            threads=threads,
            spill_bytes=_SPILL_BYTES,
        )
        commit_routed(
            self._root,
            routed,
            [staged],
            _transaction(state),
            overwrite=overwrite,
            source=SourcePosition(
                lsn=format_lsn(state.upper),
                committed_us=batch.end.committed_us or None,
                is_whole=batch.is_consistent,
            ),
        )

    def confirmable(self, state: FollowerState, position: int) -> int:
        return position

    def releases(self, state: FollowerState, log_bytes: int) -> bool:
        return True

    def wait_for_room(self) -> None:
        """Return: a batch is written before the next one is read."""


def require_no_parking(options: RoutedOptions) -> None:
    """Raise `OptionError` if a table may be left behind the others."""
    if options.park:
        raise OptionError.refused(
            "onTableError",
            "cannot be 'park' here: a parked table would not follow the database",
            hint="leave it out.",
        )


def route_to(template: Template, target: tuple[str, str]) -> Route:
    """Return the route of a table, by schema and name; raise if it has no valid folder."""
    values: dict[str, str] = dict(zip((SCHEMA, TABLE), target, strict=True))
    unknown = next((column for column in template.columns if column not in values), None)
    if unknown is not None:
        raise OptionError.invalid(
            "path", f"{{{unknown}}}", f"a path with {{{SCHEMA}}} and {{{TABLE}}} only"
        )
    route = route_of(template, [values[column] for column in template.columns])
    if route.problem is not None:
        raise route.problem
    return route


def _transaction(state: FollowerState) -> Transaction:
    """Return the transaction of the batch planned last."""
    writer = Transaction.writer_of_query(state.writer)
    return Transaction(writer=writer, number=state.number, is_consecutive=True)
