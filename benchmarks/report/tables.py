"""Sections of the report about tables: routing, indexes, rows by key, mirrors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.limits.judged import Sections
from benchmarks.report.engine import contest_lines
from benchmarks.words import MIB, count, ms, row, times


def routing_section(sections: Sections) -> Iterator[str]:
    """Yield the section on one write into many tables."""
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
        yield row([tables, times(took["seconds"]), times(took["cpu_s"]), asked])
    for tables, took in sections.get("routed_beside", {}).items():
        if tables.isdigit():
            asked = count(round(took["requests"]["median"]))
            spreads = (times(took["seconds"]), times(took["cpu_s"]))
            yield row([f"one row, into one of {count(int(tables))}", *spreads, asked])
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
            yield row([name, tables, *spreads, memory])
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


def topics_section(sections: Sections) -> Iterator[str]:
    """Yield the section on a thousand topics of a broker."""
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
        yield row([name, count(value) if isinstance(value, int) else str(value)])
    yield ""


def _reckoned(took: Mapping[str, Any], done: int, of: int) -> str:
    """Return what all would take at the rate of those that were measured."""
    each = took["seconds"]["median"] / done
    return (
        f"{done} were run, {ms(each)} each, and not the rest: at that rate, which is reckoned and "
        f"not measured, all would take {each * of / 60:.0f} minutes."
    )


def indexing_section(sections: Sections) -> Iterator[str]:
    """Yield the section on indexes."""
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
        yield row([name, times(took["cpu_s"])])
    yield from ("", "| read | rows found | processor time |", "|---|---|---|")
    for name, took in section["reads"].items():
        yield row([name, count(section["found"][name]), times(took["cpu_s"])])
    yield from ("", "| `hashPrefix=1` | load | compaction | scan |", "|---|---|---|---|")
    for name, steps in section["skew"].items():
        yield row([name, *(times(steps[step]["cpu_s"]) for step in ("load", "compact", "scan"))])
    yield ""


def point_reads_section(sections: Sections) -> Iterator[str]:
    """Yield the section on rows by key."""
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
        yield row([ours, times(many[ours]), f"{ratio:.3f}"])
        yield row([theirs, times(many[theirs]), ""])
    yield ""


def wide_section(sections: Sections) -> Iterator[str]:
    """Yield the section on tables with many columns."""
    section = sections.get("wide")
    if section is None:
        return
    widths = dict(sorted(section["widths"].items(), key=lambda width: int(width[0])))
    yield from ("## Many columns, without Spark", "")
    yield (
        f"A table of {section['rows']} rows and a growing number of columns. Processor time of all "
        "threads, for each step."
    )
    yield from ("", f"| step | {' | '.join(f'{count(int(n))} columns' for n in widths)} |")
    yield f"|---|{'---|' * len(widths)}"
    for step in next(iter(widths.values())):
        yield row([step, *(times(took[step]["cpu_s"]) for took in widths.values())])
    yield ""


def unchanged_section(sections: Sections) -> Iterator[str]:
    """Yield the section on updates that leave a large column unchanged."""
    section = sections.get("unchanged")
    if section is None:
        return
    yield from ("## Updates that leave a large value unchanged, without Spark", "")
    yield (
        f"A table of {count(section['rows'])} rows with a text of {count(section['value_bytes'])} bytes, in one run. "
        "One batch updates a share of them at random; the text is sent again, or left unchanged. Written bytes, and "
        "processor time of all threads:"
    )
    shares = {share: both for share, both in section["shares"].items() if float(share)}
    heads = [f"{float(share):.0%}, {how}" for share in shares for how in ("sent", "unchanged")]
    yield from ("", f"| step | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}")
    cells = [each for both in shares.values() for each in (both["sent"], both["unchanged"])]
    yield row(["bytes written", *(f"{each['bytes'] / 1e6:.2f} MB" for each in cells)])
    for step in (name for name in cells[0] if name != "bytes"):
        yield row([step, *(times(each[step]["cpu_s"]) for each in cells)])
    none = section["shares"]["0.0"]
    ratio = none["unchanged"]["scan"]["cpu_s"]["median"] / none["sent"]["scan"]["cpu_s"]["median"]
    yield ""
    yield f"A scan takes {ratio:.2f} times as long if masks are given and no row uses them."
    yield ""


def mirror_section(sections: Sections) -> Iterator[str]:
    """Yield the section on a mirror beside its table."""
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
            yield row([what, times(each["plain_s"]), times(each["published_s"]), part])
    yield ""
    for label, contest in sections.get("mirror_peers", {}).items():
        if isinstance(contest, dict):
            yield from (f"### Published, against MERGE, {label}", "", *contest_lines(contest), "")
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
            yield row([name, count(took["rows"]), *seen, times(took["again_s"])])
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
