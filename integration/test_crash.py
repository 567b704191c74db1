"""Real kills of a real query: nothing is lost, nothing is there twice, nothing is to be repaired.

Own processes: the driver, its Java and its Python workers are killed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.flow.latest import LATEST
from integration import kept_view, two_regions
from integration.chain import require_whole_batches
from integration.chaos import Chaos
from integration.environ import from_checkout
from spark_upsert.table.table import Table
from tests.support.view_queries import Query

pytestmark = pytest.mark.spark

KILLS = 2
"""`make chaos` takes hundreds."""


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param(0, id="a chain of two queries"),
        pytest.param(3, id="a query of three inputs", marks=pytest.mark.slow),
    ],
)
def test_queries_that_are_killed_at_any_moment_lose_and_double_nothing(
    inputs: int, plain_environ: dict[str, str], tmp_path: Path
) -> None:
    environ = from_checkout(plain_environ)
    chaos = Chaos(tmp_path, seed=1, environ=environ, inputs=inputs)
    while chaos.kills < KILLS:
        chaos.round()
    chaos.finish()
    chaos.check()


@pytest.mark.slow
def test_queries_that_publish_show_each_version_once_whenever_they_are_killed(
    plain_environ: dict[str, str], tmp_path: Path
) -> None:
    environ = from_checkout(plain_environ)
    chaos = Chaos(tmp_path, seed=3, environ=environ, publish=True)
    while chaos.kills < KILLS:
        chaos.round()
    chaos.finish()
    chaos.check()


@pytest.mark.parametrize(
    "taken", [[3, 5, 2], [8, 2], [3, 7], [10]], ids=["each its own", "first", "last", "all"]
)
def test_an_epoch_may_hold_several_batches_as_a_kill_inside_the_file_source_makes_it(
    taken: list[int],
) -> None:
    require_whole_batches(taken, [3, 5, 2])


@pytest.mark.parametrize(
    "taken",
    [[3, 5], [5, 2], [3, 2], [3, 5, 5, 2], [3, 5, 2, 2], [5, 3, 2], [4, 6], []],
    ids=["last lost", "first lost", "one lost", "twice", "last twice", "reordered", "cut", "none"],
)
def test_a_batch_that_is_lost_doubled_reordered_or_cut_is_seen(taken: list[int]) -> None:
    with pytest.raises(AssertionError, match="lost or there twice"):
        require_whole_batches(taken, [3, 5, 2])


@pytest.fixture
def changes(tmp_path: Path) -> list[dict[str, Any]]:
    """Return what a stream of the view gives, of which the groups are kept, too."""
    kept_view.add_epochs(tmp_path, 1, epochs=2)
    query = Query(kept_view.joined(tmp_path).node)
    found = query.all()
    for _ in range(3):
        kept_view.revenue(tmp_path).refresh(str(tmp_path / "kept"))
        kept_view.add_epochs(tmp_path, 1, epochs=1)
        found += query.all()
    kept_view.revenue(tmp_path).refresh(str(tmp_path / "kept"))
    return found


def write_down(rows: list[dict[str, Any]], folder: Path) -> None:
    """Write files as Spark's sink does, which notes them in its log."""
    (folder / "_spark_metadata").mkdir(parents=True)
    file = folder / "part 0.parquet"
    pq.write_table(pa.Table.from_pylist(rows), file)
    (folder / "_spark_metadata" / "0").write_text(f"v1\n{json.dumps({'path': file.as_uri()})}\n")


def test_what_is_written_of_a_view_is_right(changes: list[dict[str, Any]], tmp_path: Path) -> None:
    write_down(changes, tmp_path / "changes")
    assert kept_view.check(tmp_path).startswith("4 micro-batches kept")


@pytest.mark.parametrize("wrong", ["an insert lost", "a retraction lost", "doubled", "another"])
def test_a_change_of_a_view_that_is_lost_doubled_or_wrong_is_seen(
    changes: list[dict[str, Any]], tmp_path: Path, wrong: str
) -> None:
    diff = -1 if wrong == "a retraction lost" else 1
    place = max(place for place, row in enumerate(changes) if row["_diff"] == diff)
    row = changes.pop(place)
    if wrong == "doubled":
        changes += [row, row]
    elif wrong == "another":
        changes.append({**row, "amount": 1000})
    write_down(changes, tmp_path / "changes")
    with pytest.raises(AssertionError, match=r"twice|lost|was not there"):
        kept_view.check(tmp_path)


def write_of_two_regions(folder: Path, stretches: list[range]) -> None:
    """Write what the flows would, a version for each stretch of the readings."""
    two_regions.add_epochs(folder, 1, epochs=3)
    readings = two_regions.readings_of(folder)
    for name, plan in two_regions.PLANS.items():
        tables = {"latest": ["device"], **({"all": ["device", "seq"]} if plan.writes_all else {})}
        for table, keys in tables.items():
            path = folder / name / table
            Table.create(str(path), LATEST, keys=keys, sequence_by=["seq"])
            for stretch in stretches:
                rows = [row for row in readings if row[1] in stretch]
                rows = two_regions.newest_of(rows) if table == "latest" else rows
                columns = dict(zip(LATEST.names, zip(*rows, strict=True), strict=True))
                Table.open(str(path)).upsert(pa.table(columns, schema=LATEST))


END = 10_000


def test_what_a_flow_wrote_is_right(tmp_path: Path) -> None:
    write_of_two_regions(tmp_path, [range(50), range(50, END)])
    assert two_regions.check(tmp_path).startswith("12 micro-batches written")


@pytest.mark.parametrize(
    "stretches",
    [
        [range(50), range(50), range(50, END)],
        [range(50), range(51, END)],
        [range(50, END), range(50)],
        [range(50)],
    ],
    ids=["a batch twice", "a row lost", "out of order", "the last lost"],
)
def test_what_a_flow_lost_or_doubled_is_seen(tmp_path: Path, stretches: list[range]) -> None:
    write_of_two_regions(tmp_path, stretches)
    with pytest.raises(AssertionError, match=r"lost|is not the readings|took"):
        two_regions.check(tmp_path)
