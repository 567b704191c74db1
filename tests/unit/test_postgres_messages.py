"""Messages of PostgreSQL as a server sent them once, decoded by columns."""

from __future__ import annotations

import numpy as np
import pytest

from spark_upsert.postgres.messages import COMMIT, HEADER_BYTES, MessageDecoder
from tests.support.pgoutput import CASES, Recorded, check, flat, load, read

MESSAGES = load()


def test_each_case_is_recorded() -> None:
    assert sorted(MESSAGES) == sorted(case.name for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_messages_become_the_changes_of_the_case(case: Recorded) -> None:
    check(case, read(MESSAGES[case.name]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pieces_of_any_length_decode_to_the_same(case: Recorded) -> None:
    messages = MESSAGES[case.name]
    check(case, read(messages, range(1, len(messages))))
    check(case, read(messages, [len(messages) // 2]))


def test_a_transaction_has_its_place_in_the_log() -> None:
    messages = MESSAGES["what is rolled back"]
    first, last = read(messages)[0].transactions, read(messages, [3])[1].transactions
    # The second transaction is the one that ends the recording.
    assert len(first.end_lsn) == 2
    assert (first.commit_lsn < first.end_lsn).all()
    assert (np.diff(first.end_lsn) > 0).all()
    assert first.end_lsn.tolist() == last.end_lsn.tolist()
    assert first.xid.tolist() == last.xid.tolist()
    assert (first.committed_us // 1_000_000 > 1_700_000_000).all()


def test_rows_know_their_transaction() -> None:
    [decoded] = read(MESSAGES["one key in one transaction, and in three"])
    [table] = decoded.tables
    by_commit = dict(
        zip(
            decoded.transactions.commit_lsn.tolist(),
            decoded.transactions.xid.tolist(),
            strict=True,
        )
    )
    lsns = table.rows["_commit_lsn"].to_pylist()
    assert table.rows["_xid"].to_pylist() == [by_commit[lsn] for lsn in lsns]


def test_a_moved_row_names_its_delete() -> None:
    [decoded] = read(MESSAGES["keys that move, with a long value and in a chain"])
    [table] = decoded.tables
    rows = table.rows.to_pylist()
    moves = {
        rows[int(deleted)]["id"]: rows[index]["id"]
        for index, deleted in enumerate(table.moved_from)
        if deleted >= 0
    }
    assert moves == {1: 2, 2: 3, 3: 4}


def test_a_logical_message_is_a_mark() -> None:
    [decoded] = read(MESSAGES["what is rolled back"])
    assert decoded.marks == (("test", b"end of the case"),)


def test_nothing_decodes_to_nothing() -> None:
    decoded = MessageDecoder().decode(())
    assert not flat([decoded])
    assert not len(decoded.transactions.xid)


def test_a_second_description_of_the_same_columns_makes_no_second_table() -> None:
    messages = MESSAGES["one key in one transaction, and in three"]
    end = next(i for i, message in enumerate(messages) if message[HEADER_BYTES] == COMMIT) + 1
    [decoded] = read(messages[:end] + messages)
    assert len(decoded.tables) == 1
