"""Sections of the report about the engine beside its peers: contests, sizes, phases, floors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.limits.judged import Sections
from benchmarks.phases import NAMES, limit_s
from benchmarks.words import MIB, by_number, count, ms, row, times, yes


def contests_section(sections: Sections) -> Iterator[str]:
    """Yield the section on each contest with a peer, and with other keys, draws and mixes."""
    single = [
        ("delta", "Through Spark, against Delta Lake"),
        ("iceberg", "Through Spark, against Iceberg, the upsert alone (each on its own Spark)"),
        ("iceberg_changelog", "Through Spark, against Iceberg's changelog (each on its own Spark)"),
        ("hudi", "Through Spark, against Hudi (each on its own Spark)"),
        ("paimon", "Through Spark, against Paimon (each on its own Spark)"),
        ("delta_rs", "Engine only, against delta-rs"),
        ("python_peers", "Engine only, against peers in Python without a change feed"),
        (
            "one_row_commits",
            "Commits of one row each, engine only, and reads of all rows behind them",
        ),
    ]
    for name, title in single:
        if name in sections:
            yield from (f"## {title}", "", *contest_lines(sections[name]), "")
    if "variants" in sections:
        yield from ("## Other keys, draws and mixes, engine only", "")
        for label, section in sections["variants"].items():
            if isinstance(section, dict):
                yield from (f"### {label}", "", *contest_lines(section), "")


def contest_lines(section: dict[str, Any]) -> Iterator[str]:
    """Yield the lines on one contest: its table, and the peers that did not run."""
    if "failed" in section:
        yield from ("Failed:", "", "```", section["failed"].strip(), "```")
        return
    workload, found = section["workload"], section["contenders"]
    yield (
        f"{count(workload['table_rows'])} keys ({workload['keys']}, {workload['draw']}), batches "
        f"of {count(workload['batch_rows'])} rows, {section['rounds']} counted rounds. "
        f"Same table: {yes(section['same_table'])}; same change rows: "
        f"{yes(section['same_changes'])}."
    )
    if found:
        yield ""
        yield "| system | upsert | changes | both | rows/s | against us | processor time | against us | peak memory | written / ingested | versions |"
        yield "|---|---|---|---|---|---|---|---|---|---|---|"
        ours = next((r for name, r in found.items() if name.startswith("upsertflow")), None)
        for name, result in found.items():
            yield row(_line(name, result, ours))
    reads = {name: result["read_s"] for name, result in found.items() if "read_s" in result}
    if reads:
        told = ", ".join(f"{name} {times(took)}" for name, took in reads.items())
        yield from ("", f"The whole table, opened anew and read behind them: {told}.")
    for name, error in section["errors"].items():
        yield from ("", f"{name} did not run:", "", "```", error, "```")


def _line(name: str, result: dict[str, Any], ours: dict[str, Any] | None) -> list[str]:
    # A peer without a change feed is compared by its upsert.
    what = "total_s" if "changes_s" in result else "upsert_s"
    ratio = result[what]["median"] / ours[what]["median"] if ours else None
    return [
        name,
        times(result["upsert_s"]),
        times(result["changes_s"]) if "changes_s" in result else "–",
        times(result["total_s"]) if "changes_s" in result else "–",
        f"{result['rows_per_s']:,.0f}".replace(",", " "),
        f"{ratio:.1f}x" if ratio else "–",
        times(result["cpu_s"]),
        f"{result['cpu_s']['median'] / ours['cpu_s']['median']:.1f}x" if ours else "–",
        f"{result['memory']['rss'] / MIB:.0f} MiB",
        f"{result['written_bytes'] / result['ingested_bytes']:.1f}",
        ", ".join(f"{key} {value}" for key, value in result["versions"].items() if value),
    ]


def scale_section(sections: Sections) -> Iterator[str]:
    """Yield the section on batches into tables of several sizes."""
    for name, where in (("spark_scale", "on Spark"), ("scale", "engine only")):
        section = {k: s for k, s in sections.get(name, {}).items() if k.isdigit()}
        if not section:
            continue
        yield from (f"## Cost of a batch over the size of the table, {where}", "")
        yield "| rows per batch | keys | upsert | changes | both | mean of both | peak memory | largest worker | runs | runs that may hold a key |"
        yield "|---|---|---|---|---|---|---|---|---|---|"
        for batch in sorted(section, key=int):
            for keys, result in sorted(section[batch]["contenders"].items(), key=by_number):
                last = result["last"]
                yield row(
                    [
                        count(int(batch)),
                        count(int(keys)),
                        *(times(result[name]) for name in ("upsert_s", "changes_s", "total_s")),
                        ms(result["total_s"]["mean"]),
                        f"{result['memory']['rss'] / MIB:.0f} MiB",
                        f"{result['memory']['python_rss'] / MIB:.0f} MiB",
                        f"{last['runs']:.0f}" if "runs" in last else "–",
                        f"{last['depth']:.1f}" if "depth" in last else "–",
                    ]
                )
            for keys, error in section[batch]["errors"].items():
                yield row([count(int(batch)), count(int(keys)), error])
        yield ""


def profile_section(sections: Sections) -> Iterator[str]:
    """Yield the section on processor time by phase."""
    section = sections.get("profile", {})
    if not section.get("batches"):
        return
    machine = section["machine"]
    yield from (
        "## Where the engine's time goes",
        "",
        (
            "Processor time of a batch, one thread, and what it is spent on. *At least* is what this "
            "machine needs for the bytes that must move "
            f"({machine['copied_bytes_per_s'] / 2**30:.1f} GiB/s copied), for the keys that must be "
            f"found ({1e9 * machine['found_s']:.0f} ns each, as many at once as the processor can wait "
            f"for) and for one sync ({1000 * machine['sync_s']:.1f} ms). *Bare calls* of numpy and Arrow sort, "
            "search each run once, gather, write and sync, and decide nothing (docs/adr/0151). *Calls* are "
            "those of functions of Python and numpy."
        ),
        "",
        f"| keys | rows | part | time | bare calls | at least | rows/s | {' | '.join(NAMES)} | calls |",
        "|" + "---|" * (8 + len(NAMES)),
    )
    for batch in section["batches"]:
        rows = batch["batch_rows"]
        for part in ("upsert", "changelog"):
            found = batch[part]
            least = limit_s(machine, part, rows, batch["row_bytes"])
            yield row(
                [
                    count(batch["table_rows"]),
                    count(rows),
                    part,
                    ms(found["cpu_s"]),
                    ms(batch["bare_s"][part]) if "bare_s" in batch else "–",
                    f"{1000 * least:.1f} ms",
                    f"{rows / found['cpu_s']:,.0f}".replace(",", " "),
                    *(f"{found['shares'][name]:.0%}" for name in NAMES),
                    count(round(found["calls"])),
                ]
            )
    yield ""


def floors_section(sections: Sections) -> Iterator[str]:
    """Yield the section on us over chains that do nothing."""
    floors = sections.get("floors", {})
    sizes = [key for key in floors if key.isdigit()]
    if not sizes:
        return
    yield from (
        "## Floors of Spark's Python transport",
        "",
        "A micro-batch through each chain.",
        "",
    )
    yield from ("| rows | chain | time | commands/s |", "|---|---|---|---|")
    for rows in sorted(sizes, key=int):
        for name, seconds in floors[rows].items():
            speed = f"{int(rows) / seconds['median']:,.0f}".replace(",", " ")
            yield row([count(int(rows)), name.replace("->", "→"), times(seconds), speed])
    yield ""


def snapshot_section(sections: Sections) -> Iterator[str]:
    """Yield the section on reading a whole table."""
    section = sections.get("snapshot", {})
    if "spark" not in section:
        return
    yield from (
        f"## Read of all {count(section['rows'])} rows",
        "",
        "| what | time |",
        "|---|---|",
    )
    yield row(["upsertflow on Spark", times(section["spark"]["snapshot_s"])])
    yield row(["`spark.read.parquet`", times(section["spark"]["parquet_s"])])
    if "no_op_s" in section["spark"]:
        yield row(
            [
                "a Python source that only hands out Arrow batches",
                times(section["spark"]["no_op_s"]),
            ]
        )
    yield row(["upsertflow, engine only, one core", times(section["engine_s"])])
    yield row(["raw Arrow file, written", ms(section["arrow_write_s"])])
    yield row(["raw Arrow file, read", ms(section["arrow_read_s"])])
    yield ""


def epochs_section(sections: Sections) -> Iterator[str]:
    """Yield the section on a table over thousands of epochs."""
    ours = sections.get("epochs", {}).get("contenders", {}).get("upsertflow")
    if not ours:
        return
    course = ours["course"]
    yield from (f"## {ours['total_s']['count']} epochs of 1 000 rows, engine only", "")
    yield "The cost follows the number of runs, which grows and falls as compactions come due."
    yield from ("", "| epochs | both | runs, on average |", "|---|---|---|")
    for part in course:
        epochs = f"{part['first']} to {part['last']}"
        yield row([epochs, times(part["total_s"]), f"{part['runs']['mean']:.1f}"])
    yield from (
        "",
        f"At most {max(part['runs']['max'] for part in course):.0f} runs at any time.",
        "",
    )


def consumers_section(sections: Sections) -> Iterator[str]:
    """Yield the section on several readers of one table."""
    section = sections.get("consumers", {})
    counts = [key for key in section if key.isdigit()]
    if not counts:
        return
    yield from ("## Several streams that read the same changes at once, on Spark", "")
    yield f"{section['epochs']} epochs of {count(section['batch_rows'])} commands; start included."
    yield from ("", "| streams | until all are done |", "|---|---|")
    for streams in sorted(counts, key=int):
        yield row([streams, f"{section[streams]:.1f} s"])
    yield ""


def threads_section(sections: Sections) -> Iterator[str]:
    """Yield the section on threads of one process."""
    section = sections.get("threads", {})
    counts = sorted((key for key in section if key.isdigit()), key=int)
    if not counts:
        return
    yield from ("## Many threads on one table, without Spark", "")
    yield (
        f"{count(section['appends'])} appends of {section['rows']} rows each, of all threads together, on a "
        "local disk. Apart, each thread has a table object of its own, and of those that race one wins; "
        "shared, all have the same object, and appends that meet share a version."
    )
    yield ""
    yield "| threads | objects | appends per second | median | slowest of a hundred | versions |"
    yield "|---|---|---|---|---|---|"
    for threads in counts:
        for way, found in section[threads].items():
            per_s, versions = (f"{found[name]['median']:.0f}" for name in ("per_s", "versions"))
            spreads = (times(found[name]) for name in ("median_s", "p99_s"))
            yield row([threads, way, per_s, *spreads, versions])
    yield ""
    yield "From the put of a version to a watcher in the same process:"
    yield from ("", "| watchers | median | slowest of a hundred |", "|---|---|---|")
    for name, found in section["watchers"].items():
        median = {key: f"{1_000 * found['median_s'][key]:.1f}" for key in ("median", "min", "max")}
        shown = f"{median['median']} ms ({median['min']} to {median['max']})"
        yield row([name, shown, times(found["p99_s"])])
    yield ""
