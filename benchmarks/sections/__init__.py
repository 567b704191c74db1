"""The benchmark's sections, each a function of a place and a size that returns its figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.contest import Place
from benchmarks.sections import mirrors, peers, plans, sizes, streams, tables
from benchmarks.sections.size import FULL, QUICK, TINY, Size

__all__ = ["FULL", "QUICK", "SECTIONS", "TINY", "Size"]

SECTIONS: dict[str, Callable[[Place, Size], dict[str, Any]]] = {
    "imports": streams.imports,
    "offsets": streams.offsets,
    "delta_rs": peers.delta_rs,
    "delta": peers.delta,
    "scale": sizes.scale,
    "profile": sizes.profile,
    "spark_scale": sizes.spark_scale,
    "floors": sizes.floors,
    "threads": sizes.threads,
    "merge": streams.merge,
    "indexing": tables.indexing,
    "point_reads": tables.point_reads,
    "wide": tables.wide,
    "unchanged": tables.unchanged,
    "object_storage": tables.object_storage,
    "mirror": mirrors.mirror,
    "mirror_peers": mirrors.mirror_peers,
    "mirror_readers": mirrors.mirror_readers,
    "routing": tables.routing,
    "routed_beside": tables.routed_beside,
    "topics": streams.topics,
    "operators": plans.operators,
    "tasks": plans.tasks,
    "union": streams.union,
    "inputs": streams.inputs,
    "queries": streams.queries,
    "discovery": streams.discovery,
    "flood": tables.flood,
    "views": plans.views,
    "tuning": streams.tuning,
    "fusion": plans.fusion,
    "snapshot": sizes.snapshot,
    "epochs": sizes.epochs,
    "aged": sizes.aged,
    "consumers": streams.consumers,
    "python_peers": peers.python_peers,
    "one_row_commits": peers.one_row_commits,
    "variants": peers.variants,
    "iceberg": peers.iceberg,
    "iceberg_changelog": peers.iceberg_changelog,
    "hudi": peers.hudi,
    "paimon": peers.paimon,
}
"""In the order of their weight: what is stopped early has measured what matters most."""
