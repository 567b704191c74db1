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


OnProgress = Callable[[str], None]
"""Receives a command's progress text."""

DRAWN_PER_S = 4.0


@contextmanager
def progress(doing: str, *, as_json: bool, console: Console | None = None) -> Iterator[OnProgress]:
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
        "A general error outside the table and its storage: another package's Python source "
        "failed, or a process was forked after it had used object storage.",
        "Follow the hint.",
    ),
    "OPTION": Entry(
        "An option is unknown, malformed, missing, or conflicts with another one. Nothing was "
        "written.",
        "Follow the hint.",
    ),
    "SCHEMA": Entry(
        "A column does not fit the table. Nothing was written.",
        "Follow the hint. Usually you fix the column, or set `mergeSchema` to change the table.",
    ),
    "DATA": Entry(
        "A row is invalid: its key or order is null, its order is ambiguous, or a value cannot be "
        "processed. Nothing was committed.",
        "Fix the rows, or set `onError`.",
    ),
    "PLAN": Entry(
        "A plan has an invalid node or expression. Nothing was read.",
        "Follow the hint; the text names the node.",
    ),
    "GRAPH": Entry(
        "An operator graph is invalid: a name, a stream, a region or a placement. Nothing was read.",
        "Follow the hint; the text names the operators.",
    ),
    "PLACEMENT": Entry(
        "Placements conflict: two replicas in a graph must share a processing element, and must "
        "not.",
        "Remove one of the two placements named in the text.",
    ),
    "WIDTH": Entry(
        "A region cannot have this width: it is out of range, the graph has no such region, an "
        "operator has stored its state at a different width, or channels must be kept apart.",
        "Follow the hint: keep the width, or start with a new checkpoint.",
    ),
    "TASK": Entry(
        "A task does not accept this call in its current state: the call is out of order, or the "
        "task has failed or ended.",
        "Follow the hint. The future of a barrier also completes if the task fails, so check the "
        "task.",
    ),
    "TABLE_NOT_FOUND": Entry(
        "There is no table at the path.",
        "Check the path. The first write creates a table; a streaming query creates it with its "
        "first batch. To let a read wait for the table, set `tableTimeout`.",
    ),
    "TABLE_EXISTS": Entry(
        "A table already exists at the path.",
        "Open it, or choose another path.",
    ),
    "VERSION_NOT_FOUND": Entry(
        "The requested version, time or batch does not exist yet, or has expired. Nothing is lost, "
        "and checkpoints are not affected.",
        "Request an existing version: the text contains the oldest and newest readable one, and "
        "`upsertflow history` lists all. To read the newest, omit the option. For a future time, "
        "read again later. To read older versions, retain more.",
    ),
    "DATA_LOSS": Entry(
        "Changes expired before the reader read them.",
        "Start with a new checkpoint, which reads the complete table first, or accept the gap with "
        "`failOnDataLoss=false`. Then set a `consumerId` for the query, or retain more.",
    ),
    "CONTENTION": Entry(
        "Other writers won every race for a version; or a batch took longer than the retention or "
        "grace period, so the version it was planned on is gone. Nothing was committed, unless the "
        "text says that this is unknown.",
        "Run it again; a restarted query does so. If batches take that long, retain more. If the "
        "text says that the result is unknown, check the table first, and set `txnAppId` and "
        "`txnVersion` for future writes.",
    ),
    "TABLE_FULL": Entry(
        "The slowest consumer's backlog exceeds the table's limits. Nothing was written.",
        "See why the consumer is slow or stopped, then write again. If it no longer exists, run "
        "`upsertflow consumers --release`.",
    ),
    "BATCH_TOO_LARGE": Entry(
        "A single batch is larger than the maximum backlog in bytes. Nothing was written.",
        "Write smaller batches, or raise `maxBacklogBytes`.",
    ),
    "THROTTLED": Entry(
        "A consumer is overloaded, and the table has `backpressure`. Nothing was written.",
        "Write the same rows again after `retry_after_ms`.",
    ),
    "CORRUPTION": Entry(
        "A file, named in the text, is missing, short or altered.",
        "Restore the file from a copy. If it is a run file, older versions that do not use it "
        "remain readable. For a record with a valid checksum and a number that no reader accepts, "
        "run `upsertflow repair`, which corrects records from an earlier release. For a lease, "
        "restart its consumer, or delete the file if there is none. A damaged local copy of a "
        "remote file is downloaded again automatically.",
    ),
    "NEWER_FORMAT": Entry(
        "A newer upsertflow version wrote the table, a lease or a checkpoint's offset. Nothing is "
        "damaged.",
        "Upgrade the package for all readers and writers.",
    ),
    "EARLIER_FORMAT": Entry(
        "An earlier development version wrote the table.",
        "Rebuild the table from its source, or from a read with that version.",
    ),
    "OTHER_TABLE": Entry(
        "The path does not contain the table that the program, the query or its checkpoint "
        "expects: the table was removed, recreated, or restored from an older copy. Or the table "
        "lacks earlier batches of the writing query. Nothing was committed.",
        "If this was a mistake, restore the table. Otherwise restart the program; a query needs a "
        "new checkpoint.",
    ),
    "CLOCK": Entry(
        "This machine's clock, or a version's commit time, is more than an hour ahead of the "
        "storage clock.",
        "Set the clock (NTP). For a version, run `upsertflow repair-clock`.",
    ),
    "MEMORY_LIMIT": Entry(
        "Inputs that must be buffered completely exceed the memory limit, and spilling is disabled.",
        "Raise the limit, or enable spilling.",
    ),
    "STORAGE": Entry(
        "The storage did not respond, or the file system returned an error: no permission, no "
        "space, no hard links, or a broken disk.",
        "Follow the hint. It is safe to run again.",
    ),
    "MIRRORED_TYPE": Entry(
        "A column has a type or a name that Delta does not support. The table continues without a "
        "mirror.",
        "Follow the hint: convert or rename the column, or disable the mirror.",
    ),
    "MIRROR_CHANGED": Entry(
        "Another program wrote to the Delta mirror, so it is no longer a copy. The table is not "
        "affected.",
        "Rebuild the mirror with `upsertflow publish PATH --rebuild`. Write to the table only, "
        "never to its mirror.",
    ),
    "NOT_MIRRORED": Entry(
        "The table stores the partial results of a view instead of rows, so it cannot have a Delta "
        "mirror.",
        "Write the view's changes to a table, and publish that table.",
    ),
    "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY": Entry(
        "From Spark: the driver was killed while it wrote its first offset. Nothing was applied "
        "yet.",
        "Set `spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart=false`, as in "
        "`conf/spark-defaults.conf`.",
    ),
}
"""Entries by code; the last is Spark's, which a query may encounter."""
