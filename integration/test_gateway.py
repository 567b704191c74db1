"""Two writers and a compactor, each a process, on an S3 server that decides races by itself.

Own processes: the writers and the compactor race as processes do; there is no Spark.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pyarrow as pa
import pytest

from integration.promises import assert_sound, rows_of
from spark_upsert.core.schema import Scope
from spark_upsert.errors import OptionError
from spark_upsert.table.table import Table
from tests.support.model import Command, Model
from tests.support.s3 import S3
from tests.support.workers import append_epochs, compact_until, worker_processes

COLUMNS = pa.schema({"k": pa.int64(), "v": pa.int64(), "seq": pa.int64()})
WRITERS, EPOCHS, ROWS, KEYS = 2, 40, 30, 50


def as_table(commands: Sequence[Command]) -> pa.Table:
    """Return commands as rows."""
    rows = [{"k": c.key, "v": c.value, "seq": c.order, "gone": c.value is None} for c in commands]
    return pa.Table.from_pylist(rows, schema=COLUMNS.append(pa.field("gone", pa.bool_())))


def test_a_key_that_nobody_has_is_refused(gateway: S3) -> None:
    url = f"s3://{gateway.new_bucket()}/table"
    Table.create(url, COLUMNS, keys=["k"], storage_options=gateway.storage)
    with pytest.raises(OptionError, match="check the credentials"):
        Table.open(url, storage_options={**gateway.storage, "access_key_id": "nobody"})


def test_two_writers_and_a_compactor_race(gateway: S3) -> None:
    dice = random.Random(11)
    # No two commands of one order: then the table depends on the set of them alone.
    orders = dice.sample(range(WRITERS * EPOCHS * ROWS), WRITERS * EPOCHS * ROWS)
    values = [dice.choice([None, 1, 2, 3]) for _ in orders]
    commands = [Command(dice.randrange(KEYS), v, o) for v, o in zip(values, orders, strict=True)]
    epochs = [commands[start : start + ROWS] for start in range(0, len(commands), ROWS)]

    url, storage = f"s3://{gateway.new_bucket()}/table", gateway.storage
    Table.create(url, COLUMNS, keys=["k"], sequence_by=["seq"], storage_options=storage)
    done = [f"done/{writer}" for writer in range(WRITERS)]
    with worker_processes(WRITERS + 1) as pool:
        writing = [
            pool.submit(
                append_epochs, url, storage, [*map(as_table, epochs[writer::WRITERS])], name
            )
            for writer, name in enumerate(done)
        ]
        compacting = pool.submit(compact_until, url, storage, done)
        counted = [each.result() for each in writing]
        merges = compacting.result()

    assert counted == [EPOCHS * ROWS] * WRITERS
    assert merges, "the compactor did not get to race"
    model = Model(Scope.TABLE)
    model.append(commands)
    table = assert_sound(url, storage)
    newest = {c.key: c for c in model.entries.values() if c.value is not None}
    expected = {(key,): (c.value, c.order) for key, c in newest.items()}
    assert rows_of(url, storage=storage) == expected
    assert table.check().is_sound
