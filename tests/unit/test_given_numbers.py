"""Numbers of Python that are stored in a record: exact integers in its bounds, or an error."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.errors import OptionError
from spark_upsert.feedback import FeedbackUpsert
from spark_upsert.flow import TableSink
from spark_upsert.flow.run.tables import write
from spark_upsert.model.durations import try_parse_ms
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.table import Table

ROWS = pa.table({"id": [1], "v": ["a"]})
BATCH = ROWS.to_batches()[0]

REFUSED: dict[str, Any] = {
    "the time of day": time.time(),
    "a number of a UUID": uuid.uuid4().int,
    "one more than 64 bits hold": 2**63,
    "a number of many digits": 10**5000,
    "a negative number": -1,
    "a truth value": True,
    "a truth value of numpy": np.bool_(True),
    "not a number": math.nan,
    "infinity": math.inf,
    "a float without a fraction": 5.0,
    "a float of numpy": np.float64(5),
    "a decimal": Decimal(5),
    "a fraction": Fraction(5),
    "a text": "5",
    "an array": np.array([5]),
    "an unsigned integer of numpy beyond 63 bits": np.uint64(2**63),
    "a duration of numpy": np.timedelta64(5, "ms"),
}

Use = Callable[[Table, Any], object]

USES: dict[str, Use] = {
    "append": lambda table, n: table.append(ROWS, transaction=Transaction(writer="w", number=n)),
    "delete": lambda table, n: table.delete(1, transaction=Transaction(writer="w", number=n)),
    "ingest": lambda table, n: FeedbackUpsert(table, "w").ingest(BATCH, n),
    "advance": lambda table, n: FeedbackUpsert(table, "w").advance(n),
    "hold for a time": lambda table, n: table.hold("c", 0, ttl_ms=n),
    "hold a version": lambda table, n: table.hold("c", n),
    "keep held": lambda table, n: table.keep_held("c", 0, ttl_ms=n),
    "hold all": lambda table, n: table.hold_all("c", ttl_ms=n),
    "expire by age": lambda table, n: table.expire(retain_ms=n),
    "expire by count": lambda table, n: table.expire(retain_versions=n),
    "expire for a safety": lambda table, n: table.expire(retain_ms=0, safety_ms=n),
    "expire writers": lambda table, n: table.expire(retain_ms=0, writers_ms=n),
}
"""The arguments of a program whose numbers are stored in a record."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "table")
    Table.create(path, ROWS.schema, keys=["id"]).append(ROWS)
    return path


def objects(path: str) -> set[Path]:
    return {file for file in Path(path).rglob("*") if file.is_file()}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_a_number_that_no_record_can_hold_is_refused_before_a_write(path: str, value: Any) -> None:
    before = objects(path)
    for name, use in USES.items():
        with pytest.raises(OptionError, match=r"whole (number|milliseconds)"):
            use(Table.open(path), value)
        assert objects(path) == before, name
    assert Table.open(path).snapshot().equals(ROWS)


@pytest.mark.parametrize("kind", [np.int8, np.uint16, np.int32, np.int64, np.uint64])
def test_an_integer_of_numpy_is_stored_as_its_value(path: str, kind: type[np.integer[Any]]) -> None:
    for name in ("append", "delete", "hold for a time", "expire writers"):
        USES[name](Table.open(path), kind(5))
    table = Table.open(path)
    table.hold("d", kind(2), ttl_ms=kind(7))  # type: ignore[arg-type]
    assert table.log.commit(2).transactions == (Transaction(writer="w", number=5),)
    assert {lease.consumer: lease.ttl_ms for lease in table.consumers()} == {"c": 5, "d": 7}


def test_the_greatest_number_is_stored(path: str) -> None:
    Table.open(path).append(ROWS, transaction=Transaction(writer="w", number=2**63 - 1))
    assert Table.open(path).log.head().transactions == {"w": 2**63 - 1}


@pytest.mark.parametrize("writer", [None, 5, b"w", Path("w")], ids=repr)
def test_the_name_of_a_writer_is_a_text(writer: Any) -> None:
    with pytest.raises(OptionError, match="a text"):
        Transaction(writer=writer, number=1)


@pytest.mark.parametrize("consumer", [None, 5, b"c"], ids=repr)
def test_the_name_of_a_consumer_is_a_text(path: str, consumer: Any) -> None:
    with pytest.raises(OptionError, match="consumerId"):
        Table.open(path).hold(consumer, 0)


@pytest.mark.parametrize("number", ["1.5", "-1", "true", "nan", str(2**63), "9" * 5000])
def test_a_transaction_of_options_is_bounded(path: str, number: str) -> None:
    options = {"keys": "id", "txnAppId": "job", "txnVersion": number}
    with pytest.raises(OptionError, match=r"'txnVersion' expects a whole number .* below 2\*\*63"):
        write(TableSink(path, options), ROWS)
    assert Table.open(path).log.head().version == 1


@pytest.mark.parametrize("text", ["999999999999999 weeks", "200000000 y"])
def test_a_duration_that_no_record_can_hold_is_none(text: str) -> None:
    assert try_parse_ms(text) is None
