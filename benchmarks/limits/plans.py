"""Views that are kept up, and operators that are fused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.limits.judged import Row, by_number, cpu_less, judged, times_less
from benchmarks.words import MIB, count, times


def view_rows(views: dict[str, Any], floors: dict[str, Any], name: str) -> Iterator[Row]:
    """Yield what a kept view costs, against Spark and DuckDB, which compute it again and write it."""
    what = f"a {name} kept up at one row in a hundred changed"
    if name not in views:
        yield f"{what}, against Spark again from Parquet, written", "10x", "not measured", "–", ""
        return
    found = views[name]
    ours, again = found["upsertflow"], found["Spark, again from Parquet"]
    written = found["Spark, again from Parquet, and written as Parquet"]
    kept = found.get("upsertflow, kept in a table", ours)
    told = (
        f"{times(kept)} against {times(written)}; in processor time {cpu_less(kept, written)}. Where "
        f"neither is written: {times_less(ours, again)}, in processor time {cpu_less(ours, again)}. "
    )
    refreshed = found.get("upsertflow, in one process by `refresh`")
    if refreshed is not None:
        told += (
            f"In one process, without Spark: {times_less(refreshed, written)}, "
            f"in processor time {cpu_less(refreshed, written)}. "
        )
    told += (
        f"What stands in the way: a micro-batch of Spark that reads one row from nowhere takes "
        f"{times(views['floor'])}, and one with a Python source or sink more{_transport(floors)}; and what "
        "computes again reads three narrow columns from files that lie in memory. The one grows with the "
        "table, and much of the other is that floor"
    )
    yield judged(
        f"{what}, against Spark again from Parquet, written",
        "10x",
        written["median"] / kept["median"],
        lambda value: value >= 10,
        "{:.1f}x",
        told,
    )
    duck = found.get("DuckDB, again from Parquet, and written as Parquet")
    if duck is not None:
        plain = found["DuckDB, again from Parquet"]
        alone = (
            "" if refreshed is None else f"; kept in one process, without Spark: {times(refreshed)}"
        )
        yield judged(
            f"{what} through Spark, against DuckDB again from Parquet, written, without Spark",
            "> 1x",
            duck["median"] / kept["median"],
            lambda value: value > 1,
            "{:.2f}x",
            f"{times(kept)} against {times(duck)}, and {times(plain)} where it is not written{alone}. "
            f"Of ours, Spark's own share is the floor of two micro-batches (above): DuckDB starts no job and hands rows to no other process",
        )


def _transport(floors: dict[str, Any]) -> str:
    """Tell what Spark takes to move rows from a Python source that does nothing to such a sink."""
    found = by_number(floors)
    if not found:
        return ""
    rows, chains = found[0]
    return (
        f": {times(chains['no-op -> no-op'])} to hand {count(rows)} rows from a source that does nothing to "
        "a sink that does nothing"
    )


def lived_row(lived: dict[str, Any]) -> Row:
    """Return what a view that is kept for long does to the memory of its workers."""
    what = "memory of a query that keeps a view for hundreds of batches, last fifth over the first"
    told = []
    for name in ("python_anonymous", "python_rss"):
        first, last = (lived["stretches"][at][name] / MIB for at in (0, -1))
        told.append(f"{first:.0f} MiB, then {last:.0f} MiB")
    first, middle, last = (lived["stretches"][at]["python_anonymous"] for at in (0, 2, -1))
    return judged(
        what,
        "≤ 1.1",
        last / first,
        lambda value: value <= 1.1,
        "{:.2f}",
        f"the largest Python process, without mapped files: {told[0]}; with them: {told[1]}. "
        f"{lived['rounds']} batches of {count(lived['changed'])} changes. Behind "
        "each task a process gives back what was freed; what it learns of the runs that it has open, some "
        "30 KiB of each, it keeps of 128 and of those that it was asked for within a minute, and with it "
        "what searches have learned (docs/adr/0013), a byte or two for each row. So the first batches "
        f"still fill that; the last fifth over the middle one is {last / middle:.2f}",
    )


def fusion_rows(found: dict[str, Any]) -> Iterator[Row]:
    """Yield what fusion is worth, and what is left to one function that is written by hand."""
    what = "three operators behind each other on Spark, fused against unfused"
    if "chain" not in found:
        yield what, "1.5x", "not measured", "–", ""
        return
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
    yield judged(what, "1.5x", ratio, lambda value: value >= 1.5, "{:.2f}x", told)
    if "bare" in found:
        fused, by_hand = (found["bare"][name] for name in ("fused", "by hand"))
        yield judged(
            "three operators fused, share of the speed of one `mapInArrow` that is written by hand",
            "0.8",
            by_hand["elapsed_s"]["median"] / fused["elapsed_s"]["median"],
            lambda value: value >= 0.8,
            "{:.2f}",
            f"{times(fused['elapsed_s'])} against {times(by_hand['elapsed_s'])}; processor time "
            f"{times(fused['cpu_s'])} against {times(by_hand['cpu_s'])}. Spark's planning of both counts. Both hand the rows to Python and back once. "
            "Each operator of a flow has a thread of its own, to which a batch is handed and back "
            "(spark_upsert/flow/operators.py), and each row enters with the number of where it goes, a column "
            "that the function has not",
        )
