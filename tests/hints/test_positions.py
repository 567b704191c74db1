"""Hints of orders by the positions of a binary log, whose files may get new names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.hints.followed_hint import FollowedHint
from tests.support.envelopes import Record, plan, records, rows_of, write
from tests.unit.test_positions import OPTIONS, at

OLDER: Record = at("mysql-bin.000007", "c", 1, "a")
NEWER: Record = at("binlog.000001", "u", 1, "b")

NO_ORDER: dict[str, Any] = {name: text for name, text in OPTIONS.items() if name != "sequenceBy"}


def require_newer(path: Path) -> None:
    assert rows_of(path) == [{"id": 1, "v": "b"}]


def test_a_log_under_a_new_name(hint: FollowedHint) -> None:
    path = hint.folder / "t"
    write(path, records([OLDER]), **OPTIONS)
    with hint:
        write(path, records([NEWER]), **OPTIONS)
    hint("if the same server continues its log under this name, give")
    write(path, records([NEWER]), **OPTIONS, **hint.options)
    require_newer(path)
    hint("if it is another server, write into a new table")
    write(hint.folder / "new", records([NEWER]), **OPTIONS)
    hint("or leave 'sequenceBy' out there")
    write(hint.folder / "by offset", records([OLDER, NEWER]), **NO_ORDER)
    require_newer(hint.folder / "by offset")


def test_two_logs_in_one_batch(hint: FollowedHint) -> None:
    path = hint.folder / "t"
    with hint:
        write(path, records([OLDER, NEWER]), **OPTIONS)
    hint("give 'binlogNames' with these names, comma separated, in the order in which the server")
    write(path, records([OLDER, NEWER]), binlogNames="mysql-bin,binlog", **OPTIONS)
    require_newer(path)
    hint("if they are names of different servers, leave 'sequenceBy' out")
    write(hint.folder / "by offset", records([OLDER, NEWER]), **NO_ORDER)
    require_newer(hint.folder / "by offset")


def test_names_that_replace_others(hint: FollowedHint) -> None:
    path = hint.folder / "t"
    write(path, records([OLDER]), **OPTIONS)
    with hint:
        write(path, records([NEWER]), binlogNames="binlog", **OPTIONS)
    hint("drop it")
    write(path, records([OLDER]), **OPTIONS)
    hint("give 'binlogNames' with the new names after 'mysql-bin'")
    write(path, records([NEWER]), binlogNames="mysql-bin,binlog", **OPTIONS)
    require_newer(path)


def test_names_that_another_writer_gave(hint: FollowedHint) -> None:
    """The rows of the second base name are planned on a table that has no names yet."""
    path = hint.folder / "t"
    write(path, records([]), **OPTIONS)
    planned = plan(path, records([]).schema, **OPTIONS)
    base = Snapshot(planned.table().store, planned.write.base)
    commands = map(planned.write.envelope.commands, records([NEWER]).to_batches())
    staged = stage(base, commands)
    write(path, records([OLDER]), binlogNames="mysql-bin,binlog", **OPTIONS)
    with hint:
        Table.open(str(path)).commit(WriteSet(base=base, staged=(staged,)))
    hint("write it again")
    write(path, records([NEWER]), **OPTIONS)
    require_newer(path)
