"""A process that writes and publishes is killed at any moment, again and again."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from spark_upsert.mirror.check import check_mirror
from spark_upsert.mirror.publish import Mirror, place_of
from spark_upsert.table.table import Table
from tests.support.delta import DeltaTable
from tests.support.mirrored import canonical
from tests.support.stores import forget_runs_and_logs

COLUMNS = pa.schema({"k": pa.int64(), "v": pa.int64()})

KILLS = 12
BEHIND_MAX = 3
"""An epoch and its compactions may be committed before their publication."""

PROGRAM = """
import random, sys, time
import pyarrow as pa
from spark_upsert import Table

table, dice = Table.open(sys.argv[1]), random.Random(int(sys.argv[2]))
print("ready", flush=True)
while True:
    keys = dice.sample(range(200), 20)
    gone = [dice.random() < 0.2 for _ in keys]
    rows = pa.table({"k": keys, "v": [dice.randrange(9) for _ in keys], "gone": gone})
    table.append(rows, deletes="gone")
    print("appended", flush=True)
    if dice.random() < 0.3:
        table.compact()
"""


@pytest.mark.slow
def test_a_killed_publisher_leaves_no_version_that_never_was(tmp_path: Path) -> None:
    path, dice = str(tmp_path / "table"), random.Random(5)
    properties = {"publish": "delta", "publishChangeFeed": "true"}
    Table.create(path, COLUMNS, keys=["k"], properties=properties)
    for kill in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, path, str(kill)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        # By what it has done: a loaded machine does less in a time.
        for _ in range(dice.randrange(1, 6)):
            assert process.stdout.readline() == b"appended\n"
        time.sleep(dice.random() * 0.05)
        process.kill()
        process.wait()
        process.stdout.close()
        forget_runs_and_logs()
        table = Table.open(path)
        mirror = Mirror(table.log, table.store, place_of(table.store, None))
        shown = mirror.shown()
        if shown is not None:
            assert 0 <= table.log.head().version - shown <= BEHIND_MAX
            assert not list(check_mirror(mirror))
            rows = DeltaTable(mirror.target).rows()
            assert canonical(rows) == canonical(table.snapshot(shown))
        if kill % 3 == 2:
            table.publish()
            rows = DeltaTable(mirror.target).rows()
            assert canonical(rows) == canonical(table.snapshot())
    assert Table.open(path).log.head().version > KILLS
