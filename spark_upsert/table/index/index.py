"""The index on one column of a table: the keys that it proposes, and the version that it shows.

The keys of rows with ``c = v`` at a version ``p`` are among the keys that the index proposes and
the keys of the table's commands between the version that the index shows and ``p``. Each of these
keys is looked up at ``p``: only the row there counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from spark_upsert.errors import DataLossError, OtherTableError
from spark_upsert.store import Store
from spark_upsert.store.below import StoreBelow
from spark_upsert.table.entries.snapshot import Snapshot
from spark_upsert.table.log.clock import Clock
from spark_upsert.table.log.indexed import index_folder, index_schema, shown
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Manifest, TableVersion


class KeysHaving(NamedTuple):
    """The candidates that an index proposes."""

    keys: pa.RecordBatch
    """Keys of the table, each once, as columns in the order of its key."""
    shows_version: int
    """The version of the table at which the rows with a wanted value have exactly these keys."""


class Index:
    """The index on a column.

    Parameters
    ----------
    table_log : Log
    table_store : Store
    column : str
    clock : callable
        For the commits of the index.
    """

    def __init__(self, table_log: Log, table_store: Store, column: str, *, clock: Clock) -> None:
        self.column = column
        self.table_log = table_log
        self.table_store = table_store
        self.folder = index_folder(column)
        self.store: Store = StoreBelow(table_store, self.folder)
        self._clock = clock
        self.log = Log(self.store, clock=clock)

    @classmethod
    def of(cls, store: Store, column: str) -> Index:
        """Return the index on a column of a table, for a task that asks it."""
        return cls(Log(store), store, column, clock=time.time)

    def __repr__(self) -> str:
        return f"Index({self.column!r}, {self.store.url!r})"

    def try_head(self) -> Manifest | None:
        """Return the newest state of the index; None if it was never built.

        An index may be removed or built anew by another process: then its old log is forgotten.
        """
        try:
            return self.log.try_head()
        except OtherTableError:
            self.log = Log(self.store, clock=self._clock)
            return self.log.try_head()

    def place(self) -> TableVersion | None:
        """Return the version of the table that the index shows; None if it is of no use.

        It is of no use if it was never built, or if what lies between it and the table's readable
        versions is expired, or not of this table: then it is to be built anew.
        """
        own = self.try_head()
        return None if own is None else self.usable(own)

    def usable(self, own: Manifest) -> TableVersion | None:
        """Return the version that a state of the index shows, if that is of use."""
        place = shown(own)
        # The table is looked at behind the index, which it must not be behind.
        head = self.table_log.head()
        if place is None or place.version < head.since:
            return None
        try:
            self.table_log.require_descent(head, place, "the index")
        except OtherTableError:
            return None
        return place

    def keys_having(self, values: pa.Array) -> KeysHaving:
        """Return the keys of the rows that have one of some values in the column.

        The cost follows the keys that are found, not the table. All of them are held at once; use
        `iter_keys_having`, which gives pieces, if very many rows may have a value.

        Parameters
        ----------
        values : pyarrow.Array, shape (n,)
            Values of the column's type. Equal as keys are: NaN is NaN, -0.0 is 0.0. A null finds
            nothing.

        Returns
        -------
        KeysHaving
            For any version of the table, the keys of its rows with a value are among these keys and
            the keys of the commands between that version and ``shows_version``.

        Raises
        ------
        DataLossError
            The index is of no use at present (`place`).
        """
        shows, pieces = self.iter_keys_having(values)
        table = pa.Table.from_batches(pieces, schema=self._keys()).combine_chunks()
        columns = [column.combine_chunks() for column in table.columns]
        return KeysHaving(pa.RecordBatch.from_arrays(columns, schema=table.schema), shows)

    def count(self, values: pa.Array) -> int:
        """Return about how many keys it proposes for some values; raises as `keys_having`.

        The cost follows the number of values, not of the keys.
        """
        own = self.try_head()
        if own is None or self.usable(own) is None:
            raise self._of_no_use()
        return self._shown(own).count_having_prefix([values.drop_null()])

    def iter_keys_having(
        self, values: pa.Array, *, near: int | None = None
    ) -> tuple[int, Iterator[pa.RecordBatch]]:
        """Return the version that is shown, and the keys piece by piece (`keys_having`).

        A piece holds about `CHUNK_ROWS` keys, also of one value that more rows have.

        Parameters
        ----------
        values : pyarrow.Array
        near : int, optional
            The version of the table that is asked about. An index that shows a later one is read
            as it was (`_as_of`), so that little lies between.
        """
        own = self.try_head()
        place = None if own is None else self.usable(own)
        if own is None or place is None:
            raise self._of_no_use()
        if near is not None and near < place.version:
            own, place = self._as_of(near, own, place)
        keys = self.table_log.head().schema.keys
        return place.version, self._shown(own).having_prefix([values.drop_null()], keys)

    def _shown(self, own: Manifest) -> Snapshot:
        """Return a state of the index in the newest types, which may be wider, of equal hashes."""
        schema = self.table_log.head().schema
        wide = index_schema(schema, self.column, hash_seed=own.schema.hash_seed)
        return Snapshot(self.store, replace(own, schema=wide))

    def _of_no_use(self) -> DataLossError:
        return DataLossError(
            f"the index on '{self.column}' at '{self.store.url}' shows no version of the table "
            "that could be compared with others.",
            hint="build it anew: upsertflow index PATH.",
        )

    def _as_of(
        self, version: int, own: Manifest, place: TableVersion
    ) -> tuple[Manifest, TableVersion]:
        """Return the newest state of the index that shows no later version of its table.

        By bisection: what an index shows only grows. If there is none that can be read, the one
        that shows the next version.
        """
        lower, upper = own.since, own.version
        found, later = None, (own, place)
        while lower < upper:
            middle = (lower + upper) // 2
            state = self.log.at(middle)
            at = shown(state)
            usable = None if at is None else self.usable(state)
            if at is not None and at.version > version:
                upper = middle
                later = later if usable is None else (state, usable)
            else:
                lower = middle + 1
                found = found if usable is None else (state, usable)
        return found or later

    def _keys(self) -> pa.Schema:
        """The key columns of the table, in its newest types."""
        schema = self.table_log.head().schema
        return pa.schema([schema.columns.field(name) for name in schema.keys])
