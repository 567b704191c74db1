"""``onUnknown``: the policy of a table for values that no row has set, as an option of writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import OnUnknown
from spark_upsert.errors import ContentionError, DataError, OptionError
from spark_upsert.options.write import WriteOptions
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.support.envelopes import plan, quarantine_of, rows_of, write

UNCHANGED = {"keys": "id", "columnsToUpdate": "to"}


def rows(number: int, *names: str, key: int = 1) -> pa.Table:
    """Return a row that sets the named columns only."""
    lists = pa.array([list(names)], pa.list_(pa.string()))
    return pa.table({"id": [key], "x": [number], "y": [number], "to": lists})


def policy_of(path: Path) -> OnUnknown:
    return Table.open(str(path)).schema.on_unknown


DEFAULTS: dict[str, tuple[dict[str, str], OnUnknown]] = {
    "nothing": ({}, OnUnknown.FAIL),
    "columns to update": ({"columnsToUpdate": "to"}, OnUnknown.FAIL),
    "ignored nulls": ({"ignoreNullUpdates": "true"}, OnUnknown.NULL),
    "ignored nulls of a column": ({"ignoreNullUpdatesColumnList": "x"}, OnUnknown.NULL),
    "ignored nulls of others": ({"ignoreNullUpdatesExceptColumnList": "x"}, OnUnknown.NULL),
    "ignored nulls and a policy": (
        {"ignoreNullUpdates": "true", "onUnknown": "quarantine"},
        OnUnknown.QUARANTINE,
    ),
    "each policy": ({"onUnknown": "Null"}, OnUnknown.NULL),
}


@pytest.mark.parametrize(("options", "policy"), DEFAULTS.values(), ids=DEFAULTS)
def test_the_first_write_fixes_the_policy_with(
    tmp_path: Path, options: dict[str, str], policy: OnUnknown
) -> None:
    options = dict(options)
    write(tmp_path / "t", rows(1, "x", "y"), keys="id", **options)
    assert policy_of(tmp_path / "t") is policy
    options.pop("onUnknown", None)
    write(tmp_path / "t", rows(2, "x", "y"), **options)
    assert policy_of(tmp_path / "t") is policy, "left out, it stays"


def test_each_policy_decides_about_a_row_without_a_value(tmp_path: Path) -> None:
    for policy in ("fail", "quarantine", "null"):
        path = tmp_path / policy
        write(path, rows(1, "x", "y"), **UNCHANGED, onUnknown=policy)
        row = rows(3, "x", key=2)
        if policy == "fail":
            with pytest.raises(DataError, match=r"onUnknown|on_unknown"):
                write(path, row, **UNCHANGED)
        else:
            write(path, row, **UNCHANGED)
        shown: list[dict[str, Any]] = [{"id": 1, "x": 1, "y": 1}]
        shown += [{"id": 2, "x": 3, "y": None}] if policy == "null" else []
        assert rows_of(path) == shown
        assert len(quarantine_of(path) if policy == "quarantine" else []) == (
            policy == "quarantine"
        )


def with_unknown(path: Path, policy: str) -> None:
    write(path, rows(1, "x"), **UNCHANGED, onUnknown=policy)


def without_unknown(path: Path, policy: str) -> None:
    write(path, rows(1, "x", "y"), **UNCHANGED, onUnknown=policy)


CHANGES: dict[str, tuple[Any, str, str, bool]] = {
    "fail to null": (without_unknown, "fail", "null", True),
    "fail to quarantine": (without_unknown, "fail", "quarantine", True),
    "null to quarantine": (without_unknown, "null", "quarantine", False),
    "quarantine to null": (without_unknown, "quarantine", "null", False),
    "null to fail": (without_unknown, "null", "fail", True),
    "quarantine to fail": (without_unknown, "quarantine", "fail", True),
    "null to fail with an unknown value": (with_unknown, "null", "fail", False),
    "quarantine to fail with an unknown value": (with_unknown, "quarantine", "fail", False),
}


@pytest.mark.parametrize(("make", "own", "policy", "is_taken"), CHANGES.values(), ids=CHANGES)
def test_a_policy_changes_from(
    tmp_path: Path, make: Any, own: str, policy: str, is_taken: bool
) -> None:
    path = tmp_path / "t"
    make(path, own)
    if not is_taken:
        with pytest.raises(
            OptionError, match=f"'onUnknown' is '{policy}', but the table has '{own}'"
        ):
            write(path, rows(2, "x", "y"), **UNCHANGED, onUnknown=policy)
    else:
        write(path, rows(2, "x", "y"), **UNCHANGED, onUnknown=policy)
    assert policy_of(path).value == (policy if is_taken else own)


def test_a_policy_is_checked_at_the_version_that_it_changes(tmp_path: Path) -> None:
    """Another writer may have brought an unknown value since the write was planned."""
    path = tmp_path / "t"
    without_unknown(path, "null")
    table = Table.open(str(path))
    known = table.schema
    write(path, rows(1, "x", key=2), **UNCHANGED)
    with pytest.raises(OptionError, match="'onUnknown' is 'fail'"):
        table.alter(replace(known, on_unknown=OnUnknown.FAIL), upon=known)
    assert policy_of(path) is OnUnknown.NULL


def test_a_change_of_columns_leaves_the_policy_of_another_writer(tmp_path: Path) -> None:
    path = tmp_path / "t"
    without_unknown(path, "fail")
    table = Table.open(str(path))
    known = table.schema
    write(path, rows(2, "x"), **UNCHANGED, onUnknown="null")
    wider = replace(known, columns=known.columns.append(pa.field("z", pa.int64())))
    table.alter(wider, upon=known)
    assert policy_of(path) is OnUnknown.NULL


def test_an_epoch_under_way_is_refused_after_a_change(tmp_path: Path) -> None:
    """Its counters are those of the policy at its start."""
    path = tmp_path / "t"
    without_unknown(path, "fail")
    planned = plan(path, rows(2).schema, **UNCHANGED)
    table = planned.table()
    base = Snapshot(table.store, planned.write.base)
    commands = [planned.write.envelope.commands(b) for b in rows(2, "x").to_batches()]
    epoch = WriteSet(base=base, staged=(stage(base, iter(commands)),))
    write(path, rows(3, "x", "y"), **UNCHANGED, onUnknown="quarantine")
    with pytest.raises(ContentionError, match=r"onUnknown of .* became 'quarantine'"):
        table.commit(epoch)


@pytest.mark.parametrize("engine", ["partial-update", "aggregation"])
def test_an_engine_in_which_null_adds_nothing_shows_null(tmp_path: Path, engine: str) -> None:
    more = {**UNCHANGED, "mergeEngine": engine}
    for policy in ("fail", "quarantine"):
        with pytest.raises(OptionError, match=f"'onUnknown={policy}' and 'mergeEngine={engine}'"):
            write(tmp_path / "t", rows(1, "x"), **more, onUnknown=policy)
    for _ in range(2):
        write(tmp_path / "t", rows(1, "x"), **more, onUnknown="null")
    assert rows_of(tmp_path / "t") == [{"id": 1, "x": 1, "y": None}]


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(OptionError, match="one of fail, quarantine, null, found 'error'"):
        WriteOptions.parse({"path": "/t", "onUnknown": "error"})
