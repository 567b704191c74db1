"""A source of rows that sends only the values that a statement sets."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.support.registers_model import Command, Kind, Row


class Source:
    """A table that applies each statement to its rows, and the commands that it sends."""

    def __init__(
        self, dice: random.Random, *, moves: bool, columns: Sequence[str] = ("n", "x")
    ) -> None:
        self.dice = dice
        self.columns = columns
        self.moves = moves
        self.rows: dict[int, dict[str, Any]] = {}
        self.order = 0
        self.unchanged = 0

    def statement(self) -> list[Command]:
        """Change a row, or nothing."""
        self.order += 1
        key = self.dice.randrange(3)
        row = self.rows.get(key)
        if row is None:
            self.rows[key] = {name: self._value(name) for name in self.columns}
            return [Command(Kind.CREATE, self.order, key, dict(self.rows[key]))]
        kind = self.dice.choice(["update"] * 4 + ["delete"] + ["move"] * 2 * self.moves)
        if kind == "delete":
            del self.rows[key]
            return [Command(Kind.DELETE, self.order, key)]
        sent = {name: self._value(name) for name in self.columns if self.dice.random() < 0.4}
        self.unchanged += len(self.columns) - len(sent)
        if kind == "update":
            row |= sent
            return [Command(Kind.PUT, self.order, key, sent)]
        free = [number for number in range(4) if number not in self.rows]
        if not free:
            return []
        new = self.dice.choice(free)
        self.rows[new] = {**self.rows.pop(key), **sent}
        return [
            Command(Kind.DELETE, self.order, key, moved_to=new),
            Command(Kind.CREATE, self.order, new, sent),
        ]

    def _value(self, name: str) -> Any:
        number = self.dice.choice([None, 0, 1])
        return f"v{number}" if name in ("x", "c") and number is not None else number

    @property
    def expected(self) -> dict[int, Row]:
        return {key: tuple(row.values()) for key, row in self.rows.items()}
