"""Kleene's logic of three values, told slowly, over trees such as ``(True, "AND", None)``."""

from __future__ import annotations

from typing import Any

LOGIC = {"AND": min, "OR": max}
RANKS = {False: 0, None: 1, True: 2}


def truth(tree: Any) -> bool | None:
    """Return the value of a tree, by ranks: the slow obvious version."""
    if not isinstance(tree, tuple):
        return tree
    if len(tree) == 2:
        inner = truth(tree[1])
        return None if inner is None else not inner
    ranked = LOGIC[tree[1]](RANKS[truth(tree[0])], RANKS[truth(tree[2])])
    return {rank: value for value, rank in RANKS.items()}[ranked]


def written(tree: Any) -> str:
    """Return a tree in SQL."""
    if isinstance(tree, tuple):
        words = (each if isinstance(each, str) else written(each) for each in tree)
        return f"({' '.join(words)})"
    return {True: "TRUE", False: "FALSE", None: "NULL"}[tree]
