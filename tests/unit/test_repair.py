"""Tables that an earlier release made unreadable: converted, or repaired without a loss."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from click.testing import CliRunner

from spark_upsert.cli.commands import upsertflow
from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.errors import CorruptionError, DataError, SchemaError, TableNotFoundError
from spark_upsert.store.open import open_store
from spark_upsert.store.records import encode, read_record
from spark_upsert.table.keep_history import keep_history
from spark_upsert.table.log import properties, storage
from spark_upsert.table.log.codec import checkpoint_path, commit_path
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.retention.leases import lease_path
from spark_upsert.table.table import Table
from tests.support.column_types import NESTINGS, ROWS, TYPES, column, earlier_release
from tests.support.stores import forget_runs_and_logs

IDS = list(range(ROWS))
OTHERS = ["id", "w"]

CONVERTED = [
    *(name for name in TYPES if name.startswith(("list_view", "large_list_view", "fixed"))),
    *("date64", "decimal256 of 38 digits", "uuid", "json", "json in large_string", "bool8"),
]
CONVERTED = [name for name in CONVERTED if name != "fixed_shape_tensor"]
LOST = [
    name
    for name, own in TYPES.items()
    # The others were refused, or no row of them could be written.
    if own.stored is None
    and name not in ("null", "an extension of a program")
    and "levels" not in name
]


def earlier_table(path: Path, values: pa.Array) -> pa.Table:
    """Let an earlier release add a column to a table with a row; return its rows."""
    table = Table.create(str(path), pa.schema({"id": pa.int64(), "w": pa.string()}), keys=["id"])
    table.upsert(pa.table({"id": [9], "w": ["first"]}))
    rows = pa.table({"id": IDS, "w": ["a", "b", "c", "d"], "v": values})
    with earlier_release():
        table.upsert(rows, merge_schema=True)
    forget_runs_and_logs()
    return rows


def table_of_ids(path: Path, *ids: int, **how: Any) -> Table:
    table = Table.create(str(path), pa.schema({"id": pa.int64()}), keys=["id"], **how)
    for id_ in ids:
        transaction = Transaction(writer=f"w{id_}", number=id_)
        table.upsert(pa.table({"id": [id_]}), transaction=transaction)
    return table


def opened(path: Path) -> Table:
    """Open a table as a new process does."""
    forget_runs_and_logs()
    return Table(open_store(str(path)))


def repaired(path: Path) -> dict[str, Any]:
    """Repair a table by the command, in a new process; return what it printed."""
    forget_runs_and_logs()
    done = CliRunner().invoke(upsertflow, ["repair", str(path), "--json"], catch_exceptions=False)
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def in_order(rows: pa.Table) -> list[dict[str, Any]]:
    return rows.sort_by("id").to_pylist()


CONVERSIONS = [
    pytest.param(name, nesting, id=f"{name} in {nesting}")
    for name in CONVERTED
    for nesting in NESTINGS
    # An earlier release could not store lists of fixed size with dates.
    if name != "date64" or not (nesting == "a column" or "fixed" in nesting)
]


@pytest.mark.parametrize(("name", "nesting"), CONVERSIONS)
@pytest.mark.sweep(12)
def test_column_with_a_storage_type_is_converted_when_it_is_read(
    tmp_path: Path, name: str, nesting: str
) -> None:
    values = column(name, nesting)
    assert values.stored is not None
    rows = earlier_table(tmp_path, values.given)
    expected = [
        *in_order(rows.set_column(2, "v", values.stored)),
        {"id": 9, "w": "first", "v": None},
    ]
    table = opened(tmp_path)
    assert table.schema.columns.field("v").type == values.stored.type
    assert in_order(table.snapshot()) == expected
    assert table.snapshot(columns=["id", "v"])["id"].to_pylist()
    assert table.get([0, 9]).num_rows == 2
    assert in_order(table.changes(2).select(["id", "w", "v"])) == expected[:-1]
    assert repaired(tmp_path)["has_changed"] is False
    table = opened(tmp_path)
    table.upsert(rows.slice(0, 2))
    table.compact(full=True)
    table = opened(tmp_path)
    assert in_order(table.snapshot()) == expected
    assert table.check().findings == ()


@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize("name", LOST)
@pytest.mark.sweep(8)
def test_repair_gives_up_a_column_without_a_reader_and_nothing_else(
    tmp_path: Path, name: str, nesting: str
) -> None:
    rows = earlier_table(tmp_path, column(name, nesting).given)
    others = [*in_order(rows.select(OTHERS)), {"id": 9, "w": "first"}]
    table = opened(tmp_path)
    for use in (table.snapshot, lambda: table.upsert(rows), lambda: table.compact(full=True)):
        with pytest.raises(SchemaError, match=r"(?s)the column 'v' .*upsertflow repair"):
            use()
    assert in_order(table.snapshot(columns=OTHERS)) == others

    facts = repaired(tmp_path)
    assert (facts["version"], list(facts["columns"])) == (4, ["v"])
    table = opened(tmp_path)
    assert in_order(table.snapshot()) == others
    assert in_order(table.snapshot(version=3, columns=OTHERS)) == others
    assert in_order(table.changes(2).select(OTHERS)) == others[:-1]
    assert table.check().findings == ()
    table.upsert(pa.table({"id": [0], "w": ["new"]}))
    table.compact(full=True)
    table = opened(tmp_path)
    assert in_order(table.snapshot()) == [{"id": 0, "w": "new"}, *others[1:]]
    assert repaired(tmp_path)["has_changed"] is False
    with pytest.raises(SchemaError, match="was dropped"):
        table.upsert(pa.table({"id": [0], "w": ["new"], "v": [1]}), merge_schema=True)


DAYS = [dt.date(2024, 2, day) for day in (1, 2, 3)]


@pytest.mark.parametrize("properties", [None, {"indexBy": "d"}], ids=["no index", "an index"])
def test_columns_of_64_bit_dates_stay_as_they_are(
    tmp_path: Path, properties: dict[str, str] | None
) -> None:
    def rows(day: Any, at: Any, d: Any, type_: pa.DataType) -> pa.Table:
        dates = {"day": day, "at": at, "d": d}
        return pa.table({name: pa.array(days, type_) for name, days in dates.items()})

    first = rows(DAYS, DAYS, DAYS, pa.date64())
    later, earlier = dt.date(2025, 1, 1), dt.date(1, 1, 1)
    with earlier_release():
        Table.create(
            str(tmp_path), first.schema, keys=["day"], sequence_by=["at"], properties=properties
        ).upsert(first)
    table = opened(tmp_path)
    assert table.get(DAYS[1])["d"].to_pylist() == DAYS[1:2]
    table.upsert(rows(DAYS[1:2], [later], [later], pa.date64()))
    table.upsert(rows(DAYS[2:], [later], [later], pa.date32()))
    table.upsert(rows(DAYS[:1], [earlier], [later], pa.date32()))  # It is stale.
    assert table.snapshot().sort_by("day")["d"].to_pylist() == [DAYS[0], later, later]
    if properties:
        table.build_indexes()
    assert table.snapshot(filter="d = DATE '2025-01-01'").num_rows == 2
    assert table.rows_having("d", [later]).num_rows == 2
    table.delete([DAYS[2]])
    table.compact(full=True)
    table = opened(tmp_path)
    assert table.snapshot().sort_by("day")["d"].to_pylist() == [DAYS[0], later]
    assert table.check().findings == ()
    assert repaired(tmp_path)["has_changed"] is False


@pytest.mark.parametrize("engine", [Engine.PARTIAL_UPDATE, Engine.AGGREGATION], ids=str)
def test_table_that_folds_gives_up_a_column_with_its_rule(tmp_path: Path, engine: Engine) -> None:
    rules = {"v": Rule.LAST, "n": Rule.SUM} if engine is Engine.AGGREGATION else {}
    columns = pa.schema({"id": pa.int64(), "n": pa.int64(), "v": TYPES["dense_union"].given.type})
    with earlier_release():
        Table.create(
            str(tmp_path),
            columns,
            keys=["id"],
            engine=MergeEngine(engine, rules=rules),
            sequence_by=["n"] if engine is Engine.PARTIAL_UPDATE else (),
        )
    assert list(repaired(tmp_path)["columns"]) == ["v"]
    table = opened(tmp_path)
    table.upsert(pa.table({"id": [1, 1], "n": [1, 2]}))
    assert table.snapshot().to_pylist() == [{"id": 1, "n": 3 if rules else 2}]


@pytest.mark.parametrize(
    "name", [name for name in TYPES if name.endswith(("64 levels", "120 levels"))]
)
def test_column_of_too_many_levels_is_given_up(tmp_path: Path, name: str) -> None:
    table = table_of_ids(tmp_path, 1)
    with earlier_release(), pytest.raises(pa.ArrowInvalid):  # It was committed, and no row was.
        table.upsert(pa.table({"id": [2], "v": TYPES[name].given[:1]}), merge_schema=True)
    assert list(repaired(tmp_path)["columns"]) == ["v"]
    assert opened(tmp_path).snapshot().to_pylist() == [{"id": 1}]


# -- records and properties ---------------------------------------------------------------------


def forge(table: Table, path: str, **fields: Any) -> None:
    """Put a record as an earlier release did, unchecked."""
    record = read_record(table.store, path, dict)
    assert record is not None
    table.store.put(path, encode({**record, **fields}))


NUMBERS = {
    "the time of day": (1_700_000_000.25, 1_700_000_000),
    "a float without a fraction": (5.0, 5),
    "a truth value": (True, 1),
    "a number of a UUID": (2**127, None),
    "not a number": (float("nan"), None),
    "infinity": (float("inf"), None),
}


@pytest.mark.parametrize(("number", "kept"), NUMBERS.values(), ids=NUMBERS)
def test_transaction_that_no_reader_accepts_is_corrected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: Any, kept: int | None
) -> None:
    monkeypatch.setattr(storage, "CHECKPOINT_EVERY", 2)
    table = table_of_ids(tmp_path, 1, 2, 3)
    writers = {"w1": [1, 5], "w2": [number, 5]}
    forge(table, commit_path(2), transactions={"w2": number})
    forge(table, checkpoint_path(2), transactions=writers)
    with pytest.raises(CorruptionError):
        opened(tmp_path).log.head()

    assert repaired(tmp_path)["records"] == [commit_path(2), checkpoint_path(2)]
    table = opened(tmp_path)
    expected = {"w1": 1, "w3": 3} | ({} if kept is None else {"w2": kept})
    assert table.log.head().transactions == expected
    assert table.snapshot().sort_by("id")["id"].to_pylist() == [1, 2, 3]
    assert table.check().findings == ()
    assert repaired(tmp_path)["has_changed"] is False


def test_column_that_arrow_cannot_decode_is_given_up(tmp_path: Path) -> None:
    table = table_of_ids(tmp_path, 1)
    table.alter(table.schema, {"priority": "5"})
    type_ = pa.int32()
    for _ in range(130):
        type_ = pa.struct({"f": type_})
    deep = replace(
        table.schema, unreadable=frozenset("v"), columns=pa.schema({"id": pa.int64(), "v": type_})
    )
    forge(table, commit_path(2), schema=deep.to_json())
    with pytest.raises(CorruptionError):
        opened(tmp_path).log.head()
    assert repaired(tmp_path)["records"] == [commit_path(2)]
    assert opened(tmp_path).snapshot().to_pylist() == [{"id": 1}]
    assert opened(tmp_path).log.head().properties == {"priority": "5"}


@pytest.mark.parametrize(
    ("ttl_ms", "kept"), [(604_800_000.0, 604_800_000), (0.5, None), (2**70, None)]
)
def test_lease_that_no_reader_accepts_is_corrected(
    tmp_path: Path, ttl_ms: float, kept: int | None
) -> None:
    table = table_of_ids(tmp_path)
    table.hold("c", 0)
    forge(table, lease_path("c"), ttl_ms=ttl_ms)
    assert repaired(tmp_path)["records"] == ([] if kept is None else [lease_path("c")])
    if kept is not None:
        assert [lease.ttl_ms for lease in opened(tmp_path).consumers()] == [kept]
        opened(tmp_path).expire(retain_versions=0)


def test_damaged_record_stays_as_it_is(tmp_path: Path) -> None:
    table_of_ids(tmp_path, 1)
    file = tmp_path / commit_path(1)
    damaged = file.read_bytes().replace(b'"transactions"', b'"Transactions"').replace(b"1", b"2", 1)
    file.write_bytes(damaged)
    with pytest.raises(CorruptionError, match="checksum"):
        opened(tmp_path).repair()
    assert file.read_bytes() == damaged


def test_internal_property_of_a_user_is_removed(tmp_path: Path) -> None:
    table = table_of_ids(tmp_path, properties={"priority": "5"})
    with patch.object(properties, "INTERNAL", {}), patch.dict(properties._CHECKS, historyOf=str):
        table.alter(table.schema, {"historyOf": "x"})
    with pytest.raises(DataError, match="history"):
        opened(tmp_path).upsert(pa.table({"id": [1]}))
    facts = repaired(tmp_path)
    assert (facts["properties"], facts["version"]) == (["historyOf"], 2)
    table = opened(tmp_path)
    table.upsert(pa.table({"id": [1]}))
    assert table.log.head().properties == {"priority": "5"}


def test_repair_of_a_kept_history_keeps_its_properties_and_needs_a_table(tmp_path: Path) -> None:
    table = table_of_ids(tmp_path / "t", 1)
    keep_history(table, Table(open_store(str(tmp_path / "kept"))))
    assert repaired(tmp_path / "kept")["has_changed"] is False
    with pytest.raises(TableNotFoundError):
        opened(tmp_path / "absent").repair()


@pytest.mark.parametrize("is_kept_before", [True, False])
def test_kept_history_goes_on_after_a_repair(tmp_path: Path, *, is_kept_before: bool) -> None:
    """Without the column that was given up, and with all other values of each row."""
    path, kept = tmp_path / "table", Table(open_store(str(tmp_path / "history")))
    Table.create(str(path), pa.schema({"id": pa.int64(), "w": pa.string()}), keys=["id"])
    opened(path).upsert(pa.table({"id": [1], "w": ["first"]}))
    if is_kept_before:
        keep_history(opened(path), kept)
    with earlier_release():
        rows = pa.table({"id": [1], "w": ["second"], "v": TYPES["dense_union"].given[:1]})
        opened(path).upsert(rows, merge_schema=True)
    with pytest.raises(SchemaError, match=r"'v' has the type dense_union(?s:.*)upsertflow repair"):
        keep_history(opened(path), kept)
    repaired(path)
    opened(path).upsert(pa.table({"id": [1], "w": ["third"]}))
    keep_history(opened(path), kept)
    shown = kept.snapshot().sort_by("from_version")
    assert "v" not in shown.column_names
    assert shown["w"].to_pylist() == ["first", "second", "third"]
    assert shown["is_current"].to_pylist() == [False, False, True]
