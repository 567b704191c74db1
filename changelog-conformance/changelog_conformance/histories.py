"""What a history is: batches of keyed commands as JSON, in which a person can read them.

A history has columns, a key, a column that orders the commands of a key, and steps:

    {"rows": [...]}          a batch; a row with ``"gone": true`` deletes its key
    {"again": 0}             the rows of batch 0 once more, as a source that goes back delivers them
    {"restart": true}        the writer is closed and opened again
    {"columns": {...}}       the table gains columns

A value that is absent from a row is null. A float may be written as ``"NaN"``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]
"""Column to value. A command has ``gone`` besides; nulls may be absent."""

HISTORIES = Path(__file__).resolve().parents[1] / "histories"
TYPES = ("int64", "string", "float64")
GONE = "gone"


class HistoryError(ValueError):
    """A history does not say what it must; the text says where and what is expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows that come at once; ``again`` is the number of the batch that they repeat."""

    rows: tuple[Row, ...]
    again: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """The writer is closed and opened again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewColumns:
    """The table gains columns, which are null in the rows that it has."""

    columns: Mapping[str, str]


Step: TypeAlias = Batch | Restart | NewColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A named history and the one property that it shows."""

    name: str
    says: str
    shows: str
    columns: Mapping[str, str]
    keys: tuple[str, ...]
    order: str
    steps: tuple[Step, ...]

    @property
    def row_count(self) -> int:
        """Rows of all batches: the smaller of two histories says more."""
        return sum(len(step.rows) for step in self.steps if isinstance(step, Batch))


def load(folder: Path = HISTORIES) -> tuple[History, ...]:
    """Return the named histories, by name."""
    return tuple(
        parse(json.loads(path.read_text(encoding="utf-8")), path.stem)
        for path in sorted(folder.glob("*.json"))
    )


def parse(text: Mapping[str, Any], name: str) -> History:
    """Return a history of what its file holds.

    Raises
    ------
    HistoryError
        A field is missing, a type is unknown, or a row has a column that the table lacks.
    """
    missing = {"says", "shows", "columns", "keys", "order", "steps"} - text.keys()
    if missing:
        raise HistoryError(f"{name}: expected all fields, found none of {sorted(missing)}")
    columns = dict(text["columns"])
    steps: list[Step] = []
    batches: list[tuple[Row, ...]] = []
    for number, step in enumerate(text["steps"]):
        place = f"{name}, step {number}"
        match step:
            case {"rows": rows}:
                batches.append(tuple(_row(each, columns, place) for each in rows))
                steps.append(Batch(rows=batches[-1]))
            case {"again": int(again)} if again < len(batches):
                steps.append(Batch(rows=batches[again], again=again))
            case {"restart": True}:
                steps.append(Restart())
            case {"columns": dict(more)}:
                columns.update(more)
                steps.append(NewColumns(columns=more))
            case _:
                raise HistoryError(f"{place}: expected rows, again, restart or columns: {step}")
    unknown = set(columns.values()) - set(TYPES)
    if unknown:
        raise HistoryError(f"{name}: expected types of {TYPES}, found {sorted(unknown)}")
    return History(
        name=name,
        says=text["says"],
        shows=text["shows"],
        columns=dict(text["columns"]),
        keys=tuple(text["keys"]),
        order=text["order"],
        steps=tuple(steps),
    )


def to_json(history: History) -> dict[str, Any]:
    """Return what `parse` makes the same history of."""
    steps: list[dict[str, Any]] = []
    for step in history.steps:
        match step:
            case Batch(again=None, rows=rows):
                steps.append({"rows": [_shown(row) for row in rows]})
            case Batch(again=again):
                steps.append({"again": again})
            case Restart():
                steps.append({"restart": True})
            case NewColumns(columns=columns):
                steps.append({"columns": dict(columns)})
    return {
        "says": history.says,
        "shows": history.shows,
        "columns": dict(history.columns),
        "keys": list(history.keys),
        "order": history.order,
        "steps": steps,
    }


def key_of(row: Mapping[str, Any], keys: Sequence[str]) -> tuple[Any, ...]:
    """Return the key of a row, in which a null equals a null and NaN equals NaN."""
    values = (row.get(name) for name in keys)
    return tuple("NaN" if value != value else value for value in values)


def newest(rows: Sequence[Row], keys: Sequence[str], order: str) -> list[Row]:
    """Return the newest command of each key: a ``MERGE`` takes at most one."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = key_of(row, keys)
        if key not in found or row[order] >= found[key][order]:
            found[key] = row
    return list(found.values())


def _row(row: Mapping[str, Any], columns: Mapping[str, str], place: str) -> Row:
    unknown = row.keys() - columns.keys() - {GONE}
    if unknown:
        raise HistoryError(f"{place}: expected columns of {list(columns)}, found {sorted(unknown)}")
    return {
        name: float(value) if columns.get(name) == "float64" and value is not None else value
        for name, value in row.items()
    }


def _shown(row: Row) -> Row:
    return {name: "NaN" if value != value else value for name, value in row.items()}
