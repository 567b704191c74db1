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


IN_ORDER = {
    "a rotation": ("mysql-bin.000001", "mysql-bin.000002"),
    "a rotation to seven digits": (LAST_OF_SIX, "mysql-bin.1000000"),
    "a rotation to eight digits": ("mysql-bin.9999999", "mysql-bin.10000000"),
    "a rotation between long numbers": ("mysql-bin.1000000", "mysql-bin.1000001"),
    "six and eight digits": (LAST_OF_SIX, "mysql-bin.10000000"),
    "a name with dots": ("a.b-bin.999999", "a.b-bin.1000000"),
    "a name of digits": ("7.999999", "7.1000000"),
}


@pytest.mark.parametrize("case", IN_ORDER)
def test_files_of_a_binlog_are_in_the_order_of_their_numbers(case: str, tmp_path: Path) -> None:
    older, newer = IN_ORDER[case]
    path = tmp_path / "t"
    write(path, records([at(older, "c", 1, "a", 900)]), **OPTIONS)
    assert counters_of(write(path, records([at(newer, "u", 1, "b")]), **OPTIONS)).updates == 1
    assert counters_of(write(path, records([at(older, "c", 1, "a", 900)]), **OPTIONS)).stale == 1
    assert rows_of(path) == [{"id": 1, "v": "b"}]
    assert_sound(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mysql-bin.000007", "mysql-bin.000007"),
        ("mysql-bin.1000000", "mysql-bin.:1000000"),
        ("mysql-bin.12345678", "mysql-bin.::12345678"),
        ("mysql-bin.7", "mysql-bin.000007"),
        ("binlog.000007", "mysql-bin.~01.000007"),
        ("binlog.1000000", "mysql-bin.~01.:1000000"),
        *((text, None) for text in ("", "mysql-bin", "mysql-bin.", ".000001", "mysql-bin.00000x")),
        *((text, None) for text in ("mysql-bin.:000001", "mysql-bin.\u0661", "mysql-bin.1 ")),
        (None, None),
    ],
)
def test_the_key_of_a_binlog(text: str | None, expected: str | None) -> None:
    names = ("mysql-bin", "binlog")
    (keys,), reasons = order_keys([BINLOG], [pa.array([text], pa.string())], names)
    assert keys.to_pylist() == [expected]
    assert (reasons is not None) == (text is not None and expected is None)
    (again,), _ = order_keys([BINLOG], [keys], names)
    assert again == keys  # A delete by key has the order key of its row.


@pytest.mark.parametrize(
    ("text", "is_key"),
    [
        ("00000027:00000758:0005", True),
        ("", True),
        ("0", False),
        ("627404540760620", False),
        ("00000027:00000758", False),
        ("0000002A:00000758:0005", False),
        ("00000027:00000758:00005", False),
    ],
)
def test_the_key_of_an_lsn(text: str, is_key: bool) -> None:
    (keys,), reasons = order_keys([LSN], [pa.array([text])], ())
    assert keys.to_pylist() == [text if is_key else None]
    assert (reasons is None) == is_key


REFUSED = {
    "a GTID": ("source.gtid", "source.file,source.pos,source.row"),
    "a sequence": ("source.sequence", "source.lsn"),
    "a change LSN": ("source.commit_lsn,source.change_lsn", "source.commit_lsn,offset"),
    "the name of a connector": ("source.name", "leave 'sequenceBy' out"),
    "the id of a transaction": ("transaction.id", "leave 'sequenceBy' out"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_text_in_another_order_than_the_log_is_refused(case: str, tmp_path: Path) -> None:
    named, instead = REFUSED[case]
    with pytest.raises(OptionError) as raised:
        write(tmp_path / "t", records([]), **{**OPTIONS, "sequenceBy": named})
    assert raised.value.fields["option"] == "sequenceBy"
    assert instead in str(raised.value)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (pa.schema({"id": pa.int64(), "__scn": pa.string()}), {"sequenceBy": "__scn"}),
        (
            pa.schema({"id": pa.int64(), "__source_gtid": pa.string()}),
            {"sequenceBy": "__source_gtid"},
        ),
        (
            pa.schema({"id": pa.int64(), "op": pa.string(), "after": pa.struct({"id": pa.int64()}),
                       "source": pa.struct({"scn": pa.large_string()})}),
            {"sequenceBy": "source.scn", "envelope": "debezium"},
        ),
    ],
    ids=["flattened", "flattened, with the block", "parsed"],
)  # fmt: skip
def test_other_forms_of_events_are_refused_alike(
    rows: pa.Schema, options: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match="cannot order changes"):
        write(tmp_path / "t", rows.empty_table(), keys="id", **options)


def test_flattened_events_are_in_the_order_of_their_binlogs(tmp_path: Path) -> None:
    path, options = tmp_path / "t", {"keys": "id", "sequenceBy": "__source_file"}
    for file in (LAST_OF_SIX, "mysql-bin.1000000"):
        rows = pa.table({"id": [1], "v": [file], "__source_file": [file]})
        write(path, rows, exceptColumnList="__source_file", **options)
    assert rows_of(path) == [{"id": 1, "v": "mysql-bin.1000000"}]


# -- base names ----------------------------------------------------------------------------------


def test_the_first_epoch_sets_the_base_name(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, records([at(FIRST, "c", 1, "a")]), **OPTIONS)
    assert names_of(path) == "mysql-bin"
    commit = write(path, records([at(FIRST, "u", 1, "b", 9)]), **OPTIONS)
    assert commit.properties is None


def test_another_base_name_is_refused_until_it_is_given(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, records([at("mysql-bin.000007", "c", 1, "a")]), **OPTIONS)
    later = records([at("binlog.000001", "u", 1, "b"), at("binlog.000001", "c", 2, "c", 9)])
    for policy in ("fail", "quarantine"):
        with pytest.raises(DataError, match="a binlog 'binlog'"):
            write(path, later, onError=policy, **OPTIONS)
    write(path, later, binlogNames="mysql-bin,binlog", **OPTIONS)
    write(path, records([at("mysql-bin.000007", "c", 1, "a")]), **OPTIONS)  # It comes again.
    assert rows_of(path) == [{"id": 1, "v": "b"}, {"id": 2, "v": "c"}]
    assert names_of(path) == "mysql-bin,binlog"
    Table.open(str(path)).delete({"id": [1]})
    assert rows_of(path) == [{"id": 2, "v": "c"}]
    assert_sound(path)


def test_a_first_epoch_with_two_base_names_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    both = records([at("mysql-bin.000007", "c", 1, "a"), at("binlog.000001", "u", 1, "b")])
    with pytest.raises(DataError, match=r"2 base names \(binlog, mysql-bin\)"):
        write(path, both, **OPTIONS)
    write(path, both, binlogNames="mysql-bin,binlog", **OPTIONS)
    assert rows_of(path) == [{"id": 1, "v": "b"}]


@pytest.mark.parametrize("names", ["binlog,mysql-bin", "binlog", "mysql-bin2,binlog"])
def test_base_names_are_only_ever_added(names: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, records([at(FIRST, "c", 1, "a")]), **OPTIONS)
    with pytest.raises(OptionError, match=BINLOG_NAMES):
        write(path, records([at(FIRST, "u", 1, "b", 9)]), binlogNames=names, **OPTIONS)
    assert names_of(path) == "mysql-bin"


@pytest.mark.parametrize("text", ["", ",", "a,,b", "a,a", ",".join(map(str, range(100)))])
def test_base_names_are_different_names(text: str) -> None:
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
    assert entry["_reason"] == (
        "'source.file' is 'x', expected the name of a binlog such as 'mysql-bin.000007'"
    )
    assert names_of(path) is None


BY_CHANGE = {**OPTIONS, "sequenceBy": "source.commit_lsn,source.change_lsn,source.event_serial_no"}


def test_a_table_ordered_by_change_lsn_goes_on_and_takes_rows_of_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    place: dict[str, Any] = {
        "commit_lsn": "00000025:00000d98:00a2",
        "change_lsn": None,
        "event_serial_no": None,
    }
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


def test_a_row_of_a_snapshot_without_a_position_is_before_all_changes(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, records([change("u", 1, "newer", lsn=1)]), **POSTGRES)
    read = [change("r", number, "read", lsn=None, snapshot="incremental") for number in (1, 2)]
    assert counters_of(write(path, records(read), **POSTGRES)).stale == 1
    assert rows_of(path) == [{"id": 1, "v": "newer"}, {"id": 2, "v": "read"}]
    with pytest.raises(DataError, match=r"'source\.lsn' is null"):
        write(path, records([change("u", 2, "b", lsn=None)]), **POSTGRES)
    no_source = (key(3), bare({"before": None, "after": image(3, "a"), "source": None, "op": "r"}))
    with pytest.raises(DataError, match=r"'source\.lsn' is null"):
        write(path, records([no_source]), **POSTGRES)


def test_values_with_their_own_order_are_in_the_order_of_their_binlogs(tmp_path: Path) -> None:
    path = tmp_path / "t"
    own = {"keys": "id", "mergeEngine": "partial-update", "sequenceBy": "at"}
    for at_, (file, text) in enumerate([("b.1000000", "new"), ("b.999999", "old")]):
        rows = pa.table({"id": [1], "v": [text], "at": [str(at_)], "__source_file": [file]})
        left_out = {"exceptColumnList": "at,__source_file", "sequenceBy.v": "__source_file"}
        write(path, rows, **own, **left_out)
    assert rows_of(path) == [{"id": 1, "v": "new"}]
