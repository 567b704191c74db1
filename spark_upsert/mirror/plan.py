"""A step of a mirror: the files that go, those that stay with another vector, the new.

    rows(mirror behind the step) = rows(table at the version of the step)

A step covers all versions between the one that the mirror shows and the newest, however many. Twins
of runs that both versions have are kept, unless the type of a column changed, or the engine folds
and an overwrite lies between: then rows of old twins may be those of other versions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from spark_upsert.mirror.actions import DeltaAction
from spark_upsert.mirror.dead import Vectors, by_change, by_deaths, by_manifest, files_of
from spark_upsert.mirror.twins import id_of, run_of
from spark_upsert.mirror.vectors import Vector
from spark_upsert.store import Store
from spark_upsert.table.entries.ahead import Deaths
from spark_upsert.table.log.manifest import Commit, Kind, Manifest
from spark_upsert.table.run.file import RunFile

_SETTLED_FROM = 8
"""Where new runs hold more than one of so many entries, all are settled, as a read does: keys that
are looked up one by one cost more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """Facts about the version that a mirror shows."""

    manifest: Manifest | None
    """The table at that version, or at a later one with the same rows and files; None if it cannot
    be read, or does not matter."""
    twins: Mapping[str, DeltaAction]
    """The live twins that may be kept, by the digits of their runs."""
    vectors: Mapping[str, Vector]
    """The dead rows of those twins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChanges:
    """The files of a mirror by their fate: which go, which stay, which are new."""

    gone: tuple[DeltaAction, ...]
    """Live files to be removed for good."""
    kept: tuple[tuple[DeltaAction, Vector], ...]
    """Twins that stay, and their new vectors, which differ from the old ones."""
    new: tuple[tuple[RunFile, Vector], ...]
    """Runs that get a twin."""
    vectors: Mapping[str, Vector]
    """The dead rows of all twins behind the step, by the digits of their runs."""

    @property
    def is_empty(self) -> bool:
        """Whether no file changes."""
        return not (self.gone or self.kept or self.new)


def plan(
    store: Store,
    head: Manifest,
    commits: Collection[Commit],
    base: Base,
    live: Mapping[str, DeltaAction],
    deaths: Sequence[Deaths] = (),
) -> FileChanges:
    """Return how a mirror comes to show a version.

    Parameters
    ----------
    head : Manifest
        That version.
    commits : collection of Commit
        The versions behind ``base.manifest``, up to that one.
    live : mapping of str to DeltaAction
        All live files of the mirror, by path.
    deaths : sequence of Deaths
        What writers told of the entries that died since (`mirror.ahead`).
    """
    files = files_of(head)
    has_overwrite = any(commit.kind is Kind.OVERWRITE for commit in commits)
    twins = base.twins
    if head.schema.engine.folds and (has_overwrite or base.manifest is None):
        twins = {}
    known = {path: base.vectors[id_of(path)] for path in files if id_of(path) in twins}
    if base.manifest is None or has_overwrite:
        new = [path for path in files if path not in known]
        vectors = by_manifest(store, head)
    else:
        # Files of the base without a twin have no live row, and gain none but by an overwrite.
        old = files_of(base.manifest)
        new = [path for path in files if path not in known and path not in old]
        vectors = _dead(store, head, known, new, deaths)
    return _plan(files, vectors, twins, known, live, new)


def _dead(
    store: Store,
    head: Manifest,
    known: Mapping[str, Vector],
    new: list[str],
    deaths: Sequence[Deaths],
) -> Vectors:
    told = by_deaths(store, head, known, new, deaths)
    if told is not None:
        return told
    files = files_of(head)
    whole = sum(file.rows for file in files.values())
    if sum(files[path].rows for path in new) * _SETTLED_FROM > whole:
        found = by_manifest(store, head)
        return {path: found[path] for path in (*known, *new)}
    return by_change(store, head, known, new)


def _plan(
    files: Mapping[str, RunFile],
    vectors: Vectors,
    twins: Mapping[str, DeltaAction],
    known: Mapping[str, Vector],
    live: Mapping[str, DeltaAction],
    new: Collection[str],
) -> FileChanges:
    carrying = {path: vector for path, vector in vectors.items() if not vector.is_all}
    staying = {twins[id_of(path)]["path"] for path in carrying if path in known}
    kept = [
        (twins[id_of(path)], vector)
        for path, vector in carrying.items()
        if path in known and vector != known[path]
    ]
    return FileChanges(
        gone=tuple(add for path, add in live.items() if path not in staying),
        kept=tuple(kept),
        new=tuple((files[path], carrying[path]) for path in new if path in carrying),
        vectors={id_of(path): vector for path, vector in carrying.items()},
    )


def twins_among(live: Mapping[str, DeltaAction]) -> dict[str, DeltaAction]:
    """Return the live files that are twins, by the digits of their runs."""
    found = {run_of(path): add for path, add in live.items()}
    return {run: add for run, add in found.items() if run is not None}
