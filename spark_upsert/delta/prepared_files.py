"""Data files and superseded rows that writers prepare for a publication (docs/adr/0084).

A superseded entry stays superseded until an overwrite, so the noted ones are a subset; a row count
proves them complete.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.durations import Fields
from spark_upsert.core.keys import Mask, Positions
from spark_upsert.core.precedence import Precedence
from spark_upsert.core.schema import DIFF, TableSchema, is_live
from spark_upsert.delta.log import target_of
from spark_upsert.delta.parquet_files import id_of, of_batch, write_twin
from spark_upsert.delta.types import require_mirrored
from spark_upsert.errors import UpsertFlowError, masked
from spark_upsert.store import Store
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.published import is_published
from spark_upsert.table.run.file import RunFile
from spark_upsert.table.run.rows import Rows, RunPart
from spark_upsert.table.state.prepared import Deaths, PreparedFiles, Twin
from spark_upsert.table.state.reduce import EntryMatches
from spark_upsert.table.write.outcomes import Outcome

_LOGGER = logging.getLogger(__name__)

USED_FOR_MS = 3_600_000
"""How long a publication may use a prepared twin's name, so that no cleaning removes the file
before. Unnamed files are removed a day later (`delta.upkeep`).
"""

DEATHS_MAX = 1 << 22
"""Deaths that travel with one task, and that a process keeps for a mirror: 16 MiB."""

TWINS_MAX = 4096
"""Twins that a process keeps for one mirror until a publication names them."""


def prepared(store: Store, manifest: Manifest) -> Preparing | None:
    """Return what prepares for the mirror of a table; None where the publication must do it all.

    Where entries are folded, a twin has rows that only the publication knows.
    """
    schema = manifest.schema
    if schema.engine.folds or not is_published(manifest.properties):
        return None
    try:
        require_mirrored(schema, manifest.properties)
        return Preparing(target_of(store, manifest.properties), schema)
    except Exception as error:  # noqa: BLE001 - the publication meets it, and tells
        _tell(store.url, error)
        return None


class Preparing:
    """Preparations of one task (`table.state.prepared.Preparation`). Safe for threads.

    Parameters
    ----------
    target : Store
        The place of the mirror.
    schema : TableSchema
        That of the runs.
    """

    def __init__(self, target: Store, schema: TableSchema) -> None:
        self._target = target
        self._schema = schema
        self._later_wins = Precedence.of(schema).later_wins_ties
        self._twins: dict[str, Twin] = {}
        self._pieces: list[_MatchedCommands] = []
        self._deaths: dict[str, list[npt.NDArray[np.uint32]]] = {}

    def write(self, file: RunFile, rows: pa.RecordBatch) -> None:
        """Write the twin of a run, and note its entries that are no rows; raises no error."""
        self._note(file.path, np.flatnonzero(~is_live(rows.column(DIFF))))
        columns, now_ms = self._schema.columns, int(time.time() * 1000)
        try:
            twin = write_twin(self._target, file, columns, of_batch(rows, columns), now_ms=now_ms)
        except Exception as error:  # noqa: BLE001 - the publication makes it then
            _tell(self._target.url, error)
        else:
            self._twins[file.path] = twin

    def judged(
        self, rows: Rows, chosen: Positions, found: EntryMatches, kinds: npt.NDArray[np.int8]
    ) -> None:
        """Take note of what commands do to the entries that were found."""
        self._pieces.append(_MatchedCommands(rows, chosen, found, self._loses(kinds)))

    def _loses(self, kinds: npt.NDArray[np.int8]) -> Mask:
        """Return which commands lose to the entry that was found; the others beat it."""
        loses: Mask = kinds == Outcome.STALE
        if not self._later_wins:
            loses |= kinds == Outcome.DUPLICATE
        return loses

    def stored(self, file: RunFile | None) -> None:
        """Take note of the run that has the commands that were judged last."""
        pieces, self._pieces = self._pieces, []
        if file is not None:
            for piece in pieces:
                for path, positions in piece.deaths(file):
                    self._note(path, positions)

    def _note(self, path: str, positions: Positions) -> None:
        if len(positions):
            self._deaths.setdefault(path, []).append(positions.astype(np.uint32))

    def made(self) -> PreparedFiles | None:
        """Return the prepared files."""
        if not (self._twins or self._deaths):
            return None
        deaths = {path: np.concatenate(positions) for path, positions in self._deaths.items()}
        prepared_files = PreparedFiles(
            place=self._target.url,
            columns=self._schema.columns,
            twins=dict(self._twins),
            deaths=deaths,
        )
        return (
            prepared_files
            if _death_count(prepared_files) <= DEATHS_MAX
            else prepared_files.without_deaths()
        )


class _MatchedCommands(NamedTuple):
    """Commands, and the entries that they met."""

    rows: Rows
    chosen: Positions
    found: EntryMatches
    loses: Mask

    def deaths(self, file: RunFile) -> Iterable[tuple[str, Positions]]:
        """Yield the entries that lose, by the paths of their runs; ``file`` has the commands."""
        yield file.path, self.chosen[self.loses]
        beaten = self.found.at[self.found.present & ~self.loses]
        state = self.found.rows
        owners = state.part_of(beaten)
        for index in np.unique(owners).tolist():
            part = state.parts[index]
            assert isinstance(part, RunPart), "entries that are chosen lie in runs"
            yield part.path, part.in_run(beaten[owners == index] - state.starts[index])


class PreparationCache:
    """Preparations of writers for one mirror, until a publication takes them. Safe for threads.

    Parameters
    ----------
    clock : callable
        Returns seconds since 1970, as the clocks of the writers do.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._told: list[tuple[int, PreparedFiles]] = []
        self._lock = threading.Lock()

    def add(self, version: int, told: Iterable[PreparedFiles]) -> None:
        """Keep what was prepared for a version; the oldest goes if it is too much."""
        with self._lock:
            self._told += [(version, run_files) for run_files in told]
            twins = sum(len(run_files.twins) for _, run_files in self._told)
            deaths = sum(map(_death_count, (run_files for _, run_files in self._told)))
            while self._told and (twins > TWINS_MAX or deaths > DEATHS_MAX):
                _, gone = self._told.pop(0)
                twins, deaths = twins - len(gone.twins), deaths - _death_count(gone)

    def twins(self, place: str, columns: pa.Schema) -> dict[str, Twin]:
        """Return the twins that a publication may name, by the digits of their runs."""
        with self._lock:
            recorded = [run_files for _, run_files in self._told]
        now_ms = int(self._clock() * 1000)
        return {
            id_of(path): twin
            for run_files in recorded
            if run_files.place == place and run_files.columns.equals(columns)
            for path, twin in run_files.twins.items()
            if abs(now_ms - twin.written_ms) <= USED_FOR_MS
        }

    def deaths(self, after: int, upto: int) -> list[Deaths]:
        """Return the deaths of the versions behind one, up to another, as far as they are known."""
        with self._lock:
            return [
                run_files.deaths for version, run_files in self._told if after < version <= upto
            ]

    def drop(self, upto: int | None, place: str) -> list[str]:
        """Forget what was prepared for versions up to one, by default all."""
        with self._lock:
            gone = [
                run_files for version, run_files in self._told if upto is None or version <= upto
            ]
            self._told = [entry for entry in self._told if upto is not None and entry[0] > upto]
        return [
            twin.path
            for run_files in gone
            if run_files.place == place
            for twin in run_files.twins.values()
        ]


def _death_count(ahead: PreparedFiles) -> int:
    return sum(map(len, ahead.deaths.values()))


def _tell(place: str, error: Exception) -> None:
    reason = error.message if isinstance(error, UpsertFlowError) else f"{error!r}"
    _LOGGER.warning("twin not written: %s error=%s", Fields(place=place), masked(reason))
