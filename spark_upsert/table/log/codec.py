"""How commits and manifests stand in the log: as JSON, each field within its bounds."""

from __future__ import annotations

from typing import Any

from spark_upsert.model.epochs import Epoch, Interval
from spark_upsert.model.hash_range import HashRange
from spark_upsert.model.schema import TableSchema
from spark_upsert.store.records import (
    FORMAT_VERSION,
    counted,
    numbers,
    optional,
    text,
    texts,
    whole,
)
from spark_upsert.table.log.manifest import (
    Commit,
    Kind,
    Manifest,
    Repair,
    Slice,
    Taken,
    Transaction,
    fingerprints,
)
from spark_upsert.table.run.file import RunFile

TIME_MS_MAX = 253_402_300_800_000
"""The year 10 000, which clocks and calendars do not reach."""


def commit_to_json(commit: Commit) -> dict[str, Any]:
    """Return the form that stands in the log."""
    record: dict[str, Any] = {
        "format": FORMAT_VERSION,
        "version": commit.version,
        "kind": commit.kind.value,
        "timestamp_ms": commit.timestamp_ms,
        "token": commit.token,
        "previous": commit.previous,
        "live_rows": commit.live_rows,
    }
    if commit.schema is not None:
        record["schema"] = commit.schema.to_json()
    if commit.transactions:
        record["transactions"] = {each.writer: each.number for each in commit.transactions}
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
    return record


def commit_from_json(record: dict[str, Any]) -> Commit:
    """Rebuild a commit from its form in the log."""
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
            Taken(path=text(path), hash_range=HashRange.from_json(bounds))
            for path, *bounds in record.get("taken", ())
        ),
        counters=numbers(record.get("counters", {})),
        live_rows=counted(record["live_rows"]),
        properties=optional(texts, record.get("properties")),
        low_water=optional(text, record.get("low_water")),
        since=whole(record.get("since", 0)),
        fence=whole(record.get("fence", 0)),
        writers_before_ms=whole(record.get("writers_before_ms", 0), most=TIME_MS_MAX),
        wrong_from=optional(whole, record.get("wrong_from")),
    )


def manifest_to_json(manifest: Manifest) -> dict[str, Any]:
    """Return the form of a checkpoint."""
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
    """Rebuild a manifest from a checkpoint."""
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
        properties=texts(record.get("properties", {})),
        low_water=optional(text, record.get("low_water")),
        forgot=whole(record.get("forgot", 0)),
        changed=whole(record.get("changed", record["version"])),
        token=text(record["token"]),
        table_id=text(record["table_id"]),
        since=whole(record.get("since", 0)),
        fence=whole(record.get("fence", 0)),
    )


def slice_to_json(slice_: Slice) -> dict[str, Any]:
    """Return the form that stands in a checkpoint."""
    record = {
        **slice_.file.to_json(),
        "live": slice_.live.to_json(),
        "epochs": [slice_.epochs.lower, slice_.epochs.upper],
        "index": slice_.index,
    }
    return {**record, "held": True} if slice_.is_held else record


def slice_from_json(record: dict[str, Any]) -> Slice:
    """Rebuild a slice from its form in a checkpoint."""
    lower, upper = record["epochs"]
    return Slice(
        file=RunFile.from_json(record),
        live=HashRange.from_json(record["live"]),
        epochs=Interval(lower=Epoch(whole(lower)), upper=Epoch(whole(upper))),
        index=whole(record["index"]),
        is_held=record.get("held", False) is True,
    )
