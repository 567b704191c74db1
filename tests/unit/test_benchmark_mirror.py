"""The benchmark's section about mirrors runs small, and its report and limits tell of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.limits import limits
from benchmarks.measure import spread
from benchmarks.mirroring import fresh, measure, mirror_of, seen_by_delta_rs
from benchmarks.report.page import write_report
from spark_upsert.store import LocalStore
from tests.support.delta import DeltaTable


def test_what_a_mirror_takes_is_measured_and_reported(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    costs = measure(tmp_path / "cost", 2_000, (100,), rounds=1)
    assert set(costs["batches"]["100"]) == {"plain_s", "published_s", "ratio", "compact"}
    place = mirror_of(tmp_path / "fresh" / "published")
    seen = seen_by_delta_rs(str(place))
    by_delta_rs = fresh(tmp_path / "fresh", 500, 20, seen, commits=3)
    assert by_delta_rs["seen_s"]["count"] == 3
    assert 0 < by_delta_rs["published_s"]["min"] <= by_delta_rs["seen_p99_s"]
    assert DeltaTable(LocalStore(place)).version >= 4
    seconds = {"mirror_s": 2.0, "delta_s": 1.5, "parquet_s": 1.0}
    scan = {name: spread([took]) for name, took in seconds.items()}
    sections = {
        "mirror": {**costs, "busy_before": 0.0},
        "mirror_readers": {
            "fresh": {"delta-rs": by_delta_rs},
            "scan": scan,
            "compacted": scan,
            "busy_before": 0.0,
        },
    }
    measured = {row[0]: row for row in limits(sections, "tiny") if row[2] != "not measured"}
    assert len(measured) == 3
    whole = measured["Spark reads all of a mirror, of the speed with Parquet of the same rows"]
    assert whole[2:4] == ("0.50", "**no**")
    machine = {"cores": 2, "cpu": "", "memory_bytes": 0, "system": "", "python": ""}
    write_report(
        {"size": "tiny", "machines": dict.fromkeys(sections, machine), "sections": sections},
        tmp_path,
    )
    text = (tmp_path / "report.md").read_text()
    assert "## A live Delta table" in text
    assert "### Readers of the mirror" in text
