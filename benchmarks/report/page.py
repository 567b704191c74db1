"""The report: what was measured, against what limit, on what machine."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.contenders.protocol import ALL
from benchmarks.host import ROOT
from benchmarks.limits import limits
from benchmarks.limits.judged import Sections
from benchmarks.report.engine import (
    consumers_section,
    contests_section,
    epochs_section,
    floors_section,
    profile_section,
    scale_section,
    snapshot_section,
    threads_section,
)
from benchmarks.report.plans import (
    fusion_section,
    operators_section,
    tasks_section,
    tuning_section,
    views_section,
)
from benchmarks.report.plots import draw_plots
from benchmarks.report.storage import object_storage_section
from benchmarks.report.streams import (
    discovery_section,
    flood_section,
    inputs_section,
    merge_section,
    queries_section,
    slow_section,
)
from benchmarks.report.tables import (
    indexing_section,
    mirror_section,
    point_reads_section,
    routing_section,
    topics_section,
    unchanged_section,
    wide_section,
)
from benchmarks.sections import SECTIONS
from benchmarks.words import row


def write_report(found: dict[str, Any], folder: Path) -> None:
    """Write ``report.md`` and the plots that it shows."""
    sections = found["sections"]
    plots = draw_plots(sections, folder)
    lines = [
        "# Benchmarks",
        "",
        (
            "Made by `make bench` from [figures.json](figures.json). Peer and upsertflow run in turn, a batch "
            "each, on the same generated rows, each in a process of its own; afterwards the tables "
            "and the change rows are compared. A figure is the median; in brackets stand the least "
            "and the greatest. Single samples stay where they were taken, in `.bench/samples`."
        ),
        "",
        *about_machines(found),
        "",
        "## Against the limits",
        "",
        "| what | limit | measured | met | explanation |",
        "|---|---|---|---|---|",
        *(row(cells) for cells in limits(sections, found["size"])),
        "",
        *contests_section(sections),
        *scale_section(sections),
        *profile_section(sections),
        *floors_section(sections),
        *snapshot_section(sections),
        *epochs_section(sections),
        *consumers_section(sections),
        *threads_section(sections),
        *merge_section(sections),
        *routing_section(sections),
        *topics_section(sections),
        *indexing_section(sections),
        *point_reads_section(sections),
        *wide_section(sections),
        *unchanged_section(sections),
        *object_storage_section(sections),
        *mirror_section(sections),
        *operators_section(sections),
        *tasks_section(sections),
        *inputs_section(sections),
        *queries_section(sections),
        *discovery_section(sections),
        *flood_section(sections),
        *views_section(sections),
        *tuning_section(sections),
        *fusion_section(sections),
        *slow_section(sections),
        *_set_ups(),
        *_missing(sections),
        *(line for name, title in plots for line in (f"![{title}]({name})", "")),
    ]
    (folder / "report.md").write_text("\n".join(lines).rstrip() + "\n")


def about_machines(found: dict[str, Any]) -> list[str]:
    """Say on what machine the sections ran, the one of most of them first, and how busy it was."""
    ran_on: dict[str, list[str]] = {}
    for name, machine in found["machines"].items():
        ran_on.setdefault(_described(machine), []).append(name)
    (most, _), *others = sorted(ran_on.items(), key=lambda item: -len(item[1])) or [("none", [])]
    lines = [f"Machine: {most}. Form: {found['size']}."]
    for described, names in others:
        lines += [
            "",
            f"Measured at another time, on another machine: {_listed(names)} ({described}).",
        ]
    busy = {
        name: section["busy_before"]
        for name, section in found["sections"].items()
        if section.get("busy_before", 0.0) >= 1
    }
    if busy:
        lines += [
            "",
            (
                f"**Up to {max(busy.values()):.1f} processors were busy with other work when these "
                f"sections began**: {_listed(list(busy))}. Ratios of what ran in turn still tell "
                "something, absolute figures and spreads little."
            ),
        ]
    return lines


def _described(machine: dict[str, Any]) -> str:
    return (
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_bytes'] / (1 << 30):.0f} GiB, "
        f"{machine['system']}, Python {machine['python']}"
    )


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _set_ups() -> Iterator[str]:
    """Say how each system does the job, in the words of the module that makes it."""
    yield from ("## How each system does the job", "")
    for name, place in ALL.items():
        module, cls = place.split(":")
        tree = ast.parse((ROOT / module.replace(".", "/")).with_suffix(".py").read_text())
        described = [tree, *(node for node in tree.body if getattr(node, "name", "") == cls)]
        told = [ast.get_docstring(node) or "" for node in described]  # type: ignore[arg-type]
        yield f"- **{name}.** " + " ".join(" ".join(told).replace("``", "`").split())
    yield ""


def _missing(sections: Sections) -> Iterator[str]:
    failed = {name: s["failed"] for name, s in sections.items() if "failed" in s}
    never_run = [name for name in SECTIONS if name not in sections]
    if failed or never_run:
        yield from ("## Not measured", "")
    if never_run:
        yield from (f"Sections that were not run: {', '.join(never_run)}.", "")
    for name, trace in failed.items():
        yield from (f"Section `{name}` failed:", "", "```", trace.strip(), "```", "")
