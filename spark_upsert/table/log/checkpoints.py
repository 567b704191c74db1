"""Checkpoints: every `CHECKPOINT_EVERY` versions the manifest is written down, a pure shortcut.

Without any checkpoint the log reads the same. ``_log/_last_checkpoint`` is a hint that may be old
or absent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import compress
from typing import Any

from spark_upsert.errors import CorruptionError
from spark_upsert.store import Store
from spark_upsert.store.records import checked_data, checked_record, encode, read_record, whole
from spark_upsert.table.log.codec import manifest_from_json, manifest_to_json
from spark_upsert.table.log.entries import HINT_PATH, checkpoint_path
from spark_upsert.table.log.manifest import Manifest, Slice

CHECKPOINT_EVERY = 50
"""Versions between checkpoints: a fresh reader replays at most this many small objects."""


def last_due(version: int) -> int:
    """Return the newest version up to one that has a checkpoint, if none failed."""
    return version - version % CHECKPOINT_EVERY


def read_checkpoint(store: Store, version: int) -> Manifest | None:
    """Return the manifest that a checkpoint holds, if there is one of this version."""
    path = checkpoint_path(version)
    manifest = read_record(store, path, manifest_from_json)
    if manifest is not None and manifest.version != version:
        raise CorruptionError.in_file(
            f"{store.url}/{path}", f"version {version}", f"version {manifest.version}"
        )
    return manifest


def newest_up_to(store: Store, version: int) -> Manifest | None:
    """Return the newest checkpoint at or below a version, if there is any."""
    for candidate in range(last_due(version), 0, -CHECKPOINT_EVERY):
        manifest = read_checkpoint(store, candidate)
        if manifest is not None:
            return manifest
    return None


def last_checkpoint(store: Store) -> Manifest | None:
    """Return the checkpoint that the hint names, or None: then the log is read without."""
    version = hinted(store)
    return None if version is None else read_checkpoint(store, version)


def hinted(store: Store) -> int | None:
    """Return the version of a checkpoint that is there, or was."""
    try:
        return read_record(store, HINT_PATH, _hinted_version)
    except CorruptionError:
        return None  # Only a shortcut is lost.


def write_checkpoint(store: Store, manifest: Manifest, checked: Iterable[Slice] = ()) -> None:
    """Write the checkpoint of a version.

    Parameters
    ----------
    checked : iterable of Slice
        Slices in an earlier checkpoint of this process. The same objects are not decoded a second
        time: few of many slices change between two checkpoints, and decoding one takes three times
        as long as encoding it.
    """
    record = manifest_to_json(manifest)
    known = {id(slice_) for slice_ in checked}
    is_new = [id(slice_) not in known for slice_ in manifest.slices]
    part = {**record, "slices": list(compress(record["slices"], is_new))}
    checked_data(
        checkpoint_path(manifest.version),
        replace(manifest, slices=tuple(compress(manifest.slices, is_new))),
        lambda: encode(record),
        lambda _: manifest_from_json(json.loads(encode(part))),
    ).put(store)


def hint_at(store: Store, version: int) -> None:
    """Let the hint name the checkpoint of a version."""
    checked_record(HINT_PATH, version, {"version": version}, _hinted_version).put(store)


def _hinted_version(record: Mapping[str, Any]) -> int:
    return whole(record["version"])
