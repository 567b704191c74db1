"""Batch reads: the rows of a snapshot, or the changes of some versions.

Spark asks a Python source for *one* schema, with nothing to tell a batch read from a stream.
So ``readChangeFeed`` alone decides: with it there are the changelog's columns; without it a
batch has the rows of a version, and a stream their new values.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema

from pyspark_upsertflow.metadata import MetadataReader, metadata_schema
from spark_upsert.changelog.modes import ChangeOptions, Deduplication
from spark_upsert.changelog.new_values import new_values
from spark_upsert.changelog.read import read_changes
from spark_upsert.changelog.stretches import Stretch, cut_into_stretches
from spark_upsert.errors import CorruptionError, DataLossError, SchemaError, masked
from spark_upsert.model.hash_range import ALL_HASHES, HashRange
from spark_upsert.model.schema import CHANGELOG_FIELDS, TableSchema
from spark_upsert.options.read import Metadata, ReadOptions
from spark_upsert.state.log.manifest import Manifest
from spark_upsert.state.quarantine import quarantine_schema, read_quarantine
from spark_upsert.state.run.file import RUNS
from spark_upsert.state.snapshot import Snapshot
from spark_upsert.store import open_store
from spark_upsert.table import Table

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_LOGGER = logging.getLogger(__name__)

SPLIT_ROWS = 50_000
"""Fewer rows than this are not worth a task of their own."""

_CHANGE_COLUMNS = tuple(field.name for field in CHANGELOG_FIELDS)


@dataclass
class SnapshotSplit(InputPartition):
    """The rows of a version in a range of hashes."""

    manifest: Manifest
    hash_range: HashRange


@dataclass
class ChangesSplit(InputPartition):
    """The changes of consecutive epochs in a range of hashes."""

    stretches: tuple[Stretch, ...]
    hash_range: HashRange


def open_table(options: ReadOptions) -> Table:
    """Return the table of a read."""
    return Table(open_store(options.path, options.storage))


def read_schema(given: Mapping[str, str]) -> StructType:
    """Return the columns of a read, batch or stream."""
    options = ReadOptions.parse(given)
    if options.metadata is Metadata.QUARANTINE:
        return from_arrow_schema(
            quarantine_schema(manifest_of(open_table(options), options).schema)
        )
    if options.metadata is not None:
        return metadata_schema(options.metadata)
    table = open_table(options)
    manifest = table.log.head()
    if not options.change_feed:
        manifest = manifest_of(table, options)
    names = chosen_columns(options, manifest.schema)
    fields = [manifest.schema.columns.field(name) for name in names]
    if options.change_feed:
        fields += CHANGELOG_FIELDS
    for field in fields:
        _require_spark_has(field)
    return from_arrow_schema(pa.schema(fields))


def _require_spark_has(field: pa.Field) -> None:
    """Refuse a column that a program without Spark has made, and that Spark cannot show."""
    try:
        from_arrow_type(field.type)
    except PySparkTypeError as error:
        raise SchemaError(
            f"column '{field.name}' has the type {field.type}, which Spark does not have.",
            hint="choose other columns with .option('columns', ...); read this one with "
            "spark_upsert.table.Table.",
            column=field.name,
        ) from error


def chosen_columns(options: ReadOptions, schema: TableSchema) -> tuple[str, ...]:
    """Return the table's columns that a read wants."""
    if not options.columns:
        return tuple(schema.columns.names)
    extra = changelog_columns(options)
    return schema.select(name for name in options.columns if name not in extra)


def columns_of(schema: StructType) -> tuple[str, ...]:
    """Return the table's columns in a read schema."""
    return tuple(name for name in schema.fieldNames() if name not in _CHANGE_COLUMNS)


def changelog_columns(options: ReadOptions) -> tuple[str, ...]:
    """Return what stands behind the table's columns in a read of changes."""
    return _CHANGE_COLUMNS if options.change_feed else ()


def manifest_of(table: Table, options: ReadOptions) -> Manifest:
    """Return the version that a snapshot read means."""
    if options.version_as_of is not None:
        return table.log.at(options.version_as_of)
    if options.timestamp_as_of_ms is not None:
        return table.log.at_timestamp(options.timestamp_as_of_ms)
    return table.log.head()


def split_count(options: ReadOptions, rows: int) -> int:
    """Return how many splits the options, or else the amount of data, ask for."""
    if options.splits is not None:
        return options.splits
    most = options.parallelism or os.cpu_count() or 1
    return max(1, min(most, rows // SPLIT_ROWS))


def snapshot_splits(
    options: ReadOptions, manifest: Manifest, hash_range: HashRange = ALL_HASHES
) -> list[InputPartition]:
    """Cut the rows of a version with hashes in a range into splits."""
    share = hash_range.width / ALL_HASHES.width
    rows = int(share * sum(part.file.rows for part in manifest.slices))
    return [
        SnapshotSplit(_within(manifest, piece), piece)
        for piece in hash_range.cut(split_count(options, rows))
    ]


def starting_version(table: Table, options: ReadOptions) -> int | None:
    """Return the first version whose changes a read wants, or None if it names none.

    Raises
    ------
    DataLossError
        The version does not exist yet, and could not be the next one either.
    """
    upper = table.log.head().upper
    if options.starting_timestamp_ms is not None:
        last_before = options.starting_timestamp_ms - int(options.starting_inclusive)
        return table.log.version_at(last_before) + 1
    if options.starting_version == "latest":
        return upper
    if options.starting_version == "earliest":
        return table.log.head().first_changes
    if not isinstance(options.starting_version, int):
        return None
    if options.starting_version > upper:
        raise DataLossError(
            f"startingVersion {options.starting_version} is beyond the next version, {upper}.",
            hint=f"start at {upper} or before, or with 'latest'.",
        )
    return options.starting_version + int(not options.starting_inclusive)


def readable_from(table: Table, options: ReadOptions, lower: int) -> int:
    """Return the version at which a read of changes from ``lower`` on begins.

    Notes
    -----
    If the changes asked for are expired, ``failOnDataLoss`` decides: the plan will raise, or
    the read goes on at `Manifest.first_changes`. In between the table may have changed rows
    that the reader never hears of, so that a later retraction may name a row that it does
    not have: what is folded from such changes is not the table any more.
    """
    head = table.log.head()
    if options.fail_on_data_loss or lower >= head.first_changes:
        return lower
    _LOGGER.warning(
        "changes are expired and left out: path=%s lower=%d upper=%d hint=%s",
        masked(options.path),
        lower,
        head.first_changes,
        "what is folded from this read is not the table; read it anew",
    )
    return head.first_changes


def to_spark(
    batches: Iterator[pa.RecordBatch], schema: StructType, *, is_scan: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield batches in exactly the Arrow types that Spark expects.

    Parameters
    ----------
    is_scan : bool
        Whether the files are read through, so that what was read is not wanted again soon.
    """
    RUNS.is_frugal = True
    target = to_arrow_schema(schema, timezone="UTC")
    for batch in batches:
        # By name: a batch that was to have no column of the table has one of ours.
        found = [(batch.column(field.name), field.type) for field in target]
        columns = [
            column if column.type == type_ else column.cast(type_) for column, type_ in found
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=target)
        RUNS.settle(rows=0 if is_scan else batch.num_rows)


def batch_reader(given: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Return the reader that the options mean."""
    options = ReadOptions.parse(given)
    options.require_batch()
    if options.metadata is Metadata.QUARANTINE:
        return QuarantineReader(options, schema)
    if options.metadata is not None:
        return MetadataReader(options, options.metadata, schema)
    return (ChangesReader if options.change_feed else SnapshotReader)(options, schema)


class SnapshotReader(DataSourceReader):
    """Reads the rows of one version."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        manifest = manifest_of(open_table(self._options), self._options)
        require_columns(manifest.schema, self._schema, ())
        return snapshot_splits(self._options, manifest)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SnapshotSplit)
        rows = read_rows(self._options, partition, self._schema)
        yield from to_spark(rows, self._schema, is_scan=True)


class QuarantineReader(DataSourceReader):
    """Reads the error entries of one version."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        manifest = manifest_of(open_table(self._options), self._options)
        return snapshot_splits(self._options, manifest)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SnapshotSplit)
        store = open_store(self._options.path, self._options.storage)
        snapshot = Snapshot(store, partition.manifest)
        with _expiry_is_no_damage(self._options, partition.manifest.version):
            errors = read_quarantine(snapshot, hash_range=partition.hash_range)
            yield from to_spark(errors, self._schema)


def read_rows(
    options: ReadOptions, split: SnapshotSplit, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split, the table's columns only."""
    snapshot = Snapshot(open_store(options.path, options.storage), split.manifest)
    with _expiry_is_no_damage(options, split.manifest.version):
        yield from snapshot.read(columns_of(schema), hash_range=split.hash_range)


@contextmanager
def _expiry_is_no_damage(options: ReadOptions, version: int) -> Iterator[None]:
    """Say so if a file is missing because a vacuum has overtaken a running read."""
    try:
        yield
    except CorruptionError as error:
        head = open_table(options).log.head()
        if version >= head.since:
            raise
        raise DataLossError.state_expired(
            f"version {version}, which was expired while it was read,",
            since=head.since,
            newest=head.version,
        ) from error


def _within(manifest: Manifest, hash_range: HashRange) -> Manifest:
    """Keep only what a split needs, so that it stays small on its way to the task."""
    kept = tuple(part for part in manifest.slices if part.overlaps(hash_range))
    return replace(manifest.without_writers(), slices=kept)


class ChangesReader(DataSourceReader):
    """Reads the changes of the versions ``[starting, ending]``."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        table = open_table(self._options)
        lower = starting_version(table, self._options) or 0
        lower = readable_from(table, self._options, lower)
        return plan_changes(table, self._options, self._schema, lower, self._upper(table))

    def _upper(self, table: Table) -> int:
        head = table.log.head()
        if self._options.ending_timestamp_ms is not None:
            last = self._options.ending_timestamp_ms - int(not self._options.ending_inclusive)
            return table.log.version_at(last) + 1
        ending = self._options.ending_version
        if ending is None:
            return head.upper
        if ending > head.version:
            raise DataLossError(
                f"endingVersion {ending} is beyond the newest version, {head.version}.",
                hint=f"end at {head.version} or before, or drop the option.",
            )
        return ending + int(self._options.ending_inclusive)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from read_change_split(self._options, partition, self._schema)


def plan_changes(
    table: Table, options: ReadOptions, schema: StructType, lower: int, upper: int
) -> list[InputPartition]:
    """Cut the changes of the versions ``lower <= v < upper`` into splits."""
    net = options.deduplication is Deduplication.NET_CHANGES
    own = table_schema(table, schema, changelog_columns(options))
    stretches = cut_into_stretches(table.log, lower, upper, own, net=net)
    if not stretches:
        return []
    rows = sum(
        part.file.rows
        for stretch in stretches
        for part in (*stretch.after, *(stretch.before.slices if stretch.is_comparison else ()))
    )
    return [
        ChangesSplit(tuple(_stretch_within(s, piece) for s in stretches), piece)
        for piece in ALL_HASHES.cut(split_count(options, rows))
    ]


def table_schema(table: Table, schema: StructType, changelog: Sequence[str]) -> TableSchema:
    """Return the table's schema, which must have the columns of a planned read of changes."""
    own = table.log.head().schema
    require_columns(own, schema, changelog)
    return own


def require_columns(own: TableSchema, schema: StructType, changelog: Sequence[str]) -> None:
    """Check that a table can give the columns of a read, then those of the changelog.

    Raises
    ------
    SchemaError
        The schema was given by hand, or the table has changed since the query was planned.
    """
    planned = to_arrow_schema(schema, timezone="UTC")
    for name in columns_of(schema):
        if name not in own.columns.names:
            raise SchemaError.missing_column(name, own.columns.names, role="column")
        if own.columns.field(name).type != planned.field(name).type:
            raise SchemaError(
                f"column '{name}' is {planned.field(name).type} in the read, "
                f"and {own.columns.field(name).type} in the table.",
                hint="drop .schema(...) if you gave one; else the table has changed since: load "
                "it again, or restart the query.",
                column=name,
            )
    found = schema.names[len(columns_of(schema)) :]
    if found != list(changelog):
        raise SchemaError(
            f"behind the table's columns expected {list(changelog)}, found {found}.",
            hint="drop .schema(...), and choose with .option('columns', ...).",
        )


def _stretch_within(stretch: Stretch, hash_range: HashRange) -> Stretch:
    return replace(stretch, before=_within(stretch.before, hash_range))


def read_change_split(
    options: ReadOptions, split: InputPartition, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a split, stretch by stretch."""
    if not isinstance(split, ChangesSplit):
        return  # Spark makes one empty partition out of none.
    store = open_store(options.path, options.storage)
    wanted = ChangeOptions(
        columns=columns_of(schema),
        deduplication=options.deduplication,
        compute_updates=options.compute_updates,
    )
    for stretch in split.stretches:
        batches = read_changes(store, stretch, wanted, hash_range=split.hash_range)
        if not options.change_feed:
            keys = stretch.schema.keys
            batches = new_values(batches, keys=keys, ignore_deletes=options.ignore_deletes)
        with _expiry_is_no_damage(options, stretch.before.version):
            yield from to_spark(batches, schema)
