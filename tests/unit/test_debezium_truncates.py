"""Debezium's truncates: passed over, refused, or the end of all rows that came before them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from spark_upsert.errors import DataError, OptionError, OtherTableError
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.support.debezium import CREATE, OPTIONS, bare, event, image, key
from tests.support.envelopes import assert_sound, counters_of, plan, records, rows_of, write


def test_truncates_are_passed_over_if_an_option_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = [(key(1), bare(CREATE)), (None, bare(event("t", None, None, 2)))]
    for policy in ("fail", "quarantine"):
        path = tmp_path / policy
        commit = write(path, records(pairs), onTruncate="ignore", onError=policy, **OPTIONS)
        assert rows_of(path) == [image(1, "a")]
        assert (counters_of(commit).rows, counters_of(commit).skipped) == (2, 1)
        assert "truncates_ignored count=1" in caplog.text


def put(number: int, text: str, lsn: int) -> tuple[bytes | None, bytes | None]:
    return key(number), bare(event("c", None, image(number, text), lsn))


def truncate(lsn: int | None) -> tuple[bytes | None, bytes | None]:
    return None, bare(event("t", None, None, lsn))


EMPTYING = {**OPTIONS, "onTruncate": "overwrite", "tombstoneRetention": "0 epochs"}


def sound_rows(path: Path) -> list[dict[str, Any]]:
    assert_sound(path)
    assert Table.open(str(path)).check().is_sound
    return list(rows_of(path))


@pytest.mark.parametrize("policy", ["fail", "quarantine"])
def test_a_truncate_empties_the_table_of_what_came_before_it(tmp_path: Path, policy: str) -> None:
    path, options = tmp_path / "t", {**EMPTYING, "onError": policy}
    write(path, records([put(1, "a", 1), put(2, "b", 2)]), **options)
    # In one batch: before it a row that the table does not know, behind it two others.
    batch = [put(3, "c", 3), truncate(4), put(1, "d", 5), put(4, "e", 6)]
    write(path, records(batch, offsets=[2, 3, 4, 5]), **options)
    assert sound_rows(path) == [image(1, "d"), image(4, "e")]
    # What comes late is older than the truncate, and out.
    late = records([put(5, "f", 3), put(6, "g", 7)], offsets=[6, 7])
    assert counters_of(write(path, late, lateRows="reject", **options)).rejected == 1
    assert sound_rows(path) == [image(1, "d"), image(4, "e"), image(6, "g")]


def test_a_truncate_leaves_what_is_younger_and_may_be_repeated(tmp_path: Path) -> None:
    path = tmp_path / "t"
    batch = [put(1, "a", 1), put(2, "b", 9), truncate(5), truncate(3)]
    write(path, records(batch[:2]), **EMPTYING)
    for _ in range(2):
        write(path, records([truncate(5)], offsets=[2]), **EMPTYING)
        assert sound_rows(path) == [image(2, "b")]
    commits = Table.open(str(path)).log.commits(0, 3)
    assert [commit.kind.value for commit in commits] == ["create", "overwrite", "append"]
    # The whole topic again, under another name, and into a new table.
    for again in (path, tmp_path / "new"):
        write(again, records(batch), **EMPTYING)
        assert sound_rows(again) == [image(2, "b")]
    Table.open(str(path)).compact(full=True)
    assert rows_of(path) == [image(2, "b")]


def test_an_error_that_a_truncate_leaves_keeps_its_epoch(tmp_path: Path) -> None:
    path, options = tmp_path / "t", {**EMPTYING, "onError": "quarantine"}
    unknown = (key(2), bare(event("?", None, image(2, "b"), 9)))
    write(path, records([put(1, "a", 1)]), **options)
    write(path, records([unknown], offsets=[1]), **options)
    write(path, records([truncate(5), put(3, "c", 7)], offsets=[2, 3]), **options)
    assert sound_rows(path) == [image(3, "c")]
    [error] = [row for b in Table.open(str(path)).quarantine() for row in b.to_pylist()]
    assert (error["id"], error["_epoch"]) == (2, 1)


def test_a_batch_with_a_truncate_that_died_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, records([put(1, "a", 1), put(2, "b", 2)]), **EMPTYING)
    batch = records([put(3, "c", 3), truncate(4), put(4, "e", 6)], offsets=[2, 3, 4])
    with (
        patch.object(Log, "try_append", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        write(path, batch, **EMPTYING)
    assert sound_rows(path) == [image(1, "a"), image(2, "b")]
    write(path, batch, **EMPTYING)
    assert sound_rows(path) == [image(4, "e")]


def test_a_batch_that_is_refused_truncates_nothing(tmp_path: Path) -> None:
    """A checkpoint of another table, for example: earlier batches are missing."""
    path = tmp_path / "t"
    write(path, records([put(1, "a", 1)]), **EMPTYING)
    rows = records([truncate(4)], offsets=[2])
    planned = plan(path, rows.schema, **EMPTYING)
    base = Snapshot(planned.table().store, planned.write.base)
    staged = stage(base, [planned.write.envelope.commands(batch) for batch in rows.to_batches()])
    transaction = Transaction(writer="query:other", number=7, is_consecutive=True)
    with pytest.raises(OtherTableError, match="must hold all batches before it"):
        planned.table().commit(WriteSet(base=base, staged=(staged,), transactions=(transaction,)))
    assert sound_rows(path) == [image(1, "a")]


def test_a_truncate_that_cannot_be_placed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"op 't' \(truncate\) cannot be applied"):
        write(tmp_path / "t", records([truncate(None)]), **EMPTYING)
    unordered = {name: text for name, text in EMPTYING.items() if name != "sequenceBy"}
    with pytest.raises(OptionError, match="'onTruncate' expects 'error' or 'ignore'"):
        write(tmp_path / "u", records([truncate(1)]), **unordered)
    with pytest.raises(DataError, match="hold a truncate"):
        write(tmp_path / "v", records([truncate(1)]), lateRows="apply", **EMPTYING)
