"""Data files and superseded rows prepared by writers for a publication (docs/adr/0084).

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
from spark_upsert.delta.log import open_published_mirror
from spark_upsert.delta.parquet_files import batch_reader, run_id, write_data_file
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
"""Period in which a publication may use a prepared Parquet copy, so that no cleanup removes the
file before. Unnamed files are removed a day later (`delta.upkeep`).
"""

DEATHS_MAX = 1 << 22
"""Maximum superseded rows sent by one task, and cached for one mirror: 16 MiB."""

TWINS_MAX = 4096
"""Maximum Parquet copies cached for one mirror until a publication names them."""


def start_preparation(store: Store, manifest: Manifest) -> MirrorPreparation | None:
    """Return the preparation for a table's mirror; None if the publication must do everything.

    If rows are combined from several entries, only the publication knows a Parquet copy's rows.
    """
    schema = manifest.schema
    if schema.shows_combined_rows or not is_published(manifest.properties):
        return None
    try:
        require_mirrored(schema, manifest.properties)
        return MirrorPreparation(open_published_mirror(store, manifest.properties), schema)
    except Exception as error:  # noqa: BLE001 - the publication meets and reports it
        _log_failure(store.url, error)
        return None


class MirrorPreparation:
    """One task's preparation (`table.state.prepared.Preparation`).

    `write` and `record_outcomes` may run in several threads.

    Parameters
    ----------
    target : Store
        The mirror's location.
    schema : TableSchema
        Schema for the runs.
    """

    def __init__(self, target: Store, schema: TableSchema) -> None:
        self._target = target
        self._schema = schema
        self._later_wins = Precedence.of(schema).later_wins_ties
        self._twins: dict[str, Twin] = {}
        self._pieces: list[_MatchedCommands] = []
        self._deaths: dict[str, list[npt.NDArray[np.uint32]]] = {}

    def write(self, file: RunFile, rows: pa.RecordBatch) -> None:
        """Write a run's Parquet copy, and record its tombstones and errors; raises no error."""
        self._record_superseded(file.path, np.flatnonzero(~is_live(rows.column(DIFF))))
        columns, now_ms = self._schema.columns, int(time.time() * 1000)
        try:
            twin = write_data_file(
                self._target, file, columns, batch_reader(rows, columns), now_ms=now_ms
            )
        except Exception as error:  # noqa: BLE001 - the publication makes it then
            _log_failure(self._target.url, error)
        else:
            self._twins[file.path] = twin

    def record_outcomes(
        self, rows: Rows, chosen: Positions, found: EntryMatches, kinds: npt.NDArray[np.int8]
    ) -> None:
        """Record the commands' effects on the matched entries."""
        self._pieces.append(_MatchedCommands(rows, chosen, found, self._find_losing(kinds)))

    def _find_losing(self, kinds: npt.NDArray[np.int8]) -> Mask:
        """Return which commands lose to the matched entry; the others supersede it."""
        loses: Mask = kinds == Outcome.STALE
        if not self._later_wins:
            loses |= kinds == Outcome.DUPLICATE
        return loses

    def record_run(self, file: RunFile | None) -> None:
        """Record the run storing the last matched commands; None if there is no such run."""
        pieces, self._pieces = self._pieces, []
        if file is not None:
            for piece in pieces:
                for path, positions in piece.deaths(file):
                    self._record_superseded(path, positions)

    def _record_superseded(self, path: str, positions: Positions) -> None:
        if len(positions):
            self._deaths.setdefault(path, []).append(positions.astype(np.uint32))

    def result(self) -> PreparedFiles | None:
        """Return the prepared files; None if there are none.

        Superseded rows are left out if they exceed `DEATHS_MAX`.
        """
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
            if _count_superseded(prepared_files) <= DEATHS_MAX
            else prepared_files.without_deaths()
        )


class _MatchedCommands(NamedTuple):
    """Commands with their matched entries."""

    rows: Rows
    chosen: Positions
    found: EntryMatches
    loses: Mask

    def deaths(self, file: RunFile) -> Iterable[tuple[str, Positions]]:
        """Yield the superseded entries' positions by run path; ``file`` stores the commands."""
        yield file.path, self.chosen[self.loses]
        beaten = self.found.at[self.found.present & ~self.loses]
        state = self.found.rows
        owners = state.part_of(beaten)
        for index in np.unique(owners).tolist():
            part = state.parts[index]
            assert isinstance(part, RunPart), "entries that are chosen lie in runs"
            yield part.path, part.in_run(beaten[owners == index] - state.starts[index])


class PreparationCache:
    """Writers' preparations for one mirror, until a publication uses them. Safe for threads.

    Parameters
    ----------
    clock : callable
        Returns Unix time in seconds, as the writers' clocks do.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._preparations: list[tuple[int, PreparedFiles]] = []
        self._lock = threading.Lock()

    def add(self, version: int, prepared_files: Iterable[PreparedFiles]) -> None:
        """Add preparations for a version; above the limits, the oldest are dropped."""
        with self._lock:
            self._preparations += [(version, run_files) for run_files in prepared_files]
            twins = sum(len(run_files.twins) for _, run_files in self._preparations)
            deaths = sum(map(_count_superseded, (run_files for _, run_files in self._preparations)))
            while self._preparations and (twins > TWINS_MAX or deaths > DEATHS_MAX):
                _, gone = self._preparations.pop(0)
                twins, deaths = twins - len(gone.twins), deaths - _count_superseded(gone)

    def twins(self, place: str, columns: pa.Schema) -> dict[str, Twin]:
        """Return the Parquet copies usable by a publication, by run id."""
        with self._lock:
            recorded = [run_files for _, run_files in self._preparations]
        now_ms = int(self._clock() * 1000)
        return {
            run_id(path): twin
            for run_files in recorded
            if run_files.place == place and run_files.columns.equals(columns)
            for path, twin in run_files.twins.items()
            if abs(now_ms - twin.written_ms) <= USED_FOR_MS
        }

    def deaths(self, after: int, upto: int) -> list[Deaths]:
        """Return the known superseded rows for the versions ``after < version <= upto``."""
        with self._lock:
            return [
                run_files.deaths
                for version, run_files in self._preparations
                if after < version <= upto
            ]

    def drop(self, upto: int | None, place: str) -> list[str]:
        """Drop preparations up to a version, or all; return their Parquet copies at `place`."""
        with self._lock:
            gone = [
                run_files
                for version, run_files in self._preparations
                if upto is None or version <= upto
            ]
            self._preparations = [
                entry for entry in self._preparations if upto is not None and entry[0] > upto
            ]
        return [
            twin.path
            for run_files in gone
            if run_files.place == place
            for twin in run_files.twins.values()
        ]


def _count_superseded(ahead: PreparedFiles) -> int:
    return sum(map(len, ahead.deaths.values()))


def _log_failure(place: str, error: Exception) -> None:
    reason = error.message if isinstance(error, UpsertFlowError) else f"{error!r}"
    _LOGGER.warning("twin not written: %s error=%s", Fields(place=place), masked(reason))
