"""The engine and the connector against other systems, and against bare calls of numpy and Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.limits.judged import Row, Sections, judged
from benchmarks.words import count, times, yes


def ratio_row(
    section: Any, what: str, names: tuple[str, str], limit: int, *, shortfall: str = ""
) -> Row:
    """Return how many times as long a peer takes for the same batch and its changes."""
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
    return judged(what, f"{limit}x", ratio, lambda value: value >= limit, "{:.1f}x", told)


_VARIANTS = (
    "zipf",
    "string keys",
    "composite keys",
    "10 % deletes",
    "5 % out of order",
    "wide rows",
)


def variant_rows(sections: Sections) -> Iterator[Row]:
    """Yield how the engine stands against delta-rs where that rewrites one small file, or much."""
    variants = sections.get("variants", {})
    for label in (*_VARIANTS, "1 000-row batches", "1 M-row batches"):
        rows = 1_000_000 if label == "1 M-row batches" else 100_000
        yield ratio_row(
            variants.get(label),
            f"engine only, against delta-rs MERGE + change feed: {label}",
            ("upsertflow", "delta-rs"),
            10,
            shortfall="delta-rs rewrites all rows of a small table, or a tenth of a large one, by "
            "compiled code on all cores, and much of the table is in the batch"
            f"{bare_share(sections, rows)}",
        )


def profiled(sections: Sections, table_rows: int, batch_rows: int) -> dict[str, Any] | None:
    """Return the profile of batches into a table of so many keys."""
    for batch in sections.get("profile", {}).get("batches", ()):
        if (batch["table_rows"], batch["batch_rows"]) == (table_rows, batch_rows):
            found: dict[str, Any] = batch
            return found
    return None


def bare_share(sections: Sections, batch_rows: int) -> str:
    """Tell what part of the engine's time bare calls of numpy and Arrow take."""
    batch = profiled(sections, 10_000_000, batch_rows)
    if batch is None or "bare_s" not in batch:
        return ""
    ours, least = (
        batch["upsert"]["cpu_s"] + batch["changelog"]["cpu_s"],
        sum(batch["bare_s"].values()),
    )
    return (
        f". Measured: one sort, one search of each run, one gathering, one synced file by bare calls of "
        "numpy and Arrow, with nothing decided, checked or logged, take "
        f"{least / ours:.0%} of the processor time of {count(batch_rows)} rows into 10 M keys: with as "
        f"little as that to do, the engine would be {ours / least:.1f} times as fast (docs/adr/0151)"
    )


def rate_row(sections: Sections) -> Row:
    """Return how many rows the engine takes and gives back each second, beside bare calls."""
    what = "100 000 rows into 10 M keys, upsert and changes, on one core"
    batch = profiled(sections, 10_000_000, 100_000)
    if batch is None or "bare_s" not in batch:
        return what, "2 M rows/s, or half of what bare calls do", "not measured", "–", ""
    ours = batch["upsert"]["cpu_s"] + batch["changelog"]["cpu_s"]
    least = sum(batch["bare_s"].values())
    rate, limit = batch["batch_rows"] / ours, min(2_000_000, batch["batch_rows"] / least / 2)
    return judged(
        what,
        "2 M rows/s, or half of what bare calls do",
        rate / 1_000_000,
        lambda _: rate >= limit,
        "{:.2f} M rows/s",
        f"bare calls of numpy and Arrow that sort, search, gather, write and sync the same rows, and "
        f"decide nothing: {batch['batch_rows'] / least / 1_000_000:.2f} M rows/s; half of it is "
        f"{batch['batch_rows'] / least / 2_000_000:.2f}. What the engine takes beyond them decides which "
        "entry of a key counts, proves the blocks that it reads, logs the epoch and merges runs; a "
        "search of runs in C made all of it 1.22 times as fast (docs/adr/0013)",
    )


def commit_rows(section: dict[str, Any]) -> Iterator[Row]:
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
        yield judged(what, "> 1x", theirs / ours, lambda ratio: ratio > 1, "{:.1f}x", told)


def _committed_s(contender: dict[str, Any], rounds: int) -> float:
    """Return the seconds of all commits and of one read."""
    found: float = contender["upsert_s"]["mean"] * rounds + contender["read_s"]["median"]
    return found
