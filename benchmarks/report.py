"""The report: what was measured, against what limit, on what machine."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.contenders.protocol import ALL
from benchmarks.host import ROOT
from benchmarks.limits import Sections, limits
from benchmarks.phases import NAMES, limit_s
from benchmarks.sections import SECTIONS
from benchmarks.words import MIB, count, ms, times, yes


def write_report(found: dict[str, Any], folder: Path) -> None:
    """Write ``report.md`` and the plots that it shows."""
    sections = found["sections"]
    plots = _plots(sections, folder)
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
        *(_row(cells) for cells in limits(sections, found["size"])),
        "",
        *_contests(sections),
        *_scale(sections),
        *_profile(sections),
        *_floors(sections),
        *_snapshot(sections),
        *_epochs(sections),
        *_consumers(sections),
        *_threads(sections),
        *_merge(sections),
        *_loading(sections),
        *_routing(sections),
        *_topics(sections),
        *_indexing(sections),
        *_point_reads(sections),
        *_mirror(sections),
        *_operators(sections),
        *_tasks(sections),
        *_inputs(sections),
        *_queries(sections),
        *_discovery(sections),
        *_flood(sections),
        *_views(sections),
        *_fusion(sections),
        *_slow(sections),
        *_set_ups(),
        *_missing(sections),
        *(line for name, title in plots for line in (f"![{title}]({name})", "")),
    ]
    (folder / "report.md").write_text("\n".join(lines).rstrip() + "\n")


def _row(cells: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(cell.replace("\n", " ").replace("|", "\\|") for cell in cells) + " |"


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
        name: section["load_before"]
        for name, section in found["sections"].items()
        if section.get("load_before", 0.0) > found["machines"][name]["cores"]
    }
    if busy:
        lines += [
            "",
            (
                f"**The load of the machine was up to {max(busy.values()):.0f} when these sections "
                f"began**: {_listed(list(busy))}. The end of the section before is included. If "
                "there was other work, too, ratios of what ran in turn still tell something, absolute "
                "figures and spreads little."
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


# -- the sections ----------------------------------------------------------------------------


def _contests(sections: Sections) -> Iterator[str]:
    single = [
        ("delta", "Through Spark, against Delta Lake"),
        ("iceberg", "Through Spark, against Iceberg, the upsert alone (each on its own Spark)"),
        ("iceberg_changelog", "Through Spark, against Iceberg's changelog (each on its own Spark)"),
        ("hudi", "Through Spark, against Hudi (each on its own Spark)"),
        ("paimon", "Through Spark, against Paimon (each on its own Spark)"),
        ("delta_rs", "Engine only, against delta-rs"),
        ("python_peers", "Engine only, against peers in Python without a change feed"),
    ]
    for name, title in single:
        if name in sections:
            yield from (f"## {title}", "", *_contest(sections[name]), "")
    if "variants" in sections:
        yield from ("## Other keys, draws and mixes, engine only", "")
        for label, section in sections["variants"].items():
            if isinstance(section, dict):
                yield from (f"### {label}", "", *_contest(section), "")


def _contest(section: dict[str, Any]) -> Iterator[str]:
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
            yield _row(_line(name, result, ours))
    for name, error in section["errors"].items():
        yield from ("", f"{name} did not run:", "", "```", error, "```")


def _line(name: str, result: dict[str, Any], ours: dict[str, Any] | None) -> list[str]:
    # Who has no change feed is compared by its upsert.
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


def _scale(sections: Sections) -> Iterator[str]:
    for name, where in (("spark_scale", "on Spark"), ("scale", "engine only")):
        section = {k: s for k, s in sections.get(name, {}).items() if k.isdigit()}
        if not section:
            continue
        yield from (f"## Cost of a batch over the size of the table, {where}", "")
        yield "| rows per batch | keys | upsert | changes | both | mean of both | peak memory | largest worker | runs | runs that may hold a key |"
        yield "|---|---|---|---|---|---|---|---|---|---|"
        for batch in sorted(section, key=int):
            for keys, result in sorted(section[batch]["contenders"].items(), key=_number):
                last = result["last"]
                yield _row(
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
                yield _row([count(int(batch)), count(int(keys)), error])
        yield ""


def _number(item: tuple[str, Any]) -> int:
    return int(item[0])


def _profile(sections: Sections) -> Iterator[str]:
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
            f"for) and for one sync ({1000 * machine['sync_s']:.1f} ms). *Calls* are those of functions of Python "
            "and numpy."
        ),
        "",
        f"| keys | rows | part | time | at least | rows/s | {' | '.join(NAMES)} | calls |",
        "|" + "---|" * (7 + len(NAMES)),
    )
    for batch in section["batches"]:
        rows = batch["batch_rows"]
        for part in ("upsert", "changelog"):
            found = batch[part]
            least = limit_s(machine, part, rows, batch["row_bytes"])
            yield _row(
                [
                    count(batch["table_rows"]),
                    count(rows),
                    part,
                    ms(found["cpu_s"]),
                    f"{1000 * least:.1f} ms",
                    f"{rows / found['cpu_s']:,.0f}".replace(",", " "),
                    *(f"{found['shares'][name]:.0%}" for name in NAMES),
                    count(round(found["calls"])),
                ]
            )
    yield ""


def _floors(sections: Sections) -> Iterator[str]:
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
            yield _row([count(int(rows)), name.replace("->", "→"), times(seconds), speed])
    yield ""


def _snapshot(sections: Sections) -> Iterator[str]:
    section = sections.get("snapshot", {})
    if "spark" not in section:
        return
    yield from (
        f"## Read of all {count(section['rows'])} rows",
        "",
        "| what | time |",
        "|---|---|",
    )
    yield _row(["upsertflow on Spark", times(section["spark"]["snapshot_s"])])
    yield _row(["`spark.read.parquet`", times(section["spark"]["parquet_s"])])
    if "no_op_s" in section["spark"]:
        yield _row(
            [
                "a Python source that only hands out Arrow batches",
                times(section["spark"]["no_op_s"]),
            ]
        )
    yield _row(["upsertflow, engine only, one core", times(section["engine_s"])])
    yield _row(["raw Arrow file, written", ms(section["arrow_write_s"])])
    yield _row(["raw Arrow file, read", ms(section["arrow_read_s"])])
    yield ""


def _epochs(sections: Sections) -> Iterator[str]:
    ours = sections.get("epochs", {}).get("contenders", {}).get("upsertflow")
    if not ours:
        return
    course = ours["course"]
    yield from (f"## {ours['total_s']['count']} epochs of 1 000 rows, engine only", "")
    yield "The cost follows the number of runs, which grows and falls as compactions come due."
    yield from ("", "| epochs | both | runs, on average |", "|---|---|---|")
    for part in course:
        epochs = f"{part['first']} to {part['last']}"
        yield _row([epochs, times(part["total_s"]), f"{part['runs']['mean']:.1f}"])
    yield from (
        "",
        f"At most {max(part['runs']['max'] for part in course):.0f} runs at any time.",
        "",
    )


def _consumers(sections: Sections) -> Iterator[str]:
    section = sections.get("consumers", {})
    counts = [key for key in section if key.isdigit()]
    if not counts:
        return
    yield from ("## Several streams that read the same changes at once, on Spark", "")
    yield f"{section['epochs']} epochs of {count(section['batch_rows'])} commands; start included."
    yield from ("", "| streams | until all are done |", "|---|---|")
    for streams in sorted(counts, key=int):
        yield _row([streams, f"{section[streams]:.1f} s"])
    yield ""


def _threads(sections: Sections) -> Iterator[str]:
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
            yield _row([threads, way, per_s, *spreads, versions])
    yield ""
    yield "From the put of a version to a watcher in the same process:"
    yield from ("", "| watchers | median | slowest of a hundred |", "|---|---|---|")
    for name, found in section["watchers"].items():
        median = {key: f"{1_000 * found['median_s'][key]:.1f}" for key in ("median", "min", "max")}
        shown = f"{median['median']} ms ({median['min']} to {median['max']})"
        yield _row([name, shown, times(found["p99_s"])])
    yield ""


def _loading(sections: Sections) -> Iterator[str]:
    section = sections.get("loading")
    if section is None:
        return
    yield from ("## Rows for a training loop, without Spark", "")
    yield (
        f"One pass over {count(section['rows'])} rows of about {section['row_bytes']} bytes, in batches of "
        f"{count(section['batch_rows'])} as arrays of numpy; the files are in the cache of the system. The loader "
        "counts rows beforehand, once, which is not in it."
    )
    yield ""
    yield "| way | time | processor time | rows per second of it |"
    yield "|---|---|---|---|"
    for name, took in sorted(section["ways"].items()):
        speed = f"{section['rows'] / took['cpu_s']['median'] / 1_000_000:.1f} M"
        yield _row([name, times(took["seconds"]), times(took["cpu_s"]), speed])
    yield ""
    yield "From opening a checkpoint of the middle of an epoch to the first batch behind it:"
    yield from ("", "| source | time |", "|---|---|")
    for name, taken in sorted(section["resume"].items()):
        yield _row([name, times(taken)])
    yield ""


def _routing(sections: Sections) -> Iterator[str]:
    section = sections.get("routing")
    if section is None:
        return
    yield from ("## One write into many tables", "")
    yield (
        f"Batches of {count(section['rows'])} rows into tables that exist, by {section['tasks']} tasks "
        "without Spark; requests are what would be one to a bucket."
    )
    yield from ("", "| tables | time | processor time | requests |", "|---|---|---|---|")
    for tables, took in section["tables"].items():
        asked = count(round(took["requests"]["median"]))
        yield _row([tables, times(took["seconds"]), times(took["cpu_s"]), asked])
    for tables, took in sections.get("routed_beside", {}).items():
        if tables.isdigit():
            asked = count(round(took["requests"]["median"]))
            spreads = (times(took["seconds"]), times(took["cpu_s"]))
            yield _row([f"one row, into one of {count(int(tables))}", *spreads, asked])
    if "spark" in section:
        yield from _routing_on_spark(section["spark"])
    if "delta" in section:
        yield from ("", f"Delta was not measured: {section['delta']}")
    yield ""


def _routing_on_spark(ways: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield (
        "The same on Spark, from rows in memory: a write is a batch, and a MERGE of each is what a "
        "function for `foreachBatch` does, four at once and with Delta's reading of a log in one task "
        "instead of 50, which together halve it and more. Queries read files, write what is new and "
        "end; those of one table each are started all at once."
    )
    yield from (
        "",
        "| way | tables | time | processor time | peak memory |",
        "|---|---|---|---|---|",
    )
    for way, found in ways.items():
        for tables, took in found.items():
            memory = f"{took['memory']['rss'] / MIB:.0f} MiB" if "memory" in took else ""
            merged = took.get("merged", int(tables))
            name = way if merged == int(tables) else f"{way}: the first {merged}"
            spreads = (times(took["seconds"]), times(took["cpu_s"]))
            yield _row([name, tables, *spreads, memory])
    for tables, took in ways.get("a MERGE of each on Delta", {}).items():
        merged = took.get("merged", int(tables))
        if merged < int(tables):
            yield from (
                "",
                f"Of {count(int(tables))} MERGEs on Delta {_reckoned(took, merged, int(tables))}",
            )
    if own := ways.get("a query of each"):
        least, most, all_of = min(own, key=int), max(own, key=int), max(ways["one query"], key=int)
        rss = own[most]["memory"]["rss"] - own[least]["memory"]["rss"]
        each_mib = rss / MIB / max(1, int(most) - int(least))
        told = f"One more query takes {each_mib:.0f} MiB of memory."
        if int(most) < int(all_of):
            rest = _reckoned(own[most], int(most), int(all_of))
            told = f"Of {count(int(all_of))} queries of one table each {rest} {told}"
        yield from ("", told)


def _topics(sections: Sections) -> Iterator[str]:
    section = sections.get("topics")
    if section is None or "found" not in section:
        return
    yield from ("## A thousand topics of a broker, one query", "")
    yield (
        f"`make topics ARGS='{section['arguments']}'`: broker, load, query and kills are on one machine, and "
        "behind the last message each table is compared with its model "
        "([reliability](../reliability.md#a-thousand-topics))."
    )
    yield from ("", "| what | found |", "|---|---|")
    for name, value in section["found"].items():
        yield _row([name, count(value) if isinstance(value, int) else str(value)])
    yield ""


def _reckoned(took: Mapping[str, Any], done: int, of: int) -> str:
    """Return what all would take at the rate of those that were measured."""
    each = took["seconds"]["median"] / done
    return (
        f"{done} were run, {ms(each)} each, and not the rest: at that rate, which is reckoned and "
        f"not measured, all would take {each * of / 60:.0f} minutes."
    )


def _indexing(sections: Sections) -> Iterator[str]:
    section = sections.get("indexing")
    if section is None:
        return
    yield from ("## Indexes, and reads by the beginning of the key, without Spark", "")
    yield (
        f"A table of {count(section['rows'])} rows, 20 of each customer. Commits are updates of "
        f"{count(section['batch_rows'])} orders, half of which go to another customer; reads are of "
        f"{count(section['wanted'])} customers. Processor time of all threads; files are in the cache "
        "of the system."
    )
    yield ""
    yield "| commit to a table with | processor time |"
    yield "|---|---|"
    for name, took in section["commits"].items():
        yield _row([name, times(took["cpu_s"])])
    yield from ("", "| read | rows found | processor time |", "|---|---|---|")
    for name, took in section["reads"].items():
        yield _row([name, count(section["found"][name]), times(took["cpu_s"])])
    yield from ("", "| `hashPrefix=1` | load | compaction | scan |", "|---|---|---|---|")
    for name, steps in section["skew"].items():
        yield _row([name, *(times(steps[step]["cpu_s"]) for step in ("load", "compact", "scan"))])
    yield ""


def _mirror(sections: Sections) -> Iterator[str]:
    section = sections.get("mirror")
    if section is None:
        return
    factor = 1 + section["twins_bytes"] / section["runs_bytes"]
    yield from ("## A live Delta table", "")
    yield (
        f"Two tables of {count(section['keys'])} keys take the same batches, a tenth of them deletes, and one of them is "
        f"published behind each, without a change feed. The first copy took {section['first_copy_s']:.1f} s of "
        f"processor time; with it the table takes {factor:.2f} times the bytes. Processor time of one process; the "
        "mirror's part is what the published table takes more:"
    )
    yield from ("", "| write | plain | published | the mirror's part |", "|---|---|---|---|")
    for rows, took in section["batches"].items():
        for what, each in ((f"{count(int(rows))} rows", took), ("compaction", took["compact"])):
            part = f"{each['ratio']['median']:.2f} of the plain one"
            yield _row([what, times(each["plain_s"]), times(each["published_s"]), part])
    yield ""
    for label, contest in sections.get("mirror_peers", {}).items():
        if isinstance(contest, dict):
            yield from (f"### Published, against MERGE, {label}", "", *_contest(contest), "")
    readers = sections.get("mirror_readers", {})
    if "fresh" in readers:
        yield from (
            "### Readers of the mirror",
            "",
            (
                "From the commit until the mirror is published, and until a reader has a row of the "
                "batch, which it finds by the statistics of files; asked again, with nothing new, the "
                "question itself takes:"
            ),
            "",
        )
        yield from (
            "| reader | rows of a batch | published | seen | of 99 in 100 | asked again |",
            "|---|---|---|---|---|---|",
        )
        for name, took in readers["fresh"].items():
            seen = (times(took["published_s"]), times(took["seen_s"]), ms(took["seen_p99_s"]))
            yield _row([name, count(took["rows"]), *seen, times(took["again_s"])])
        scan = readers["scan"]
        ratio = scan["parquet_s"]["median"] / scan["mirror_s"]["median"]
        yield ""
        yield (
            f"A scan of all of it by Spark: {times(scan['mirror_s'])}; of the same rows as a table that "
            f"Delta wrote: {times(scan['delta_s'])}; as Parquet: {times(scan['parquet_s'])}. The mirror "
            f"is read at {ratio:.2f} of Parquet's speed; behind a compaction of everything it takes "
            f"{times(readers['compacted']['mirror_s'])}, beside Parquet's "
            f"{times(readers['compacted']['parquet_s'])}."
        )
        yield ""


def _point_reads(sections: Sections) -> Iterator[str]:
    section = sections.get("point_reads")
    if section is None:
        return
    one, many = section["one"], section["many"]
    yield from ("## Rows by key", "")
    yield (
        f"A table of {count(section['rows'])} rows in {section['runs']} runs, and the same rows in as many files of "
        f"Parquet; files are in the cache of the system. `Table.get` of one key: {ms(one['p50_s'])} in the median, "
        f"{ms(one['p99_s'])} at most for 99 of 100. Below {count(section['wanted'])} keys at once."
    )
    yield from ("", "| read | time | of Parquet's |", "|---|---|---|")
    for ours, theirs in (
        ("`Table.get`", "Parquet by Arrow, filtered"),
        ("Spark, of the table", "Spark, of Parquet"),
    ):
        ratio = many[ours]["median"] / many[theirs]["median"]
        yield _row([ours, times(many[ours]), f"{ratio:.3f}"])
        yield _row([theirs, times(many[theirs]), ""])
    yield ""


def _operators(sections: Sections) -> Iterator[str]:
    section = sections.get("operators")
    if section is None:
        return
    yield from ("## Joins and groups of a task, without Spark", "")
    yield (
        f"Groups of {count(section['rows'])} rows; joins of half as many with a tenth. A task takes them in batches of "
        f"{count(section['batch_rows'])}, gives batches, and adds integers up exactly; pyarrow has all rows at once, and "
        "its sums may wrap. One thread each, processor time."
    )
    yield from ("", "| what | task | pyarrow | ratio |", "|---|---|---|---|")
    for name, took in section["cases"].items():
        ratio = took["ours_s"]["median"] / took["pyarrow_s"]["median"]
        yield _row([name, times(took["ours_s"]), times(took["pyarrow_s"]), f"{ratio:.1f}"])
    yield ""


def _tasks(sections: Sections) -> Iterator[str]:
    section = sections.get("tasks", {})
    counts = [key for key in section if key.isdigit()]
    if not counts:
        return
    yield from ("## Reading through a task, without Spark", "")
    yield (
        "Processor time of one split, by the direct call and through a task with one scan, in turn; the table has four epochs, "
        "of which the first has all keys and each other one in twenty. What is added is some 0.03 ms, whatever the rows; Spark "
        "itself takes some 28 ms for a task, whatever it reads."
    )
    yield ""
    yield "| keys | what is read | direct | through a task | ratio |"
    yield "|---|---|---|---|---|"
    for keys in counts:
        for what, took in sorted(section[keys].items()):
            both = (times(took[name]) for name in ("direct_s", "task_s"))
            yield _row([count(int(keys)), what, *both, f"{took['ratio']:.3f}"])
    yield ""


def _merge(sections: Sections) -> Iterator[str]:
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
            yield _row([inputs, name, times(took["seconds"]), times(took["cpu_s"]), speed])
    yield ""


def _inputs(sections: Sections) -> Iterator[str]:
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
        for tables, found in sorted(cost.items(), key=_number):
            names = ("triggerExecution_s", "latestOffset_s", "addBatch_s", "cpu_s")
            spreads = (times(found[name]) for name in names)
            changed, idle = str(found["dirty"]), f"{found['idle_share']:.0%}"
            yield _row([count(int(tables)), changed, *spreads, idle])
        yield ""


def _queries(sections: Sections) -> Iterator[str]:
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
        yield _row([str(queries), each, times(found["seconds"]), times(found["cpu_s"]), memory])
    yield ""


def _discovery(sections: Sections) -> Iterator[str]:
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
    for name, each in sorted(found.items(), key=_number):
        yield _row(
            [
                count(int(name)),
                times(each["latest_s"]),
                f"{each['planned_s']['median'] * 1000:.0f} ms",
                f"{each['planned_s']['max'] * 1000:.0f} ms",
                f"{each['requests_per_look']:.2f}",
            ]
        )
    yield ""


def _flood(sections: Sections) -> Iterator[str]:
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
        yield _row([whose, count(found[name]["count"]), *waits])
    yield ""


def _views(sections: Sections) -> Iterator[str]:
    found = sections.get("views")
    if not found or "join" not in found:
        return
    yield from ("## Views over a table of which one row in a hundred changes, on Spark", "")
    yield (
        f"{count(found['orders'])} orders of a tenth as many customers. *join*: each order with its "
        "customer's country. *sum*: number and amount of each customer's orders. In a round a hundredth of "
        "the orders changes and one customer in a thousand; what is told is the work: the micro-batches that "
        "hold the changes, of a query that looks for them every second, or the computation. Everybody runs "
        "alone, in turn, and some rounds before do not count. Our sums are kept in a table, each round a durable "
        "epoch of it; the rows of the join go nowhere unless they are kept, as do those of Spark unless they are "
        "written. Spark's "
        "stateful aggregation reads the same changes of ours and keeps its state in RocksDB. A micro-batch of "
        f"Spark that reads one row from nowhere takes {times(found['floor'])}. Same sums at the end: "
        f"{yes(found['same'])}."
    )
    yield from ("", "| view | by | seconds | processor time |", "|---|---|---|---|")
    for name in ("join", "sum"):
        for who, seconds in found[name].items():
            yield _row([name, who, times(seconds), ms(seconds["cpu_s"]["median"])])
    if "not used again" in found:
        yield ""
        told = (
            f"{name} {times(took)}, processor time {ms(took['cpu_s']['median'])}"
            for name, took in found["not used again"].items()
        )
        yield (
            "With `spark.python.worker.reuse=false` each task has a new process, which imports everything and opens "
            f"every file anew: {'; '.join(told)}. Of the processor time that of processes that have ended is not counted."
        )
    yield ""


def _fusion(sections: Sections) -> Iterator[str]:
    found = sections.get("fusion")
    if not found or "chain" not in found:
        return
    yield from ("## What runs together, on Spark", "")
    yield (
        f"{count(found['rows'])} rows of two numbers through graphs of `spark_upsert.flow`, plans in turn, into a "
        "sink that drops them. *Predicted* is what the cost model says of the same plan, with estimates "
        "from a sample; it leaves out what is the same in all plans: Spark's planning, its reading and its "
        "writing. So differences are to be compared, and which plan is best."
    )
    for title, plans in _fusion_groups(found):
        yield from ("", f"**{title}**", "")
        yield "| plan | time | processor time | predicted time | predicted processor time |"
        yield "|---|---|---|---|---|"
        for name, said in plans["predicted"].items():
            taken = plans[name]
            yield _row(
                [
                    name,
                    times(taken["elapsed_s"]),
                    times(taken["cpu_s"]),
                    ms(said["elapsed_s"]),
                    ms(said["processor_s"]),
                ]
            )
    yield from ("", "**Handing rows over**: processor time of one pass, and of one exchange", "")
    yield "| rows | bytes of a text | rows of a batch | pass | predicted | exchange | predicted |"
    yield "|---|---|---|---|---|---|---|"
    for each in found["hand_offs"]:
        shape = (count(each[name]) for name in ("rows", "text_bytes", "batch_rows"))
        took = (
            each[f"{what}{which}_s"]
            for what in ("pass", "exchange")
            for which in ("", "_predicted")
        )
        yield _row([*shape, *map(ms, took)])
    if "pass_s" in found:
        flow, bare = (found["pass_s"][name] for name in ("flow", "bare"))
        yield ""
        yield (
            f"Of a million narrow rows in batches of 64 Ki, a pass of a flow takes {ms(flow)} of the "
            f"processors, a `mapInArrow` by itself {ms(bare)}: {flow / bare:.2f} times as much."
        )
    yield ""


def _fusion_groups(found: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, plans in found["chain"].items():
        yield f"Three operators behind each other, {name}", plans
    yield "One operator that has much to do, by the width of its region", found["width"]
    for each in found["graphs"]:
        title = (
            f"`{each['graph']}`: {each['plans']} plans, of costs from {each['least_cost']:.2f} to "
            f"{each['greatest_cost']:.2f}; automatic `{each['pes']['automatic']}`, worst "
            f"`{each['pes']['worst']}`"
        )
        yield title, each
    if "eight" in found:
        each = found["eight"]
        title = (
            f"`{each['graph']}`: {count(each['drawn'])} drawn plans, of costs from {each['least_cost']:.2f} "
            f"to {each['greatest_cost']:.2f}; {count(each['better_than_automatic'])} of them cost less than "
            f"automatic, `{each['pes']['automatic']}`; the best of them `{each['pes']['best of the drawn']}`"
        )
        yield title, each


def _slow(sections: Sections) -> Iterator[str]:
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
        yield _row([str(number), f"{worker:.1f} MiB", f"{everything:.0f} MiB"])
    yield ""


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


# -- plots -----------------------------------------------------------------------------------


def _plots(sections: Sections, folder: Path) -> list[tuple[str, str]]:
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
