"""A reader of Delta tables that shares no code with the mirror: the log is replayed, vectors are
decoded value by value, files are read by pyarrow. It is slow and says no to whatever is strange.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from spark_upsert.store import Store

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"

_TYPES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


class DeltaTable:
    """A Delta table in a store, at one version."""

    def __init__(self, store: Store, version: int | None = None) -> None:
        self.store = store
        self.adds: dict[str, dict[str, Any]] = {}
        self.transactions: dict[str, int] = {}
        self.protocol: dict[str, Any] = {}
        self.metadata: dict[str, Any] = {}
        self.times: list[int] = []
        self.checksums: list[int] = []
        """The versions that have a checksum."""
        self.commits: list[list[dict[str, Any]]] = []
        number = self._begin(version)
        while version is None or number <= version:
            try:
                data = store.read(f"_delta_log/{number:020d}.json")
            except FileNotFoundError:
                assert version is None, f"no version {number}"
                break
            self._apply([json.loads(line) for line in data.decode().splitlines()])
            self._require_checksum(number)
            number += 1
        self.version = number - 1

    def _begin(self, version: int | None) -> int:
        """Begin with the newest checkpoint where version 0 is gone; return the next commit."""
        names = [info.path for info in self.store.list("_delta_log")]
        if not names or f"_delta_log/{0:020d}.json" in names:
            return 0
        found = [int(name[11:31]) for name in names if name.endswith(".checkpoint.parquet")]
        last = max(each for each in found if version is None or each <= version)
        rows = self.checkpoint(last).to_pylist()
        assert all(sum(value is not None for value in row.values()) == 1 for row in rows)
        for row in rows:
            if row["add"] is not None:
                add = {name: value for name, value in row["add"].items() if value is not None}
                vector = add.pop("deletionVector", None)
                if vector is not None:
                    add["deletionVector"] = {n: v for n, v in vector.items() if v is not None}
                self.adds[add["path"]] = {**add, "partitionValues": dict(add["partitionValues"])}
            if row["txn"] is not None:
                self.transactions[row["txn"]["appId"]] = row["txn"]["version"]
            self.protocol = row["protocol"] or self.protocol
            if row["metaData"] is not None:
                told = {name: value for name, value in row["metaData"].items() if value is not None}
                told["format"]["options"] = dict(told["format"]["options"] or ())
                self.metadata = {**told, "configuration": dict(told["configuration"])}
        return last + 1

    def checkpoint(self, version: int) -> pa.Table:
        """Return a checkpoint, one row for each action."""
        data = self.store.read(f"_delta_log/{version:020d}.checkpoint.parquet")
        return pq.read_table(pa.BufferReader(data))

    def _apply(self, actions: list[dict[str, Any]]) -> None:
        self.commits.append(actions)
        assert next(iter(actions[0])) == "commitInfo"
        time = actions[0]["commitInfo"]["inCommitTimestamp"]
        assert not self.times or time > self.times[-1], "times grow"
        self.times.append(time)
        removed = [each["remove"] for each in actions if "remove" in each]
        added = [each["add"] for each in actions if "add" in each]
        for kind in (removed, added):
            assert max(Counter(each["path"] for each in kind).values(), default=1) == 1
        for each in removed:
            own = self.adds.pop(each["path"])
            assert each.get("deletionVector") == own.get("deletionVector"), "of what it removes"
        for each in added:
            assert each["path"] not in self.adds, "a file is live once"
            assert each["partitionValues"] == {}
            self.adds[each["path"]] = each
        for each in actions:
            if "txn" in each:
                self.transactions[each["txn"]["appId"]] = each["txn"]["version"]
            self.protocol = each.get("protocol", self.protocol)
            self.metadata = each.get("metaData", self.metadata)

    def _require_checksum(self, number: int) -> None:
        """Compare the checksum of a version, if it has one, with what the log comes to."""
        try:
            found = json.loads(self.store.read(f"_delta_log/{number:020d}.crc"))
        except FileNotFoundError:
            return
        self.checksums.append(number)
        info = self.commits[-1][0]["commitInfo"]
        cards = [
            add["deletionVector"]["cardinality"]
            for add in self.adds.values()
            if "deletionVector" in add
        ]
        assert found.pop("inCommitTimestampOpt") == info["inCommitTimestamp"]
        assert found.pop("txnId") == info["txnId"]
        assert found.pop("tableSizeBytes") == sum(add["size"] for add in self.adds.values())
        assert found.pop("numFiles") == len(self.adds)
        assert found.pop("numDeletionVectorsOpt") == len(cards)
        assert found.pop("numDeletedRecordsOpt") == sum(cards)
        assert (found.pop("numMetadata"), found.pop("numProtocol")) == (1, 1)
        assert (found.pop("metadata"), found.pop("protocol")) == (self.metadata, self.protocol)
        assert not found, "what no reader of Delta knows"

    @property
    def data_changes(self) -> set[bool]:
        """What the file actions of the last commit say of `dataChange`."""
        kinds = ("add", "remove")
        return {
            each[kind]["dataChange"] for each in self.commits[-1] for kind in kinds if kind in each
        }

    @property
    def has_feed(self) -> bool:
        """Whether the table says that it has a change feed."""
        told = dict(self.metadata["configuration"]).get("delta.enableChangeDataFeed", "false")
        return bool(told == "true")

    def feed(self) -> pa.Table | None:
        """Return the change feed of the last commit; None if it has no file of its own."""
        found = [each["cdc"] for each in self.commits[-1] if "cdc" in each]
        if not found:
            return None
        [cdc] = found
        assert cdc["dataChange"] is False
        assert cdc["partitionValues"] == {}
        data = self.store.read(cdc["path"])
        assert len(data) == cdc["size"]
        rows = pq.read_table(pa.BufferReader(data))
        fields = [*self.schema, pa.field("_change_type", pa.string())]
        assert rows.schema.remove_metadata() == pa.schema(fields)
        return rows

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        fields = json.loads(self.metadata["schemaString"])["fields"]
        return pa.schema([pa.field(each["name"], _type(each["type"])) for each in fields])

    def rows(self) -> pa.Table:
        """Return all rows, in no order."""
        return pa.concat_tables([self.schema.empty_table(), *self._pieces()])

    def dead(self, add: Mapping[str, Any]) -> set[int]:
        """Return the dead rows of a live file."""
        described = add.get("deletionVector")
        if described is None:
            return set()
        found = list(_values(self._vector(described)))
        assert found == sorted(set(found))
        assert len(found) == described["cardinality"] > 0
        return set(found)

    def _pieces(self) -> Iterator[pa.Table]:
        for path, add in self.adds.items():
            data = self.store.read(path)
            assert len(data) == add["size"], path
            file = pq.ParquetFile(pa.BufferReader(data))
            stats = json.loads(add["stats"])
            assert stats["numRecords"] == file.metadata.num_rows
            dead = self.dead(add)
            assert stats["tightBounds"] is (not dead)
            assert max(dead, default=-1) < file.metadata.num_rows
            assert len(dead) < file.metadata.num_rows, "a file without a live row is not named"
            _require_bounds_without_nan(file)
            found = file.read()
            own = [
                _of_type(found.column(field.name), field)
                if field.name in found.column_names
                else pa.nulls(len(found), field.type)
                for field in self.schema
            ]
            live = [at for at in range(len(found)) if at not in dead]
            rows = pa.Table.from_arrays(own, schema=self.schema).take(pa.array(live, pa.int64()))
            _require_within(rows, stats)
            yield rows

    def _vector(self, described: Mapping[str, Any]) -> bytes:
        text, size = described["pathOrInlineDv"], described["sizeInBytes"]
        if described["storageType"] == "i":
            return _bytes(text)[:size]
        assert described["storageType"] == "u"
        name = f"deletion_vector_{UUID(bytes=_bytes(text))}.bin"
        data, at = self.store.read(name), described["offset"]
        assert data[0] == 1
        assert struct.unpack_from(">I", data, at)[0] == size
        vector = data[at + 4 : at + 4 + size]
        assert struct.unpack_from(">I", data, at + 4 + size)[0] == zlib.crc32(vector)
        return vector


def _of_type(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """Return a column that must be of its type: nothing in the table says that types may differ."""
    assert column.type == field.type, f"{field.name}: {column.type} in place of {field.type}"
    return column


def _require_within(rows: pa.Table, stats: Mapping[str, Any]) -> None:
    """Hold live rows against the bounds by which a reader may skip them."""
    for name, least in stats.get("minValues", {}).items():
        for value in rows.column(name).drop_null().to_pylist():
            told = value.isoformat() if hasattr(value, "isoformat") else value
            assert least <= told <= stats["maxValues"][name], f"{name}: {told}"


def _require_bounds_without_nan(file: pq.ParquetFile) -> None:
    """Refuse bounds of floats in a footer: they leave NaN out, and readers skip rows by them."""
    for group in range(file.metadata.num_row_groups):
        for at in range(file.metadata.num_columns):
            chunk = file.metadata.row_group(group).column(at)
            is_float = chunk.physical_type in ("FLOAT", "DOUBLE")
            assert not (is_float and chunk.is_stats_set), f"{chunk.path_in_schema} has bounds"


def _type(text: Any) -> pa.DataType:
    if isinstance(text, str):
        if text.startswith("decimal("):
            precision, scale = text[8:-1].split(",")
            return pa.decimal128(int(precision), int(scale))
        return _TYPES[text]
    if text["type"] == "array":
        return pa.list_(pa.field("element", _type(text["elementType"])))
    if text["type"] == "map":
        return pa.map_(_type(text["keyType"]), _type(text["valueType"]))
    return pa.struct([pa.field(each["name"], _type(each["type"])) for each in text["fields"]])


def _bytes(text: str) -> bytes:
    found = b""
    for at in range(0, len(text), 5):
        word = sum(
            _DIGITS.index(digit) * 85 ** (4 - i) for i, digit in enumerate(text[at : at + 5])
        )
        found += word.to_bytes(4, "big")
    return found


def _values(data: bytes) -> Iterator[int]:
    """Yield the values of a roaring bitmap array, one by one."""
    magic, buckets = struct.unpack_from("<iq", data)
    assert magic == 1681511377
    assert buckets == 1
    at = 12
    bucket, cookie = struct.unpack_from("<II", data, at)
    assert bucket == 0
    start, at, flags = at + 4, at + 8, b""
    if cookie & 0xFFFF == 12347:
        count = (cookie >> 16) + 1
        flags = data[at : at + (count + 7) // 8]
        at += len(flags)
    else:
        assert cookie == 12346
        count = struct.unpack_from("<I", data, at)[0]
        at += 4
    keys = [struct.unpack_from("<HH", data, at + 4 * i) for i in range(count)]
    at += 4 * count
    offsets = None
    if not flags or count >= 4:
        offsets = struct.unpack_from(f"<{count}I", data, at)
        at += 4 * count
    for i, (key, less_one) in enumerate(keys):
        assert offsets is None or start + offsets[i] == at
        base, own = key << 16, less_one + 1
        if flags and flags[i // 8] >> i % 8 & 1:
            runs = struct.unpack_from("<H", data, at)[0]
            pairs = struct.unpack_from(f"<{2 * runs}H", data, at + 2)
            at += 2 + 4 * runs
            found = [
                base + value
                for first, more in zip(pairs[::2], pairs[1::2], strict=True)
                for value in range(first, first + more + 1)
            ]
        elif own <= 4096:
            found = [base + value for value in struct.unpack_from(f"<{own}H", data, at)]
            at += 2 * own
        else:
            bits = data[at : at + 8192]
            found = [base + bit for bit in range(1 << 16) if bits[bit // 8] >> bit % 8 & 1]
            at += 8192
        assert len(found) == own
        yield from found
    assert at == len(data)
