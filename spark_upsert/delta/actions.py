"""Delta commit actions, and their folded state (`DeltaState`).

``state(n) = apply_commit(state(n - 1), actions of n)``. Application transactions name the shown
version and its token; a commit touching files without them is external.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from spark_upsert._version import __version__
from spark_upsert.delta.types import has_plain_times, schema_text
from spark_upsert.table.log.manifest import TableVersion

DeltaAction: TypeAlias = Mapping[str, Any]
"""One line in a commit: an action's name and its fields."""

APP = "upsertflow:"
TOKEN_APP = "upsertflow-token:"

GUARD = "upsertflow"
"""Table feature unknown to Delta: conforming writers reject the table; readers ignore it."""

_FEED = "delta.enableChangeDataFeed"
RETENTION = "delta.deletedFileRetentionDuration"

_TOUCHES = frozenset({"add", "remove", "cdc", "protocol", "metaData"})
"""Actions changing the table for readers."""


def token_number(token: str) -> int:
    """Return a version token's hash as a 63-bit integer, which fits a `txn`."""
    digest = hashlib.blake2b(token.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """A commit by another writer."""

    version: int
    operation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredVersion:
    """A table version as recorded in its mirror's log."""

    table_id: str
    version: int
    token: int | None
    """Result of `token_number`; None if the log has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaState:
    """A Delta log's state at one version."""

    version: int
    shown: MirroredVersion | None = None
    """The table version in the last publication; None if there was none."""
    live: Mapping[str, DeltaAction] = field(default_factory=dict)
    """Each live file's `add` fields, by path."""
    protocol: DeltaAction = field(default_factory=dict)
    metadata: DeltaAction = field(default_factory=dict)
    time_ms: int = 0
    """In-commit timestamp from the last commit with one."""
    last_id: str = ""
    """The last commit's `txnId`; empty if it has none."""
    foreign: Foreign | None = None
    """The first external commit after the last publication."""
    checkpoint: int | None = None
    """Version of the last known checkpoint."""
    removed: tuple[DeltaAction, ...] = ()
    """Fields of the `remove` actions since that checkpoint."""

    @property
    def columns_text(self) -> str:
        """The schema as text from the metadata."""
        return str(self.metadata.get("schemaString", ""))


def apply_commit(
    state: DeltaState | None, version: int, actions: Iterable[DeltaAction]
) -> DeltaState:
    """Return the state after the next commit; pure. Raises ValueError if a version is skipped."""
    new_state = state or DeltaState(version=-1)
    if version != new_state.version + 1:
        raise ValueError(f"version {version} behind version {new_state.version}")
    live, numbers, tokens = dict(new_state.live), dict[str, int](), dict[str, int]()
    protocol, metadata = new_state.protocol, new_state.metadata
    time_ms, last_id, operation = new_state.time_ms, "", "a commit without a name"
    touches, removed = False, list(new_state.removed)
    for action in actions:
        [(name, fields)] = action.items()
        touches |= name in _TOUCHES
        match name:
            case "commitInfo":
                time_ms = int(fields.get("inCommitTimestamp") or time_ms)
                last_id = str(fields.get("txnId") or "")
                operation = str(fields.get("operation") or operation)
            case "txn":
                app, number = fields["appId"], int(fields["version"])
                if app.startswith(TOKEN_APP):
                    tokens[app.removeprefix(TOKEN_APP)] = number
                elif app.startswith(APP):
                    numbers[app.removeprefix(APP)] = number
            case "protocol":
                protocol = fields
            case "metaData":
                metadata = fields
            case "remove":
                live.pop(fields["path"], None)
                removed.append(fields)
            case "add":
                live.pop(fields["path"], None)
                live[fields["path"]] = fields
    shown, foreign = new_state.shown, new_state.foreign
    if numbers:
        # A table taking over a location is the only one shown there from then on.
        [(table_id, number)] = numbers.items()
        shown = MirroredVersion(table_id=table_id, version=number, token=tokens.get(table_id))
        foreign = None
    elif touches and foreign is None:
        foreign = Foreign(version=version, operation=operation)
    return DeltaState(
        version=version,
        shown=shown,
        live=live,
        protocol=protocol,
        metadata=metadata,
        time_ms=time_ms,
        last_id=last_id,
        foreign=foreign,
        checkpoint=new_state.checkpoint,
        removed=tuple(removed),
    )


def parse_commit(data: bytes) -> list[DeltaAction]:
    """Parse a commit's actions; raises ValueError."""
    return [json.loads(line) for line in data.splitlines() if line.strip()]


def encode_commit(actions: Iterable[DeltaAction]) -> bytes:
    """Encode actions as a commit, one line each."""
    lines = (json.dumps(action, separators=(",", ":"), ensure_ascii=False) for action in actions)
    return "\n".join(lines).encode() + b"\n"


# -- actions --------------------------------------------------------------------------------


def commit_info(
    before: int | None,
    place: TableVersion,
    *,
    time_ms: int,
    operation: str,
    id_: str,
) -> DeltaAction:
    """Return a commit's first action, which has the in-commit timestamp."""
    parameters = {"to": str(place.version), "token": place.token}
    if before is not None:
        parameters = {"from": str(before), **parameters}
    return {
        "commitInfo": {
            "timestamp": time_ms,
            "inCommitTimestamp": time_ms,
            "operation": operation,
            "operationParameters": parameters,
            "engineInfo": f"upsertflow/{__version__}",
            "isBlindAppend": False,
            "txnId": id_,
        }
    }


def transaction_actions(place: TableVersion, now_ms: int) -> list[DeltaAction]:
    """Return the actions recording the shown version and its token."""
    return [
        {"txn": {"appId": f"{app}{place.table_id}", "version": number, "lastUpdated": now_ms}}
        for app, number in ((APP, place.version), (TOKEN_APP, token_number(place.token)))
    ]


def build_protocol(columns: pa.Schema, *, guard: bool) -> DeltaAction:
    """Return the required protocol for a mirror with these columns.

    Reader features are as few as possible: each additional one excludes some readers.
    """
    plain_times = ["timestampNtz"] if any(has_plain_times(f.type) for f in columns) else []
    features = ["deletionVectors", "inCommitTimestamp", "changeDataFeed", *plain_times]
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors", *plain_times],
        "writerFeatures": [*features, *([GUARD] if guard else [])],
    }


def build_metadata(
    columns: pa.Schema,
    before: DeltaAction,
    *,
    id_: str,
    now_ms: int,
    retention_ms: int,
    change_feed: bool,
) -> DeltaAction:
    """Return a mirror's metadata; id and creation time stay as in `before`."""
    retention = f"interval {retention_ms // 1000} seconds"
    return {
        "id": before.get("id", id_),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema_text(columns),
        "partitionColumns": [],
        "configuration": {
            "delta.enableDeletionVectors": "true",
            "delta.enableInCommitTimestamps": "true",
            RETENTION: retention,
            "delta.logRetentionDuration": retention,
            **({_FEED: "true"} if change_feed else {}),
        },
        "createdTime": before.get("createdTime", now_ms),
    }


def has_change_feed(metadata: DeltaAction) -> bool:
    """Return whether a table has the change feed enabled."""
    configuration = metadata.get("configuration") or {}
    return str(configuration.get(_FEED, "")).lower() == "true"


def remove_action(add: DeltaAction, *, now_ms: int, data_change: bool) -> DeltaAction:
    """Return the `remove` action for a live file, with its statistics and deletion vector."""
    fields = {
        "path": add["path"],
        "deletionTimestamp": now_ms,
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": add.get("partitionValues") or {},
        "size": add["size"],
    }
    carried = {name: add[name] for name in ("stats", "deletionVector") if add.get(name) is not None}
    return {"remove": {**fields, **carried}}


def add_action(
    path: str,
    *,
    bytes: int,
    written_ms: int,
    stats: str,
    vector: DeltaAction | None,
    data_change: bool,
) -> DeltaAction:
    """Return the `add` action for a file; without deleted rows `vector` is None."""
    fields = {
        "path": path,
        "partitionValues": {},
        "size": bytes,
        "modificationTime": written_ms,
        "dataChange": data_change,
        "stats": stats,
    }
    return {"add": fields if vector is None else {**fields, "deletionVector": vector}}
