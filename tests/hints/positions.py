"""Hints of orders by log positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.hints.hint import Told, follows
from tests.support.envelopes import Record, plan, records, rows_of, write
from tests.unit.test_positions import OPTIONS, at

OLDER: Record = at("mysql-bin.000007", "c", 1, "a")
NEWER: Record = at("binlog.000001", "u", 1, "b")

NO_ORDER: dict[str, Any] = {name: text for name, text in OPTIONS.items() if name != "sequenceBy"}


def require_newer(path: Path) -> None:
    assert rows_of(path) == [{"id": 1, "v": "b"}]


@follows("core.source_positions:require_ordered")
def _(told: Told) -> None:
    write(told.folder / "t", records([OLDER]), **OPTIONS)
    with told:
        write(told.folder / "new", records([OLDER]), **{**OPTIONS, "sequenceBy": "source.gtid"})
    told("give")
    told("source.file,source.pos,source.row")
    write(told.folder / "by position", records([OLDER]), **{**NO_ORDER, **told.options})
    told("leave 'sequenceBy' out, which orders by the offsets of the topic")
    told("write into a new one")
    write(told.folder / "by offset", records([OLDER, NEWER]), **NO_ORDER)
    require_newer(told.folder / "by offset")


@follows("core.source_positions:unknown_log")
def _(told: Told) -> None:
    path = told.folder / "t"
    write(path, records([OLDER]), **OPTIONS)
    with told:
        write(path, records([NEWER]), **OPTIONS)
    told("if the same server continues its log under this name, give")
    write(path, records([NEWER]), **OPTIONS, **told.options)
    require_newer(path)
    told("if it is another server, write into a new table")
    write(told.folder / "new", records([NEWER]), **OPTIONS)
    told("or leave 'sequenceBy' out there")
    write(told.folder / "by offset", records([OLDER, NEWER]), **NO_ORDER)
    require_newer(told.folder / "by offset")


@follows("core.source_positions:with_logs:2")
def _(told: Told) -> None:
    path = told.folder / "t"
    with told:
        write(path, records([OLDER, NEWER]), **OPTIONS)
    told("give 'binlogNames' with these names, comma separated, in the order in which the server")
    write(path, records([OLDER, NEWER]), binlogNames="mysql-bin,binlog", **OPTIONS)
    require_newer(path)
    told("if they are names of different servers, leave 'sequenceBy' out")
    write(told.folder / "by offset", records([OLDER, NEWER]), **NO_ORDER)
    require_newer(told.folder / "by offset")


@follows("core.source_positions:require_extended")
def _(told: Told) -> None:
    path = told.folder / "t"
    write(path, records([OLDER]), **OPTIONS)
    with told:
        write(path, records([NEWER]), binlogNames="binlog", **OPTIONS)
    told("drop it")
    write(path, records([OLDER]), **OPTIONS)
    told("give 'binlogNames' with the new names after 'mysql-bin'")
    write(path, records([NEWER]), binlogNames="mysql-bin,binlog", **OPTIONS)
    require_newer(path)


@follows("core.source_positions:with_logs")
def _(told: Told) -> None:
    """The rows of the second base name are planned on a table that has no names yet."""
    path = told.folder / "t"
    write(path, records([]), **OPTIONS)
    planned = plan(path, records([]).schema, **OPTIONS)
    base = Snapshot(planned.table().store, planned.write.base)
    commands = map(planned.write.envelope.commands, records([NEWER]).to_batches())
    staged = stage(base, commands)
    write(path, records([OLDER]), binlogNames="mysql-bin,binlog", **OPTIONS)
    with told:
        Table.open(str(path)).commit(WriteSet(base=base, staged=(staged,)))
    told("write it again")
    write(path, records([NEWER]), **OPTIONS)
    require_newer(path)
