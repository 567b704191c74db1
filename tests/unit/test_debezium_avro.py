"""The debezium envelope in Avro, whose schema says what values mean."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pytest

from spark_upsert.errors import DataError
from tests.support.debezium import AVRO, AVRO_KEY, avro_event, avro_row
from tests.support.envelopes import records, rows_of, write


def test_avro_says_itself_what_its_values_mean(tmp_path: Path) -> None:
    path = tmp_path / "t"
    times = {"at": 1529496000123456, "c": 1529496000123, "z": "2018-06-20T12:00:00.5+02:00"}
    row = avro_row(1, v="a", **times, d=17702, n=Decimal("-12.34"), days=[0, None])
    rows = records([(AVRO_KEY, avro_event("c", None, row, 1))])
    write(path, rows, columnList="id,v,at,c,z,d,n,days,source.lsn,ts_ms", **AVRO)
    assert rows_of(path) == [
        {
            "id": 1,
            "v": "a",
            "at": dt.datetime(2018, 6, 20, 12, 0, 0, 123456),
            "c": dt.datetime(2018, 6, 20, 12, 0, 0, 123000),
            "z": dt.datetime(2018, 6, 20, 10, 0, 0, 500000, tzinfo=dt.UTC),
            "d": dt.date(2018, 6, 20),
            "n": Decimal("-12.34"),
            "days": [dt.date(1970, 1, 1), None],
            "source.lsn": 1,
            "ts_ms": 5,
        }
    ]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (avro_event("c", None, avro_row(1), 2)[:-3], "it ends too early"),
        (b"\0\0\0\0\x08", "schema id 8, expected 7"),
        (avro_event("u", avro_row(1), None, 2), "op 'u' has no 'after'"),
        (avro_event("c", None, avro_row(1, d=2**31 - 1), 2), "'after.d' holds what is beyond"),
        (avro_event("c", None, avro_row(1, z="2018-02-30T00:00:00Z"), 2), "'after.z' holds what"),
        (avro_event("c", None, avro_row(1, z="infinity"), 2), "'after.z' holds what is beyond"),
    ],
)
def test_avro_that_is_broken_is_an_error(tmp_path: Path, payload: bytes, reason: str) -> None:
    path = tmp_path / "t"
    good = (AVRO_KEY, avro_event("c", None, avro_row(1, v="a"), 1))
    with pytest.raises(DataError) as caught:
        write(path, records([good, (AVRO_KEY, payload)]), **AVRO)
    assert reason in str(caught.value)


def test_without_the_schema_of_avro_keys_a_delete_must_name_its_row(tmp_path: Path) -> None:
    options = {name: text for name, text in AVRO.items() if name != "keySchema"}
    delete = avro_event("d", avro_row(1), None, 2)
    write(tmp_path / "t", records([(AVRO_KEY, delete), (AVRO_KEY, None)]), **options)
    with pytest.raises(DataError, match="the record's key is not declared"):
        write(tmp_path / "t", records([(AVRO_KEY, avro_event("d", None, None, 3))]), **options)
