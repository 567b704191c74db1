"""A kept table: it takes the steps of a grouped view, and shows its result at each version.

    result at version v  =  the groups of V(recorded position at v)

Each step is one epoch: contributions, and the marker that names where the step goes from and to.
The table takes a step exactly once, however many writers deliver it and how often
(`table.write.moves`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from spark_upsert.errors import PlanError
from spark_upsert.plan.kernels.taking import no_rows
from spark_upsert.table.changes.stretches import cut_into_stretches
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.table import Table
from spark_upsert.table.write.moves import recorded_position
from spark_upsert.views.groups.contributions import marker
from spark_upsert.views.groups.grouping import Grouping
from spark_upsert.views.groups.shown import PLAN, RESULT, ShownGroups, grouping_of
from spark_upsert.views.pairs import Pairs, RelationRows, concat


@dataclass(frozen=True, slots=True)
class Kept:
    """A table of contributions, and the grouping that says what they mean."""

    table: Table
    grouping: Grouping

    @classmethod
    def made(cls, table: Table, grouping: Grouping, plan: str) -> Kept:
        """Return the table that keeps a view; it is made if there is none.

        Parameters
        ----------
        table : Table
            May be absent.
        grouping : Grouping
        plan : str
            The text of the view.

        Raises
        ------
        PlanError
            There is a table, and it is not of this view.
        TableExistsError
            There is one that keeps nothing.
        """
        text = grouping.to_json()
        own = {PLAN: plan, RESULT: text}
        head = table.ensure(grouping.kept, internal=own)
        found = {name: head.properties.get(name) for name in own}
        if found != own:
            raise PlanError(
                f"the table at '{table.store.url}' keeps another view: expected {plan:.300}, found "
                f"{found[PLAN]!s:.300}.",
                hint="keep this view in another path.",
            )
        return cls(table, grouping)

    @classmethod
    def opened(cls, table: Table) -> Kept:
        """Return a table that keeps a view, as its properties say.

        Raises
        ------
        PlanError
            It keeps none.
        """
        grouping = grouping_of(table.log.head().properties)
        if grouping is None:
            raise PlanError(
                f"the table at '{table.store.url}' keeps no view.",
                hint="read it as any table, or keep a view in another path.",
            )
        return cls(table, grouping)

    # -- steps -----------------------------------------------------------------------

    def position(self) -> str:
        """Return up to which position of its view the table is; at first `moves.NOTHING`."""
        return recorded_position(self.table.at())

    def take(
        self,
        contributions: RelationRows,
        *,
        lower: str,
        upper: str,
        transaction: Transaction | None = None,
    ) -> bool:
        """Take what one step contributes, if the table does not have it yet.

        Parameters
        ----------
        contributions : pyarrow.RecordBatch
            Columns as ``grouping.kept.columns``. The table sums up entries of one key.
        lower, upper : str
            The positions before and behind the step.

        Returns
        -------
        bool
            Whether it was applied; else the table had it.

        Raises
        ------
        OtherTableError
            The step neither follows what the table has nor is in it.
        """
        entries = [contributions, marker(self.grouping, lower=lower, upper=upper)]
        step = pa.Table.from_batches(entries)
        return self.table.append(step, transaction=transaction) is not None

    # -- the result ------------------------------------------------------------------

    def rows(self, version: int | None = None) -> RelationRows:
        """Return the result at a version, by default the newest."""
        manifest = self.table.at(version).manifest
        return concat([no_rows(self.grouping.result), *self._shown.rows(manifest)])

    def look_up(self, groups: RelationRows, version: int) -> RelationRows:
        """Return the rows of some groups at a version: those of them that have any."""
        return self._shown.look_up(groups, self.table.at(version).manifest)

    def changes(self, lower: int, upper: int) -> Iterator[tuple[int, Pairs]]:
        """Yield what the epochs ``lower <= e < upper`` changed in the result, one by one."""
        log = self.table.log
        for stretch in cut_into_stretches(log, lower, upper, log.head().schema):
            yield from self._shown.changes(stretch)

    @property
    def _shown(self) -> ShownGroups:
        return ShownGroups(self.grouping, self.table.store)
