"""A kept table: it takes the steps of a grouped view, and shows its result at each version.

    result at version v  =  the groups of V(recorded position at v)

Each step is one epoch: contributions, and the marker that names where the step goes from and to.
The table takes it exactly once, whoever delivers it and how often (`upsert.moves`).

The changed groups of some epochs are those of their entries; both their rows are made of all their
entries, before and behind. So a change that takes a smallest value away finds the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.changelog.modes import ChangeOptions, Deduplication
from spark_upsert.model.arrays import Mask
from spark_upsert.model.hashing import hash_keys
from spark_upsert.model.kept import GROUP_PART, MARKER_PART, PART
from spark_upsert.state.found import ABSENT
from spark_upsert.state.log.manifest import Transaction
from spark_upsert.state.snapshot import Snapshot
from spark_upsert.table import Table
from spark_upsert.upsert.moves import recorded_position
from spark_upsert.views.groups.contributions import folded, marker
from spark_upsert.views.groups.grouping import Grouping
from spark_upsert.views.groups.result import result
from spark_upsert.views.matching import codes, firsts
from spark_upsert.views.pairs import Pairs, Rows, concat, no_rows


@dataclass(frozen=True, slots=True)
class Kept:
    """A table of contributions, and the grouping that says what they mean."""

    table: Table
    grouping: Grouping

    # -- steps -----------------------------------------------------------------------

    def position(self) -> str:
        """Return up to which position of its view the table is; at first `moves.NOTHING`."""
        return recorded_position(self.table.at())

    def take(
        self,
        contributions: Rows,
        *,
        lower: str,
        upper: str,
        transaction: Transaction | None = None,
    ) -> bool:
        """Take what one step contributes, if the table does not have it yet.

        Parameters
        ----------
        contributions : pyarrow.RecordBatch
            Columns as ``grouping.kept.columns``. Entries of one key are summed up.
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
        entries = [
            folded(self.grouping, contributions),
            marker(self.grouping, lower=lower, upper=upper),
        ]
        step = pa.Table.from_batches(entries)
        return self.table.append(step, transaction=transaction) is not None

    # -- the result ------------------------------------------------------------------

    def rows(self, version: int | None = None) -> Rows:
        """Return the result at a version, by default the newest."""
        snapshot = self.table.at(version)
        return self._shown(_all_entries(snapshot))

    def look_up(self, groups: Rows, version: int) -> Rows:
        """Return the rows of some groups at a version: those of them that have any."""
        return self._shown(entries_of(self.table.at(version), self.grouping, groups))

    def pairs(self, lower: int, upper: int) -> Pairs:
        """Return what the epochs behind ``lower`` up to ``upper`` changed in the result.

        Parameters
        ----------
        lower : int
            A version; -1 for nothing.
        upper : int
            A later version.
        """
        groups = self.changed_groups(lower, upper)
        new = self.look_up(groups, upper)
        old = self.look_up(groups, lower) if lower >= 0 else no_rows(self.grouping.result)
        return aligned(self.grouping, old, new).changed()

    def changed_groups(self, lower: int, upper: int) -> Rows:
        """Return the groups that some epochs touch, each once."""
        keys = self.grouping.keys
        options = ChangeOptions(columns=(*keys, PART), deduplication=Deduplication.NONE)
        batches = self.table.iter_changes(lower + 1, upper + 1, options)
        found = [batch.filter(pc.not_equal(batch.column(PART), MARKER_PART)) for batch in batches]
        kept = self.grouping.kept.columns
        fields = pa.schema([kept.field(name) for name in (*keys, PART)])
        touched = concat([no_rows(fields), *(batch.select(fields.names) for batch in found)])
        return _distinct(touched, keys)

    def _shown(self, entries: Rows) -> Rows:
        return result(self.grouping, entries, url=self.table.store.url)


def aligned(grouping: Grouping, old: Rows, new: Rows) -> Pairs:
    """Return the pairs of two results; without columns of a group there is one group at most."""
    if grouping.keys:
        return Pairs.aligned(old, new, grouping.keys)
    count = max(old.num_rows, new.num_rows)
    at = [np.arange(count) if side.num_rows else np.full(count, ABSENT) for side in (old, new)]
    return Pairs.taken_from(old, new, at[0], at[1])


def entries_of(snapshot: Snapshot, grouping: Grouping, groups: Rows) -> Rows:
    """Return all entries of some groups, each once: their own, and those of their values.

    Parameters
    ----------
    snapshot : Snapshot
        Of the kept table.
    groups : pyarrow.RecordBatch
        The columns of the group, one row for each; the first column of others is ignored.
    """
    if not groups.num_rows:
        return no_rows(grouping.kept.columns)
    if not grouping.parts:
        return _groups_alone(snapshot, grouping, groups)
    entries = _all_entries(snapshot)
    return entries.filter(pa.array(_are_of(entries, groups, grouping)))


def _groups_alone(snapshot: Snapshot, grouping: Grouping, groups: Rows) -> Rows:
    """Return the entries of groups that have no parts: each is one key."""
    schema = snapshot.manifest.schema
    own = {PART: pa.repeat(pa.scalar(GROUP_PART, pa.int32()), groups.num_rows)}
    keys = [own[name] if name in own else groups.column(name) for name in schema.keys]
    hashes = hash_keys(keys, seed=schema.hash_seed)
    order = np.argsort(hashes)
    found = snapshot.find(hashes[order], [key.take(pa.array(order)) for key in keys])
    names = grouping.kept.columns.names
    columns = found.rows.take(names, found.at[found.present])
    return pa.RecordBatch.from_arrays(columns, schema=grouping.kept.columns)


def _all_entries(snapshot: Snapshot) -> Rows:
    batches = list(snapshot.read())
    return concat([no_rows(snapshot.manifest.schema.columns), *batches])


def _are_of(entries: Rows, groups: Rows, grouping: Grouping) -> Mask:
    """Return which entries belong to some groups."""
    keys = grouping.keys
    is_entry = np.asarray(entries.column(PART)) != MARKER_PART
    if not keys:
        return is_entry
    ours, theirs = codes(*([side.column(key) for key in keys] for side in (entries, groups)))
    found: Mask = is_entry & np.isin(ours, theirs)
    return found


def _distinct(rows: Rows, keys: tuple[str, ...]) -> Rows:
    if not keys:
        return rows.slice(0, min(1, rows.num_rows))
    [numbers] = codes([rows.column(key) for key in keys])
    return rows.select(list(keys)).take(pa.array(firsts(numbers)))
