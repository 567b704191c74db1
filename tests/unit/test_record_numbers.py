"""Numbers and names of transactions and leases: those that a reader accepts, or an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.durations import try_parse_ms
from spark_upsert.errors import OptionError
from spark_upsert.flow import TableSink
from spark_upsert.flow.local import write
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.retention.leases import Lease
from spark_upsert.table.table import Table
from tests.unit.test_arguments import INTEGERS, REFUSED

ROWS = pa.table({"id": [1], "v": ["a"]})

USES: dict[str, Callable[[Table, Any], object]] = {
    "append": lambda table, n: table.upsert(ROWS, transaction=Transaction(writer="w", number=n)),
    "delete": lambda table, n: table.delete(1, transaction=Transaction(writer="w", number=n)),
    "the version of a lease": lambda _, n: Lease(consumer="c", version=n, renewed_ms=1, ttl_ms=1),
    "the time of a lease": lambda _, n: Lease(consumer="c", version=0, renewed_ms=n, ttl_ms=1),
    "the life of a lease": lambda _, n: Lease(consumer="c", version=0, renewed_ms=1, ttl_ms=n),
}


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "table")
    Table.create(path, ROWS.schema, keys=["id"]).upsert(ROWS)
    return path


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_number_that_no_record_can_hold_is_refused_before_a_write(path: str, value: Any) -> None:
    files = set(Path(path).rglob("*"))
    for name, use in USES.items():
        with pytest.raises(OptionError, match="a whole number from"):
            use(Table.open(path), value)
        assert set(Path(path).rglob("*")) == files, name
    assert Table.open(path).snapshot().equals(ROWS)


@pytest.mark.parametrize("value", [*INTEGERS, 2**63 - 1], ids=repr)
def test_integer_of_any_type_is_the_number_of_a_transaction(path: str, value: Any) -> None:
    USES["append"](Table.open(path), value)
    assert Table.open(path).log.head().transactions == {"w": int(value)}


def test_names_of_writers_and_consumers_are_texts(path: str) -> None:
    for writer in (None, 5, b"w", Path("w"), "\ud800"):
        with pytest.raises(OptionError, match="a text"):
            Transaction(writer=writer, number=1)  # type: ignore[arg-type]
    for consumer in (None, 5, b"c"):
        with pytest.raises(OptionError, match="consumerId"):
            Table.open(path).hold(consumer, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", ["1.5", "-1", "true", "nan", str(2**63), "9" * 5000])
def test_transaction_of_options_is_bounded(path: str, number: str) -> None:
    options = {"keys": "id", "txnAppId": "job", "txnVersion": number}
    with pytest.raises(OptionError, match=r"'txnVersion' expects a whole number .* below 2\*\*63"):
        write(TableSink(path, options), ROWS)
    assert Table.open(path).log.head().version == 1


def test_duration_that_no_record_can_hold_is_none() -> None:
    assert try_parse_ms("999999999999999 weeks") is try_parse_ms("200000000 y") is None
