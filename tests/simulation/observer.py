"""Looks without faults, and knows what every version must hold.

It knows the commands of each transaction and checks, for each new version:

- P1 every transaction that a writer was told is committed is in the log, exactly once, and no
  timestamp of a source is passed over;
- P2 the changes of the version, folded onto the table before, give the table after it, and so
  do the changes between any two versions that can still be read;
- P3 what is visible is the whole of some transactions, and nothing else;
- P4 the table holds what the rules of its scope, engine and error policy say (`Reference`),
  but for rows that were rejected as late, and only where a delete was rightly forgotten;
- P5 the counters are those of the rules, and say what the changelog shows, and a sound table
  is found sound;
- P6 in the end every writer gets through without help (`World.run`);
- P7 a compaction comes to its end.

Two things are asked of the table itself: its low-water mark, and of which keys it holds any
entry at all, read file by file.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_upsert.core.schema import RAW_KEY, Scope, Ties
from spark_upsert.delta.log import open_mirror_store
from spark_upsert.delta.publish import Mirror, check_mirror
from spark_upsert.options.read import ReadOptions
from spark_upsert.streams.reads.read_split import read_split
from spark_upsert.streams.reads.splits import Split, changes_splits, rows_splits
from spark_upsert.table.changelog.read import Deduplication
from spark_upsert.table.log.codec import commit_path
from spark_upsert.table.log.manifest import Commit, Kind, Manifest, Slice, Transaction
from spark_upsert.table.log.properties import PROPERTY, LateRows, TombstoneRetention, decode_mark
from spark_upsert.table.log.snapshot import manifest_at
from spark_upsert.table.run.file import RUNS
from spark_upsert.table.state.reduce import EMPTY, Counters
from spark_upsert.table.table import Table
from tests.simulation import ages
from tests.simulation.wire import prefix_of
from tests.support.delta import DeltaTable
from tests.support.mirrored import canonical
from tests.support.reference import NO_ORDER, Command, Identity, Placed, Reference, Row

if TYPE_CHECKING:
    from tests.simulation.world import World

Rows = dict[Identity, Row]


class Observer:
    """Checks all versions, one after the other."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._reference: Reference = world.reference()
        self._table: Table | None = None
        self._version = -1
        self.rows: dict[int, Rows] = {-1: {}}
        """The rows of each version, and before the first."""
        self.totals = EMPTY
        """The counters of all epochs."""
        self._applied: dict[int, dict[Identity, list[Placed]]] = {}
        """What each version was made of."""
        self._committed: set[Transaction] = set()
        self._known: dict[int, set[Identity] | None] = {-1: None}
        self._ties: dict[int, Ties] = {}
        """The keys of which a version held an entry; None where nothing was forgotten."""
        self._marks: dict[int, int | None] = {-1: None}
        self._retentions = {world.retention}
        """For how long deletes are kept, at any version so far."""
        self._times_ms: dict[int, int] = {}
        self._identities: dict[str, list[tuple[int, Identity]]] = {}

    @property
    def upper(self) -> int:
        """The version behind all that were looked at."""
        return self._version + 1

    # -- looking ---------------------------------------------------------------------

    def look(self) -> None:
        """Check all versions since the last look."""
        if self._table is None or self._world.random.random() < 0.05:
            self._table = Table(self._world.store, clock=self._world.now)
        table = self._table
        head = table.log.try_head()
        if head is None:
            return
        for version in range(self._version + 1, head.version + 1):
            self._check(table, version, table.log.commit(version))
        if self._world.is_published and head.version > self._version:
            self._look_at_mirror(table, head)
        self._version = head.version
        missing = self._world.told - self._committed
        assert not missing, f"P1: told, but not in the log: {missing}"
        if self._world.random.random() < 0.04:
            self._look_back(table, head)

    def look_at_the_end(self, table: Any) -> None:
        """Check that the table is sound, and that compactions come to an end."""
        self.compact(table, full=False)
        assert table.compaction_jobs() == [], "P7: a compaction left work"
        self.compact(table, full=True)
        self.look()
        if self._world.is_indexed:
            assert all(index.covered_version() for index in table.build_indexes()), (
                "P6: an index is of no use"
            )
        if self._world.is_published:
            self._publish(table)
        report = table.check()
        assert report.is_sound, f"P5: a sound table is reported: {report.findings}"

    def _look_at_mirror(self, table: Table, head: Manifest) -> None:
        """Check that the mirror is behind the table or equal to it, never beside."""
        mirror = Mirror(table.log, table.store, open_mirror_store(table.store, None))
        shown = mirror.shown()
        if shown is None or head.version % 5:
            return
        assert shown <= head.version, f"P3: a mirror shows version {shown} of {head.version}"
        if shown >= head.since:
            found, expected = DeltaTable(mirror.target).rows(), table.snapshot(shown)
            assert canonical(found) == canonical(expected), f"P3: a mirror beside {shown}"

    def _publish(self, table: Table) -> None:
        """Check that one publication without faults makes up for all that failed."""
        table.publish()
        target = open_mirror_store(table.store, None)
        assert canonical(DeltaTable(target).rows()) == canonical(table.snapshot())
        findings = list(check_mirror(Mirror(table.log, table.store, target)))
        assert not findings, f"P6: a mirror is not sound: {findings}"

    def compact(self, table: Any, *, full: bool) -> int:
        """Compact a table; each merge must make progress."""
        # Each merge leaves a run less, or takes deletes out of the oldest one.
        table.merges_left = 2 * len(table.log.head().slices) + 4
        try:
            merges: int = table.compact(full=full)
        finally:
            table.merges_left = None
        return merges

    def _check(self, table: Table, version: int, commit: Commit) -> None:
        manifest = table.log.at(version)
        self._times_ms[version] = commit.timestamp_ms
        self._retentions.add(manifest.properties[PROPERTY])
        self._reference.policy = manifest.schema.on_error
        if commit.restored is not None:
            self._check_restore(commit, commit.restored)
        elif commit.is_epoch:
            self._check_epoch(table, commit)
        else:
            self._check_upkeep(table, manifest)
        before, shown = self.rows[version - 1], self._shown(table, version)
        self.rows[version] = shown
        self._applied[version] = dict(self._reference.applied)
        self._world.trace.append(f"version {version} {commit.kind.value} {shown}")
        expected = self._reference.rows()
        assert shown == expected, f"P3, P4: version {version} shows {shown}, not {expected}"
        folded, count = self.folded(table, before, version, version + 1)
        assert folded == shown, f"P2: folded {folded}, shown {shown}"
        output = Counters.from_json(commit.counters).output_count
        assert output == count, f"P5: {output} counted, {count} changes"
        assert commit.live_rows == len(shown), f"P5: live rows {commit.live_rows} of {shown}"
        if manifest.schema.has_quarantine:
            errors, standing = self._reference.errors(), self._quarantine(table, version)
            assert standing == errors, f"P4: in quarantine {standing}, not {errors}"
        self._remember_what_is_known(table, manifest)
        self._ties[version] = manifest.schema.ties

    def _check_epoch(self, table: Table, commit: Commit) -> None:
        (transaction,) = commit.transactions
        path = commit_path(commit.version)
        planned = self._world.proposals[path, self._world.store.objects[path]]
        assert transaction not in self._committed, "P1: a transaction came twice"
        for other, script in self._world.scripts.items():
            if other.writer == transaction.writer and other.number < transaction.number:
                assert other in self._committed or not any(script), f"P1: {other} is passed over"
        self._committed.add(transaction)
        base, head = planned.base, commit.version - 1
        script = planned.script
        if transaction.writer.startswith(ages.WRITER):
            script = [self._expired(commit, transaction)]
        applies_late = planned.late_rows is LateRows.APPLY
        judged_late: set[tuple[Identity, int]] = set()

        def is_late(key: Identity, order: int) -> bool:
            judged = self._is_late(head, key, order) or (
                not applies_late and self._is_late(base, key, order)
            )
            judged_late.update([(key, order)] if judged else ())
            return judged

        self._forget_what_hides_no_row(head, script)
        tally = self._reference.apply(
            commit.version,
            script,
            overwrite=commit.kind is Kind.OVERWRITE,
            is_late=is_late,
            applies_late=applies_late,
        )
        counters = Counters.from_json(commit.counters)
        assert counters.is_balanced, f"P5: {counters}"
        self.totals += counters
        counted = {**asdict(counters), "beaten": counters.superseded + counters.duplicates}
        for name, expected in asdict(tally).items():
            found = counted[name]
            assert found == expected, f"P5: {name} {found} of version {commit.version}, not {tally}"
        if not self._world.has_ties or self._are_ties_refused(base, head):
            assert counters.tied == 0, f"P5: {counters}"
        if planned.late_rows is LateRows.FAIL and not self._world.has_ties:
            late = [
                each
                for task in script
                for each in task
                if (each.key, each.order) in judged_late and self._reference.is_row(each)
            ]
            assert not late, f"P5: {late} are late, and to be refused"

    def _expired(self, commit: Commit, transaction: Transaction) -> list[Command]:
        """Return the deletes that an expiry of rows must consist of."""
        times_ms = {v: ms for v, ms in self._times_ms.items() if v < commit.version}
        return ages.expired_by(transaction, self._reference.standing(), times_ms)

    def _forget_what_hides_no_row(self, head: int, script: Iterable[Iterable[Command]]) -> None:
        """Forget deletes that the table has forgotten, of keys of which a command has no order.

        Such a command is not late, and meets nothing then.
        """
        known = self._known[head]
        for command in (each for task in script for each in task):
            if command.order == NO_ORDER and known is not None and command.key not in known:
                self._reference.applied.pop(command.key, None)

    def _are_ties_refused(self, base: int, head: int) -> bool:
        """Return whether ties are errors from the version of a plan to that of its commit."""
        if base < 0:
            return self._world.schema.ties is Ties.FAIL
        if head < 0 or not self._world.may_fail_ties:
            return self._world.schema.ties is Ties.FAIL
        return all(self._ties[version] is Ties.FAIL for version in range(base, head + 1))

    def _check_restore(self, commit: Commit, version: int) -> None:
        before, after = self.rows[commit.version - 1], self.rows[version]
        expected = Counters(retracted=len(before), restored=len(after))
        assert Counters.from_json(commit.counters) == expected, f"P5: {commit.counters}"
        self.totals += expected
        self._reference.applied = dict(self._applied[version])

    def _is_late(self, version: int, key: Identity, order: int) -> bool:
        """Return whether a table may reject a command: it knows nothing of a key that old."""
        if order == NO_ORDER and not isinstance(key, int):
            return False  # Neither key nor order: no delete is newer.
        mark, known = self._marks[version], self._known[version]
        if mark is None or order > mark:
            return False
        return known is None or key not in known or self._is_unordered(version, key)

    def _is_unordered(self, version: int, key: Identity) -> bool:
        """Return whether what a version holds of a key has no order, and so hides a delete."""
        placed = self._applied.get(version, {}).get(key, [])
        return bool(placed) and all(each.command.order == NO_ORDER for each in placed)

    def may_be_late(self, script: Iterable[Iterable[Command]]) -> bool:
        """Return whether a table may find a row late, at any of its versions."""
        return any(
            self._is_late(version, each.key, each.order)
            for task in script
            for each in task
            if each.values is not None
            for version in self._marks
        )

    def may_be_tied(self, script: Iterable[Iterable[Command]]) -> bool:
        """Return whether two rows of a key, one of them among these, have one order key."""
        said: defaultdict[tuple[Identity, int], set[Any]] = defaultdict(set)
        versions = self._applied.values()  # It may be staged upon one that was overwritten since.
        for placed in (p for each in versions for of_key in each.values() for p in of_key):
            command = placed.command
            said[command.key, command.order].add((command.values, command.error))
        for command in (each for task in script for each in task):
            known = said[command.key, command.order]
            known.add((command.values, command.error))
            if len(known) > 1:
                return True
        return False

    # -- what may be forgotten -------------------------------------------------------

    def _check_upkeep(self, table: Table, manifest: Manifest) -> None:
        """Check that what a compaction forgot is old enough, and below the mark."""
        if self._world.schema.scope is not Scope.TABLE:
            return
        known = self._read_known(table, manifest)
        mark = self._mark(manifest)
        before = self._known[manifest.version - 1]
        for key, placed in self._reference.deleted().items():
            was_known = before is None or key in before
            if was_known and key not in known:
                self._require_forgettable(table, manifest, placed)
                assert mark is not None
                assert placed.command.order <= mark, f"P4: {placed} forgotten above {mark}"
        for key in self._reference.applied.keys() - self._reference.deleted().keys():
            assert key in known, f"P4: {key!r} is no delete, and forgotten"

    def _require_forgettable(self, table: Table, manifest: Manifest, placed: Placed) -> None:
        # Which of those that stood so far the merge was planned by cannot be told.
        is_forgettable = any(
            self._is_forgettable(table, manifest, placed, TombstoneRetention.parse(text))
            for text in self._retentions
        )
        assert is_forgettable, f"P4: {placed} is forgotten, of {self._retentions}"

    def _is_forgettable(
        self, table: Table, manifest: Manifest, placed: Placed, retention: TombstoneRetention
    ) -> bool:
        if retention.epochs is not None:
            return placed.version < manifest.version - retention.epochs
        age_ms = table.log.now_ms() - self._times_ms[placed.version]
        return retention.milliseconds is not None and age_ms >= retention.milliseconds

    def _remember_what_is_known(self, table: Table, manifest: Manifest) -> None:
        mark = self._mark(manifest)
        self._marks[manifest.version] = mark
        is_forgetful = mark is not None
        self._known[manifest.version] = self._read_known(table, manifest) if is_forgetful else None

    def _mark(self, manifest: Manifest) -> int | None:
        if manifest.low_water is None:
            return None
        *known, order = [
            column[0].as_py() for column in decode_mark(manifest.low_water, manifest.schema)
        ]
        return order if all(known) else NO_ORDER

    def _read_known(self, table: Table, manifest: Manifest) -> set[Identity]:
        """Return the keys of which a version holds an entry."""
        known: set[Identity] = set()
        for part in manifest.slices:
            known |= {key for h, key in self._entries(table, part) if h in part.live}
        return known

    def _entries(self, table: Table, part: Slice) -> list[tuple[int, Identity]]:
        found = self._identities.get(part.file.path)
        if found is None:
            run = RUNS.open(table.store, part.file)
            names = ["__hash", "key", *([RAW_KEY] if RAW_KEY in run.names else [])]
            columns = [column.to_pylist() for column in run.slice(names, 0, part.file.rows)]
            raw = columns[2] if len(columns) > 2 else columns[1]
            found = [
                (h, key if key is not None else other)
                for h, key, other in zip(columns[0], columns[1], raw, strict=True)
            ]
            self._identities[part.file.path] = found
        return found

    # -- reading ---------------------------------------------------------------------

    def _look_back(self, table: Table, head: Manifest) -> None:
        """Read some versions that are not expired again, and the way from one to the other."""
        low, high = sorted(self._world.random.choices(range(head.since, head.version + 1), k=2))
        assert self._shown(table, low) == self.rows[low], f"P2: version {low} changed"
        net = self._world.random.random() < 0.5
        folded, _ = self.folded(table, self.rows[low], low + 1, high + 1, net=net)
        assert folded == self.rows[high], f"P2: {low} to {high} gives {folded}, net={net}"
        if self._world.has_prefix:
            self._look_up_prefixes(table, low)
        if self._world.is_indexed:
            self._look_up_values(table, low)

    def _look_up_prefixes(self, table: Table, version: int) -> None:
        """Read the rows of a version whose key begins with some value."""
        names = ("key", *self._columns)
        for half in (0, 1):
            values = [pa.array([half], pa.int32())]
            batches = table.at(version).having_prefix(values, names)
            found = {r["key"]: self._row(r) for batch in batches for r in batch.to_pylist()}
            rows = self.rows[version].items()
            expected = {key: row for key, row in rows if prefix_of(key) == half}
            assert found == expected, f"P3: version {version} has {found} of {half}, not {expected}"

    def _look_up_values(self, table: Table, version: int) -> None:
        """Read the rows of a version that have some values, by whatever the index proposes."""
        column, names = self._world.columns[0], ("key", *self._columns)
        values = [0, 1]
        records = table.rows_having(column, values, columns=names, version=version).to_pylist()
        found = {record["key"]: self._row(record) for record in records}
        expected = {k: row for k, row in self.rows[version].items() if row[0] in values}
        assert found == expected, f"P3: version {version} has {found}, not {expected}, of {values}"

    def folded(
        self, table: Table, start: Rows, lower: int, upper: int, *, net: bool = False
    ) -> tuple[Rows, int]:
        """Return the rows behind some changes, and how many changes there are."""
        mode = Deduplication.NET_CHANGES if net else Deduplication.NONE
        options = self._options(upper, readChangeFeed="true", deduplicationMode=mode.value)
        splits = changes_splits(table.log, options, lower, upper)
        changes = [row for split in splits for row in self._served(table, split, options)]
        return self.fold(start, changes), len(changes)

    def fold(self, start: Rows, changes: Iterable[dict[str, Any]]) -> Rows:
        """Return the rows behind some changes, each of which must be right where it stands."""
        rows = copy.copy(start)
        # Within an epoch the retraction of a key stands before its insertion.
        for change in sorted(changes, key=lambda change: change["_commit_version"]):
            key, row = change["key"], self._row(change)
            if change["_diff"] < 0:
                assert rows.pop(key, None) == row, f"P2: {change} retracts no row"
            else:
                assert key not in rows, f"P2: {change} inserts a second row"
                rows[key] = row
        return rows

    def told(self, change: dict[str, Any]) -> Hashable:
        """Return what a change says, be it of columns that were added since."""
        values = tuple(map(repr, self._row(change)))
        return change["key"], values, change["_commit_version"], change["_diff"]

    def _options(self, version: int, **given: str) -> ReadOptions:
        """Return those of a read in some splits, as many as the version says."""
        return ReadOptions.parse({"path": "/unused", "splits": str(1 + version % 3), **given})

    def _served(self, table: Table, split: Split, options: ReadOptions) -> Iterator[dict[str, Any]]:
        for batch in read_split(table.store, split, options, ("key", *self._columns)):
            yield from batch.to_pylist()

    @property
    def _columns(self) -> tuple[str, ...]:
        error = self._world.schema.error_column
        return (*self._world.columns, *([] if error is None else [error]))

    def _row(self, record: dict[str, Any]) -> Row:
        values = [record[name] for name in self._columns]
        return tuple(v["description"] if isinstance(v, dict) else v for v in values)

    def _shown(self, table: Table, version: int) -> Rows:
        options = self._options(version)
        splits = rows_splits(manifest_at(table.log, version=version), options)
        records = [row for split in splits for row in self._served(table, split, options)]
        counts = Counter(record["key"] for record in records)
        assert all(count == 1 for count in counts.values()), f"a key is shown twice: {counts}"
        return {record["key"]: self._row(record) for record in records}

    def _quarantine(self, table: Table, version: int) -> dict[Identity, int]:
        records = [r for batch in table.quarantine(version) for r in batch.to_pylist()]
        return {r["key"] if r["_raw_key"] is None else r["_raw_key"]: r["_epoch"] for r in records}
