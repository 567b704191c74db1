"""`upsertflow parked` and `unpark`: what is shown of rows that wait for their table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from spark_upsert.routed.park import Parked
from spark_upsert.routed.template import Template, is_routed
from spark_upsert.routed.unpark import Unparked
from spark_upsert.store import Store, open_store

LINE = ("folder", "name", "query", "batch", "rows", "parked_ms", "error", "reason")
"""The columns of what is parked for one table of one batch."""

UNPARKED = tuple(field.name for field in fields(Unparked))


def open_root(path: str, storage: Mapping[str, str]) -> Store:
    """Open a root, which is given as such or as the template of a stream."""
    return open_store(Template.parse(path).root if is_routed(path) else path, storage)


def line_of(parked: Parked) -> dict[str, Any]:
    """Return what is shown of what is parked for one table of one batch."""
    return {name: getattr(parked, name) for name in LINE}
