"""What a runner does, and the loop that drives one through a history."""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, assert_never

from changelog_conformance.histories import (
    Batch,
    History,
    NewColumns,
    Restart,
    Row,
    parse,
    to_json,
)
from changelog_conformance.oracle import Observed

REFUSED_CHARS = 400
"""Of an error: its first lines say what it is about, and a stack of Java has a hundred more."""


class Runner(Protocol):
    """A system with one table. Made of an empty folder, which it may fill."""

    def create(self, history: History) -> None:
        """Make the table of a history; called once for each, with a table of its own."""

    def apply(self, rows: Sequence[Row]) -> None:
        """Apply a batch of commands, as one commit where the system can."""

    def add_columns(self, columns: Mapping[str, str]) -> None:
        """Let the table gain columns."""

    def restart(self) -> None:
        """Close the table and open it again."""

    def rows(self) -> list[Row]:
        """Return the rows of the table."""

    def changes(self) -> list[tuple[Row, int]] | None:
        """Return the changes since the last call, or None without a change feed."""

    def versions(self) -> dict[str, str]:
        """Return the versions of what ran."""

    def close(self) -> None:
        """End what was started."""


def observe(runner: Runner, history: History) -> tuple[list[Observed], str]:
    """Run a history; return what was shown behind each batch, and why it ended early, if it did.

    Every error counts as a refusal: what was shown until then is judged.
    """
    seen: list[Observed] = []
    try:
        runner.create(history)
        for step in history.steps:
            match step:
                case Batch():
                    runner.apply(step.rows)
                    seen.append(Observed(rows=runner.rows(), changes=runner.changes()))
                case Restart():
                    runner.restart()
                case NewColumns():
                    runner.add_columns(step.columns)
                case _:
                    assert_never(step)
    except Exception as error:  # noqa: BLE001 - a system may raise whatever it likes
        traceback.print_exc()
        return seen, f"{type(error).__name__}: {cause_of(str(error))[:REFUSED_CHARS]}"
    return seen, ""


def cause_of(text: str) -> str:
    """Return what an error says in one line; of a stack of Java, its deepest cause."""
    causes = re.findall(r"^Caused by: (.+)$", text, re.MULTILINE)
    return " ".join((causes[-1] if causes else text).split())


def observed_to_json(seen: Sequence[Observed], refused: str) -> dict[str, Any]:
    """Return what `observed_of_json` reads."""
    shown = [{"rows": list(each.rows), "changes": each.changes} for each in seen]
    return {"seen": shown, "refused": refused}


def observed_of_json(text: Mapping[str, Any]) -> tuple[list[Observed], str]:
    """Return what was shown, and the refusal."""
    seen = [
        Observed(
            rows=each["rows"],
            changes=None
            if each["changes"] is None
            else [(row, diff) for row, diff in each["changes"]],
        )
        for each in text["seen"]
    ]
    return seen, text["refused"]


def make(place: str, folder: Path) -> Runner:
    """Return a runner: ``place`` is its module and class, as ``delta_rs:DeltaRs``."""
    module, name = place.split(":")
    made: Runner = getattr(import_module(f"changelog_conformance.runners.{module}"), name)(folder)
    return made


def main(place: str, folder: str) -> None:
    """Run the histories of ``histories.json`` in a folder; write ``observed.json`` beside it.

    This is the far end: it runs under the interpreter of one system, and needs nothing of others.
    """
    home = Path(folder)
    runner = make(place, home)
    found: dict[str, Any] = {}
    try:
        for each in json.loads((home / "histories.json").read_text(encoding="utf-8")):
            history = parse(each, each["name"])
            found[history.name] = observed_to_json(*observe(runner, history))
            told = {"versions": runner.versions(), "histories": found}
            (home / "observed.json").write_text(json.dumps(told), encoding="utf-8")
    finally:
        runner.close()


def ask(home: Path, histories: Sequence[History]) -> None:
    """Write what the far end reads."""
    home.mkdir(parents=True, exist_ok=True)
    asked = [{"name": each.name, **to_json(each)} for each in histories]
    (home / "histories.json").write_text(json.dumps(asked), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
