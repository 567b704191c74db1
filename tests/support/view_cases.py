"""The cases of incremental views, in a text form that a reviewer understands without the code.

A line that does not begin with a number names a plan; the cases below it are about that plan. A
case is its number, what happens to the tables and, behind ``=>``, what comes out:

==========  ====================================================================
`` / ``     ends an epoch, and what it gave
`` // ``    ends a micro-batch
``O 1,7,3`` puts a row, key first; ``; `` stands between rows
``O -1``    deletes a key
``O!``      overwrites the table; ``O@9`` is committed at the time 9
``~``       NULL; ``[4 5]`` is a list
``+`` ``-`` a row that is inserted, deleted; ``a>b`` is updated; ``.`` is nothing
``7#1=3``   in raw contributions: group 7, part 1, value 3
==========  ====================================================================

``net`` before a plan: one step per micro-batch. ``raw``: contributions instead of results. A plan
with groups gives what it keeps, per epoch or, where fewer results stand than epochs, per
micro-batch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a table of the cases, its key first."""

    columns: pa.Schema
    key: tuple[str, ...]
    indexes: tuple[str, ...] = ()
    is_kept: bool = False
    """Whether the table keeps groups, of which one may be NULL."""


def _shape(
    key: str, values: str, *, indexes: str = "", is_kept: bool = False, **types: pa.DataType
) -> Shape:
    names = [*key.split(), *values.split()]
    columns = pa.schema([(name, types.get(name, pa.int64())) for name in names])
    return Shape(columns, tuple(key.split()), tuple(indexes.split()), is_kept)


TABLES: Mapping[str, Shape] = {
    "O": _shape("id", "c x", indexes="c x"),
    "C": _shape("id", "n", n=pa.string()),
    "D": _shape("id", "m"),
    "T": _shape("id", "a", a=pa.list_(pa.field("element", pa.int64()))),
    "F": _shape("id", "g f", f=pa.float64()),
    "E": _shape("id", "boss nm", indexes="boss", boss=pa.int32(), nm=pa.string()),
    "N": _shape("a b", "v", a=pa.float64()),
    "M": _shape("a b", "w", a=pa.float64()),
    "G": _shape("g", "v", is_kept=True),
}
"""``D.m`` is a number in all cases but the tenth, where it is NULL."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one commit does to a table."""

    table: str
    puts: tuple[Row, ...]
    deletes: tuple[Row, ...]
    """Keys."""
    overwrite: bool = False
    time: int | None = None
    """When it is committed; None: behind all before it."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A change that comes out: an insert has no old row, a delete no new one."""

    old: Row | None
    new: Row | None


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a step adds to an entry of a kept table; sums that are not named get nothing."""

    group: Row
    part: int
    value: Any
    sums: tuple[tuple[str, Any], ...]


InputRows = tuple[tuple[Changed, ...], ...] | tuple[tuple[Contribution, ...], ...]
"""What each step of a micro-batch gives, or the whole of it as one."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case."""

    number: int
    words: str
    plan: str
    mode: str
    """``""``, ``net`` or ``raw``."""
    batches: tuple[tuple[Epoch, ...], ...] = ()
    """The epochs of each micro-batch."""
    given: tuple[InputRows, ...] = ()
    """For each micro-batch."""
    refused: str = ""
    """What the refusal says, if the plan is refused."""

    @property
    def id(self) -> str:
        """The case's number and what it is about."""
        return f"{self.number} {self.words}"


def cases(*numbers: int) -> list[Case]:
    """Return the cases with some numbers, by default all."""
    return [case for case in CASES if not numbers or case.number in numbers]


def between(first: int, last: int) -> list[Case]:
    """Return the cases from a number to another, both included."""
    return [case for case in CASES if first <= case.number <= last]


def _parsed(text: str) -> list[Case]:
    found, mode, plan = [], "", ""
    for line in text.strip().splitlines():
        if not line[0].isdigit():
            mode, plan = _parts(r"(?:(net|raw) )?(.+)", line)
            continue
        number, _, rest = line.partition(" ")
        happens, _, comes = rest.partition("=> ")
        case = Case(int(number), WORDS[int(number)], plan, mode)
        if comes.startswith("refused: "):
            found.append(_with(case, refused=comes.removeprefix("refused: ")))
            continue
        batches = tuple(
            tuple(map(_epoch, batch.split(" / "))) for batch in happens.strip().split(" // ")
        )
        one = _contributions if mode == "raw" else _changes
        given = tuple(tuple(map(one, batch.split(" / "))) for batch in comes.split(" // "))
        found.append(_with(case, batches=batches, given=given))
    return found


def _with(case: Case, **fields: Any) -> Case:
    return Case(case.number, case.words, case.plan, case.mode, **fields)


def _epoch(text: str) -> Epoch:
    head, _, body = text.strip().partition(" ")
    table, overwrite, time = _parts(r"(\w)(!?)(?:@(\d+))?", head)
    shape = TABLES[table]
    puts, deletes = [], []
    for row in body.split("; "):
        if row.startswith("-") and row.count(",") + 1 == len(shape.key):
            deletes.append(_row(row[1:]))
        else:
            puts.append(_row(row))
    return Epoch(table, tuple(puts), tuple(deletes), bool(overwrite), int(time) if time else None)


def _changes(text: str) -> tuple[Changed, ...]:
    if text.strip() == ".":
        return ()
    return tuple(map(_change, text.strip().split("; ")))


def _change(text: str) -> Changed:
    if ">" in text:
        old, new = text.split(">")
        return Changed(_row(old), _row(new))
    row = _row(text[1:])
    return Changed(None, row) if text[0] == "+" else Changed(row, None)


def _contributions(text: str) -> tuple[Contribution, ...]:
    if text.strip() == ".":
        return ()
    found = []
    for entry in text.strip().split("; "):
        head, *sums = entry.split()
        group, part, value = _parts(r"([^#]+)(?:#(\d+)=(.+))?", head)
        added = [_parts(r"(\w+)([+-].+)", each) for each in sums]
        found.append(
            Contribution(
                _row(group),
                int(part or 0),
                _value(value) if value else None,
                tuple((name, _value(number.removeprefix("+"))) for name, number in added),
            )
        )
    return tuple(found)


def _parts(pattern: str, text: str) -> tuple[str, ...]:
    """Return the groups of a pattern that all of a text is; "" for those that are not there."""
    found = re.fullmatch(pattern, text)
    assert found is not None, text
    return found.groups(default="")


def _row(text: str) -> Row:
    return tuple(map(_value, text.split(",")))


def _value(text: str) -> Any:
    if text == "~":
        return None
    if text.startswith("["):
        return [_value(part) for part in text[1:-1].split()]
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal as the engine compares: NaN is NaN, -0.0 is 0.0."""
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


WORDS = {
    1: "a filter over an insert, an update and an overwrite",
    2: "only TRUE passes a filter",
    3: "an expression changes where its result does",
    4: "net changes of a delete and the same row again",
    5: "a list becomes rows, by position",
    6: "equal elements and NULL in a list",
    7: "-0.0 is 0.0 and NaN is NaN at the output",
    8: "an expression sees the sign of a zero",
    9: "a left join gets, changes and loses its right row",
    10: "a right row of NULLs looks like none",
    11: "an anti join turns with the other side",
    12: "a full join takes the key of either side",
    13: "net changes of a full join keep the key",
    14: "NULL as a part of a key joins nothing",
    15: "NaN joins NaN and -0.0 joins 0.0",
    16: "a change of the right side reaches all that point at it",
    17: "a foreign key moves to another right row and to none",
    18: "a foreign key is NULL or points at nothing",
    19: "both sides move in one micro-batch, one by one",
    20: "a semi join turns with the other side",
    21: "an anti join keeps a NULL foreign key",
    22: "a table joined with itself moves at both places",
    23: "net changes of both sides make one update",
    24: "a join upon a join",
    25: "the null extension comes and goes with the matches",
    26: "a match moves to another left row",
    27: "a semi join over a foreign key",
    28: "an anti join over a filter and a foreign key",
    29: "a group comes, changes and goes",
    30: "a sum without values is NULL",
    31: "a sum of zero is no empty group",
    32: "NULL is a group",
    33: "contributions of a sum",
    34: "contributions of a minimum",
    35: "minimum and maximum follow deletes",
    36: "NaN is the greatest value",
    37: "a float sum of fixed scale forgets nothing",
    38: "infinities leave a sum again",
    39: "one group for both zeros and one for all NaN",
    40: "groups over a left join",
    41: "a projection without a key, kept per micro-batch",
    42: "commits of two tables in the order of their times",
    43: "the same commits in other micro-batches take another way",
    44: "a full join needs one key column",
    45: "no index on the foreign key",
    46: "neither side is joined on its whole key",
    47: "the projection drops the key",
}

CASES = _parsed(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))
