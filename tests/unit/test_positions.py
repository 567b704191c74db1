"""Log positions as order keys: text of Debezium's ``source`` block, read or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.source_positions import BINLOG_NAMES, order_keys, parse_binlog_names
from spark_upsert.errors import DataError, OptionError
from spark_upsert.table.table import Table
from tests.support.debezium import bare, image, key
from tests.support.envelopes import (
    Record,
    assert_sound,
    counters_of,
    quarantine_of,
    records,
    rows_of,
    write,
)

BINLOG = pa.field("source.file", pa.string())
LSN = pa.field("source.commit_lsn", pa.string())

FIRST = "mysql-bin.000001"
LAST_OF_SIX = "mysql-bin.999999"

OPTIONS = {
    "envelope": "debezium",
    "valueFormat": "json",
    "valueSchema": "id BIGINT, v STRING",
    "keys": "id",
    "sequenceBy": "source.file,source.pos,source.row",
}


def change(op: str, number: int, text: str | None, **source: Any) -> Record:
    """Return an event with some fields of a ``source`` block."""
    row = image(number, text)
    before, after = (row, None) if op == "d" else (None, row)
    return key(number), bare({"before": before, "after": after, "source": source, "op": op})


def at(file: str, op: str, number: int, text: str | None, pos: int = 4) -> Record:
    """Return a change at a place of a binlog."""
    return change(op, number, text, file=file, pos=pos, row=0, connector="mysql")


def names_of(path: Path) -> str | None:
    return Table.open(str(path)).log.head().properties.get(BINLOG_NAMES)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("mysql-bin.9999999", "mysql-bin.10000000"),
        ("a.b-bin.999999", "a.b-bin.1000000"),
        ("7.999999", "7.1000000"),
    ],
)
def test_files_of_a_binlog_are_in_the_order_of_their_numbers(
    older: str, newer: str, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    write(path, records([at(older, "c", 1, "a", 900)]), **OPTIONS)
    assert counters_of(write(path, records([at(newer, "u", 1, "b")]), **OPTIONS)).updates == 1
    assert counters_of(write(path, records([at(older, "c", 1, "a", 900)]), **OPTIONS)).stale == 1
    assert rows_of(path) == [{"id": 1, "v": "b"}]
    assert_sound(path)


BINLOG_KEYS = {
    "mysql-bin.000007": "mysql-bin.000007",
    "mysql-bin.12345678": "mysql-bin.::12345678",
    "mysql-bin.7": "mysql-bin.000007",
    "binlog.1000000": "mysql-bin.~01.:1000000",
    None: None,
}
NO_BINLOG = ["", "mysql-bin", "mysql-bin.", ".000001", "mysql-bin.00000x", "mysql-bin.:000001"]
NO_BINLOG += ["mysql-bin.\u0661", "mysql-bin.1 "]
NO_LSN = ["0", "627404540760620", "00000027:00000758", "0000002A:00000758:0005"]
NO_LSN += ["00000027:00000758:00005"]


def keys_of(field: pa.Field, *texts: str | None) -> tuple[pa.Array, bool]:
    """Return the order keys of texts, and whether one is bad."""
    (keys,), reasons = order_keys([field], [pa.array(texts, pa.string())], ("mysql-bin", "binlog"))
    return keys, reasons is not None


def test_the_key_of_a_position_is_in_order_and_its_own_key() -> None:
    keys, is_bad = keys_of(BINLOG, *BINLOG_KEYS)
    assert (keys.to_pylist(), is_bad) == ([*BINLOG_KEYS.values()], False)
    assert keys_of(BINLOG, *keys.to_pylist())[0] == keys  # A delete has the key of its row.
    keys, is_bad = keys_of(LSN, "00000027:00000758:0005", "")
    assert (keys.to_pylist(), is_bad) == (["00000027:00000758:0005", ""], False)


@pytest.mark.parametrize(
    ("field", "text"),
    [*((BINLOG, text) for text in NO_BINLOG), *((LSN, text) for text in NO_LSN)],
)
def test_a_text_that_is_no_position_has_no_key(field: pa.Field, text: str) -> None:
    keys, is_bad = keys_of(field, text)
    assert (keys.to_pylist(), is_bad) == ([None], True)


@pytest.mark.parametrize(
    ("named", "instead"),
    [
        ("source.gtid", "source.file,source.pos,source.row"),
        ("source.sequence", "source.lsn"),
        ("source.commit_lsn,source.change_lsn", "source.commit_lsn,offset"),
        ("source.name", "leave 'sequenceBy' out"),
        ("transaction.id", "leave 'sequenceBy' out"),
    ],
)
def test_text_in_another_order_than_the_log_is_refused(
    named: str, instead: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError) as raised:
        write(tmp_path / "t", records([]), **{**OPTIONS, "sequenceBy": named})
    assert raised.value.fields["option"] == "sequenceBy"
    assert instead in str(raised.value)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("named", ["__scn", "__source_gtid"])
def test_flattened_events_are_refused_alike(named: str, tmp_path: Path) -> None:
    rows = pa.schema({"id": pa.int64(), named: pa.string()}).empty_table()
    with pytest.raises(OptionError, match="cannot order changes"):
        write(tmp_path / "t", rows, keys="id", sequenceBy=named)


def test_parsed_events_are_refused_alike(tmp_path: Path) -> None:
    source = pa.struct({"scn": pa.large_string()})
    after = pa.struct({"id": pa.int64()})
    rows = pa.schema({"op": pa.string(), "after": after, "source": source}).empty_table()
    options = {"envelope": "debezium", "keys": "id", "sequenceBy": "source.scn"}
    with pytest.raises(OptionError, match="cannot order changes"):
        write(tmp_path / "t", rows, **options)


def test_flattened_events_are_in_the_order_of_their_binlogs(tmp_path: Path) -> None:
    path, options = tmp_path / "t", {"keys": "id", "sequenceBy": "__source_file"}
    for file in (LAST_OF_SIX, "mysql-bin.1000000"):
        rows = pa.table({"id": [1], "v": [file], "__source_file": [file]})
        write(path, rows, exceptColumnList="__source_file", **options)
    assert rows_of(path) == [{"id": 1, "v": "mysql-bin.1000000"}]


def test_values_with_their_own_order_are_in_the_order_of_their_binlogs(tmp_path: Path) -> None:
    path = tmp_path / "t"
    own = {"keys": "id", "mergeEngine": "partial-update", "sequenceBy": "at"}
    for time, (file, text) in enumerate([("b.1000000", "new"), ("b.999999", "old")]):
        rows = pa.table({"id": [1], "v": [text], "at": [str(time)], "__source_file": [file]})
        left_out = {"exceptColumnList": "at,__source_file", "sequenceBy.v": "__source_file"}
        write(path, rows, **own, **left_out)
    assert rows_of(path) == [{"id": 1, "v": "new"}]


# -- base names ----------------------------------------------------------------------------------


def test_another_base_name_is_refused_until_it_is_given(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, records([at("mysql-bin.000007", "c", 1, "a")]), **OPTIONS)
    later = records([at("binlog.000001", "u", 1, "b"), at("binlog.000001", "c", 2, "c", 9)])
    with pytest.raises(DataError, match="a binlog 'binlog'"):
        write(path, later, onError="quarantine", **OPTIONS)
    write(path, later, binlogNames="mysql-bin,binlog", **OPTIONS)
    write(path, records([at("mysql-bin.000007", "c", 1, "a")]), **OPTIONS)  # It comes again.
    assert rows_of(path) == [{"id": 1, "v": "b"}, {"id": 2, "v": "c"}]
    assert names_of(path) == "mysql-bin,binlog"
    Table.open(str(path)).delete({"id": [1]})
    assert rows_of(path) == [{"id": 2, "v": "c"}]
    assert_sound(path)


def test_base_names_are_only_ever_added(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, records([at(FIRST, "c", 1, "a")]), **OPTIONS)
    later = records([at(FIRST, "u", 1, "b", 9)])
    for names in ("binlog,mysql-bin", "binlog", "mysql-bin2,binlog"):
        with pytest.raises(OptionError, match=BINLOG_NAMES):
            write(path, later, binlogNames=names, **OPTIONS)
    assert names_of(path) == "mysql-bin"
    assert write(path, later, **OPTIONS).properties is None
    for text in ("", ",", "a,,b", "a,a", ",".join(map(str, range(100)))):
        with pytest.raises(OptionError, match="different base names"):
            parse_binlog_names(text)


def test_a_table_of_an_earlier_version_keeps_its_keys_and_learns_its_base_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    with monkeypatch.context() as patch:
        patch.setattr("spark_upsert.table.write.write_set.with_logs", lambda *_: None)
        write(path, records([at(LAST_OF_SIX, "c", 1, "a")]), **OPTIONS)
    assert names_of(path) is None
    write(path, records([at("mysql-bin.1000000", "u", 1, "b")]), **OPTIONS)
    assert rows_of(path) == [{"id": 1, "v": "b"}]
    assert names_of(path) == "mysql-bin"


# -- positions that are missing or unreadable ------------------------------------------------------


def test_an_invalid_position_is_an_error_of_its_row(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, records([at("x", "c", 1, "a")]), onError="quarantine", **OPTIONS)
    (entry,) = quarantine_of(path)
    assert entry["_reason"].startswith("'source.file' is 'x', expected the name of a binlog such")
    assert names_of(path) is None


BY_CHANGE = {**OPTIONS, "sequenceBy": "source.commit_lsn,source.change_lsn,source.event_serial_no"}


def test_a_table_ordered_by_change_lsn_goes_on_and_takes_rows_of_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    place: dict[str, Any] = {"commit_lsn": "00000025:00000d98:00a2"}
    place |= {"change_lsn": None, "event_serial_no": None}
    read = records([change("r", number, "read", **place) for number in (1, 2)])
    with monkeypatch.context() as patch:
        patch.setattr("spark_upsert.envelopes.write_plan.require_ordered", lambda *_, **__: None)
        write(path, records([]), **BY_CHANGE)
    write(path, read, **BY_CHANGE)
    place |= {"change_lsn": "00000025:00000d98:0001", "event_serial_no": 1}
    write(path, records([change("u", 1, "newer", **place)]), **BY_CHANGE)
    assert counters_of(write(path, read, **BY_CHANGE)).stale == 1
    assert rows_of(path) == [{"id": 1, "v": "newer"}, {"id": 2, "v": "read"}]
    Table.open(str(path)).delete({"id": [2]})
    assert rows_of(path) == [{"id": 1, "v": "newer"}]


POSTGRES = {**OPTIONS, "sequenceBy": "source.lsn"}


def test_only_a_row_of_a_snapshot_may_have_no_position(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, records([change("u", 1, "newer", lsn=1)]), **POSTGRES)
    read = [change("r", number, "read", lsn=None, snapshot="incremental") for number in (1, 2)]
    assert counters_of(write(path, records(read), **POSTGRES)).stale == 1
    assert rows_of(path) == [{"id": 1, "v": "newer"}, {"id": 2, "v": "read"}]
    no_source = (key(3), bare({"before": None, "after": image(3, "a"), "source": None, "op": "r"}))
    for record in (change("u", 2, "b", lsn=None), no_source):
        with pytest.raises(DataError, match=r"'source\.lsn' is null"):
            write(path, records([record]), **POSTGRES)
