"""The cases of values that an update leaves unchanged, written by Spark as Debezium's records.

Each epoch is a write of its own, each of its tasks a partition (`tests.support.unchanged_cases`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import ErrorPolicy, Scope
from spark_upsert.table.table import Table
from tests.support.debezium import bare, event
from tests.support.envelopes import KAFKA
from tests.support.registers_model import Command, Kind
from tests.support.unchanged_cases import (
    CASES,
    COLUMNS,
    Case,
    Epoch,
    Restore,
    parse_rows,
)
from tests.unit.test_unchanged_cases import PENDING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RECORDS = KAFKA.append(pa.field("headers", HEADERS))
UNSENT = "__debezium_unavailable_value"
OPS = {Kind.PUT: "u", Kind.CREATE: "c", Kind.DELETE: "d", Kind.TRUNCATE: "t", Kind.ERROR: "u"}


def record(command: Command) -> dict[str, Any]:
    """Return the record that Debezium writes for a command."""
    row: dict[str, Any] | None = None
    if command.kind in (Kind.PUT, Kind.CREATE):
        row = {"id": command.key, **{n: value_of(command, n) for n in COLUMNS}}
    if command.kind is Kind.ERROR:
        row = {"id": command.key, "n": {"no": "text"}, "x": None}
    is_delete = command.kind is Kind.DELETE
    before = {"id": command.key, "n": None, "x": None} if is_delete else None
    moved = command.moved_to
    headers = [] if moved is None else [("__debezium.newkey", bare({"id": moved}))]
    return {
        "key": None if command.key is None else bare({"id": command.key}),
        "value": bare(event(OPS[command.kind], before, row, command.order)),
        "headers": [{"key": name, "value": value} for name, value in headers],
    }


def value_of(command: Command, name: str) -> str | None:
    if name not in command.values:
        return UNSENT
    value = command.values[name]
    return None if value is None else str(value)


def frame(spark: SparkSession, tasks: Iterable[Iterable[Command]]) -> DataFrame:
    """Return records with a partition for each task."""
    frames = [
        spark.createDataFrame(
            pa.Table.from_pylist([record(command) for command in task], schema=RECORDS)
        ).coalesce(1)
        for task in tasks
    ]
    whole, *others = frames
    for each in others:
        whole = whole.union(each)
    return whole


def options_of(case: Case) -> dict[str, str]:
    retention = {"tombstoneRetention": "0 epochs"} if "forget" in case.steps else {}
    truncates = {"onTruncate": "overwrite"} if case.scope is Scope.TABLE else {}
    return {
        "envelope": "debezium",
        "keys": "id",
        "sequenceBy": "source.lsn",
        "valueFormat": "json",
        "valueSchema": "id BIGINT, n STRING, x STRING",
        "sequenceScope": case.scope.value,
        "onUnknown": case.on_unknown.value,
        "onError": case.on_error.value,
        "ties": case.ties.value,
        "lateRows": case.late_rows.value,
        **retention,
        **truncates,
    }


_ERRORS = {
    "unknown": "column 'x' of 1 rows",
    "strayed": "came after the row of their key had moved",
    "tied": "have the order key of another row of their key",
}


@pytest.mark.sweep(6)
@pytest.mark.parametrize("case", [c for c in CASES if c.name not in PENDING], ids=str)
def test_a_case_in_spark(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    path, versions = str(tmp_path / "t"), [0]
    steps = case.parsed
    for number, step in enumerate(steps):
        if isinstance(step, Epoch):
            mode = "overwrite" if step.overwrite else "append"
            rows = frame(spark, step.tasks)
            writer = rows.write.format("upsertflow").options(**options_of(case)).mode(mode)
            if case.fails and number == len(steps) - 1:
                with pytest.raises(Exception, match=_ERRORS[case.fails]):
                    writer.save(path)
                break
            writer.save(path)
            versions.append(Table.open(path).log.head().version)
        elif isinstance(step, Restore):
            Table.open(path).restore(versions[step.version])
        else:
            Table.open(path).compact(full=True)
    if not case.rows and case.fails:  # Of a first write, too, which makes no table.
        return
    found = spark.read.format("upsertflow").load(path).collect()
    expected = {
        key: tuple(None if value is None else str(value) for value in row)
        for _, key, row in parse_rows(case.rows)
    }
    assert {row.id: (row.n, row.x) for row in found} == expected
    if case.listed and case.on_error is not ErrorPolicy.QUARANTINE:
        quarantine = spark.read.format("upsertflow").option("metadata", "quarantine").load(path)
        assert [row.id for row in quarantine.collect()] == [int(case.listed.partition(":")[0])]
