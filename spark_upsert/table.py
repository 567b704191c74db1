"""A table, for Spark's adapters and for plain Python alike: Arrow in, Arrow out.

>>> import pyarrow as pa, tempfile
>>> path = tempfile.mkdtemp() + "/users"
>>> table = Table.create(path, pa.schema({"id": pa.int64(), "name": pa.string()}), keys=["id"])
>>> _ = table.append(pa.table({"id": [1, 2], "name": ["Ada", "Bob"]}))
>>> _ = table.append(pa.table({"id": [2], "name": ["Eve"]}))
>>> table.snapshot().sort_by("id").to_pydict()
{'id': [1, 2], 'name': ['Ada', 'Eve']}
>>> table.changes(2).select(["name", "_change_type"]).to_pylist()  # doctest: +NORMALIZE_WHITESPACE
[{'name': 'Bob', '_change_type': 'update_preimage'},
 {'name': 'Eve', '_change_type': 'update_postimage'}]
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from spark_upsert.hashing import HASH_END
from spark_upsert.schema import Scope, TableSchema
from spark_upsert.state.compaction import Merged, choose, choose_all, merge
from spark_upsert.state.log import Clock, Log
from spark_upsert.state.manifest import Commit, Kind, Manifest, Transaction, is_applicable
from spark_upsert.state.snapshot import Snapshot
from spark_upsert.store import Store, open_store
from spark_upsert.upsert.changes import ChangeOptions, plan, read_changes
from spark_upsert.upsert.commands import UpsertEnvelope
from spark_upsert.upsert.epoch import Epoch, Staged, stage


class Table:
    """A keyed table and its changelog.

    Parameters
    ----------
    store : Store
        Where it lies; `Table.open` and `Table.create` take a path instead.
    clock : callable, optional
        Returns seconds since 1970; only commit timestamps come from it.
    """

    def __init__(self, store: Store, *, clock: Clock = time.time) -> None:
        self.store = store
        self.log = Log(store, clock=clock)

    def __repr__(self) -> str:
        manifest = self.log.try_head()
        return f"Table({self.store.url!r}, {manifest or 'absent'})"

    @classmethod
    def open(cls, path: str, *, storage: Mapping[str, str] | None = None) -> Table:
        """Return the table at a path.

        Raises
        ------
        TableNotFoundError
            There is none.
        """
        table = cls(open_store(path, storage))
        table.log.head()
        return table

    @classmethod
    def create(
        cls,
        path: str,
        columns: pa.Schema,
        *,
        keys: Sequence[str],
        sequence_by: Sequence[str] = (),
        scope: Scope = Scope.TABLE,
        storage: Mapping[str, str] | None = None,
    ) -> Table:
        """Make a table at a path, or open the one that is there.

        Parameters
        ----------
        columns : pyarrow.Schema
            The table's columns.
        keys : sequence of str
            Columns that identify a row.
        sequence_by : sequence of str
            Columns that order the commands of a key; without them the order is arrival.
        scope : Scope
            Whether order keys reach across epochs.
        """
        table = cls(open_store(path, storage))
        order = [columns.field(name) for name in sequence_by]
        table.ensure(TableSchema.of(columns, keys=keys, order=order, scope=scope))
        return table

    def ensure(self, schema: TableSchema) -> Manifest:
        """Return the newest manifest; make the table with this schema if there is none.

        A fresh table draws its own hash seed.
        """
        manifest = self.log.try_head()
        if manifest is None:
            seeded = replace(schema, hash_seed=secrets.randbits(64))
            self.log.create(
                Commit(version=0, kind=Kind.CREATE, timestamp_ms=0, token="", schema=seeded)
            )
            manifest = self.log.head()
        return manifest

    def alter(self, schema: TableSchema) -> Manifest:
        """Change the schema, unless it is as asked already."""

        def propose(head: Manifest) -> Commit | None:
            if head.schema == schema:
                return None
            return Commit(
                version=0,
                kind=Kind.ALTER,
                timestamp_ms=0,
                token="",
                schema=schema,
                live_rows=head.live_rows,
            )

        self.log.append(propose)
        return self.log.head()

    # -- writing ---------------------------------------------------------------------

    def append(
        self,
        rows: pa.Table,
        *,
        deletes: str | None = None,
        transaction: Transaction | None = None,
        overwrite: bool = False,
    ) -> Commit | None:
        """Apply rows as one epoch.

        Parameters
        ----------
        rows : pyarrow.Table
            The table's columns, the order columns and, if any, the column ``deletes``.
        deletes : str, optional
            Boolean column that marks deletes.
        transaction : Transaction, optional
            Makes the call idempotent: a number that this writer has committed is skipped.
        overwrite : bool
            Whether the rows replace the contents.

        Returns
        -------
        Commit or None
            None if the transaction is in the table already.
        """
        head = self.log.head()
        schema = head.schema
        envelope = UpsertEnvelope(
            schema=schema,
            sources={name: name for name in schema.columns.names if name in rows.column_names},
            order=tuple(field.name for field in schema.order),
            deletes=deletes,
        )
        commands = (envelope.commands(batch) for batch in rows.to_batches())
        snapshot = Snapshot(self.store, head)
        staged = stage(snapshot, commands, overwrite=overwrite)
        return self.commit(
            Epoch(base=snapshot, staged=(staged,), transaction=transaction, overwrite=overwrite)
        )

    def commit(self, epoch: Epoch) -> Commit | None:
        """Seal an epoch: make it visible, whole, exactly once.

        Returns
        -------
        Commit or None
            None if its transaction is in the table already; the staged files are removed.
        """

        def propose(head: Manifest) -> Commit | None:
            if epoch.transaction is not None and head.has(epoch.transaction):
                return None
            return epoch.seal(head)

        committed = self.log.append(propose)
        if committed is None:
            self.discard(epoch.staged)
        return committed

    def discard(self, staged: Iterable[Staged]) -> None:
        """Remove staged files, unless some version has come to use them.

        A commit may have succeeded although its caller saw an error: the log decides.
        """
        staged = [part for part in staged if part.files]
        if not staged:
            return
        lower = min(part.base_version for part in staged) + 1
        commits = self.log.commits(lower, self.log.head().upper)
        used = {file.path for commit in commits for file in commit.added}
        for part in staged:
            for file in part.files:
                if file.path not in used:
                    self.store.delete(file.path)

    # -- upkeep ----------------------------------------------------------------------

    def compact(self, *, full: bool = False) -> int:
        """Merge runs until nothing is due; returns the number of merges.

        Parameters
        ----------
        full : bool
            Whether to leave one run everywhere, whatever the sizes.
        """
        merges = 0
        jobs = choose_all(self.log.head()) if full else choose(self.log.head())
        while jobs:
            for job in jobs:
                merges += self.commit_merges([merge(self.store, self.log.head(), job)])
            jobs = [] if full else choose(self.log.head())
        return merges

    def commit_merges(self, merges: Iterable[Merged]) -> int:
        """Make merges visible; returns how many. One whose runs are gone is dropped."""
        count = 0
        for merged in merges:

            def propose(head: Manifest, merged: Merged = merged) -> Commit | None:
                if not is_applicable(head, merged.taken):
                    return None
                return Commit(
                    version=0,
                    kind=Kind.COMPACT,
                    timestamp_ms=0,
                    token="",
                    compacted=merged.added,
                    taken=merged.taken,
                    live_rows=head.live_rows,
                )

            if self.log.append(propose) is not None:
                count += 1
            else:
                for part in merged.added:
                    self.store.delete(part.file.path)
        return count

    # -- reading ---------------------------------------------------------------------

    def at(self, version: int | None = None) -> Snapshot:
        """Return the table at a version, by default the newest."""
        head = self.log.head()
        return Snapshot(self.store, head if version is None else self.log.at(version))

    def snapshot(
        self, version: int | None = None, *, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Return all rows at a version, in no particular order."""
        snapshot = self.at(version)
        schema = snapshot.manifest.schema.columns
        fields = schema if columns is None else pa.schema([schema.field(n) for n in columns])
        return pa.Table.from_batches(snapshot.read(columns), schema=fields)

    def changes(
        self, lower: int = 1, upper: int | None = None, *, emit_unchanged: bool = False
    ) -> pa.Table:
        """Return the changes of the epochs ``lower <= e < upper``."""
        head = self.log.head()
        names = tuple(head.schema.columns.names)
        options = ChangeOptions(columns=names, emit_unchanged=emit_unchanged)
        return pa.Table.from_batches(
            self.iter_changes(lower, upper or head.upper, options), schema=head.schema.changelog
        )

    def iter_changes(
        self,
        lower: int,
        upper: int,
        options: ChangeOptions,
        *,
        hash_range: tuple[int, int] = (0, HASH_END),
    ) -> Iterator[pa.RecordBatch]:
        """Yield the changes of some epochs for a range of hashes."""
        schema = self.log.head().schema
        for stretch in plan(self.log, lower, upper, schema):
            yield from read_changes(
                self.store, stretch, options, lower=hash_range[0], upper=hash_range[1]
            )
