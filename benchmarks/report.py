"""The report: what was measured, against what limit, on what machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import spread
from benchmarks.sections import SECTIONS

Sections = dict[str, Any]
MIB = 1 << 20


def write_report(found: dict[str, Any], folder: Path) -> None:
    """Write ``report.md`` and the plots that it shows."""
    sections = found["sections"]
    plots = _plots(sections, folder)
    lines = [
        "# Benchmarks",
        "",
        (
            "Made by `make bench` from [raw.json](raw.json). Peer and upsertflow run in turn, a batch "
            "each, on the same generated rows, each in a process of its own; afterwards the tables "
            "and the change rows are compared. A figure is the median; in brackets stand the least "
            "and the greatest."
        ),
        "",
        *_machine(found),
        "",
        "## Against the limits",
        "",
        "| what | limit | measured | met | explanation |",
        "|---|---|---|---|---|",
        *(_row(cells) for cells in _limits(sections, found["size"])),
        "",
        *_contests(sections),
        *_scale(sections),
        *_floors(sections),
        *_snapshot(sections),
        *_epochs(sections),
        *_consumers(sections),
        *_missing(sections),
        *(line for name, title in plots for line in (f"![{title}]({name})", "")),
    ]
    (folder / "report.md").write_text("\n".join(lines).rstrip() + "\n")


def _row(cells: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(cell.replace("\n", " ").replace("|", "\\|") for cell in cells) + " |"


def _machine(found: dict[str, Any]) -> list[str]:
    at = found.get("machine", {})
    loads = [s["load_before"] for s in found["sections"].values() if "load_before" in s]
    lines = [
        (
            f"Machine: {at.get('cores')} cores ({at.get('cpu')}), "
            f"{at.get('memory_bytes', 0) / (1 << 30):.0f} GiB, {at.get('system')}, "
            f"Python {at.get('python')}. Form: {found['size']}."
        )
    ]
    busiest = max(loads, default=0.0)
    if busiest > (at.get("cores") or 1):
        lines += [
            "",
            (
                f"**The machine was busy with other work: its load was up to {busiest:.0f} when a "
                "section began.** Ratios of what ran in turn still tell something, absolute figures "
                "and spreads little. Measure again on an idle machine."
            ),
        ]
    return lines


# -- the limits ------------------------------------------------------------------------------


def _limits(sections: Sections, size: str) -> Iterator[tuple[str, str, str, str, str]]:
    yield _ratio_row(
        sections.get("delta"),
        "upsert → changelog through Spark, against Delta MERGE + change feed",
        ("upsertflow on Spark", "Delta on Spark"),
        10,
    )
    yield _ratio_row(
        sections.get("delta_rs"),
        "the same, engine only, against delta-rs MERGE + change feed",
        ("upsertflow", "delta-rs"),
        30,
        shortfall="the limit is held against compiled code on all cores, which rewrites whole files: "
        "its cost grows with the table, and so does the ratio. Ours is the search and the gathering "
        "of rows by numpy and Arrow, and fsync, which delta-rs leaves out; see docs/adr/0013",
    )
    yield from _scale_rows(sections, size)
    yield from _transport_rows(sections)
    yield _snapshot_row(sections)
    yield _aged_row(sections)
    yield from _memory_rows(sections)
    yield _offsets_row(sections)
    yield _written_row(sections)
    imports = sections.get("imports", {})
    yield _judged(
        "`import pyspark_upsertflow` beyond pyspark",
        "< 30 ms",
        imports.get("median_ms"),
        lambda value: value < 30,
        "{:.1f} ms",
        "the engine is imported when a reader or writer is asked for",
    )


def _judged(
    what: str, limit: str, value: float | None, met: Any, form: str, explanation: str
) -> tuple[str, str, str, str, str]:
    if value is None:
        return what, limit, "not measured", "–", explanation
    return what, limit, form.format(value), "yes" if met(value) else "**no**", explanation


def _ratio_row(
    section: Any, what: str, names: tuple[str, str], limit: int, *, shortfall: str = ""
) -> tuple[str, str, str, str, str]:
    ours, peer = (((section or {}).get("contenders") or {}).get(name) for name in names)
    if ours is None or peer is None:
        return what, f"{limit}x", "not measured", "–", ""
    ratio = peer["total_s"]["median"] / ours["total_s"]["median"]
    workload = section["workload"]
    told = (
        f"{_count(workload['table_rows'])} keys, {_count(workload['batch_rows'])}-row batches: "
        f"{_times(ours['total_s'])} against {_times(peer['total_s'])}; same table: "
        f"{_yes(section['same_table'])}, same changes: {_yes(section['same_changes'])}; processor "
        f"time: {peer['cpu_s']['median'] / ours['cpu_s']['median']:.1f}x"
    )
    if ratio < limit and shortfall:
        told += f". What stands in the way: {shortfall}"
    return _judged(what, f"{limit}x", ratio, lambda value: value >= limit, "{:.1f}x", told)


_FIRST_TOUCH = (
    ". What grows is the first touch: in a large table nearly every key of a batch lies in pages that "
    "this process has not read yet, some five per key, which are mapped and verified once; in a "
    "small table all pages are known after the first batches. There are more files to visit, too. "
    "Through Spark it is lost in the cost of a micro-batch, see the row of 1 000 rows on Spark"
)


def _scale_rows(sections: Sections, size: str) -> Iterator[tuple[str, str, str, str, str]]:
    scale = sections.get("scale", {})
    pairs = {
        "full": [("1000000", "100000000")],
        "quick": [("100000", "10000000"), ("1000000", "10000000")],
    }.get(size, [("10000", "20000")])
    for batch in sorted((key for key in scale if key.isdigit()), key=int):
        contenders = scale[batch]["contenders"]
        for small, large in [*pairs, ("100000", "10000000")] if batch == "1000" else pairs:
            if small not in contenders or large not in contenders:
                continue
            low, high = contenders[small]["total_s"], contenders[large]["total_s"]
            note = "" if size == "full" else " (the limit is for 100 M over 1 M keys: `--full`)"
            if high["median"] >= 1.5 * low["median"]:
                note += _FIRST_TOUCH
            yield _judged(
                f"batch of {_count(int(batch))} rows at {_count(int(large))} keys over the same at "
                f"{_count(int(small))}, engine only",
                "< 1.5",
                high["median"] / low["median"],
                lambda value: value < 1.5,
                "{:.2f}",
                f"{_times(high)} over {_times(low)}; means {_ms(high['mean'])} and "
                f"{_ms(low['mean'])}{note}",
            )
    spark = sections.get("spark_scale", {}).get("contenders", {})
    if len(spark) == 2:
        (small, low), (large, high) = sorted(spark.items(), key=lambda item: int(item[0]))
        yield _judged(
            f"micro-batch of 1 000 rows on Spark at {_count(int(large))} keys over the same at "
            f"{_count(int(small))}",
            "≤ 1.5",
            high["upsert_s"]["median"] / low["upsert_s"]["median"],
            lambda value: value <= 1.5,
            "{:.2f}",
            f"{_times(high['upsert_s'])} over {_times(low['upsert_s'])}",
        )


def _transport_rows(sections: Sections) -> Iterator[tuple[str, str, str, str, str]]:
    floors = sections.get("floors", {})
    for rows in sorted((key for key in floors if key.isdigit()), key=int):
        chains = floors[rows]
        base = chains["no-op -> no-op"]["median"]
        for name, which in (("no-op -> upsertflow", "sink"), ("upsertflow -> no-op", "source")):
            moved = 1 if which == "sink" else 2
            share = moved * base / chains[name]["median"]
            many = " (two change rows per command)" if moved == 2 else ""
            yield _judged(
                f"share of Spark's own Python transport speed, {which}, {_count(int(rows))} rows",
                "0.5",
                share,
                lambda value: value >= 0.5,
                "{:.2f}",
                f"{_times(chains[name])} against {_times(chains['no-op -> no-op'])}{many}",
            )


def _snapshot_row(sections: Sections) -> tuple[str, str, str, str, str]:
    spark = sections.get("snapshot", {}).get("spark")
    what = "snapshot read, share of the speed of `spark.read.parquet`"
    if not spark:
        return what, "0.5", "not measured", "–", ""
    ratio = spark["parquet_s"]["median"] / spark["snapshot_s"]["median"]
    told = f"{_times(spark['snapshot_s'])} against {_times(spark['parquet_s'])}"
    return _judged(what, "0.5", ratio, lambda value: value >= 0.5, "{:.2f}", told)


def _aged_row(sections: Sections) -> tuple[str, str, str, str, str]:
    aged = sections.get("aged", {})
    what = "snapshot read of a table of many small epochs over that of the same rows written once"
    if "fresh_s" not in aged:
        return what, "≤ 1.5", "not measured", "–", ""
    told = (
        f"{_count(aged['epochs'])} epochs of 1 000 rows, {_count(aged['rows'])} rows in "
        f"{aged['runs']} runs, through Spark: {_times(aged['table_s'])} over {_times(aged['fresh_s'])}"
    )
    ratio = aged["table_s"]["median"] / aged["fresh_s"]["median"]
    return _judged(what, "≤ 1.5", ratio, lambda value: value <= 1.5, "{:.2f}", told)


def _offsets_row(sections: Sections) -> tuple[str, str, str, str, str]:
    found = sections.get("offsets", {})
    what = "`latestOffset` of a stream that is 10 000 epochs behind"
    if "warm_s" not in found:
        return what, "< 10 ms", "not measured", "–", ""
    told = (
        f"one more epoch since the last call; with a limit of rows {_times(found['limited_s'])}; the "
        f"first call of a process, which reads the log: {_ms(found['first_s'])}. Streams of several "
        "inputs, for which the limit is meant, do not exist yet"
    )
    value = found["warm_s"]["median"] * 1000
    return _judged(what, "< 10 ms", value, lambda value: value < 10, "{:.2f} ms", told)


def _memory_rows(sections: Sections) -> Iterator[tuple[str, str, str, str, str]]:
    for name, label in (("scale", "engine"), ("spark_scale", "largest Python worker on Spark")):
        section = sections.get(name, {})
        contenders = (section.get("1000", {}) if name == "scale" else section).get("contenders")
        if not contenders:
            continue
        rows = max((key for key in contenders if int(key) <= 10_000_000), key=int)
        memory = contenders[rows]["memory"]
        yield _judged(
            f"peak memory of a 1 000-row upsert into {_count(int(rows))} rows, {label}",
            "< 300 MiB",
            memory["python_rss"] / MIB,
            lambda value: value < 300,
            "{:.0f} MiB",
            f"{memory['python_anonymous'] / MIB:.0f} MiB of it are no mapped file; changes are "
            "read in the same process, and plain Python gives nothing back (docs/adr/0012)"
            if name == "scale"
            else f"{memory['python_anonymous'] / MIB:.0f} MiB of it are no mapped file",
        )


def _written_row(sections: Sections) -> tuple[str, str, str, str, str]:
    ours = sections.get("epochs", {}).get("contenders", {}).get("upsertflow")
    ratio = ours and ours["written_bytes"] / ours["ingested_bytes"]
    told = ours and f"{len(ours['turns'])} epochs of 1 000 rows, all files that ever were"
    return _judged(
        "bytes written per byte ingested, steady state",
        "< 6",
        ratio,
        lambda value: value < 6,
        "{:.1f}",
        told or "",
    )


# -- the sections ----------------------------------------------------------------------------


def _contests(sections: Sections) -> Iterator[str]:
    single = [
        ("delta", "Through Spark, against Delta Lake"),
        ("iceberg", "Through Spark, against Iceberg (each on its own Spark)"),
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
        f"{_count(workload['table_rows'])} keys ({workload['keys']}, {workload['draw']}), batches "
        f"of {_count(workload['batch_rows'])} rows, {section['rounds']} counted rounds. "
        f"Same table: {_yes(section['same_table'])}; same change rows: "
        f"{_yes(section['same_changes'])}."
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
        _times(result["upsert_s"]),
        _times(result["changes_s"]) if "changes_s" in result else "–",
        _times(result["total_s"]) if "changes_s" in result else "–",
        f"{result['rows_per_s']:,.0f}".replace(",", " "),
        f"{ratio:.1f}x" if ratio else "–",
        _times(result["cpu_s"]),
        f"{result['cpu_s']['median'] / ours['cpu_s']['median']:.1f}x" if ours else "–",
        f"{result['memory']['rss'] / MIB:.0f} MiB",
        f"{result['written_bytes'] / result['ingested_bytes']:.1f}",
        ", ".join(f"{key} {value}" for key, value in result["versions"].items() if value),
    ]


def _scale(sections: Sections) -> Iterator[str]:
    if "scale" not in sections:
        return
    yield from ("## Cost of a batch over the size of the table, engine only", "")
    yield "| rows per batch | keys | upsert | changes | both | mean of both | peak memory | runs at the end |"
    yield "|---|---|---|---|---|---|---|---|"
    for batch, section in sections["scale"].items():
        if not isinstance(section, dict):
            continue
        for keys, result in sorted(section["contenders"].items(), key=lambda item: int(item[0])):
            yield _row(
                [
                    _count(int(batch)),
                    _count(int(keys)),
                    *(_times(result[name]) for name in ("upsert_s", "changes_s", "total_s")),
                    _ms(result["total_s"]["mean"]),
                    f"{result['memory']['rss'] / MIB:.0f} MiB",
                    f"{result['turns'][-1]['runs']:.0f}",
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
            yield _row([_count(int(rows)), name.replace("->", "→"), _times(seconds), speed])
    yield ""


def _snapshot(sections: Sections) -> Iterator[str]:
    section = sections.get("snapshot", {})
    if "spark" not in section:
        return
    yield from (
        f"## Read of all {_count(section['rows'])} rows",
        "",
        "| what | time |",
        "|---|---|",
    )
    yield _row(["upsertflow on Spark", _times(section["spark"]["snapshot_s"])])
    yield _row(["`spark.read.parquet`", _times(section["spark"]["parquet_s"])])
    yield _row(["upsertflow, engine only, one core", _times(section["engine_s"])])
    yield _row(["raw Arrow file, written", _ms(section["arrow_write_s"])])
    yield _row(["raw Arrow file, read", _ms(section["arrow_read_s"])])
    yield ""


def _epochs(sections: Sections) -> Iterator[str]:
    ours = sections.get("epochs", {}).get("contenders", {}).get("upsertflow")
    if not ours:
        return
    turns = [turn["total_s"] for turn in ours["turns"]]
    tenth = max(1, len(turns) // 10)
    yield from (f"## {len(turns)} epochs of 1 000 rows, engine only", "", "| epochs | both |")
    yield "|---|---|"
    yield _row([f"first {tenth}", _times(spread(turns[:tenth]))])
    yield _row([f"last {tenth}", _times(spread(turns[-tenth:]))])
    yield from (
        "",
        f"At most {max(turn['runs'] for turn in ours['turns']):.0f} runs at any time.",
        "",
    )


def _consumers(sections: Sections) -> Iterator[str]:
    section = sections.get("consumers", {})
    counts = [key for key in section if key.isdigit()]
    if not counts:
        return
    yield from ("## Several streams that read the same changes at once, on Spark", "")
    yield f"{section['epochs']} epochs of {_count(section['batch_rows'])} commands; start included."
    yield from ("", "| streams | until all are done |", "|---|---|")
    for count in sorted(counts, key=int):
        yield _row([count, f"{section[count]:.1f} s"])
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
    for name, title, unit, value in (
        ("rate.svg", "Rate over table size", "commands/s", lambda r: r["rows_per_s"]),
        ("memory.svg", "Peak memory over table size", "MiB", lambda r: r["memory"]["rss"] / MIB),
    ):
        for batch, found in sorted(scale.items(), key=lambda item: int(item[0])):
            keys = sorted(found, key=int)
            label = f"{_count(int(batch))} rows per batch"
            pyplot.plot([int(k) for k in keys], [value(found[k]) for k in keys], "o-", label=label)
        if scale:
            pyplot.xscale("log")
            pyplot.legend()
            save(name, title, "keys in the table", unit)
    ours = sections.get("epochs", {}).get("contenders", {}).get("upsertflow")
    if ours:
        pyplot.plot([turn["total_s"] * 1000 for turn in ours["turns"]], ".", markersize=3)
        save("epochs.svg", "Cost per batch of 1 000 rows over the epochs", "epoch", "ms")
    return drawn


# -- words -----------------------------------------------------------------------------------


def _count(number: int) -> str:
    if number >= 1_000_000 and number % 100_000 == 0:
        return f"{number / 1_000_000:g} M"
    return f"{number:,}".replace(",", " ")


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def _times(seconds: dict[str, float]) -> str:
    return f"{_ms(seconds['median'])} ({_ms(seconds['min'])} to {_ms(seconds['max'])})"


def _yes(value: bool | None) -> str:
    return {True: "yes", False: "**no**", None: "not comparable"}[value]
