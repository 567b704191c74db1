"""Change reads for an epoch range, one hash range at a time, so memory is bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa

from spark_upsert.core.key_hash import ALL_HASHES, HashRange
from spark_upsert.core.threads import map_in_order, useful_threads
from spark_upsert.store import Store
from spark_upsert.table.changelog.changes import (
    Changes,
    EpochRange,
    changes_of_commands,
    changes_of_overwrite,
)
from spark_upsert.table.changelog.render import ChangeOptions, Deduplication, render
from spark_upsert.table.log.manifest import Slice
from spark_upsert.table.run.remote import Access
from spark_upsert.table.state.snapshot import Snapshot, common

T = TypeVar("T")


def read_changes(
    store: Store,
    epoch_range: EpochRange,
    options: ChangeOptions,
    *,
    hash_range: HashRange = ALL_HASHES,
    threads: int = 1,
) -> Iterator[pa.RecordBatch]:
    """Yield the changes for keys in a hash range."""
    is_net = options.deduplication is Deduplication.NET_CHANGES

    def rendered(changes: Changes) -> pa.RecordBatch:
        return render(changes, epoch_range.times_ms, options)

    for batch in changes_by_piece(
        store, epoch_range, rendered, net=is_net, hash_range=hash_range, threads=threads
    ):
        if batch.num_rows:
            yield batch


def changes_by_piece(
    store: Store,
    epoch_range: EpochRange,
    made: Callable[[Changes], T],
    *,
    net: bool,
    hash_range: HashRange = ALL_HASHES,
    threads: int = 1,
) -> Iterator[T]:
    """Yield ``made``'s result for each piece in a hash range, in hash order.

    ``made`` may be called in several threads concurrently. With ``net`` a key has one change.
    """
    before = _snapshot(store, epoch_range, epoch_range.before.slices)
    after = _snapshot(store, epoch_range, epoch_range.after)

    access = Access(hash_range=hash_range)

    def changed(piece: HashRange) -> T:
        if epoch_range.is_comparison:
            return made(
                changes_of_overwrite(
                    before.parts(piece, access),
                    after.parts(piece, access),
                    schema=epoch_range.schema,
                    version=max(epoch_range.times_ms),
                )
            )
        return made(
            changes_of_commands(
                after.parts(piece, access), before.find, schema=epoch_range.schema, net=net
            )
        )

    main = before if epoch_range.is_comparison else after
    useful = useful_threads(sum(slice_.file.rows for slice_ in main.manifest.slices), threads)
    # Fine enough for one piece from either side to fit in memory.
    cuts = [side.chunks(hash_range, at_least=useful) for side in (main, after)]
    is_uniform = not epoch_range.schema.hash_prefix
    pieces = max(cuts, key=len) if is_uniform else common(hash_range, cuts)
    yield from map_in_order(changed, pieces, useful)


def _snapshot(store: Store, epoch_range: EpochRange, slices: Sequence[Slice]) -> Snapshot:
    """Return a snapshot with only the given slices, in the changes' schema."""
    return Snapshot(store, replace(epoch_range.before, slices=slices, schema=epoch_range.schema))
