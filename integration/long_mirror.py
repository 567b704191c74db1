"""A mirror is followed for thousands of commits: its log stays small, and a new reader is quick.

    python -m integration.long_mirror --commits 10000

Objects lie in memory and time is by hand, so that days of commits take minutes. Now and then a new
publisher reads the log, and delta-rs the table, from a copy on the disk.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from spark_upsert.core.schema import TableSchema
from spark_upsert.delta.log import DeltaLog, PublicationSettings
from spark_upsert.delta.publish import Mirror
from spark_upsert.delta.upkeep import CHECKPOINT_EVERY, CLEAN_EVERY_MS, REMOVALS_MAX
from spark_upsert.store.open import PrefixStore
from spark_upsert.store.protocol import OBJECT_BYTES_MAX
from spark_upsert.table.table import Table
from tests.support.clocked import ClockedStore, Now
from tests.support.mirrored import canonical, plain

RETENTION_MS = 6 * 3_600_000
KEYS = 500
ROWS = 5
"""Of a commit."""

COMPACTION_EVERY = 8
EXPIRY_EVERY = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a mirror came to behind so many commits."""

    commits: int
    log_objects: int
    log_bytes: int
    reads: int
    """Objects that a new publisher read to know the newest version."""
    read_bytes: int
    reader_s: float
    """Processor time in which delta-rs opened the table and read its rows."""

    def __str__(self) -> str:
        return (
            f"{self.commits} commits: {self.log_objects} objects of {self.log_bytes / 1e6:.1f} MB in "
            f"the log, a new publisher reads {self.reads} of {self.read_bytes / 1e3:.0f} kB, "
            f"delta-rs takes {self.reader_s * 1e3:.0f} ms"
        )


def objects_max(step_s: float) -> int:
    """Return how many objects a log may have, with a commit in so many seconds.

    The commits of the retention and of an hour between two cleanings, and those of compactions, each
    with its checksum; the checkpoints among them, and what waits to be removed behind the commits
    that follow.
    """
    young_s = (RETENTION_MS + CLEAN_EVERY_MS) / 1000
    commits = young_s / step_s * (1 + 1 / COMPACTION_EVERY) + CHECKPOINT_EVERY
    removed_late = CLEAN_EVERY_MS / 1000 / step_s * 5 / REMOVALS_MAX
    return int((commits + removed_late) * (2 + 1 / CHECKPOINT_EVERY)) + 2


READS_MAX = CHECKPOINT_EVERY + 3
"""The hint, a checkpoint with its commit, and the commits behind it."""


class _Counting(ClockedStore):
    """A store that counts what is read."""

    reads = 0
    read_bytes = 0

    def read(self, path: str, *, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        data = super().read(path, bytes_max=bytes_max)
        self.reads += 1
        self.read_bytes += len(data)
        return data


def follow(commits: int, *, step_s: float, looks: int, seed: int = 1) -> Iterator[Look]:
    """Write, publish and compact, and look now and then.

    Parameters
    ----------
    step_s : float
        Seconds between two commits.
    looks : int
        How often to look.
    """
    now = Now(time.time() - commits * step_s)
    store, dice = _Counting(now), random.Random(seed)
    target = PrefixStore(store, "_delta")
    table = Table(store, clock=now)
    columns = pa.schema({"id": pa.int64(), "x": pa.string()})
    table.ensure(TableSchema.of(columns, keys=["id"]))
    mirror = Mirror(table.log, store, target)
    asked = PublicationSettings(change_feed=True, retention_ms=RETENTION_MS)
    for number in range(1, commits + 1):
        now.advance(step_s)
        ids = dice.sample(range(KEYS), ROWS)
        gone = [dice.random() < 0.1 for _ in ids]
        rows = pa.table({"id": ids, "x": [f"x{number}"] * ROWS, "gone": gone})
        table.upsert(rows, deletes="gone")
        mirror.publish(asked)
        if number % COMPACTION_EVERY == 0:
            table.compact()
            mirror.publish()
        if number % EXPIRY_EVERY == 0:
            table.expire(retain_versions=EXPIRY_EVERY, safety_ms=0)
            table.vacuum(grace_ms=0)
        if number % (commits // looks) == 0:
            assert mirror.upkeep.failures == 0
            yield _look(number, store, target, table.snapshot())


def _look(number: int, store: _Counting, target: PrefixStore, expected: pa.Table) -> Look:
    store.reads = store.read_bytes = 0
    state = DeltaLog(target).follow()
    assert state is not None
    reads, read_bytes = store.reads, store.read_bytes
    log = list(target.list("_delta_log"))
    with tempfile.TemporaryDirectory(prefix="upsertflow-mirror-") as folder:
        named = {f"_delta/{path}" for path in state.live}
        for path, data in store.objects.items():
            if path in named or path.startswith(("_delta/_delta_log/", "_delta/deletion_vector")):
                file = Path(folder) / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
        before = time.process_time()
        query = QueryBuilder().register("t", DeltaTable(f"{folder}/_delta"))
        rows = pa.table(query.execute("SELECT * FROM t").read_all())
        reader_s = time.process_time() - before
    assert canonical(plain(rows, expected.schema)) == canonical(expected)
    return Look(
        commits=number,
        log_objects=len(log),
        log_bytes=sum(info.bytes for info in log),
        reads=reads,
        read_bytes=read_bytes,
        reader_s=reader_s,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--commits", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="between two commits")
    given = parser.parse_args()
    bound = objects_max(given.seconds)
    sys.stdout.write(f"at most {bound} objects in the log, and {READS_MAX} reads\n")
    for look in follow(given.commits, step_s=given.seconds, looks=10):
        sys.stdout.write(f"{look}\n")
        sys.stdout.flush()
        assert look.log_objects <= bound, look
        assert look.reads <= READS_MAX, look


if __name__ == "__main__":
    main()
