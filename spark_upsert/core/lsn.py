"""Positions in PostgreSQL's write-ahead log (LSN): numbers here, texts as the server prints them."""

from __future__ import annotations

import re

from spark_upsert.errors import OptionError

_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")

_PAGE_BYTES, _PAGE_HEADER_BYTES = 8192, 40
"""No record ends within a page's header, so a position there means the page's start."""


def format_lsn(lsn: int) -> str:
    """Format a log position as PostgreSQL does: ``0/1A2B3C4``."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """Parse a log position; raise `ValueError` for another text.

    >>> format_lsn(parse_lsn("16/b374d848"))
    '16/B374D848'
    """
    match = _LSN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r:.80} is not a log position")
    return int(match[1], 16) << 32 | int(match[2], 16)


def lsn_argument(name: str, text: str) -> int:
    """Parse the log position in an option or an argument; raise `OptionError` for another text."""
    try:
        return parse_lsn(text)
    except ValueError:
        expected = "a position of PostgreSQL's log, such as '0/1A2B3C4'"
        raise OptionError.invalid(name, text, expected) from None


def without_page_header(lsn: int) -> int:
    """Return the end of the record before a position, which may be the start of a page's data.

    The server reports its log's end so: there the next record begins.
    """
    in_page = lsn % _PAGE_BYTES
    return lsn - in_page if in_page <= _PAGE_HEADER_BYTES else lsn
