"""Section of the report about object storage and clusters: bytes and requests against bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.limits.judged import Row, Sections, judged
from benchmarks.words import count, ms, row

MB = 1_000_000

Figures = dict[str, Any]


def size(amount: float) -> str:
    """Return bytes as a reader takes them in."""
    unit, scale = next(
        (u, s)
        for u, s in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1))
        if amount >= s or s == 1
    )
    return (
        f"{amount / scale:.3g} {unit}" if amount < 100 * scale else f"{amount / scale:.0f} {unit}"
    )


def object_storage_section(sections: Sections) -> Iterator[str]:
    """Yield the section on tables in a bucket."""
    section = sections.get("object_storage")
    if section is None or "tables" not in section:
        return
    yield from ("## Object storage and clusters", "")
    yield (
        "A gateway counts; each operation runs in a new process without local copies; several executors are "
        "several processes, each with a folder of its own. No Spark. Bytes and requests are exact; rows have eleven "
        "columns and take 97 bytes."
    )
    yield from ("", "| what | limit | measured | met | conditions |", "|---|---|---|---|---|")
    yield from (row(cells) for cells in storage_rows(section))
    yield ""
    yield from _operations(section["tables"])
    yield from _plans(section["plans"])


def storage_rows(section: Figures) -> Iterator[Row]:
    """Yield each figure and its bound."""
    yield from _operation_rows(section["tables"])
    yield from _executor_rows(section)
    yield from _compaction_rows(section)
    yield from _plan_rows(section["plans"])
    writers, mirror = section["writers"], section["mirror"]
    yield judged(
        "16 writers of one table, requests per commit",
        "12",
        writers["requests"] / writers["commits"],
        lambda value: value <= 12,
        "{:.0f}",
        f"{writers['commits']} commits, 30 ms per request; {writers['lost_puts']} lost puts",
    )
    yield judged(
        "mirror vectors, bytes per written row",
        "2",
        mirror["vector_bytes"] / (mirror["batches"] * mirror["batch_rows"]),
        lambda value: value <= 2,
        "{:.1f}",
        f"{mirror['batches']} batches with {count(mirror['batch_rows'])} random keys out of "
        f"{count(mirror['rows'])}; one publication: {size(mirror['last_vector_bytes'])}",
    )


def _operation_rows(tables: Figures) -> Iterator[Row]:
    small, large = sorted(tables, key=int)[len(tables) // 2], max(tables, key=int)
    for what, limit_bytes in (
        ("get 100 keys", 16 * MB),
        ("upsert 1 000 keys", 40 * MB),
        ("upsert 1 000 new keys", 40 * MB),
        ("changes of 1 000 rows", 60 * MB),
    ):
        low, high = (tables[each]["operations"][what] for each in (small, large))
        note = f"{count(int(small))} rows"
        if what.startswith("changes") and low["bytes"] > limit_bytes:
            note += (
                ". Old values in ten columns: a 1 KiB block per column and key, or complete columns"
            )
        yield _sized(what, limit_bytes, low, note)
        yield judged(
            f"{what}, bytes with {count(int(large))} rows over {count(int(small))} rows",
            "1.5",
            high["bytes"] / low["bytes"],
            lambda value: value <= 1.5,
            "{:.2f}",
            f"{size(high['bytes'])} over {size(low['bytes'])}; the table: "
            f"{tables[large]['bytes'] / tables[small]['bytes']:.0f} times",
        )
    column = tables[small]["operations"]["one column"]
    yield _shared(
        "one column out of eleven", 0.12, column["bytes"], tables[small]["bytes"], "the table"
    )


def _executor_rows(section: Figures) -> Iterator[Row]:
    found, commit, bounded = section["executors"], section["commit"], section["bounded"]
    batch = f"{count(found['batch_rows'])} keys into {count(found['rows'])} rows"
    for label, limit in (("by hash", 0.12), ("at random", 0.5)):
        yield _shared(
            f"4 executors, rows {label}",
            limit,
            found[label]["bytes"],
            found["bytes"],
            "the table",
            batch,
        )
    for label, limit in (("disjoint", 0.01), ("overlapping", 0.12)):
        yield _shared(
            f"the driver's commit, {commit['tasks']} {label} tasks",
            limit,
            commit[label]["bytes"],
            commit[label]["staged_bytes"],
            "the staged files",
            f"{count(commit['rows'])} rows",
        )
    job = commit["job"]
    yield _shared("one compaction of several", 1.1, job["bytes"], job["job_bytes"], "its input")
    yield _shared(
        "disk space of local copies",
        1.1,
        bounded["disk_bytes"],
        bounded["bound_bytes"],
        "`storage.cache_bytes`",
        "a quarter of the table; two processes read all rows, one after the other",
    )
    first, second = bounded["processes"]
    yield _shared(
        "the second process",
        0.8,
        second["bytes"],
        bounded["bytes"],
        "the table",
        f"the first: {size(first['bytes'])}",
    )


def _compaction_rows(section: Figures) -> Iterator[Row]:
    fill, epochs, job = section["backfill"], section["epochs"], section["commit"]["job"]
    fetched = "written_bytes" if job["bytes"] <= 1.1 * job["job_bytes"] else "whole_files_bytes"
    yield _merged(
        f"an epoch of {fill['tasks']} overlapping files, fetched over written",
        fill,
        fetched,
        is_settled=fill["due"] == 0,
        note=f"{fill['rounds']} rounds",
    )
    last = epochs[max(epochs, key=int)]
    yield _merged(
        f"{max(epochs, key=int)} epochs of 10 GB by 16 tasks, fetched over written",
        last,
        fetched,
        # Without compaction each epoch leaves a file at a hash for each of its tasks.
        is_settled=10 * last["files_at_a_hash"] <= 16 * int(max(epochs, key=int)),
        note=f"{last['due']} compactions due at the end; written per byte: "
        f"{last['written_bytes'] / last['ingested_bytes']:.2f}",
    )


def _merged(what: str, counts: Figures, fetched: str, *, is_settled: bool, note: str) -> Row:
    limit = "1.2, and the rest is bounded"
    note += f"; {counts['files_at_a_hash']} files at a hash"
    if not counts["written_bytes"]:
        return what, limit, "never merged", "**no**", note
    ratio = counts[fetched] / counts["written_bytes"]
    return judged(what, limit, ratio, lambda value: value <= 1.2 and is_settled, "{:.1f}", note)


def _plan_rows(plans: Figures) -> Iterator[Row]:
    usable = {files: plan for files, plan in plans.items() if "failed" not in plan}
    files = "100000" if "100000" in usable else max(usable, key=int)
    plan = usable[files]
    what = f"at {count(int(files))} files"
    cpu_s = plan["plan_s"] + plan["open_s"]
    note = f"open {ms(plan['open_s'])}, plan {ms(plan['plan_s'])}"
    yield judged(f"open and plan a write, {what}", "0.1 s", cpu_s, _at_most(0.1), "{:.2f} s", note)
    yield judged(
        f"bytes to each task, {what}",
        "50 kB",
        plan["task_bytes"] / 1e3,
        _at_most(50),
        "{:.0f} kB",
        "",
    )
    most = plans[max(plans, key=int)]
    yield judged(
        f"open {count(int(max(plans, key=int)))} files",
        "1 s",
        most.get("open_s", float("inf")),
        _at_most(1),
        "{:.2f} s",
        most.get(
            "failed", f"{count(most.get('requests', 0))} requests with a plan of a write and a read"
        ),
    )


def _at_most(bound: float) -> Callable[[float], bool]:
    return lambda value: value <= bound


def _sized(what: str, limit: int, counts: Figures, note: str) -> Row:
    measured = counts["bytes"]
    met = "yes" if measured <= limit else "**no**"
    return what, size(limit), size(measured), met, f"{note}; {count(counts['requests'])} requests"


def _shared(what: str, limit: float, part: float, whole: float, of: str, note: str = "") -> Row:
    explanation = f"{size(part)} of {size(whole)}" + (f"; {note}" if note else "")
    share = f"{limit:.0%} of {of}"
    return judged(what, share, part / whole, _at_most(limit), "{:.1%}", explanation)


def _operations(tables: Figures) -> Iterator[str]:
    sizes = sorted(tables, key=int)
    names = [f"{count(int(rows))} rows, {size(tables[rows]['bytes'])}" for rows in sizes]
    yield f"| cold operation | {' | '.join(names)} |"
    yield f"|---|{'---|' * len(sizes)}"
    for what in tables[sizes[0]]["operations"]:
        counts = [tables[rows]["operations"][what] for rows in sizes]
        yield row([what, *(f"{size(c['bytes'])}, {count(c['requests'])} requests" for c in counts)])
    yield ""


def _plans(plans: Figures) -> Iterator[str]:
    yield "| files of 128 MiB | open | plan a write | 100 splits of a read | to each task | bytes, requests |"
    yield "|---|---|---|---|---|---|"
    for files, plan in sorted(plans.items(), key=lambda item: int(item[0])):
        if "failed" in plan:
            yield row([count(int(files)), plan["failed"], "", "", "", ""])
            continue
        times = [ms(plan[name]) for name in ("open_s", "plan_s", "splits_s")]
        counts = f"{size(plan['bytes'])}, {count(plan['requests'])}"
        yield row([count(int(files)), *times, size(plan["task_bytes"]), counts])
    yield ""
