"""How values are printed: for people as tables, for programs as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

_PIPE_WIDTH = 240
"""Columns of a line that nobody looks at in a terminal."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def print_facts(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print names and their values."""
    if as_json:
        _print_json(facts)
        return
    grid = Grid(box=None, show_header=False, pad_edge=False)
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column()
    for name, value in facts.items():
        grid.add_row(name.removesuffix("_ms").replace("_", " "), _cell(name, value))
    _console().print(grid)


def print_rows(rows: Sequence[Mapping[str, Any]], names: Iterable[str], *, as_json: bool) -> None:
    """Print rows. For people without the columns that are empty or zero everywhere."""
    if as_json:
        for row in rows:
            _print_json(row)
        return
    filled = [name for name in names if any(row[name] not in (None, 0) for row in rows)]
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in filled or names:
        is_number = any(isinstance(row[name], int | float) for row in rows)
        grid.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(_cell(name, row[name]) for name in filled))
    _console().print(grid)


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)


def _print_json(value: Mapping[str, Any]) -> None:
    print(json.dumps(value, default=_plain, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def _cell(name: str, value: Any) -> Text:
    """Return a value as text; plain text, because data may look like rich's markup."""
    if value is None:
        return Text("")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if name == "bytes" or name.endswith("_bytes") or name.startswith("bytes_"):
        return Text(_bytes(value))
    if name.endswith("_ms"):
        return Text(f"{datetime.fromtimestamp(value / 1000).astimezone():%Y-%m-%d %H:%M:%S %Z}")
    if isinstance(value, datetime):
        return Text(value.strftime("%Y-%m-%d %H:%M:%S"))
    if isinstance(value, float):
        return Text(f"{value:.2f}")
    if isinstance(value, int):
        return Text(f"{value:,}")
    if isinstance(value, bytes):
        return Text(value.hex())
    if isinstance(value, Mapping):
        return Text("\n".join(f"{key}: {each}" for key, each in value.items()))
    if isinstance(value, list | tuple):
        return Text("\n".join(map(str, value)))
    return Text(str(value))


def _bytes(count: int) -> str:
    size = float(count)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError(count)
