"""Command output: tables for people, JSON lines for programs, and progress.

Control characters are escaped in all text for a terminal (`escaped`). Progress is one line on a
terminal's standard error only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid
from rich.text import Text

from spark_upsert.core.durations import render_ms

_PIPE_WIDTH = 240
"""Line width if the output is not a terminal."""

_POSITIONS = frozenset(
    {
        *("version", "since", "fence", "newest", "before", "number", "index"),
        *("epoch_lower", "epoch_upper", "hash_lower", "hash_upper"),
    }
)
"""Numeric identifier fields, not counts."""

_TIMES = frozenset({"committed_ms", "parked_ms", "timestamp_ms"})
"""Times in ms since 1970. Other ``_ms`` fields are durations."""

_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, Unicode line breaks, bidirectional marks, and lone surrogates, which cannot
be printed."""

_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def escaped(text: str) -> str:
    r"""Return a text with everything a terminal would obey spelled out.

    >>> print(escaped("\x1b[2Jab\n"))
    \x1b[2Jab\n
    """
    return _UNSAFE.sub(lambda found: _spell(found[0]), text)


def _spell(char: str) -> str:
    code = ord(char)
    return _SHORT.get(char) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def escaped_lines(text: str) -> str:
    """Apply `escaped` to each line."""
    return "\n".join(map(escaped, text.split("\n")))


def print_facts(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print names and values."""
    if as_json:
        _print_json(facts)
        return
    grid = Grid(box=None, show_header=False, pad_edge=False)
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column()
    for name, value in facts.items():
        grid.add_row(heading(name), Text(pretty(name, value)))
    _console().print(grid)


def heading(name: str) -> str:
    """Return a field's display name, without its unit suffix: the value shows the unit."""
    return name.removesuffix("_ms").replace("_", " ")


def print_rows(rows: Sequence[Mapping[str, Any]], names: Iterable[str], *, as_json: bool) -> None:
    """Print rows about a table. A grid omits columns empty or zero everywhere."""
    _print_grid(rows, _select_filled(rows, names), pretty, as_json=as_json)


def _select_filled(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> list[str]:
    names = list(names)
    filled = [name for name in names if any(row[name] not in (None, 0, {}) for row in rows)]
    return filled or names


def print_data(rows: Sequence[Mapping[str, Any]], names: Iterable[str], *, as_json: bool) -> None:
    """Print table rows."""
    _print_grid(rows, list(names), lambda _, value: _format_exact(value), as_json=as_json)


def _print_grid(
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    render: Callable[[str, Any], str],
    *,
    as_json: bool,
) -> None:
    if as_json:
        for row in rows:
            _print_json(row)
        return
    _console().print(_grid(rows, names, render))


def _grid(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], render: Callable[[str, Any], str]
) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        is_number = any(isinstance(row[name], int | float | Decimal) for row in rows)
        justify: Literal["right", "left"] = "right" if is_number else "left"
        # The names of a table's own columns are its own; ours say a unit, which is in the text.
        shown = name.removesuffix("_ms") if render is pretty else name
        grid.add_column(Text(escaped(shown)), justify=justify, overflow="fold")
    for row in rows:
        # Text, because data may look like rich's markup.
        grid.add_row(*(Text(render(name, row[name])) for name in names))
    return grid


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)


def _print_json(value: Mapping[str, Any]) -> None:
    print(_json(value))


def _json(value: Any) -> str:
    text = json.dumps(value, default=_to_plain, ensure_ascii=False)
    # JSON itself escapes only the first of the control characters.
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _to_plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def _format_exact(value: Any) -> str:
    """Format a table value exactly."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping | list | tuple):
        return _json(value)
    return escaped(str(_to_plain(value)))


def pretty(name: str, value: Any) -> str:
    """Format a value about a table for display."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "bytes" or name.endswith("_bytes") or name.startswith("bytes_"):
        return bytes_text(value)
    if name in _TIMES:
        return f"{datetime.fromtimestamp(value / 1000).astimezone():%Y-%m-%d %H:%M:%S %Z}"
    if name.endswith("_ms"):
        return render_ms(round(value))
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, int):
        return str(value) if name in _POSITIONS else f"{value:,}"
    if isinstance(value, Mapping):
        return "\n".join(escaped(f"{key}: {item}") for key, item in value.items())
    if isinstance(value, list | tuple):
        return "\n".join(escaped(str(item)) for item in value)
    return escaped(str(_to_plain(value)))


def bytes_text(count: int) -> str:
    """Format a byte count with a unit."""
    size = float(count)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError(count)


OnProgress = Callable[[str], None]
"""Receives a command's progress text."""

DRAWN_PER_S = 4.0


@contextmanager
def progress(doing: str, *, as_json: bool, console: Console | None = None) -> Iterator[OnProgress]:
    """Show a spinner and elapsed time; yields a function for updating the text."""
    console = console or Console(stderr=True, highlight=False)
    if as_json or not console.is_terminal:
        yield lambda _: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, refresh_per_second=DRAWN_PER_S
    ) as shown:
        task = shown.add_task(doing, total=None)
        yield lambda text: shown.update(task, description=escaped(f"{doing}: {text}"))
