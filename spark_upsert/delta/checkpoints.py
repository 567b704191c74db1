"""Delta log checkpoints and checksums, and their decoding.

Tombstones are many and stay columns: a checkpoint takes the previous one's and adds newer ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_upsert.delta.actions import (
    APP,
    TOKEN_APP,
    DeltaAction,
    DeltaState,
    MirroredVersion,
    encode_commit,
    parse_commit,
)
from spark_upsert.errors import CorruptionError
from spark_upsert.store import Store
from spark_upsert.store.records import checked_data

HINT_PATH = "_delta_log/_last_checkpoint"

CHECKSUM = re.compile(r"_delta_log/(\d{20})\.crc")
"""Matches checksum paths."""

_MAP = pa.map_(pa.string(), pa.string())
_VECTOR = pa.struct(
    {
        "storageType": pa.string(),
        "pathOrInlineDv": pa.string(),
        "offset": pa.int32(),
        "sizeInBytes": pa.int32(),
        "cardinality": pa.int64(),
    }
)
_ADD = pa.struct(
    {
        "path": pa.string(),
        "partitionValues": _MAP,
        "size": pa.int64(),
        "modificationTime": pa.int64(),
        "dataChange": pa.bool_(),
        "stats": pa.string(),
        "tags": _MAP,
        "deletionVector": _VECTOR,
    }
)
_REMOVE = pa.struct(
    {
        "path": pa.string(),
        "deletionTimestamp": pa.int64(),
        "dataChange": pa.bool_(),
        "extendedFileMetadata": pa.bool_(),
        "partitionValues": _MAP,
        "size": pa.int64(),
        "deletionVector": _VECTOR,
    }
)
_TXN = pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()})
_METADATA = pa.struct(
    {
        "id": pa.string(),
        "format": pa.struct({"provider": pa.string(), "options": _MAP}),
        "schemaString": pa.string(),
        "partitionColumns": pa.list_(pa.string()),
        "configuration": _MAP,
        "createdTime": pa.int64(),
    }
)
_PROTOCOL = pa.struct(
    {
        "minReaderVersion": pa.int32(),
        "minWriterVersion": pa.int32(),
        "readerFeatures": pa.list_(pa.string()),
        "writerFeatures": pa.list_(pa.string()),
    }
)


def checkpoint_path(version: int) -> str:
    """Return the checkpoint path for a version."""
    return f"_delta_log/{version:020d}.checkpoint.parquet"


def write_checkpoint(store: Store, state: DeltaState, tombstones: pa.Array, *, now_ms: int) -> None:
    """Write a state's checkpoint, then the hint to it."""
    pieces = {
        "protocol": pa.array([state.protocol], _PROTOCOL),
        "metaData": pa.array([_with_pairs(state.metadata)], _METADATA),
        "txn": pa.array(_transactions(state.shown, now_ms), _TXN),
        "add": pa.array([_to_add_row(action) for action in state.live.values()], _ADD),
        "remove": tombstones,
    }
    table = _stack_actions(pieces)

    def encode() -> bytes:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", store_schema=False)
        data: bytes = sink.getvalue().to_pybytes()
        return data

    files = table.select(["add", "remove"])
    actions = table.num_rows - len(pieces["add"]) - len(tombstones)

    def decode(data: bytes) -> tuple[DeltaState, pa.Table]:
        # Files are compared as columns: ten thousand of them take half a second as objects.
        read = _read(data, table.column_names)
        return _state_of(read.slice(0, actions), state.version), read.select(files.column_names)

    record = checked_data(
        checkpoint_path(state.version), (_without_files(state), files), encode, decode
    )
    record.put(store)
    hint = {
        "version": state.version,
        "size": table.num_rows,
        "sizeInBytes": len(record.data),
        "numOfAddFiles": len(state.live),
    }
    checked_data(
        HINT_PATH,
        state.version,
        lambda: json.dumps(hint, separators=(",", ":")).encode(),
        hinted_version,
    ).put(store)


def hinted_version(data: bytes) -> int:
    """Return a hint's version; raises ValueError, KeyError or TypeError."""
    return max(0, int(json.loads(data)["version"]))


def _without_files(state: DeltaState) -> DeltaState:
    """Return a state as its checkpoint stores it, without the live files."""
    metadata = {name: state.metadata.get(name) for name in (field.name for field in _METADATA)}
    protocol = {field.name: state.protocol.get(field.name) for field in _PROTOCOL}
    return DeltaState(
        version=state.version,
        shown=state.shown,
        protocol={name: value for name, value in protocol.items() if value is not None},
        metadata=_restore_maps(metadata),
        checkpoint=state.version,
    )


def checksum_path(version: int) -> str:
    """Return the checksum path for a version."""
    return f"_delta_log/{version:020d}.crc"


def checksum_fields(state: DeltaState) -> dict[str, Any]:
    """Return a version's checksum fields.

    Application transactions are omitted: those for tables mirrored here earlier are unknown, and a
    partial list would be worse than none. The protocol requires neither them, histograms, nor the
    file list, and no tested reader uses them.
    """
    vectors = [add["deletionVector"] for add in state.live.values() if add.get("deletionVector")]
    return {
        "txnId": state.last_id,
        "tableSizeBytes": sum(add["size"] for add in state.live.values()),
        "numFiles": len(state.live),
        "numDeletedRecordsOpt": sum(vector["cardinality"] for vector in vectors),
        "numDeletionVectorsOpt": len(vectors),
        "numMetadata": 1,
        "numProtocol": 1,
        "inCommitTimestampOpt": state.time_ms,
        "metadata": state.metadata,
        "protocol": state.protocol,
    }


def write_checksum(store: Store, state: DeltaState) -> None:
    """Write the checksum for a state after our own commit.

    Without it Spark runs a job to read protocol and metadata. A wrong one would show a wrong table,
    so `check_mirror` compares it.
    """
    sums: list[DeltaAction] = [checksum_fields(state)]
    checked_data(checksum_path(state.version), sums, lambda: encode_commit(sums), parse_commit).put(
        store
    )


def recent_tombstones(
    store: Store, checkpoint: int | None, removed: Sequence[DeltaAction], *, since_ms: int
) -> pa.Array:
    """Return the next checkpoint's tombstones: those since `since_ms`."""
    fields = [field.name for field in _REMOVE]
    records = [{name: action.get(name) for name in fields} for action in removed]
    for record in records:
        record["partitionValues"] = list((record["partitionValues"] or {}).items())
    columns = [pa.array(records, _REMOVE)]
    if checkpoint is not None:
        [old] = _read(store.read(checkpoint_path(checkpoint)), ["remove"]).columns
        held = pa.concat_arrays(old.chunks) if old.num_chunks else pa.array([], _REMOVE)
        columns.insert(0, _cast(held.drop_null(), _REMOVE))
    both = pa.concat_arrays(columns)
    return both.filter(pc.greater_equal(both.field("deletionTimestamp"), since_ms))


def stored_vectors(tombstones: pa.Array) -> list[DeltaAction]:
    """Return the tombstones' deletion vectors stored in files."""
    vectors = tombstones.field("deletionVector")
    in_files = pc.fill_null(pc.equal(vectors.field("storageType"), "u"), False)
    actions: list[DeltaAction] = vectors.filter(in_files).to_pylist()
    return actions


def read_checkpoint(store: Store, version: int) -> DeltaState:
    """Read a checkpoint's state, which has no timestamps and no external commits."""
    data = store.read(checkpoint_path(version))  # Failing storage is no damage.
    try:
        return _state_of(_read(data, ["protocol", "metaData", "txn", "add"]), version)
    except (pa.ArrowException, ValueError, KeyError, TypeError, OSError) as error:
        raise CorruptionError.in_file(
            f"{store.url}/{checkpoint_path(version)}", "a checkpoint of Delta", repr(error)
        ) from error


def _state_of(actions: pa.Table, version: int) -> DeltaState:
    """Build the state from a checkpoint's actions."""
    rows = {name: _rows(actions[name]) for name in ("protocol", "metaData", "txn", "add")}
    [protocol], [metadata] = rows["protocol"], rows["metaData"]
    live = [_to_add_fields(action) for action in rows["add"]]
    return DeltaState(
        version=version,
        shown=_find_shown_version(rows["txn"]),
        live={action["path"]: action for action in live},
        protocol={name: value for name, value in protocol.items() if value is not None},
        metadata=_restore_maps(metadata),
        checkpoint=version,
    )


def _read(data: bytes, names: list[str]) -> pa.Table:
    return pq.read_table(pa.BufferReader(data), columns=names).select(names)


def _rows(column: pa.ChunkedArray) -> list[dict[str, Any]]:
    return [
        row for row in column.drop_null().to_pylist() if any(v is not None for v in row.values())
    ]


def _stack_actions(pieces: Mapping[str, pa.Array]) -> pa.Table:
    """Return one row per action, with null in the other actions' columns."""
    count, at, columns = sum(map(len, pieces.values())), 0, {}
    for name, piece in pieces.items():
        before, after_part = pa.nulls(at, piece.type), pa.nulls(count - at - len(piece), piece.type)
        columns[name] = pa.concat_arrays([before, piece, after_part])
        at += len(piece)
    return pa.table(columns)


def _transactions(shown: MirroredVersion | None, now_ms: int) -> list[dict[str, Any]]:
    if shown is None:
        return []
    numbers = [(APP, shown.version), *([] if shown.token is None else [(TOKEN_APP, shown.token)])]
    return [
        {"appId": f"{app}{shown.table_id}", "version": number, "lastUpdated": now_ms}
        for app, number in numbers
    ]


def _find_shown_version(transactions: Iterable[Mapping[str, Any]]) -> MirroredVersion | None:
    """Return the shown version: the most recently updated table's; None if there is none."""
    numbers = {transaction["appId"]: transaction["version"] for transaction in transactions}
    own_transactions = [
        transaction for transaction in transactions if transaction["appId"].startswith(APP)
    ]
    if not own_transactions:
        return None
    last = max(own_transactions, key=lambda each: each["lastUpdated"] or 0)
    table_id = last["appId"].removeprefix(APP)
    token = numbers.get(f"{TOKEN_APP}{table_id}")
    return MirroredVersion(table_id=table_id, version=last["version"], token=token)


def _to_add_row(add: DeltaAction) -> dict[str, Any]:
    """Return a live file as a checkpoint row, without a data change."""
    names = ("path", "size", "modificationTime", "stats", "deletionVector")
    return {
        **{name: add.get(name) for name in names},
        "partitionValues": list((add.get("partitionValues") or {}).items()),
        "dataChange": False,
    }


def _to_add_fields(add: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint row as `add` fields.

    An empty map reads as an empty list, and a missing vector possibly as a struct of nulls.
    """
    present = {name: value for name, value in add.items() if value is not None}
    present["partitionValues"] = dict(add.get("partitionValues") or {})
    vector = add.get("deletionVector") or {}
    present.pop("deletionVector", None)
    if vector.get("storageType") is not None:
        vector_fields = {name: value for name, value in vector.items() if value is not None}
        present["deletionVector"] = vector_fields
    return present


def _with_pairs(metadata: DeltaAction) -> dict[str, Any]:
    """Return metadata with maps as lists of pairs, as Arrow expects them."""
    return {
        **metadata,
        "format": {
            "provider": metadata["format"]["provider"],
            "options": list((metadata["format"].get("options") or {}).items()),
        },
        "configuration": list((metadata.get("configuration") or {}).items()),
    }


def _restore_maps(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint's metadata in the form used by commits."""
    present = {name: value for name, value in metadata.items() if value is not None}
    form = present.get("format") or {}
    present["format"] = {
        "provider": form.get("provider"),
        "options": dict(form.get("options") or {}),
    }
    present["configuration"] = dict(present.get("configuration") or {})
    return present


def _cast(column: pa.Array, type_: pa.StructType) -> pa.Array:
    """Cast a struct to a struct type; missing fields become null."""
    index_by_name = {column.type.field(i).name: i for i in range(column.type.num_fields)}
    parts = [
        _member(column.field(index_by_name[field.name]), field.type)
        if field.name in index_by_name
        else pa.nulls(len(column), field.type)
        for field in type_
    ]
    return pa.StructArray.from_arrays(parts, fields=list(type_))


def _member(column: pa.Array, type_: pa.DataType) -> pa.Array:
    if pa.types.is_struct(type_):
        mask = column.is_null()
        cast = _cast(column, type_)
        return pa.StructArray.from_arrays(cast.flatten(), fields=list(type_), mask=mask)
    return column.cast(type_)
