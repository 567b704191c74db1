"""The engine's processor time by what it is spent on, and the least that a machine would need.

A profiler tells how long each function ran itself. What runs in numpy, Arrow or Python's own
library counts for the engine's function that asked for it, and each function of the engine has one
phase. The profiler costs time with each call, as much as the same work without it takes less: that
is taken off, call by call.
"""

from __future__ import annotations

import cProfile
import os
import pstats
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Function = tuple[str, int, str]

PHASES: dict[str, tuple[str, ...]] = {
    "hash": ("model/hashing",),
    "sort": ("model/hashing.order_of", "resolve._grouped", "resolve._sorted_within"),
    "search": ("entries/lookup", "run/search", "model/hash_range"),
    "compare": (
        "entries/resolve",
        "entries/mechanism",
        "entries/history",
        "entries/content",
        "model/precedence",
        "model/words",
        "write/outcomes",
        "changes/changes",
    ),
    "gather": ("run/rows", "run/file", "run/layout"),
    "verify": ("run/blocks", "run/soundness", "run/file.verify_at", "run/file._verify"),
    "encode": (
        "changes/render",
        "run/file.write_run",
        "run/blocks.write",
        "run/blocks._add",
        "write/stash",
        "write/form",
        "write/fitting",
    ),
    "files": ("spark_upsert/store", "table/log", "write/commit"),
}
"""What functions are about: the longest name that fits a function's module and name decides."""

REST, SYNC = "rest", "sync"
NAMES = (*PHASES, SYNC, REST)

_SYNCS = ("fsync", "fdatasync")


class Phases:
    """Adds up where the time of some calls goes."""

    def __init__(self) -> None:
        self._plain: list[float] = []
        self._profile = cProfile.Profile(time.process_time)
        self._profiled: list[float] = []

    def run(self, work: Callable[[], Any], *, profiled: bool) -> Any:
        """Do some work, with the profiler or without it, and return what it returns."""
        before = time.process_time()
        found = self._profile.runcall(work) if profiled else work()
        (self._profiled if profiled else self._plain).append(time.process_time() - before)
        return found

    def found(self) -> dict[str, Any]:
        """Return ``cpu_s`` of a call without the profiler, ``calls`` of functions in it, and the
        ``shares`` of `NAMES`.
        """
        stats: dict[Function, Any] = pstats.Stats(self._profile).stats  # type: ignore[attr-defined]
        calls = sum(entry[1] for entry in stats.values())
        plain = statistics.median(self._plain)
        cost = max(0.0, sum(self._profiled) - plain * len(self._profiled)) / calls
        own = Counter[str]()
        for function, (_, count, seconds, _, _) in stats.items():
            seconds = max(0.0, seconds - cost * count)
            for phase, share in _phases_of(function, stats).items():
                own[phase] += seconds * share
        total = sum(own.values()) or 1.0
        return {
            "cpu_s": plain,
            "calls": calls / len(self._profiled),
            "shares": {name: own[name] / total for name in NAMES},
        }


def _phases_of(
    function: Function, stats: dict[Function, Any], seen: frozenset[Function] = frozenset()
) -> Mapping[str, float]:
    """Return the phases that a function's own time belongs to, and which part of it to each."""
    file, _, name = function
    if any(sync in name for sync in _SYNCS):
        return {SYNC: 1.0}
    if "spark_upsert" in file:
        return {_phase(f"{file.removesuffix('.py')}.{name}"): 1.0}
    callers = {caller: entry[2] for caller, entry in stats[function][4].items()}
    callers = {caller: seconds for caller, seconds in callers.items() if caller not in seen}
    total = sum(callers.values())
    if not total or len(seen) > 8:
        return {REST: 1.0}
    found = Counter[str]()
    for caller, seconds in callers.items():
        for phase, share in _phases_of(caller, stats, seen | {function}).items():
            found[phase] += share * seconds / total
    return found


def _phase(name: str) -> str:
    fitting = [
        (len(part), phase) for phase, parts in PHASES.items() for part in parts if part in name
    ]
    return max(fitting)[1] if fitting else REST


def machine_costs() -> dict[str, float]:
    """Measure what a machine needs at least.

    Returns
    -------
    dict
        ``copied_bytes_per_s`` of a copy that fits in no cache, ``found_s`` to read a word at a
        random place of as much memory, as many as the processor has under way at once, and
        ``sync_s`` until a small file is durable.
    """
    words = np.arange(1 << 25, dtype=np.int64)
    other = np.empty_like(words)
    places = np.random.default_rng(0).integers(0, len(words), 1 << 20)
    with tempfile.NamedTemporaryFile() as file:

        def sync() -> None:
            file.write(b"0" * 4096)
            file.flush()
            os.fsync(file.fileno())

        return {
            "copied_bytes_per_s": words.nbytes / _least(lambda: np.copyto(other, words)),
            "found_s": _least(lambda: words.take(places)) / len(places),
            "sync_s": _least(sync),
        }


def _least(work: Callable[[], Any]) -> float:
    took = []
    for _ in range(9):
        before = time.perf_counter()
        work()
        took.append(time.perf_counter() - before)
    return min(took)


def limit_s(machine: dict[str, float], part: str, rows: int, row_bytes: float) -> float:
    """Return the seconds that a batch takes at least.

    The upsert reads commands, finds their keys once and writes them; changes read commands, find
    the old rows and bring both out, one behind the other.
    """
    moved = {"upsert": 2, "changelog": 4}[part] * rows * row_bytes
    synced = machine["sync_s"] if part == "upsert" else 0.0
    return moved / machine["copied_bytes_per_s"] + rows * machine["found_s"] + synced
