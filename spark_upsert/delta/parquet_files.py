"""Mirror data files (twins), with statistics: a run's entries as Parquet, in run order.

A position in the run is the position in the file; entries other than rows are rows of nulls. Floats
have no statistics, because Parquet's bounds omit NaN.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date
from itertools import chain, islice
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_upsert.core.keys import Mask
from spark_upsert.core.names import has_column
from spark_upsert.core.schema import DIFF, HASH, TableSchema, is_live
from spark_upsert.delta.deletion_vectors import Vector
from spark_upsert.store import Store
from spark_upsert.store.protocol import ObjectSink
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.run.file import RUNS, RunFile, Span
from spark_upsert.table.run.remote import share_of_limit
from spark_upsert.table.run.rows import Rows, RunPart
from spark_upsert.table.state.prepared import Twin
from spark_upsert.table.state.snapshot import CHUNK_BYTES, CHUNK_ROWS, Snapshot

COLUMNS_MAX = 32
"""Maximum columns with statistics, the same as Delta's default."""

TEXT_MAX = 32
"""Maximum characters in a text bound."""

_FIRST_DATE = date(1000, 1, 1)
"""First date used in bounds: some writers shorten earlier years, and calendars differ."""


def bounded_columns(columns: pa.Schema) -> list[str]:
    """Return the columns eligible for statistics: neither floats nor nested types."""
    return [
        field.name
        for field in columns
        if not (pa.types.is_floating(field.type) or pa.types.is_nested(field.type))
    ]


def file_stats(footer: pq.FileMetaData, columns: pa.Schema) -> dict[str, Any]:
    """Return a file's statistics, without `tightBounds` (`stats_text`)."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    leaf = 0
    for field in list(columns)[:COLUMNS_MAX]:
        at, leaf = leaf, leaf + _leaves(field.type)
        if pa.types.is_nested(field.type):
            continue
        chunks = [footer.row_group(g).column(at).statistics for g in range(footer.num_row_groups)]
        if any(chunk is None or not chunk.has_null_count for chunk in chunks):
            continue
        nulls[field.name] = sum(chunk.null_count for chunk in chunks)
        held = [chunk for chunk in chunks if chunk.has_min_max]
        # A chunk of nulls alone has no bounds; another chunk without them hides its values.
        if len(held) < sum(chunk.num_values > 0 for chunk in chunks):
            continue
        bounds = [_bounds(field.type, statistics.min, statistics.max) for statistics in held]
        if bounds and all(bounds):
            least[field.name] = min(bound[0] for bound in bounds if bound)
            greatest[field.name] = max(bound[1] for bound in bounds if bound)
    return {
        "numRecords": footer.num_rows,
        "minValues": least,
        "maxValues": greatest,
        "nullCount": nulls,
    }


def stats_text(stats: Mapping[str, Any], *, has_vector: bool) -> str:
    """Return statistics as text for an `add`; a deletion vector makes bounds wide."""
    fields = {"numRecords": stats["numRecords"], "tightBounds": not has_vector}
    return json.dumps({**stats, **fields}, separators=(",", ":"), ensure_ascii=False)


def _leaves(type_: pa.DataType) -> int:
    """Return a type's leaf column count in Parquet."""
    if not pa.types.is_nested(type_):
        return 1
    if pa.types.is_map(type_):
        return _leaves(type_.key_type) + _leaves(type_.item_type)
    return sum(_leaves(type_.field(i).type) for i in range(type_.num_fields))


def _bounds(type_: pa.DataType, low: Any, high: Any) -> tuple[Any, Any] | None:
    """Return bounds as JSON values; None if they are unsafe."""
    if pa.types.is_integer(type_):
        return low, high
    if pa.types.is_string(type_):
        return (low, high) if max(len(low), len(high)) <= TEXT_MAX else None
    if pa.types.is_date(type_):
        is_safe = isinstance(low, date) and isinstance(high, date) and low >= _FIRST_DATE
        return (low.isoformat(), high.isoformat()) if is_safe else None
    return None


_RUN_NAME = re.compile(r"data/([0-9a-f]{32})\.arrow")
_DATA_FILE_NAME = re.compile(r"([0-9a-f]{32})-[0-9a-f]{8}\.parquet")

_WRITTEN_BY = "4.0.0"
"""Writer version in the file: without one, Spark 3 rejects old dates and times."""


_LOOKED_AT = 4096
"""Rows sampled to detect repeated values."""


RowsOf: TypeAlias = Callable[[int, int], pa.RecordBatch]
"""Returns a Parquet copy's rows at the positions ``start <= i < stop``."""


def run_id(run_path: str) -> str:
    """Return a run's id in the names of Parquet copies."""
    match = _RUN_NAME.fullmatch(run_path)
    return match[1] if match else hashlib.blake2b(run_path.encode(), digest_size=16).hexdigest()


def run_id_of_copy(twin_path: str) -> str | None:
    """Return the run id (`run_id`) from a Parquet copy's name; None for other names."""
    match = _DATA_FILE_NAME.fullmatch(twin_path)
    return match[1] if match else None


def write_data_file(
    target: Store,
    file: RunFile,
    columns: pa.Schema,
    rows: RowsOf,
    *,
    now_ms: int,
) -> Twin:
    """Write a run's Parquet copy, durably."""
    path = f"{run_id(file.path)}-{secrets.token_hex(4)}.parquet"
    share = share_of_limit(CHUNK_BYTES) * file.rows // max(1, file.bytes)
    step = min(CHUNK_ROWS, max(1, share))

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, file.rows, step):
            batch = rows(start, min(start + step, file.rows))
            yield batch
            RUNS.trim(batch.num_rows)

    metadata = {"upsertflow.run": file.path}
    size, footer = write_parquet(target, path, columns, batches(), metadata)
    return Twin(path=path, bytes=size, stats=file_stats(footer, columns), written_ms=now_ms)


def write_parquet(
    target: Store,
    path: str,
    columns: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    key_values: Mapping[str, str],
) -> tuple[int, pq.FileMetaData]:
    """Write a Parquet file durably, batch by batch; return its byte count and footer."""
    footers: list[pq.FileMetaData] = []
    # With no column to name, it would have statistics of all.
    bounded: Any = bounded_columns(columns) or False
    batches = iter(batches)
    first = list(islice(batches, 1))
    repeated: Any = [name for batch in first for name in repetitive(batch)]
    with target.create(path) as sink:
        counted = _CountingSink(sink)
        with pq.ParquetWriter(
            pa.PythonFile(counted, mode="w"),
            columns,
            compression="zstd",
            compression_level=1,
            use_dictionary=repeated or False,
            store_schema=False,
            store_decimal_as_integer=True,
            coerce_timestamps="us",
            write_statistics=bounded,
            metadata_collector=footers,
        ) as writer:
            for batch in chain(first, batches):
                writer.write_batch(batch)
                if counted.error is not None:
                    break
            writer.add_key_value_metadata({"org.apache.spark.version": _WRITTEN_BY, **key_values})
        if counted.error is not None:
            raise counted.error
    [footer] = footers
    return counted.bytes, footer


def repetitive(batch: pa.RecordBatch) -> list[str]:
    """Return the Parquet paths for columns benefiting from a dictionary.

    A flat column does if at most half the sampled values are distinct. Otherwise the dictionary is
    abandoned halfway, which takes as long as the remaining encoding, and more bytes. Nested columns
    always have one.
    """
    paths: list[str] = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_nested(column.type):
            paths += _paths(name, column.type)
        elif 2 * pc.count_distinct(column.slice(0, _LOOKED_AT)).as_py() <= min(
            _LOOKED_AT, len(column)
        ):
            paths.append(name)
    return paths


def _paths(path: str, type_: pa.DataType) -> list[str]:
    """Return the Parquet paths for a column's leaves."""
    if pa.types.is_map(type_):
        children = {"key_value.key": type_.key_type, "key_value.value": type_.item_type}
    elif pa.types.is_struct(type_):
        children = {field.name: field.type for field in type_}
    elif pa.types.is_nested(type_):
        children = {"list.element": type_.value_type}
    else:
        return [path]
    return [leaf for name, child in children.items() for leaf in _paths(f"{path}.{name}", child)]


class _CountingSink:
    """A file object for Arrow, counting the bytes written to a sink.

    It stores an error for the caller and drops later writes: Arrow would still write its footer,
    and report its writer's state instead of a full disk.
    """

    closed = False

    def __init__(self, sink: ObjectSink) -> None:
        self._sink = sink
        self.bytes = 0
        self.error: BaseException | None = None

    def write(self, data: Any) -> int:
        if self.error is None:
            try:
                self._sink.write(data)
            except BaseException as error:  # noqa: BLE001 - raised by `write_parquet`
                self.error = error
        self.bytes += len(data)
        return len(data)

    def tell(self) -> int:
        return self.bytes

    def flush(self) -> None:
        """Do nothing: the sink makes its object durable when it is closed."""

    def close(self) -> None:
        """Do nothing: the owner of the sink closes it."""


# -- the rows ------------------------------------------------------------------------------


def row_reader(table: Store, head: Manifest, file: RunFile, vector: Vector) -> RowsOf:
    """Return a reader for the rows in a run's Parquet copy."""
    if head.schema.shows_combined_rows:
        return _combined(Snapshot(table, head), file, vector)
    return _entries(table, file, head.schema)


def _entries(store: Store, file: RunFile, schema: TableSchema) -> RowsOf:
    """Return a reader for a run's unchanged entries, for engines where one entry per key wins."""
    run = RUNS.open(store, file)

    def rows(start: int, stop: int) -> pa.RecordBatch:
        part = Rows(schema, [RunPart(Span(run, start, stop))])
        *columns, diffs = part.slice(0, [*schema.columns.names, DIFF], 0, stop - start)
        batch = pa.RecordBatch.from_arrays(columns, schema=schema.columns)
        return _without(batch, ~is_live(diffs))

    return rows


def batch_reader(batch: pa.RecordBatch, columns: pa.Schema) -> RowsOf:
    """Return a reader taking a Parquet copy's rows from its run's entries in memory."""

    def rows(start: int, stop: int) -> pa.RecordBatch:
        batch_part = batch.slice(start, stop - start)
        return _without(in_columns(batch_part, columns), ~is_live(batch_part.column(DIFF)))

    return rows


def in_columns(rows: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Convert rows with an older schema to newer columns; missing ones are null."""
    values = [
        rows.column(field.name).cast(field.type)
        if has_column(rows.schema, field.name)
        else pa.nulls(rows.num_rows, field.type)
        for field in columns
    ]
    return pa.RecordBatch.from_arrays(values, schema=columns)


def _combined(snapshot: Snapshot, file: RunFile, vector: Vector) -> RowsOf:
    """Return a reader for a run's rows, each combined from all entries of its key."""
    schema = snapshot.manifest.schema
    names = schema.columns.names
    run = RUNS.open(snapshot.store, file)

    def rows(start: int, stop: int) -> pa.RecordBatch:
        carried = np.flatnonzero(~vector.deleted_mask(start, stop))
        part = Rows(schema, [RunPart(Span(run, start, stop))])
        [hashes] = part.take([HASH], carried)
        matches = snapshot.find(hashes.to_numpy(), part.take(schema.identity, carried))
        row_indices = np.full(stop - start, -1, dtype=np.int64)
        row_indices[carried] = np.arange(len(carried))
        indices = pa.array(row_indices, mask=row_indices < 0)
        values = matches.rows.take(names, matches.at)
        return pa.RecordBatch.from_arrays(
            [column.take(indices) for column in values], schema=schema.columns
        )

    return rows


def _without(batch: pa.RecordBatch, dead: Mask) -> pa.RecordBatch:
    """Return rows with nulls in place of the masked ones."""
    if not bool(dead.any()):
        return batch
    indices = pa.array(np.arange(batch.num_rows), mask=dead)
    return batch.take(indices)
