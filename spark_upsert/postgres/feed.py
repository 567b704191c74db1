"""The stream of committed transactions (`TransactionFeed`), cut into batches of whole transactions.

A position is a log position p: all transactions whose commit ends at or before p. A batch
(from, to] ends where a transaction ends, so its contents depend on the two positions alone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Self

from spark_upsert.errors import DataLossError
from spark_upsert.postgres.connection import (
    ReplicationConnection,
    format_lsn,
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
    identity_of,
)

BUFFER_BYTES = 16 << 20
"""Messages held that nobody has taken. The rest waits in the server."""

_WAIT_SECONDS_MIN = 0.01

_ASK_SECONDS = 0.2
"""Pause between two questions for the position that the server has reached."""

_REPLY_SECONDS = 0.5
"""Longest time between two replies. Shorter than any usual ``wal_sender_timeout``."""

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


class Received(NamedTuple):
    """Messages in the order of the log."""

    messages: list[bytes]
    commits: list[LoggedCommit]
    reached: int
    """A log position before which the server has no further transaction for us."""
    is_asked: bool
    """Whether the server waits for the confirmation of what it has sent, as before it stops."""


class Receiver:
    """Receives messages in a thread of its own, which also answers the server.

    The thread answers every keepalive with the position confirmed last, also while nobody takes
    messages: a server without answers ends the connection.

    Parameters
    ----------
    connection : ReplicationConnection
        Started; used by this thread alone from now on.
    confirmed : int
        A durable position.
    """

    def __init__(self, connection: ReplicationConnection, confirmed: int) -> None:
        self._connection = connection
        self._confirmed = confirmed
        self._state = threading.Condition()
        self._messages: list[bytes] = []
        self._commits: list[LoggedCommit] = []
        self._bytes = 0
        self._reached = 0
        self._is_cut = self._is_asked = self._asks = False
        self._error: Exception | None = None
        self._is_closing = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._thread = threading.Thread(target=self._run, name="upsertflow-postgres", daemon=True)
        self._thread.start()

    def take(self, seconds: float, reached: int) -> Received:
        """Return everything received, waiting for a first message or a position after ``reached``.

        After ``seconds``, returns nothing.

        Raises the connection's error after all messages before it were taken.
        """
        with self._state:
            self._state.wait_for(lambda: self._messages or self._error or self._is_asked, seconds)
            if not self._messages and self._error is not None:
                raise self._error
            received = Received(self._messages, self._commits, self._reached, self._is_asked)
            self._messages, self._commits, self._bytes = [], [], 0
            self._is_asked = False
        self._wake()
        return received

    def confirm(self, lsn: int) -> None:
        """Report a durable position to the server, soon."""
        self._confirmed = max(self._confirmed, lsn)
        self._wake()

    def ask(self) -> None:
        """Ask the server what it has reached, without waiting for the answer."""
        self._asks = True
        self._wake()

    def close(self) -> None:
        """Report the last position, and end the connection."""
        self._is_closing = True
        self._wake()
        self._thread.join()
        self._connection.close()
        for file in (self._wake_read, self._wake_write):
            with suppress(OSError):
                os.close(file)

    def _wake(self) -> None:
        with suppress(OSError):  # A full pipe wakes, too.
            os.write(self._wake_write, b"w")

    def _run(self) -> None:
        try:
            self._receive()
        except Exception as error:  # noqa: BLE001 - raised by `take`
            with self._state:
                self._error = error
                self._state.notify_all()

    def _receive(self) -> None:
        replied = (-1, 0.0)
        while not self._is_closing:
            is_asked = self._drain()
            now = time.monotonic()
            asks, self._asks = self._asks, False
            if (
                asks
                or is_asked
                or replied[0] != self._confirmed
                or now - replied[1] > _REPLY_SECONDS
            ):
                replied = (self._confirmed, now)
                self._connection.confirm(replied[0], asks=asks)
            if self._bytes < BUFFER_BYTES:
                self._connection.wait(_REPLY_SECONDS, self._wake_read)
            else:
                with self._state:
                    self._state.wait_for(lambda: self._bytes < BUFFER_BYTES, _REPLY_SECONDS)
            self._clear_wake()
        self._connection.confirm(self._confirmed)

    def _clear_wake(self) -> None:
        os.set_blocking(self._wake_read, False)
        with suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def _drain(self) -> bool:
        """Take what has arrived; return whether the server waits for an answer."""
        messages: list[bytes] = []
        commits: list[LoggedCommit] = []
        size = reached = 0
        is_asked = False
        while self._bytes + size < BUFFER_BYTES:
            message = self._connection.receive()
            if message is None:
                break
            if is_data(message):
                messages.append(message)
                size += len(message)
                kind = message[HEADER_BYTES]
                if kind == COMMIT:
                    end = int.from_bytes(message[_END_LSN], "big")
                    commits.append(LoggedCommit(len(messages), end, self._is_cut))
                    self._is_cut = False
                elif kind == MESSAGE:
                    self._is_cut |= message.endswith(_CUT)
            else:
                reached = keepalive_lsn(message)
                is_asked |= is_reply_wanted(message)
        if messages or reached:
            with self._state:
                before = len(self._messages)
                self._messages += messages
                self._commits += _moved(commits, before)
                self._bytes += size
                # A keepalive comes in the order of the log: all before it has arrived.
                self._reached = max(self._reached, reached)
                self._is_asked |= is_asked
                self._state.notify_all()
        return reached > 0


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


@dataclass(slots=True)
class _Batch:
    """A batch while it is read."""

    lower: int
    upper: int = 0
    """The end of its last transaction so far; 0 without one."""
    committed_us: int = 0
    transaction_count: int = 0
    message_count: int = 0
    is_open: bool = False
    """Whether its messages end within a transaction."""
    is_cut: bool = False
    """Whether its last transaction asks for the end of the batch."""
    began: float = field(default_factory=time.monotonic)

    @property
    def is_whole(self) -> bool:
        return self.upper > 0 and not self.is_open

    @property
    def seconds(self) -> float:
        """Seconds since it was begun."""
        return time.monotonic() - self.began

    def extend(self, cut: LoggedCommit, transactions: Transactions) -> None:
        """Add messages up to a commit, or (without a position) a part of a transaction."""
        if not self.message_count:
            self.began = time.monotonic()
        self.message_count += cut.message_count
        self.is_open = not cut.lsn
        if cut.lsn:
            self.upper, self.is_cut = cut.lsn, cut.is_cut
            self.transaction_count += len(transactions.xid)
            self.committed_us = int(transactions.committed_us[-1])


class TransactionFeed:
    """Reads a slot's transactions from a position on.

    A context manager: closes the connection.

    Parameters
    ----------
    connect : callable
        Returns a new replication connection; called again after a lost connection.
    slot, publication : str
    position : int
        Where the batch before ended.
    keys_of : callable
        Returns a table's key columns (`MessageDecoder`).
    """

    def __init__(
        self,
        connect: Callable[[], ReplicationConnection],
        slot: str,
        publication: str,
        position: int,
        keys_of: Callable[[LoggedTable], tuple[str, ...]] = identity_of,
    ) -> None:
        self._new_connection = connect
        self._slot = slot
        self._publication = publication
        self._keys_of = keys_of
        self.position = position
        """The end of the last complete batch."""
        self._reached = position
        self._is_asked = False
        self._receiver: Receiver | None = None
        self.connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the slot remains."""
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    def connect(self) -> None:
        """Connect, again after a lost connection, and read from `position` on."""
        self.close()
        connection = self._new_connection()
        try:
            connection.start(self._slot, self._publication, self.position)
        except BaseException:
            connection.close()
            raise
        self._receiver = Receiver(connection, self.position)
        self._decoder = MessageDecoder(self._keys_of)
        self._pending: list[bytes] = []
        self._commits: list[LoggedCommit] = []

    @property
    def idle_position(self) -> int:
        """A position up to which nothing is left to read, for `confirm`; at least `position`."""
        is_idle = not self._pending and self._reached > self.position
        return self._reached if is_idle else self.position

    def skip_to_idle(self) -> None:
        """Move the position to `idle_position`: no transaction lies between."""
        self.position = self.idle_position

    def confirm(self, lsn: int) -> None:
        """Tell the server that everything up to a position is durable: it may remove that log."""
        if self._receiver is not None:
            self._receiver.confirm(lsn)

    def read(
        self,
        add: Callable[[Sequence[TableChanges]], None],
        *,
        rows_max: int,
        delay_s: float,
        until: int | None = None,
        exactly: int | None = None,
        idle_s: float = 10.0,
    ) -> BatchEnd | None:
        """Read the next batch; None if there was no transaction for ``idle_s``.

        Parameters
        ----------
        add : callable
            Receives the changes as they are decoded, in pieces. A batch that fails has added some.
        rows_max : int
            The batch ends at the first commit at or after so many messages.
        delay_s : float
            How long the first transaction waits for others.
        until : int, optional
            Return without waiting once everything up to this position was read.
        exactly : int, optional
            The batch must end at this position (a batch that is read again).

        Raises
        ------
        DataLossError
            ``exactly`` is not where a transaction ends.
        StorageError
            The connection was lost. Call `connect`, and read the batch again.
        """
        assert self._receiver is not None
        batch = _Batch(self.position)
        self._is_asked = False
        while not self._is_complete(batch, rows_max, delay_s, until, exactly, idle_s):
            cut = self._cut(rows_max - batch.message_count, exactly)
            if cut is None and sum(map(len, self._pending)) >= BUFFER_BYTES:
                cut = LoggedCommit(len(self._pending), 0, False)  # A part of a large transaction.
            if cut is None:
                limit = delay_s if batch.is_whole else idle_s
                if until is not None or exactly is not None:
                    self._receiver.ask()
                    limit = min(limit, batch.seconds + _ASK_SECONDS)
                self._take(max(_WAIT_SECONDS_MIN, limit - batch.seconds))
                continue
            changes = self._decoder.decode(self._pending[: cut.message_count])
            self._pending = self._pending[cut.message_count :]
            later = [commit for commit in self._commits if commit > cut]
            self._commits = _moved(later, -cut.message_count)
            add(changes.tables)
            batch.extend(cut, changes.transactions)
        if not batch.upper:
            return None
        self.position = batch.upper
        return BatchEnd(
            lower=batch.lower,
            upper=batch.upper,
            transaction_count=batch.transaction_count,
            committed_us=batch.committed_us,
        )

    def _is_complete(
        self,
        batch: _Batch,
        rows_max: int,
        delay_s: float,
        until: int | None,
        exactly: int | None,
        idle_s: float,
    ) -> bool:
        """Return whether a batch ends here; parameters as in `read`."""
        if batch.is_open:
            return False
        if exactly is not None:
            is_passed = not self._pending and self._reached > exactly
            if self._commits:
                is_passed = self._commits[0].lsn > exactly
            if batch.upper != exactly and is_passed:
                raise DataLossError(
                    f"the batch that ends at {format_lsn(exactly)} cannot be read again: slot "
                    f"'{self._slot}' has no transaction that ends there.",
                    hint="was the database restored from a backup, or does the slot belong to "
                    "another publication? Start again with --resnapshot.",
                )
            return batch.upper == exactly
        if batch.is_whole and (batch.is_cut or batch.message_count >= rows_max):
            return True
        if until is not None and not self._pending and self._reached >= until:
            return True
        if batch.is_whole:
            return batch.seconds >= delay_s
        return not self._commits and (self._is_asked or batch.seconds >= idle_s)

    def _take(self, seconds: float) -> None:
        assert self._receiver is not None
        received = self._receiver.take(seconds, self._reached)
        self._commits += _moved(received.commits, len(self._pending))
        self._pending += received.messages
        if received.commits:
            self._reached = max(self._reached, received.commits[-1].lsn)
        self._reached = max(self._reached, received.reached)
        self._is_asked = received.is_asked and not self._pending

    def _cut(self, wanted: int, exactly: int | None) -> LoggedCommit | None:
        """Return the commit up to which messages are decoded next; None without a commit.

        This is the first one that ends a batch, by the number of rows or by a request in it, else
        the last one.
        """
        commits = self._commits
        if exactly is not None:
            commits = [commit for commit in commits if commit.lsn <= exactly]
            return commits[-1] if commits else None
        last = (commit for commit in commits if commit.is_cut or commit.message_count >= wanted)
        return next(last, commits[-1] if commits else None)


def _moved(commits: Sequence[LoggedCommit], count: int) -> list[LoggedCommit]:
    """Return commits for messages that begin ``count`` later."""
    return [commit._replace(message_count=commit.message_count + count) for commit in commits]
