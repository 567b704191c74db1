"""Time, memory, bytes and the machine: how a figure comes about."""

from __future__ import annotations

import os
import platform
import statistics
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

SAMPLE_SECONDS = 0.05
"""A peak that lasts shorter is missed; sampling oftener would be felt by what is measured."""


@dataclass
class Memory:
    """Peaks of a tree of processes, in bytes.

    Mapped files count into ``rss`` as far as their pages are touched, although the kernel may
    take them back at any time; ``anonymous`` is what a process cannot give back.
    """

    rss: int = 0
    anonymous: int = 0
    python_rss: int = 0
    """The largest single Python process below the first one, or that one if there is none."""
    python_anonymous: int = 0


class Sampler:
    """Watches a process and all below it, from a thread of its own."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._peak = Memory()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def take(self) -> dict[str, int]:
        """Return the peaks since the last call, and begin anew."""
        self._sample()
        peak, self._peak = self._peak, Memory()
        return asdict(peak)

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        rss = anonymous = 0
        workers: list[tuple[int, int]] = []
        try:
            below = self._root.children(recursive=True)
        except psutil.Error:
            return
        for process in (self._root, *below):
            found = _resident(process.pid)
            if found is None:
                continue
            rss += found[0]
            anonymous += found[1]
            if (process is not self._root and found[2].startswith("python")) or (
                process is self._root and not below
            ):
                workers.append(found[:2])
        peak = self._peak
        peak.rss, peak.anonymous = max(peak.rss, rss), max(peak.anonymous, anonymous)
        for own, private in workers:
            peak.python_rss = max(peak.python_rss, own)
            peak.python_anonymous = max(peak.python_anonymous, private)


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process, all below it and those that have ended.

    On a machine that others use too, this is what can still be compared.
    """
    root = psutil.Process(pid)
    total = 0.0
    for process in (root, *root.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _resident(pid: int) -> tuple[int, int, str] | None:
    """Return resident bytes, those that are no file's, and the name; None if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)

    def in_bytes(name: str) -> int:
        return int(fields.get(name, "0 kB").split()[0]) * 1024

    return in_bytes("VmRSS"), in_bytes("RssAnon"), fields["Name"].strip()


@dataclass
class PayloadFormat:
    """The bytes that a folder ever held: a file that is gone again has still been written."""

    folder: Path
    seen: dict[Path, int] = field(default_factory=dict)

    def look(self) -> int:
        """Return the bytes of all files seen so far."""
        for place, _, names in os.walk(self.folder):
            for name in names:
                file = Path(place, name)
                try:
                    self.seen[file] = max(self.seen.get(file, 0), file.stat().st_size)
                except FileNotFoundError:
                    continue
        return sum(self.seen.values())


def spread(values: list[float]) -> dict[str, float]:
    """Return median, extremes, mean and count."""
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "mean": statistics.fmean(values),
        "count": len(values),
    }


QUIET_SECONDS = 3
"""How long a machine is watched before a section begins."""

BUSY_MAX = 0.5
"""Processors that may be busy with other work when a section begins."""

WAITED_MAX = 40
"""Looks at a machine that does not get quiet; then a section begins, and the report says so."""


def quiet() -> float:
    """Wait until no more than `BUSY_MAX` processors are busy; return how many are.

    The load that a system tells of is that of the last minute, and begins with the section before.
    """
    for _ in range(WAITED_MAX):
        busy = psutil.cpu_percent(interval=QUIET_SECONDS) / 100 * (os.cpu_count() or 1)
        if busy <= BUSY_MAX:
            break
    return busy


def machine() -> dict[str, Any]:
    """Return what a figure depends on and a reader cannot know."""
    model = "unknown"
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return {
        "cores": os.cpu_count(),
        "cpu": model,
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.system(),
        "python": platform.python_version(),
    }
