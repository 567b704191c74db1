"""Reads by the beginning of the key keep P3 and P7: all rows of a value, and little else."""

from __future__ import annotations

import random
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.core.key_hash import hash_keys
from spark_upsert.core.schema import TableSchema
from spark_upsert.table.state import snapshot
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from tests.support.stores import MemoryStore
from tests.support.streams import Query, stream_of

SEEDS = pytest.mark.parametrize("seed", range(3))

COLUMNS = pa.schema({"c": pa.int64(), "id": pa.int64(), "v": pa.int64()})
HASH_SEED = 7

Model = dict[tuple[int, int], int]


@cache
def namesakes() -> tuple[int, int]:
    """Return two values whose ranges of hashes are the same."""
    uppers = hash_keys([pa.array(range(300_000))], seed=HASH_SEED) >> np.uint64(32)
    order = np.argsort(uppers, kind="stable")
    at = np.flatnonzero(uppers[order][1:] == uppers[order][:-1])[0]
    return int(order[at]), int(order[at + 1])


def epoch_of(dice: random.Random, model: Model, values: list[int]) -> pa.Table:
    """Return some commands, and do them to the model."""
    keys = {(dice.choice(values), dice.randrange(4)) for _ in range(dice.randrange(1, 9))}
    rows = []
    for key in sorted(keys):
        gone, v = dice.random() < 0.3, dice.randrange(100)
        model.pop(key, None)
        if not gone:
            model[key] = v
        rows.append({"c": key[0], "id": key[1], "v": v, "gone": gone})
    return pa.Table.from_pylist(rows, schema=COLUMNS.append(pa.field("gone", pa.bool_())))


def made() -> Table:
    table = Table(MemoryStore())
    schema = TableSchema.of(COLUMNS, keys=["c", "id"], hash_prefix=1, hash_seed=HASH_SEED)
    with patch("secrets.randbits", lambda bits: HASH_SEED):
        table.ensure(schema)
    return table


@SEEDS
def test_p3_all_rows_that_begin_with_a_value_are_found_at_every_version(seed: int) -> None:
    dice = random.Random(seed)
    values = [1, 2, 3, *namesakes()]
    table, model, versions = made(), Model(), [Model()]
    for _ in range(8):
        table.upsert(epoch_of(dice, model, values), deletes="gone")
        versions.append(dict(model))
        if dice.random() < 0.3:
            versions += [versions[-1]] * table.compact(full=True)
    for version, rows in enumerate(versions):
        wanted = dice.sample(values, 2)
        found = table.having_prefix(pa.table({"c": wanted}), version=version).to_pylist()
        expected = {key: v for key, v in rows.items() if key[0] in wanted}
        assert len(found) == len(expected), f"{wanted} at {version}"
        assert {(row["c"], row["id"]): row["v"] for row in found} == expected


@SEEDS
def test_p7_a_common_value_is_read_some_rows_at_a_time(seed: int) -> None:
    dice = random.Random(seed)
    table, count = made(), 2_000
    for begin in (0, count // 2):
        ids = list(range(begin, begin + count // 2))
        common = [0 if dice.random() < 0.9 else n for n in ids]
        table.upsert(pa.table([common, ids, ids], schema=COLUMNS))
    held = []

    def settled(original: Any, self: Snapshot, parts: Any, names: list[str]) -> Any:
        held.append(sum(len(part) for part, _ in parts))
        return original(self, parts, names)

    whole = Snapshot._winning_rows
    with (
        patch.object(snapshot, "CHUNK_ROWS", 200),
        patch.object(Snapshot, "_winning_rows", lambda *how: settled(whole, *how)),
    ):
        assert table.snapshot().num_rows == count
        assert table.having_prefix(pa.table({"c": [0]})).num_rows > count // 2
    assert max(held) <= 300, f"{max(held)} entries at once, not 200"


@SEEDS
def test_p7_a_stream_takes_a_common_value_some_rows_at_a_time(seed: int) -> None:
    dice = random.Random(seed)
    table, count = made(), 2_000
    hot = dice.choice([0.5, 0.9, 1.0])
    values = [1 if dice.random() < hot else dice.randrange(50) for _ in range(count)]
    for part in range(2):
        ids = range(part, count, 2)
        table.upsert(pa.table([[values[n] for n in ids], ids, ids], schema=COLUMNS))
    query = Query(lambda: stream_of(table, maxRowsPerTrigger=200))
    query.drain()
    sizes = [len(batch) for batch in query.batches]
    assert sum(sizes) == count
    assert max(sizes) <= 350, f"{hot} of the rows have one value: {sizes}"
