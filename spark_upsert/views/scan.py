"""Table scans (`ScanRelation`): rows by key, by index or by a full read, at any version.

An index only proposes keys, also those of commands between its version and the wanted one; each is
looked up.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_upsert.core.arrow_types import type_text
from spark_upsert.core.durations import Fields
from spark_upsert.core.key_hash import ALL_HASHES, HashRange, hash_keys
from spark_upsert.core.keys import Positions, Words
from spark_upsert.core.names import has_column
from spark_upsert.errors import CorruptionError, PlanError, SchemaError, about, setting
from spark_upsert.plan.join_keys import NOWHERE, empty_batch
from spark_upsert.plan.nodes import Scan
from spark_upsert.table.changelog.changes import Changes, cut_into_ranges
from spark_upsert.table.changelog.read import changes_by_piece
from spark_upsert.table.index.index import Index
from spark_upsert.table.log.manifest import stores_rows
from spark_upsert.table.state.reduce import ABSENT
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.views.intervals import Pairs, RelationRows, Spans, concat, take_rows
from spark_upsert.views.relation import (
    At,
    Driving,
    LookedUpRows,
    Source,
    Step,
    distinct_rows,
    distinct_values,
    filter_matching,
    key_match_mask,
)

_LOGGER = logging.getLogger(__name__)


class BaseTable(Protocol):
    """A table, as a plan reads it. Versions are epoch versions; None is before the first."""

    @property
    def may_lack_key(self) -> bool:
        """Whether NULL is a key there (`Relation.may_lack_key`)."""
        ...

    def hashes(self, keys: Sequence[pa.Array]) -> Words:
        """Return the keys' hashes, by which the table is sorted."""
        ...

    def is_indexed(self, column: str) -> bool:
        """Return whether there is an index on a column, whatever state it is in."""
        ...

    def index(self, column: str) -> Index | None:
        """Return the index on a column, or None if no usable one exists at present."""
        ...

    def chunks(self, version: int | None, hash_range: HashRange) -> list[HashRange]:
        """Cut a hash range into pieces with rows fitting in memory."""
        ...

    def changes(
        self, before: int, after: int, hash_range: HashRange, *, net: bool
    ) -> tuple[Pairs, Positions]:
        """Return the changes between two versions, and each pair's version."""
        ...

    def look_up(self, keys: RelationRows, version: int | None) -> LookedUpRows:
        """Return the rows for keys."""
        ...

    def scan(self, version: int | None, hash_range: HashRange = ALL_HASHES) -> RelationRows:
        """Return all rows with a key hash in a range."""
        ...


OpenBase = Callable[[Scan], BaseTable]
"""Opens a scan's table; the same one for equal scans."""


class ScanRelation:
    """A table's rows (`Relation`)."""

    def __init__(self, node: Scan, base: BaseTable) -> None:
        self.node = node
        self.schema = node.schema
        self.key = node.key
        self.may_lack_key = base.may_lack_key
        self.dropped = None
        self.sources = (Source(node, node.key, is_kept=base.may_lack_key),)
        self.formulas = ()
        self.paths = () if node.version is not None else (node.path,)
        self.worth_scanning = math.inf  # What one table changed is never more than both.
        self.driving = Driving(node.key, base.hashes, self._chunks)
        self._base = base
        self._last: tuple[Step, Spans] | None = None
        """Cache for the last step: a table occurring twice in a plan is read twice per step."""

    def depends_on_one_row(self, path: str) -> bool:
        """Return True: each row is a table row (`Relation.depends_on_one_row`)."""
        return True

    def require_findable(self, columns: Sequence[str], moving: str) -> None:
        """Raise unless the columns are the key or one has an index."""
        if set(self.key) <= set(columns) or any(map(self._base.is_indexed, columns)):
            return
        label, column = self.node.label, columns[0]
        raise PlanError(
            f"needs an index of {label} on '{column}': a change of {moving} touches its {label}.",
            hint=f"write {label} with {setting('indexBy', column, is_property=True)} (one that is "
            f"there: upsertflow index {self.node.path} --by {column}), pin {moving} by "
            "at_version(), or set reverse='scan'.",
            table=label,
            column=column,
        )

    def spans(self, step: Step) -> Iterator[Spans]:
        """Yield the rows for keys touched by a step, in one piece (`Relation.spans`)."""
        if self._last is None or self._last[0] != step:
            with about("table", self.node.path):
                self._last = step, self._spans(step)
        yield self._last[1]

    def _spans(self, step: Step) -> Spans:
        before, after = self._version(step.before), self._version(step.after)
        if before == after:
            return Spans.empty(self.schema)
        hash_range = step.hash_range.intersect(step.within)
        if not step.epochs or before is None:
            pairs = self._pairs(before, after, hash_range)
            at = np.full(len(pairs), step.last_time)
        else:
            assert after is not None
            pairs, versions = self._base.changes(before, after, hash_range, net=False)
            own_versions = [
                (v, t) for t, (path, v) in enumerate(step.epochs, 1) if path == self.node.path
            ]
            epoch_versions, times = np.array(own_versions, dtype=np.int64).T
            at = times[np.searchsorted(epoch_versions, versions)]
        return Spans.from_changes(pairs, at, self.key, step.last_time)

    def _pairs(self, before: int | None, after: int | None, hash_range: HashRange) -> Pairs:
        """Return the changes between two versions, once per key; from None, all rows."""
        if before is None:
            return Pairs.of_inserts(self._base.scan(after, hash_range))
        assert after is not None
        return self._base.changes(before, after, hash_range, net=True)[0]

    def look_up(self, keys: RelationRows, at: At) -> LookedUpRows:
        """Return the rows for keys (`Relation.look_up`)."""
        with about("table", self.node.path):
            return self._base.look_up(keys, self._version(at))

    def find_matching(
        self, values: RelationRows, at: At, hash_range: HashRange = ALL_HASHES
    ) -> Iterator[RelationRows]:
        """Yield the rows with some values (`Relation.find_matching`)."""
        values = distinct_values(values)
        if not values.num_rows:
            return
        names, version = values.schema.names, self._version(at)
        if set(self.key) <= set(names):
            keys = iter([distinct_rows(values.select(list(self.key)))])
        else:
            by = next((name for name in names if self._base.index(name)), None)
            proposed = None if by is None else self._candidate_keys(by, values, version, hash_range)
            if proposed is None:
                yield filter_matching(self.scan(at, hash_range), values)
                return
            keys = proposed
        for piece in keys:
            looked = self.look_up(self._within(piece, hash_range), at)
            matches = looked.rows.filter(pa.array(looked.present))
            yield matches if set(names) == set(self.key) else filter_matching(matches, values)

    def _within(self, keys: RelationRows, hash_range: HashRange) -> RelationRows:
        return keys.filter(pa.array(self.driving.range_mask(keys, hash_range)))

    def _candidate_keys(
        self, by: str, values: RelationRows, version: int | None, hash_range: HashRange
    ) -> Iterator[RelationRows] | None:
        """Return a range's candidate keys for the values: those in the index, and the bridge.

        If very many rows have a value, one piece of keys is held at a time, and the index is read
        further for the next. None if the index is damaged: then all rows are read, as no row
        depends on the index.
        """
        index = self._base.index(by)
        assert index is not None
        wanted_values = distinct_rows(values.select([by])).column(0)
        try:
            shows, pieces = index.iter_keys_having(wanted_values, near=version)
            first = list(islice(pieces, 2))
            if len(first) == 2:
                # Damage must be met before a row is given: of these no row could be told later.
                for _ in pieces:
                    pass
                shows, pieces = index.iter_keys_having(wanted_values, near=version)
                first = []
        except CorruptionError as error:
            fields = Fields(path=self.node.path, column=by)
            _LOGGER.warning("damaged index, all rows are read: %s error=%s", fields, error.message)
            return None
        return self._iter_index_keys(chain(first, pieces), shows, version, hash_range)

    def _iter_index_keys(
        self, pieces: Iterable[RelationRows], shows: int, version: int | None, hash_range: HashRange
    ) -> Iterator[RelationRows]:
        """Yield the bridge's keys, then the index's other keys; the index has each key once."""
        fields = pa.schema([self.schema.field(name) for name in self.key])
        bridge = empty_batch(fields)
        if version is not None and shows != version:
            with about("table", self.node.path):
                lower, upper = min(shows, version), max(shows, version)
                bridge = self._pairs(lower, upper, hash_range).keys(self.key)
            yield bridge
        for piece in pieces:
            keys = pa.RecordBatch.from_arrays(piece.columns, schema=fields)
            if bridge.num_rows:
                keys = keys.filter(pa.array(~key_match_mask(keys, bridge, self.key)))
            yield keys

    def scan(self, at: At, hash_range: HashRange = ALL_HASHES) -> RelationRows:
        """Return all rows (`Relation.scan`)."""
        with about("table", self.node.path):
            return self._base.scan(self._version(at), hash_range)

    def _chunks(self, at: At, hash_range: HashRange) -> list[HashRange]:
        return self._base.chunks(self._version(at), hash_range)

    def _version(self, at: At) -> int | None:
        return at.get(self.node.path) if self.node.version is None else self.node.version


class TableBase:
    """A table as a plan reads it (`Base`).

    Parameters
    ----------
    scan : Scan
        A plan's scan: the table must still have its columns and key, with the same types.
    table : Table
    """

    def __init__(self, scan: Scan, table: Table) -> None:
        head = table.log.head()
        require_columns(scan, head.schema.columns, head.schema.keys)
        self.may_lack_key = stores_rows(head.properties)
        # In the newest schema, like changes: rows older than a column have NULL in it.
        self._own = head.schema
        self._schema = scan.schema
        self._names = self._schema.names
        self._table = table
        self._newest = Table(table.store)
        """The table with an unfrozen log: an index may show versions newer than the reader's."""

    def hashes(self, keys: Sequence[pa.Array]) -> Words:
        """Return the keys' hashes (`BaseTable.hashes`)."""
        return hash_keys(keys, seed=self._own.hash_seed, prefix=self._own.hash_prefix)

    def is_indexed(self, column: str) -> bool:
        """Return whether there is an index on a column (`BaseTable.is_indexed`)."""
        return any(index.column == column for index in self._newest.indexes())

    def index(self, column: str) -> Index | None:
        """Return the index on a column (`BaseTable.index`)."""
        return self._newest.index_of(column)

    def chunks(self, version: int | None, hash_range: HashRange) -> list[HashRange]:
        """Cut a hash range (`BaseTable.chunks`)."""
        return [hash_range] if version is None else self._snapshot(version).chunks(hash_range)

    def changes(
        self, before: int, after: int, hash_range: HashRange, *, net: bool
    ) -> tuple[Pairs, Positions]:
        """Return the changes between two versions, with their times (`BaseTable.changes`)."""
        newest = self._table.log.head().version
        log = self._table.log if after <= newest else self._newest.log
        pieces = [(Pairs.empty(self._schema), np.empty(0, dtype=np.int64))]
        for stretch in cut_into_ranges(log, before + 1, after + 1, self._own, net=net):
            pieces += changes_by_piece(
                self._table.store, stretch, self._as_pairs, net=net, hash_range=hash_range
            )
        pairs = Pairs.concat([pairs for pairs, _ in pieces])
        versions = np.concatenate([versions for _, versions in pieces])
        if len(self._names) == len(self._own.columns):
            return pairs, versions
        # Changes in other columns do not affect the plan, so it need not look these rows up.
        differs = pairs.bitwise_difference_mask()
        return pairs.filter(differs), versions[differs]

    def look_up(self, keys: RelationRows, version: int | None) -> LookedUpRows:
        """Return the rows for keys (`BaseTable.look_up`)."""
        if version is None or not keys.num_rows:
            return self._absent_rows(keys.num_rows)
        columns = [keys.column(name) for name in self._own.keys]
        matches = self._snapshot(version).look_up(columns, self._names)
        rows = pa.RecordBatch.from_arrays(matches.rows.columns, schema=self._schema)
        return LookedUpRows(take_rows(rows, matches.at), matches.at != ABSENT)

    def scan(self, version: int | None, hash_range: HashRange = ALL_HASHES) -> RelationRows:
        """Return all rows (`BaseTable.scan`)."""
        if version is None:
            return empty_batch(self._schema)
        batches = self._snapshot(version).read(self._names, hash_range=hash_range)
        projected = (pa.RecordBatch.from_arrays(b.columns, schema=self._schema) for b in batches)
        return concat([empty_batch(self._schema), *projected])

    def _snapshot(self, version: int) -> Snapshot:
        manifest = self._table.log.at(version)
        schema = self._own.with_unchanged(
            manifest.schema.unchanged, has_moves=manifest.schema.has_moves
        )
        return Snapshot(self._table.store, replace(manifest, schema=schema))

    def _as_pairs(self, changes: Changes) -> tuple[Pairs, Positions]:
        old, new = (self._rows(changes.rows.take, side) for side in (changes.old, changes.new))
        pairs = Pairs(old, new, changes.old != ABSENT, changes.new != ABSENT)
        return pairs, changes.epochs

    def _rows(
        self, take: Callable[[Sequence[str], Positions], list[pa.Array]], places: Positions
    ) -> RelationRows:
        """Return the rows at given positions, all NULL for `ABSENT`."""
        hit = places != ABSENT
        if not bool(hit.any()):
            return self._absent_rows(len(places)).rows
        rows = pa.RecordBatch.from_arrays(take(self._names, places[hit]), schema=self._schema)
        if bool(hit.all()):
            return rows
        row_indices = np.where(hit, np.cumsum(hit) - 1, NOWHERE)
        return rows.take(pa.array(row_indices, mask=~hit))

    def _absent_rows(self, count: int) -> LookedUpRows:
        arrays = [pa.nulls(count, field.type) for field in self._schema]
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return LookedUpRows(rows, np.zeros(count, dtype=np.bool_))


def require_columns(scan: Scan, columns: pa.Schema, keys: tuple[str, ...]) -> None:
    """Raise if the table's key or columns differ from the plan's."""
    remedy = "make the plan anew, and give the query a new checkpointLocation."
    if scan.key != keys:
        raise SchemaError(
            f"the plan reads '{scan.path}' by the key {scan.key}, and it is {keys} there.",
            hint=remedy,
        )
    for column in scan.columns:
        actual = columns.field(column.name).type if has_column(columns, column.name) else None
        if actual is None or type_text(actual) != column.type:
            raise SchemaError(
                f"the plan reads '{column.name}' of '{scan.path}' as {column.type}, and it is "
                f"{'gone' if actual is None else type_text(actual)} there.",
                hint=remedy,
                column=column.name,
            )
