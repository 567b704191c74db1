"""A table whose commands leave values unchanged: the public table under a case's steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from spark_upsert.core.key_hash import ALL_HASHES
from spark_upsert.core.schema import ErrorPolicy, OnUnknown, Scope, TableSchema, Ties
from spark_upsert.store import Store
from spark_upsert.table.compaction import compact_runs
from spark_upsert.table.compaction.policy import Job
from spark_upsert.table.log.manifest import Commit, Draft
from spark_upsert.table.log.manifest import Kind as LogKind
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.table import Table
from spark_upsert.table.write.commands import DecodedRows, to_commands, with_skipped
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet, with_truncates
from tests.support.registers_model import Command, Kind, Row
from tests.support.stores import MemoryStore, forget_runs_and_logs
from tests.support.tables import Ticks
from tests.support.unchanged_cases import Case, Epoch, Restore, Step, Upkeep

VALUES: Mapping[str, pa.DataType] = {"n": pa.int64(), "x": pa.string()}


class UnchangedTable:
    """A table with key ``k``, order ``o`` and some value columns."""

    def __init__(
        self,
        values: Mapping[str, pa.DataType] = VALUES,
        *,
        on_unknown: OnUnknown = OnUnknown.NULL,
        ties: Ties = Ties.LAST,
        on_error: ErrorPolicy = ErrorPolicy.FAIL,
        scope: Scope = Scope.TABLE,
        late_rows: LateRows = LateRows.REJECT,
        properties: Mapping[str, str] | None = None,
        store: Store | None = None,
        **more: Any,
    ) -> None:
        self.columns = list(values)
        schema = TableSchema.of(
            pa.schema({"k": pa.int64(), **values}),
            keys=["k"],
            order=[] if scope is Scope.ARRIVAL else [pa.field("o", pa.int64())],
            scope=scope,
            hash_seed=1,
            on_error=on_error,
            ties=ties,
            on_unknown=on_unknown,
            **more,
        )
        self.store: Store = MemoryStore() if store is None else store
        self.clock = Ticks()
        self.table = Table(self.store, clock=self.clock)
        if self.table.log.try_refresh() is None:
            self.table.log.create(Draft(kind=LogKind.CREATE, schema=schema, properties=properties))
        self.late_rows = late_rows
        self.has_single_batches = False
        """Whether a task gets its commands one by one."""
        self.versions = [0]
        """The version of each epoch and restore, in order; 0 is the empty table."""

    @classmethod
    def of(cls, case: Case) -> UnchangedTable:
        """Return an empty table with the options of a case."""
        return cls(
            on_unknown=case.on_unknown,
            ties=case.ties,
            on_error=case.on_error,
            scope=case.scope,
            late_rows=case.late_rows,
            properties={"tombstoneRetention": "0 epochs"} if "forget" in case.steps else None,
        )

    # -- writing ---------------------------------------------------------------------

    def take(self, step: Step) -> Commit | None:
        """Take a step; returns the commit of an epoch or a restore."""
        match step:
            case Epoch():
                return self.write(step)
            case Restore(version=number):
                commit = self.table.restore(self.versions[number])
                self.versions.append(self.table.log.head().version)
                return commit
            case Upkeep(first=0, count=count) if count > len(self.versions):
                self.table.compact(full=True)
            case Upkeep(first=first, count=count):
                self.merge(first, count)
        return None

    def write(self, epoch: Epoch) -> Commit:
        """Stage and commit an epoch."""
        return self.commit(self.stage(epoch))

    def stage(self, epoch: Epoch) -> WriteSet:
        """Stage an epoch on the newest version."""
        base = self.table.at()
        schema = base.manifest.schema
        staged = tuple(
            stage(
                base,
                self._batches(schema, task),
                overwrite=epoch.overwrite,
                late_rows=self.late_rows,
            )
            for task in epoch.tasks
        )
        return WriteSet(
            base=base,
            staged=staged,
            overwrite=epoch.overwrite,
            late_rows=self.late_rows,
            allow_unordered=True,
        )

    def commit(self, write_set: WriteSet) -> Commit:
        """Commit a staged epoch, whose counters must balance."""
        commit = self.table.commit(write_set)
        assert commit is not None
        assert Counters.from_json(commit.counters).is_balanced, commit.counters
        self.versions.append(commit.version)
        return commit

    def _batches(self, schema: TableSchema, task: Sequence[Command]) -> list[pa.RecordBatch]:
        cut = [[command] for command in task] if self.has_single_batches and task else [task]
        return [self.batch(schema, commands) for commands in cut]

    def batch(self, schema: TableSchema, commands: Sequence[Command]) -> pa.RecordBatch:
        """Return commands as the batch that a task stages."""
        truncates = [c for c in commands if c.kind is Kind.TRUNCATE]
        rows = [c for c in commands if c.kind is not Kind.TRUNCATE]
        batch = to_commands(schema, self._decoded(schema, rows))
        if not truncates:
            return batch
        orders = pa.array([c.order for c in truncates], pa.int64())
        return with_skipped(with_truncates(batch, [orders], schema), len(truncates))

    def _decoded(self, schema: TableSchema, commands: Sequence[Command]) -> DecodedRows:
        columns = {"k": pa.array([c.key for c in commands], pa.int64())}
        unchanged = {}
        for name in self.columns:
            type_ = schema.columns.field(name).type
            columns[name] = pa.array([c.values.get(name) for c in commands], type_)
            is_unchanged = np.array([_leaves(c, name) for c in commands], dtype=np.bool_)
            if is_unchanged.any():
                unchanged[name] = is_unchanged
        errors = [f"undecodable {c.order}" if c.kind is Kind.ERROR else None for c in commands]
        creates = np.array([c.kind is Kind.CREATE for c in commands], dtype=np.bool_)
        marks: dict[str, Any] = {"unchanged": unchanged} if unchanged else {}
        if unchanged and creates.any():
            marks["resets"] = creates
        if any(c.moved_to is not None for c in commands):
            marks["moved_to"] = [pa.array([c.moved_to for c in commands], pa.int64())]
        return DecodedRows(
            columns=columns,
            order=[pa.array([c.order for c in commands], pa.int64())] if schema.order else [],
            tombstones=np.array([c.kind is Kind.DELETE for c in commands], dtype=np.bool_),
            raw_values=lambda rows: pa.array([b"raw"] * len(rows), pa.binary()),
            bad_values=pa.array(errors, pa.string()) if any(errors) else None,
            **marks,
        )

    # -- upkeep ----------------------------------------------------------------------

    def merge(self, first: int, count: int) -> None:
        """Merge the runs of some neighbouring epochs, counted from the oldest one if not negative."""
        head = self.table.log.head()
        lowers = sorted({slice_.epochs.lower for slice_ in head.slices})
        start = first if first >= 0 else max(0, len(lowers) + first)
        chosen = lowers[start : start + count]
        if len(chosen) > 1:
            job = Job(
                hash_range=ALL_HASHES,
                slices=tuple(s for s in head.slices if s.epochs.lower in chosen),
                is_oldest=start == 0,
            )
            assert self.table.commit_compactions([compact_runs(self.store, head, job)]) == 1

    def reopen(self) -> None:
        """Open the table again, as another process would."""
        forget_runs_and_logs()
        self.table = Table(self.store, clock=self.clock)

    # -- reading ---------------------------------------------------------------------

    def rows(self, version: int | None = None) -> dict[int, Row]:
        """Return the rows by key."""
        rows = self.table.snapshot(version).to_pylist()
        by_key = {row["k"]: tuple(row[name] for name in self.columns) for row in rows}
        assert len(by_key) == len(rows)
        return by_key

    def changes(self, lower: int, upper: int) -> list[tuple[str, int, Row]]:
        """Return changes as their sign, key and values, without pairs that change nothing."""
        return [
            (_SIGNS[row["_change_type"]], row["k"], tuple(row[name] for name in self.columns))
            for row in self.table.changes(lower, upper).to_pylist()
        ]

    def listed(self) -> dict[int, tuple[str, ...]]:
        """Return the rows in the quarantine that are unknown in some columns, by key."""
        rows = [row for batch in self.table.quarantine() for row in batch.to_pylist()]
        reasons = {row["k"]: row["_reason"] for row in rows}
        return {
            key: tuple(re.findall("'([^']*)'", reason))
            for key, reason in reasons.items()
            if reason.startswith("the source never sent")
        }

    def check(self) -> None:
        """Check that the changes fold to the table at each version, and that it is sound."""
        findings = [str(finding) for finding in self.table.check().findings]
        assert not findings, findings
        since = max(self.table.log.head().since, 0)
        rows = self.rows(since)
        for version in range(since + 1, self.table.log.head().upper):
            for sign, key, row in self.changes(version, version + 1):
                if sign == "-":
                    assert rows.get(key) == row, f"version {version}: {row} is not in {rows}"
                    del rows[key]
                else:
                    assert key not in rows, f"version {version}: {key} is in {rows}"
                    rows[key] = row
            found = self.rows(version)
            assert found == rows, f"version {version}: rows {found}, by the changes {rows}"
            commit = self.table.log.commit(version)
            assert commit.live_rows == len(rows), f"version {version}: {commit.live_rows} rows"
            if commit.is_epoch:
                count = Counters.from_json(commit.counters).output_count
                written = self.table.changes(version, version + 1, emit_unchanged=True).num_rows
                assert written == count, f"version {version}: {written} changes, {count} counted"


_SIGNS = {"delete": "-", "update_preimage": "-", "update_postimage": "+", "insert": "+"}


def _leaves(command: Command, name: str) -> bool:
    return command.kind in (Kind.PUT, Kind.CREATE) and name not in command.values
