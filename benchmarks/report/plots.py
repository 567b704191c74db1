"""The plots of the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.limits.judged import Sections
from benchmarks.words import MIB, count


def draw_plots(sections: Sections, folder: Path) -> list[tuple[str, str]]:
    """Draw what can be drawn; returns file names and titles."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return []
    matplotlib.use("svg")
    # The same numbers give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "upsertflow"
    # Letters stay letters: as outlines they are ten times as long as the figures.
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    drawn = []

    def save(name: str, title: str, x: str, y: str) -> None:
        pyplot.title(title)
        pyplot.xlabel(x)
        pyplot.ylabel(y)
        pyplot.ylim(bottom=0)
        pyplot.tight_layout()
        pyplot.savefig(folder / name, metadata={"Date": None})
        pyplot.close()
        drawn.append((name, title))

    scale = {k: s["contenders"] for k, s in sections.get("scale", {}).items() if k.isdigit()}
    figures: list[tuple[str, str, str, Callable[[dict[str, Any]], float]]] = [
        ("rate.svg", "Rate over table size", "commands/s", lambda r: r["rows_per_s"]),
        ("memory.svg", "Peak memory over table size", "MiB", lambda r: r["memory"]["rss"] / MIB),
    ]
    for name, title, unit, value in figures:
        for batch, found in sorted(scale.items(), key=lambda item: int(item[0])):
            keys = sorted(found, key=int)
            label = f"{count(int(batch))} rows per batch"
            pyplot.plot([int(k) for k in keys], [value(found[k]) for k in keys], "o-", label=label)
        if scale:
            pyplot.xscale("log")
            pyplot.legend()
            save(name, title, "keys in the table", unit)
    ours = sections.get("epochs", {}).get("contenders", {}).get("upsertflow")
    if ours:
        ends = [part["last"] for part in ours["course"]]
        for what, look in (("max", ":"), ("median", "o-"), ("min", ":")):
            took = [part["total_s"][what] * 1000 for part in ours["course"]]
            pyplot.plot(ends, took, look, label=what)
        pyplot.legend()
        save("epochs.svg", "Cost per batch of 1 000 rows over the epochs", "epoch", "ms")
    course = sections.get("flood", {}).get("course")
    if course:
        for whose, what, look in (
            ("small", "max", "o:"),
            ("small", "median", "o-"),
            ("flood", "median", "s-"),
        ):
            told = [each for each in course if what in each[whose]]
            at, waits = [each["at"] for each in told], [each[whose][what] for each in told]
            pyplot.plot(at, waits, look, label=f"{whose}, {what}")
        pyplot.axvline(0, color="gray", linewidth=1)
        pyplot.legend()
        save(
            "flood.svg",
            "Waits of small tables while three others are flooded",
            "s from the beginning of the flood",
            "s from append to sink",
        )
    return drawn
