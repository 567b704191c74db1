"""The figures that were promised: each with its limit, what was measured, and why it is missed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.limits.judged import Row, Sections, judged
from benchmarks.limits.peers import bare_share, commit_rows, rate_row, ratio_row, variant_rows
from benchmarks.limits.plans import fusion_rows, lived_row, view_rows
from benchmarks.limits.sizes import (
    aged_row,
    memory_row,
    scale_rows,
    snapshot_row,
    transport_rows,
    written_row,
)
from benchmarks.limits.streams import (
    discovery_row,
    offsets_row,
    queries_row,
    slow_row,
    union_row,
    watchers_row,
)
from benchmarks.limits.tables import beside_rows, mirror_rows, point_rows, requests_row, wide_row
from benchmarks.words import times


def limits(sections: Sections, size: str) -> Iterator[Row]:
    """Yield a row for each promise, measured or not."""
    yield ratio_row(
        sections.get("delta"),
        "upsert → changelog through Spark, against Delta MERGE + change feed",
        ("upsertflow on Spark", "Delta on Spark"),
        10,
    )
    yield ratio_row(
        sections.get("delta_rs"),
        "the same, engine only, against delta-rs MERGE + change feed",
        ("upsertflow", "delta-rs"),
        30,
        shortfall="delta-rs is compiled code on all cores that rewrites whole files, so that its cost "
        "grows with the table, and so does the ratio. Ours is mostly compiled code, too, called from "
        "Python: the greatest shares (see where the engine's time goes, below) are numpy's search of "
        "each run for the keys and Arrow's gathering of rows that lie scattered over them, both bound by "
        f"memory; then sorts, and fsync, which delta-rs leaves out{bare_share(sections, 100_000)}",
    )
    yield from variant_rows(sections)
    yield rate_row(sections)
    for name, peer, limit in (
        ("iceberg_changelog", "Iceberg changelog", 6),
        ("paimon", "Paimon", 6),
        ("hudi", "Hudi", 10),
    ):
        yield ratio_row(
            sections.get(name),
            f"upsert → changelog through Spark, against {peer}",
            ("upsertflow on Spark", f"{peer} on Spark"),
            limit,
        )
    yield from commit_rows(sections.get("one_row_commits", {}))
    yield from scale_rows(sections, size)
    yield from transport_rows(sections)
    yield snapshot_row(sections)
    yield aged_row(sections)
    yield memory_row(sections)
    yield offsets_row(sections)
    yield written_row(sections)
    yield union_row(sections.get("union", {}))
    yield queries_row(sections.get("queries", {}))
    yield slow_row(sections.get("union", {}))
    yield discovery_row(sections.get("discovery", {}))
    yield watchers_row(sections.get("threads", {}))
    for name in ("join", "sum"):
        yield from view_rows(sections.get("views", {}), sections.get("floors", {}), name)
    if "lived" in sections.get("views", {}):  # Its long run can be left out.
        yield lived_row(sections["views"]["lived"])
    yield from fusion_rows(sections.get("fusion", {}))
    yield from point_rows(sections.get("point_reads"))
    yield wide_row(sections.get("wide"))
    yield from beside_rows(sections.get("routed_beside", {}))
    yield requests_row(sections.get("routing", {}))
    yield from mirror_rows(sections)  # Its sections can be left out.
    imports = sections.get("imports", {})
    yield judged(
        "`import pyspark_upsertflow` beyond pyspark",
        "< 30 ms",
        imports.get("median_ms"),
        lambda value: value < 30,
        "{:.1f} ms",
        "the engine is imported when a reader or writer is asked for",
    )
    yield _worker_row(imports)


def _worker_row(imports: dict[str, Any]) -> Row:
    """Return what a new worker imports before it reads."""
    what = "what a new worker imports for a read, behind Spark's own, processor time"
    if "worker_s" not in imports:
        return what, "≤ 80 ms", "not measured", "–", ""
    ours, alone, spark = (imports["worker_s"][name] for name in ("ours", "reads alone", "Spark's"))
    return judged(
        what,
        "≤ 80 ms",
        1000 * ours["median"],
        lambda value: value <= 80,
        "{:.0f} ms",
        f"{times(ours)}, behind {times(spark)} for what Spark's worker itself imports, pyarrow among it. What "
        "travels to a task is a reader, whose module plans, too; what reads the rows would by itself take "
        f"{times(alone)}. A worker that is used again, as by default, "
        "imports once",
    )
