"""Mirror preparation by writers: data files and superseded rows, made with a run in memory.

They travel with the staged files to the publication and are optional.
`spark_upsert.delta.prepared_files` implements the interface.
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
"""Positions of superseded rows, by run path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A written mirror data file."""

    path: str
    bytes: int
    stats: Mapping[str, Any]
    written_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedFiles:
    """One task's mirror preparation. Picklable."""

    place: str
    """Location of the mirror data files."""
    columns: pa.Schema
    """Their columns."""
    twins: Mapping[str, Twin]
    """Mirror data files by run path."""
    deaths: Deaths
    """Entries superseded once the runs are committed, until an overwrite; possibly not
    exhaustive.
    """

    def without_deaths(self) -> PreparedFiles:
        """Return the mirror data files only: look-up results may not hold for another version."""
        return replace(self, deaths={})


class Preparation(Protocol):
    """Creates a mirror's files and row sets from one task's runs."""

    def write(self, file: RunFile, rows: pa.RecordBatch) -> None:
        """Write a run's mirror data file; raises no error."""
        ...

    def record_outcomes(
        self, rows: Rows, chosen: Positions, found: EntryMatches, kinds: npt.NDArray[np.int8]
    ) -> None:
        """Record the commands' effects (`write.outcomes`) on the matched entries."""
        ...

    def record_run(self, file: RunFile | None) -> None:
        """Record the run storing the last recorded commands, one per entry.

        None if there is no such run.
        """
        ...

    def result(self) -> PreparedFiles | None:
        """Return the prepared files."""
        ...
