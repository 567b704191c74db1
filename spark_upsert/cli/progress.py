"""Progress of a long command: one line on the terminal of a person, and nothing anywhere else.

The line goes to the standard error, is drawn a few times in a second however often it is told, and
is gone when the command has ended. In a pipe, in a log and beside `--json` nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from spark_upsert.cli.render import escaped

Told = Callable[[str], None]
"""Takes how far a command is, in words."""

DRAWN_PER_S = 4.0


@contextmanager
def progress(doing: str, *, as_json: bool, console: Console | None = None) -> Iterator[Told]:
    """Show what goes on and for how long, until the block ends; yield what is to be told more."""
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
