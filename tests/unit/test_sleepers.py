"""Processes that sleep while the log is cut: they neither read nor commit into the past."""

from __future__ import annotations

import pytest

from spark_upsert.errors import ContentionError
from spark_upsert.store.records import encode
from spark_upsert.table.log import storage
from spark_upsert.table.log.codec import HINT_PATH, checkpoint_path, commit_path
from spark_upsert.table.log.manifest import Transaction
from tests.support.clocked import HOUR_S
from tests.support.lived import EVERY, MANY, Lived, body_of, dreamt
from tests.support.model import Command
from tests.support.tables import append, rows_at


@pytest.fixture(autouse=True)
def _many_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "CHECKPOINT_EVERY", EVERY)


def shorten(lived: Lived) -> None:
    """Go on until there are many versions, and cut the log."""
    lived.live(MANY - lived.version)
    lived.table.expire(retain_versions=3)
    lived.table.vacuum()


@pytest.mark.parametrize("seen", [0, 1, EVERY, 7], ids=lambda v: f"at version {v}")
def test_process_that_slept_through_a_cut_neither_reads_nor_writes_the_past(seen: int) -> None:
    lived = Lived(seen)
    reader, writer = lived.reopened(), lived.reopened()
    assert reader.log.head().version == writer.log.head().version == seen
    shorten(lived)
    assert reader.log.head() == lived.table.log.head()
    assert rows_at(reader) == lived.expected(MANY)
    commit = append(writer, [Command(1000, 1, 1)])
    assert commit is not None
    assert commit.version == MANY + 2
    assert rows_at(lived.reopened()) == {**lived.expected(MANY), 1000: 1}


@pytest.mark.parametrize("seen", [0, 1, EVERY, 7], ids=lambda v: f"at version {v}")
@pytest.mark.sweep(1)
def test_writer_that_sleeps_before_its_put_is_committed_once(seen: int) -> None:
    """Its put hits the name of a removed version. The files are too old by then, so it is told."""
    lived, sleeper = dreamt(seen, before=True)
    transaction = Transaction(writer="w", number=1)
    with pytest.raises(ContentionError, match="Nothing was committed"):
        append(sleeper, [Command(1000, 1, 1)], transaction=transaction)
    assert rows_at(lived.reopened()) == lived.expected(MANY)
    assert append(sleeper, [Command(1000, 1, 1)], transaction=transaction) is not None
    assert append(sleeper, [Command(1000, 1, 1)], transaction=transaction) is None
    assert rows_at(lived.reopened()) == {**lived.expected(MANY), 1000: 1}
    assert lived.reopened().check().is_sound


def test_writer_that_sleeps_behind_its_put_knows_that_it_is_committed() -> None:
    lived, sleeper = dreamt(7, before=False)
    transaction = Transaction(writer="w", number=1)
    commit = append(sleeper, [Command(1000, 1, 1)], transaction=transaction)
    assert commit is not None
    assert commit.version == 8
    assert rows_at(lived.reopened())[1000] == 1
    assert lived.reopened().check().is_sound


@pytest.mark.parametrize("before", [True, False], ids=["before its put", "behind its put"])
def test_sleeper_without_a_transaction_is_told_that_nobody_knows(before: bool) -> None:
    _, sleeper = dreamt(7, before=before)
    with pytest.raises(ContentionError, match="cannot be told"):
        append(sleeper, [Command(1000, 1, 1)])


def test_stray_commit_of_a_sleeper_fools_nobody() -> None:
    """Another sleeper knows the version before it; the next cut removes it."""
    lived = Lived(6)
    other, same = lived.reopened(), lived.reopened()
    other.log.head()
    lived.live()
    same.log.head()
    shorten(lived)
    for version in (7, 8):
        record = {**body_of(lived.store, MANY), "version": version, "token": "stray"}
        lived.store.put_if_absent(commit_path(version), encode(record))
    for sleeper in (other, same, lived.reopened()):
        assert sleeper.log.head().version == MANY + 1
    lived.now.advance(2 * HOUR_S)
    assert set(lived.table.vacuum().log) == {commit_path(7), commit_path(8)}


def test_late_checkpoint_of_a_sleeper_fools_nobody() -> None:
    lived = Lived(MANY)
    checkpoint = lived.store.read(checkpoint_path(EVERY))
    shorten(lived)
    lived.store.put(checkpoint_path(EVERY), checkpoint)
    lived.store.put(HINT_PATH, encode({"version": EVERY}))
    assert lived.reopened().log.head().version == MANY + 1
