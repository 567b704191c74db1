"""No table is made that must not be made, and none that somebody has made is turned away."""

from __future__ import annotations

import pytest

from spark_upsert.errors import OptionError
from spark_upsert.routed.group import GroupTable
from spark_upsert.routed.plan import table_below
from tests.support.routed_worlds import routed_options, transaction, write
from tests.support.stores import MemoryStore

ROW = {"id": 1, "at": 1, "v": 1, "w": 1, "gone": False}


def test_without_new_tables_rows_go_to_those_that_were_made_before() -> None:
    root, options = MemoryStore(), routed_options(createTables="false")
    made = MemoryStore()
    write(made, routed_options(), [[{**ROW, "topic": "made"}]], transaction(0))
    schema = table_below(made, "made").log.head().schema
    table_below(root, "made").ensure(schema)

    with pytest.raises(OptionError) as caught:
        write(root, options, [[{**ROW, "topic": "made"}, {**ROW, "topic": "new"}]], transaction(0))
    assert "rows for the table 'new', which is not there" in caught.value.message
    assert table_below(root, "made").log.head().version == 0

    write(root, options, [[{**ROW, "topic": "made"}]], transaction(0))
    assert list(GroupTable(root).at().members) == ["made"]
    assert table_below(root, "made").snapshot().num_rows == 1


def test_one_table_more_than_may_be_is_named() -> None:
    root, options = MemoryStore(), routed_options(tablesMax="2")
    write(root, options, [[{**ROW, "topic": "a"}], [{**ROW, "topic": "b"}]], transaction(0))
    with pytest.raises(OptionError, match=r"with the table 'c' there would be 3 tables"):
        write(root, options, [[{**ROW, "topic": "c"}]], transaction(1))
    # What two tasks see apart is too much together, too.
    both = [[{**ROW, "topic": "c"}], [{**ROW, "topic": "d"}]]
    with pytest.raises(OptionError, match=r"'c' and 1 more there would be 4 tables"):
        write(root, routed_options(tablesMax="3"), both, transaction(1))
    many = [{**ROW, "topic": f"t{index}"} for index in range(9)]
    with pytest.raises(OptionError) as caught:
        write(root, options, [many], transaction(1))
    assert "tables_max=11" in caught.value.hint, "what is advised suffices"
    assert table_below(root, "c").log.try_head() is None
