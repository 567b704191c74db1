"""How soon streams and watchers know of what is new, and what many tables in one query cost."""

from __future__ import annotations

from typing import Any

from benchmarks.limits.judged import Row, Sections, judged
from benchmarks.words import MIB, count, ms, times


def offsets_row(sections: Sections) -> Row:
    """Return how long a stream takes to say how far it can go."""
    found = sections.get("offsets", {})
    what = "`latestOffset` of a stream that is 10 000 epochs behind"
    if "warm_s" not in found:
        return what, "< 10 ms", "not measured", "–", ""
    told = (
        f"one more epoch since the last call; with a limit of rows {times(found['limited_s'])}; the "
        f"first call of a process, which reads the log: {ms(found['first_s'])}"
    )
    value = found["warm_s"]["median"] * 1000
    return judged(what, "< 10 ms", value, lambda value: value < 10, "{:.2f} ms", told)


def discovery_row(counts: dict[str, Any]) -> Row:
    """Return how long a stream of very many tables takes to say how far it can go."""
    what = "`latestOffset` over 10 000 tables of which one in a hundred has something"
    found = counts.get("10000")
    if found is None:
        return what, "< 10 ms", "not measured", "–", ""
    told = (
        f"the first question, which looks at all of them: {ms(found['first_s'])}; from a commit to the "
        f"batch that holds it: {times(found['planned_s'])}"
    )
    value = found["latest_s"]["median"] * 1000
    return judged(what, "< 10 ms", value, lambda value: value < 10, "{:.2f} ms", told)


def watchers_row(threads: dict[str, Any]) -> Row:
    """Return how soon a process knows of a commit of its own."""
    what = "from a durable commit to a watcher in the same process, local disk"
    if "watchers" not in threads:
        return what, "< 5 ms", "not measured", "–", ""
    watchers = {name: found["median_s"]["median"] for name, found in threads["watchers"].items()}
    told = "; ".join(f"{name}: {1000 * median:.1f} ms" for name, median in watchers.items())
    value = max(watchers.values()) * 1000
    return judged(what, "< 5 ms", value, lambda value: value < 5, "{:.1f} ms", told)


def union_row(ways: dict[str, Any]) -> Row:
    """Return how fast a merge is, of the speed of a union."""
    what = "two inputs merged live, share of the speed of a `union` of the two reads"
    if "union" not in ways:
        return what, "0.8", "not measured", "–", ""
    merge, union = (ways[name]["seconds"] for name in ("merge", "union"))
    told = (
        f"{count(ways['rows'])} change rows: {times(merge)} against {times(union)}; processor time "
        f"{times(ways['merge']['cpu_s'])} against {times(ways['union']['cpu_s'])}"
    )
    ratio = union["median"] / merge["median"]
    return judged(what, "0.8", ratio, lambda value: value >= 0.8, "{:.2f}", told)


def queries_row(many: dict[str, Any]) -> Row:
    """Return how many times as much a query for each table costs as one for all."""
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
    return judged(what, "50x", ratio, lambda value: value >= 50, "{:.0f}x", told)


def slow_row(union: dict[str, Any]) -> Row:
    """Return what a slow consumer does to the memory of a worker."""
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
    return judged(what, "≤ 1.1", last / first, lambda value: value <= 1.1, "{:.2f}", told)
