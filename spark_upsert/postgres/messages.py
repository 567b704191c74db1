"""Decoding of ``pgoutput`` messages into columns (`MessageDecoder`).

All rows of one table are read in step, column by column, by numpy; Python looks at single messages
only where they describe tables, types or truncates. Source: PostgreSQL, "Logical Replication
Message Formats", protocol version 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.keys import Mask, Positions
from spark_upsert.errors import SchemaError
from spark_upsert.postgres.types import ValueType, take_slices, value_type

HEADER_BYTES = 25
"""Before each message: ``w``, and two log positions and a time of 8 bytes each."""

BEGIN, COMMIT, RELATION, TYPE, TRUNCATE, MESSAGE = b"BCRYTM"
INSERT, UPDATE, DELETE = b"IUD"
_KEY, _OLD = b"KO"
_NULL, _UNCHANGED, _TEXT = b"nut"

_OP_BYTES = 5
"""A row message's first bytes: its kind, and the table's OID."""

_TUPLE_BYTES = 3
"""A tuple's first bytes: its kind, and the number of columns."""

POSTGRES_EPOCH_US = 946_684_800_000_000
"""2000-01-01, from which PostgreSQL counts microseconds."""

OP, COMMIT_LSN, SEQUENCE, XID, REASON = "_op", "_commit_lsn", "_seq", "_xid", "_reason"
CHANGE_COLUMNS = (OP, COMMIT_LSN, SEQUENCE, XID, REASON)
PUT, REMOVE, EMPTY = "u", "d", "t"
"""Values of column `OP`: a row, a delete by key, a truncate."""


@dataclass(frozen=True, slots=True)
class LoggedColumn:
    """A column of a table, as the log describes it."""

    name: str
    type_oid: int
    modifier: int
    is_identity: bool
    """Whether it belongs to the replica identity; with ``REPLICA IDENTITY FULL`` all do."""


@dataclass(frozen=True, slots=True)
class LoggedTable:
    """A table at one place of the log."""

    oid: int
    schema: str
    name: str
    identity: str
    """``d`` for the primary key, ``i`` for an index, ``f`` for all columns, ``n`` for none."""
    columns: tuple[LoggedColumn, ...]

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


def identity_of(relation: LoggedTable) -> tuple[str, ...]:
    """Return the columns of the replica identity."""
    return tuple(column.name for column in relation.columns if column.is_identity)


@dataclass(frozen=True, slots=True)
class Transactions:
    """The committed transactions in a sequence of messages, in commit order. Arrays of length n."""

    xid: npt.NDArray[np.int64]
    commit_lsn: npt.NDArray[np.int64]
    """Where the commit record begins; orders the changes."""
    end_lsn: npt.NDArray[np.int64]
    """Where the commit record ends: the position after the transaction."""
    committed_us: npt.NDArray[np.int64]
    """Microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class TableChanges:
    """DecodedChanges to one table, under one description of it. Arrays have a row per change."""

    relation: LoggedTable
    keys: tuple[str, ...]
    rows: pa.RecordBatch
    """The table's columns, then `CHANGE_COLUMNS`: three int64 and two texts, of which `REASON` says
    why a value has no Arrow form. Deletes have their keys only, truncates no values.

    A moved row is a delete of its old key and a row at the new one, at the same place. The order of
    changes is (`COMMIT_LSN`, `SEQUENCE`), not the order of rows."""
    unchanged: Mapping[str, Mask]
    """For columns with values that were not sent, the rows concerned; there they are null."""
    moved_from: Positions
    """For the row of a moved key, the row of its delete; -1 for all others."""


@dataclass(frozen=True, slots=True)
class DecodedChanges:
    """Decoded messages."""

    transactions: Transactions
    tables: tuple[TableChanges, ...]
    marks: tuple[tuple[str, bytes], ...] = ()
    """Prefix and content of logical messages."""


class _Open(NamedTuple):
    """The transaction in which the messages so far end."""

    xid: int
    commit_lsn: int
    message_count: int
    """Messages so far."""


class _Block:
    """Messages as one sequence of bytes. Big-endian integers can be read at any position."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        data = b"".join(messages)
        self.data = data
        self.bytes = np.frombuffer(data, np.uint8)
        lengths = np.fromiter(map(len, messages), np.int64, len(messages))
        self.starts = np.cumsum(lengths) - lengths + HEADER_BYTES
        self.kinds = self.bytes[self.starts]

    def integers(self, kind: str, positions: Positions) -> npt.NDArray[np.int64]:
        size = np.dtype(kind).itemsize
        shape = (max(0, len(self.data) - size + 1),)
        words: npt.NDArray[Any] = np.ndarray(shape, f">{kind}", self.data, strides=(1,))
        return words[positions].astype(np.int64)


class _Tuples(NamedTuple):
    """Values of n rows in a block. Arrays of shape (columns, n), but `ends`."""

    kinds: npt.NDArray[np.uint8]
    starts: Positions
    lengths: npt.NDArray[np.int64]
    ends: Positions

    def take(self, rows: Positions | Mask) -> _Tuples:
        return _Tuples(
            self.kinds[:, rows], self.starts[:, rows], self.lengths[:, rows], self.ends[rows]
        )

    @classmethod
    def concatenate(cls, one: _Tuples, other: _Tuples) -> _Tuples:
        return cls(
            kinds=np.concatenate([one.kinds, other.kinds], axis=1),
            starts=np.concatenate([one.starts, other.starts], axis=1),
            lengths=np.concatenate([one.lengths, other.lengths], axis=1),
            ends=np.concatenate([one.ends, other.ends]),
        )


class MessageDecoder:
    """Decodes messages in the order of the log; a transaction may be divided between two calls.

    Parameters
    ----------
    keys_of : callable
        Returns a table's key columns, by default those of its replica identity. With
        ``REPLICA IDENTITY FULL`` these are all columns, and only the catalog has the primary key.
    """

    def __init__(self, keys_of: Callable[[LoggedTable], tuple[str, ...]] = identity_of) -> None:
        self._keys_of = keys_of
        self._relations: dict[int, LoggedTable] = {}
        self._names: dict[int, tuple[str, str]] = {}
        self._open: _Open | None = None

    def decode(self, messages: Sequence[bytes]) -> DecodedChanges:
        """Decode messages as they were received, each with its header."""
        if not messages:
            return DecodedChanges(_transactions(_Block(()), np.zeros(0, np.int64), None), ())
        block = _Block(messages)
        begins = np.flatnonzero(block.kinds == BEGIN)
        # Index 0 is the transaction of the call before.
        transaction = np.cumsum(block.kinds == BEGIN)
        opened = self._open or _Open(0, 0, 0)
        at = block.starts[begins]
        lsns = np.concatenate([[opened.commit_lsn], block.integers("i8", at + 1)])
        xids = np.concatenate([[opened.xid], block.integers("u4", at + 17)])
        counts = (
            np.arange(len(messages))
            - np.concatenate([[-opened.message_count], begins])[transaction]
        )
        transactions = _transactions(block, transaction, xids)
        history, truncates, marks = self._describe(block)
        oids = np.zeros(len(messages), np.int64)
        is_row = _IS_ROW[block.kinds]
        oids[is_row] = block.integers("u4", block.starts[is_row] + 1)
        places = _Places(lsns[transaction], counts, xids[transaction])
        tables = tuple(
            self._table(block, places, relation, rows, emptied)
            for relation, rows, emptied in _by_relation(oids, is_row, history, truncates)
        )
        if transactions.xid.size and block.kinds[-1] == COMMIT:
            self._open = None
        else:
            self._open = _Open(int(xids[-1]), int(lsns[-1]), int(counts[-1]) + 1)
        return DecodedChanges(transactions, tables, marks)

    def _describe(
        self, block: _Block
    ) -> tuple[dict[int, list[tuple[int, LoggedTable]]], list[tuple[int, int]], tuple[Any, ...]]:
        """Read the messages that are no rows, one by one.

        Returns each table's descriptions with the index of the first message to which they apply,
        truncates as index and OID, and logical messages.
        """
        history = {oid: [(0, relation)] for oid, relation in self._relations.items()}
        truncates: list[tuple[int, int]] = []
        marks = []
        for index in np.flatnonzero(_IS_DESCRIPTION[block.kinds]).tolist():
            reader = _Reader(block.data, int(block.starts[index]))
            match reader.integer(1):
                case 82:  # RELATION
                    relation = reader.relation()
                    if self._relations.get(relation.oid) != relation:
                        self._relations[relation.oid] = relation
                        history.setdefault(relation.oid, []).append((index, relation))
                case 89:  # TYPE
                    oid = reader.integer(4)
                    self._names[oid] = (reader.text(), reader.text())
                case 84:  # TRUNCATE
                    count, _flags = reader.integer(4), reader.integer(1)
                    truncates += [(index, reader.integer(4)) for _ in range(count)]
                case _:
                    marks.append(reader.mark())
        return history, truncates, tuple(marks)

    def _table(
        self,
        block: _Block,
        places: _Places,
        relation: LoggedTable,
        rows: Positions,
        emptied: Positions,
    ) -> TableChanges:
        """Decode a table's rows, given by the index of their messages."""
        keys = self._keys_of(relation)
        _require_names(relation)
        width = len(relation.columns)
        is_key = np.array([column.name in keys for column in relation.columns])
        at, ops = block.starts[rows] + _OP_BYTES, block.kinds[rows]
        tag = block.bytes[at]
        has_old = (tag == _KEY) | (tag == _OLD)
        old = _scan(block, at[has_old] + _TUPLE_BYTES, width)
        at[has_old] = old.ends
        is_put = ops != DELETE
        new = _scan(block, at[is_put] + _TUPLE_BYTES, width)
        # Of the old tuples: those of updates, and their rows among the new ones.
        of_update = is_put[has_old]
        updated = np.flatnonzero(has_old[is_put])
        is_float = np.array([column.type_oid in _FLOATS for column in relation.columns])
        moved = _complete(block, new, old.take(of_update), updated, is_key, is_float)
        is_removed = ~of_update
        is_removed[of_update] = moved
        removed = old.take(is_removed)
        removed.kinds[~is_key] = _NULL
        values = _Tuples.concatenate(new, removed)
        messages = np.concatenate([rows[is_put], rows[has_old][is_removed], emptied])
        moved_from = np.full(len(messages), -1, np.int64)
        moved_from[updated[moved]] = new.ends.size + np.flatnonzero(of_update[is_removed])
        columns, reason = self._columns(block, relation, values, len(emptied))
        ops_of_rows = np.repeat([0, 1, 2], [new.ends.size, removed.ends.size, len(emptied)])
        batch = {
            **columns,
            OP: pa.array([PUT, REMOVE, EMPTY]).take(pa.array(ops_of_rows)),
            COMMIT_LSN: pa.array(places.lsn[messages]),
            SEQUENCE: pa.array(places.sequence[messages]),
            XID: pa.array(places.xid[messages]),
            REASON: reason,
        }
        unsent = {
            column.name: np.concatenate([kinds == _UNCHANGED, np.zeros(len(emptied), np.bool_)])
            for column, kinds in zip(relation.columns, values.kinds, strict=True)
        }
        return TableChanges(
            relation=relation,
            keys=keys,
            rows=pa.RecordBatch.from_pydict(batch),
            unchanged={name: where for name, where in unsent.items() if where.any()},
            moved_from=moved_from,
        )

    def _columns(
        self, block: _Block, relation: LoggedTable, values: _Tuples, empty: int
    ) -> tuple[dict[str, pa.Array], pa.Array]:
        """Return the typed columns, with nulls for ``empty`` further rows, and the reasons."""
        columns = {}
        reasons = Reasons(values.ends.size + empty)
        buffer = pa.py_buffer(block.data)
        for index, column in enumerate(relation.columns):
            texts = take_slices(
                buffer,
                values.starts[index],
                values.lengths[index],
                values.kinds[index] == _TEXT,
            )
            type_ = self.type_of(column)
            if empty:
                texts = pa.concat_arrays([texts, pa.nulls(empty, pa.string())])
            columns[column.name] = reasons.read(column.name, type_, texts)
        return columns, reasons.texts

    def type_of(self, column: LoggedColumn) -> ValueType:
        """Return a column's type, by the type descriptions so far."""
        return value_type(column.type_oid, column.modifier, self._names)


def _require_names(relation: LoggedTable) -> None:
    own = [column.name for column in relation.columns if column.name in CHANGE_COLUMNS]
    if own:
        raise SchemaError(
            f"table '{relation}' of the source has a column '{own[0]}', a name that changes need.",
            hint="rename the column, or remove the table from the publication.",
            table=str(relation),
            column=own[0],
        )


class Reasons:
    """Collects why values have no Arrow form: the first reason per row, else null."""

    def __init__(self, count: int) -> None:
        self.texts = pa.nulls(count, pa.string())

    def read(self, name: str, type_: ValueType, texts: pa.StringArray) -> pa.Array:
        """Convert a column's texts, and note the bad ones."""
        values, bad = type_.read(texts)
        if bad.any():
            text = f"column '{name}' holds what is no {type_.arrow} ({type_.name})"
            self.texts = pc.coalesce(self.texts, pc.if_else(pa.array(bad), text, None))
        return values


class _Places(NamedTuple):
    """Each message's place in the log."""

    lsn: npt.NDArray[np.int64]
    sequence: npt.NDArray[np.int64]
    xid: npt.NDArray[np.int64]


def _flags(kinds: Iterable[int]) -> Mask:
    flags = np.zeros(256, np.bool_)
    flags[list(kinds)] = True
    return flags


_IS_ROW = _flags((INSERT, UPDATE, DELETE))
_IS_DESCRIPTION = _flags((RELATION, TYPE, TRUNCATE, MESSAGE))


def _transactions(
    block: _Block, transaction: Positions, xids: npt.NDArray[np.int64] | None
) -> Transactions:
    commits = np.flatnonzero(block.kinds == COMMIT)
    at = block.starts[commits]
    return Transactions(
        xid=xids[transaction[commits]] if xids is not None else commits,
        commit_lsn=block.integers("i8", at + 2),
        end_lsn=block.integers("i8", at + 10),
        committed_us=block.integers("i8", at + 18) + POSTGRES_EPOCH_US,
    )


def _by_relation(
    oids: npt.NDArray[np.int64],
    is_row: Mask,
    history: Mapping[int, Sequence[tuple[int, LoggedTable]]],
    truncates: Sequence[tuple[int, int]],
) -> Iterator[tuple[LoggedTable, Positions, Positions]]:
    """Yield each table description with the messages of its rows and of its truncates."""
    rows = np.flatnonzero(is_row)
    rows = rows[np.argsort(oids[rows], kind="stable")]
    found, first = np.unique(oids[rows], return_index=True)
    rows_of = dict(zip(found.tolist(), np.split(rows, first[1:]), strict=False))
    emptied: dict[int, list[int]] = {}
    for index, oid in truncates:
        emptied.setdefault(oid, []).append(index)
    none = np.zeros(0, np.int64)
    for oid in sorted(rows_of.keys() | emptied.keys()):
        versions = history[oid]
        bounds = [begin for begin, _ in versions[1:]]
        parts = (
            np.split(indices, np.searchsorted(indices, bounds))
            for indices in (rows_of.get(oid, none), np.array(emptied.get(oid, []), np.int64))
        )
        for (_, relation), own, own_emptied in zip(versions, *parts, strict=True):
            if len(own) or len(own_emptied):
                yield relation, own, own_emptied


def _scan(block: _Block, at: Positions, width: int) -> _Tuples:
    """Read tuples in step, from the positions of their first columns."""
    shape = (width, len(at))
    kinds = np.empty(shape, np.uint8)
    starts, lengths = np.empty(shape, np.int64), np.zeros(shape, np.int64)
    at = at.copy()
    for index in range(width):
        kind = kinds[index] = block.bytes[at]
        is_text = kind == _TEXT
        if is_text.all():
            lengths[index] = block.integers("u4", at + 1)
            at += 5
        else:
            lengths[index, is_text] = block.integers("u4", at[is_text] + 1)
            at += np.where(is_text, 5, 1)
        starts[index] = at
        at += lengths[index]
    return _Tuples(kinds, starts, lengths, at)


_FLOATS = (700, 701)
_ZEROS = ("0", "-0")


def _complete(
    block: _Block, new: _Tuples, old: _Tuples, rows: Positions, is_key: Mask, is_float: Mask
) -> Mask:
    """Fill values that were not sent from the old tuples, in place; return which keys changed.

    ``rows`` are the new tuples of the old ones. An old tuple of kind ``K`` has nulls outside of the
    identity, which mean nothing: only its texts are taken.
    """
    moved = np.zeros(len(rows), np.bool_)
    if not len(rows):
        return moved
    buffer = pa.py_buffer(block.data)
    for index in range(len(is_key)):
        known = (new.kinds[index, rows] == _UNCHANGED) & (old.kinds[index] == _TEXT)
        filled = rows[known]
        new.kinds[index, filled] = _TEXT
        new.starts[index, filled] = old.starts[index, known]
        new.lengths[index, filled] = old.lengths[index, known]
        if is_key[index]:
            pair = (
                take_slices(
                    buffer,
                    tuples.starts[index, own],
                    tuples.lengths[index, own],
                    tuples.kinds[index, own] == _TEXT,
                )
                for tuples, own in ((new, rows), (old, slice(None)))
            )
            one, other = pair
            is_equal = pc.fill_null(pc.equal(one, other), False)
            if is_float[index]:  # Zeros of both signs are one key.
                zeros = pa.array(_ZEROS)
                is_zero = pc.and_(pc.is_in(one, zeros), pc.is_in(other, zeros))
                is_equal = pc.or_(is_equal, is_zero)
            moved |= ~np.asarray(is_equal.to_numpy(zero_copy_only=False))
    return moved


class _Reader:
    """Reads one message's fields in order."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def integer(self, size: int, *, signed: bool = False) -> int:
        self._at += size
        return int.from_bytes(self._data[self._at - size : self._at], "big", signed=signed)

    def text(self) -> str:
        end = self._data.index(b"\0", self._at)
        text = self._data[self._at : end].decode()
        self._at = end + 1
        return text

    def relation(self) -> LoggedTable:
        oid, schema, name = self.integer(4), self.text(), self.text()
        identity, count = chr(self.integer(1)), self.integer(2)
        return LoggedTable(oid, schema, name, identity, tuple(self._column() for _ in range(count)))

    def _column(self) -> LoggedColumn:
        flags, name, oid = self.integer(1), self.text(), self.integer(4)
        return LoggedColumn(name, oid, self.integer(4, signed=True), bool(flags & 1))

    def mark(self) -> tuple[str, bytes]:
        self.integer(1 + 8)
        prefix, size = self.text(), self.integer(4)
        return prefix, self._data[self._at : self._at + size]
