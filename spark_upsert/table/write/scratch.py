"""Scratch runs: private files, written before it is certain that a version will use them."""

from __future__ import annotations

from collections.abc import Iterable, Set
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_upsert.store import Store
from spark_upsert.table.run.file import RunFile, new_run_path, write_run

if TYPE_CHECKING:
    from spark_upsert.table.state.prepared import Preparation


class Scratch:
    """Writes runs, and removes them if its block ends with an error.

    Parameters
    ----------
    store : Store
    ahead : Preparation, optional
        Prepares the table's mirror for each run.
    """

    def __init__(self, store: Store, ahead: Preparation | None = None) -> None:
        self._store = store
        self._ahead = ahead
        self._written: list[RunFile] = []

    def write(self, rows: pa.RecordBatch) -> RunFile:
        """Write a run durably."""
        file = write_run(self._store, new_run_path(), rows)
        self._written.append(file)
        if self._ahead is not None:
            self._ahead.write(file, rows)
        return file

    def keep(self, paths: Set[str]) -> None:
        """Remove the runs written so far except those given, which now have an owner."""
        remove_runs(self._store, (file for file in self._written if file.path not in paths))
        self.leave()

    def leave(self) -> None:
        """Leave the runs written so far to a vacuum: whether a version uses them is not known."""
        self._written.clear()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            self.keep(frozenset())


def remove_runs(store: Store, files: Iterable[RunFile]) -> None:
    """Remove unused runs as far as possible."""
    for file in files:
        with suppress(Exception):
            store.delete(file.path)
