"""A table with caps, two writers who race and two consumers: what must hold whatever they do."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import BatchTooLargeError, TableFullError
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.log.properties import Caps
from spark_upsert.table.retention.lag import slowest
from spark_upsert.table.table import Table
from tests.support.stores import FaultyStore, MemoryStore, Steps

COLUMNS = pa.schema({"id": pa.int64(), "writer": pa.int64()})
CONSUMERS = ("slow", "fast")

Action = tuple[str, int | str, int]


class Play:
    """A table with caps, two writers and two consumers."""

    def __init__(self, properties: dict[str, str]) -> None:
        self.store = MemoryStore()
        self.caps = Caps.of(properties)
        self.at_step: Callable[[], None] = lambda: None
        self.writers = [
            Table(FaultyStore(self.store, Steps(watch=lambda: self.at_step()))),
            Table(self.store),
        ]
        self.reader = Table(self.store)
        self.reader.ensure(TableSchema.of(COLUMNS, keys=["id"]), {"onFull": "reject", **properties})
        self.read = {name: self.reader.hold(name, 0).version for name in CONSUMERS}
        self.written: dict[int, int] = {}
        """The writer of each row that is in."""
        self.count = 0

    def append(self, writer: int, rows: int) -> None:
        """Write rows that nobody wrote; they come in whole, or leave nothing."""
        self.count += 1
        ids = range(1000 * self.count, 1000 * self.count + rows)
        table, number = self.writers[writer], self.count
        transaction = Transaction(writer=f"w{writer}", number=number)
        try:
            table.upsert(
                pa.table({"id": list(ids), "writer": [writer] * rows}), transaction=transaction
            )
        except (TableFullError, BatchTooLargeError):
            return
        self.written.update(dict.fromkeys(ids, writer))

    def advance(self, consumer: str, versions: int) -> None:
        """Let a consumer read on."""
        newest = self.reader.log.head().version
        if consumer not in self.read:
            self.read[consumer] = newest  # It begins with the whole table.
        self.read[consumer] = min(newest, self.read[consumer] + versions)
        self.reader.hold(consumer, self.read[consumer])

    def release(self, consumer: str) -> None:
        """Let a consumer go."""
        self.reader.release(consumer)
        self.read.pop(consumer, None)

    def require(self) -> None:
        """Hold the laws against the log, read anew."""
        table = Table(self.store)
        head = table.log.head()
        lease = slowest(table.consumers(), table.log.now_ms())
        if lease is not None:
            behind = [
                sum(file.bytes for file in commit.added)
                for commit in table.log.commits(lease.version + 1, head.upper)
                if commit.is_epoch
            ]
            epochs_max, bytes_max = self.caps.epochs, self.caps.bytes
            assert epochs_max is None or len(behind) <= epochs_max
            assert bytes_max is None or sum(behind) <= bytes_max
        found = {row["id"]: row["writer"] for row in table.snapshot().to_pylist()}
        assert found == self.written, "something is lost, or came in although it was refused"
        files = {path for path in self.store.objects if path.startswith("data/")}
        assert files == {slice_.file.path for slice_ in head.slices}, "a file is left behind"


def act(play: Play, action: Action) -> None:
    """Do one action."""
    match action:
        case "append", int(writer), rows:
            play.append(writer, rows)
        case "advance", str(consumer), versions:
            play.advance(consumer, versions)
        case "release", str(consumer), _:
            play.release(consumer)
        case _, int(step), rows:
            left = [step, rows]

            def other_appends() -> None:
                left[0] -= 1
                if left[0] <= 0 and left[1] > 0:
                    left[1] -= 1
                    play.append(1, 1)

            play.at_step = other_appends
            play.append(0, 1)
            play.at_step = lambda: None
