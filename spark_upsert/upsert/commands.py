"""From a user's rows to commands: the ``upsert`` envelope.

A command is (key, values or tombstone, order key). A row is a tombstone if the
``applyAsDeletes`` column says so or, without that option, if all of its value columns are
null (the order columns apart).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.engines import Rule
from spark_upsert.errors import DataError, SchemaError
from spark_upsert.hashing import hash_keys
from spark_upsert.schema import TableSchema
from spark_upsert.upsert.contributions import collected, contributions


@dataclass(frozen=True, kw_only=True)
class UpsertEnvelope:
    """Turns batches of rows into batches of commands. Pure; travels to the tasks.

    Parameters
    ----------
    schema : TableSchema
    sources : mapping of str to str
        For each column of the table that the rows have, its name in the rows.
    order : tuple of str
        Names of the order columns in the rows.
    deletes : str or None
        Name of the boolean column that marks tombstones.
    """

    schema: TableSchema
    sources: Mapping[str, str]
    order: tuple[str, ...]
    deletes: str | None

    def commands(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the commands of a batch, in its order.

        Parameters
        ----------
        batch : pyarrow.RecordBatch, shape (n,)
            Columns of the user's rows.

        Returns
        -------
        pyarrow.RecordBatch, shape (n,)
            Columns as `TableSchema.run`; not sorted.

        Raises
        ------
        DataError
            A key or an order key is null.
        """
        schema = self.schema
        columns = {field.name: self._column(batch, field) for field in schema.columns}
        keys = [columns[key] for key in schema.keys]
        self._require_keys(keys)
        order = [
            _cast(batch.column(name), field)
            for name, field in zip(self.order, schema.order, strict=True)
        ]
        for name, column in zip(self.order, order, strict=True):
            if column.null_count:
                raise DataError(
                    f"the sequenceBy column '{name}' is null in {column.null_count} of "
                    f"{len(column)} rows of a batch.",
                    hint=f"drop such rows before the write, or fill '{name}'.",
                )
        diffs = np.where(self._tombstones(batch, columns), -1, 1).astype(np.int8)
        hashes = hash_keys(keys, seed=schema.hash_seed)
        return pa.RecordBatch.from_arrays(
            [
                pa.array(hashes),
                *columns.values(),
                *order,
                pa.array(diffs),
                *contributions(schema, columns, order, diffs, self._own_order(batch)),
            ],
            schema=schema.run,
        )

    def _own_order(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Return the order keys of the columns that have their own."""
        return {
            column: _cast(batch.column(source), self.schema.order[0])
            for column, source in self.schema.engine.column_order.items()
        }

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        source = self.sources.get(field.name)
        if source is None:
            return pa.nulls(batch.num_rows, type=field.type)
        if self.schema.engine.rule(field.name) is Rule.COLLECT:
            return collected(batch.column(source), field)
        return _cast(batch.column(source), field)

    def _require_keys(self, keys: list[pa.Array]) -> None:
        if not all(key.null_count for key in keys):
            return
        is_null = keys[0].is_null()
        for key in keys[1:]:
            is_null = pc.and_(is_null, key.is_null())
        count = pc.sum(is_null).as_py() or 0
        if count:
            names = ", ".join(f"'{key}'" for key in self.schema.keys)
            raise DataError(
                f"the key {names} is null in {count} of {len(is_null)} rows of a batch.",
                hint="drop such rows before the write, or choose other 'keys'.",
            )

    def _tombstones(
        self, batch: pa.RecordBatch, columns: Mapping[str, pa.Array]
    ) -> npt.NDArray[np.bool_]:
        if self.deletes is not None:
            flags = batch.column(self.deletes).fill_null(False)
            return np.asarray(flags.to_numpy(zero_copy_only=False), dtype=np.bool_)
        all_null = np.ones(batch.num_rows, dtype=np.bool_)
        judged = [n for n in self.schema.values if self.sources.get(n) not in self.order]
        if not judged or any(columns[name].null_count == 0 for name in judged):
            return np.zeros(batch.num_rows, dtype=np.bool_)
        for name in judged:
            all_null &= columns[name].is_null().to_numpy(zero_copy_only=False)
        return all_null


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise SchemaError(
            f"column '{field.name}' cannot be stored as {field.type}: {error}.",
            hint="cast the column before the write.",
            column=field.name,
        ) from error
