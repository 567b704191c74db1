"""What the inputs of a lake hold, told by dictionaries, and what a stream must give of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from spark_upsert.streams.inputs.table import TablePosition
from spark_upsert.streams.offsets.offset import Position
from spark_upsert.table.changelog.read import Deduplication
from spark_upsert.table.log.manifest import Commit
from spark_upsert.table.state.reduce import Counters

Record = Mapping[str, Any]
"""The values of a row, or the columns of a row that was delivered."""

Rows = dict[int, dict[str, Any]]
"""The rows of a table by key; what a row lacks is null."""

Told = Hashable
"""What a stream says by one row."""

Epoch = Mapping[int, dict[str, Any] | None]
"""The rows that are written, by key; None deletes."""


@dataclass(frozen=True)
class Reading:
    """What a stream shows of a change."""

    columns: tuple[str, ...]
    is_feed: bool
    mode: Deduplication
    has_pairs: bool
    """Whether a changed row is an update, and not a delete and an insert."""

    def told(self, row: Record) -> Told:
        """Return what a row that was delivered says."""
        values = tuple(row[name] for name in self.columns)
        if not self.is_feed:
            return values
        version = row["_commit_version"] if self.tells_versions else None
        return values, row["_change_type"], row["_diff"], version

    @property
    def tells_versions(self) -> bool:
        """Whether it is known which version a change is shown with."""
        return self.mode is not Deduplication.NET_CHANGES

    def changes(
        self, before: Rows, after: Rows, keys: Iterable[int], version: int
    ) -> Counter[Told]:
        """Return what is said of some keys, whose rows were and are."""
        found: Counter[Told] = Counter()
        for key in keys:
            old, new = before.get(key), after.get(key)
            if old == new and (old is None or self.mode is not Deduplication.NONE):
                continue
            is_update = old is not None and new is not None and self.has_pairs
            kinds = ("update_preimage", "update_postimage") if is_update else ("delete", "insert")
            if old is not None and self.is_feed:
                found[self._say(key, old, kinds[0], -1, version)] += 1
            if new is not None:
                found[self._say(key, new, kinds[1], 1, version)] += 1
        return found

    def inserted(self, rows: Rows, version: int) -> Counter[Told]:
        """Return what is said of rows that a stream begins with."""
        return Counter(self._say(k, row, "insert", 1, version) for k, row in rows.items())

    def _say(self, key: int, row: Record, kind: str, diff: int, version: int) -> Told:
        record = {"k": key, "_change_type": kind, "_diff": diff, "_commit_version": version, **row}
        return self.told({name: record.get(name) for name in {*self.columns, *record}})


class TableModel:
    """What a table holds at each version, and what each version changed."""

    def __init__(self, columns: Mapping[str, pa.DataType]) -> None:
        self.columns = dict(columns)
        self.states: list[Rows] = []
        self.touched: list[frozenset[int]] = []
        self.amounts: list[tuple[int, int, int]] = []
        """Rows, bytes and epochs of each version, as limits count them."""
        self.times_ms: list[int] = []
        self.priority: int | None = None
        self.epochs_max: int | None = None
        self.bytes_max: int | None = None
        """What may lie behind the slowest consumer."""
        self.waits = True
        """Whether a write for which there is no room waits."""
        self.heeds_pressure = False

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the table, as they are given."""
        said = {"priority": self.priority, "maxBacklogEpochs": self.epochs_max}
        said |= {"maxBacklogBytes": self.bytes_max}
        found = {name: str(value) for name, value in said.items() if value is not None}
        found |= {} if self.waits else {"onFull": "reject"}
        return found | ({"backpressure": "true"} if self.heeds_pressure else {})

    @property
    def upper(self) -> int:
        """The version that comes next."""
        return len(self.states)

    @property
    def rows(self) -> Rows:
        """The rows of the newest version."""
        return self.states[-1] if self.states else {}

    def note(self, commit: Commit, epoch: Epoch | None, *, is_whole: bool = False) -> None:
        """Note a version, and the rows that it was made of."""
        assert commit.version == self.upper
        before, after = self.rows, dict(self.rows)
        if commit.restored is not None:
            after = dict(self.states[commit.restored])
        elif commit.is_epoch and epoch is not None:
            after = {} if is_whole else after
            for key, row in epoch.items():
                after.pop(key, None)
                if row is not None:
                    after[key] = {name: value for name, value in row.items() if value is not None}
        touched = before.keys() | after.keys() if is_whole or commit.restored is not None else ()
        self.states.append(after)
        self.times_ms.append(commit.timestamp_ms)
        self.touched.append(frozenset(touched) | frozenset(epoch or ()))
        rows = Counters.from_json(commit.counters).output_count if commit.is_epoch else 0
        size = sum(file.bytes for file in commit.added) if commit.is_epoch else 0
        self.amounts.append((rows, size, int(commit.is_epoch)))

    def changes(self, version: int, reading: Reading) -> Counter[Told]:
        """Return what a stream says of a version."""
        before = self.states[version - 1] if version else {}
        return reading.changes(before, self.states[version], self.touched[version], version)

    def between(self, lower: int, upper: int, reading: Reading) -> Counter[Told]:
        """Return what a batch says of the versions ``lower <= v < upper``."""
        if reading.mode is not Deduplication.NET_CHANGES:
            return sum((self.changes(v, reading) for v in range(lower, upper)), Counter())
        if lower >= upper:
            return Counter()
        before = self.states[lower - 1] if lower else {}
        after = self.states[upper - 1]
        return reading.changes(before, after, before.keys() | after.keys(), upper - 1)


@dataclass
class TableTape:
    """What a stream has still to say of a table, for as long as its checkpoint lives."""

    model: TableModel
    origin: int
    has_snapshot: bool
    is_lenient: bool
    """Whether what is expired is left out, with all that follows from that."""
    is_blind: bool = False
    """Whether it is not known which rows of the snapshot are delivered."""
    snapshot: Counter[Told] | None = None
    """The rows of the snapshot that are not delivered."""
    next: int = 0
    """The first version of which nothing is said; of an exact order alone."""
    left: Counter[Told] = field(default_factory=Counter)
    """What is still to be said of the version before."""

    spare: int = 0
    """So many of these are said already, in other columns: which, is not known."""

    def beginning(self) -> TablePosition:
        """Return the position before all that is said."""
        if self.has_snapshot:
            return TablePosition.in_snapshot(self.origin, 0)
        return TablePosition.at_changes(self.origin, self.origin)

    def begin(self, reading: Reading) -> None:
        """Take in where the stream begins."""
        self.next = self.origin + int(self.has_snapshot)
        if self.has_snapshot:
            self.left = reading.inserted(self.model.states[self.origin], self.origin)

    def reread(self, reading: Reading) -> None:
        """Go on with other columns."""
        self.snapshot = None if self.snapshot is None else Counter()
        self.is_blind = self.snapshot is not None
        left = self.left.total() - self.spare
        if left and self.next == self.origin + 1 and self.has_snapshot:
            self.left = reading.inserted(self.model.states[self.origin], self.origin)
        elif left:
            self.left = self.model.changes(self.next - 1, reading)
        self.spare = self.left.total() - left

    def follow(self, said: Told, reading: Reading) -> None:
        """Take the next row of an exact order."""
        while self.left.total() == self.spare:
            assert self.next < self.model.upper, f"{said} is of no version"
            self.left, self.spare = self.model.changes(self.next, reading), 0
            self.next += 1
        assert self.left[said] > 0, f"{said} is none of {+self.left} before {self.next}"
        self.left[said] -= 1

    def waiting(self, reading: Reading) -> int:
        """Return how many rows an exact order still has."""
        behind = range(self.next, self.model.upper)
        now = self.left.total() - self.spare
        return now + sum(self.model.changes(v, reading).total() for v in behind)

    def check(
        self,
        rows: Counter[Told],
        before: Position | None,
        after: Position,
        lower: int,
        how: Reading,
    ) -> None:
        """Check the rows of a batch between two positions, no older than a version."""
        end = TablePosition.from_position(after)
        start = self.beginning() if before is None else TablePosition.from_position(before)
        if start.is_in_snapshot:
            self._check_snapshot(rows, end, how)
            return
        first = max(start.upper, lower) if self.is_lenient else start.upper
        due = self.model.between(first, end.upper, how)
        assert rows == due, f"from {start.upper} to {end.upper} it gave {rows}, not {due}"

    def _check_snapshot(self, rows: Counter[Told], end: TablePosition, how: Reading) -> None:
        if self.is_lenient or self.is_blind:
            return  # Another version may have taken over for what is left, or other columns.
        if self.snapshot is None:
            self.snapshot = how.inserted(self.model.states[self.origin], self.origin)
        assert rows <= self.snapshot, f"{rows} are none of {self.snapshot} in the snapshot"
        self.snapshot -= rows
        if not end.is_in_snapshot:
            assert not self.snapshot, f"{self.snapshot} are left out of the snapshot"
