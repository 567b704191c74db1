"""`upsertflow parked` and `unpark`: what is shown of rows that wait for their table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from spark_upsert.model.durations import render_age, render_time
from spark_upsert.model.template import Template, is_routed
from spark_upsert.routed.park import Parked
from spark_upsert.routed.unpark import Unparked
from spark_upsert.store import Store
from spark_upsert.store.resolve import open_store

SHOWN = ("folder", "name", "query", "batch", "rows", "parked", "age", "error", "reason")
"""The columns about the parked rows of one table and batch, for people."""

UNPARKED = tuple(field.name for field in fields(Unparked))


def open_root(path: str, storage: Mapping[str, str]) -> Store:
    """Open a root, which is given as such or as the template of a stream."""
    return open_store(Template.parse(path).root if is_routed(path) else path, storage)


def line_of(parked: Parked, now_ms: int) -> dict[str, Any]:
    """Return the facts about the parked rows of one table and batch, for programs."""
    names = ("folder", "name", "query", "batch", "rows", "parked_ms")
    return {
        **{name: getattr(parked, name) for name in names},
        "age_ms": max(0, now_ms - parked.parked_ms),
        **{name: getattr(parked, name) for name in ("error", "reason", "hint")},
    }


def for_people(parked: Parked, now_ms: int) -> dict[str, Any]:
    """Return the columns to show about the parked rows of one table and batch."""
    since, age_ms = parked.parked_ms, max(0, now_ms - parked.parked_ms)
    shown = {"parked": render_time(since // 1000 * 1000), "age": render_age(age_ms)}
    return {name: shown.get(name) or getattr(parked, name, None) for name in SHOWN}


def advice_of(parked: Iterable[Parked], root: str) -> Iterator[str]:
    """Yield what to do, once for each table: the hint of the first error that has one."""
    hints: dict[str, str] = {}
    for each in parked:
        if each.hint:
            hints.setdefault(each.name, each.hint)
    for name, hint in hints.items():
        yield f"{name or 'rows without a table'}: {hint}"
    if any(hints):
        yield f"Then: upsertflow unpark {root} NAME, with the --set and --unset that are named."
