"""What a mirror takes: processor time of writes that publish, beside the same writes that do not.

Two tables take the same batches in turn. One of them has `publish`, so that its writers prepare the
mirror and each commit is followed by its publication; what it takes more is the mirror's. And how
fresh a mirror is: from the commit of a batch to the moment at which a reader has the row.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.measure import spread
from spark_upsert.table.log.manifest import Commit
from spark_upsert.table.table import Table

DELETES = 0.1
"""Share of the rows of a batch that are deletes."""

LOAD_ROWS = 1_000_000
"""Rows of an append while the table is made."""

Seen = Callable[[int, int], float]
"""Waits until a reader has a row, by its key and its number; returns when, as `time.time`."""


def measure(folder: Path, keys: int, batches: tuple[int, ...], *, rounds: int) -> dict[str, Any]:
    """Time writes into a table that is published and into one that is not, in turn.

    Returns
    -------
    dict
        ``keys``, ``first_copy_s``, ``runs_bytes``, ``twins_bytes``; below ``batches``, for each
        number of rows, the spreads of processor seconds ``plain_s`` and ``published_s``, that of
        ``ratio``, the mirror's part over the plain write, and ``compact`` with the same of a
        compaction of everything behind the batches.
    """
    dice = np.random.default_rng(1)
    plain, published = (_loaded(folder / name, keys) for name in ("plain", "published"))
    first_copy_s = _seconds(published.publish)
    published.alter(published.schema, {"publish": "delta"})
    twins = sum(path.stat().st_size for path in mirror_of(folder / "published").glob("*.parquet"))
    found: dict[str, Any] = {
        "keys": keys,
        "first_copy_s": first_copy_s,
        "runs_bytes": published.log.head().bytes,
        "twins_bytes": twins,
        "batches": {},
    }
    for count in batches:
        took: dict[str, list[float]] = {"plain_s": [], "published_s": [], "ratio": []}
        for turn in range(2 * rounds + 1):
            rows = _rows(dice, dice.choice(keys, min(count, keys), replace=False))
            batch = rows.append_column("gone", pa.array(dice.random(rows.num_rows) < DELETES))
            append = [partial(table.upsert, batch, deletes="gone") for table in (plain, published)]
            # The one that was last begins the next turn.
            seconds = [_seconds(each) for each in append[:: (-1) ** turn]][:: (-1) ** turn]
            if turn:  # The first has what a process does once.
                _note(took, *seconds)
        compact: dict[str, list[float]] = {"plain_s": [], "published_s": [], "ratio": []}
        whole = [partial(table.compact, full=True) for table in (plain, published)]
        _note(compact, *map(_seconds, whole))
        found["batches"][str(count)] = {
            **{name: spread(each) for name, each in took.items()},
            "compact": {name: spread(each) for name, each in compact.items()},
        }
    return found


def fresh(
    folder: Path, keys: int, rows: int, seen: Seen, *, commits: int, begins: int = 1
) -> dict[str, Any]:
    """Tell how long behind a commit a reader has its rows.

    All rows of a batch carry its number, so that a reader which asks for a row of it finds by the
    statistics of files which of them to read. Once it is seen, the reader is asked again: so long
    does the question itself take, with nothing new.

    Parameters
    ----------
    folder : Path
        Of a table that is made and published.
    rows : int
        Of a batch.
    seen : callable
        Asks a reader.
    commits : int
        That count.
    begins : int
        Commits before them, while the reader begins: a JVM compiles what it runs often.
    """
    dice = np.random.default_rng(2)
    table = _loaded(folder / "published", keys)
    table.alter(table.schema, {"publish": "delta"})
    table.publish()
    committed: list[float] = []

    def note(_: Commit) -> None:
        committed.append(time.time())

    table.log.listen(note)
    waited, published, again = [], [], []
    for number in range(-begins, commits):
        ids = dice.choice(keys, rows, replace=False)
        batch = _told_apart(_rows(dice, ids), number)
        committed.clear()
        table.upsert(batch)
        done = time.time()
        took = seen(int(ids[0]), 10**6 + number) - committed[0]
        asked = time.time()
        took_again = seen(int(ids[0]), 10**6 + number) - asked
        # As a sink does it: compactions behind the batch.
        table.compact()
        if number >= 0:
            waited.append(took)
            published.append(done - committed[0])
            again.append(took_again)
    return {
        "keys": keys,
        "rows": rows,
        "begins": begins,
        "published_s": spread(published),
        **_seen(waited),
        "again_s": spread(again),
    }


def fresh_of_delta(place: str, keys: int, rows: int, seen: Seen, *, commits: int) -> dict[str, Any]:
    """Measure how soon a reader has rows that delta-rs appends to a table of Delta; as `fresh`."""
    import deltalake

    dice = np.random.default_rng(2)
    waited = []
    for number in range(-1, commits):
        first = keys + (number + 1) * rows
        batch = _told_apart(_rows(dice, np.arange(first, first + rows)), number)
        deltalake.write_deltalake(place, batch, mode="append")
        committed = time.time()
        took = seen(first, 10**6 + number) - committed
        if number >= 0:  # Before it the reader begins.
            waited.append(took)
    return {
        "keys": keys,
        "rows": rows,
        **_seen(waited),
    }


def seen_by_delta_rs(place: str) -> Seen:
    """Return what asks delta-rs, as a process does that holds the table open."""
    import deltalake

    opened: list[deltalake.DeltaTable] = []

    def seen(id_: int, number: int) -> float:
        if not opened:
            opened.append(deltalake.DeltaTable(place))
        [table] = opened
        while True:
            table.update_incremental()
            query = deltalake.QueryBuilder().register("t", table)
            rows = query.execute(f"SELECT n FROM t WHERE n = {number} AND id = {id_}").read_all()
            if pa.table(rows).column("n").to_pylist() == [number]:
                return time.time()

    return seen


def mirror_of(folder: Path) -> Path:
    """Return the place of the mirror of a table in a folder."""
    return folder / "_delta"


def _loaded(folder: Path, keys: int) -> Table:
    """Return a compacted table with a row of each key."""
    dice = np.random.default_rng(1)
    table = Table.create(str(folder), _rows(dice, np.arange(1)).schema, keys=["id"])
    for first in range(0, keys, LOAD_ROWS):
        table.upsert(_rows(dice, np.arange(first, min(keys, first + LOAD_ROWS))))
    table.compact()
    return table


def _told_apart(batch: pa.Table, number: int) -> pa.Table:
    """Return rows by whose ``n`` a reader knows which batch they are of."""
    at = batch.column_names.index("n")
    return batch.set_column(at, "n", pa.array(np.full(len(batch), 10**6 + number)))


def _seen(waited: list[float]) -> dict[str, Any]:
    """Return how long a reader took, and 99 in 100 of its looks at most."""
    p99 = sorted(waited)[math.ceil(0.99 * len(waited)) - 1]
    return {"seen_s": spread(waited), "seen_p99_s": p99}


def _note(took: dict[str, list[float]], plain_s: float, published_s: float) -> None:
    took["plain_s"].append(plain_s)
    took["published_s"].append(published_s)
    took["ratio"].append(published_s / plain_s - 1)


def _rows(dice: np.random.Generator, ids: Any) -> pa.Table:
    count = len(ids)
    return pa.table(
        {
            "id": ids,
            "n": dice.integers(0, 1_000, count),
            "text": pc.cast(pa.array(dice.integers(0, 100_000, count)), pa.string()),
            "amount": dice.random(count),
            "day": pa.array(dice.integers(0, 20_000, count).astype("int32")).cast(pa.date32()),
        }
    )


def _seconds(action: Callable[[], object]) -> float:
    """Return the processor seconds that this process takes for something."""
    before = time.process_time()
    action()
    return time.process_time() - before
