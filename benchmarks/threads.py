"""Many threads on one table, without Spark: appends that share versions, and watchers."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.measure import spread
from spark_upsert.table.log.manifest import Commit
from spark_upsert.table.table import Table
from spark_upsert.table.watch import SealedEpoch

ROWS = 10
"""Of an append: what a service writes for a request."""

THREADS = (1, 4, 16, 64)

WATCHERS = 100

_COLUMNS = pa.schema({"id": pa.int64(), "value": pa.int64()})

_PATIENCE_S = 600.0


def measure(folder: Path, *, appends: int, commits: int, rounds: int) -> dict[str, Any]:
    """Time appends of many threads, and how late watchers see a commit.

    Returns
    -------
    dict
        ``appends``, ``rows`` and ``commits``; for each number of threads below ``shared`` (one
        table object for all) and ``apart`` (one for each), measured in turn, the spreads of
        ``per_s``, ``median_s``, ``p99_s`` and ``versions``; below ``watchers`` for each set-up
        the spread of ``median_s`` and of ``p99_s`` from the put of a version to the watcher.
    """
    paths = (str(folder / f"table-{number}") for number in itertools.count())
    taken: dict[str, dict[str, list[dict[str, float]]]] = {}
    for _ in range(rounds):
        for threads in THREADS:
            for way in ("apart", "shared"):
                found = _appended(next(paths), threads, appends, is_shared=way == "shared")
                taken.setdefault(str(threads), {}).setdefault(way, []).append(found)
        for name, (watchers, stuck) in {
            "one": (1, 0),
            "a hundred": (WATCHERS, 0),
            "a hundred, and one that is stuck": (WATCHERS, 1),
        }.items():
            found = _watched(next(paths), watchers, stuck, commits)
            taken.setdefault("watchers", {}).setdefault(name, []).append(found)
    spreads = {
        case: {
            way: {name: spread([each[name] for each in samples]) for name in samples[0]}
            for way, samples in ways.items()
        }
        for case, ways in taken.items()
    }
    return {"appends": appends, "rows": ROWS, "commits": commits, **spreads}


def _rows(number: int) -> pa.Table:
    first = number * ROWS
    return pa.table({"id": range(first, first + ROWS), "value": [number] * ROWS})


def _run(workers: list[Callable[[], None]]) -> float:
    """Run functions at once; return how long they took."""
    threads = [threading.Thread(target=worker, daemon=True) for worker in workers]
    before = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_PATIENCE_S)
        assert not thread.is_alive()
    return time.perf_counter() - before


def _appended(path: str, threads: int, appends: int, *, is_shared: bool) -> dict[str, float]:
    table = Table.create(path, _COLUMNS, keys=["id"])
    numbers, took = itertools.count(), list[float]()

    def worker(own: Table) -> None:
        for _ in range(appends // threads):
            rows = _rows(next(numbers))
            before = time.perf_counter()
            own.upsert(rows)
            took.append(time.perf_counter() - before)

    tables = [table if is_shared else Table.open(path) for _ in range(threads)]
    seconds = _run([lambda own=own: worker(own) for own in tables])  # type: ignore[misc]
    assert table.log.head().live_rows == len(took) * ROWS
    return {
        "per_s": len(took) / seconds,
        **_median_and_p99(took),
        "versions": float(table.log.head().version),
    }


def _median_and_p99(took: list[float]) -> dict[str, float]:
    ordered = sorted(took)
    return {"median_s": statistics.median(ordered), "p99_s": ordered[len(ordered) * 99 // 100]}


def _watched(path: str, watchers: int, stuck: int, commits: int) -> dict[str, float]:
    """Return how long after its put watchers see a version."""
    table = Table.create(path, _COLUMNS, keys=["id"])
    put_s: dict[int, float] = {}
    took: list[float] = []
    put, is_over = table.log._try_put, threading.Event()

    def stamped(commit: Commit, recent: Sequence[Commit] = ()) -> bool:
        done = put(commit, recent)
        put_s[commit.version] = time.perf_counter()
        return done

    table.log._try_put = stamped  # type: ignore[method-assign]
    readers = [table.watch() for _ in range(watchers)]
    others = [table.watch() for _ in range(stuck)]

    def read(index: int) -> None:
        for _ in range(commits):
            seen = readers[index].take(_PATIENCE_S)
            seen_s = time.perf_counter()
            assert isinstance(seen, SealedEpoch)
            # A look may find the version before the put has returned.
            took.append(max(0.0, seen_s - put_s.get(seen.version, seen_s)))

    def hang(index: int) -> None:
        others[index].take(_PATIENCE_S)
        is_over.wait(_PATIENCE_S)

    def write() -> None:
        for number in range(commits):
            table.upsert(_rows(number))

    hanging = [threading.Thread(target=hang, args=(i,), daemon=True) for i in range(stuck)]
    for thread in hanging:
        thread.start()
    _run([*(lambda index=index: read(index) for index in range(watchers)), write])
    is_over.set()
    return _median_and_p99(took)
