"""Make a trace fit for a report: what it says, without where on this machine it happened."""

from __future__ import annotations

import re

_URL = re.compile(r"\(?\b(?:https?|file):/+\S+?\)?(?=[\s,;\]]|$)")
_PATH = re.compile(r"\(?(?:file:)?/(?:[\w.+@-]+/)+[\w.+@-]*\)?")
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
