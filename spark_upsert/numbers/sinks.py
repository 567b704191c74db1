"""The effect of a batch on its table, from the table's log: which version has it, and its counters.

A look costs the end of the log and the versions since the look before. The batch of a query is
found by its transaction, which the version that holds it names; so any process that reaches the
table can tell, and none of Spark's need to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from spark_upsert.errors import OtherTableError
from spark_upsert.mirror.facts import lag_below
from spark_upsert.model.bounded import LruMap
from spark_upsert.model.schema import TableSchema
from spark_upsert.model.template import Template, is_routed
from spark_upsert.numbers.batches import SHOWN, SinkNumbers
from spark_upsert.routed.group import GroupTable, TableGroup
from spark_upsert.store.below import StoreBelow
from spark_upsert.store.resolve import open_store
from spark_upsert.table.entries.counters import STALE_MIN, Counters, count_all_stale
from spark_upsert.table.log.manifest import Commit, Manifest, Transaction
from spark_upsert.table.published import is_published
from spark_upsert.table.table import Table

LOOKED_AT_MAX = 256
"""Versions that the first look at a table reads at most, and any later one."""

TABLES_MAX = 64
"""Tables of one routed batch whose counters are added up: each costs two requests and more."""

_TABLES_KEPT = 256

_BATCHES_KEPT = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a query writes: a table, or the template of many."""

    path: str
    storage: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, path: str, storage: Mapping[str, str]) -> Place:
        """Return a place with the settings of its object store."""
        return cls(path=path, storage=tuple(sorted(storage.items())))


class Sinks:
    """Looks at the tables that queries write. Not safe for threads."""

    def __init__(self) -> None:
        self._logs: LruMap[Place, _Batches] = LruMap(_TABLES_KEPT)
        self._groups: LruMap[Place, GroupTable] = LruMap(_TABLES_KEPT)

    def has(self, place: Place, query_id: str) -> bool:
        """Return whether a query has written a table, as far as its log remembers."""
        if is_routed(place.path):
            batch = self._group(place).at().batch
            return batch is not None and batch.writer == _writer(query_id)
        return _writer(query_id) in self._batches(place).table.log.head().transactions

    def numbers(self, place: Place, query_id: str, batch: int) -> SinkNumbers:
        """Return what a batch did to its table; without counters if no version has the batch."""
        try:
            return self._numbers(place, query_id, batch)
        except OtherTableError:  # A table was made anew at its path.
            self._logs.pop(place)
            self._groups.pop(place)
            return self._numbers(place, query_id, batch)

    def _numbers(self, place: Place, query_id: str, batch: int) -> SinkNumbers:
        if is_routed(place.path):
            return self._of_group(place, query_id, batch)
        known = self._batches(place)
        commit, head, stale_epochs = known.look(_writer(query_id), batch)
        mirror = lag_below(known.table) if is_published(head.properties) else None
        return SinkNumbers(
            table=place.path,
            version=None if commit is None else commit.version,
            counters={} if commit is None else _shown(commit.counters),
            runs=head.run_count,
            live_rows=head.live_rows,
            mirror_versions=None if mirror is None else mirror[0],
            mirror_seconds=None if mirror is None else mirror[1] / 1000,
            stale_rows=0 if commit is None else _stale_rows(commit, head.schema),
            stale_epochs=stale_epochs,
        )

    def _batches(self, place: Place) -> _Batches:
        return self._logs.of(
            place, lambda: _Batches(Table(open_store(place.path, dict(place.storage))))
        )

    def _group(self, place: Place) -> GroupTable:
        root = Template.parse(place.path).root
        return self._groups.of(place, lambda: GroupTable(open_store(root, dict(place.storage))))

    def _of_group(self, place: Place, query_id: str, batch: int) -> SinkNumbers:
        known, writer = self._group(place), _writer(query_id)
        group = known.at()
        if group.batch is not None and (group.batch.number or 0) > batch:
            group = known.of_batch(batch)
        told = SinkNumbers(table=place.path, version=None, counters={}, parked=0, tables=0)
        if group.batch is None or (group.batch.writer, group.batch.number) != (writer, batch):
            return told
        counted: Counter[str] = Counter()
        stale_rows = 0
        written = [
            m.folder for m in group.members.values() if (m.writer, m.batch) == (writer, batch)
        ]
        for counters, stale in _counters_of(known, group, written[:TABLES_MAX]):
            counted.update(counters)
            stale_rows += stale
        return replace(
            told,
            version=group.version,
            counters=dict(counted),
            parked=group.batch.parked,
            tables=len(written),
            uncounted=max(0, len(written) - TABLES_MAX),
            stale_rows=stale_rows,
        )


def _counters_of(
    known: GroupTable, group: TableGroup, folders: list[str]
) -> Iterator[tuple[Mapping[str, int], int]]:
    """Yield the counters of each table, and its stale rows if all of its rows were stale."""
    for folder in folders:
        log = Table(StoreBelow(known.root, folder)).log
        counters = _shown(log.commit(group.members[folder].place.version).counters)
        # The newest version, which costs requests, says whether stale rows are usual there.
        is_all = counters.keys() <= {"stale", "superseded", "skipped", "tied"}
        is_many = is_all and counters.get("stale", 0) >= STALE_MIN
        own = Counters.from_json(counters)
        yield counters, count_all_stale(own, log.head().schema) if is_many else 0


class _Batches:
    """The batches that the log of one table names, as far as it was read."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._upper = 0
        self._stale_epochs = 0
        self._found: LruMap[tuple[str, int], tuple[Commit, int]] = LruMap(_BATCHES_KEPT)

    def look(self, writer: str, number: int) -> tuple[Commit | None, Manifest, int]:
        """Return the version that has a batch, and the newest state of the table.

        The third value counts the epochs in a row, up to that version, whose rows were all stale.
        """
        with self.table.log.look() as look:
            head = look.head()
            lower = max(self._upper, head.since, head.upper - LOOKED_AT_MAX)
            for commit in look.commits(lower, head.upper):
                if commit.is_epoch:
                    is_stale = _stale_rows(commit, head.schema) > 0
                    self._stale_epochs = self._stale_epochs + 1 if is_stale else 0
                for each in commit.transactions:
                    self._found.put((each.writer, each.number), (commit, self._stale_epochs))
            self._upper = head.upper
        found, stale_epochs = self._found.peek((writer, number)) or (None, 0)
        return found, head, stale_epochs


def _stale_rows(commit: Commit, schema: TableSchema) -> int:
    return count_all_stale(Counters.from_json(commit.counters), schema)


def _writer(query_id: str) -> str:
    return Transaction.writer_of_query(query_id)


def _shown(counters: Mapping[str, int]) -> dict[str, int]:
    return {name: counters[name] for name in SHOWN if counters.get(name)}
