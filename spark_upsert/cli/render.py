"""Command output: tables for people, JSON lines for programs, and progress.

Control characters are escaped in all text for a terminal (`escaped`). Progress is one line on a
terminal's standard error only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
"""Numeric fields that are identifiers, not counts."""

_TIMES = frozenset({"committed_ms", "parked_ms", "timestamp_ms"})
"""Times in ms since 1970. Other ``_ms`` fields are durations."""

_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, Unicode line breaks, bidirectional marks, and lone surrogates, which cannot
be printed."""

_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def escaped(text: str) -> str:
    r"""Return a text in which everything that a terminal would obey is spelled out.

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
    """Return a field's display name, without the unit suffix that its value shows."""
    return name.removesuffix("_ms").replace("_", " ")


def print_rows(rows: Sequence[Mapping[str, Any]], names: Iterable[str], *, as_json: bool) -> None:
    """Print rows about a table. A grid omits columns that are empty or zero everywhere."""
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


Told = Callable[[str], None]
"""Receives a command's progress text."""

DRAWN_PER_S = 4.0


@contextmanager
def progress(doing: str, *, as_json: bool, console: Console | None = None) -> Iterator[Told]:
    """Show a spinner and elapsed time; yields a function that updates the text."""
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


__all__ = ["ENTRIES", "Entry"]


@dataclass(frozen=True, slots=True)
class Entry:
    """An error code's meaning and remedy."""

    means: str
    do: str


ENTRIES = {
    "UPSERTFLOW": Entry(
        "Something failed that is neither the table's nor its storage's, and is named: a Python "
        "source of another package, or a process that was forked behind the back of a client.",
        "What the hint says.",
    ),
    "OPTION": Entry(
        "An option does not fit: unknown, malformed, missing, or against another one. Nothing was "
        "written.",
        "What the hint says.",
    ),
    "SCHEMA": Entry(
        "A column does not fit the table. Nothing was written.",
        "What the hint says: mostly fix the column, or let the table take it by `mergeSchema`.",
    ),
    "DATA": Entry(
        "A row cannot be a command: its key or its order is null, or its order is ambiguous. The "
        "batch was not committed.",
        "Fix the rows, or choose `onError`.",
    ),
    "PLAN": Entry(
        "A node of a plan, or an expression in it, is not what it may be. Nothing was read.",
        "What the hint says; the text names the node.",
    ),
    "GRAPH": Entry(
        "A graph of operators cannot be run as it is: a name, a stream, a region or a placement. "
        "Nothing was read.",
        "What the hint says; the text names the operators.",
    ),
    "PLACEMENT": Entry(
        "Two replicas of a graph must share a processing element, and must not.",
        "Take back one of the two placements that the text names.",
    ),
    "WIDTH": Entry(
        "A region cannot have the width: state of one of its operators is kept at another, or "
        "channels are kept apart.",
        "Keep the width, or begin with another checkpoint.",
    ),
    "TASK": Entry(
        "A task was called out of its order, or had failed or ended before.",
        "What the hint says; the future of a barrier completes for a task that fails, too, so ask "
        "the task.",
    ),
    "TABLE_NOT_FOUND": Entry(
        "There is no table at the path.",
        "Check the path; the first write makes the table, that of a streaming query its first "
        "batch. A read that is to wait for it has `tableTimeout`.",
    ),
    "TABLE_EXISTS": Entry(
        "A table was to be made where one lies.", "Open it, or choose another path."
    ),
    "VERSION_NOT_FOUND": Entry(
        "The version, the time or the batch that a read names does not exist yet, or was expired. "
        "Nothing is lost, and no checkpoint is affected.",
        "Name a version that exists: the text has the oldest and the newest readable one "
        "(`upsertflow history` lists them). Leave the option out to read the newest. For a time in "
        "the future, read again when it has passed. To read older versions, retain more.",
    ),
    "DATA_LOSS": Entry(
        "Changes that a reader has yet to read are expired.",
        "Begin anew with a new checkpoint (the whole table comes first), or accept the gap by "
        "`failOnDataLoss=false`; then give the query a `consumerId`, or retain more.",
    ),
    "CONTENTION": Entry(
        "Others won every race for a version; or a batch took longer than the retention or the "
        "grace, so that what it was planned on is given up. Nothing was committed, unless the text "
        "says that it cannot be told.",
        "Run it again, which a restarted query does. If single batches take so long, retain more. "
        "Where the text says that it cannot be told: look, and write with `txnAppId` and "
        "`txnVersion` in future.",
    ),
    "TABLE_FULL": Entry(
        "The slowest consumer has not read what the caps allow. Nothing was written.",
        "See why it does not go on; then write again. `upsertflow consumers --release` if it is no "
        "more.",
    ),
    "BATCH_TOO_LARGE": Entry(
        "One batch has more bytes than may ever lie behind a consumer.",
        "Write smaller batches, or raise `maxBacklogBytes`.",
    ),
    "THROTTLED": Entry(
        "A consumer is overloaded, and the table heeds it. Nothing was written.",
        "Write again after `retry_after_ms`, unchanged.",
    ),
    "CORRUPTION": Entry(
        "A file is missing, short or altered, and is named. Nothing was guessed.",
        "Restore that file from a copy. A run file: older versions that do not use it can still be "
        "read. A record with the right checksum and a number that no reader accepts: `upsertflow "
        "repair` corrects what an earlier release wrote. A lease: restart its consumer, or delete "
        "the file if there is none. A damaged local copy of a remote file is fetched again by "
        "itself.",
    ),
    "NEWER_FORMAT": Entry(
        "A newer version of upsertflow wrote the table, a lease or the offset in a checkpoint. "
        "Nothing is damaged.",
        "Upgrade the package wherever the table is read or written.",
    ),
    "EARLIER_FORMAT": Entry(
        "An earlier development version wrote the table.",
        "Make it anew from its source, or from what that version reads.",
    ),
    "OTHER_TABLE": Entry(
        "At the path lies not what the program, the query or its checkpoint knows: the table was "
        "removed, made anew, or restored from an older copy. Or the table lacks earlier batches of "
        "the query that writes. Nothing was committed.",
        "If that was a mistake, put back what was there. If not, restart the program; a query "
        "needs a new checkpoint.",
    ),
    "CLOCK": Entry(
        "This machine's clock, or the time of a version, is more than an hour ahead of the "
        "storage's.",
        "Set the clock (NTP); for a version: `upsertflow repair-clock`.",
    ),
    "MEMORY_LIMIT": Entry(
        "Inputs that must be kept whole need more memory than was allowed, and may not be spilled.",
        "Allow more, or allow to spill.",
    ),
    "STORAGE": Entry(
        "The storage did not answer, or the file system refused: no permission, no room, no hard "
        "links, a broken disk.",
        "What the hint says; it is safe to run again.",
    ),
    "MIRRORED_TYPE": Entry(
        "A column has a type, or a name, that Delta has not. The table goes on without a mirror.",
        "What the hint says: convert or rename the column, or do without the mirror.",
    ),
    "MIRROR_CHANGED": Entry(
        "Another program has written into the mirror, so that it is no copy any more. The table "
        "itself is unharmed.",
        "What the hint says; write into the table, and only read its mirror.",
    ),
    "NOT_MIRRORED": Entry(
        "A table of this kind has no mirror, or another thing lies at its place.",
        "What the hint says.",
    ),
    "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY": Entry(
        "From Spark: the driver was killed while it noted its first offset. Nothing was applied "
        "yet.",
        "Set `spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart=false`, as "
        "`conf/spark-defaults.conf` does.",
    ),
}
"""Entries by code; the last is Spark's, which a query may encounter."""
