"""What the properties of a table ask of its mirror, and what is refused when it is to begin."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.delta.types import MirroredTypeError, NotMirroredError
from spark_upsert.errors import OptionError, OtherTableError
from spark_upsert.table.table import Table
from tests.support.written import write
from tests.unit.test_mirror import COLUMNS, Case
from tests.unit.test_mirror_follow import mirror_at, require_copy, rows, table_in

HOUR_MS = 3_600_000


def test_properties_say_what_the_delta_table_is(tmp_path: Path) -> None:
    table = table_in(tmp_path, publishRetention="2 days", publishGuard="false")
    table.upsert(rows(1))
    mirror = require_copy(table, tmp_path / "t" / "_delta")
    assert "upsertflow" not in mirror.protocol["writerFeatures"]
    for name in ("delta.deletedFileRetentionDuration", "delta.logRetentionDuration"):
        assert mirror.metadata["configuration"][name] == f"interval {48 * 3600} seconds"
    table.alter(table.schema, {"publishGuard": "true", "publishRetention": "1 hour"})
    table.upsert(rows(2))
    mirror = require_copy(table, tmp_path / "t" / "_delta")
    assert "upsertflow" in mirror.protocol["writerFeatures"]
    retention = mirror.metadata["configuration"]["delta.logRetentionDuration"]
    assert retention == "interval 3600 seconds"


def test_what_is_asked_for_once_stays() -> None:
    case = Case()
    case.put((1, "a"))
    done = case.publish(guard=False, change_feed=True, retention="3 hours")
    assert (done.retention_ms, done.has_feed) == (3 * HOUR_MS, True)
    case.put((2, "b"))
    done = case.publish()
    assert (done.retention_ms, done.has_feed) == (3 * HOUR_MS, True)
    mirror = case.look()
    assert "upsertflow" not in mirror.protocol["writerFeatures"]
    assert not any("protocol" in each for each in mirror.commits[-1])
    case.put((3, "c"))
    assert case.publish(rebuild=True).retention_ms == 3 * HOUR_MS
    assert case.publish(guard=True).delta_version == 3
    assert case.publish(retention="3 hours").delta_version == 3


def test_the_retention_is_six_hours_by_default_and_an_hour_at_least() -> None:
    case = Case()
    with pytest.raises(OptionError, match="at least 1 hour"):
        case.table.publish(retention="10 minutes")
    assert not list(case.target.list(""))
    done = case.publish()
    assert (done.retention_ms, done.has_feed) == (6 * HOUR_MS, False)


# -- what is refused when it begins --------------------------------------------------------

TIMES = pa.schema({"id": pa.int64(), "at": pa.time64("us")})
PUBLISHED = {"publish": "delta"}


def test_32_a_table_with_a_type_that_delta_lacks_is_not_published(tmp_path: Path) -> None:
    with pytest.raises(MirroredTypeError, match="'at'"):
        Table.create(str(tmp_path / "t"), TIMES, keys=["id"], properties=PUBLISHED)
    with pytest.raises(MirroredTypeError, match="'at'"):
        write(tmp_path, TIMES.empty_table(), **PUBLISHED)
    assert not list(tmp_path.rglob("_log"))
    table = Table.create(str(tmp_path / "t"), TIMES, keys=["id"])
    with pytest.raises(MirroredTypeError, match="'at'"):
        table.alter(table.schema, PUBLISHED)
    assert "publish" not in table.log.head().properties


def test_32_a_column_that_delta_lacks_is_refused_while_the_table_is_published(
    tmp_path: Path,
) -> None:
    table = table_in(tmp_path)
    wide = replace(table.schema, columns=COLUMNS.append(pa.field("at", pa.time64("us"))))
    with pytest.raises(MirroredTypeError, match="publish=none"):
        table.alter(wide)
    more = rows(1).append_column("at", pa.nulls(1, pa.time64("us")))
    with pytest.raises(MirroredTypeError, match="'at'"):
        table.upsert(more, merge_schema=True)
    assert table.log.head().version == 0
    table.alter(wide, {"publish": "none"})
    assert table.upsert(more) is not None
    with pytest.raises(MirroredTypeError, match="'at'"):
        table.alter(table.schema, PUBLISHED)


def test_28_contributions_are_not_published(tmp_path: Path) -> None:
    engine = MergeEngine(Engine.AGGREGATION, rules={"rows": Rule.SUM}, multiplicity="rows")
    columns = pa.schema({"id": pa.int64(), "rows": pa.int64()})
    path = str(tmp_path / "t")
    with pytest.raises(NotMirroredError, match="'id'"):
        Table.create(path, columns, keys=["id"], engine=engine, properties=PUBLISHED)


def test_42_a_place_that_holds_something_else_is_refused_when_it_is_set(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "mine.csv").write_text("1")
    properties = {**PUBLISHED, "publishPath": str(place)}
    with pytest.raises(OtherTableError, match=r"mine\.csv"):
        Table.create(str(tmp_path / "t"), COLUMNS, keys=["id"], properties=properties)
    with pytest.raises(OtherTableError, match=r"mine\.csv"):
        write(tmp_path, rows(1), **properties)
    assert not (tmp_path / "table" / "_log").exists()
    table = Table.create(str(tmp_path / "t"), COLUMNS, keys=["id"])
    with pytest.raises(OtherTableError, match=r"mine\.csv"):
        table.alter(table.schema, properties)
    (place / "mine.csv").unlink()
    table.alter(table.schema, properties)
    table.upsert(rows(1))
    require_copy(table, place)


def test_42_the_mirror_of_another_table_is_refused_when_it_is_set(tmp_path: Path) -> None:
    one = table_in(tmp_path)
    one.upsert(rows(1))
    taken = {**PUBLISHED, "publishPath": str(tmp_path / "t" / "_delta")}
    with pytest.raises(OtherTableError, match="the mirror of another one"):
        Table.create(str(tmp_path / "other"), COLUMNS, keys=["id"], properties=taken)
    other = Table.create(str(tmp_path / "other"), COLUMNS, keys=["id"])
    with pytest.raises(OtherTableError, match="the mirror of another one"):
        other.alter(other.schema, taken)
    # Its own mirror it may go on with, from whatever place it was.
    one.alter(one.schema, {"publish": "none"})
    one.alter(one.schema, taken)
    one.upsert(rows(2))
    assert mirror_at(tmp_path / "t" / "_delta").version == 1


def test_a_place_among_the_tables_own_files_is_refused_when_it_is_set(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), COLUMNS, keys=["id"])
    for below in ("", "data", "_log/x"):
        with pytest.raises(OptionError, match="outside of the table's own files"):
            table.alter(table.schema, {**PUBLISHED, "publishPath": str(tmp_path / "t" / below)})


def test_setting_what_is_set_looks_at_no_place(tmp_path: Path) -> None:
    """Each write says its options again; others may have written into the mirror meanwhile."""
    write(tmp_path, rows(1), **PUBLISHED)
    log = tmp_path / "table" / "_delta" / "_delta_log"
    (log / f"{0:020d}.json").write_text(json.dumps({"commitInfo": {}}))
    write(tmp_path, rows(2), **PUBLISHED)
    assert Table.open(str(tmp_path / "table")).log.head().live_rows == 2


def test_a_column_that_is_dropped_leaves_no_value_in_a_twin(tmp_path: Path) -> None:
    columns = COLUMNS.append(pa.field("secret", pa.string()))
    properties = {**PUBLISHED, "publishChangeFeed": "true"}
    table = Table.create(str(tmp_path / "t"), columns, keys=["id"], properties=properties)
    table.upsert(pa.table({"id": [1, 2], "x": ["a", "b"], "secret": ["s", "t"]}))
    table.upsert(pa.table({"id": [2], "x": ["c"], "secret": ["u"]}))
    table.drop_columns("secret")
    table.publish()
    found = require_copy(table, tmp_path / "t" / "_delta")
    assert found.schema == COLUMNS
    assert found.data_changes == {False}
    for path in found.adds:
        assert pq.read_schema(tmp_path / "t" / "_delta" / path).names == ["id", "x"]
    table.upsert(rows(3))
    feed = require_copy(table, tmp_path / "t" / "_delta").feed()
    assert feed is not None
    assert [row["_change_type"] for row in feed.to_pylist()] == ["insert"]
