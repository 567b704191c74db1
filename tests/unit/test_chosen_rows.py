"""Rows by key and by condition: what a caller may give, and what comes."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any
from unittest.mock import patch

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
    ("keys", "text"),
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
def test_keys_that_do_not_fit_are_refused(pairs: Table, keys: Any, text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        pairs.get(keys)


def test_a_key_that_is_wider_than_the_column_is_no_other_key(singles: Table) -> None:
    for key in ([2**64 + 2], pa.array([2.5])):
        with pytest.raises(SchemaError, match="no such value"):
            singles.get(key)


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
    condition = "10 / (n - 20) < 0 AND region = 'eu' AND id = 1"
    assert pairs.snapshot(filter=condition).num_rows == 1
    with pytest.raises(Exception, match="has no value for some row"):
        pairs.snapshot(filter="10 / (n - 20) < 0 AND region = 'eu'")


def test_only_the_keys_are_looked_up(pairs: Table) -> None:
    condition = "region IN ('eu', 'mars') AND id IN (1, 2) AND n > 10"
    with patch.object(Snapshot, "read", side_effect=AssertionError("all rows are read")):
        assert pairs.snapshot(filter=condition).column("n").to_pylist() == [20]
        assert pairs.snapshot(filter="id = 1 AND id = 2").num_rows == 0
        with patch.object(scan, "KEYS_MAX", 3), pytest.raises(AssertionError, match="all rows"):
            pairs.snapshot(filter=condition)


def test_what_is_wanted_travels_to_tasks(pairs: Table) -> None:
    row_filter = RowFilter.of("region = 'eu' AND id = 2", pairs.schema.columns)
    assert row_filter.filter(next(iter(pairs.scan()))).num_rows == 1  # Bound, and sent as it was.
    sent = pickle.loads(pickle.dumps(row_filter))
    assert [b.num_rows for b in sent.read(pairs.at(), ["n"])] == [1]


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    runner = "tests/unit/test_chosen_rows.py"
    names: dict[str, Any] = {}
    for code in code_of("docs/rows-by-key.md", "python", runner=runner):
        exec(code.replace('"/lake/', f'"{tmp_path}/'), names)
