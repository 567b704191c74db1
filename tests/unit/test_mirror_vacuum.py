"""A vacuum of a table cleans its mirror, and touches nothing that a reader may ask for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.delta import follow, publish
from spark_upsert.delta.check import check_mirror
from spark_upsert.metadata import VIEWS
from spark_upsert.options.read import Metadata
from spark_upsert.table.log.manifest import Draft, Kind
from spark_upsert.table.table import Table
from tests.support.delta import DeltaTable
from tests.support.mirrored import MirroredTable, canonical
from tests.support.stores import MemoryStore
from tests.unit.test_mirror_upkeep import HOUR_MS, Lived


def test_a_vacuum_of_the_table_cleans_its_mirror() -> None:
    lived = Lived()
    lived.go(40, seconds=600)
    lived.table.compact(full=True)
    lived.mirror.publish()
    orphan = f"{'a' * 32}-00000000.parquet"
    lived.target.put(orphan, b"x")
    lived.target.put("theirs.parquet", b"x")
    lived.now.advance(5 * 24 * 3600)
    rows = canonical(DeltaTable(lived.target).rows())
    before = {info.path for info in lived.target.list("")}
    told = lived.table.vacuum(dry_run=True)
    assert {info.path for info in lived.target.list("")} == before
    done = lived.table.vacuum()
    assert [info.path for info in told.orphans] == [info.path for info in done.orphans]
    assert f"_delta/{orphan}" in [info.path for info in done.orphans]
    assert any(path.startswith("_delta/_delta_log/") for path in done.log)
    found = DeltaTable(lived.target)
    assert canonical(found.rows()) == rows
    # The mirror is at rest: what is live stays, and nothing else of ours.
    names = {info.path for info in lived.target.list("")}
    assert names == {"theirs.parquet", *found.adds}
    assert not lived.table.vacuum().orphans
    lived.go(1)
    assert not list(check_mirror(lived.a_mirror()))


@pytest.mark.slow
def test_a_vacuum_keeps_what_a_reader_within_the_retention_reads() -> None:
    lived = Lived()
    lived.go(60, seconds=600)
    rows = {v: canonical(DeltaTable(lived.target, v).rows()) for v in range(25, 60)}
    lived.table.vacuum()
    assert int(lived.log()[0][:20]) > 0
    assert {v: canonical(DeltaTable(lived.target, v).rows()) for v in rows} == rows


def test_a_clock_that_is_ahead_removes_nothing_young() -> None:
    """The storage's time counts for a vacuum, as its own machine may be days ahead."""
    lived = Lived()
    lived.go(30, seconds=600)
    lived.now.advance(24 * 3600)
    lived.go(12, seconds=600)
    before = {v: canonical(DeltaTable(lived.target, v).rows()) for v in range(30, 42)}
    lived.mirror.upkeep.vacuum(
        now_ms=int(lived.now() * 1000) + 1000 * HOUR_MS, retention_ms=6 * HOUR_MS, dry_run=False
    )
    assert {v: canonical(DeltaTable(lived.target, v).rows()) for v in before} == before


def test_a_mirror_that_was_given_up_keeps_what_it_shows() -> None:
    lived = Lived()
    lived.go(30, seconds=600)
    lived.table.alter(lived.table.schema, {"publish": "none"})
    rows = canonical(DeltaTable(lived.target).rows())
    lived.now.advance(2 * 24 * 3600)
    lived.table.vacuum()
    assert canonical(DeltaTable(lived.target).rows()) == rows
    assert {info.path for info in lived.target.list("")} == DeltaTable(lived.target).adds.keys()


def test_twins_of_a_mirror_that_never_came_go_a_day_later(tmp_path: Path) -> None:
    lived = Lived()
    lived.go(2)
    for path in [*lived.log()]:
        lived.target.delete(f"_delta_log/{path}")
    lived.table.vacuum()
    assert len(list(lived.target.list("")))
    lived.now.advance(25 * 3600)
    assert lived.table.vacuum().orphans
    assert not list(lived.target.list(""))
    lived.go(1)
    assert canonical(DeltaTable(lived.target).rows()) == canonical(lived.table.snapshot())


def test_a_vacuum_touches_nothing_of_another_mirror_or_of_other_files(tmp_path: Path) -> None:
    lived, other = Lived(), Lived()
    place = str(tmp_path / "place")
    other.go(3)
    other.table.publish(place)
    orphan = tmp_path / "place" / f"{'a' * 32}-00000000.parquet"
    orphan.write_bytes(b"x")
    os.utime(orphan, (1, 1))
    lived.go(3)
    head = lived.table.log.head()
    lived.table.log.append(
        lambda _: Draft(
            kind=Kind.ALTER,
            schema=head.schema,
            properties={"publishPath": place},
            live_rows=head.live_rows,
        )
    )
    lived.table.vacuum()
    assert orphan.exists()
    for name in tmp_path.glob("place/_delta_log/*"):
        name.unlink()
    (tmp_path / "place" / "mine.csv").write_text("1")
    lived.table.vacuum()
    assert orphan.exists()


def test_a_mirror_that_cannot_be_reached_is_not_worth_a_vacuum(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lived = Lived()
    lived.go(3)

    def refuse(*args: Any) -> Any:
        raise OSError("the network is down")

    monkeypatch.setattr(publish.Mirror, "state", refuse)
    lived.table.vacuum()
    assert "the network is down" in caplog.text


def test_a_table_without_a_mirror_loads_none(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(MemoryStore())
    table.ensure(MirroredTable(0).schema)

    def refuse(*args: Any) -> Any:
        raise AssertionError("looked for a mirror")

    monkeypatch.setattr(publish.Mirror, "state", refuse)
    monkeypatch.setattr(follow, "vacuum", refuse)
    table.vacuum()


# -- what there is to say of a mirror ------------------------------------------------------


def facts(table: Table) -> list[dict[str, Any]]:
    return [row for each in VIEWS[Metadata.MIRROR].read(table) for row in each.to_pylist()]


def test_metadata_tells_how_far_a_mirror_is_behind_and_what_it_holds() -> None:
    lived = Lived()
    assert facts(lived.table) == []
    lived.go(3)
    lived.now.advance(5)
    lived.table.upsert(pa.table({"id": [1], "x": ["new"]}))
    lived.now.advance(2)
    [told] = facts(lived.table)
    assert (told["place"], told["shows_version"], told["versions_behind"]) == (
        lived.target.url,
        3,
        1,
    )
    assert told["ms_behind"] == 2000
    assert (told["twins"], told["rows"], told["dead_rows"]) == (3, 6, 0)
    assert told["bytes"] == sum(info.bytes for info in lived.target.list(""))
    assert told["log_bytes"] == sum(info.bytes for info in lived.target.list("_delta_log"))
    assert (told["vector_bytes"], told["changed_by"]) == (0, None)
    assert (told["retention_ms"], told["has_feed"], told["is_guarded"]) == (
        6 * HOUR_MS,
        False,
        True,
    )
    lived.mirror.publish()
    [told] = facts(lived.table)
    assert (told["versions_behind"], told["ms_behind"], told["dead_rows"]) == (0, 0, 1)
    assert told["vector_bytes"] > 0
