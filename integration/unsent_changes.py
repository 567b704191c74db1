"""Random statements on a PostgreSQL table with large values, and the changes that it decodes.

With the default replica identity, PostgreSQL does not send a large value that an update did not
touch. Its own ``SELECT`` is the expected table.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from psycopg import sql

from integration.servers.postgres import Postgres
from tests.support.debezium import bare, event, key
from tests.support.registers_model import Command, Kind

COLUMNS = ("n", "x", "y", "a")
LARGE = ("x", "y", "a")
KEYS = (1, 2, 3, 4)
SPARE_KEY = -1
"""Used by swaps only."""

PLACEHOLDER = "__debezium_unavailable_value"
UNSENT: Mapping[str, Any] = {
    "x": PLACEHOLDER,
    "y": PLACEHOLDER,
    "a": list(PLACEHOLDER.encode()),
}
"""Debezium's stand-ins for the values that were not sent."""

_LARGE_COUNT = 2_200
"""Characters, for which PostgreSQL stores a value outside of the row."""

_SLOT = "oracle"
_RELATION = """
DROP TABLE IF EXISTS oracle;
CREATE TABLE oracle (id bigint PRIMARY KEY, n bigint, x text, y text, a int[]);
ALTER TABLE oracle ALTER x SET STORAGE EXTERNAL, ALTER y SET STORAGE EXTERNAL,
    ALTER a SET STORAGE EXTERNAL;
DROP PUBLICATION IF EXISTS oracle;
CREATE PUBLICATION oracle FOR TABLE oracle;
"""

Rows = dict[int, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Part:
    """One command of a change, and the records that Debezium writes for it."""

    command: Command
    records: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One decoded change of a row. ``old`` is the key before, where the message has it."""

    lsn: int
    op: str
    """``I``, ``U`` or ``D``."""
    old: int | None
    key: int | None
    values: Mapping[str, Any]
    """The values that were sent."""

    @property
    def unsent(self) -> tuple[str, ...]:
        """The columns of a new row that were not sent."""
        return () if self.key is None else tuple(n for n in COLUMNS if n not in self.values)

    @property
    def is_move(self) -> bool:
        return self.op == "U" and self.old is not None

    @property
    def parts(self) -> list[Part]:
        """The change as Debezium sends it: a row that moves is a delete and a create."""
        parts = []
        if self.old is not None:
            moved_to = self.key if self.is_move else None
            delete = Command(Kind.DELETE, self.lsn, self.old, moved_to=moved_to)
            before = dict.fromkeys(("id", *COLUMNS)) | {"id": self.old}
            header = ("__debezium.newkey", self.key) if self.is_move else None
            record = _record(self.old, event("d", before, None, self.lsn), header)
            parts.append(Part(delete, (record, _record(self.old, None))))
        if self.key is not None:
            is_update = self.op == "U" and not self.is_move
            put = Command(Kind.PUT if is_update else Kind.CREATE, self.lsn, self.key, self.values)
            after = {"id": self.key, **{n: self.values.get(n, UNSENT.get(n)) for n in COLUMNS}}
            header = ("__debezium.oldkey", self.old) if self.is_move else None
            value = event("u" if is_update else "c", None, after, self.lsn)
            parts.append(Part(put, (_record(self.key, value, header),)))
        return parts


def in_one_event(parts: Sequence[Part]) -> list[Part]:
    """Return parts in which a row that moves is one update with both keys, as other sources send."""
    changed = list(parts)
    for at, part in enumerate(parts[:-1]):
        number = part.command.moved_to
        if number is not None:
            after = json.loads(parts[at + 1].records[0]["value"])["after"]
            before = dict.fromkeys(after) | {"id": part.command.key}
            update = event("u", before, after, part.command.order)
            changed[at] = replace(part, records=())
            changed[at + 1] = replace(parts[at + 1], records=(_record(number, update),))
    return changed


def _record(
    number: int | None, value: dict[str, Any] | None, header: tuple[str, int | None] | None = None
) -> dict[str, Any]:
    headers = [] if header is None else [{"key": header[0], "value": key(header[1])}]
    return {
        "key": key(number),
        "value": None if value is None else bare(value),
        "headers": headers,
    }


class _Message:
    """Reads one ``pgoutput`` message from its first byte on."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def read(self, form: str) -> Any:
        (value,) = struct.unpack_from(f">{form}", self.data, self.at)
        self.at += struct.calcsize(f">{form}")
        return value

    def read_tuple(self) -> list[tuple[bytes, str | None]]:
        columns: list[tuple[bytes, str | None]] = []
        for _ in range(self.read("h")):
            kind = self.read("c")
            text = None
            if kind == b"t":
                count = self.read("i")
                text = self.data[self.at : self.at + count].decode()
                self.at += count
            columns.append((kind, text))
        return columns


def _changes(messages: Sequence[tuple[str, bytes]]) -> Iterator[Change]:
    """Decode messages, of which those about rows are changes of our table."""
    for lsn, data in messages:
        message = _Message(data)
        op = message.read("c").decode()
        if op not in "IUD":
            continue
        message.read("i")
        tuples = {}
        while message.at < len(data):
            kind = message.read("c").decode()
            tuples[kind] = message.read_tuple()
        assert "O" not in tuples, "the replica identity is the default one"
        old, new = tuples.get("K"), tuples.get("N")
        upper, lower = (int(part, 16) for part in lsn.split("/"))
        yield Change(
            lsn=(upper << 32) + lower,
            op=op,
            old=None if old is None else int(str(old[0][1])),
            key=None if new is None else int(str(new[0][1])),
            values={}
            if new is None
            else {
                name: _value(name, text)
                for name, (kind, text) in zip(COLUMNS, new[1:], strict=True)
                if kind != b"u"
            },
        )


def _value(name: str, text: str | None) -> Any:
    if text is None or name in ("x", "y"):
        return text
    if name == "n":
        return int(text)
    return [int(item) for item in text.strip("{}").split(",") if item]


class _RolledBackError(Exception):
    pass


@dataclass
class Transactions:
    """Random transactions on an empty table."""

    connection: psycopg.Connection[Any]
    dice: random.Random
    moves: bool = True
    """Whether keys change."""
    drawn: int = 0
    statements: dict[str, int] = field(default_factory=dict)

    def commits(self, count: int) -> Iterator[tuple[list[Change], Rows]]:
        """Yield the changes of each commit, and the rows after it."""
        for _ in range(count):
            with suppress(_RolledBackError), self.connection.transaction():
                for _ in range(self.dice.choice([1, 1, 2, 3, 5])):
                    self._statement()
                if self.dice.random() < 0.1:
                    raise _RolledBackError
            yield self.decoded(), self.rows()

    def decoded(self) -> list[Change]:
        """Return the changes since the last call."""
        messages = self.connection.execute(
            "SELECT lsn::text, data FROM pg_logical_slot_get_binary_changes("
            f"'{_SLOT}', NULL, NULL, 'proto_version', '1', 'publication_names', 'oracle')"
        ).fetchall()
        return list(_changes(messages))

    def rows(self) -> Rows:
        """Return the rows by key."""
        rows = self.connection.execute("SELECT id, n, x, y, a FROM oracle").fetchall()
        return {number: tuple(values) for number, *values in rows}

    def _statement(self) -> None:
        kinds = ["insert"] * 3 + ["update"] * 6 + ["same", "upsert", "delete", "renew"]
        kinds += ["move"] * 2 * self.moves + ["swap"] * self.moves
        kind = self.dice.choice(kinds)
        self.statements[kind] = self.statements.get(kind, 0) + 1
        getattr(self, f"_{kind}")(self.dice.choice(KEYS))

    def _draw(self, name: str) -> Any:
        """Return a value: NULL, small or large."""
        self.drawn += 1
        if self.dice.random() < 0.2:
            return None
        if name == "n":
            return self.drawn
        is_large = self.dice.random() < 0.75
        if name == "a":
            return [self.drawn] * (600 if is_large else 2)
        return f"{self.drawn} {name}".ljust(_LARGE_COUNT if is_large else 0, ".")

    def _some(self, *, least: int = 1) -> dict[str, Any]:
        names = self.dice.sample(COLUMNS, self.dice.choice([least, 1, 1, 2]))
        return {name: self._draw(name) for name in names}

    def _insert(self, number: int) -> None:
        values = [number, *(self._draw(name) for name in COLUMNS)]
        self.connection.execute(
            "INSERT INTO oracle VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING", values
        )

    def _upsert(self, number: int) -> None:
        names = self.dice.sample(COLUMNS, self.dice.choice([1, 2]))
        changes = sql.SQL(", ").join(
            sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in names
        )
        self.connection.execute(
            sql.SQL(
                "INSERT INTO oracle VALUES (%s, %s, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET {}"
            ).format(changes),
            [number, *(self._draw(name) for name in COLUMNS)],
        )

    def _update(self, number: int) -> None:
        self._set(number, self._some())

    def _same(self, number: int) -> None:
        self.connection.execute("UPDATE oracle SET x = x, n = n WHERE id = %s", [number])

    def _delete(self, number: int) -> None:
        self.connection.execute("DELETE FROM oracle WHERE id = %s", [number])

    def _renew(self, number: int) -> None:
        self._delete(number)
        self._insert(number)

    def _move(self, number: int) -> None:
        used = {row[0] for row in self.connection.execute("SELECT id FROM oracle").fetchall()}
        free = [each for each in KEYS if each not in used]
        if free:
            some = self._some(least=0) if self.dice.random() < 0.5 else {}
            self._set(number, {"id": self.dice.choice(free), **some})

    def _swap(self, number: int) -> None:
        other = self.dice.choice([each for each in KEYS if each != number])
        self._set(number, {"id": SPARE_KEY})
        self._set(other, {"id": number})
        self._set(SPARE_KEY, {"id": other})

    def _set(self, number: int, values: Mapping[str, Any]) -> None:
        changes = sql.SQL(", ").join(
            sql.SQL("{} = %s").format(sql.Identifier(name)) for name in values
        )
        self.connection.execute(
            sql.SQL("UPDATE oracle SET {} WHERE id = %s").format(changes),
            [*values.values(), number],
        )


@contextmanager
def oracle_table(postgres: Postgres) -> Iterator[psycopg.Connection[Any]]:
    """Make the table, its publication and its slot."""
    with postgres.connect(autocommit=True) as connection:
        connection.execute(_RELATION)
        connection.execute(f"SELECT pg_create_logical_replication_slot('{_SLOT}', 'pgoutput')")
        try:
            yield connection
        finally:
            connection.execute(f"SELECT pg_drop_replication_slot('{_SLOT}')")


@contextmanager
def transactions(
    connection: psycopg.Connection[Any], seed: int, *, moves: bool = True
) -> Iterator[Transactions]:
    """Begin random transactions on the empty table."""
    history = Transactions(connection, random.Random(seed), moves)
    connection.execute("TRUNCATE oracle")
    history.decoded()
    yield history
