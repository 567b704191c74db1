"""Command output: tables for people, JSON lines for programs, and progress.

Tables fit the terminal: they omit columns without content, cut ids, and name the columns that do
not fit. ``--wide`` prints everything. Control characters are escaped in all text for a terminal (`escaped`). Progress is one line on a
terminal's standard error only.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

import click
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid
from rich.text import Text

from spark_upsert.core.durations import render_age, render_ms, render_time

WIDE = "upsertflow.wide"
"""Key in a click context's ``meta``: whether ``--wide`` was passed."""

_PIPE_WIDTH = 240
"""Line width if the output is not a terminal and COLUMNS is not set."""

_WIDE_WIDTH = 1_000_000
"""Line width for ``--wide``."""

_FOLDED_WIDTH_MIN = 24
"""Minimum width for folded columns. Values up to this width are never folded."""

_POSITIONS = frozenset(
    {
        *("version", "newest", "before", "number", "batch"),
        *("shows_version", "shown", "delta_version", "epoch_lower", "epoch_upper"),
    }
)
"""Numbers that identify something. A column with them is shown even if all are 0."""

_FRONTIERS = frozenset({"since", "fence", "index"})
"""Numbers that are no counts either, but 0 means that there was no expiry, fence or second run."""

_FULL_RANGE = {"hash_lower": "0" * 16, "hash_upper": f"1{'0' * 16}"}
"""Hash bounds for a file with all keys, which are not shown."""

_MESSAGES = frozenset({"error", "findings", "never_whole", "note", "problem", "reason"})
"""Columns that are shown at any width."""

_DETAILS = frozenset(
    {"transactions", "query", "folder", "parked_ms", "renewed", "_commit_timestamp"}
)
"""Columns that are omitted first if a table is wider than the terminal."""

_WITH_IDS = frozenset({"path", "consumer", "transactions", "query", "folder"})
"""Fields with random ids, which are cut to 8 characters."""

_ID = re.compile(
    r"(?<![0-9a-z])([0-9a-f]{8})"
    r"(?:[0-9a-f]{24}|(?<=-.{8})[0-9a-f]{8}|(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
    r"(?![0-9a-z])(?:\.arrow)?"
)

_PATHS = frozenset({"path", "place"})
"""Fields with paths, shown relative to the command's argument."""

_TIMES = frozenset({"committed_ms", "parked_ms", "timestamp_ms"})
"""Times in ms since 1970. Other ``_ms`` fields are durations."""

_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, Unicode line breaks, bidirectional marks, and lone surrogates, which cannot
be printed."""

_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}

_EXPLAINED_BYTES = re.compile(r"([0-9,]+) bytes(?! and)")
"""A byte count in an explanation, but not a cost, whose unit includes requests."""

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
    """Print names and values. For people, empty values are omitted."""
    if as_json:
        _print_json(facts)
        return
    shown = {n: v for n, v in facts.items() if _is_wide() or v not in (None, "", (), [], {})}
    if not shown:
        click.echo("Nothing to report.")
        return
    grid = Grid(box=None, show_header=False, pad_edge=False)
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for name, value in shown.items():
        grid.add_row(heading(name), Text(pretty(name, value)))
    _console().print(grid)


def heading(name: str) -> str:
    """Return a field's display name, without its unit suffix: the value shows the unit."""
    return name.removesuffix("_ms").replace("ms_", "time_").replace("_", " ")


def print_text(text: str) -> None:
    """Print lines for people, folded at words with their indentation."""
    width = _console().width
    for line in escaped_lines(text).split("\n"):
        indent = re.match(r"(?:.*  )? *", line)
        assert indent is not None
        folded = textwrap.wrap(
            line,
            width,
            subsequent_indent=" " * indent.end(),
            break_long_words=False,
            break_on_hyphens=False,
        )
        click.echo("\n".join(folded))


def print_rows(rows: Sequence[Mapping[str, Any]], names: Iterable[str], *, as_json: bool) -> None:
    """Print rows about a table."""
    shown = {
        name: heading(name)
        for name in names
        if as_json or _is_wide() or _is_filled(name, [row[name] for row in rows])
    }
    _print_grid(rows, shown, pretty, as_json=as_json)


def _is_filled(name: str, values: Sequence[Any]) -> bool:
    """Return whether a column has content. A counter, which is never None, has none if it is 0."""
    filled = [v for v in values if v not in (None, "", (), [], {}, _FULL_RANGE.get(name))]
    is_counter = not (len(filled) < len(values) or name in _POSITIONS or name.endswith("_ms"))
    return any(value or isinstance(value, bool) or not is_counter for value in filled)


def print_data(rows: Sequence[Mapping[str, Any]], names: Iterable[str], *, as_json: bool) -> None:
    """Print table rows."""
    headings = {name: escaped(name) for name in names}
    _print_grid(rows, headings, lambda _, value: _format_exact(value), as_json=as_json)


def _print_grid(
    rows: Sequence[Mapping[str, Any]],
    headings: Mapping[str, str],
    render: Callable[[str, Any], str],
    *,
    as_json: bool,
) -> None:
    """Print rows as JSON, or the columns that fit the terminal."""
    if as_json:
        for row in rows:
            _print_json(row)
        return
    if not rows:
        click.echo("No rows.")
        return
    console = _console()
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    columns: dict[str, list[str]] = {}
    widths: dict[str, int] = {}
    for name, title in headings.items():
        values = [render(name, row[name]) for row in rows]
        width = max(map(_width, values))
        if render is pretty and not _is_wide():  # A table's own names are not folded.
            title = textwrap.fill(title, max(width, 1), break_long_words=False)
        columns[name], widths[name] = [title, *values], max(width, _width(title))
    while len(columns) > 1 and _total_width(widths[name] for name in columns) > console.width:
        del columns[max(enumerate(columns), key=_omission_rank)[1]]
    for name, (title, *_) in columns.items():
        is_number = any(isinstance(row[name], int | float | Decimal) for row in rows)
        justify: Literal["right", "left"] = "right" if is_number else "left"
        is_short = widths[name] <= _FOLDED_WIDTH_MIN
        grid.add_column(Text(title), justify=justify, overflow="fold", no_wrap=is_short)
    _, *lines = zip(*columns.values(), strict=True)
    for line in lines:
        grid.add_row(*map(Text, line))  # Text, because data may look like rich's markup.
    console.print(grid)
    omitted = [title for name, title in headings.items() if name not in columns]
    if omitted:
        print_text(f"Not shown: {', '.join(omitted)}. --wide shows all.")


def _width(text: str) -> int:
    return max(map(cell_len, text.split("\n")))


def _total_width(widths: Iterable[int]) -> int:
    """Return a grid's width if its long columns are folded: two spaces between columns."""
    return sum(min(width, _FOLDED_WIDTH_MIN) + 2 for width in widths)


def _omission_rank(column: tuple[int, str]) -> tuple[int, int]:
    """Return a column's rank: the highest is omitted first."""
    number, name = column
    if number == 0 or name in _MESSAGES:
        return -1, number
    return int(name in _DETAILS), number


def _is_wide() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and context.meta.get(WIDE, False)


def _console() -> Console:
    if _is_wide():
        return Console(highlight=False, width=_WIDE_WIDTH)
    console = Console(highlight=False)
    has_width = console.is_terminal or "COLUMNS" in os.environ
    return console if has_width else Console(highlight=False, width=_PIPE_WIDTH)


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
        return render_time(value // 1000 * 1000).replace("T", " ")
    if name == "age_ms" or (name == "ms_behind" and value >= 1000):
        return render_age(value)
    if name.endswith("_ms") or name == "ms_behind":
        return render_ms(round(value))
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}Z"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, int):
        return str(value) if name in _POSITIONS | _FRONTIERS else f"{value:,}"
    if isinstance(value, Mapping):
        value = [f"{key}: {item}" for key, item in value.items()]
    if isinstance(value, list | tuple):
        return "\n".join(escaped(_shorten(name, str(item))) for item in value)
    return escaped(_shorten(name, str(_to_plain(value))))


def _shorten(name: str, text: str) -> str:
    """Return a path relative to the command's argument, and ids and hash bounds cut."""
    if _is_wide():
        return text
    if name in _PATHS and (context := click.get_current_context(silent=True)):
        root = str(context.params.get("path") or "")
        for prefix in filter(None, (root, os.path.abspath(root))):
            text = text.removeprefix(f"{prefix.rstrip('/')}/")
    if name in _FULL_RANGE:
        return text[:-8]
    return _ID.sub(r"\1", text) if name in _WITH_IDS else text


def bytes_text(count: int) -> str:
    """Format a byte count with a unit."""
    size = float(count)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError(count)


def add_units(text: str) -> str:
    """Replace an explanation's byte counts with units; with ``--wide`` return it unchanged."""
    if _is_wide():
        return text
    return _EXPLAINED_BYTES.sub(lambda found: bytes_text(int(found[1].replace(",", ""))), text)


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
