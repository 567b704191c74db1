"""Twenty tables of a database, of several shapes: what is done to them, and the query that copies them.

    python -m integration.debezium_flow FOLDER BROKER CHECKPOINT [--once]

is the query (``--pattern`` and ``--option`` make it one for another database): the topic of each table into a table below ``<folder>/lake``, with a quarantine. It goes
on until it is killed; with ``--once`` it reads all that is there, and ends. Of another checkpoint it
reads all topics again, and the tables are its own from then on.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.load import Change, Cursor
from integration.topics import routed, session

PREFIX = "flow"
PATTERN = rf"{PREFIX}\.public\..*"
TABLES = 20
KEYS = 12
"""Of a table: few, so that keys are changed, deleted and made again all the time."""

WRITERS_LOCK = 7
"""An advisory lock that each writer shares: held alone, it is the end of all that was begun."""

Draw = Callable[[random.Random], str | None]


def _one_of(*texts: str | None) -> Draw:
    return lambda dice: dice.choice(texts)


def _number(low: int, high: int, *, scale: int = 0) -> Draw:
    def draw(dice: random.Random) -> str:
        number = str(dice.randint(low, high))
        return f"{number}e-{scale}" if scale else number

    return draw


_BEYOND = ("infinity", "-infinity", "0044-03-15 BC")
"""What PostgreSQL has, and no column of ours: behind the year 9999, and before the first."""


def _moments(*good: str, beyond: Sequence[str] = _BEYOND) -> Draw:
    def draw(dice: random.Random) -> str | None:
        return dice.choice(beyond if dice.random() < 0.15 else (*good, None))

    return draw


# Debezium writes the infinite past and future alike, from the log as numbers of no meaning.
_DAYS = _moments(*(f"2026-03-{day:02}" for day in range(1, KEYS)), beyond=(_BEYOND[0], _BEYOND[2]))


@dataclass(frozen=True)
class Column:
    """A column of the database."""

    name: str
    type: str
    draw: Draw
    as_: str = "{0}"
    """The expression that gives its value as our table has it."""

    @property
    def is_beyond(self) -> str:
        """The condition under which no column of ours can hold it."""
        if self.type.partition("(")[0] not in ("DATE", "TIMESTAMP", "TIMESTAMPTZ"):
            return "FALSE"
        return (
            f"coalesce(NOT isfinite({self.name}) OR {self.name} < '0001-01-01'"
            f" OR {self.name} >= '10000-01-01', FALSE)"
        )

    @property
    def answer(self) -> str:
        """What is asked of the database: null where we cannot hold it."""
        return f"CASE WHEN NOT {self.is_beyond} THEN {self.as_.format(self.name)} END"


@dataclass(frozen=True)
class Shape:
    """Columns of tables, of which the first ones are the key."""

    keys: tuple[Column, ...]
    values: tuple[Column, ...]


N = Column("n", "INT", _number(-9, 9))
SHAPES = (
    Shape(
        (Column("id", "BIGINT", _number(1, KEYS)),),
        (N, Column("t", "TEXT", _one_of("", "a", None))),
    ),
    Shape(
        (Column("k", "TEXT", _one_of(*"abcdefghij", "", 'Zoë {"op": "d"}')),),
        (
            Column("amount", "NUMERIC(10, 2)", _number(-(10**6), 10**6, scale=2)),
            Column("day", "DATE", _moments("2026-02-28", "0001-01-01", "9999-12-31")),
        ),
    ),
    Shape(
        (Column("a", "INT", _number(1, 4)), Column("b", "TEXT", _one_of("x", "y", ""))),
        (N, Column("at", "TIMESTAMP(6)", _moments("2026-02-28 12:30:00.123456", "1969-12-31"))),
    ),
    Shape(
        (Column("price", "NUMERIC(12, 2)", _number(1, KEYS, scale=1)),),
        (
            Column("d", "DOUBLE PRECISION", _one_of("0.1", "-1e300", None)),
            Column("r", "REAL", _one_of("0.5", "16777216", None), "{0}::DOUBLE PRECISION"),
            Column("s", "SMALLINT", _number(-99, 99)),
        ),
    ),
    Shape(
        (Column("u", "UUID", lambda dice: f"{dice.randint(1, KEYS):032x}", "{0}::TEXT"),),
        (
            Column("z", "TIMESTAMPTZ", _moments("2026-02-28 12:30:00.123456+05:30", "1900-01-01Z")),
            Column("yes", "BOOLEAN", _one_of("true", "false", None)),
        ),
    ),
    Shape(
        (Column("id", "INT", _number(1, KEYS)),),
        (
            Column("tags", "TEXT[]", _one_of("{}", '{a,NULL,"","b c"}', None)),
            Column("j", "JSONB", _one_of('{"a": [1, null]}', "null", "7", None), "{0}::TEXT"),
            Column("b", "BYTEA", _one_of("\\x00ff", "", None)),
        ),
    ),
    Shape(
        (Column("day", "DATE", _DAYS),),
        (N,),
    ),
)


@dataclass
class Source:
    """A table of the database."""

    number: int
    more: tuple[Column, ...] = ()
    """Columns that it has gained."""

    @property
    def name(self) -> str:
        """What the database calls it."""
        return f"t{self.number:02}"

    @property
    def shape(self) -> Shape:
        """Its columns when it was made."""
        return SHAPES[self.number % len(SHAPES)]

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns."""
        return (*self.shape.keys, *self.shape.values, *self.more)

    def made(self) -> str:
        """Return the statement that makes it; its old rows are whole in every second table."""
        columns = ", ".join(f"{c.name} {c.type}" for c in self.columns)
        keys = ", ".join(c.name for c in self.shape.keys)
        identity = "FULL" if self.number % 2 else "DEFAULT"
        return (
            f"CREATE TABLE {self.name} ({columns}, PRIMARY KEY ({keys}));"
            f"ALTER TABLE {self.name} REPLICA IDENTITY {identity}"
        )

    def alter(self, cursor: Cursor) -> None:
        """Gain a column, and widen others; no writer may be at work."""
        extra = Column(f"extra{len(self.more)}", "TEXT", _one_of("more", None))
        changes = [f"ADD COLUMN {extra.name} {extra.type}"]
        wider = {"INT": "BIGINT", "SMALLINT": "INT", "NUMERIC(10, 2)": "NUMERIC(20, 2)"}
        changes += [
            f"ALTER COLUMN {column.name} TYPE {wider[column.type]}"
            for column in self.shape.values
            if column.type in wider
        ]
        cursor.execute(f"ALTER TABLE {self.name} {', '.join(changes)}".encode())
        self.more = (*self.more, extra)

    # -- what a writer does ----------------------------------------------------------------

    def put(self, cursor: Cursor, dice: random.Random) -> None:
        """Insert a row, or update it."""
        columns = self.columns
        row: list[str | None] = [_required(column, dice) for column in self.shape.keys]
        row += [column.draw(dice) for column in (*self.shape.values, *self.more)]
        names = ", ".join(column.name for column in columns)
        values = ", ".join(f"%s::{column.type}" for column in columns)
        keys = ", ".join(column.name for column in self.shape.keys)
        news = ", ".join(f"{c.name} = EXCLUDED.{c.name}" for c in columns[len(self.shape.keys) :])
        cursor.execute(
            f"INSERT INTO {self.name} ({names}) VALUES ({values})"
            f" ON CONFLICT ({keys}) DO UPDATE SET {news}".encode(),
            row,
        )

    def update(self, cursor: Cursor, dice: random.Random) -> None:
        """Change one column of a row."""
        column = dice.choice((*self.shape.values, *self.more))
        where, key = self._one(dice)
        change = f"UPDATE {self.name} SET {column.name} = %s::{column.type} WHERE {where}"
        cursor.execute(change.encode(), [column.draw(dice), *key])

    def delete(self, cursor: Cursor, dice: random.Random) -> None:
        """Delete a row."""
        where, key = self._one(dice)
        cursor.execute(f"DELETE FROM {self.name} WHERE {where}".encode(), key)

    def move(self, cursor: Cursor, dice: random.Random) -> None:
        """Change the key of a row, if the new one is free."""
        where, key = self._one(dice)
        _, new = self._one(dice)
        sets = ", ".join(f"{c.name} = %s::{c.type}" for c in self.shape.keys)
        change = (
            f"UPDATE {self.name} SET {sets} WHERE {where}"
            f" AND NOT EXISTS (SELECT FROM {self.name} WHERE {where})"
        )
        cursor.execute(change.encode(), [*new, *key, *new])

    def make_again(self, cursor: Cursor, dice: random.Random) -> None:
        """Delete a row, and make another one, in one transaction."""
        self.delete(cursor, dice)
        self.put(cursor, dice)

    def mended(self) -> str:
        """Return the statement that makes all values such as we can hold, keys apart."""
        columns = [c for c in self.shape.values if c.is_beyond != "FALSE"]
        if not columns:
            return f"DELETE FROM {self.name} WHERE " + self.shape.keys[0].is_beyond
        sets = ", ".join(f"{c.name} = NULL" for c in columns)
        return f"UPDATE {self.name} SET {sets} WHERE " + " OR ".join(c.is_beyond for c in columns)

    def _one(self, dice: random.Random) -> tuple[str, list[str]]:
        keys = self.shape.keys
        where = " AND ".join(f"{c.name} = %s::{c.type}" for c in keys)
        return where, [_required(column, dice) for column in keys]

    # -- what the database answers ---------------------------------------------------------

    def question(self) -> str:
        """Return what asks for the rows, and of each if we cannot hold it."""
        values = ", ".join(column.answer for column in self.columns)
        beyond = " OR ".join(column.is_beyond for column in self.columns)
        return f"SELECT {values}, {beyond} FROM {self.name}"


def _required(column: Column, dice: random.Random) -> str:
    while (text := column.draw(dice)) is None:
        pass
    return text


SOURCES = [Source(number) for number in range(TABLES)]


def changes_of(sources: list[Source]) -> list[Change]:
    """Return all that a transaction may do to one of some tables, the usual more often."""

    def one_of(do: Callable[[Source, Cursor, random.Random], None]) -> Change:
        def change(cursor: Cursor, dice: random.Random) -> None:
            cursor.execute("SELECT pg_advisory_xact_lock_shared(%s)", (WRITERS_LOCK,))
            do(dice.choice(sources), cursor, dice)

        return change

    def roll_back(source: Source, cursor: Cursor, dice: random.Random) -> None:
        cursor.execute("SAVEPOINT before")
        source.put(cursor, dice)
        cursor.execute("ROLLBACK TO SAVEPOINT before")

    kinds: list[Any] = [Source.put] * 4 + [Source.update] * 4 + [Source.delete] * 2
    return [one_of(do) for do in (*kinds, Source.move, Source.move, Source.make_again, roll_back)]


ORDER = "source.lsn"


def main(
    folder: Path,
    servers: str,
    checkpoint: str,
    *,
    is_once: bool,
    pattern: str = PATTERN,
    options: Sequence[str] = (),
) -> None:
    """Run the query; raises what it fails with. Options are texts such as ``sequenceBy=offset``."""
    changed = dict(option.split("=", 1) for option in options)
    usual = {"sequenceBy": ORDER, "onError": "quarantine", "takeOver": "true"}
    writer = (
        routed(session(), servers, pattern, folder)
        .option("checkpointLocation", str(folder / checkpoint))
        .option("envelope", "debezium")
        .options(**{**usual, **changed})
    )
    if is_once:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("broker")
    parser.add_argument("checkpoint")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--pattern", default=PATTERN)
    parser.add_argument("--option", action="append", default=[])
    given = parser.parse_args()
    main(
        given.folder.resolve(),
        given.broker,
        given.checkpoint,
        is_once=given.once,
        pattern=given.pattern,
        options=given.option,
    )
