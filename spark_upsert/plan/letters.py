"""Upper and lower case of whole columns: Unicode's full mappings, as Spark has them.

Arrow maps one character to one: it makes no ``SS`` of a sharp s, and no final sigma. Such
characters are replaced before, which costs nothing where a column has none.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import pyarrow.compute as pc

_DOTTED_I = "\u0130"
_SIGMA, _FINAL_SIGMA = "\u03a3", "\u03c2"

_CASED = r"\p{Lu}\p{Ll}\p{Lt}"
_PASSED_OVER = r"\p{M}\p{Lm}\p{Sk}\p{Cf}'.:\x{B7}\x{2018}\x{2019}"
_AT_THE_END = (
    rf"([{_CASED}][{_PASSED_OVER}]*){_SIGMA}([{_PASSED_OVER}]*(?:[^{_CASED}{_PASSED_OVER}]|$))"
)
"""A sigma behind a letter, and before none (Unicode, table 3-17)."""


def upper(texts: Any) -> Any:
    """Return texts in upper case."""
    if not _is_plain(texts):
        longer = _longer()
        if _any(pc.match_substring_regex(texts, f"[{''.join(longer)}]")):
            for letter, letters in longer.items():
                texts = pc.replace_substring(texts, letter, letters)
    return pc.utf8_upper(texts)


def lower(texts: Any) -> Any:
    """Return texts in lower case."""
    if not _is_plain(texts):
        texts = pc.replace_substring(texts, _DOTTED_I, _DOTTED_I.lower())
        texts = pc.replace_substring_regex(texts, _AT_THE_END, rf"\1{_FINAL_SIGMA}\2")
    return pc.utf8_lower(texts)


def _is_plain(texts: Any) -> bool:
    return not _any(pc.invert(pc.string_is_ascii(texts)))


def _any(found: Any) -> bool:
    return pc.any(found, min_count=0).as_py() is True


@cache
def _longer() -> dict[str, str]:
    """Return the letters with an upper case of several letters, such as the sharp s."""
    letters = map(chr, range(0x80, sys.maxunicode + 1))
    return {letter: letter.upper() for letter in letters if len(letter.upper()) > 1}
