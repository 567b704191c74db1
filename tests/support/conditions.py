"""Random conditions over the columns of a table, many of which pin some of them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

Literals = Mapping[str, Sequence[str]]
"""By column, values as SQL has them: some that rows have, and some that the type has not."""


def condition(dice: random.Random, literals: Literals, depth: int = 2) -> str:
    """Return a condition with columns and literals of a mapping."""
    if depth and dice.random() < 0.6:
        joined = dice.choice(["AND", "AND", "OR"])
        left, right = (condition(dice, literals, depth - 1) for _ in range(2))
        return f"({left} {joined} {right})"
    found = _atom(dice, literals)
    return f"NOT ({found})" if dice.random() < 0.1 else found


def _atom(dice: random.Random, literals: Literals) -> str:
    column = dice.choice(sorted(literals))
    one, *others = dice.choices([*literals[column], "NULL"], k=4)
    return dice.choice(
        [
            f"{column} = {one}",
            f"{one} = {column}",
            f"{column.upper()} IN ({one}, {', '.join(others)})",
            f"{column} NOT IN ({one}, {others[0]})",
            f"{column} <=> {one}",
            f"{column} >= {one}",
            f"{column} IS NULL",
            f"{column} IS NOT NULL",
            f"COALESCE({column}, {one}) = {others[0]}",
        ]
    )
