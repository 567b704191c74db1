"""How a report says things: figures, and traces without where on this machine they happened."""

from __future__ import annotations

import re
from typing import Any

_URL = re.compile(r"\(?\b(?:https?|file):/+\S+?\)?(?=[\s,;\]]|$)")
_PATH = re.compile(r"\(?(?:file:)?/(?:[\w.+@-]+/)+[\w.+@-]*\)?")
MIB = 1 << 20
TOLD_MAX = 1_000
"""Characters of an error that a reader of the report reads."""


def without_places(text: str) -> str:
    """Replace paths and addresses, which differ from machine to machine."""
    return _PATH.sub("<path>", _URL.sub("<address>", text))


def telling_lines(error: Exception) -> str:
    """Return the line of a trace that says what happened, and the two behind it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [
        index
        for index, line in enumerate(lines)
        if ("Error" in line or "Exception" in line) and not line.startswith(("at ", "File "))
    ]
    first = telling[-1] if telling else max(0, len(lines) - 3)
    return without_places("\n".join(lines[first : first + 3]))[:TOLD_MAX] or repr(error)


def count(number: int) -> str:
    """Return a number as a reader takes it in: 1 M, 10 000."""
    if number >= 1_000_000 and number % 100_000 == 0:
        return f"{number / 1_000_000:g} M"
    return f"{number:,}".replace(",", " ")


def ms(seconds: float) -> str:
    """Return a time in milliseconds, long ones in seconds."""
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def times(seconds: dict[str, float]) -> str:
    """Return median, least and greatest of a `measure.spread`."""
    return f"{ms(seconds['median'])} ({ms(seconds['min'])} to {ms(seconds['max'])})"


def yes(value: bool | None) -> str:
    """Return whether two agree."""
    return {True: "yes", False: "**no**", None: "not comparable"}[value]


def row(cells: tuple[str, ...] | list[str]) -> str:
    """Return a row of a table."""
    return "| " + " | ".join(cell.replace("\n", " ").replace("|", "\\|") for cell in cells) + " |"


def by_number(item: tuple[str, Any]) -> int:
    """Return the number that the key of an item is written as, to sort by."""
    return int(item[0])
