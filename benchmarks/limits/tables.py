"""Rows by key, one of many tables, and live Delta tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.limits.judged import Row, Sections, judged
from benchmarks.words import count, times


def point_rows(section: Any) -> Iterator[Row]:
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
        yield judged(
            f"{wanted} keys of {count(section['rows'])} rows by {way}, against Spark's filter of Parquet",
            "20x",
            ratio,
            lambda value: value >= 20,
            "{:.1f}x",
            told,
        )
    yield judged(
        f"`Table.get` of one key of {count(section['rows'])} rows in {section['runs']} runs, 99 in 100",
        "< 5 ms",
        1000 * section["one"]["p99_s"],
        lambda value: value < 5,
        "{:.1f} ms",
        f"the median: {1000 * section['one']['p50_s']:.1f} ms; files are in the cache of the system",
    )


def wide_row(section: Any) -> Row:
    """Return the growth of the time of a column with the number of columns."""
    what, limit = (
        "processor time of a column in a table of 10 000, of that in one of 1 000",
        "≤ 1.5",
    )
    if section is None:
        return what, limit, "not measured", "–", ""
    widths = {int(name): took["all"]["cpu_s"] for name, took in section["widths"].items()}
    few, many = min(widths), max(widths)
    return judged(
        what,
        limit,
        widths[many]["median"] / many * few / widths[few]["median"],
        lambda value: value <= 1.5,
        "{:.2f}",
        f"ten steps of a table of {section['rows']} rows: {times(widths[many])} over "
        f"{times(widths[few])}; without Spark",
    )


def beside_rows(section: Any) -> Iterator[Row]:
    """Yield what one row costs in one of many tables."""
    numbers = sorted(int(name) for name in section if name.isdigit())
    if not numbers:
        return
    few, many = (section[str(number)]["cpu_s"] for number in (numbers[0], numbers[-1]))
    yield judged(
        f"one row into one of {count(numbers[-1])} tables over the same into one of {numbers[0]}",
        "≤ 1.3",
        many["median"] / few["median"],
        lambda value: value <= 1.3,
        "{:.2f}",
        f"processor time: {times(many)} over {times(few)}; without Spark",
    )


def requests_row(section: dict[str, Any]) -> Row:
    """Return how many requests a batch into very many tables makes."""
    what = "requests of a batch into 1 000 tables of an object store"
    found = section.get("tables", {}).get("1000")
    if found is None:
        return what, "≤ 3 000", "not measured", "–", ""
    return judged(
        what,
        "≤ 3 000",
        found["requests"]["median"],
        lambda value: value <= 3_000,
        "{:.0f}",
        "of two tasks. Each table whose rows a batch has is told of by one run of each task and one "
        "version of its log, three puts; and that the log ends where the writer thinks is seen by "
        "looking, in each task and in the commit. Tables are written side by side where "
        "the storage is behind a network. Measured: with one task it is six for each table, and prototypes that "
        "put the runs of all tables into one object, or a run into the version, saved one of the six and 5 to "
        "6 % of a batch's time (docs/adr/0043, which says why the others cannot go)",
    )


def mirror_rows(sections: Sections) -> Iterator[Row]:
    """Yield what a live Delta table may cost, how fresh it is, and how fast it is read."""
    costs = sections.get("mirror", {})
    for rows, took in costs.get("batches", {}).items():
        yield judged(
            f"processor time of publishing {count(int(rows))} rows into {count(costs['keys'])} keys, "
            "of the upsert's",
            "≤ 1.5",
            took["ratio"]["median"],
            lambda value: value <= 1.5,
            "{:.2f}",
            "two tables in turn; twins and deaths are the writer's (docs/adr/0084)",
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
            yield judged(
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
                f"does (above){_idle_share(found, peer)}",
            )
    readers = sections.get("mirror_readers", {})
    for name, took in readers.get("fresh", {}).items():
        yield judged(
            f"from a commit until {name} sees the row, 99 in 100",
            "< 0.5 s",
            took["seen_p99_s"],
            lambda value: value < 0.5,
            "{:.2f} s",
            f"{count(took['rows'])} rows into {count(took['keys'])} keys, the reader "
            f"has seen {took['begins']} before; published after "
            f"{times(took['published_s'])}; the question alone, with nothing new: "
            f"{times(took['again_s'])}. What lies between is the reader's: to take up a version that "
            "another process has put, Delta on Spark lists the log, reads what is new and makes its list of "
            "files anew, by jobs of Spark; delta-rs reads one file of the log"
            + _fresh_elsewhere(readers.get("fresh_of_delta", {}).get(name)),
        )
    if "scan" in readers:
        scan = readers["scan"]
        yield judged(
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


def _idle_share(found: dict[str, Any], peer: str) -> str:
    """Tell what the same two queries take that hand the rows on and do nothing with them."""
    idle = found.get("no-op on Spark")
    if idle is None:
        return ""
    share = idle["cpu_s"]["median"] / found[peer]["cpu_s"]["median"]
    return (
        f". Measured: two queries over as many rows whose Python sink and source do nothing take "
        f"{times(idle['cpu_s'])}, {share:.1%} of MERGE's"
    )


def _fresh_elsewhere(found: dict[str, Any] | None) -> str:
    """Tell how soon a version that Delta's own writer has put is seen."""
    if found is None:
        return ""
    return (
        f". Measured: a version that delta-rs appends to a table which Spark with Delta wrote, of as many "
        f"rows, is seen after {times(found['seen_s'])}, {1000 * found['seen_p99_s']:.0f} ms for 99 in 100. "
        "So long takes Delta's own, too, though a mirror has vectors and more files in a commit"
    )
