"""Random lives of a table with a mirror, and what each version of the mirror must show.

What is done is drawn from a seed: epochs with late and tied rows, deletes, overwrites, restores,
columns that come and types that widen, compactions, expiries; a mirror that is left out, is begun
anew by another process, or races with a second publisher. On request also truncates, rows without
a key in quarantine, a clock that goes back, and properties of the mirror that change on the way.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.schema import ErrorPolicy, Scope, TableSchema
from spark_upsert.delta.log import PublicationSettings, open_mirror_store
from spark_upsert.delta.publish import Mirror, check_mirror
from spark_upsert.store import Store
from spark_upsert.table.compaction import compact_runs, policy
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.form import envelope_of_rows
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet, with_truncates
from tests.support.delta import DeltaTable
from tests.support.stores import MemoryStore, forget_runs_and_logs
from tests.support.tables import Ticks

RULES = {"n": Rule.SUM, "x": Rule.LAST, "f": Rule.MAX}

KINDS: tuple[Mapping[str, Any], ...] = (
    {"keys": ("id",)},
    {"keys": ("name",)},
    {"keys": ("id", "name"), "hash_prefix": 1},
    {"keys": ("id",), "scope": Scope.TABLE},
    {"keys": ("id",), "scope": Scope.EPOCH},
    {"keys": ("id",), "engine": MergeEngine(Engine.FIRST_ROW), "scope": Scope.TABLE},
    {"keys": ("id",), "engine": MergeEngine(Engine.PARTIAL_UPDATE)},
    {"keys": ("id",), "engine": MergeEngine(Engine.PARTIAL_UPDATE), "scope": Scope.TABLE},
    {"keys": ("id",), "engine": MergeEngine(Engine.AGGREGATION, rules=RULES)},
)

COLUMNS = pa.schema(
    {"id": pa.int32(), "name": pa.string(), "n": pa.int32(), "x": pa.string(), "f": pa.float64()}
)


class MirroredTable:
    """A table, its mirror, and the rows of each version that the mirror showed.

    Parameters
    ----------
    seed : int
    store, target : Store, optional
        Where the table lies, and its mirror.
    publishes : bool
        Whether the table is published behind each commit, by what its writers prepared.
    now_s : float, optional
        The time at which its clock begins. Readers that know a retention hold it against theirs.
    varies : bool
        Whether properties of the mirror change, tables are truncated, clocks go back, and rows lack
        their keys.
    has_feed : bool, optional
        Whether there is a change feed from the beginning. Default: in every second life.
    """

    def __init__(
        self,
        seed: int,
        store: Store | None = None,
        target: Store | None = None,
        *,
        publishes: bool = False,
        now_s: float | None = None,
        varies: bool = False,
        has_feed: bool | None = None,
    ) -> None:
        self.dice = random.Random(seed)
        self.store = store or MemoryStore()
        self.target = target or open_mirror_store(self.store, None)
        self.clock = Ticks() if now_s is None else Ticks(now_s)
        self._begun_s = self.clock.now_s
        kind = dict(KINDS[seed % len(KINDS)])
        kind.setdefault("scope", Scope.ARRIVAL)
        order = [] if kind["scope"] is Scope.ARRIVAL else [pa.field("seq", pa.int64())]
        self.lacks_keys = varies and "engine" not in kind
        if self.lacks_keys:
            kind["on_error"] = ErrorPolicy.QUARANTINE
        self.schema = TableSchema.of(COLUMNS, order=order, hash_seed=seed, **kind)
        self.table = Table(self.store, clock=self.clock)
        feed = seed % 2 == 1 if has_feed is None else has_feed
        self.publishes = publishes
        self.varies = varies
        self.manner = PublicationSettings(change_feed=feed)
        """What publications ask for."""
        properties = {"tombstoneRetention": "0 epochs"}
        if publishes:
            properties |= {"publish": "delta", "publishChangeFeed": f"{feed}".lower()}
        self.table.ensure(self.schema, properties)
        self.mirror = self.a_mirror()
        self.shown: dict[int, pa.Table] = {}
        """The rows that each version of the Delta table must have."""
        self.done: Counter[str] = Counter()
        """How often each thing was done."""
        self._number = 0

    def a_mirror(self) -> Mirror:
        """Return a mirror as another process has it."""
        table = Table(self.store, clock=self.clock)
        return Mirror(table.log, self.store, self.target)

    # -- what is done ------------------------------------------------------------------

    def live(
        self,
        acts: int,
        look: Callable[[], None] = lambda: None,
        *,
        without: Sequence[Callable[[], None]] = (),
    ) -> None:
        """Do some things, publish behind most of them, and look behind each."""
        all_acts: list[Callable[[], None]] = [self.append] * 9
        all_acts += [self.overwrite, self.restore, self.restore, self.compact, self.compact]
        all_acts += [self.squeeze, self.widen, self.add_column] + [self.expire] * 3
        all_acts += [self.in_tasks] * 4 * self.publishes
        if self.varies:
            all_acts += [self.change_manner] * 3 + [self.truncate] * 3 * bool(self.schema.order)
            all_acts += [self.set_clock] * 2
        possible = [act for act in all_acts if act not in without]
        for _ in range(acts):
            act = self.dice.choice(possible)
            act()
            self.done[act.__name__] += 1
            if self.publishes:
                self.note()
            if self.dice.random() < 0.8:
                self.publish()
            look()
        self.publish()

    def note(self) -> None:
        """Note the rows of the versions that were published behind commits."""
        app = f"upsertflow:{self.table.log.head().table_id}"
        for version, actions in enumerate(DeltaTable(self.target).commits):
            [shown] = [a["txn"]["version"] for a in actions if a.get("txn", {}).get("appId") == app]
            if version not in self.shown and shown >= self.table.log.head().since:
                self.shown[version] = self.table.snapshot(shown)
        assert list(check_mirror(self.a_mirror())) == []

    def in_tasks(self) -> None:
        """Stage some tasks upon a version, let others commit meanwhile, and commit the tasks."""
        head = self.table.log.head()
        snapshot = Snapshot(self.store, head)
        late_rows = self.dice.choice([LateRows.APPLY, LateRows.REJECT])
        deletes = "gone" if head.schema.engine.takes_deletes else None
        staged = []
        for _ in range(self.dice.choice([1, 2])):
            rows = self._rows()
            envelope = envelope_of_rows(head.schema, rows.schema, deletes=deletes)
            commands = map(envelope.commands, rows.to_batches())
            staged.append(stage(snapshot, commands, late_rows=late_rows))
        meanwhile = [self.append, self.overwrite, self.restore, self.squeeze, self.widen]
        if self.dice.random() < 0.5:
            self.dice.choice(meanwhile)()
        write_set = WriteSet(
            base=snapshot, staged=tuple(staged), allow_unordered=True, late_rows=late_rows
        )
        self.table.commit(write_set)

    def change_manner(self) -> None:
        """Change what the Delta table is: its feed, its guard, how long it can be read."""
        feed, guard = self.dice.random() < 0.5, self.dice.random() < 0.5
        hours = self.dice.choice([1, 6, 48])
        self.manner = PublicationSettings(
            change_feed=feed, guard=guard, retention_ms=hours * 3_600_000
        )
        if self.publishes:
            changed = {
                "publishChangeFeed": f"{feed}".lower(),
                "publishGuard": f"{guard}".lower(),
                "publishRetention": f"{hours} hours",
                "publishInterval": self.dice.choice(["0 seconds", "20 seconds", "auto"]),
            }
            self.table.alter(self.table.schema, changed)

    def set_clock(self) -> None:
        """Set the clock back, or forward again, by less than an expiry refuses."""
        self.clock.now_s = self._begun_s + self.dice.choice([-2_400, -600, 0, 600])

    def truncate(self) -> None:
        """Commit rows of a task among which the table was emptied up to an order key."""
        base = self.table.at()
        schema, rows = base.manifest.schema, self._rows()
        deletes = "gone" if schema.engine.takes_deletes else None
        envelope = envelope_of_rows(schema, rows.schema, deletes=deletes)
        at = pa.array([self.dice.randrange(1 + self._number)], schema.order[0].type)
        commands = [
            with_truncates(envelope.commands(batch), [at], schema) for batch in rows.to_batches()
        ]
        self.table.commit(WriteSet(base=base, staged=(stage(base, commands),)))

    def append(self, *, overwrite: bool = False) -> None:
        deletes = "gone" if self.table.schema.engine.takes_deletes else None
        self.table.upsert(
            self._rows(overwrite=overwrite),
            deletes=deletes,
            overwrite=overwrite,
            late_rows=self.dice.choice([LateRows.APPLY, LateRows.REJECT]),
        )

    def _rows(self, *, overwrite: bool = False) -> pa.Table:
        columns = self.table.schema.columns
        keys = [name for name in ("id", "name") if name in self.table.schema.keys]
        takes_deletes = self.table.schema.engine.takes_deletes and not overwrite
        given: dict[Any, dict[str, Any]] = {}
        for _ in range(self.dice.choice([1, 2, 5, 9])):
            self._number += 1
            row: dict[str, Any] = {
                "id": self.dice.randrange(8),
                "name": self.dice.choice("abcd"),
                "n": self.dice.choice([None, self._number]),
                "x": self.dice.choice([None, "", f"x{self._number}", "ü" * 40]),
                "f": self.dice.choice([None, float("nan"), -0.0, float(self._number)]),
                "seq": self.dice.randrange(1 + self._number),
                "gone": takes_deletes and self.dice.random() < 0.3,
            }
            for field in columns:
                row.setdefault(field.name, self.dice.choice([None, self._number]))
            if self.lacks_keys and self.dice.random() < 0.1:
                row[self.dice.choice(keys)] = None
            given[tuple(row[name] for name in keys)] = row
        fields = [*columns, *self.table.schema.order, pa.field("gone", pa.bool_())]
        rows = pa.Table.from_pylist(list(given.values()), schema=pa.schema(fields))
        return rows if self.table.schema.engine.takes_deletes else rows.drop_columns(["gone"])

    def overwrite(self) -> None:
        self.append(overwrite=True)

    def restore(self) -> None:
        head = self.table.log.head()
        self.table.restore(self.dice.randint(head.since, head.version))

    def compact(self) -> None:
        self.table.compact()

    def squeeze(self) -> None:
        """Merge all runs, in some ranges of hashes or everywhere."""
        with patch.object(policy, "JOB_BYTES", self.dice.choice([300, 2_000, 1 << 30])):
            jobs = self.table.compaction_jobs(full=True)
        some = [job for job in jobs if self.dice.random() < 0.6]
        head = self.table.log.head()
        self.table.commit_compactions([compact_runs(self.store, head, job) for job in some])

    def widen(self) -> None:
        columns = self.table.schema.columns
        at = columns.get_field_index("n")
        wide = columns.set(at, pa.field("n", pa.int64()))
        self.table.alter(replace(self.table.schema, columns=wide))

    def add_column(self) -> None:
        schema = self.table.schema
        if len(schema.columns) < 8 and schema.engine.kind is not Engine.AGGREGATION:
            name = f"more {len(schema.columns)}"
            columns = schema.columns.append(pa.field(name, pa.int16()))
            self.table.alter(replace(schema, columns=columns))

    def expire(self) -> None:
        retained = self.dice.randrange(3)
        if self.dice.random() < 0.5:  # Then the past that the mirror needs goes.
            for lease in self.table.consumers():
                self.table.release(lease.consumer)
            for _ in range(retained + 1):
                self.append()
        self.table.expire(retain_versions=retained, safety_ms=0)
        self.table.vacuum(grace_ms=0)

    def publish(self) -> None:
        """Publish, perhaps as a process that knows nothing, perhaps beside another one."""
        if self.dice.random() < 0.3:
            forget_runs_and_logs()
            self.mirror = self.a_mirror()
        if self.dice.random() < 0.1:
            self.a_mirror().publish(self.manner)
        done = self.mirror.publish(self.manner)
        head = self.table.log.head()
        assert done.shown <= done.newest == head.version
        self.shown[done.delta_version] = self.table.snapshot()
        assert list(check_mirror(self.mirror)) == []

    # -- what must hold ----------------------------------------------------------------

    def require_equal(self, version: int, found: pa.Table) -> None:
        """Hold what a reader found at a version against the rows that the table had."""
        expected = self.shown[version]
        assert found.column_names == expected.column_names, f"version {version}"
        assert canonical(found) == canonical(expected), f"version {version}"

    def look(self) -> None:
        """Read every version of the mirror, and its feed."""
        self.require_each_version_once()
        read: dict[int, pa.Table] = {}
        for version in self.shown:
            found = DeltaTable(self.target, version)
            read[version] = found.rows()
            self.require_equal(version, read[version])
            if version and found.has_feed:
                old = read.get(version - 1)
                old = DeltaTable(self.target, version - 1).rows() if old is None else old
                self.require_feed(found, old, read[version])

    def require_each_version_once(self) -> None:
        """Require that the versions that the commits of the mirror show only grow.

        A commit that says something of the table alone, such as a retention, shows no other rows
        than the one before it, and may repeat its version.
        """
        found = DeltaTable(self.target)
        app = f"upsertflow:{self.table.log.head().table_id}"
        of_app = (each["txn"] for actions in found.commits for each in actions if "txn" in each)
        shown = [each["version"] for each in of_app if each["appId"] == app]
        assert len(shown) == len(found.commits)
        assert shown == sorted(shown)
        of_files = [any({"add", "remove"} & each.keys() for each in c) for c in found.commits]
        changing = [version for version, changes in zip(shown, of_files, strict=True) if changes]
        assert changing == sorted(set(changing))
        assert self.table.log.head().version >= shown[-1]

    def require_feed(self, found: DeltaTable, old: pa.Table, new: pa.Table) -> None:
        """Hold the feed of a commit against the rows before it and behind it."""
        version = found.version
        before = Counter(canonical(as_now(old, found.schema)))
        behind = Counter(canonical(new))
        feed = found.feed()
        if feed is None:
            assert before == behind, f"version {version}"
            assert found.data_changes <= {False}, f"version {version}"
            return
        assert found.data_changes == {True}
        assert feed.num_rows
        assert feed.num_rows == len(set(canonical(feed.drop_columns(["_change_type"])))), "no news"
        assert folded(before, feed, found.schema) == behind, f"version {version}"


def folded(before: Counter[str], feed: pa.Table, columns: pa.Schema) -> Counter[str]:
    """Return rows, each as a text, behind the changes of a feed, which must fit them."""
    parts = {
        kind: Counter(canonical(_narrowed(feed, kind, columns)))
        for kind in ("insert", "update_preimage", "update_postimage", "delete")
    }
    gone = parts["delete"] + parts["update_preimage"]
    assert not gone - before, "what was not there is gone"
    assert sum(parts["update_preimage"].values()) == sum(parts["update_postimage"].values())
    return before - gone + parts["insert"] + parts["update_postimage"]


def as_now(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return rows with the columns of a later version."""
    found = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in columns
    ]
    return pa.Table.from_arrays(found, schema=columns)


def _narrowed(feed: pa.Table, kind: str, columns: pa.Schema) -> pa.Table:
    return plain(feed.filter(pc.equal(feed.column("_change_type"), kind)), columns)


def plain(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return what a reader found in our types: views and large texts are the same texts."""
    found = [rows.column(name).cast(columns.field(name).type) for name in columns.names]
    return pa.Table.from_arrays(found, schema=columns)


def require_copy(table: Table, target: Store) -> DeltaTable:
    """Return a mirror, which must have the rows of its table and pass its check."""
    mirror = DeltaTable(target)
    assert canonical(mirror.rows()) == canonical(table.snapshot())
    assert not list(check_mirror(Mirror(table.log, table.store, target)))
    return mirror


def canonical(rows: pa.Table) -> list[str]:
    """Return rows as texts, sorted: NaN is NaN, and zeros have signs."""
    return sorted(map(repr, rows.to_pylist()))


__all__ = [
    *("DeltaTable", "MirroredTable", "as_now", "canonical", "folded", "plain", "require_copy")
]
