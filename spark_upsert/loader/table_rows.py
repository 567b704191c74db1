"""The rows of a table at a version, as splits: ranges of hashes.

The rows of a split come in the order of their hashes, which follow from the keys: neither files nor
compactions nor the choice of columns have a part in it. How many there are is counted once, from
the hashes alone, and stands in the checkpoint from then on.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import pyarrow as pa

from spark_upsert.errors import OptionError
from spark_upsert.loader.splits import Record
from spark_upsert.model.hash_range import ALL_HASHES, HashRange, hash_number
from spark_upsert.model.hashing import HASH_END
from spark_upsert.store.records import text, whole
from spark_upsert.store.resolve import is_remote
from spark_upsert.table.entries.snapshot import Snapshot
from spark_upsert.table.log.manifest import Manifest, TableVersion
from spark_upsert.table.retention.overtaken import despite_expiry, expiry_is_no_damage
from spark_upsert.table.retention.policy import LEASE_MS
from spark_upsert.table.table import Table

SPLIT_ROWS = 1 << 16
"""About how many entries are a split: enough that the fixed cost of a read is small, and few enough
that a window has rows from several places."""

_BEGIN_ANEW = "Or begin without the checkpoint: the rows then come from the first one on."

_RENEWALS = 4
"""How many times a lease is renewed before it would lapse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """The rows of a table at one version, which stays the same while others write.

    Parameters
    ----------
    path : str
        As of `Table.open`.
    version : int, optional
        By default the newest one when the loader plans, or that of the checkpoint.
    columns : sequence of str, optional
        In the order in which they are to come; by default all.
    storage : mapping, optional
        As of `Table.open`.
    consumer : str, optional
        A name under which the version is kept from expiry while it is read, by a lease that lapses
        when the reading stops (`Table.hold`, `Table.release`).
    """

    path: str
    version: int | None = None
    columns: Sequence[str] | None = None
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    consumer: str | None = None

    kind: ClassVar[str] = "table"

    def plan(self) -> TableSplits:
        """Return the splits of the version (`Source.plan`).

        Raises
        ------
        TableNotFoundError, DataLossError, SchemaError
            There is no such table, version or column.
        """
        table = self.open()

        def held() -> Manifest:
            found = table.at(self.version).manifest
            self._hold(table, found.version)
            return found

        # The lease comes first: what is counted under it can be read later.
        manifest = despite_expiry(held, table.store.url)
        place = table.log.place(manifest.version)
        with expiry_is_no_damage(table.store, manifest.version):
            snapshot = Snapshot(table.store, manifest)
            entries = sum(slice_.rows_within(ALL_HASHES) for slice_ in manifest.slices)
            ranges = snapshot.chunks(at_least=max(1, entries // SPLIT_ROWS))
            counts = tuple(
                sum(batch.num_rows for batch in snapshot.read((), hash_range=each))
                for each in ranges
            )
        return TableSplits(self, place, manifest, ranges, counts)

    def plan_again(self, record: Record) -> TableSplits:
        """Return the splits that a checkpoint names (`Source.plan_again`)."""
        place = TableVersion(
            table_id=text(record["table_id"]),
            version=whole(record["version"]),
            token=text(record["token"]),
        )
        counts = tuple(whole(rows) for rows in record["rows"])
        bounds = [hash_number(digits) for digits in record["bounds"]]
        ranges = [HashRange(first, end) for first, end in pairwise((*bounds, HASH_END))]
        if not bounds or bounds[0] or len(ranges) != len(counts):
            raise ValueError(f"{len(counts)} splits, and other bounds: {bounds!r:.80}")
        if self.version not in (None, place.version):
            raise OptionError(
                f"the loader reads version {self.version} of '{self.path}', its checkpoint is of "
                f"version {place.version}, which has other rows.",
                hint=f"leave the version out, or give {place.version}. {_BEGIN_ANEW}",
                option="version",
            )
        table = self.open()
        hint = f"give the path of the table that the checkpoint is of. {_BEGIN_ANEW}"
        table.log.require(place, "the loader's checkpoint", hint=hint)
        self._hold(table, place.version)
        return TableSplits(self, place, table.at(place.version).manifest, ranges, counts)

    def open(self) -> Table:
        """Return the table."""
        return Table.open(self.path, storage=self.storage)

    def _hold(self, table: Table, version: int) -> None:
        if self.consumer is not None:
            table.hold(self.consumer, version)


class TableSplits:
    """Ranges of hashes of one version (`Splits`).

    Parameters
    ----------
    source : TableRows
    place : Place
        The version, by its name.
    manifest : Manifest
        The same version, by its contents.
    ranges : sequence of HashRange
        Neighbours, which are all hashes together.
    counts : sequence of int
        How many rows each range has.
    """

    def __init__(
        self,
        source: TableRows,
        place: TableVersion,
        manifest: Manifest,
        ranges: Sequence[HashRange],
        counts: Sequence[int],
    ) -> None:
        self._source = source
        self._place = place
        self._manifest = manifest.without_writers()
        own = manifest.schema
        self._columns = own.columns.names if source.columns is None else own.select(source.columns)
        self.schema = pa.schema([own.columns.field(name) for name in self._columns])
        self._ranges = tuple(ranges)
        self.counts = tuple(counts)
        self.is_forkable = not is_remote(source.path)
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._table: Table | None = None
        self._renew_ms = 0

    def __getstate__(self) -> dict[str, Any]:
        # Neither locks nor clients of a bucket travel.
        own = {**self.__dict__}
        for name in ("_lock", "_table", "_renew_ms"):
            del own[name]
        return own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def __repr__(self) -> str:
        return f"TableSplits({self._place}, rows={sum(self.counts):_}, splits={len(self.counts)})"

    def read(self, index: int) -> pa.Table:
        """Return the rows of a range, ascending by hash (`Splits.read`)."""
        store = self._kept().store
        with expiry_is_no_damage(store, self._manifest.version):
            snapshot = Snapshot(store, self._manifest)
            return snapshot.by_hash(self._columns, hash_range=self._ranges[index])

    def record(self) -> Record:
        """Return the version, the ranges and the counts (`Splits.record`)."""
        place = self._place
        return {
            "table_id": place.table_id,
            "version": place.version,
            "token": place.token,
            "bounds": [f"{each.first:016x}" for each in self._ranges],
            "rows": list(self.counts),
        }

    def _kept(self) -> Table:
        """Return the table, and renew its lease if that is due."""
        with self._lock:
            if self._table is None:
                self._table = self._source.open()
            table, consumer = self._table, self._source.consumer
            if consumer is not None and table.log.now_ms() >= self._renew_ms:
                table.hold(consumer, self._manifest.version)
                self._renew_ms = table.log.now_ms() + LEASE_MS // _RENEWALS
            return table
