"""Peer and us, in turn, on the same rows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.host import Host, PeerError
from benchmarks.measure import PayloadFormat, spread
from benchmarks.peers import OURS, Environment, SetupError
from benchmarks.words import telling_lines
from benchmarks.workload import Files, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A contender that takes part."""

    contender: str
    environment: Environment = field(default=OURS)
    workload: Workload | None = None
    """Its own, where one system is measured at several sizes."""
    label: str | None = None

    @property
    def name(self) -> str:
        return self.label or self.contender


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where things lie."""

    cache: Path
    """Environments, jars and generated rows; kept."""
    work: Path
    """Tables; removed after each contest."""
    parts: int
    """Files of a batch, hence tasks on Spark."""


def contest(
    place: Place,
    workload: Workload,
    entries: Sequence[Entry],
    *,
    rounds: int,
    warm: int = 1,
    reads: int = 0,
) -> dict[str, Any]:
    """Let all take turns, a batch each, and compare what they end with.

    Parameters
    ----------
    warm : int
        First rounds that are run and not counted.
    reads : int
        How often each reads its whole table behind the last round, in turn.
    """
    work = place.work / workload.name
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    running: dict[str, _Running] = {}
    errors: dict[str, str] = {}
    try:
        for entry in entries:
            try:
                running[entry.name] = _Running(place, work, entry, workload)
            except (PeerError, SetupError, OSError) as error:
                errors[entry.name] = telling_lines(error)
        for number in range(1, warm + rounds + 1):
            # The last one begins the next round: A B B A A B ...
            names = list(running) if number % 2 else list(running)[::-1]
            for name in names:
                try:
                    running[name].turn(number, counted=number > warm)
                except (PeerError, OSError, EOFError) as error:
                    errors[name] = telling_lines(error)
                    running.pop(name).close()
        for _ in range(reads):
            for contender in running.values():
                contender.read()
        found = {}
        apart = any(entry.workload is not None for entry in entries)
        for name, contender in list(running.items()):
            try:
                found[name] = contender.result(compare=not apart)
            except (PeerError, OSError, EOFError) as error:
                errors[name] = telling_lines(error)
        return {
            "workload": workload.to_json(),
            "rounds": rounds,
            "contenders": found,
            "errors": errors,
            "same_table": None if apart else _same(found, "table"),
            "same_changes": None if apart else _same(found, "changes"),
        }
    finally:
        for contender in running.values():
            contender.close()
        shutil.rmtree(work, ignore_errors=True)


def link_loaded(place: Place, workload: Workload, folder: Path) -> None:
    """Put a loaded table of ours into a folder.

    It is made once in a run and linked, file by file: its files are never changed. The
    process that takes batches afterwards has not loaded: its memory is that of batches only.
    """
    kept = place.work / "loaded" / workload.table_name
    if not kept.exists():
        making = kept.with_suffix(".making")
        shutil.rmtree(making, ignore_errors=True)
        host = Host("upsertflow", making, workload, log=place.work / "loading.log")
        try:
            host.call("load", Files.make(place.cache / "rows", workload).initial())
        finally:
            host.close()
        making.rename(kept)
    shutil.copytree(kept / "table", folder / "table", copy_function=os.link)


class _Running:
    """A contender at work, and what was seen of it."""

    def __init__(self, place: Place, work: Path, entry: Entry, workload: Workload) -> None:
        python, jars = entry.environment.prepare(place.cache)
        self._workload = entry.workload or workload
        self._files = Files.make(place.cache / "rows", self._workload)
        self._parts = place.parts
        folder = work / entry.name.replace(" ", "-")
        self._host = Host(
            entry.contender,
            folder,
            self._workload,
            python=python,
            jars=jars,
            log=work.parent / f"{entry.name.replace(' ', '-')}.log",
        )
        try:
            if entry.contender.startswith("upsertflow"):
                link_loaded(place, self._workload, folder)
            else:
                self._host.call("load", self._files.initial())
            self._host.call("open")
        except BaseException:
            self._host.close()
            raise
        self._written = PayloadFormat(folder / "table")
        self._base = self._written.look()
        self._turns: list[dict[str, float]] = []
        self._ingested = 0.0
        self._reads: list[float] = []
        self._host.memory()

    def turn(self, number: int, *, counted: bool) -> None:
        batch = self._files.batch(number, self._parts)
        before = self._host.cpu()
        measured = self._host.call("apply", batch)
        measured["cpu_s"] = self._host.cpu() - before
        self._ingested += measured["ingested_bytes"]
        self._written.look()
        if counted:
            measured["total_s"] = measured["upsert_s"] + measured.get("changes_s", 0.0)
            self._turns.append(measured)

    def read(self) -> None:
        self._reads.append(self._host.call("read_anew")["read_s"])

    def result(self, *, compare: bool) -> dict[str, Any]:
        """Return all that was seen; the table is compared after the memory was taken."""
        memory = self._host.memory()
        written = self._written.look() - self._base
        rows = self._workload.batch_rows
        names = [name for name in self._turns[0] if name.endswith("_s")]
        last = {name: value for name, value in self._turns[-1].items() if name not in names}
        return {
            "versions": self._host.call("versions"),
            "memory": memory,
            "written_bytes": written,
            "ingested_bytes": self._ingested,
            "table_bytes": self._base,
            "turns": self._turns,
            "last": last,
            **{name: spread([turn[name] for turn in self._turns]) for name in names},
            **({"read_s": spread(self._reads)} if self._reads else {}),
            "rows_per_s": rows / spread([t["total_s"] for t in self._turns])["median"],
            "table": self._host.call("contents") if compare else None,
            "changes": self._host.call("changes") if compare else None,
        }

    def close(self) -> None:
        self._host.close()


def _same(found: dict[str, Any], what: str) -> bool | None:
    """Return whether all that can tell agree; None if there is nothing to compare with."""
    digests = [result[what] for result in found.values() if result[what] is not None]
    return None if len(digests) < 2 else all(digest == digests[0] for digest in digests)
