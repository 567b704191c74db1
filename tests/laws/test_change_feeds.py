"""A copy made from a change feed equals the source, also where updates change the copy's key.

The source has rows with an identity of its own, as Delta's change data feed sees them, and the copy
has another column as its key. `SOURCE_SEEDS` is the number of seeds.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.support.envelopes import assert_sound, plan, rows_of
from tests.support.seeds import seeds

SEEDS = int(os.environ.get("SOURCE_SEEDS", "15"))
KEYS = range(5)
EPOCHS = 5
BATCH_ROWS = (1, 2, 100)

Row = tuple[int, str, int]
"""Key, value and version of the last change."""

FEED = pa.schema(
    {
        "k": pa.int64(),
        "v": pa.string(),
        "changed": pa.int64(),
        "_change_type": pa.string(),
        "_commit_version": pa.int64(),
    }
)


Change = tuple[int, str, int, str, int]
"""A row of the feed."""


class Source:
    """A table whose rows have identities, and at most one row per key."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.rows: dict[int, Row] = {}
        self.version = 0
        self._identities = 0

    @property
    def expected(self) -> list[dict[str, Any]]:
        """The rows of a copy."""
        return sorted(({"k": k, "v": v} for k, v, _ in self.rows.values()), key=repr)

    def change(self) -> list[Change]:
        """Commit a version; return its rows in the feed."""
        self.version += 1
        before = dict(self.rows)
        for _ in range(self.dice.randint(1, 4)):
            if self.dice.random() < 0.4:
                self._insert_or_delete()
            else:
                self._update()
        identities = sorted(before.keys() | self.rows.keys())
        return [row for each in identities for row in self._images(before.get(each), each)]

    def _images(self, old: Row | None, identity: int) -> list[Change]:
        new = self.rows.get(identity)
        if old == new:
            return []
        kinds = ("update_preimage", "update_postimage") if old and new else ("delete", "insert")
        return [
            (*row, kind, self.version) for kind, row in zip(kinds, (old, new), strict=True) if row
        ]

    def _insert_or_delete(self) -> None:
        key = self.dice.choice(KEYS)
        holders = [each for each, row in self.rows.items() if row[0] == key]
        for each in holders:
            del self.rows[each]
        if not holders or self.dice.random() < 0.3:
            self._identities += 1
            self.rows[self._identities] = (key, str(self.dice.randrange(9)), self.version)

    def _update(self) -> None:
        """Change the value and the key of a row; a row that has the key gets the old one."""
        if not self.rows:
            return
        identity, key = self.dice.choice(list(self.rows)), self.dice.choice(KEYS)
        old_key = self.rows[identity][0]
        for each, (other_key, value, _) in self.rows.items():
            if other_key == key:
                self.rows[each] = (old_key, value, self.version)
        self.rows[identity] = (key, str(self.dice.randrange(9)), self.version)


def apply(
    path: Path, fields: pa.Schema, tasks: list[list[Change]], batch_rows: int, **options: str
) -> None:
    """Write rows of the feed as one epoch."""
    usual = {"keys": "k", "envelope": "changelog", "exceptColumnList": "changed"}
    planned = plan(path, fields, **usual, **options)
    table = planned.table()
    base = Snapshot(table.store, planned.write.base)
    staged = []
    for task in tasks:
        named = [dict(zip(FEED.names, row, strict=True)) for row in task]
        rows = pa.Table.from_pylist(named, schema=fields)
        batches = rows.to_batches(max_chunksize=batch_rows)
        staged.append(stage(base, map(planned.write.envelope.commands, batches)))
    assert table.commit(WriteSet(base=base, staged=tuple(staged))) is not None


@pytest.mark.parametrize(
    "options",
    [{}, {"sequenceBy": "_commit_version"}, {"onError": "quarantine"}],
    ids=["by epochs", "by versions", "with a quarantine"],
)
@seeds(SEEDS, quick=3)
def test_a_copy_with_another_key_equals_its_source(
    seed: int, options: dict[str, str], tmp_path: Path
) -> None:
    """Rows come in any order, in any batches and tasks."""
    dice = random.Random(seed)
    source, path = Source(dice), tmp_path / "t"
    for _ in range(EPOCHS):
        feed = [row for _ in range(dice.randint(1, 3)) for row in source.change()]
        dice.shuffle(feed)
        tasks: list[list[Change]] = [[] for _ in range(dice.randint(1, 3))]
        for row in feed:
            dice.choice(tasks).append(row)
        apply(path, FEED, tasks, dice.choice(BATCH_ROWS), **options)
        assert rows_of(path) == source.expected
    assert_sound(path)


@seeds(SEEDS, quick=3)
def test_a_feed_without_versions_moves_rows_in_its_own_order(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    source, path = Source(dice), tmp_path / "t"
    for _ in range(EPOCHS):
        feed = [row for _ in range(dice.randint(1, 3)) for row in source.change()]
        apply(path, FEED.remove(4), [feed], dice.choice(BATCH_ROWS), sequenceBy="changed")
        assert rows_of(path) == source.expected
    assert_sound(path)
