"""The fields of a line for a program's log, as in ``path=/lake/orders version=7 kind=append``.

Each event is one line: a few words, then what happened in numbers and names, by the words of the
metadata tables. No rows, and no secrets of URLs. Whatever a name holds, it stays one field of one
line.
"""

from __future__ import annotations

import json
import re
from typing import Any

from spark_upsert.errors import masked

_PLAIN = re.compile(r"[\w.,:/@%+*\-\[\)]+")


class Fields:
    """Names and values, made into text only if a log wants the line; what is None is left out.

    >>> str(Fields(path="s3://me:pass@lake/t", rows=7, writer=None, note="a b"))
    'path=s3://***@lake/t rows=7 note="a b"'
    """

    __slots__ = ("_values",)

    def __init__(self, **values: Any) -> None:
        self._values = values

    def __str__(self) -> str:
        return " ".join(
            f"{name}={_shown(value)}" for name, value in self._values.items() if value is not None
        )


def _shown(value: Any) -> str:
    text = masked(str(value))
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
