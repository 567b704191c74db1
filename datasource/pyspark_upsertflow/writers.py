"""The writer for one table, or for many tables whose path template names columns.

`by_hash` divides rows among the writing tasks by the table's key hash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.casts import try_convert
from spark_upsert.core.key_hash import ALL_HASHES, hash_keys
from spark_upsert.core.names import find_columns
from spark_upsert.core.python_values import whole_argument
from spark_upsert.core.schema import TableSchema
from spark_upsert.envelopes.write_plan import plan_table_write
from spark_upsert.errors import OptionError
from spark_upsert.options.routed import is_routed_write
from spark_upsert.options.write import WriteOptions
from spark_upsert.store.open import open_store
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.state.snapshot import cut_by_files
from spark_upsert.table.table import Table
from spark_upsert_sink import (
    RoutedBatchWriter,
    RoutedStreamWriter,
    UpsertBatchWriter,
    UpsertStreamWriter,
)
from spark_upsert_sink.types import require_storable, to_arrow_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    """Return the writer for a batch."""
    if is_routed_write(options):
        return RoutedBatchWriter(options, schema, overwrite)
    return UpsertBatchWriter(options, schema, overwrite)


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """Return the writer for a stream."""
    if is_routed_write(options):
        return RoutedStreamWriter(options, schema, overwrite)
    return UpsertStreamWriter(options, schema, overwrite)


_PARTS_MAX = 1 << 20


def by_hash(df: DataFrame, parts: int, texts_by_name: Mapping[str, str]) -> DataFrame:
    """Return a frame whose n-th partition has the rows in the n-th hash range of a table.

    Parameters as in `pyspark_upsertflow.by_hash`; the write options include the path.
    """
    if is_routed_write(texts_by_name):
        raise OptionError.invalid("path", texts_by_name["path"], "the path of one table")
    options = WriteOptions.parse(texts_by_name)
    parts = whole_argument("parts", parts, least=1, most=_PARTS_MAX)
    from pyspark.sql.functions import col
    from pyspark.sql.pandas.functions import arrow_udf

    head = _ensure(options, df.schema)
    columns = find_columns(head.schema.keys, df.columns, role="key column")
    ranges = cut_by_files(ALL_HASHES, head.slices, parts, is_uniform=not head.schema.hash_prefix)
    bounds = np.array([hash_range.first for hash_range in ranges[1:]], dtype=np.uint64)
    scalar_udf: Any = arrow_udf  # Its stubs lack functions with type hints.
    number = scalar_udf(_part_numbers(head.schema, bounds), "int")
    quoted = ("`" + name.replace("`", "``") + "`" for name in columns)
    return df.repartitionById(parts, number(*map(col, quoted)))


def _ensure(options: WriteOptions, schema: StructType) -> Manifest:
    """Return the table's newest version; create the table from write options if it does not exist.

    The hash seed is in the table, so the rows cannot be divided before it exists.
    """
    table = Table(open_store(options.path, options.storage))
    head = table.log.try_head()
    if head is not None:
        return head
    require_storable(schema)
    unborn = plan_table_write(table, options, to_arrow_columns(schema)).base
    return table.ensure(
        unborn.schema,
        unborn.properties,
        allow_non_empty_path=options.allow_non_empty_path,
    )


def _part_numbers(schema: TableSchema, bounds: npt.NDArray[np.uint64]) -> Callable[..., pa.Array]:
    """Return a function from key columns to part numbers; ``bounds`` begin all parts but one."""
    types = [schema.columns.field(name).type for name in schema.keys]
    hashes_of = partial(hash_keys, seed=schema.hash_seed, prefix=schema.hash_prefix)

    def part_numbers(*keys: pa.Array) -> pa.Array:
        # A key that cannot be stored gets the hash of NULL here; the write decides about its row.
        stored = [try_convert(key, type_)[0] for key, type_ in zip(keys, types, strict=True)]
        numbers = np.searchsorted(bounds, hashes_of(stored), side="right")
        return pa.array(numbers.astype(np.int32))

    return part_numbers
