"""What a row of the limits is, and how a figure is held against its limit."""

from __future__ import annotations

from typing import Any

Sections = dict[str, Any]


Row = tuple[str, str, str, str, str]
"""What, limit, measured, met, explanation."""


def judged(
    what: str, limit: str, value: float | None, met: Any, form: str, explanation: str
) -> Row:
    """Return the row of a figure that is held against its limit; None was not measured."""
    if value is None:
        return what, limit, "not measured", "–", explanation
    return what, limit, form.format(value), "yes" if met(value) else "**no**", explanation


def by_number(section: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Return the entries whose names are numbers, in their order."""
    return sorted((int(key), value) for key, value in section.items() if key.isdigit())


def times_less(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Return how many times as long the other one takes."""
    return f"{theirs['median'] / ours['median']:.1f}x"


def cpu_less(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Return how many times as much of the processors the other one takes."""
    return f"{theirs['cpu_s']['median'] / ours['cpu_s']['median']:.1f}x"
