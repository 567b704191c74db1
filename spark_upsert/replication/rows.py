"""A batch's rows for the routed write (`BatchRows`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.envelopes.postgres import PostgresForm
from spark_upsert.envelopes.write_plan import WritePlan, plan_table_write
from spark_upsert.options.write import WriteOptions
from spark_upsert.postgres.copies import Visibility
from spark_upsert.postgres.messages import EMPTY, OP, XID
from spark_upsert.postgres.spool import RowsByTable
from spark_upsert.replication.moved_rows import Key, read_moved_values, with_values
from spark_upsert.routed.plan import table_below
from spark_upsert.routed.router import Route
from spark_upsert.store import Store
from spark_upsert.table.table import Table


@dataclass(frozen=True, slots=True)
class Target:
    """A table below the root."""

    route: Route
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BatchRows:
    """A batch's rows by table (`TableRows`)."""

    root: Store
    spooled: RowsByTable
    """By source table: ``schema.name``, with what cannot be in a name between."""
    parts: Mapping[Route, Iterable[str]]
    """The source tables whose rows a table takes: itself, or its partitions."""
    targets: Mapping[Route, Target]
    repeated: Mapping[str, Visibility]
    """By source table: transactions that its copy has."""
    partitions: frozenset[str]
    """Source tables with a part of a table's rows. The truncate of one is no truncate of the table,
    which is copied again."""

    @property
    def bytes(self) -> int:
        """Total bytes."""
        return self.spooled.bytes

    @property
    def counts(self) -> dict[Route, int]:
        """Rows by table, with those that a copy has."""
        return {
            route: sum(self.spooled.counts[part] for part in parts)
            for route, parts in self.parts.items()
        }

    def rows(self, route: Route) -> Iterator[pa.RecordBatch]:
        """Yield a table's rows without the changes that its copy has."""
        keys = self.targets[route].keys
        values = read_moved_values(
            lambda: self._rows(route), keys, lambda *wanted: self._look_up(route, *wanted)
        )
        for batch in self._rows(route):
            yield with_values(batch, values) if values else batch

    def _rows(self, route: Route) -> Iterator[pa.RecordBatch]:
        for part in self.parts[route]:
            visibility = self.repeated.get(part)
            for batch in self.spooled.rows(part):
                rows = batch if visibility is None else _without(batch, visibility)
                if part in self.partitions:
                    rows = rows.filter(pc.not_equal(rows.column(OP), EMPTY))
                yield rows

    def _look_up(
        self, route: Route, wanted: Sequence[Key], columns: Sequence[str]
    ) -> dict[Key, dict[str, Any]]:
        assert route.folder is not None
        table, keys = table_below(self.root, route.folder), self.targets[route].keys
        head = table.log.try_head()
        if head is None:
            return {}
        names = [*keys, *columns]
        frame = {key: [values[at] for values in wanted] for at, key in enumerate(keys)}
        fields = [head.schema.columns.field(key) for key in keys]
        found = table.get(pa.table(frame, schema=pa.schema(fields)), columns=names)
        return {tuple(row[key] for key in keys): row for row in found.to_pylist()}

    def plan(
        self, route: Route, table: Table, options: WriteOptions, new_table_id: str
    ) -> WritePlan:
        """Plan the write of a table's rows; it may add columns and widen types."""
        incoming = pa.unify_schemas([self.spooled.schema(part) for part in self.parts[route]])
        form = PostgresForm(incoming, self.targets[route].keys)
        return plan_table_write(
            table,
            replace(options, merge_schema=True),
            incoming,
            new_table_id=new_table_id,
            form=form,
        )


def _without(batch: pa.RecordBatch, visibility: Visibility) -> pa.RecordBatch:
    xids = pc.fill_null(batch.column(XID), -1).to_numpy(zero_copy_only=False)
    is_repeated = np.where(xids < 0, False, visibility.contains(xids))
    return batch.filter(pa.array(~is_repeated)) if is_repeated.any() else batch
