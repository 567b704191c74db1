"""The stream of committed transactions (`TransactionFeed`), in batches of whole transactions.

A position is a log position p: all transactions whose commit ends at or before p. A batch
(lower, upper] ends where a transaction ends, so its contents depend on the two positions alone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from spark_upsert.core.lsn import format_lsn
from spark_upsert.errors import DataLossError
from spark_upsert.postgres.connection import (
    ReplicationConnection,
    is_data,
    is_reply_wanted,
    keepalive_lsn,
)
from spark_upsert.postgres.messages import (
    COMMIT,
    HEADER_BYTES,
    MESSAGE,
    LoggedTable,
    MessageDecoder,
    TableChanges,
    Transactions,
)

BUFFER_BYTES = 8 << 20
"""Messages held. The rest waits in the server."""

_REPLY_SECONDS = 0.5
"""Longest time between two replies. Shorter than any usual ``wal_sender_timeout``."""

_ASK_SECONDS = 0.2
"""Pause between two questions for the position that the server has reached."""

_CUT = b"upsertflow\0" + len(b"cut").to_bytes(4, "big") + b"cut"
"""The end of a logical message that asks for the end of a batch:
``pg_logical_emit_message(true, 'upsertflow', 'cut')``."""

_END_LSN = slice(HEADER_BYTES + 10, HEADER_BYTES + 18)
"""In a commit message: the end of the commit record."""


class LoggedCommit(NamedTuple):
    """A transaction's end in a sequence of messages."""

    message_count: int
    """Messages up to it."""
    lsn: int
    """The position after it."""
    is_cut: bool
    """Whether the transaction asks for the end of the batch."""
    arrived: float = 0.0
    """When it arrived, by the monotonic clock."""


class Receiver:
    """Receives messages in a thread of its own, which also answers the server.

    The thread reports the position confirmed last, twice a second and when the server asks, also
    while nobody takes messages: a server without replies ends the connection.

    Parameters
    ----------
    connection : ReplicationConnection
        Started; used by this thread alone from now on.
    position : int
        `reached` begins there.
    confirmed : int
        A durable position.
    """

    def __init__(self, connection: ReplicationConnection, position: int, confirmed: int) -> None:
        self._connection = connection
        self.reached = position
        self._confirmed = confirmed
        self._state = threading.Condition()
        self._messages: list[bytes] = []
        self._bytes = self.arrivals = 0
        self._error: Exception | None = None
        self._is_cut = self._asks = self._is_closing = False
        self.commits: list[LoggedCommit] = []
        """Those of the messages held."""
        self.has_cut = False
        """Whether one of these commits asks for the end of the batch."""
        self.is_asked = False
        """Whether the server waits for the confirmation of what it has sent, as before it stops."""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._thread = threading.Thread(target=self._run, name="upsertflow-postgres", daemon=True)
        self._thread.start()

    @property
    def idle_lsn(self) -> int:
        """A position before which the server has no further transaction; 0 if messages wait."""
        with self._state:
            return 0 if self._messages else self.reached

    @property
    def message_count(self) -> int:
        """Messages held."""
        return len(self._messages)

    @property
    def is_full(self) -> bool:
        """Whether no more messages are received until some are taken."""
        return self._bytes >= BUFFER_BYTES

    def wait(self, seconds: float, seen: int, *, asks: bool) -> None:
        """Wait for other `arrivals` than ``seen``; raise the error that has ended the connection.

        ``asks``: the server tells what it has reached, in a keepalive.
        """
        if asks:
            self._asks = True
            self._wake()
        with self._state:
            self._state.wait_for(lambda: self.arrivals != seen or self._error, seconds)
            if self._error is not None and self.arrivals == seen:
                raise self._error

    def take(self, count: int) -> list[bytes]:
        """Remove and return the first messages."""
        with self._state:
            taken, self._messages = self._messages[:count], self._messages[count:]
            self._bytes -= sum(map(len, taken))
            later = [commit for commit in self.commits if commit.message_count > count]
            self.commits = _moved(later, -count)
            self.has_cut = any(commit.is_cut for commit in later)
        self._wake()
        return taken

    def confirm(self, lsn: int) -> None:
        """Report a durable position to the server, soon."""
        self._confirmed = max(self._confirmed, lsn)
        self._wake()

    def end_wait(self) -> None:
        """End a wait for messages in another thread, as if the server had asked."""
        with self._state:
            self.is_asked = True
            self.arrivals += 1
            self._state.notify_all()

    def close(self) -> None:
        """Report the last position, and end the connection."""
        self._is_closing = True
        self._wake()
        self._thread.join()
        self._connection.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # A full pipe wakes, too.
            os.write(self._wake_write, b"w")

    def _run(self) -> None:
        try:
            self._receive()
        except Exception as error:  # noqa: BLE001 - raised by `wait`
            with self._state:
                self._error = error
                self._state.notify_all()

    def _receive(self) -> None:
        replied = (-1, 0.0)
        while not self._is_closing:
            is_asked = self._drain()
            asks, self._asks = self._asks, False
            now = time.monotonic()
            is_due = now - replied[1] > _REPLY_SECONDS
            if asks or is_asked or is_due or replied[0] != self._confirmed:
                replied = (self._confirmed, now)
                self._connection.confirm(replied[0], asks=asks)
            self._connection.wait(_REPLY_SECONDS, self._wake_read, reads=not self.is_full)
            with suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
        self._connection.confirm(self._confirmed)

    def _drain(self) -> bool:
        """Take what has arrived; return whether the server asks for a reply.

        Other keepalives need none: the server would send the next one at once.
        """
        messages: list[bytes] = []
        commits: list[LoggedCommit] = []
        size = reached = 0
        is_asked = False
        try:
            while self._bytes + size < BUFFER_BYTES:
                message = self._connection.receive()
                if message is None:
                    break
                if not is_data(message):
                    reached = keepalive_lsn(message)
                    is_asked |= is_reply_wanted(message)
                    continue
                messages.append(message)
                size += len(message)
                kind = message[HEADER_BYTES]
                if kind == COMMIT:
                    reached = int.from_bytes(message[_END_LSN], "big")
                    now = time.monotonic()
                    commits.append(LoggedCommit(len(messages), reached, self._is_cut, now))
                    self._is_cut = False
                elif kind == MESSAGE:
                    self._is_cut |= message.endswith(_CUT)
        finally:  # Also what came before the end of the connection.
            if messages or reached:
                self._add(messages, commits, size, reached, is_asked=is_asked)
        return is_asked

    def _add(
        self,
        messages: list[bytes],
        commits: list[LoggedCommit],
        size: int,
        reached: int,
        *,
        is_asked: bool,
    ) -> None:
        with self._state:
            self.commits += _moved(commits, len(self._messages))
            self.has_cut |= any(commit.is_cut for commit in commits)
            self._messages += messages
            self._bytes += size
            # A keepalive comes in the order of the log: all before it has arrived.
            self.reached = max(self.reached, reached)
            self.is_asked |= is_asked
            self.arrivals += 1
            self._state.notify_all()


def _moved(commits: Sequence[LoggedCommit], count: int) -> list[LoggedCommit]:
    """Return commits for messages that begin ``count`` later."""
    return [commit._replace(message_count=commit.message_count + count) for commit in commits]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEnd:
    """A batch, received completely."""

    lower: int
    """The position that it follows; exclusive."""
    upper: int
    """The position after it: where its last transaction ends."""
    transaction_count: int
    committed_us: int
    """When the last transaction was committed, in microseconds since 1970."""
    is_cut: bool = False
    """Whether its last transaction asks for the end of the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Where a batch ends."""

    rows_max: int = 1
    """At the first commit at or after so many messages."""
    delay_s: float = 0.0
    """So long after the arrival of its first transaction."""
    idle_s: float = 10.0
    """There is no batch if no transaction comes for so long."""
    until: int | None = None
    """Without waiting, once everything up to this position was read."""
    exactly: int | None = None
    """At this position and nowhere else: a batch that is read again."""


@dataclass(slots=True)
class _Batch:
    """A batch while it is read."""

    began: float
    """When its first transaction arrived; before that, when the wait for it began."""
    upper: int = 0
    """The end of its last transaction so far; 0 without one."""
    committed_us: int = 0
    transaction_count: int = 0
    message_count: int = 0
    is_open: bool = False
    """Whether its messages end within a transaction."""
    is_cut: bool = False
    """Whether its last transaction asks for the end of the batch."""

    @property
    def is_whole(self) -> bool:
        return self.upper > 0 and not self.is_open

    @property
    def seconds(self) -> float:
        """Seconds since it was begun."""
        return time.monotonic() - self.began

    def extend(self, cut: LoggedCommit, transactions: Transactions) -> None:
        """Add messages up to a commit, or (without a position) a part of a transaction."""
        self.message_count += cut.message_count
        self.is_open = not cut.lsn
        if cut.lsn:
            self.upper, self.is_cut = cut.lsn, cut.is_cut
            self.transaction_count += len(transactions.xid)
            self.committed_us = int(transactions.committed_us[-1])


class TransactionFeed:
    """Reads a slot's transactions from a position on. To be closed.

    Parameters
    ----------
    connection : ReplicationConnection
        Closed with the feed.
    slot, publication : str
    position : int
        Where the batch before ended.
    keys_of : callable
        Returns a table's key columns (`MessageDecoder`).
    confirmed : int
        A durable position, at most ``position`` unless nothing lies between.
    """

    def __init__(
        self,
        connection: ReplicationConnection,
        slot: str,
        publication: str,
        position: int,
        keys_of: Callable[[LoggedTable], tuple[str, ...]],
        confirmed: int,
    ) -> None:
        try:
            connection.start(slot, publication, position)
        except BaseException:
            connection.close()
            raise
        self.position = position
        """The end of the last complete batch."""
        self._receiver = Receiver(connection, position, confirmed)
        self._decoder = MessageDecoder(keys_of)

    def close(self) -> None:
        """Close the connection; the slot remains."""
        self._receiver.close()

    @property
    def idle_position(self) -> int:
        """A position up to which nothing is left to read, for `confirm`; at least `position`."""
        return max(self.position, self._receiver.idle_lsn)

    def skip_to_idle(self) -> None:
        """Move the position to `idle_position`: no transaction lies between."""
        self.position = self.idle_position

    def wake(self) -> None:
        """Let a `read` in another thread return if no transaction has arrived."""
        self._receiver.end_wait()

    def confirm(self, lsn: int) -> None:
        """Tell the server that everything up to a position is durable: it may remove that log."""
        self._receiver.confirm(lsn)

    def read(
        self, add: Callable[[Sequence[TableChanges]], None], limits: BatchLimits
    ) -> BatchEnd | None:
        """Read the next batch; None if there is none within the limits.

        Parameters
        ----------
        add : callable
            Receives the changes as they are decoded, in pieces. A batch that fails has added some.
        limits : BatchLimits

        Raises
        ------
        DataLossError
            The batch cannot be read again.
        StorageError
            The connection was lost. A new feed from `position` reads the batch again.
        """
        receiver, batch = self._receiver, _Batch(time.monotonic())
        asks = limits.until is not None or limits.exactly is not None
        while True:
            seen = receiver.arrivals
            if not batch.message_count and receiver.commits:
                batch.began = receiver.commits[0].arrived
            if self._is_complete(batch, limits):
                break
            cut = self._cut(batch, limits)
            if cut is None:
                has_any = batch.is_whole or receiver.commits
                rest = (limits.delay_s if has_any else limits.idle_s) - batch.seconds
                receiver.wait(min(rest, _ASK_SECONDS) if asks else rest, seen, asks=asks)
                continue
            changes = self._decoder.decode(receiver.take(cut.message_count))
            add(changes.tables)
            batch.extend(cut, changes.transactions)
        if not batch.upper:
            receiver.is_asked = False  # The caller confirms what it can.
            return None
        lower, self.position = self.position, batch.upper
        return BatchEnd(
            lower=lower,
            upper=batch.upper,
            transaction_count=batch.transaction_count,
            committed_us=batch.committed_us,
            is_cut=batch.is_cut,
        )

    def _is_complete(self, batch: _Batch, limits: BatchLimits) -> bool:
        """Return whether a batch ends here."""
        receiver, exactly = self._receiver, limits.exactly
        if batch.is_open:
            return False
        if exactly is not None:
            following = receiver.commits[0].lsn if receiver.commits else receiver.idle_lsn
            if batch.upper != exactly and following > exactly:
                raise DataLossError(
                    f"the batch that ends at {format_lsn(exactly)} cannot be read again: the slot "
                    "has no transaction that ends there.",
                    hint="was the database restored from a backup, or does the slot belong to "
                    "another publication? Start again with --resnapshot.",
                )
            return batch.upper == exactly
        if batch.is_whole and (batch.is_cut or batch.message_count >= limits.rows_max):
            return True
        if limits.until is not None and receiver.idle_lsn >= limits.until:
            return True
        if batch.is_whole:
            return batch.seconds >= limits.delay_s
        return not receiver.commits and (receiver.is_asked or batch.seconds >= limits.idle_s)

    def _cut(self, batch: _Batch, limits: BatchLimits) -> LoggedCommit | None:
        """Return the commit up to which messages are decoded next; None to wait.

        This is the first one that ends a batch, by the number of rows or by a request in it. If the
        batch ends by time or the buffer is full, the last one: decoding small pieces costs more.
        Without a commit, the end of a full buffer: a part of a large transaction.
        """
        receiver = self._receiver
        commits, is_full = receiver.commits, receiver.is_full
        if limits.exactly is not None:
            commits = [commit for commit in commits if commit.lsn <= limits.exactly]
            return commits[-1] if commits else self._part() if is_full else None
        wanted = limits.rows_max - batch.message_count
        if commits and (receiver.has_cut or commits[-1].message_count >= wanted):
            for commit in commits:
                if commit.is_cut or commit.message_count >= wanted:
                    return commit
        is_read = limits.until is not None and receiver.reached >= limits.until
        if commits and (is_full or is_read or batch.seconds >= limits.delay_s):
            return commits[-1]
        return self._part() if is_full else None

    def _part(self) -> LoggedCommit:
        return LoggedCommit(self._receiver.message_count, 0, False)
