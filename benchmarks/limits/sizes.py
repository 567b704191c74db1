"""What grows with a table or a batch, and what Spark's own transport takes of it."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.limits.judged import Row, Sections, by_number, judged
from benchmarks.limits.peers import profiled
from benchmarks.words import MIB, count, ms, times

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


def scale_rows(sections: Sections, size: str) -> Iterator[Row]:
    """Yield what a batch costs in a large table, of what it costs in a small one."""
    pairs = {"full": (1_000_000, 100_000_000), "quick": (1_000_000, 10_000_000)}
    small, large = pairs.get(size, (10_000, 20_000))
    note = "" if size == "full" else " (the limit is for 100 M over 1 M keys: `--full`)"
    for name, where in (("spark_scale", "through Spark"), ("scale", "engine only")):
        batches = by_number(sections.get(name, {}))
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
                    told += _bare_growth(sections, batch, small, large)
                yield judged(
                    f"batch of {count(batch)} rows at {count(large)} keys over the same at "
                    f"{count(small)}, {where}",
                    "< 1.5",
                    ratio,
                    lambda value: value < 1.5,
                    "{:.2f}",
                    told,
                )


def _bare_growth(sections: Sections, rows: int, small: int, large: int) -> str:
    """Tell by how much bare calls of numpy and Arrow grow with the table."""
    low, high = (profiled(sections, keys, rows) for keys in (small, large))
    if low is None or high is None or "bare_s" not in low or "bare_s" not in high:
        return ""
    least = [sum(batch["bare_s"].values()) for batch in (low, high)]
    return (
        ". Measured: bare calls of numpy and Arrow that search the same runs, gather, write and sync take "
        f"{ms(least[1])} of the processors in the large table and {ms(least[0])} in the small one, "
        f"{least[1] / least[0]:.1f} times as much (docs/adr/0151)"
    )


def transport_rows(sections: Sections) -> Iterator[Row]:
    """Yield the share of the speed with which Spark moves rows to Python that does nothing."""
    floors = by_number(sections.get("floors", {}))
    if not floors:
        yield "share of Spark's own Python transport speed", "0.8", "not measured", "–", ""
    for rows, chains in floors:
        base = chains["no-op -> no-op"]["median"]
        for name, which in (("no-op -> upsertflow", "sink"), ("upsertflow -> no-op", "source")):
            moved = 1 if which == "sink" else 2
            share = moved * base / chains[name]["median"]
            many = " (two change rows per command)" if moved == 2 else ""
            yield judged(
                f"share of Spark's own Python transport speed, {which}, {count(rows)} rows",
                "0.8",
                share,
                lambda value: value >= 0.8,
                "{:.2f}",
                f"{times(chains[name])} against {times(chains['no-op -> no-op'])}{many}"
                + (_beside_transport(sections, rows, which) if share < 0.8 else ""),
            )


def _beside_transport(sections: Sections, rows: int, which: str) -> str:
    """Tell what bare calls would take in the tasks of a chain, beside its transport."""
    batch = profiled(sections, 1_000_000, rows)
    if batch is None or "bare_s" not in batch:
        return ""
    part = "upsert" if which == "sink" else "changelog"
    return (
        f". What stands in the way: the chain that does nothing does not sort, search, gather or write. Bare "
        f"calls of numpy and Arrow take {ms(batch['bare_s'][part])} of the processors for that, "
        f"the engine {ms(batch[part]['cpu_s'])}. Decisions, checksums, the log and syncs are the engine's besides; the chain has none of them"
    )


def snapshot_row(sections: Sections) -> Row:
    """Return how fast Spark reads a table, of the speed with Parquet."""
    spark = sections.get("snapshot", {}).get("spark")
    what = "snapshot read, share of the speed of `spark.read.parquet`"
    if not spark:
        return what, "0.5", "not measured", "–", ""
    ratio = spark["parquet_s"]["median"] / spark["snapshot_s"]["median"]
    told = f"{times(spark['snapshot_s'])} against {times(spark['parquet_s'])}"
    if "no_op_s" in spark:
        told += f"; a Python source that only hands out Arrow batches: {times(spark['no_op_s'])}"
    return judged(what, "0.5", ratio, lambda value: value >= 0.5, "{:.2f}", told)


def aged_row(sections: Sections) -> Row:
    """Return what a read of a table of many small epochs takes, of the same rows written once."""
    aged = sections.get("aged", {})
    what = "snapshot read of a table of many small epochs over that of the same rows written once"
    if "fresh_s" not in aged:
        return what, "≤ 1.3", "not measured", "–", ""
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
    if "bare_s" in aged:
        decides = aged["engine_table_s"] - aged["engine_fresh_s"]
        told += (
            ". Measured: bare calls of numpy and Arrow that sort all hashes, to find one entry of each key, and "
            f"copy the columns of these take {ms(aged['bare_s'])}. With as little as that to do, the read through "
            f"Spark would take {1 + (ratio - 1) * aged['bare_s'] / decides:.2f} of the other's time"
        )
    return judged(what, "≤ 1.3", ratio, lambda value: value <= 1.3, "{:.2f}", told)


def memory_row(sections: Sections) -> Row:
    """Return what memory an upsert into a large table takes."""
    what = "peak memory of a 1 000-row upsert into {} rows, largest Python worker on Spark"
    contenders = sections.get("spark_scale", {}).get("1000", {}).get("contenders")
    if not contenders:
        return what.format("10 M"), "< 300 MiB", "not measured", "–", ""
    rows = max((key for key in contenders if int(key) <= 10_000_000), key=int)
    memory = contenders[rows]["memory"]
    return judged(
        what.format(count(int(rows))),
        "< 300 MiB",
        memory["python_rss"] / MIB,
        lambda value: value < 300,
        "{:.0f} MiB",
        f"{memory['python_anonymous'] / MIB:.0f} MiB of it are no mapped file; plain Python, which "
        "has the process to itself, gives nothing back and is seen below (docs/adr/0012)",
    )


def written_row(sections: Sections) -> Row:
    """Return how many bytes are written for each that comes in."""
    ours = sections.get("epochs", {}).get("contenders", {}).get("upsertflow")
    ratio = ours and ours["written_bytes"] / ours["ingested_bytes"]
    told = ours and f"{ours['total_s']['count']} epochs of 1 000 rows, all files that ever were"
    return judged(
        "bytes written per byte ingested, steady state",
        "< 6",
        ratio,
        lambda value: value < 6,
        "{:.1f}",
        told or "",
    )
