"""Sections of the report about streams: merges, many inputs, many queries, floods."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.limits.judged import Sections
from benchmarks.words import MIB, by_number, count, row, times


def merge_section(sections: Sections) -> Iterator[str]:
    """Yield the section on merges of streams."""
    section = sections.get("merge", {})
    counts = [key for key in section if key.isdigit()]
    if not counts:
        return
    yield from ("## The bare merge", "")
    yield (
        f"{count(section['rows'])} rows of three numbers and a text, in memory in batches of "
        f"{count(section['batch_rows'])}; no table and no Spark. Live takes a thread for each input "
        "and hands batches on; round robin and seeded put each row into its place."
    )
    yield ""
    yield "| inputs | order | time | processor time | rows per second of it |"
    yield "|---|---|---|---|---|"
    for inputs in sorted(counts, key=int):
        for name, took in section[inputs].items():
            speed = f"{section['rows'] / took['cpu_s']['median'] / 1_000_000:.1f} M"
            yield row([inputs, name, times(took["seconds"]), times(took["cpu_s"]), speed])
    yield ""


def inputs_section(sections: Sections) -> Iterator[str]:
    """Yield the section on one query over many tables."""
    cost = {key: each for key, each in sections.get("inputs", {}).items() if key.isdigit()}
    if cost:
        yield from ("## Many tables in one query, on Spark", "")
        yield (
            "Micro-batches of 1 000 updates in all, in one table of a hundred, over the number of "
            "tables that the query reads. Idle: processor time per second while nothing is new, of "
            "all processes together."
        )
        yield ""
        yield "| tables | changed | micro-batch | of that, `latestOffset` | tasks | processor time | idle |"
        yield "|---|---|---|---|---|---|---|"
        for tables, found in sorted(cost.items(), key=by_number):
            names = ("triggerExecution_s", "latestOffset_s", "addBatch_s", "cpu_s")
            spreads = (times(found[name]) for name in names)
            changed, idle = str(found["dirty"]), f"{found['idle_share']:.0%}"
            yield row([count(int(tables)), changed, *spreads, idle])
        yield ""


def queries_section(sections: Sections) -> Iterator[str]:
    """Yield the section on one query beside many."""
    section = sections.get("queries", {})
    if "one" not in section:
        return
    yield from ("## One query over many tables, and a query for each, on Spark", "")
    yield (
        "Queries that run when there may be something new, deliver it and end, all started at once; one "
        "table in a hundred has changed."
    )
    yield ""
    yield "| queries | tables of each | until all are done | processor time | peak memory |"
    yield "|---|---|---|---|---|"
    by_count = {int(name): name for name in section if name.isdigit()} | {1: "one"}
    for queries, name in sorted(by_count.items()):
        found = section[name]
        each = count(section["tables"]) if name == "one" else "1"
        memory = f"{found['memory']['rss'] / MIB:.0f} MiB"
        yield row([str(queries), each, times(found["seconds"]), times(found["cpu_s"]), memory])
    yield ""


def discovery_section(sections: Sections) -> Iterator[str]:
    """Yield the section on finding what changed among many tables."""
    found = {key: each for key, each in sections.get("discovery", {}).items() if key.isdigit()}
    if not found:
        return
    yield from ("## How soon a commit to one of very many tables is planned, without Spark", "")
    yield (
        "One table in a hundred changes. A batch over all that changed is planned from memory; a "
        "commit to one of them is planned when a look has seen it, here the median and the greatest."
    )
    yield ""
    yield "| tables | a batch is planned in | commit to planned | at worst | requests a look |"
    yield "|---|---|---|---|---|"
    for name, each in sorted(found.items(), key=by_number):
        yield row(
            [
                count(int(name)),
                times(each["latest_s"]),
                f"{each['planned_s']['median'] * 1000:.0f} ms",
                f"{each['planned_s']['max'] * 1000:.0f} ms",
                f"{each['requests_per_look']:.2f}",
            ]
        )
    yield ""


def flood_section(sections: Sections) -> Iterator[str]:
    """Yield the section on small tables while others are flooded."""
    found = sections.get("flood")
    if not found or "calm" not in found:
        return
    yield from ("## Small tables beside flooded ones, in one query over all, on Spark", "")
    yield (
        f"One query over {count(found['tables'])} tables, with `maxRowsPerTrigger` of "
        f"{count(found['limit'])}. Twenty times a second some small table gets a row. In the second "
        f"half of {found['seconds']} s three others get epochs of {count(found['flood_rows'])} rows as "
        "fast as a process can append them, which is more than the limit lets through. Seconds from "
        "an append to its rows in the sink:"
    )
    yield from ("", "| whose rows | appends | median | slowest of a hundred | slowest |")
    yield "|---|---|---|---|---|"
    for whose, name in (
        ("small tables, before the flood", "calm"),
        ("small tables, under it", "flooded"),
        ("flooded tables", "flood"),
    ):
        waits = (f"{found[name][key]:.1f} s" for key in ("median", "p99", "max"))
        yield row([whose, count(found[name]["count"]), *waits])
    yield ""


def slow_section(sections: Sections) -> Iterator[str]:
    """Yield the section on a consumer that is slower than its producers."""
    slow = sections.get("union", {}).get("slow")
    if not slow:
        return
    yield from ("## A consumer that is a hundred times slower than its producers, on Spark", "")
    yield (
        f"Two inputs, and a sink that takes {slow['rows_per_s']:.0f} rows/s. Peaks of each stretch of "
        f"{slow['stretch_s']:g} s: of the largest Python worker, without mapped files, and of all "
        "processes, Java's heap included."
    )
    yield from ("", "| stretch | largest worker | all processes |", "|---|---|---|")
    for number, peak in enumerate(slow["stretches"], 1):
        worker, everything = peak["python_anonymous"] / MIB, peak["rss"] / MIB
        yield row([str(number), f"{worker:.1f} MiB", f"{everything:.0f} MiB"])
    yield ""
