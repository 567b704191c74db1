"""Tables of a MySQL or MariaDB, and random transactions on them: all that a transaction can do to rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

Draw = Callable[[random.Random], str]

KEYS = 12
"""Of a table: few, so that keys are changed, deleted and made again all the time."""

CHANGES_MAX = 4


class Source:
    """A table of the database; each column with an expression for a random value.

    Parameters
    ----------
    name : str
    keys, values : sequence of (str, str, callable)
        The columns: their names, types, and a function that returns a random literal.
    """

    def __init__(
        self,
        name: str,
        keys: Sequence[tuple[str, str, Draw]],
        values: Sequence[tuple[str, str, Draw]],
    ) -> None:
        self.name = name
        self.columns = (*keys, *values)
        self.keys = keys
        self.values = values

    @property
    def key_names(self) -> tuple[str, ...]:
        return tuple(name for name, _, _ in self.keys)

    def created(self) -> str:
        """Return the statement that creates the table."""
        columns = ", ".join(f"{name} {type_}" for name, type_, _ in self.columns)
        return f"CREATE TABLE {self.name} ({columns}, PRIMARY KEY ({', '.join(self.key_names)}))"

    def change(self, dice: random.Random) -> str:
        """Return a random statement."""
        changes = (self._put, self._put, self._put, self._update, self._update)
        return dice.choice((*changes, self._delete, self._replace, self._move, self._move_all))(
            dice
        )

    def _row(self, dice: random.Random) -> str:
        return f"({', '.join(draw(dice) for _, _, draw in self.columns)})"

    def _where(self, dice: random.Random) -> str:
        return " AND ".join(f"{name} = {draw(dice)}" for name, _, draw in self.keys)

    def _put(self, dice: random.Random) -> str:
        rows = ", ".join(self._row(dice) for _ in range(dice.randint(1, 3)))
        news = ", ".join(f"{name} = VALUES({name})" for name, _, _ in self.values)
        return f"INSERT INTO {self.name} VALUES {rows} ON DUPLICATE KEY UPDATE {news}"

    def _replace(self, dice: random.Random) -> str:
        return f"REPLACE INTO {self.name} VALUES {self._row(dice)}"

    def _update(self, dice: random.Random) -> str:
        name, _, draw = dice.choice(self.values)
        where = "1" if dice.random() < 0.2 else self._where(dice)
        return f"UPDATE {self.name} SET {name} = {draw(dice)} WHERE {where}"

    def _delete(self, dice: random.Random) -> str:
        return f"DELETE FROM {self.name} WHERE {self._where(dice)}"

    def _move(self, dice: random.Random) -> str:
        """Change the key of a row, unless another row has the new one."""
        news = ", ".join(f"{name} = {draw(dice)}" for name, _, draw in self.keys)
        return f"UPDATE IGNORE {self.name} SET {news} WHERE {self._where(dice)}"

    def _move_all(self, dice: random.Random) -> str:
        """Change the keys of all rows in one statement, each to that of another row before it."""
        name, type_, _ = self.keys[0]
        if not type_.startswith("INT"):
            return self._move(dice)
        return f"UPDATE IGNORE {self.name} SET {name} = {name} + 1 ORDER BY {name} DESC"


def number(low: int, high: int) -> Draw:
    return lambda dice: str(dice.randint(low, high))


def one_of(*literals: str) -> Draw:
    return lambda dice: dice.choice(literals)


SOURCES = (
    Source(
        "customers",
        [("id", "INT", number(1, KEYS))],
        [
            ("name", "VARCHAR(40)", one_of("'Zoë'", "''", "NULL", "'\U0001f600'")),
            ("n", "INT", number(-9, 9)),
        ],
    ),
    Source(
        "tags",
        [("k", "VARCHAR(9) COLLATE utf8mb4_bin", one_of(*(f"'{c}'" for c in "abcdefgABé"), "''"))],
        [
            ("amount", "DECIMAL(10, 2)", one_of("1.50", "-99999999.99", "NULL")),
            ("at", "DATETIME(6)", one_of("'2026-02-28 12:30:00.123456'", "'1000-01-01'", "NULL")),
        ],
    ),
    Source(
        "stock",
        [("a", "INT", number(1, 3)), ("day", "DATE", one_of("'2026-02-28'", "'9999-12-31'"))],
        [("n", "BIGINT", number(0, 2**40))],
    ),
)


def transaction(dice: random.Random, sources: Sequence[Source] = SOURCES) -> list[str]:
    """Return the statements of a random transaction."""
    changes = [dice.choice(sources).change(dice) for _ in range(dice.randint(1, CHANGES_MAX))]
    end = "ROLLBACK" if dice.random() < 0.1 else "COMMIT"
    return ["START TRANSACTION", *changes, end]
