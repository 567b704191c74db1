"""Batches of whole transactions from messages as a server sent them, without a server."""

from __future__ import annotations

import select
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from spark_upsert.errors import DataLossError, StorageError
from spark_upsert.postgres import feed as feed_module
from spark_upsert.postgres.feed import BatchEnd, BatchLimits, Receiver, TransactionFeed
from spark_upsert.postgres.messages import COMMIT, HEADER_BYTES, TableChanges, identity_of
from tests.support.clocked import Now
from tests.support.pgoutput import load

MESSAGES = load()["one key in one transaction, and in three"]
"""Five transactions: of three rows, of one row each, and one without rows."""

ENDS = [
    int.from_bytes(message[HEADER_BYTES + 10 : HEADER_BYTES + 18], "big")
    for message in MESSAGES
    if message[HEADER_BYTES] == COMMIT
]
START = 1000


def keepalive(lsn: int, *, asks: bool = False) -> bytes:
    return struct.pack(">cQQ?", b"k", lsn, 0, asks)


class Server:
    """A connection on which messages have arrived."""

    def __init__(self, messages: Sequence[bytes], *, ends: bool = False) -> None:
        self._messages = deque(messages)
        self._ends = ends
        self.confirmed: list[int] = []
        self.questions = 0
        self.started: tuple[Any, ...] = ()
        self.is_closed = False

    def start(self, *given: Any) -> None:
        self.started = given

    def receive(self) -> bytes | None:
        if self._messages:
            return self._messages.popleft()
        if self._ends:
            raise StorageError("the server has closed the connection")
        return None

    def wait(self, seconds: float, *others: int, reads: bool = True) -> None:
        if not (reads and self._messages):
            select.select(list(others), [], [], seconds)

    def confirm(self, lsn: int, *, asks: bool = False) -> None:
        self.confirmed.append(lsn)
        if asks:
            self.questions += 1
            self._messages.append(keepalive(ENDS[-1]))

    def close(self) -> None:
        self.is_closed = True


@contextmanager
def feed_of(server: Server) -> Iterator[TransactionFeed]:
    feed = TransactionFeed(server, "s", "p", START, identity_of, START)  # type: ignore[arg-type]
    try:
        yield feed
    finally:
        feed.close()
    assert server.is_closed
    assert server.started == ("s", "p", START)


def read(feed: TransactionFeed, **limits: Any) -> tuple[BatchEnd | None, int]:
    """Return a batch's end and its number of rows."""
    tables: list[TableChanges] = []
    end = feed.read(tables.extend, BatchLimits(**{"idle_s": 9.0, **limits}))
    return end, sum(table.rows.num_rows for table in tables)


@pytest.mark.parametrize(
    ("rows_max", "expected"),
    [
        (1, [(0, 3), (1, 1), (2, 1), (3, 1), (4, 0)]),
        (7, [(1, 4), (4, 2)]),
        (18, [(4, 6)]),
    ],
)
def test_a_batch_ends_at_the_first_commit_with_enough_rows(
    rows_max: int, expected: list[tuple[int, int]]
) -> None:
    with feed_of(Server(MESSAGES)) as feed:
        lower = START
        for index, count in expected:
            end, rows = read(feed, rows_max=rows_max, delay_s=9.0)
            assert end is not None
            assert (end.lower, end.upper, rows) == (lower, ENDS[index], count)
            lower = feed.position = end.upper
        assert read(feed, until=ENDS[-1]) == (None, 0)
        assert feed.idle_position == ENDS[-1]


@pytest.mark.parametrize("buffer_bytes", [1, 300])
def test_a_transaction_larger_than_the_buffer_is_not_divided(
    monkeypatch: pytest.MonkeyPatch, buffer_bytes: int
) -> None:
    monkeypatch.setattr(feed_module, "BUFFER_BYTES", buffer_bytes)
    with feed_of(Server(MESSAGES)) as feed:
        end, rows = read(feed)
        assert end is not None
        assert (end.upper, rows, end.transaction_count) == (ENDS[0], 3, 1)


def test_a_batch_is_read_again_up_to_its_end_and_nowhere_else() -> None:
    with feed_of(Server(MESSAGES)) as feed:
        end, rows = read(feed, exactly=ENDS[2])
        assert end is not None
        assert (end.upper, rows, end.transaction_count) == (ENDS[2], 5, 3)
    for wrong in (ENDS[2] - 1, ENDS[-1] - 1):
        with feed_of(Server(MESSAGES)) as feed, pytest.raises(DataLossError, match="read again"):
            read(feed, exactly=wrong)


def test_a_logical_message_ends_the_batch() -> None:
    first = next(i for i, message in enumerate(MESSAGES) if message[HEADER_BYTES] == COMMIT)
    header = MESSAGES[0][:HEADER_BYTES]
    body = b"M\1" + bytes(8) + b"upsertflow\0" + struct.pack(">I", 3) + b"cut"
    messages = [*MESSAGES[:first], header + body, *MESSAGES[first:]]
    with feed_of(Server(messages)) as feed:
        end, _ = read(feed, rows_max=10**6, delay_s=9.0)
        assert end is not None
        assert end.upper == ENDS[0]


def test_transactions_that_arrive_one_by_one_are_decoded_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Trickle(Server):
        may_send = False

        def receive(self) -> bytes | None:
            message = super().receive() if self.may_send else None
            self.may_send &= message is not None and message[HEADER_BYTES] != COMMIT
            return message

    server = Trickle(MESSAGES)
    wait = Receiver.wait

    def next_transaction(*given: Any, **how: Any) -> None:
        server.may_send = True
        wait(*given, **how)

    monkeypatch.setattr(Receiver, "wait", next_transaction)
    pieces: list[int] = []
    with feed_of(server) as feed:
        limits = BatchLimits(rows_max=18, delay_s=9.0)
        end = feed.read(lambda tables: pieces.append(len(tables)), limits)
    assert end is not None
    assert (end.upper, pieces) == (ENDS[-1], [1])


def test_the_delay_begins_when_a_transaction_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Now()
    monkeypatch.setattr(feed_module, "time", SimpleNamespace(monotonic=now))
    with feed_of(Server(MESSAGES, ends=True)) as feed:
        end, _ = read(feed, rows_max=15, delay_s=9.0)
        assert end is not None
        assert end.upper == ENDS[3]
        now.advance(9.0)  # The last transaction waits meanwhile.
        end, _ = read(feed, rows_max=15, delay_s=9.0)
        assert end is not None
        assert end.upper == ENDS[4]


def test_a_lost_connection_is_told_after_what_came_before_it() -> None:
    with feed_of(Server(MESSAGES[:-1], ends=True)) as feed:
        end, rows = read(feed, rows_max=15, delay_s=9.0)
        assert end is not None
        assert (end.upper, rows) == (ENDS[3], 6)
        with pytest.raises(StorageError, match="closed the connection"):
            read(feed)
        assert feed.position == ENDS[3]


def test_only_a_question_of_the_server_is_answered_at_once() -> None:
    many = [keepalive(START + number) for number in range(500)]
    server = Server([*many, keepalive(START + 500, asks=True)])
    with feed_of(server) as feed:
        # The question also ends the wait: the server may be about to stop.
        assert read(feed) == (None, 0)
        assert feed.idle_position == START + 500
        feed.confirm(START + 500)
    assert server.confirmed[0] == START
    assert server.confirmed[-1] == START + 500
    assert len(server.confirmed) < 9


def test_the_idle_position_is_no_further_than_what_was_read() -> None:
    with feed_of(Server([*MESSAGES, keepalive(ENDS[-1] + 50)])) as feed:
        end, _ = read(feed, rows_max=1)
        assert end is not None
        assert feed.idle_position == feed.position == ENDS[0]
        read(feed, rows_max=1000)
        assert feed.idle_position == ENDS[-1] + 50
        feed.skip_to_idle()
        assert feed.position == ENDS[-1] + 50
