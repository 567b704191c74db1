"""Options that fit no table stop a write that parks; those that fit some park the others."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import OptionError, SchemaError
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.routed.commit import commit_routed
from spark_upsert.routed.plan import plan_routed, table_below
from spark_upsert.routed.stage import stage_routed
from tests.support.routed_worlds import transaction
from tests.support.stores import MemoryStore
from tests.unit.test_parking import OPTIONS, ROWS, counts, rows_in, write

NARROW = TableSchema.of(pa.schema({"id": pa.int64()}), keys=["id"])
"""Of a table that has neither the column ``v`` nor an order."""


@pytest.mark.parametrize(
    "wrong",
    [
        {"keys": "idd"},
        {"sequenceBy": "seq"},
        {"columnList": "id,w"},
        {"applyAsDeletes": "v"},
        {"table.*.keys": "idd"},
        {"table.[ab].indexBy": "w"},
    ],
    ids=lambda given: "-".join(given),
)
def test_an_option_that_fits_no_table_stops_the_write(wrong: dict[str, str]) -> None:
    root = MemoryStore()
    with pytest.raises(SchemaError, match="table 'a'") as caught:
        write(root, 0, [("a", 1, 1)], [("b", 1, 1)], **wrong)
    assert "no table has taken rows by these options" in caught.value.hint
    assert "'table.a.<option>'" in caught.value.hint
    assert counts(root) == {}
    assert not [path for path in root.objects if "/_log/" not in path], "nothing is left"
    write(root, 0, [("a", 1, 1)], [("b", 1, 1)])
    assert (rows_in(root, "a"), rows_in(root, "b")) == ({1: 1}, {1: 1})


def test_p5_an_option_that_is_made_wrong_stops_a_write_that_went_well() -> None:
    root = MemoryStore()
    write(root, 0, [("a", 1, 1), ("b", 1, 1)])
    with pytest.raises(OptionError, match="table 'b': option 'keys' is 'v'"):
        write(root, 1, [("b", 2, 2)], keys="v")
    renamed = ROWS.set(1, pa.field("key", pa.int64()))
    rows = pa.RecordBatch.from_pylist([{"topic": "a", "key": 2, "v": 2}], schema=renamed)
    options = RoutedOptions.parse({**OPTIONS, "onTableError": "park"})
    plan = plan_routed(options, renamed, root=root)
    staged = [stage_routed(plan, root, [rows], transaction(1), 0)]
    with pytest.raises(SchemaError, match="table 'a': the column of 'columnList' 'id'"):
        commit_routed(root, options, staged, transaction(1))
    assert counts(root) == {}


def test_an_option_that_fits_some_tables_parks_the_others() -> None:
    root, other = MemoryStore(), {"sequenceBy": "v", "columnList": "id"}
    table_below(root, "a").ensure(NARROW)
    with pytest.raises(OptionError, match="table 'a': option 'sequenceBy'"):
        write(root, 0, [("a", 1, 1)], **other)
    write(root, 0, [("a", 1, 1)], [("b", 1, 1)], **other)
    assert counts(root) == {"a": 1}
    table_below(root, "c").ensure(NARROW)
    write(root, 1, [("c", 1, 1)], **other)
    assert counts(root) == {"a": 1, "c": 1}, "the options have been right for 'b'"


def test_an_option_of_one_table_by_its_name_parks_it() -> None:
    root = MemoryStore()
    write(root, 0, [("a", 1, 1)], **{"table.a.keys": "idd"})
    assert counts(root) == {"a": 1}
    with pytest.raises(SchemaError, match="table 'b'"):
        write(root, 1, [("a", 2, 2), ("b", 1, 1)], **{"keys": "idd", "table.a.keys": "idd"})


def test_a_table_that_is_parked_already_says_nothing_of_the_options() -> None:
    root = MemoryStore()
    table_below(root, "a").ensure(NARROW)
    write(root, 0, [("a", 1, 1)])
    write(root, 1, [("a", 2, 2)], keys="idd")
    assert counts(root) == {"a": 2}
    with pytest.raises(SchemaError, match="table 'b'"):
        write(root, 2, [("a", 2, 2), ("b", 1, 1)], keys="idd")
    assert counts(root) == {"a": 2}


def test_a_batch_that_is_repeated_is_judged_as_the_first_time() -> None:
    class Stops(MemoryStore):
        is_stopped = False

        def put_if_absent(self, path: str, data: bytes) -> bool:
            if self.is_stopped and path.startswith("_group/_log/"):
                raise OSError("stop")
            return super().put_if_absent(path, data)

    root, own = Stops(), {"sequenceBy": "v", "columnList": "id"}
    table_below(root, "a").ensure(NARROW)
    root.is_stopped = True
    with pytest.raises(OSError, match="stop"):
        write(root, 0, [("a", 1, 1), ("b", 1, 1)], **own)
    root.is_stopped = False
    write(root, 0, [("a", 1, 1)], [("b", 1, 1)], **own)
    assert counts(root) == {"a": 1}
    assert table_below(root, "b").snapshot(columns=["id"]).to_pydict() == {"id": [1]}
