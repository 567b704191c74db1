"""The changelog: what the epochs ``[lower, upper)`` did, as retractions and insertions.

It is a pure function of the runs of those epochs and of the state just before them, so that
every reader, and every retry of a reader, sees the same rows. Many epochs are computed in
one pass: commands are arranged by (key, epoch), the state is looked up once per key, and
from there each effective command retracts what the one before it inserted.

For every ``e``: folding the changes of ``[0, e]`` from empty gives the snapshot at ``e``.

An overwrite is a cut: what is before it and what is behind it are computed apart, and the
epoch itself compares two snapshots. So is an epoch that applied rows below the low-water mark:
they count against a state that has forgotten deletes, which an older one still has.

The modes of `Deduplication` are those of Spark's own change data capture (SPARK-55668).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.changelog.modes import ChangeOptions, Deduplication
from spark_upsert.model.arrays import Positions
from spark_upsert.model.engines import Engine
from spark_upsert.model.hashing import HASH_END, even_cuts
from spark_upsert.model.schema import (
    CHANGELOG_FIELDS,
    DIFF,
    HASH,
    Scope,
    TableSchema,
    Ties,
    is_live,
)
from spark_upsert.model.words import equal_rows, lexically_greater, ordered_words
from spark_upsert.parallel import in_order, useful_threads
from spark_upsert.state.content import equal_contents
from spark_upsert.state.counters import Counters
from spark_upsert.state.fold import folded_rows
from spark_upsert.state.log.log import Log
from spark_upsert.state.log.manifest import Commit, Kind, Manifest, Slice
from spark_upsert.state.lookup import ABSENT
from spark_upsert.state.resolve import (
    Epochs,
    arrange,
    best_of_groups,
    epochs_by_part,
    precedence_of,
    resolve,
)
from spark_upsert.state.run.rows import BatchPart, Part, Rows
from spark_upsert.state.snapshot import Snapshot
from spark_upsert.store import Store

CHANGE_NAMES = ("insert", "update_preimage", "update_postimage", "delete")
INSERT, PREIMAGE, POSTIMAGE, DELETE = range(4)
_DIFFS = np.array([1, -1, 1, -1], dtype=np.int32)

Diffs = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Consecutive epochs that are computed in one pass."""

    before: Manifest
    """The table just before the first epoch."""
    times_ms: Mapping[int, int]
    """The epochs and their commit times."""
    after: tuple[Slice, ...]
    """What the epochs added; after an overwrite, all that there is."""
    is_overwrite: bool
    """Whether ``after`` replaces what was before."""
    schema: TableSchema
    """The schema in which the changes are shown."""


def plan(
    log: Log, lower: int, upper: int, schema: TableSchema, *, net: bool = False
) -> list[Stretch]:
    """Cut the epochs ``lower <= e < upper`` of a table into stretches.

    Parameters
    ----------
    net : bool
        Whether only net changes are wanted: then what is a cut otherwise makes the whole
        range one comparison of what was before and what is after.
    """
    if lower < upper:
        log.require_changes(lower)
    epochs = [c for c in log.commits(max(lower, 0), upper) if c.is_epoch]
    if net and any(commit.kind is Kind.OVERWRITE or _has_late(commit) for commit in epochs):
        last = epochs[-1]
        return [
            Stretch(
                before=log.before(epochs[0].version),
                times_ms={last.version: last.timestamp_ms},
                after=log.at(last.version).slices,
                is_overwrite=True,
                schema=schema,
            )
        ]
    stretches: list[Stretch] = []
    open_commits: list[Commit] = []

    def close() -> None:
        if open_commits:
            stretches.append(
                Stretch(
                    before=log.before(open_commits[0].version),
                    times_ms={c.version: c.timestamp_ms for c in open_commits},
                    after=tuple(part for c in open_commits for part in c.slices()),
                    is_overwrite=open_commits[0].kind is Kind.OVERWRITE,
                    schema=schema,
                )
            )
            open_commits.clear()

    for commit in epochs:
        if commit.kind is Kind.OVERWRITE:
            close()
            open_commits.append(commit)
            close()
        elif commit.added:
            if _has_late(commit):
                close()
            open_commits.append(commit)
    close()
    return stretches


def _has_late(commit: Commit) -> bool:
    """Return whether an epoch has rows that count only where deletes before it are forgotten."""
    return Counters.from_json(commit.counters).late > 0


def read_changes(
    store: Store,
    stretch: Stretch,
    options: ChangeOptions,
    *,
    lower: int = 0,
    upper: int = HASH_END,
    threads: int = 1,
) -> Iterator[pa.RecordBatch]:
    """Yield the changes of the keys with hashes in ``[lower, upper)``.

    Parameters
    ----------
    threads : int
        How many pieces of the range are worked upon at once.

    Yields
    ------
    pyarrow.RecordBatch
        The chosen columns, then `CHANGELOG_FIELDS`. Within a batch sorted by epoch; the
        retraction of an update stands right before its insertion.
    """
    added = Snapshot(store, _manifest_of(stretch.before, stretch.after, stretch.schema))
    before = Snapshot(store, _manifest_of(stretch.before, stretch.before.slices, stretch.schema))
    cuts = before if stretch.is_overwrite else added

    def changes_within(piece: tuple[int, int]) -> pa.RecordBatch:
        if stretch.is_overwrite:
            version = max(stretch.times_ms)
            changes = _overwrite_changes(before, added, version, *piece)
        else:
            is_net = options.deduplication is Deduplication.NET_CHANGES
            changes = _append_changes(before, added, *piece, net=is_net)
        return _render(changes, stretch, options)

    useful = useful_threads(sum(part.file.rows for part in cuts.manifest.slices), threads)
    pieces = list(_chunks(cuts, added, lower, upper))
    if len(pieces) < useful:
        pieces = list(even_cuts(useful, lower, upper))
    for batch in in_order(changes_within, pieces, useful):
        if batch.num_rows:
            yield batch


def _manifest_of(manifest: Manifest, slices: tuple[Slice, ...], schema: TableSchema) -> Manifest:
    return replace(manifest, slices=slices, schema=schema)


def _chunks(first: Snapshot, second: Snapshot, lower: int, upper: int) -> Iterator[tuple[int, int]]:
    """Cut a range of hashes so finely that both snapshots fit in memory."""
    cuts = max([list(s.chunks(lower, upper)) for s in (first, second)], key=len)
    yield from cuts


def as_inserts(batches: Iterator[pa.RecordBatch], manifest: Manifest) -> Iterator[pa.RecordBatch]:
    """Show the rows of a snapshot as insertions at its version."""
    for batch in batches:
        kinds = np.full(batch.num_rows, INSERT)
        epochs = np.full(batch.num_rows, manifest.version, dtype=np.int64)
        times = np.full(batch.num_rows, manifest.timestamp_ms * 1000, dtype=np.int64)
        yield pa.RecordBatch.from_arrays(
            [*batch.columns, *_change_columns(kinds, epochs, times)],
            schema=pa.schema([*batch.schema, *CHANGELOG_FIELDS]),
        )


def _change_columns(kinds: Positions, epochs: Positions, micros: Positions) -> list[pa.Array]:
    """Return the columns of `CHANGELOG_FIELDS`."""
    return [
        pa.array(CHANGE_NAMES).take(pa.array(kinds)),
        pa.array(epochs),
        pa.array(micros).cast(CHANGELOG_FIELDS[2].type),
        pa.array(_DIFFS[kinds]),
    ]


@dataclass(frozen=True, slots=True)
class _Changes:
    """Pairs of old and new entries; row numbers into ``rows``, or `ABSENT`."""

    rows: Rows
    old: Positions
    """The row to retract."""
    new: Positions
    """The row to insert."""
    epochs: npt.NDArray[np.int64]


def _append_changes(
    before: Snapshot, added: Snapshot, lower: int, upper: int, *, net: bool
) -> _Changes:
    parts = added.parts(lower, upper)
    commands = Rows(added.manifest.schema, [part for part, _ in parts])
    if not parts:
        return _Changes(commands, _NONE, _NONE, _NONE)
    row_epochs = np.repeat([epoch for _, epoch in parts], np.diff(commands.starts))
    commands = commands.gathered(commands.schema.run.names)

    def epoch_of(chosen: Positions) -> Epochs:
        return row_epochs[chosen].astype(np.uint64)

    if commands.schema.engine.folds:
        return _folded_changes(before, commands, epoch_of, net=net)
    chosen, key_index = _winners_by_epoch(commands, epoch_of)
    firsts = np.flatnonzero(np.diff(key_index, prepend=-1))
    probes = chosen[firsts]
    found = before.find(commands.hashes[probes], commands.take(commands.schema.identity, probes))
    # What was found is gathered once, whole: it lies scattered over many files.
    hit = np.flatnonzero(found.present)
    names = [name for name in commands.schema.run.names if name != HASH]
    known = pa.RecordBatch.from_arrays(found.rows.take(names, found.at[hit]), names=names)
    rows = Rows(commands.schema, [*commands.parts, BatchPart(known)])
    base = np.full(len(found.at), ABSENT, dtype=np.int64)
    base[hit] = np.arange(len(hit)) + len(commands)
    effective = _effective(rows, chosen, key_index, base)
    chosen, key_index = chosen[effective], key_index[effective]
    old = np.empty_like(chosen)
    old[1:] = chosen[:-1]
    is_first = np.diff(key_index, prepend=-1) != 0
    old[is_first] = base[key_index[is_first]]
    if net:
        is_last = np.diff(key_index, append=-1) != 0
        old, chosen = base[key_index[is_last]], chosen[is_last]
    return _pairs(rows, old, chosen, epoch_of(chosen).astype(np.int64))


def _folded_changes(
    before: Snapshot, commands: Rows, epoch_of: Callable[[Positions], Epochs], *, net: bool
) -> _Changes:
    """Fold the commands into the state, one epoch of each key at a time.

    As many steps as the busiest key has epochs; each makes the entries of its keys anew.
    """
    schema = commands.schema
    order, begins = arrange(commands, None, lambda members: [epoch_of(members)])
    key_index = np.cumsum(begins) - 1
    row_epochs = epoch_of(order).astype(np.int64)
    is_new_epoch = begins.copy()
    is_new_epoch[1:] |= row_epochs[1:] != row_epochs[:-1]
    pair = np.cumsum(is_new_epoch) - 1
    first_pair = pair[begins]
    turn = pair - first_pair[key_index]
    probes = order[begins]
    found = before.find(commands.hashes[probes], commands.take(schema.identity, probes))
    parts = [*commands.parts, *found.rows.parts]
    current = np.where(found.present, found.at + len(commands), ABSENT)
    old, new = (np.full(int(pair[-1]) + 1, ABSENT, dtype=np.int64) for _ in range(2))
    for now in range(int(turn.max()) + 1):
        places = np.flatnonzero(turn == now)
        keys = np.unique(key_index[places])
        known = current[keys]
        rows = Rows(schema, parts)
        # The state stands before the commands: it is older.
        state = Rows(schema, [BatchPart(_batch(rows, known[known != ABSENT]))])
        sent = Rows(schema, [BatchPart(_batch(rows, np.sort(order[places])))])
        both = Rows(schema, [*state.parts, *sent.parts])
        folded = folded_rows(both, epochs=epochs_by_part(both, [0, 1]))
        pairs = first_pair[keys] + now
        old[pairs] = known
        # Folded entries and keys are both in the order of (hash, key).
        current[keys] = np.arange(len(folded)) + len(rows)
        new[pairs] = current[keys]
        parts += folded.parts
    epochs = row_epochs[is_new_epoch]
    if net:
        last = np.append(first_pair[1:], len(old)) - 1
        old, new, epochs = old[first_pair], new[last], epochs[last]
    return _pairs(Rows(schema, parts), old, new, epochs)


def _batch(rows: Rows, chosen: Positions) -> pa.RecordBatch:
    names = rows.schema.run.names
    return pa.RecordBatch.from_arrays(rows.take(names, chosen), schema=rows.schema.run)


_NONE = np.empty(0, dtype=np.int64)


def _winners_by_epoch(
    commands: Rows, epoch_of: Callable[[Positions], Epochs]
) -> tuple[Positions, Positions]:
    """Return the winning command of each (key, epoch), in that order, and the key's number."""
    order, begins = arrange(commands, None, lambda members: [epoch_of(members)])
    key_index = np.cumsum(begins) - 1
    if bool(begins.all()):
        return order, key_index
    epochs = epoch_of(order)
    keep = begins.copy()
    keep[1:] |= epochs[1:] != epochs[:-1]
    if bool(keep.all()):
        return order, key_index
    best = best_of_groups(commands, order, np.flatnonzero(keep), precedence_of(commands))
    return best, key_index[keep]


def _effective(
    rows: Rows, chosen: Positions, key_index: Positions, base: Positions
) -> npt.NDArray[np.bool_]:
    """Return which commands beat all that came before them for their key.

    Of equal order keys the later one does, unless the contents are equal, too, or the table's
    `Ties` say otherwise. Keys advance together, one epoch of each at a time: as many steps as
    the busiest key has epochs.
    """
    first_wins = rows.schema.engine.kind is Engine.FIRST_ROW
    if rows.schema.scope is not Scope.TABLE:
        if not first_wins:
            return np.ones(len(chosen), dtype=np.bool_)
        return (np.diff(key_index, prepend=-1) != 0) & (base[key_index] == ABSENT)
    effective = np.ones(len(chosen), dtype=np.bool_)
    hit = np.flatnonzero(base != ABSENT)
    names = rows.schema.order_columns
    both = rows.take(names, np.concatenate([chosen, base[hit]]))
    words = [word for column in both for word in ordered_words(column)]
    words = [~word for word in words] if first_wins else words
    mine = [word[: len(chosen)] for word in words]
    best = [np.zeros(len(base), dtype=np.uint64) for _ in words]
    best_row = base.copy()
    for target, word in zip(best, words, strict=True):
        target[hit] = word[len(chosen) :]
    firsts = np.flatnonzero(np.diff(key_index, prepend=-1))
    turn = np.arange(len(chosen)) - firsts[key_index]
    by_turn = np.argsort(turn, kind="stable")
    ends = np.searchsorted(turn[by_turn], np.arange(int(turn.max(initial=-1)) + 2))
    for low, high in pairwise(ends):
        now = by_turn[low:high]
        keys = key_index[now]
        ours, theirs = [w[now] for w in mine], [b[keys] for b in best]
        wins = (best_row[keys] == ABSENT) | lexically_greater(ours, theirs)
        if rows.schema.ties is not Ties.FIRST:
            lost = np.flatnonzero(~wins)
            equal = [a[lost] == b[lost] for a, b in zip(ours, theirs, strict=True)]
            tied = lost[np.logical_and.reduce(equal)]
            wins[tied] = ~equal_contents(rows, chosen[now[tied]], rows, best_row[keys[tied]])
        effective[now] = wins
        for target, word in zip(best, mine, strict=True):
            target[keys[wins]] = word[now[wins]]
        best_row[keys[wins]] = chosen[now[wins]]
    return effective


def _pairs(rows: Rows, old: Positions, new: Positions, epochs: Positions) -> _Changes:
    """Replace entries that are no rows by `ABSENT` and drop the pairs in which nothing is left."""
    old, new = _live_only(rows, old), _live_only(rows, new)
    real = (old != ABSENT) | (new != ABSENT)
    return _Changes(rows, old[real], new[real], epochs[real])


def _live_only(rows: Rows, chosen: Positions) -> Positions:
    hit = np.flatnonzero(chosen != ABSENT)
    live = chosen.copy()
    live[hit[~is_live(rows.take([DIFF], chosen[hit])[0])]] = ABSENT
    return live


def _folded_parts(parts: list[tuple[Part, int]], snapshot: Snapshot) -> list[tuple[Part, int]]:
    """Fold the parts of one side of a comparison, where the engine folds."""
    schema = snapshot.manifest.schema
    if not schema.engine.folds or not parts:
        return parts
    rows = Rows(schema, [part for part, _ in parts])
    epochs = epochs_by_part(rows, [epoch for _, epoch in parts])
    return [(part, 0) for part in folded_rows(rows, epochs=epochs).parts]


def _overwrite_changes(
    before: Snapshot, added: Snapshot, version: int, lower: int, upper: int
) -> _Changes:
    """Compare the contents before and after an overwrite."""
    sides = [_folded_parts(snapshot.parts(lower, upper), added) for snapshot in (before, added)]
    rows = Rows(added.manifest.schema, [part for side in sides for part, _ in side])
    border = rows.starts[len(sides[0])]
    winners = []
    for side, low, high in ((sides[0], 0, border), (sides[1], border, len(rows))):
        epochs = [0] * (len(sides[0]) if side is sides[1] else 0) + [e for _, e in side]
        epochs += [0] * (len(rows.parts) - len(epochs))
        chosen = np.arange(low, high)
        winners.append(resolve(rows, chosen=chosen, epochs=epochs_by_part(rows, epochs)).winners)
    both = np.sort(np.concatenate(winners))
    side_words = lambda members: [(members >= border).astype(np.uint64)]  # noqa: E731
    order, begins = arrange(rows, both, side_words)
    key_index = np.cumsum(begins) - 1
    old = np.full(int(begins.sum()), ABSENT, dtype=np.int64)
    new = old.copy()
    is_new = order >= border
    old[key_index[~is_new]] = order[~is_new]
    new[key_index[is_new]] = order[is_new]
    return _pairs(rows, old, new, np.full(len(old), version, dtype=np.int64))


def _render(changes: _Changes, stretch: Stretch, options: ChangeOptions) -> pa.RecordBatch:
    """Turn pairs of entries into changelog rows."""
    rows, old, new, epochs = changes.rows, changes.old, changes.new, changes.epochs
    if options.deduplication is not Deduplication.NONE:
        changed = _changed(rows, old, new)
        old, new, epochs = old[changed], new[changed], epochs[changed]
    by_epoch = np.argsort(epochs, kind="stable")
    old, new, epochs = old[by_epoch], new[by_epoch], epochs[by_epoch]
    both = (old != ABSENT) & (new != ABSENT) & options.compute_updates
    # Two places per pair, the retraction first; absent ones are then left out.
    sources = np.column_stack([old, new]).reshape(-1)
    kinds = np.column_stack(
        [np.where(both, PREIMAGE, DELETE), np.where(both, POSTIMAGE, INSERT)]
    ).reshape(-1)
    shown = sources != ABSENT
    sources, kinds, epochs = sources[shown], kinds[shown], np.repeat(epochs, 2)[shown]
    versions = np.array(list(stretch.times_ms), dtype=np.int64)
    micros = 1000 * np.array(list(stretch.times_ms.values()), dtype=np.int64)
    fields = [rows.schema.columns.field(name) for name in options.columns]
    return pa.RecordBatch.from_arrays(
        [
            *rows.take(options.columns, sources),
            *_change_columns(kinds, epochs, micros[np.searchsorted(versions, epochs)]),
        ],
        schema=pa.schema([*fields, *CHANGELOG_FIELDS]),
    )


def _changed(rows: Rows, old: Positions, new: Positions) -> npt.NDArray[np.bool_]:
    """Return which pairs are not an update to the values that are there already."""
    changed = np.ones(len(old), dtype=np.bool_)
    pairs = np.flatnonzero((old != ABSENT) & (new != ABSENT))
    if len(pairs):
        names = rows.schema.values
        if not names:
            changed[pairs] = False
        else:
            changed[pairs] = ~equal_rows(rows.take(names, old[pairs]), rows.take(names, new[pairs]))
    return changed
