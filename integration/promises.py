"""The promises P2, P3 and P5, checked on every version of a table that Spark has written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_upsert.table.log.manifest import Commit
from spark_upsert.table.state.reduce import EMPTY, Counters
from spark_upsert.table.table import Table

RETRACTIONS = ("delete", "update_preimage")

Contents = dict[tuple[Any, ...], tuple[Any, ...]]
"""Key to values."""


def canonical(value: Any) -> Any:
    """Return a value that is equal, and hashable, exactly if Spark takes two values for equal."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, list | tuple):
        return tuple(canonical(element) for element in value)
    if isinstance(value, dict):
        return tuple((name, canonical(element)) for name, element in value.items())
    return value


def contents(rows: Iterable[dict[str, Any]], keys: Sequence[str]) -> Contents:
    """Return rows by key; a key that stands twice is a failure."""
    found: Contents = {}
    for row in rows:
        key, values = _split(row, keys)
        assert key not in found, f"key {key} stands twice"
        found[key] = values
    return found


def fold(
    changes: Iterable[dict[str, Any]], keys: Sequence[str], start: Contents | None = None
) -> Contents:
    """Fold changes; each retraction must name the row that is there, each insertion a free key."""
    rows = dict(start or {})
    for change in changes:
        own = {name: v for name, v in change.items() if name not in _CHANGE_COLUMNS}
        key, values = _split(own, keys)
        is_retraction = change["_change_type"] in RETRACTIONS
        assert change["_diff"] == (-1 if is_retraction else 1), change
        if is_retraction:
            assert rows.pop(key, None) == values, f"{change} retracts no row"
        else:
            assert key not in rows, f"{change} inserts a second row"
            rows[key] = values
    return rows


_CHANGE_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp", "_diff")


def _split(row: dict[str, Any], keys: Sequence[str]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    values = (canonical(value) for name, value in row.items() if name not in keys)
    return tuple(canonical(row[key]) for key in keys), tuple(values)


def rows_of(
    path: Path | str, version: int | None = None, *, storage: Mapping[str, str] | None = None
) -> Contents:
    """Return the contents of a table at a version."""
    table = Table.open(str(path), storage_options=storage)
    return contents(table.snapshot(version).to_pylist(), table.log.head().schema.keys)


def epochs_of(path: Path | str) -> list[Commit]:
    """Return the commits that carry rows, the oldest first."""
    log = Table.open(str(path)).log
    return [commit for commit in log.commits(0, log.head().upper) if commit.is_epoch]


def counters_of(path: Path | str) -> Counters:
    """Return the sum of all counters."""
    return sum((Counters.from_json(c.counters) for c in epochs_of(path)), EMPTY)


def orphans(path: Path | str) -> set[str]:
    """Return the data files that no version names."""
    log = Table.open(str(path)).log
    named = set()
    for commit in log.commits(0, log.head().upper):
        named |= {file.path for file in commit.added}
        named |= {part.file.path for part in commit.compacted}
    return {f"data/{file.name}" for file in (Path(path) / "data").glob("*")} - named


def assert_sound(path: Path | str, storage: Mapping[str, str] | None = None) -> Table:
    """Check on every version that the changelog folds to the snapshot and every row is counted."""
    table = Table.open(str(path), storage_options=storage)
    keys = table.log.head().schema.keys
    rows: Contents = {}
    for version in range(table.log.head().upper):
        commit = table.log.commit(version)
        changes = table.changes(version, version + 1, emit_unchanged=True).to_pylist()
        rows = fold(changes, keys, rows)
        then = _snapshot(table, version, keys)
        assert rows == then, f"version {version} is not the sum of its changes"
        assert commit.live_rows == len(rows), f"version {version}: {commit.live_rows} live rows"
        if commit.is_epoch:
            counters = Counters.from_json(commit.counters)
            assert counters.is_balanced, f"version {version}: {counters}"
            assert counters.output_count == len(changes), f"version {version}: {counters}"
    return table


def _snapshot(table: Table, version: int, keys: Sequence[str]) -> Contents:
    """Return the contents at a version in the columns of the newest, as the changes are."""
    names = table.log.head().schema.columns.names
    rows = table.snapshot(version).to_pylist()
    return contents(({name: row.get(name) for name in names} for row in rows), keys)
