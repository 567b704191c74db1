"""A process that writes and publishes is killed again and again; what its mirror shows is looked at.

    python -m integration.publisher --kills 200

After each kill the mirror must show the rows of the version that it says, behind the table or
equal to it, and each version once. `test_published_crash.py` takes some kills, this program many.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa

from spark_upsert.delta.log import open_mirror_store
from spark_upsert.delta.publish import Mirror, check_mirror
from spark_upsert.table.table import Table
from tests.support.delta import DeltaTable
from tests.support.mirrored import canonical
from tests.support.stores import forget_runs_and_logs

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = pa.schema({"k": pa.int64(), "v": pa.int64()})
KEYS = 200

BEHIND_MAX = 3
"""An epoch and its compactions may be committed before their publication."""

WINDOW_SECONDS = 0.05
"""From the end of an append to the latest kill: about an append and its publication."""


def write(path: str, seed: int) -> None:
    """Write and publish without end, a word behind each append."""
    table, dice = Table.open(path), random.Random(seed)
    while True:
        keys = dice.sample(range(KEYS), 20)
        gone = [dice.random() < 0.2 for _ in keys]
        values = [dice.randrange(9) for _ in keys]
        table.upsert(pa.table({"k": keys, "v": values, "gone": gone}), deletes="gone")
        sys.stdout.write("appended\n")
        sys.stdout.flush()
        if dice.random() < 0.3:
            table.compact()


def look(path: str | Path) -> int | None:
    """Check that a mirror shows what it says, each version once; return how far it is behind.

    Without a mirror it is None.
    """
    forget_runs_and_logs()
    table = Table.open(str(path))
    mirror = Mirror(table.log, table.store, open_mirror_store(table.store, None))
    shown = mirror.shown()
    if shown is None:
        return None
    head = table.log.head()
    assert shown <= head.version, f"the mirror shows {shown}, the table is at {head.version}"
    assert not list(check_mirror(mirror))
    found = DeltaTable(mirror.target)
    assert canonical(found.rows()) == canonical(table.snapshot(shown)), f"beside version {shown}"
    versions = [
        each["txn"]["version"]
        for actions in found.commits
        for each in actions
        if each.get("txn", {}).get("appId") == f"upsertflow:{head.table_id}"
    ]
    assert versions == sorted(set(versions)), f"a version is shown twice: {versions}"
    return head.version - shown


def kill_many(folder: Path, kills: int, seed: int) -> str:
    """Kill a writer so many times, and look behind each; returns what was seen."""
    path, dice = str(folder / "table"), random.Random(seed)
    properties = {"publish": "delta", "publishChangeFeed": "true"}
    Table.create(path, COLUMNS, keys=["k"], properties=properties)
    behind: Counter[int | None] = Counter()
    for kill in range(kills):
        process = subprocess.Popen(
            [sys.executable, "-m", "integration.publisher", "--write", path, "--seed", str(kill)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        # By what it has done: a loaded machine does less in a time.
        for _ in range(dice.randrange(1, 6)):
            assert process.stdout.readline() == b"appended\n"
        time.sleep(dice.random() * WINDOW_SECONDS)
        process.kill()
        process.wait()
        process.stdout.close()
        found = look(path)
        behind[found] += 1
        assert found is None or found <= BEHIND_MAX, f"{found} versions behind"
        if kill % 3 == 2:
            Table.open(path).publish()
            assert look(path) == 0
    table = Table.open(path)
    table.publish()
    assert look(path) == 0
    versions = table.log.head().version
    assert versions > kills
    seen = ", ".join(
        f"{each} behind {count} times" for each, count in sorted(behind.items(), key=str)
    )
    return f"{kills} kills, {versions} versions: {seen}; 0 beside, 0 shown twice"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--write", help="be the writer of a table that is to be killed")
    given = parser.parse_args()
    if given.write:
        write(given.write, given.seed)
    with tempfile.TemporaryDirectory(prefix="upsertflow-publisher-") as folder:
        sys.stdout.write(kill_many(Path(folder), given.kills, given.seed) + "\n")


if __name__ == "__main__":
    main()
