"""A batch's rows for the routed write (`BatchRows`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.envelopes.postgres import PostgresForm
from spark_upsert.envelopes.write_plan import WritePlan, plan_table_write
from spark_upsert.options.write import WriteOptions
from spark_upsert.postgres.copies import Visibility
from spark_upsert.postgres.messages import EMPTY, OP, XID
from spark_upsert.postgres.spool import RowsByTable
from spark_upsert.routed.router import Route
from spark_upsert.table.table import Table


@dataclass(frozen=True, slots=True)
class SourcePart:
    """The rows of a source table: a table's own, or those of a partition."""

    name: str
    """In `RowsByTable`."""
    visibility: Visibility | None
    """The transactions that the table's copy has, if the batch may repeat some."""
    is_partition: bool
    """The truncate of a partition is no truncate of the table, which is copied again."""


@dataclass(frozen=True, slots=True)
class Target:
    """A table below the root."""

    keys: tuple[str, ...]
    parts: list[SourcePart] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class BatchRows:
    """A batch's rows by table (`TableRows`)."""

    spooled: RowsByTable
    targets: Mapping[Route, Target]

    @property
    def bytes(self) -> int:
        """Total bytes."""
        return self.spooled.bytes

    @property
    def counts(self) -> dict[Route, int]:
        """Rows by table, with those that a copy has."""
        return {
            route: sum(self.spooled.counts[part.name] for part in target.parts)
            for route, target in self.targets.items()
        }

    def rows(self, route: Route) -> Iterator[pa.RecordBatch]:
        """Yield a table's rows without the changes that its copy has."""
        return iter_rows(self.spooled, self.targets[route])

    def plan(
        self, route: Route, table: Table, options: WriteOptions, new_table_id: str
    ) -> WritePlan:
        """Plan the write of a table's rows; it may add columns and widen types."""
        target = self.targets[route]
        incoming = pa.unify_schemas([self.spooled.schema(part.name) for part in target.parts])
        return plan_table_write(
            table,
            replace(options, merge_schema=True),
            incoming,
            new_table_id=new_table_id,
            form=PostgresForm(incoming, target.keys),
        )


def iter_rows(spooled: RowsByTable, target: Target) -> Iterator[pa.RecordBatch]:
    """Yield a table's rows without the changes that its copy has."""
    for part in target.parts:
        for batch in spooled.rows(part.name):
            rows = batch if part.visibility is None else _without(batch, part.visibility)
            if part.is_partition:
                rows = rows.filter(pc.not_equal(rows.column(OP), EMPTY))
            yield rows


def _without(batch: pa.RecordBatch, visibility: Visibility) -> pa.RecordBatch:
    xids = pc.fill_null(batch.column(XID), -1).to_numpy(zero_copy_only=False)
    is_repeated = np.where(xids < 0, False, visibility.contains(xids))
    return batch.filter(pa.array(~is_repeated)) if is_repeated.any() else batch
