"""How explanations are laid out: fields in two columns, counted things, and no endless lists."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 20
"""Things of one kind that are told one by one; of more only the first."""


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a count with the right form of its noun."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def field(name: str, *texts: str) -> list[str]:
    """Return the lines of a field: its name stands at the first."""
    names = [name, *[""] * (len(texts) - 1)]
    return [f"  {each:<10}{text}" for each, text in zip(names, texts, strict=True)]


def columns_field(names: Sequence[str]) -> list[str]:
    """Return the field of the columns that are read."""
    return field("columns", ", ".join(names) or "none: rows are only counted")


def more(count: int, what: str = "") -> list[str]:
    """Return the line that stands for those that are not told."""
    return [f"  and {count - SHOWN:,} more{what}"] if count > SHOWN else []
