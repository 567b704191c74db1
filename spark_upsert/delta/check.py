"""Mirror verification (`check_mirror`) against its table, from manifest and runs alone.

Vectors are computed again by `deletion_vectors.by_manifest`; every live row is compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_upsert.core.keys import identical_rows
from spark_upsert.core.names import has_column
from spark_upsert.delta.actions import DeltaAction, DeltaState
from spark_upsert.delta.checkpoints import checksum_of, checksum_path
from spark_upsert.delta.deletion_vectors import Vector, by_manifest, files_of
from spark_upsert.delta.parquet_files import id_of, rows_of
from spark_upsert.delta.publish import Mirror, shown_of, twins_among
from spark_upsert.errors import CorruptionError, DataLossError
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.run.file import RunFile
from spark_upsert.table.state.check import Finding, newer_than_the_log
from spark_upsert.table.state.snapshot import CHUNK_ROWS


def check_mirror(mirror: Mirror) -> Iterator[Finding]:
    """Yield what is wrong with a mirror; one whose version is expired cannot be compared."""
    try:
        state = mirror.state()
    except CorruptionError as error:
        yield Finding(place=mirror.place, expected="a sound log", found=error.message)
        return
    shown = None if state is None else shown_of(state, mirror.log.head().table_id)
    if state is None or shown is None:
        return
    if state.foreign is not None:
        yield Finding(
            place=f"{mirror.place}, version {state.foreign.version}",
            expected="commits of its publisher alone",
            found=state.foreign.operation,
        )
        return
    yield from _check_checksum(mirror, state)
    newest = mirror.log.head().version
    if shown > newest:
        yield newer_than_the_log(mirror.place, shown, newest)
        return
    try:
        manifest = mirror.log.at(shown)
    except DataLossError:
        return
    yield from _check_files(mirror, manifest, state)


def _check_checksum(mirror: Mirror, state: DeltaState) -> Iterator[Finding]:
    """Yield whether readers that trust the checksum of the newest version see another table."""
    path = checksum_path(state.version)
    try:
        contents = json.loads(mirror.target.read(path))
    except FileNotFoundError:
        return
    except ValueError as error:
        contents = {"": repr(error)}
    for name, value in checksum_of(state).items():
        recorded = contents.get(name) if isinstance(contents, dict) else contents
        if name != "txnId" and recorded != value:
            yield Finding(
                place=f"{mirror.place}/{path}",
                expected=f"{name} as the log has it: {value!r:.200}",
                found=f"{recorded!r:.200} (remove the file: readers do without)",
            )


def _check_files(mirror: Mirror, manifest: Manifest, state: DeltaState) -> Iterator[Finding]:
    twins = twins_among(state.live)
    vectors = by_manifest(mirror.table, manifest)
    named = set()
    for path, file in files_of(manifest).items():
        add = twins.get(id_of(path))
        vector = vectors[path]
        if add is None:
            if not vector.is_all:
                live = vector.rows - vector.count
                yield Finding(place=mirror.place, expected=f"a twin of '{path}'", found="none")
                yield Finding(place=path, expected=f"{live} rows in the mirror", found="none")
            continue
        named.add(add["path"])
        yield from _check_twin(mirror, manifest, file, vector, add)
    for path in sorted(state.live.keys() - named):
        yield Finding(place=f"{mirror.place}/{path}", expected="no such file", found="a live one")


def _check_twin(
    mirror: Mirror, manifest: Manifest, file: RunFile, vector: Vector, add: DeltaAction
) -> Iterator[Finding]:
    location = f"{mirror.place}/{add['path']}"
    try:
        add_vector = mirror.vector_of(add)
    except CorruptionError as error:
        yield Finding(place=location, expected="its deletion vector", found=error.message)
        return
    if add_vector != vector:
        yield Finding(
            place=location,
            expected=f"{vector.count} dead rows, those of the manifest",
            found=f"{add_vector.count}, or others (publish with --rebuild)",
        )
        return
    try:
        finding = _differing(mirror, manifest, file, vector, add)
    except FileNotFoundError:
        yield Finding(place=location, expected=f"{add['size']} bytes", found="no such file")
    except (pa.ArrowException, OSError) as error:
        yield Finding(place=location, expected="a Parquet file", found=str(error))
    else:
        if finding is not None:
            yield Finding(place=location, expected="the rows of its run", found=finding)


def _differing(
    mirror: Mirror, manifest: Manifest, file: RunFile, vector: Vector, add: DeltaAction
) -> str | None:
    """Return how a twin differs from its run, if it does."""
    mirror.target.forget(add["path"])
    data = mirror.target.map(add["path"])
    if data.size != add["size"]:
        return f"{data.size} bytes in place of {add['size']}"
    twin = pq.ParquetFile(pa.BufferReader(data))
    if twin.metadata.num_rows != file.rows:
        return f"{twin.metadata.num_rows} rows in place of {file.rows}"
    columns, expected = manifest.schema.columns, rows_of(mirror.table, manifest, file, vector)
    at = 0
    for batch in twin.iter_batches(batch_size=CHUNK_ROWS):
        live = pa.array(np.flatnonzero(~vector.is_dead(at, at + batch.num_rows)))
        theirs = [
            batch.column(name).cast(columns.field(name).type)
            if has_column(batch.schema, name)
            else pa.nulls(batch.num_rows, columns.field(name).type)
            for name in columns.names
        ]
        ours = expected(at, at + batch.num_rows).columns
        same = identical_rows([c.take(live) for c in ours], [c.take(live) for c in theirs])
        if not bool(same.all()):
            return f"another row at {at + live[int(np.flatnonzero(~same)[0])].as_py()}"
        at += batch.num_rows
    return None
