"""Records that somebody has altered: what becomes of JSON by one change anywhere in it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

Record = dict[str, Any]
Path = tuple[str | int, ...]

ODD: list[Any] = [None, True, -1, 1, 2**63 - 1, 2**63, 0.5, "", "z", "²", [], [None], {}, {"x": 1}]
"""What a field may be instead."""


def sites(record: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the way to each value in a record."""
    names: Any = ()
    if isinstance(record, dict | list):
        names = record if isinstance(record, dict) else range(len(record))
    for name in names:
        yield (*path, name)
        yield from sites(record[name], (*path, name))


def altered(record: Record, path: Path, change: Callable[[Any, Any], None]) -> Record:
    """Return a record with a change where a way ends: of what holds the value, by its name."""
    found: Record = copy.copy(record)
    holder: Any = found
    for name in path[:-1]:
        # What lies beside the way is shared: thousands of records differ in one value each.
        holder[name] = copy.copy(holder[name])
        holder = holder[name]
    change(holder, path[-1])
    return found


def put(value: Any) -> Callable[[Any, Any], None]:
    def change(holder: Any, name: Any) -> None:
        holder[name] = value

    return change


def drop(holder: Any, name: Any) -> None:
    del holder[name]


def alterations(record: Record) -> Iterator[tuple[str, Record]]:
    """Yield what becomes of a record by one change anywhere."""
    for path in sites(record):
        where = "/".join(map(str, path))
        value: Any = record
        for name in path:
            value = value[name]
        yield f"{where} is gone", altered(record, path, drop)
        near: list[int] = [value - 1, value + 1, value + 9] if type(value) is int else []
        for odd in [*ODD, *near]:
            yield f"{where} is {odd!r}", altered(record, path, put(odd))
        if isinstance(value, dict):
            for name in value:
                for other in value.keys() - {name}:
                    changed = {**value, name: value[other]}
                    yield f"{where}: {name} is {other}", altered(record, path, put(changed))
