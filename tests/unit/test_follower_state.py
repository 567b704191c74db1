"""A follower's state, and when it copies tables, without a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_upsert.errors import ContentionError
from spark_upsert.postgres.catalog import SourceTable
from spark_upsert.postgres.copies import Visibility
from spark_upsert.postgres.messages import LoggedColumn
from spark_upsert.replication.follower import _portions, _reason_to_copy
from spark_upsert.replication.state import FOLDER, CopiedTable, FollowerState, read_state
from spark_upsert.store.local import LocalStore


def table(name: str = "a", **changes: Any) -> SourceTable:
    facts: dict[str, Any] = {
        "oid": 17_000,
        "schema": "public",
        "name": name,
        "keys": ("id",),
        "columns": (LoggedColumn("id", 23, -1, True), LoggedColumn("v", 1700, 655366, False)),
        "numbers": (1, 2),
        "page_count": 1,
        "row_filter": None,
        "file": 18_000,
        "filled": (),
        "folded_keys": (),
        "target": ("public", name),
    }
    return SourceTable(**{**facts, **changes})


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    assert read_state(store) is None
    copied = CopiedTable(
        source=table(row_filter="(id > 3)"), visibility=Visibility.parse("3:9:4,5"), lsn=1 << 40
    )
    state = FollowerState(
        system="7713294358270754450",
        database="shop",
        slot="lake",
        publication="Lake",
        start=0x1A2B3C4,
        number=7,
        lower=(1 << 63) + 1,
        upper=(1 << 63) + 9,
        copying=(17_000,),
        tables={17_000: copied},
        released=5,
        session="one",
    )
    assert state.put(store) == read_state(store) == replace(state, record=0)
    assert state.joined == 1 << 40
    assert FollowerState(system="", database="", slot="", publication="", start=3).joined == 3


def test_of_two_followers_one_fails_before_it_writes(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    first = FollowerState(system="", database="", slot="s", publication="", start=3).put(store)
    second = replace(first, session="two").put(store)
    with pytest.raises(ContentionError, match="another follower writes the tables below"):
        replace(first, number=1).put(store)
    for number in range(3):
        second = replace(second, number=number).put(store)
    with pytest.raises(ContentionError, match="has the slot 's'"):
        replace(first, number=1).put(store)  # Its number was removed.
    assert read_state(store) == second
    second = second.put(store)
    assert len(list(store.list(FOLDER))) == 1


ADDED = LoggedColumn("w", 23, -1, False)


@pytest.mark.parametrize(
    ("changes", "is_emptied", "reason"),
    [
        ({}, False, None),
        ({"file": 1}, True, None),
        ({"file": 1}, False, "its file was rewritten"),
        ({"file": 1, "target": ("public", "root")}, True, "its file was rewritten"),
        ({"keys": ("v",)}, False, "other key columns"),
        ({"row_filter": "true"}, False, "another row filter"),
        ({"columns": (*table().columns, ADDED), "numbers": (1, 2, 3)}, False, None),
        ({"columns": table().columns[:1], "numbers": (1,)}, False, None),
        (
            {"columns": (table().columns[0], ADDED), "numbers": (1, 2)},
            False,
            "a column was renamed to 'w'",
        ),
        (
            {"columns": (*table().columns, ADDED), "numbers": (1, 2, 3), "filled": ("w",)},
            False,
            "column 'w' was added with values",
        ),
        (
            {"columns": (LoggedColumn("id", 20, -1, True),), "numbers": (1,)},
            False,
            "column 'id' has another type",
        ),
    ],
)
def test_a_table_is_copied_again_if_the_log_does_not_show_its_change(
    changes: Mapping[str, Any], is_emptied: bool, reason: str | None
) -> None:
    assert _reason_to_copy(table(), table(**changes), is_emptied=is_emptied) == reason


def test_small_tables_are_copied_together_and_partitions_never_apart() -> None:
    pages = 1 << 15
    tables = [
        table("a", page_count=10),
        table("p1", page_count=pages, target=("public", "p")),
        table("b", page_count=10),
        table("p2", page_count=pages, target=("public", "p")),
        table("c", page_count=10),
    ]
    names = [[t.name for t in portion] for portion in _portions(tables)]
    assert names == [["a"], ["p1", "p2"], ["b", "c"]]
