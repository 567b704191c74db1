"""A mirror is behind its table or equal to it, never beside, at each of its versions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import pyarrow as pa

from spark_upsert.core.schema import Scope, TableSchema
from spark_upsert.delta import change_feed, deletion_vectors, parquet_files, publish
from spark_upsert.delta import publish as plan
from spark_upsert.delta.log import open_mirror_store
from spark_upsert.delta.publish import Mirror, check_mirror
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.form import envelope_of_rows
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.support.delta import DeltaTable
from tests.support.mirrored import KINDS, MirroredTable, canonical
from tests.support.seeds import seeds
from tests.support.stores import MemoryStore
from tests.support.tables import hashes_of_few_values

SEEDS = seeds(3 * len(KINDS), quick=(8,))
"""Each life is one of a kind of table: three of each kind, and one kind for `make check`."""
ACTS = 24


@contextmanager
def small_pieces(dice: random.Random) -> Iterator[None]:
    """Let a few rows be many: pieces, what is looked up by key, what stands in the log."""
    with ExitStack() as stack:
        for module, name, values in (
            (plan, "_SETTLED_FROM", [0, 0, 8]),
            (deletion_vectors, "CHUNK_ROWS", [2, 1 << 17]),
            (parquet_files, "CHUNK_ROWS", [3, 1 << 17]),
            (change_feed, "CHUNK_ROWS", [2, 1 << 17]),
            (change_feed, "ROWS_MAX", [2, 1 << 20]),
            (publish, "INLINE_BYTES_MAX", [0, 40, 200]),
        ):
            stack.enter_context(patch.object(module, name, dice.choice(values)))
        stack.enter_context(hashes_of_few_values(dice.choice([None, None, 3])))
        yield


@SEEDS
def test_p2_a_mirror_shows_the_rows_of_each_version_that_it_showed(seed: int) -> None:
    """Whatever happened to the table, and whatever way the mirror took."""
    with small_pieces(random.Random(seed)):
        lived = MirroredTable(seed)
        lived.live(ACTS)
        lived.look()


@SEEDS
def test_p2_a_mirror_that_its_writers_prepare_shows_the_rows_of_each_version(seed: int) -> None:
    """By twins and deaths of tasks: several of them, whatever was committed meanwhile."""
    with small_pieces(random.Random(seed)):
        lived = MirroredTable(seed, publishes=True)
        lived.live(ACTS)
        lived.look()


def test_p2_what_a_task_saw_before_an_overwrite_is_nothing_to_the_mirror() -> None:
    """Of its rows one was late then, and of the table's a row was not there that it replaces."""
    table = Table(MemoryStore())
    columns = pa.schema({"id": pa.int64()})
    schema = TableSchema.of(
        columns, keys=["id"], order=[pa.field("seq", pa.int64())], scope=Scope.TABLE, hash_seed=7
    )
    head = table.ensure(schema, {"publish": "delta"})

    def rows(*pairs: tuple[int, int]) -> pa.Table:
        return pa.table(dict(zip(("id", "seq"), map(list, zip(*pairs, strict=True)), strict=True)))

    table.upsert(rows((1, 5)))
    head = table.log.head()
    given = rows((1, 4), (2, 9))
    envelope = envelope_of_rows(head.schema, given.schema, deletes=None)
    base = Snapshot(table.store, head)
    staged = stage(base, map(envelope.commands, given.to_batches()))
    table.upsert(rows((2, 1)), overwrite=True)
    table.commit(WriteSet(base=base, staged=(staged,)))
    assert table.log.head().live_rows == 2
    mirror = Mirror(table.log, table.store, open_mirror_store(table.store, None))
    assert not list(check_mirror(mirror))
    assert canonical(DeltaTable(mirror.target).rows()) == canonical(table.snapshot())


@seeds(len(KINDS))
def test_p1_a_mirror_shows_each_version_once(seed: int) -> None:
    """As every life is looked at; here by itself, since a bug of it may change no row."""
    lived = MirroredTable(seed)
    lived.live(ACTS)
    lived.require_each_version_once()
