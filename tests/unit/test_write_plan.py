"""A write that cannot be right is refused on the driver, before the table or a file is made."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from spark_upsert.errors import OptionError, SchemaError, UpsertFlowError
from spark_upsert.options.read import ReadOptions
from spark_upsert.options.write import WriteOptions
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.commands import UpsertEnvelope
from spark_upsert.table.write.write_set import WriteSet
from spark_upsert_sink.writers import SinkPlan, plan_sink

TYPES: dict[str, pa.DataType] = {
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "text": pa.string(),
    "flag": pa.bool_(),
    "none": pa.null(),
    "list": pa.list_(pa.int32()),
    "struct": pa.struct([pa.field("a", pa.int32())]),
}


def schema_of(text: str) -> pa.Schema:
    """Return columns from text such as ``k int, v text``."""
    pairs = (column.split() for column in text.split(","))
    return pa.schema([pa.field(name, TYPES[type_]) for name, type_ in pairs])


def plan(path: Path, options: str, columns: str, *, overwrite: bool = False) -> SinkPlan:
    """Plan a write with options such as ``keys=k sequenceBy=v``."""
    pairs = dict(option.split("=") for option in options.split())
    parsed = WriteOptions.parse({"path": str(path), **pairs})
    return plan_sink(parsed, schema_of(columns), overwrite=overwrite)


def first_write(path: Path, options: str, columns: str) -> SinkPlan:
    """Make a table by a first write without rows."""
    planned = plan(path, options, columns)
    base = Snapshot(planned.table().store, planned.write.base)
    assert planned.table().commit(WriteSet(base=base, staged=())) is not None
    return planned


NULLS = "keys=k nullsAsDeletes=true"

FIRST_WRITES = {
    "no keys": ("", "k long", "option 'keys' is required"),
    "a missing key": ("keys=oder_id", "order_id int", "Did you mean 'order_id'"),
    "a prefix of the whole key": (
        "keys=k hashPrefix=1",
        "k int",
        "from 0 to 0, less than all keys",
    ),
    "a key without a hash": ("keys=k", "k list", "has no hash and order"),
    "an order without an order": ("keys=k sequenceBy=m", "k int, m struct", "no hash and order"),
    "a key that is not stored": (
        "keys=k exceptColumnList=k",
        "k int, v int",
        "the key column 'k' is not among",
    ),
    "a missing order": ("keys=k sequenceBy=sequence", "k int, sequenc int", "mean 'sequenc'"),
    "missing deletes": (
        "keys=k applyAsDeletes=gone",
        "k int, v int",
        "the applyAsDeletes column 'gone' is not among",
    ),
    "deletes that are no flag": (
        "keys=k applyAsDeletes=op",
        "k int, op int",
        "must be boolean, found int",
    ),
    "a missing column": ("keys=k columnList=k,w", "k int, v int", "'columnList' 'w' is not among"),
    "a column of no type": ("keys=k", "k int, v none", "column 'v' has no type"),
    "a reserved name": ("keys=k", "k int, _change_type text", "'_change_type' is reserved"),
    "columns that only case tells apart": ("keys=k", "k int, K int", "column names must differ"),
    "an unknown option": ("key=k", "k int", "(?s)unknown option 'key'.*Did you mean 'keys'"),
    "an option of reads": ("keys=k splits=2", "k int", "option 'splits' belongs to reads only"),
    "an option twice": (
        "keys=k sequenceBy=k sequence_by=v",
        "k int, v int",
        "'sequenceBy' is given twice",
    ),
    "a list that is no list": ("keys=k,,v", "k int, v int", "comma-separated column names"),
    "both column lists": (
        "keys=k columnList=k exceptColumnList=v",
        "k int, v int",
        "contradict each other",
    ),
    "a flag that is no flag": ("keys=k mergeSchema=yes", "k int", "'true' or 'false'"),
    "half a transaction": ("keys=k txnAppId=a", "k int", "'txnVersion' is required"),
    "a scope without an order": (
        "keys=k sequenceScope=epoch",
        "k int",
        "'sequenceBy' is required",
    ),
    "two ways to say a delete": (
        f"{NULLS} applyAsDeletes=gone",
        "k int, v int, gone flag",
        "contradict each other",
    ),
    "no way to say a delete": (
        f"{NULLS} sequenceBy=v",
        "k int, v int",
        "needs a column whose null can say a delete",
    ),
    "events that say it themselves": (
        f"{NULLS} envelope=debezium",
        "k int",
        "'nullsAsDeletes' has no meaning",
    ),
}


@pytest.mark.parametrize(("options", "columns", "message"), FIRST_WRITES.values(), ids=FIRST_WRITES)
def test_first_write_makes_no_table_with(
    tmp_path: Path, options: str, columns: str, message: str
) -> None:
    with pytest.raises((OptionError, SchemaError), match=message):
        plan(tmp_path / "table", options, columns)
    assert not (tmp_path / "table").exists()


OWN = "k long, v int, seq long"

LATER_WRITES = {
    "a value of another type": ("", "k long, v text, seq long", "cast the column to int32"),
    "a wider type without leave": ("", "k long, v long, seq long", "merge_schema=true"),
    "a column more": ("", "k long, v int, seq long, w int", "except_column_list=w"),
    "a column less": ("", "k long, seq long", "the column 'v' is not among"),
    "no order": ("exceptColumnList=seq", "k long, v int", "'seq' is not among"),
    "an order of another type": ("", "k long, v int, seq text", "cast it to int64"),
    "other keys": ("keys=v", OWN, "but the table has 'k'"),
    "another order": ("sequenceBy=v", OWN, "but the table has 'seq'"),
    "another scope": ("sequenceScope=epoch", OWN, "but the table has 'table'"),
    "no key, even if the schema may change": (
        "mergeSchema=true",
        "v int, seq long",
        "the column 'k' is not among",
    ),
    "a type that does not fit, even so": (
        "mergeSchema=true",
        "k long, v double, seq long",
        "cast the column to int32",
    ),
}


@pytest.mark.parametrize("overwrite", [False, True], ids=["append", "overwrite"])
@pytest.mark.parametrize(("options", "columns", "message"), LATER_WRITES.values(), ids=LATER_WRITES)
def test_later_write_changes_nothing_with(
    tmp_path: Path, options: str, columns: str, message: str, overwrite: bool
) -> None:
    first_write(tmp_path, "keys=k sequenceBy=seq", OWN)
    with pytest.raises(UpsertFlowError, match=message):
        plan(tmp_path, options, columns, overwrite=overwrite)
    assert Table.open(str(tmp_path)).log.head().version == 0


def test_keys_and_order_need_not_be_said_again(tmp_path: Path) -> None:
    first = first_write(tmp_path, "keys=K SEQUENCE-BY=SEQ", OWN)
    again = plan(tmp_path, "", "V int, SEQ long, K long")
    assert again.write.base.schema == first.write.base.schema
    assert isinstance(again.write.envelope, UpsertEnvelope)
    assert again.write.envelope.sources == {"k": "K", "v": "V", "seq": "SEQ"}


def test_relative_path_is_that_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for options in (WriteOptions.parse, ReadOptions.parse):
        assert options({"path": "lake/orders"}).path == str(tmp_path / "lake/orders")
        assert options({"path": "s3://lake/orders"}).path == "s3://lake/orders"
        assert options({"path": "file:/lake/orders"}).path == "file:/lake/orders"
