"""Checkpoints with leaves: few leaves are written, and a missing one makes the log read further."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from spark_upsert.core.key_hash import HashRange
from spark_upsert.core.schema import Scope
from spark_upsert.errors import CorruptionError, NewerFormatError
from spark_upsert.store.records import MALFORMED, encode, read_record
from spark_upsert.table.log import slices, storage
from spark_upsert.table.log.codec import (
    HINT_PATH,
    LEAVES,
    checkpoint_path,
    leaf_from_arrow,
    leaf_to_arrow,
    manifest_from_json,
)
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Draft, Kind
from spark_upsert.table.log.slices import Leaf
from spark_upsert.table.log.storage import read_checkpoint, write_checkpoint
from spark_upsert.table.run.file import HotPrefix
from spark_upsert.table.table import Table
from tests.support.clocked import DAY_S, HOUR_S, ClockedStore, Now
from tests.support.model import Command
from tests.support.stores import forget_runs_and_logs
from tests.support.tables import append, rows_at, schema_of
from tests.unit.test_slices import made

EVERY = 5


@pytest.fixture(autouse=True)
def _small_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "CHECKPOINT_EVERY", EVERY)
    monkeypatch.setattr(slices, "LEAF_SLICES", 4)


class PutStore(ClockedStore):
    """Remembers the paths of its puts."""

    def __init__(self, now: Now) -> None:
        super().__init__(now)
        self.puts: list[str] = []

    def put(self, path: str, data: bytes) -> None:
        self.puts.append(path)
        super().put(path, data)

    def leaves(self) -> set[str]:
        return {path for path in self.objects if path.startswith(f"{LEAVES}/")}


def filled(versions: int) -> tuple[Table, PutStore]:
    store = PutStore(Now())
    table = Table(store, clock=store.now)
    table.log.create(Draft(kind=Kind.CREATE, schema=schema_of(Scope.EPOCH)))
    grow(table, store, versions)
    return table, store


def grow(table: Table, store: ClockedStore, versions: int) -> None:
    for _ in range(versions):
        store.now.advance(HOUR_S)
        number = table.log.head().version
        append(table, [Command(number, number, number)])


def test_a_checkpoint_writes_only_the_touched_leaves_whoever_writes_it() -> None:
    table, store = filled(40)
    head = table.log.head()
    for writer in (None, table, None, table):
        store.puts.clear()
        other = writer or Table(store, clock=store.now)
        grow(other, store, EVERY)
        head = other.log.head()
        assert len([path for path in store.puts if path.startswith(LEAVES)]) <= EVERY // 4 + 2
        assert head.slices == Log(store).without_cache().head().slices
        stored = read_checkpoint(store, head.version)
        assert stored is not None
        assert [leaf.file for leaf in stored.slice_list.leaves] == [
            leaf.file for leaf in head.slice_list.leaves
        ]
    assert len(head.slice_list.leaves) > 10


def test_an_earlier_release_refuses_a_checkpoint_with_leaves() -> None:
    _, store = filled(10)
    with pytest.raises(NewerFormatError):
        read_record(store, checkpoint_path(10), manifest_from_json)


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-1], lambda data: bytes([data[0] ^ 1]) + data[1:], lambda data: b""],
    ids=["a shorter leaf", "another byte", "an empty leaf"],
)
def test_damage_names_the_leaf(damage: Callable[[bytes], bytes]) -> None:
    _, store = filled(10)
    path = max(store.leaves())
    store.objects[path] = damage(store.objects[path])
    with pytest.raises(CorruptionError, match=re.escape(path)):
        read_checkpoint(store, 10)


def test_without_a_leaf_the_checkpoint_is_none_and_the_log_is_read() -> None:
    table, store = filled(12)
    rows = rows_at(table)
    del store.objects[max(store.leaves())]
    assert read_checkpoint(store, 10) is None
    forget_runs_and_logs()
    assert rows_at(Table(store, clock=store.now)) == rows
    grow(table, store, EVERY)
    assert read_checkpoint(store, 15) is not None, "it reuses no leaf that is gone"


def test_a_writer_reuses_no_leaf_that_others_removed() -> None:
    table, store = filled(10)
    for path in (*store.leaves(), checkpoint_path(10), HINT_PATH):
        del store.objects[path]
    grow(table, store, EVERY)
    assert read_checkpoint(store, 15) is not None


def test_a_vacuum_retains_leaves_of_checkpoints_and_those_that_it_cuts() -> None:
    table, store = filled(30)
    table.compact(full=True)
    grow(table, store, 12)
    rows = rows_at(table)
    counts = []
    for _ in range(3):
        store.now.advance(2 * DAY_S)
        table.expire(retain_versions=1)
        before = store.leaves()
        table.vacuum()
        counts.append(len(before - store.leaves()))
        forget_runs_and_logs()
        assert rows_at(Table(store, clock=store.now)) == rows
        assert Table(store, clock=store.now).check().is_sound
    assert counts[0] == 0 < counts[1], "the first one still retains what it cuts off the log"
    head = table.log.head()
    used = {leaf.file.path for leaf in head.slice_list.leaves if leaf.file}
    assert len(store.leaves() - used) <= 4


def test_a_suspended_writer_does_not_replace_the_checkpoint_of_a_vacuum() -> None:
    table, store = filled(10)
    suspended = table.log.at(10)
    data = store.objects[checkpoint_path(10)]
    for leaf in suspended.slice_list.leaves:
        assert leaf.file is not None
        leaf.file = replace(leaf.file, path=leaf.file.path.replace("-", "-0")[:-7] + ".arrow")
    reusable = frozenset(leaf.file for leaf in suspended.slice_list.leaves if leaf.file)
    write_checkpoint(store, suspended, reusable=reusable)
    assert store.objects[checkpoint_path(10)] == data


def test_a_leaf_has_the_slices_that_no_record_represents() -> None:
    plain = made(3, 1, 2, HashRange(5, 9))
    kinds = [
        plain,
        replace(plain, file=replace(plain.file, path="data/other.arrow")),
        replace(plain, file=replace(plain.file, hash_range=HashRange(0, 1 << 40), crowds=())),
        replace(
            plain,
            file=replace(
                plain.file, hash_range=HashRange(7 << 32, 8 << 32), crowds=(HotPrefix(7, 3),)
            ),
        ),
        replace(plain, is_held=True, index=9),
    ]
    leaf = Leaf.of(kinds)
    decoded = leaf_from_arrow(leaf_to_arrow(leaf))
    assert decoded == leaf
    assert decoded.slices() == kinds
    assert [item is not None for item in decoded.irregular_slices] == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rows", 0),
        ("rows", 2**63),
        ("tombstones", 50),
        ("errors", 50),
        ("tail_bytes", 5000),
        ("hash_first", 2**63),
        ("live_first", 2**63),
        ("lower", 9),
        ("upper", 2**63),
        ("index", 2**63),
        ("is_held", 2),
    ],
)
def test_a_leaf_is_refused_with_an_impossible(field: str, value: int) -> None:
    slice_ = made(3, 1, 2, HashRange(5, 9))
    rows = Leaf.of([slice_, replace(slice_, live=HashRange(5, 9))]).rows.copy()
    rows[field][1] = value
    with pytest.raises(MALFORMED):
        leaf_from_arrow(leaf_to_arrow(Leaf(rows)))


def test_a_leaf_is_refused_whose_record_differs_from_its_slice() -> None:
    leaf = Leaf.of([replace(made(3, 1, 2, HashRange(5, 9)), live=HashRange(2, 2))])
    rows = leaf.rows.copy()
    rows["upper"] = 7
    with pytest.raises(MALFORMED):
        leaf_from_arrow(leaf_to_arrow(Leaf(rows, np.array(leaf.irregular_slices, np.object_))))


@pytest.mark.parametrize("path", ["data/x.arrow", "_manifest/../x.arrow", f"{LEAVES}/1.arrow"])
def test_a_checkpoint_is_refused_with_a_leaf_in_another_place(path: str) -> None:
    _, store = filled(10)
    name = checkpoint_path(10)
    record = json.loads(store.objects[name])
    del record["crc"]
    record["leaves"][0][0] = path
    store.objects[name] = encode(record)
    with pytest.raises(CorruptionError, match=re.escape(name)):
        read_checkpoint(store, 10)
