"""Rows by key and by condition: what a caller may give, and what comes."""

from __future__ import annotations

import datetime
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from integration.pages import code_of
from spark_upsert.errors import PlanError, SchemaError
from spark_upsert.table import scan
from spark_upsert.table.scan import RowFilter
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table

PAIR = pa.schema({"region": pa.string(), "id": pa.int64(), "n": pa.int64()})


@pytest.fixture
def pairs(tmp_path: Path) -> Table:
    table = Table.create(str(tmp_path / "pairs"), PAIR, keys=["region", "id"])
    table.upsert(pa.table({"region": ["eu", "eu", "us"], "id": [1, 2, 1], "n": [10, 20, 30]}))
    return table


@pytest.fixture
def singles(tmp_path: Path) -> Table:
    columns = pa.schema({"id": pa.int64(), "n": pa.int64()})
    table = Table.create(str(tmp_path / "singles"), columns, keys=["id"])
    table.upsert(pa.table({"id": [1, 2, 3], "n": [10, 20, 30]}))
    return table


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (2, [20]),
        ([3, 1], [30, 10]),
        ((3, 1), [30, 10]),
        ([3, 9, 3], [30, 30]),
        ([], []),
        ([None], []),
        (pa.array([2]), [20]),
        (pa.chunked_array([[2], [1]]), [20, 10]),
        ({"ID": 2}, [20]),
        ({"id": [2, 1], "more": 7}, [20, 10]),
        ([{"id": 3}, {"id": 1}], [30, 10]),
        ([(3,), (1,)], [30, 10]),
        (pa.table({"n": [0], "id": [2]}), [20]),
        (pa.record_batch({"id": pa.array([2], pa.int8())}), [20]),
        (range(1, 3), [10, 20]),
    ],
)
def test_keys_of_one_column(singles: Table, keys: Any, expected: list[int]) -> None:
    assert singles.get(keys).column("n").to_pylist() == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (("eu", 2), [20]),
        ([("us", 1), ("eu", 1)], [30, 10]),
        ([["us", 1]], [30]),
        ({"region": "us", "id": 1}, [30]),
        ({"region": ["us", "eu"], "id": [1, 2]}, [30, 20]),
        (pa.table({"id": [1, 2], "region": ["us", "eu"]}), [30, 20]),
    ],
)
def test_keys_of_several_columns(pairs: Table, keys: Any, expected: list[int]) -> None:
    assert pairs.get(keys, columns=["n"]).column("n").to_pylist() == expected


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("eu", "values of one column"),
        (["eu", "us"], "a key is a value for each"),
        ([("eu", 1, 2)], "a key is a value for each"),
        (("eu", "one"), "no such value"),
        ({"region": "eu"}, "'id'"),
        (pa.table({"region": ["eu"]}), "'id'"),
        (pa.array(["eu"]), "values of one column"),
    ],
)
def test_what_are_no_keys(pairs: Table, keys: Any, told: str) -> None:
    with pytest.raises(SchemaError, match=told):
        pairs.get(keys)


def test_a_key_that_is_wider_than_the_column_is_no_other_key(singles: Table) -> None:
    with pytest.raises(SchemaError, match="no such value"):
        singles.get([2**64 + 2])
    with pytest.raises(SchemaError, match="no such value"):
        singles.get(pa.array([2.5]))


def test_keys_of_any_type_are_those_of_the_column(tmp_path: Path) -> None:
    values = {
        "price": (pa.decimal128(10, 2), Decimal("19.99"), Decimal("19.990")),
        "day": (pa.date32(), datetime.date(2026, 1, 31), "2026-01-31"),
        "text": (pa.string(), "a", "a"),
    }
    for name, (type_, stored, asked) in values.items():
        schema = pa.schema({name: type_, "n": pa.int64()})
        table = Table.create(str(tmp_path / name), schema, keys=[name])
        table.upsert(pa.table({name: pa.array([stored], type_), "n": [1]}))
        keys = pa.array([asked]) if isinstance(asked, str) else asked
        assert table.get(keys).num_rows == 1, name


def test_rows_without_columns_are_counted(pairs: Table) -> None:
    assert pairs.get(("eu", 1), columns=[]).num_columns == 0
    assert pairs.snapshot(filter="region = 'eu'", columns=[]).num_rows == 2
    assert pairs.snapshot(filter="n > 10", columns=[]).num_rows == 2


def test_a_filter_is_checked_when_it_is_given(pairs: Table) -> None:
    with pytest.raises(PlanError, match="'m'"):
        pairs.scan(filter="m = 1")
    with pytest.raises(PlanError, match="true or false"):
        pairs.scan(filter="n + 1")


def test_rows_that_the_key_rules_out_are_not_looked_at(pairs: Table) -> None:
    asked = "10 / (n - 20) < 0 AND region = 'eu' AND id = 1"
    assert pairs.snapshot(filter=asked).num_rows == 1
    with pytest.raises(Exception, match="has no value for some row"):
        pairs.snapshot(filter="10 / (n - 20) < 0 AND region = 'eu'")


def test_only_the_keys_are_looked_up(pairs: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any, **__: Any) -> None:
        raise AssertionError("all rows are read")

    monkeypatch.setattr(Snapshot, "read", read)
    asked = "region IN ('eu', 'mars') AND id IN (1, 2) AND n > 10"
    assert pairs.snapshot(filter=asked).column("n").to_pylist() == [20]
    assert pairs.snapshot(filter="id = 1 AND id = 2").num_rows == 0
    monkeypatch.setattr(scan, "KEYS_MAX", 3)
    with pytest.raises(AssertionError, match="all rows"):
        pairs.snapshot(filter=asked)


def test_what_is_wanted_travels_to_tasks(pairs: Table) -> None:
    wanted = RowFilter.of("region = 'eu' AND id = 2", pairs.schema.columns)
    assert wanted.filter(next(iter(pairs.scan()))).num_rows == 1  # Bound, and sent as it was.
    sent = pickle.loads(pickle.dumps(wanted))
    assert [b.num_rows for b in sent.read(pairs.at(), ["n"])] == [1]


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    runner = "tests/unit/test_chosen_rows.py"
    names: dict[str, Any] = {}
    for code in code_of("docs/rows-by-key.md", "python", runner=runner):
        exec(code.replace('"/lake/', f'"{tmp_path}/'), names)
