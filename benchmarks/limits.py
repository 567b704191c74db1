"""The figures that were promised: each with its limit, what was measured, and why it is missed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.words import MIB, count, ms, times, yes

Sections = dict[str, Any]
Row = tuple[str, str, str, str, str]
"""What, limit, measured, met, explanation."""


def limits(sections: Sections, size: str) -> Iterator[Row]:
    """Yield a row for each promise, measured or not."""
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
        shortfall="delta-rs is compiled code on all cores that rewrites whole files, so that its cost "
        "grows with the table, and so does the ratio. Ours is mostly compiled code, too, called from "
        "Python: the greatest shares (see where the engine's time goes, below) are numpy's search of "
        "each run for the keys and Arrow's gathering of rows that lie scattered over them, both bound by "
        "memory; then sorts, and fsync, which delta-rs leaves out. What numpy offers for the search "
        "was compared in docs/adr/0013",
    )
    for name, peer, limit in (
        ("iceberg_changelog", "Iceberg changelog", 6),
        ("paimon", "Paimon", 6),
        ("hudi", "Hudi", 10),
    ):
        yield _ratio_row(
            sections.get(name),
            f"upsert → changelog through Spark, against {peer}",
            ("upsertflow on Spark", f"{peer} on Spark"),
            limit,
        )
    yield from _commit_rows(sections.get("one_row_commits", {}))
    yield from _scale_rows(sections, size)
    yield from _transport_rows(sections)
    yield _snapshot_row(sections)
    yield _aged_row(sections)
    yield _memory_row(sections)
    yield _offsets_row(sections)
    yield _written_row(sections)
    yield _union_row(sections.get("union", {}))
    yield _queries_row(sections.get("queries", {}))
    yield _slow_row(sections.get("union", {}))
    yield _discovery_row(sections.get("discovery", {}))
    yield _watchers_row(sections.get("threads", {}))
    for name in ("join", "sum"):
        yield _view_row(sections.get("views", {}), sections.get("floors", {}), name)
    if "lived" in sections.get("views", {}):  # Its long run can be left out.
        yield _lived_row(sections["views"]["lived"])
    yield _fusion_row(sections.get("fusion", {}))
    yield from _point_rows(sections.get("point_reads"))
    yield from _beside_rows(sections.get("routed_beside", {}))
    yield from _mirror_rows(sections)  # Its sections can be left out.
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
) -> Row:
    if value is None:
        return what, limit, "not measured", "–", explanation
    return what, limit, form.format(value), "yes" if met(value) else "**no**", explanation


def _ratio_row(
    section: Any, what: str, names: tuple[str, str], limit: int, *, shortfall: str = ""
) -> Row:
    ours, peer = (((section or {}).get("contenders") or {}).get(name) for name in names)
    if ours is None or peer is None:
        return what, f"{limit}x", "not measured", "–", ""
    ratio = peer["total_s"]["median"] / ours["total_s"]["median"]
    workload = section["workload"]
    told = (
        f"{count(workload['table_rows'])} keys, {count(workload['batch_rows'])}-row batches: "
        f"{times(ours['total_s'])} against {times(peer['total_s'])}; same table: "
        f"{yes(section['same_table'])}, same changes: {yes(section['same_changes'])}; processor "
        f"time: {peer['cpu_s']['median'] / ours['cpu_s']['median']:.1f}x"
    )
    if ratio < limit and shortfall:
        told += f". What stands in the way: {shortfall}"
    return _judged(what, f"{limit}x", ratio, lambda value: value >= limit, "{:.1f}x", told)


def _commit_rows(section: dict[str, Any]) -> Iterator[Row]:
    """Yield how long commits of one row each take, with a read of all rows behind them."""
    found = section.get("contenders", {})
    for peer in ("DuckLake", "delta-rs", "pyiceberg"):
        what = f"one-row commits and a read behind them, against {peer}"
        if not {"upsertflow", peer} <= found.keys():
            yield what, "> 1x", "not measured", "–", ""
            continue
        ours, theirs = (
            _committed_s(found[name], section["rounds"]) for name in ("upsertflow", peer)
        )
        told = (
            f"{count(section['rounds'])} commits into {count(section['workload']['table_rows'])} rows, "
            f"and one read: {1000 * ours:.0f} ms against {1000 * theirs:.0f} ms; a commit "
            f"{times(found['upsertflow']['upsert_s'])} against {times(found[peer]['upsert_s'])}, the read "
            f"{times(found['upsertflow']['read_s'])} against {times(found[peer]['read_s'])}"
        )
        yield _judged(what, "> 1x", theirs / ours, lambda ratio: ratio > 1, "{:.1f}x", told)


def _committed_s(contender: dict[str, Any], rounds: int) -> float:
    """Return the seconds of all commits and of one read."""
    found: float = contender["upsert_s"]["mean"] * rounds + contender["read_s"]["median"]
    return found


_DEEPER = (
    ". Two things grow with a table. A tree of runs is deeper, by the logarithm of its size: a key is "
    "searched in {0:.0f} runs instead of {1:.0f} (here, on average). And the table is no longer in the "
    "caches: nearly every key of a batch lies in memory that this process touches for the first "
    "time, which is a page fault for each column. Neither is the reading of more rows. See the shares "
    "below, and docs/adr/0003 and 0013"
)


_AS_ENGINE = (
    ". What grows is the engine's share, as the rows on the engine alone say: more runs in which a key is "
    "searched, and pages that are touched for the first time. Spark's own share of a batch stays as it is, so "
    "that the ratio is the greater the faster the machine plans and starts tasks"
)


def _scale_rows(sections: Sections, size: str) -> Iterator[Row]:
    pairs = {"full": (1_000_000, 100_000_000), "quick": (1_000_000, 10_000_000)}
    small, large = pairs.get(size, (10_000, 20_000))
    note = "" if size == "full" else " (the limit is for 100 M over 1 M keys: `--full`)"
    for name, where in (("spark_scale", "through Spark"), ("scale", "engine only")):
        batches = _by_number(sections.get(name, {}))
        if not batches:
            what = f"batch at {count(large)} keys over the same at {count(small)}, {where}"
            yield what, "< 1.5", "not measured", "–", ""
        for batch, section in batches:
            found = section["contenders"]
            if str(small) in found and str(large) in found:
                low, high = found[str(small)], found[str(large)]
                upsert, changes, ratio = (
                    high[figure]["median"] / low[figure]["median"]
                    for figure in ("upsert_s", "changes_s", "total_s")
                )
                told = (
                    f"{times(high['total_s'])} over {times(low['total_s'])}; the upsert alone "
                    f"{upsert:.2f}, its changes {changes:.2f}{note}"
                )
                if ratio >= 1.5:
                    depths = (side["last"].get("depth") for side in (high, low))
                    told += _DEEPER.format(*depths) if "depth" in high["last"] else _AS_ENGINE
                yield _judged(
                    f"batch of {count(batch)} rows at {count(large)} keys over the same at "
                    f"{count(small)}, {where}",
                    "< 1.5",
                    ratio,
                    lambda value: value < 1.5,
                    "{:.2f}",
                    told,
                )


def _point_rows(section: Any) -> Iterator[Row]:
    """Yield how fast rows are found by their keys."""
    if section is None:
        return
    many, wanted = section["many"], count(section["wanted"])
    parquet = many["Spark, of Parquet"]
    for ours, way, shortfall in (
        ("`Table.get`", "`Table.get`", ""),
        (
            "Spark, of the table",
            "Spark's filter pushed down",
            (
                ". What stands in the way: the rows themselves are found in what `Table.get` takes. The "
                "rest is Spark's: a query over a Python source is planned in one process and read in "
                "another, whatever it asks for. `Table.get` and `upsertflow get` need no Spark: for few keys they "
                "are the way"
            ),
        ),
    ):
        found = many[ours]
        ratio = parquet["median"] / found["median"]
        told = f"{times(found)} against {times(parquet)}" + (shortfall if ratio < 20 else "")
        yield _judged(
            f"{wanted} keys of {count(section['rows'])} rows by {way}, against Spark's filter of Parquet",
            "20x",
            ratio,
            lambda value: value >= 20,
            "{:.1f}x",
            told,
        )
    yield _judged(
        f"`Table.get` of one key of {count(section['rows'])} rows in {section['runs']} runs, 99 in 100",
        "< 5 ms",
        1000 * section["one"]["p99_s"],
        lambda value: value < 5,
        "{:.1f} ms",
        f"the median: {1000 * section['one']['p50_s']:.1f} ms; files are in the cache of the system",
    )


def _beside_rows(section: Any) -> Iterator[Row]:
    """Yield what one row costs in one of many tables."""
    numbers = sorted(int(name) for name in section if name.isdigit())
    if not numbers:
        return
    few, many = (section[str(number)]["cpu_s"] for number in (numbers[0], numbers[-1]))
    yield _judged(
        f"one row into one of {count(numbers[-1])} tables over the same into one of {numbers[0]}",
        "≤ 1.3",
        many["median"] / few["median"],
        lambda value: value <= 1.3,
        "{:.2f}",
        f"processor time: {times(many)} over {times(few)}; without Spark",
    )


def _mirror_rows(sections: Sections) -> Iterator[Row]:
    """Yield what a live Delta table may cost, how fresh it is, and how fast it is read."""
    costs = sections.get("mirror", {})
    for rows, took in costs.get("batches", {}).items():
        yield _judged(
            f"processor time of publishing {count(int(rows))} rows into {count(costs['keys'])} keys, "
            "of the upsert's",
            "≤ 1.5",
            took["ratio"]["median"],
            lambda value: value <= 1.5,
            "{:.2f}",
            "two tables in turn; twins and deaths are the writer's (docs/adr/0093)",
        )
    for label, ours, plain, peer, limit in (
        (
            "through Spark",
            "upsertflow mirrored on Spark",
            "upsertflow on Spark",
            "Delta on Spark",
            0.05,
        ),
        ("engine only", "upsertflow mirrored", "upsertflow", "delta-rs", 0.03),
    ):
        found = sections.get("mirror_peers", {}).get(label, {}).get("contenders", {})
        if ours in found and peer in found:
            yield _judged(
                f"processor time of upsert and mirror with a change feed, of MERGE's, {label}",
                f"≤ {limit:.0%}",
                found[ours]["cpu_s"]["median"] / found[peer]["cpu_s"]["median"],
                lambda value, limit=limit: value <= limit,
                "{:.1%}",
                f"the upsert, the mirror with its feed and the reading of changes: "
                f"{times(found[ours]['cpu_s'])}, of which the same table without a mirror takes "
                f"{times(found[plain]['cpu_s'])}, against {times(found[peer]['cpu_s'])}. A feed is "
                "two rows of Parquet for each update, and half of what publishing takes; it is made "
                "by the same look-up as the changes of the table, which are read here besides. To "
                "gather it from the vectors of both versions, without a look-up, took as long: the "
                "old rows lie in all runs. Without a feed publishing takes less than the upsert "
                "does (above)",
            )
    readers = sections.get("mirror_readers", {})
    for name, took in readers.get("fresh", {}).items():
        yield _judged(
            f"from a commit until {name} sees the row, 99 in 100",
            "< 0.5 s",
            took["seen_p99_s"],
            lambda value: value < 0.5,
            "{:.2f} s",
            f"{count(took['rows'])} rows into {count(took['keys'])} keys; published after "
            f"{times(took['published_s'])}; the question alone, with nothing new: "
            f"{times(took['again_s'])}. What lies between is the reader's own: to take up a version "
            "that another process has put, Delta on Spark lists the log, reads what is new and makes "
            "its list of files anew, by jobs of Spark; delta-rs reads one file of the log",
        )
    if "scan" in readers:
        scan = readers["scan"]
        yield _judged(
            "Spark reads all of a mirror, of the speed with Parquet of the same rows",
            "≥ 0.8",
            scan["parquet_s"]["median"] / scan["mirror_s"]["median"],
            lambda value: value >= 0.8,
            "{:.2f}",
            f"{times(scan['mirror_s'])} against {times(scan['parquet_s'])}. A table that Delta itself "
            "wrote of the same rows is read at "
            f"{scan['parquet_s']['median'] / scan['delta_s']['median']:.2f} of Parquet's speed: Delta "
            "reads its log first, and plans by it. The rest is rows of older entries, which stand in "
            "the files until a compaction takes them, and which deletion vectors leave out: behind a "
            f"compaction of everything {times(readers['compacted']['mirror_s'])}",
        )


def _by_number(section: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Return the entries whose names are numbers, in their order."""
    return sorted((int(key), value) for key, value in section.items() if key.isdigit())


def _transport_rows(sections: Sections) -> Iterator[Row]:
    floors = _by_number(sections.get("floors", {}))
    if not floors:
        yield "share of Spark's own Python transport speed", "0.5", "not measured", "–", ""
    for rows, chains in floors:
        base = chains["no-op -> no-op"]["median"]
        for name, which in (("no-op -> upsertflow", "sink"), ("upsertflow -> no-op", "source")):
            moved = 1 if which == "sink" else 2
            share = moved * base / chains[name]["median"]
            many = " (two change rows per command)" if moved == 2 else ""
            yield _judged(
                f"share of Spark's own Python transport speed, {which}, {count(rows)} rows",
                "0.5",
                share,
                lambda value: value >= 0.5,
                "{:.2f}",
                f"{times(chains[name])} against {times(chains['no-op -> no-op'])}{many}",
            )


def _snapshot_row(sections: Sections) -> Row:
    spark = sections.get("snapshot", {}).get("spark")
    what = "snapshot read, share of the speed of `spark.read.parquet`"
    if not spark:
        return what, "0.5", "not measured", "–", ""
    ratio = spark["parquet_s"]["median"] / spark["snapshot_s"]["median"]
    told = f"{times(spark['snapshot_s'])} against {times(spark['parquet_s'])}"
    if "no_op_s" in spark:
        told += f"; a Python source that only hands out Arrow batches: {times(spark['no_op_s'])}"
    return _judged(what, "0.5", ratio, lambda value: value >= 0.5, "{:.2f}", told)


def _aged_row(sections: Sections) -> Row:
    aged = sections.get("aged", {})
    what = "snapshot read of a table of many small epochs over that of the same rows written once"
    if "fresh_s" not in aged:
        return what, "≤ 1.5", "not measured", "–", ""
    told = (
        f"{count(aged['epochs'])} epochs of 1 000 rows, {count(aged['rows'])} rows in "
        f"{aged['runs']} runs, through Spark: {times(aged['table_s'])} over {times(aged['fresh_s'])}"
    )
    ratio = aged["table_s"]["median"] / aged["fresh_s"]["median"]
    if "engine_table_s" in aged:
        told += (
            f"; engine only, on one core: {ms(aged['engine_table_s'])} over "
            f"{ms(aged['engine_fresh_s'])}. The difference is the decision which entry counts of "
            "keys that stand in several runs, mostly sorting; a table written at once has none to "
            "take and its rows are handed out as they lie in the file. `compact --full` makes one "
            "table the other"
        )
    return _judged(what, "≤ 1.5", ratio, lambda value: value <= 1.5, "{:.2f}", told)


def _offsets_row(sections: Sections) -> Row:
    found = sections.get("offsets", {})
    what = "`latestOffset` of a stream that is 10 000 epochs behind"
    if "warm_s" not in found:
        return what, "< 10 ms", "not measured", "–", ""
    told = (
        f"one more epoch since the last call; with a limit of rows {times(found['limited_s'])}; the "
        f"first call of a process, which reads the log: {ms(found['first_s'])}"
    )
    value = found["warm_s"]["median"] * 1000
    return _judged(what, "< 10 ms", value, lambda value: value < 10, "{:.2f} ms", told)


def _discovery_row(counts: dict[str, Any]) -> Row:
    what = "`latestOffset` over 10 000 tables of which one in a hundred has something"
    found = counts.get("10000")
    if found is None:
        return what, "< 10 ms", "not measured", "–", ""
    told = (
        f"the first question, which looks at all of them: {ms(found['first_s'])}; from a commit to the "
        f"batch that holds it: {times(found['planned_s'])}"
    )
    value = found["latest_s"]["median"] * 1000
    return _judged(what, "< 10 ms", value, lambda value: value < 10, "{:.2f} ms", told)


def _watchers_row(threads: dict[str, Any]) -> Row:
    what = "from a durable commit to a watcher in the same process, local disk"
    if "watchers" not in threads:
        return what, "< 5 ms", "not measured", "–", ""
    watchers = {name: found["median_s"]["median"] for name, found in threads["watchers"].items()}
    told = "; ".join(f"{name}: {1000 * median:.1f} ms" for name, median in watchers.items())
    value = max(watchers.values()) * 1000
    return _judged(what, "< 5 ms", value, lambda value: value < 5, "{:.1f} ms", told)


def _view_row(views: dict[str, Any], floors: dict[str, Any], name: str) -> Row:
    what = f"a {name} kept up at one row in a hundred changed, against Spark again from Parquet"
    if name not in views:
        return what, "20x", "not measured", "–", ""
    found = views[name]
    ours, again = found["upsertflow"], found["Spark, again from Parquet"]
    written = found["Spark, again from Parquet, and written as Parquet"]
    kept = found.get("upsertflow, kept in a table", ours)
    told = (
        f"in processor time {_cpu_less(ours, again)}. Where the view that is computed again is also written: "
        f"{_times_less(kept, written)}, in processor time {_cpu_less(kept, written)}. "
    )
    refreshed = found.get("upsertflow, in one process by `refresh`")
    if refreshed is not None:
        told += (
            f"In one process, without Spark: {_times_less(refreshed, again)}, "
            f"in processor time {_cpu_less(refreshed, again)}. "
        )
    told += (
        f"What stands in the way: a micro-batch of Spark that reads one row from nowhere takes "
        f"{times(views['floor'])}, and one with a Python source or sink more{_transport(floors)}; and what "
        "computes again reads three narrow columns from files that lie in memory. The one grows with the "
        "table, and much of the other is that floor"
    )
    for form in (
        "DuckDB, again from Parquet",
        "DuckDB, again from Parquet, and written as Parquet",
    ):
        if form in found:
            told += f". {form}, in one process without Spark: {times(found[form])}"
    told += f"; kept through Spark: {times(kept)}"
    ratio = again["median"] / ours["median"]
    return _judged(what, "20x", ratio, lambda value: value >= 20, "{:.1f}x", told)


def _transport(floors: dict[str, Any]) -> str:
    """Tell what Spark takes to move rows from a Python source that does nothing to such a sink."""
    found = _by_number(floors)
    if not found:
        return ""
    rows, chains = found[0]
    return (
        f": {times(chains['no-op -> no-op'])} to hand {count(rows)} rows from a source that does nothing to "
        "a sink that does nothing"
    )


def _lived_row(lived: dict[str, Any]) -> Row:
    what = "memory of a query that keeps a view for hundreds of batches, last fifth over the first"
    told = []
    for name in ("python_anonymous", "python_rss"):
        first, last = (lived["stretches"][at][name] / MIB for at in (0, -1))
        told.append(f"{first:.0f} MiB, then {last:.0f} MiB")
    first, middle, last = (lived["stretches"][at]["python_anonymous"] for at in (0, 2, -1))
    return _judged(
        what,
        "≤ 1.1",
        last / first,
        lambda value: value <= 1.1,
        "{:.2f}",
        f"the largest Python process, without mapped files: {told[0]}; with them: {told[1]}. "
        f"{lived['rounds']} batches of {count(lived['changed'])} changes. Behind "
        "each task a process gives back what was freed; what it learns of the runs that it has open, some "
        "30 KiB of each, it keeps of 128 and of those that it was asked for within a minute, and with it "
        "what searches have learned (docs/adr/0149), a byte or two for each row. So the first batches "
        f"still fill that; the last fifth over the middle one is {last / middle:.2f}",
    )


def _times_less(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    return f"{theirs['median'] / ours['median']:.1f}x"


def _cpu_less(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    return f"{theirs['cpu_s']['median'] / ours['cpu_s']['median']:.1f}x"


def _fusion_row(found: dict[str, Any]) -> Row:
    what = "three operators behind each other on Spark, fused against unfused"
    if "chain" not in found:
        return what, "1.5x", "not measured", "–", ""
    ratios = {
        name: plans["unfused"]["elapsed_s"]["median"] / plans["fused"]["elapsed_s"]["median"]
        for name, plans in found["chain"].items()
    }
    told = "; ".join(
        f"{name}: {ratios[name]:.2f}x, processor time {times(plans['fused']['cpu_s'])} against "
        f"{times(plans['unfused']['cpu_s'])}"
        for name, plans in found["chain"].items()
    )
    told += (
        ". All of it counts, also what is the same in both: Spark's planning, and in a region the "
        f"exchange of {count(found['rows'])} rows"
    )
    ratio = ratios["in place"]
    return _judged(what, "1.5x", ratio, lambda value: value >= 1.5, "{:.2f}x", told)


def _union_row(ways: dict[str, Any]) -> Row:
    what = "two inputs merged live, share of the speed of a `union` of the two reads"
    if "union" not in ways:
        return what, "0.8", "not measured", "–", ""
    merge, union = (ways[name]["seconds"] for name in ("merge", "union"))
    told = (
        f"{count(ways['rows'])} change rows: {times(merge)} against {times(union)}; processor time "
        f"{times(ways['merge']['cpu_s'])} against {times(ways['union']['cpu_s'])}"
    )
    ratio = union["median"] / merge["median"]
    return _judged(what, "0.8", ratio, lambda value: value >= 0.8, "{:.2f}", told)


def _queries_row(many: dict[str, Any]) -> Row:
    if "one" not in many:
        what = "many tables in one query, against a query each"
        return what, "50x", "not measured", "–", ""
    tables = many["tables"]
    fewer, more = sorted(int(name) for name in many if name.isdigit())
    low, high = (many[str(number)]["cpu_s"]["median"] for number in (fewer, more))
    # What one more query costs, or an average one if that is less: nothing is to be exaggerated.
    each = min((high - low) / (more - fewer), high / more)
    ratio = each * tables / many["one"]["cpu_s"]["median"]
    told = (
        f"processor time of a run that delivers what is new, where one table in a hundred has "
        f"changed: {times(many['one']['cpu_s'])}. Extrapolated: {fewer} queries take {ms(low)}, "
        f"{more} take {ms(high)}, so that one more takes {ms(each)} and {count(tables)} would take "
        f"{ms(each * tables)}, if they found the memory"
    )
    what = f"{count(tables)} tables in one query, against a query each"
    return _judged(what, "50x", ratio, lambda value: value >= 50, "{:.0f}x", told)


def _slow_row(union: dict[str, Any]) -> Row:
    what = "memory of a worker whose consumer is a hundred times slower, last fifth over the first"
    if "slow" not in union:
        return what, "≤ 1.1", "not measured", "–", ""
    slow = union["slow"]
    first, last = (slow["stretches"][at]["python_anonymous"] for at in (0, -1))
    told = (
        f"{first / MIB:.1f} MiB, then {last / MIB:.1f} MiB, behind a sink that takes "
        f"{slow['rows_per_s']:.0f} rows/s for {slow['stretch_s'] * len(slow['stretches']):.0f} s; "
        "what a mapped file takes is not counted"
    )
    return _judged(what, "≤ 1.1", last / first, lambda value: value <= 1.1, "{:.2f}", told)


def _memory_row(sections: Sections) -> Row:
    what = "peak memory of a 1 000-row upsert into {} rows, largest Python worker on Spark"
    contenders = sections.get("spark_scale", {}).get("1000", {}).get("contenders")
    if not contenders:
        return what.format("10 M"), "< 300 MiB", "not measured", "–", ""
    rows = max((key for key in contenders if int(key) <= 10_000_000), key=int)
    memory = contenders[rows]["memory"]
    return _judged(
        what.format(count(int(rows))),
        "< 300 MiB",
        memory["python_rss"] / MIB,
        lambda value: value < 300,
        "{:.0f} MiB",
        f"{memory['python_anonymous'] / MIB:.0f} MiB of it are no mapped file; plain Python, which "
        "has the process to itself, gives nothing back and is seen below (docs/adr/0012)",
    )


def _written_row(sections: Sections) -> Row:
    ours = sections.get("epochs", {}).get("contenders", {}).get("upsertflow")
    ratio = ours and ours["written_bytes"] / ours["ingested_bytes"]
    told = ours and f"{ours['total_s']['count']} epochs of 1 000 rows, all files that ever were"
    return _judged(
        "bytes written per byte ingested, steady state",
        "< 6",
        ratio,
        lambda value: value < 6,
        "{:.1f}",
        told or "",
    )
