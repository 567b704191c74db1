"""What a history means: the table behind each batch, and whether changes are exactly its changes.

The rule, for each key by itself:

- the command with the greatest order stands; a delete is a command and keeps its order;
- a command with a lower order than the one that stands changes nothing, whenever it comes;
- so does a command that is delivered again;
- of two different commands with the same order either may stand (a *tie*), and one of them does.

Hence the table is a function of the set of commands, ties apart. The changes of a batch are
the difference between the table behind it and the table before it, as signed rows (``+1`` inserted,
``-1`` retracted) of which equal ones are added up. They are compared with the tables that a system
*shows*, so that a system that lets a late row win is told that once, and not by its change feed too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from changelog_conformance.histories import GONE, Batch, History, Row, key_of

Key: TypeAlias = tuple[Any, ...]
Cells: TypeAlias = tuple[tuple[str, str], ...]
"""A row as it is compared: names and texts of the values that are not null, by name.

A column that a table has gained is null in its old rows, and so they stay equal.
"""


def cells(row: Mapping[str, Any]) -> Cells:
    """Return a row as it is compared; every NaN is the same value, and ``1`` is not ``1.0``."""
    return tuple(
        (name, repr(value))
        for name, value in sorted(row.items())
        if value is not None and name != GONE
    )


@dataclass(slots=True)
class Entry:
    """What stands for a key: an order, and what may stand there; None is a deleted row."""

    order: Any
    rows: set[Cells | None] = field(default_factory=set)


@dataclass(slots=True)
class Oracle:
    """The table as a dictionary, row after row: the slow, obvious version of the rule."""

    keys: Sequence[str]
    order: str
    entries: dict[Key, Entry] = field(default_factory=dict)

    def apply(self, rows: Iterable[Row]) -> None:
        """Apply the commands of a batch."""
        for row in rows:
            key = key_of(row, self.keys)
            order, shown = row[self.order], None if row.get(GONE) else cells(row)
            entry = self.entries.get(key)
            if entry is None or order > entry.order:
                self.entries[key] = Entry(order, {shown})
            elif order == entry.order:
                entry.rows.add(shown)

    def expected(self) -> dict[Key, frozenset[Cells | None]]:
        """Return what may be shown of each key that was named; None is no row."""
        return {key: frozenset(entry.rows) for key, entry in self.entries.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What a system shows behind one batch."""

    rows: Sequence[Row]
    changes: Sequence[tuple[Row, int]] | None
    """Rows with ``+1`` or ``-1``, in any order; None if the system has no change feed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A difference: behind which batch of the history (from 0), and what it is."""

    batch_index: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is wrong with what a system showed of one history; None is nothing."""

    rows: Finding | None
    changes: Finding | None
    has_feed: bool


def judge(history: History, observed: Sequence[Observed]) -> Verdict:
    """Judge what a system showed behind each batch.

    Parameters
    ----------
    observed : sequence of Observed
        One for each batch, a repeated one included; fewer if the system refused the rest.
    """
    oracle = Oracle(history.keys, history.order)
    rows: Finding | None = None
    changes: Finding | None = None
    before: Counter[Cells] = Counter()
    for index, (batch, seen) in enumerate(zip(_batches(history), observed, strict=False)):
        oracle.apply(batch.rows)
        shown = Counter(cells(row) for row in seen.rows)
        text = wrong_rows(oracle.expected(), seen.rows, history.keys)
        if rows is None and text:
            rows = Finding(batch_index=index, text=text)
        text = "" if seen.changes is None else wrong_changes(before, shown, seen.changes)
        if changes is None and text:
            changes = Finding(batch_index=index, text=text)
        before = shown
    return Verdict(
        rows=rows,
        changes=changes,
        has_feed=any(each.changes is not None for each in observed),
    )


def wrong_rows(
    expected: Mapping[Key, frozenset[Cells | None]], rows: Sequence[Row], keys: Sequence[str]
) -> str:
    """Return what is wrong with the rows of a table; nothing is an empty text."""
    found: dict[Key, list[Cells]] = {}
    for row in rows:
        found.setdefault(key_of(row, keys), []).append(cells(row))
    for key in sorted(found.keys() | expected.keys(), key=repr):
        shown, may = found.get(key, []), expected.get(key, frozenset([None]))
        if len(shown) > 1 or (shown[0] if shown else None) not in may:
            wanted = " or ".join(sorted(text_of(each) for each in may))
            return f"expected {wanted}, found {' and '.join(map(text_of, shown)) or 'no row'}"
    return ""


def wrong_changes(
    before: Counter[Cells], behind: Counter[Cells], changes: Sequence[tuple[Row, int]]
) -> str:
    """Return what is wrong with the changes between two tables; nothing is an empty text."""
    told: Counter[Cells] = Counter()
    for row, diff in changes:
        told[cells(row)] += diff
    for each in sorted(told.keys() | before.keys() | behind.keys()):
        wanted = behind[each] - before[each]
        if told[each] != wanted:
            return f"expected {wanted:+d} of {text_of(each)}, found {told[each]:+d}"
    return ""


def text_of(row: Cells | None) -> str:
    """Return a row as a person reads it: ``(id=1, value='a')``."""
    return "no row" if row is None else f"({', '.join(f'{n}={v}' for n, v in row)})"


def _batches(history: History) -> Iterator[Batch]:
    return (step for step in history.steps if isinstance(step, Batch))
