"""Preparations of a writer for the mirror of a table while the rows of its runs are in memory.

A *twin* of each run, a copy for readers of another format, and the *deaths*: entries that lose
their key to another one by what the writer looked up anyway. Both travel with what was staged to
the commit, and from there to the publication behind it. Neither is needed: a publication makes the
twins that are missing, and looks up what it was not told.

What makes them is the mirror (`spark_upsert.delta.prepared_files`), which lies above all that
writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.keys import Positions
from spark_upsert.table.run.file import RunFile
from spark_upsert.table.run.rows import Rows
from spark_upsert.table.state.reduce import EntryMatches

Deaths: TypeAlias = Mapping[str, npt.NDArray[np.uint32]]
"""Positions of dead entries, by the paths of their runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A twin that was written."""

    path: str
    bytes: int
    stats: Mapping[str, Any]
    written_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedFiles:
    """The preparation of one task for a mirror. Travels by pickle."""

    place: str
    """Where the twins lie."""
    columns: pa.Schema
    """Their columns."""
    twins: Mapping[str, Twin]
    """By the paths of their runs."""
    deaths: Deaths
    """Entries that are dead once the runs are there, and stay so until an overwrite; others may
    be, too."""

    def without_deaths(self) -> PreparedFiles:
        """Return the twins alone: what was looked up may not hold behind another version."""
        return replace(self, deaths={})


class Preparation(Protocol):
    """Makes what a mirror needs, beside the runs of one task."""

    def write(self, file: RunFile, rows: pa.RecordBatch) -> None:
        """Write the twin of a run; raises no error."""
        ...

    def judged(
        self, rows: Rows, chosen: Positions, found: EntryMatches, kinds: npt.NDArray[np.int8]
    ) -> None:
        """Take note of what commands do (`write.outcomes`) to the entries that were found."""
        ...

    def stored(self, file: RunFile | None) -> None:
        """Take note of the run that has the commands that were judged last, one per entry.

        None if there is no such run.
        """
        ...

    def made(self) -> PreparedFiles | None:
        """Return what was made."""
        ...
