"""The fold of the log: what a table is behind each version, as a pure function.

manifest(v) = apply(manifest(v - 1), commit(v))
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from spark_upsert.errors import CorruptionError
from spark_upsert.model.durations import render_time
from spark_upsert.model.hash_range import HashRange
from spark_upsert.table.log.manifest import (
    Commit,
    Kind,
    Manifest,
    Repair,
    Slice,
    Taken,
    fingerprint,
)


def apply(manifest: Manifest | None, commit: Commit) -> Manifest:
    """Return the manifest behind one more commit; pure, and the only copy of the rule.

    Raises
    ------
    CorruptionError
        The commit does not continue the manifest: the log has a gap or is not ours.
    """
    if manifest is not None and manifest.is_unborn:
        manifest = None
    expected = 0 if manifest is None else manifest.version + 1
    if commit.version != expected or (manifest is None) != (commit.kind is Kind.CREATE):
        raise CorruptionError.in_file(
            f"_log/{expected:020d}.json",
            f"version {expected}",
            f"a '{commit.kind.value}' of version {commit.version}",
        )
    previous = "" if manifest is None else manifest.token
    if commit.previous != previous:
        raise CorruptionError.in_file(
            f"_log/{expected:020d}.json",
            f"a version made upon '{previous}'",
            f"one made upon '{commit.previous}': it belongs to another table, or to another copy",
        )
    if manifest is None:
        if commit.schema is None:
            raise CorruptionError.in_file(f"_log/{0:020d}.json", "a schema", "none")
        manifest = Manifest.unborn(commit.schema, table_id=commit.token)
    frontiers = (commit.since, commit.fence, commit.wrong_from or 0)
    is_behind = commit.writers_before_ms <= commit.timestamp_ms
    if commit.version and (max(frontiers) >= commit.version or not is_behind):
        raise CorruptionError.in_file(
            f"_log/{expected:020d}.json",
            "frontiers behind the version itself",
            f"{frontiers}, and writers before {render_time(commit.writers_before_ms)}",
        )
    kept = () if commit.kind is Kind.OVERWRITE else _without(manifest.slices, commit.taken)
    slices = _in_order(kept, commit.slices())
    since = max(manifest.since, commit.since)
    return replace(
        _with_writers(manifest, commit),
        version=commit.version,
        timestamp_ms=commit.timestamp_ms,
        schema=commit.schema or manifest.schema,
        slices=slices,
        live_rows=commit.live_rows,
        properties=manifest.properties if commit.properties is None else commit.properties,
        low_water=commit.low_water
        if commit.kind is Kind.OVERWRITE
        else commit.low_water or manifest.low_water,
        forgot=max(0, manifest.forgot) if commit.low_water is None else commit.version,
        changed=commit.version if commit.is_epoch else manifest.changed,
        token=commit.token,
        since=since,
        repairs=_repairs(manifest, commit, since),
        fence=max(manifest.fence, commit.fence),
    )


def _with_writers(manifest: Manifest, commit: Commit) -> Manifest:
    """Note the writers of a version, and forget those that an expiry is done with."""
    if commit.transactions:
        own = {each.writer: each.number for each in commit.transactions}
        return replace(
            manifest,
            transactions={**manifest.transactions, **own},
            written_ms={**manifest.written_ms, **dict.fromkeys(own, commit.timestamp_ms)},
        )
    if commit.wrong_from is not None:  # Times that were ahead count as the repair's.
        repaired = {w: min(t, commit.timestamp_ms) for w, t in manifest.written_ms.items()}
        return replace(manifest, written_ms=repaired)
    gone = {w for w, time in manifest.written_ms.items() if time < commit.writers_before_ms}
    if not gone:
        return manifest
    return replace(
        manifest,
        transactions={w: n for w, n in manifest.transactions.items() if w not in gone},
        written_ms={w: t for w, t in manifest.written_ms.items() if w not in gone},
        forgotten=manifest.forgotten | {fingerprint(writer) for writer in gone},
    )


def _repairs(manifest: Manifest, commit: Commit, since: int) -> tuple[Repair, ...]:
    """Return the repairs that versions from ``since`` on need."""
    kept = tuple(repair for repair in manifest.repairs if repair.upper > since)
    if commit.wrong_from is None:
        return kept
    own = Repair(lower=commit.wrong_from, upper=commit.version, time_ms=commit.timestamp_ms)
    return (*kept, own)


def _slice_order(slice_: Slice) -> tuple[int, int, int]:
    return slice_.epochs.lower, slice_.index, slice_.live.first


def _in_order(kept: tuple[Slice, ...], new: tuple[Slice, ...]) -> tuple[Slice, ...]:
    """Return slices in their order, of which ``kept`` have it: those of an epoch come last."""
    new = tuple(sorted(new, key=_slice_order))
    if not (kept and new) or _slice_order(kept[-1]) <= _slice_order(new[0]):
        return kept + new
    return tuple(sorted(kept + new, key=_slice_order))


def is_applicable(manifest: Manifest, taken: Iterable[Taken]) -> bool:
    """Return whether all ranges that a compaction takes away are still live."""
    live: dict[str, list[HashRange]] = {}
    for slice_ in manifest.slices:
        live.setdefault(slice_.file.path, []).append(slice_.live)
    return all(any(own.covers(t.hash_range) for own in live.get(t.path, ())) for t in taken)


def _without(slices: tuple[Slice, ...], taken: tuple[Taken, ...]) -> tuple[Slice, ...]:
    """Take ranges of hashes away from slices; what is left of a slice may be two, in its place."""
    if not taken:  # As of every epoch: a table without compactions has a slice of each.
        return slices
    by_path: dict[str, list[HashRange]] = {}
    for each in taken:
        by_path.setdefault(each.path, []).append(each.hash_range)
    left: list[Slice] = []
    for slice_ in slices:
        pieces = [slice_]
        for gone in by_path.get(slice_.file.path, ()):
            pieces = [rest for piece in pieces for rest in _cut(piece, gone)]
        left += pieces
    return tuple(left)


def _cut(slice_: Slice, gone: HashRange) -> list[Slice]:
    if not slice_.live.overlaps(gone):
        return [slice_]
    pieces = (replace(slice_, live=rest) for rest in slice_.live.without(gone))
    return [piece for piece in pieces if not piece.occupied.is_empty]
