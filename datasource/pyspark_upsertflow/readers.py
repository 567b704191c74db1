"""Batch readers, the columns of all reads, and pins from Spark's filters.

Spark asks for one schema for batch and stream, so ``readChangeFeed`` alone decides the columns
(docs/adr/0014).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    In,
    InputPartition,
)

from pyspark_upsertflow.catalog import (
    complete_options,
    is_catalog_create,
    refuse_secrets,
    with_stored_options,
)
from pyspark_upsertflow.python_source import KINDS
from spark_upsert.core.casts import UnfitError
from spark_upsert.core.python_values import array_of
from spark_upsert.errors import SchemaError, setting
from spark_upsert.metadata import VIEWS
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.options.read import Metadata, ReadOptions
from spark_upsert.options.spark import called_by_spark, name_options_in_errors
from spark_upsert.plan.casts import kind_of
from spark_upsert.plan.expressions import Pins, pins_for_and
from spark_upsert.streams.inputs.table import open_table
from spark_upsert.streams.planner.formats import (
    MergedRead,
    batch_inputs,
    plan_columns,
    shared_columns,
)
from spark_upsert.streams.reads.columns import shown_grouping
from spark_upsert.streams.reads.explain import log_merge
from spark_upsert.streams.reads.read_split import splits_of
from spark_upsert.streams.reads.splits import RowsSplit
from spark_upsert.table.run.file import RUNS, frugally
from spark_upsert.table.table import Table
from spark_upsert_sink.types import to_arrow_columns, to_spark_columns, to_spark_type
from spark_upsert_sink.worker import freeze_loaded_objects, release_memory, with_split

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def metadata_schema(metadata: Metadata) -> StructType:
    """Return the columns for a metadata read."""
    return to_spark_columns(VIEWS[metadata].schema)


@called_by_spark
class MetadataReader(DataSourceReader):
    """Reads metadata about a table from its log and leases."""

    def __init__(self, options: ReadOptions, metadata: Metadata, schema: StructType) -> None:
        self._options = options
        self._metadata = metadata
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        # Opened here, too, so that a wrong path fails on the driver.
        self._open()
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        target = to_arrow_columns(self._schema)
        for batch in VIEWS[self._metadata].read(self._open()):
            yield batch.cast(target)

    def _open(self) -> Table:
        return Table.open(self._options.path, storage_options=self._options.storage)


_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"
"""Module name of the process in which Spark plans a read with filters."""

_COMPARED = frozenset({"truth", "whole", "decimal", "text", "bytes", "date"})
"""Column types whose filter values Spark passes as plain Python values."""


def supports_filters() -> bool:
    """Return whether Spark passes filters to this process's reader.

    Spark does so with `spark.sql.python.filterPushdown.enabled`, in a special process; without it,
    a reader with ``pushFilters`` is an error.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING in sys.modules or getattr(main, "name", None) == _PUSHING


def pins_from_filters(filters: Iterable[Filter], columns: pa.Schema) -> Pins:
    """Return the column values allowed by a conjunction of filters."""
    pins: Pins = {}
    for pushed in filters:
        pins = pins_for_and(pins, _pins_of(pushed, columns))
    return pins


def _pins_of(each: Filter, columns: pa.Schema) -> Pins:
    if isinstance(each, EqualTo) or (isinstance(each, EqualNullSafe) and each.value is not None):
        values = (each.value,)
    elif isinstance(each, In):
        values = each.value
    else:
        return {}
    name = each.attribute[0]
    if len(each.attribute) > 1 or name not in columns.names:
        return {}
    type_ = columns.field(name).type
    if kind_of(type_) not in _COMPARED:
        return {}
    try:
        return {name: array_of([v for v in values if v is not None], type_).unique()}
    except (UnfitError, pa.ArrowException, TypeError, OverflowError):
        return {}


@name_options_in_errors
def read_schema(options: Mapping[str, str]) -> StructType:
    """Return the columns for a read, or for a catalog table about to be created."""
    if is_catalog_create(options):
        refuse_secrets(options)
    plan = ReadPlan.parse(options)
    shown = _shown(plan)
    freeze_loaded_objects()
    return with_stored_options(shown, options, _keys(plan)) if is_catalog_create(options) else shown


def _shown(plan: ReadPlan) -> StructType:
    if (about := _metadata_request(plan)) is not None:
        return metadata_schema(about[1])
    columns = plan_columns(plan, KINDS)
    for field in columns:
        _require_spark_has(field)
    shown = to_spark_columns(columns)
    return with_split(shown) if plan.query.deferred else shown


def _keys(plan: ReadPlan) -> tuple[str, ...]:
    """Return the key columns if a read returns table rows; otherwise none."""
    if not plan.is_of_table:
        return ()
    options = plan.inputs[0].of_table()
    if options.metadata is not None:
        return ()
    manifest = open_table(options).log.head()
    is_grouped = shown_grouping(manifest, options) is not None  # Keys of groups may be null.
    return () if is_grouped else manifest.schema.keys


def _require_spark_has(field: pa.Field) -> None:
    """Refuse a column unsupported by Spark, made by a program without Spark."""
    try:
        to_spark_type(field.type)
    except PySparkTypeError as error:
        raise SchemaError(
            f"column '{field.name}' has the type {field.type}, which Spark does not have.",
            hint=f"choose other columns by {setting('columns')}; read this one with "
            "spark_upsert.table.table.Table.",
            column=field.name,
        ) from error


def to_spark(
    batches: Iterator[pa.RecordBatch], schema: StructType, *, is_scan: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield batches in exactly the Arrow types expected by Spark, each made frugally.

    After the last batch, freed memory is returned to the system.
    """
    target = to_arrow_columns(schema)
    yield from frugally(_cast_batches(batches, target, is_scan=is_scan))
    release_memory()


def _cast_batches(
    batches: Iterator[pa.RecordBatch], target: pa.Schema, *, is_scan: bool
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        # By name: a batch planned without table columns has one internal column.
        pairs = [(batch.column(field.name), field.type) for field in target]
        columns = [
            column if column.type == type_ else column.cast(type_) for column, type_ in pairs
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=target)
        RUNS.trim(rows=0 if is_scan else batch.num_rows)


@name_options_in_errors
def batch_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Return the batch reader for some options."""
    plan = ReadPlan.parse(complete_options(options, schema))
    freeze_loaded_objects()
    if (about := _metadata_request(plan)) is not None:
        about[0].require_batch()
        return MetadataReader(*about, schema)
    return (PushedReader if supports_filters() else BatchReader)(plan, schema)


def _metadata_request(plan: ReadPlan) -> tuple[ReadOptions, Metadata] | None:
    """Return options and metadata view, if the log alone can serve the read; otherwise None."""
    if not plan.is_of_table:
        return None
    options = plan.inputs[0].of_table()
    if options.metadata in (None, Metadata.QUARANTINE, Metadata.GROUP):
        return None  # Rows of a table, read as such.
    return options, options.metadata


def decode_work(partition: InputPartition | None) -> Any:
    """Return a task's work; None for the empty partition added by Spark if there is none."""
    return None if partition is None else partition.value


@called_by_spark
class BatchReader(DataSourceReader):
    """Reads rows at a version, quarantined rows, or changes, from one table or several inputs."""

    def __init__(self, plan: ReadPlan, schema: StructType) -> None:
        log_merge(plan)
        columns = to_arrow_columns(schema)
        self._read = MergedRead(
            batch_inputs(plan, columns, KINDS), plan.query, columns=shared_columns(plan, columns)
        )
        self._schema = schema
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(work) for work in self._read.splits()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_loaded_objects()
        work = decode_work(partition)
        if work is None:
            return
        is_scan = all(isinstance(split, RowsSplit) for split in splits_of(work))
        yield from to_spark(self._read.read(work), self._schema, is_scan=is_scan)


@called_by_spark
class PushedReader(BatchReader):
    """A reader receiving a query's filters from Spark (`supports_filters`)."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Skip rows rejected by the filters, and return all filters: Spark applies them again."""
        self._read.push(pins_from_filters(filters, self._columns))
        return filters
