"""The JSON form of commits and manifests, and the names of log objects (docs/format.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from spark_upsert.core.key_hash import HashRange
from spark_upsert.core.precedence import Epoch, Interval
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import CorruptionError, TableNotFoundError, setting
from spark_upsert.store import Store
from spark_upsert.store.records import (
    FORMAT_VERSION,
    counted,
    numbers,
    optional,
    read_record,
    text,
    texts,
    whole,
)
from spark_upsert.table.log.manifest import (
    Commit,
    Kind,
    Manifest,
    RemovedRange,
    Repair,
    Slice,
    Transaction,
    fingerprints,
)
from spark_upsert.table.log.slices import LEAF_FIELDS, ROW, Leaf, LeafFile, SliceRows
from spark_upsert.table.run.file import RunFile

TIME_MS_MAX = 253_402_300_800_000
"""The year 10 000, the upper bound for times in the log, in ms since 1970."""


def commit_to_json(commit: Commit) -> dict[str, Any]:
    """Return the log record for a commit."""
    record: dict[str, Any] = {
        "format": FORMAT_VERSION,
        "version": commit.version,
        "kind": commit.kind.value,
        "timestamp_ms": commit.timestamp_ms,
        "token": commit.token,
        "previous": commit.previous,
        "live_rows": commit.live_rows,
    }
    if commit.unknown_rows is not None:
        record["unknown_rows"] = commit.unknown_rows
    if commit.schema is not None:
        record["schema"] = commit.schema.to_json()
    if commit.transactions:
        record["transactions"] = {
            transaction.writer: transaction.number for transaction in commit.transactions
        }
    if commit.added:
        record["added"] = [file.to_json() for file in commit.added]
    if commit.compacted:
        record["compacted"] = [slice_to_json(slice_) for slice_ in commit.compacted]
    if commit.restored is not None:
        record["restored"] = commit.restored
    if commit.taken:
        record["taken"] = [[slice_.path, *slice_.hash_range.to_json()] for slice_ in commit.taken]
    if commit.counters:
        record["counters"] = dict(commit.counters)
    if commit.properties is not None:
        record["properties"] = dict(commit.properties)
    if commit.low_water is not None:
        record["low_water"] = commit.low_water
    if commit.kind is Kind.EXPIRE:
        record["since"] = commit.since
        record["fence"] = commit.fence
    if commit.writers_before_ms:
        record["writers_before_ms"] = commit.writers_before_ms
    if commit.wrong_from is not None:
        record["wrong_from"] = commit.wrong_from
    if commit.committer:
        record["committer"] = commit.committer
    return record


def commit_from_json(record: dict[str, Any]) -> Commit:
    """Rebuild a commit from its log record."""
    return Commit(
        version=whole(record["version"]),
        kind=Kind(record["kind"]),
        timestamp_ms=whole(record["timestamp_ms"], most=TIME_MS_MAX),
        token=text(record["token"]),
        previous=text(record["previous"]),
        schema=optional(TableSchema.from_json, record.get("schema")),
        transactions=tuple(
            Transaction(writer=text(writer), number=whole(number))
            for writer, number in record.get("transactions", {}).items()
        ),
        added=tuple(RunFile.from_json(file) for file in record.get("added", ())),
        compacted=tuple(slice_from_json(slice_) for slice_ in record.get("compacted", ())),
        restored=optional(whole, record.get("restored")),
        taken=tuple(
            RemovedRange(path=text(path), hash_range=HashRange.from_json(bounds))
            for path, *bounds in record.get("taken", ())
        ),
        counters=numbers(record.get("counters", {})),
        live_rows=counted(record["live_rows"]),
        unknown_rows=optional(counted, record.get("unknown_rows")),
        properties=optional(texts, record.get("properties")),
        low_water=optional(text, record.get("low_water")),
        since=whole(record.get("since", 0)),
        fence=whole(record.get("fence", 0)),
        writers_before_ms=whole(record.get("writers_before_ms", 0), most=TIME_MS_MAX),
        wrong_from=optional(whole, record.get("wrong_from")),
        committer=text(record.get("committer", "")),
    )


def commits_to_json(commits: Sequence[Commit]) -> dict[str, Any]:
    """Return the log record for the last commit; it repeats the others, the versions before it."""
    *recent, commit = commits
    record = commit_to_json(commit)
    if recent:
        record["recent"] = [commit_to_json(each) for each in recent]
    return record


def commits_from_json(record: dict[str, Any]) -> list[Commit]:
    """Rebuild a record's commit, after the earlier ones that it repeats."""
    commits = [*map(commit_from_json, record.get("recent", ())), commit_from_json(record)]
    for earlier, later in pairwise(commits):
        if (earlier.version + 1, earlier.token) != (later.version, later.previous):
            raise ValueError(f"version {later.version} does not continue version {earlier.version}")
    return commits


def manifest_to_json(manifest: Manifest) -> dict[str, Any]:
    """Return the checkpoint record for a manifest."""
    unknown = {"unknown_rows": manifest.unknown_rows} if manifest.unknown_rows else {}
    return {
        "format": FORMAT_VERSION,
        "version": manifest.version,
        "timestamp_ms": manifest.timestamp_ms,
        "schema": manifest.schema.to_json(),
        "slices": [slice_to_json(slice_) for slice_ in manifest.slices],
        "transactions": {
            writer: [number, manifest.written_ms[writer]]
            for writer, number in manifest.transactions.items()
        },
        "forgotten": "".join(sorted(manifest.forgotten)),
        "repairs": [[r.lower, r.upper, r.time_ms] for r in manifest.repairs],
        "live_rows": manifest.live_rows,
        **unknown,
        "properties": dict(manifest.properties),
        "low_water": manifest.low_water,
        "forgot": manifest.forgot,
        "changed": manifest.changed,
        "token": manifest.token,
        "table_id": manifest.table_id,
        "since": manifest.since,
        "fence": manifest.fence,
    }


def manifest_from_json(record: dict[str, Any]) -> Manifest:
    """Rebuild a manifest from its checkpoint record."""
    writers = record["transactions"]
    return Manifest(
        version=whole(record["version"]),
        timestamp_ms=whole(record["timestamp_ms"], most=TIME_MS_MAX),
        schema=TableSchema.from_json(record["schema"]),
        slices=tuple(slice_from_json(slice_) for slice_ in record["slices"]),
        transactions={text(w): whole(number) for w, (number, _) in writers.items()},
        written_ms={text(w): whole(time, most=TIME_MS_MAX) for w, (_, time) in writers.items()},
        forgotten=fingerprints(record["forgotten"]),
        repairs=tuple(
            Repair(lower=whole(lower), upper=whole(upper), time_ms=whole(time))
            for lower, upper, time in record["repairs"]
        ),
        live_rows=counted(record["live_rows"]),
        unknown_rows=counted(record.get("unknown_rows", 0)),
        properties=texts(record.get("properties", {})),
        low_water=optional(text, record.get("low_water")),
        forgot=whole(record.get("forgot", 0)),
        changed=whole(record.get("changed", record["version"])),
        token=text(record["token"]),
        table_id=text(record["table_id"]),
        since=whole(record.get("since", 0)),
        fence=whole(record.get("fence", 0)),
    )


CHECKPOINT_FORMAT = 3
"""Format of a checkpoint with leaves; one with slices has `FORMAT_VERSION`."""

LEAVES = "_manifest"
"""Folder for leaves."""

_LEAF = re.compile(LEAVES + r"/\d{20}-[0-9a-f]{32}\.arrow")


def leaf_path(version: int, digest: str) -> str:
    """Return the path for a leaf made by a version; ``digest`` has 32 hexadecimal digits."""
    return f"{LEAVES}/{version:020d}-{digest}.arrow"


def is_leaf_path(path: str) -> bool:
    """Return whether our writers create such leaf names, so a vacuum may remove the file."""
    return _LEAF.fullmatch(path) is not None


def checkpoint_to_json(manifest: Manifest, files: Sequence[LeafFile]) -> dict[str, Any]:
    """Return the checkpoint record for a manifest with leaves; its other fields are the same."""
    record = manifest_to_json(replace(manifest, slices=()))
    del record["slices"]
    leaves = [[f.path, f.slices, f.bytes, f"{f.crc:08x}", *f.span.to_json()] for f in files]
    return {**record, "format": CHECKPOINT_FORMAT, "leaves": leaves}


def checkpoint_from_json(record: dict[str, Any]) -> tuple[Manifest, tuple[LeafFile, ...]]:
    """Decode a checkpoint: the manifest without the leaves' slices, and the leaves."""
    if record.get("format") != CHECKPOINT_FORMAT:
        return manifest_from_json(record), ()
    leaves = tuple(_leaf_file(*fields) for fields in record["leaves"])
    return manifest_from_json({**record, "slices": ()}), leaves


def _leaf_file(path: Any, slices: Any, size: Any, crc: Any, *span: Any) -> LeafFile:
    if not is_leaf_path(text(path)):
        raise ValueError(f"{path!r:.80} is no path of a leaf")
    return LeafFile(
        path=path,
        slices=whole(slices, least=1),
        bytes=whole(size, least=1),
        crc=whole(int(text(crc), 16), most=2**32 - 1),
        span=HashRange.from_json(span),
    )


_IRREGULAR = "slice"
"""Column with the JSON form of slices not representable as records; absent if there are none."""


def leaf_to_arrow(leaf: Leaf) -> bytes:
    """Return a leaf as an Arrow stream with one batch: the fields of `slices.ROW`."""
    columns = {name: pa.array(np.ascontiguousarray(leaf.rows[name])) for name in LEAF_FIELDS}
    if leaf.irregular is not None:
        texts = [
            None if slice_ is None else json.dumps(slice_to_json(slice_), separators=(",", ":"))
            for slice_ in leaf.irregular
        ]
        columns[_IRREGULAR] = pa.array(texts, pa.string())
    batch = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def leaf_from_arrow(data: bytes) -> Leaf:
    """Decode a leaf; raises one of `MALFORMED`."""
    batches = list(pa.ipc.open_stream(data))
    if len(batches) != 1:
        raise ValueError(f"{len(batches)} batches in place of one")
    batch = batches[0]
    rows = np.zeros(batch.num_rows, ROW)
    for name in LEAF_FIELDS:
        column = batch.column(name)
        if column.type != pa.from_numpy_dtype(ROW[name]) or column.null_count:
            raise ValueError(f"the column '{name}' has nulls or another type")
        rows[name] = column.to_numpy()
    irregular = None
    is_regular = np.ones(len(rows), np.bool_)
    if _IRREGULAR in batch.schema.names:
        irregular = np.array(
            [
                None if item is None else slice_from_json(json.loads(text(item)))
                for item in batch.column(_IRREGULAR).to_pylist()
            ],
            np.object_,
        )
        is_regular = np.array([item is None for item in irregular])
        odd = Leaf.of([item for item in irregular if item is not None])
        if not np.array_equal(odd.rows, rows[~is_regular]):
            raise ValueError("a slice with another record")
    _require_valid(rows[is_regular])
    return Leaf(rows, irregular)


def _require_valid(rows: SliceRows) -> None:
    """Raise for a record that `slice_from_json` would refuse."""
    pairs = [("one", "rows"), ("tombstones", "rows"), ("errors", "rows"), ("tail_bytes", "bytes")]
    pairs += [("hash_first", "hash_last"), ("live_first", "live_last"), ("lower", "upper")]
    pairs += [(name, "most") for name in ("rows", "bytes", "upper", "index")]
    pairs += [("is_held", "one")]
    limits = {"one": np.uint64(1), "most": np.uint64(2**63 - 1)}
    for least, most in pairs:
        lower = limits[least] if least in limits else rows[least]
        upper = limits[most] if most in limits else rows[most]
        if not (lower <= upper).all():
            raise ValueError(f"a slice with '{least}' above '{most}'")


def slice_to_json(slice_: Slice) -> dict[str, Any]:
    """Return the checkpoint record for a slice."""
    record = {
        **slice_.file.to_json(),
        "live": slice_.live.to_json(),
        "epochs": [slice_.epochs.lower, slice_.epochs.upper],
        "index": slice_.index,
    }
    return {**record, "held": True} if slice_.is_held else record


def slice_from_json(record: dict[str, Any]) -> Slice:
    """Rebuild a slice from its checkpoint record."""
    lower, upper = record["epochs"]
    return Slice(
        file=RunFile.from_json(record),
        live=HashRange.from_json(record["live"]),
        epochs=Interval(lower=Epoch(whole(lower)), upper=Epoch(whole(upper))),
        index=whole(record["index"]),
        is_held=record.get("held", False) is True,
    )


FOLDER = "_log"
HINT_PATH = f"{FOLDER}/_last_checkpoint"

_GROUP = "_group"
"""The group table's folder below the root of a routed write (`routed.group`)."""

_DELTA_LOG = "_delta_log"

_ENTRY = re.compile(FOLDER + r"/(\d{20})(\.checkpoint)?\.json")


def commit_path(version: int) -> str:
    """Return the path for a version's commit."""
    return f"{FOLDER}/{version:020d}.json"


def checkpoint_path(version: int) -> str:
    """Return the path for a version's checkpoint, whether or not it exists."""
    return f"{FOLDER}/{version:020d}.checkpoint.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One object in the log: the commit or the checkpoint for a version."""

    version: int
    path: str
    is_checkpoint: bool
    modified_s: float
    """Last write time by the storage's clock, in seconds since 1970."""
    is_link: bool = False
    """Whether the object or its folder is a link; linked files are never removed."""


def entries(store: Store, *, after: str = "") -> list[LogEntry]:
    """Return the commits and checkpoints in the log, the oldest version first."""
    log_entries = []
    for info in store.list(FOLDER, after=after):
        match = _ENTRY.fullmatch(info.path)
        if match is not None:
            entry = LogEntry(
                version=int(match[1]),
                path=info.path,
                is_checkpoint=match[2] is not None,
                modified_s=info.modified_s,
                is_link=info.is_link,
            )
            log_entries.append(entry)
    return sorted(log_entries, key=lambda e: (e.version, e.is_checkpoint))


def require_no_rest(store: Store) -> None:
    """Raise if the log has other versions but no version 0."""
    remaining = [entry for entry in entries(store) if entry.version]
    # Read after the listing: another process may create the table between two requests.
    if remaining and read_record(store, commit_path(0), commit_from_json) is None:
        path = f"{store.url}/{commit_path(0)}"
        raise CorruptionError(
            f"'{store.url}' holds the rest of a table: its log has '{remaining[0].path}' and "
            f"{len(remaining) - 1} further objects, but not '{path}'. Nothing was written.",
            hint=f"restore '{path}' from a copy; or finish the copy or the removal of that table, "
            "or choose another path.",
            path=path,
        )


def no_table(store: Store, *, may_wait: bool = False) -> TableNotFoundError:
    """Return the error for a path without a table; it names a routed root or a Delta table there.

    Users confuse such paths with the paths to their tables. Costs two requests, only if a table is
    missing.
    """
    path = store.url
    if _is_root(store):
        return TableNotFoundError(
            f"'{path}' is no table, but the root of those that one stream writes.",
            hint=f"read one of them by its own path ('upsertflow tables {path}' lists them), or "
            f"all with {setting('inputsPattern', '*')}.",
            path=path,
        )
    if next(iter(store.list(_DELTA_LOG)), None) is not None:
        return TableNotFoundError(
            f"at '{path}' lies a Delta table, and none of upsertflow.",
            hint="read it with the format 'delta', or by delta-rs, Polars or DuckDB. If it is the "
            "mirror of a table, give the path of that table.",
            path=path,
        )
    return TableNotFoundError.at(path, may_wait=may_wait)


def _is_root(store: Store) -> bool:
    try:
        store.read(f"{_GROUP}/{commit_path(0)}")
    except FileNotFoundError:
        return False
    return True
