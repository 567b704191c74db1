"""Connections to PostgreSQL: the replication protocol (`ReplicationConnection`), and SQL.

psycopg is an optional dependency (``pip install upsertflow[postgres]``), loaded at the first
connection.
"""

from __future__ import annotations

import importlib
import logging
import re
import select
import shlex
import struct
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from spark_upsert.core.durations import Fields
from spark_upsert.core.lsn import format_lsn, parse_lsn
from spark_upsert.errors import ContentionError, OptionError, StorageError
from spark_upsert.postgres.messages import POSTGRES_EPOCH_US
from spark_upsert.postgres.types import SETTINGS

_LOGGER = logging.getLogger(__name__)

_OPTIONS = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())

_DATA = ord("w")
"""First byte of a message with a change; keepalives begin with ``k``."""

_TRIES, _PAUSE_SECONDS = 60, 0.5
"""How often, and after which pauses, a slot in use is tried: 30 seconds."""

_COMMAND_SECONDS = 60
"""How long a password command may take."""

_NAME = re.compile(r"[a-z0-9_]{1,63}")
"""The names that PostgreSQL allows for slots."""


def driver() -> Any:
    """Return psycopg, or raise `OptionError` with the command that installs it."""
    try:
        return importlib.import_module("psycopg")
    except ImportError as error:
        raise OptionError(
            "reading from PostgreSQL needs the package 'psycopg', version 3.3 or newer.",
            hint="pip install 'upsertflow[postgres]'.",
        ) from error


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a database."""

    url: str = field(repr=False)
    """libpq's URL or ``key=value`` text."""
    password_command: str | None = field(default=None, repr=False)
    """Run for each connection, without a shell: it prints the password."""

    def password(self) -> dict[str, str]:
        """Return the connection parameter with the password from the command, if there is one.

        No message has the command, its arguments or its output.
        """
        if self.password_command is None:
            return {}
        try:
            result = subprocess.run(
                shlex.split(self.password_command),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_COMMAND_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            problem = f"did not end within {_COMMAND_SECONDS} seconds"
        except (OSError, ValueError, IndexError) as error:
            problem = f"cannot be run ({type(error).__name__})"
        else:
            password = result.stdout.decode(errors="replace").rstrip("\r\n")
            if result.returncode == 0 and password:
                return {"password": password}
            printed = "" if password else " and printed nothing"
            problem = f"ended with exit code {result.returncode}{printed}"
        raise StorageError(
            f"the command for the database's password {problem}.",
            hint="run it in a shell; its output is shown nowhere else. It is run without a shell.",
        )


def shown(address: str | Address) -> str:
    """Return a database's address without user, password and parameters."""
    url = address.url if isinstance(address, Address) else address
    parameters = driver().conninfo.conninfo_to_dict(url)
    host, port = parameters.get("host", "localhost"), parameters.get("port", 5432)
    return f"postgresql://{host}:{port}/{parameters.get('dbname', '')}"


def connect(address: str | Address, **parameters: str) -> Any:
    """Return a connection with `SETTINGS`, in autocommit; raise `StorageError` without one."""
    psycopg = driver()
    address = address if isinstance(address, Address) else Address(address)
    url = address.url
    own = {"client_encoding": "UTF8", "application_name": "upsertflow", "options": _OPTIONS}
    own |= address.password()
    try:
        conninfo = psycopg.conninfo.make_conninfo(url, **own, **parameters)
    except psycopg.ProgrammingError:
        raise OptionError(  # Not shown: it may have a password.
            f"the address of the database, {len(url)} characters, is not one of libpq.",
            hint="write postgresql://user@host:port/database; give the password in PGPASSWORD.",
            option="url",
        ) from None
    try:
        return psycopg.connect(conninfo, autocommit=True)
    except psycopg.OperationalError as error:
        raise StorageError(
            f"no connection to {shown(address)}: {str(error).strip()}.",
            hint="check the address, the password (PGPASSWORD or a password file) and the role.",
        ) from error


@dataclass(frozen=True, slots=True)
class System:
    """A database cluster and one database in it."""

    identifier: str
    timeline: int
    lsn: int
    """End of the flushed log."""
    database: str


class ReplicationConnection:
    """A connection with the replication protocol. Not thread-safe.

    Parameters
    ----------
    address : str or Address
    takes_over : bool
        Whether `start` ends another session that holds the slot.
    """

    def __init__(self, address: str | Address, *, takes_over: bool = False) -> None:
        self._connection = connect(address, replication="database")
        self._takes_over = takes_over
        self._protocol = self._connection.pgconn

    def identify(self) -> System:
        """Return the system to which this is a connection."""
        row = self._connection.execute("IDENTIFY_SYSTEM").fetchone()
        return System(row[0], int(row[1]), parse_lsn(row[2]), row[3])

    def create_slot(self, name: str) -> int:
        """Create a logical slot; return the position from which it has all transactions.

        Waits until all transactions that are open have ended.
        """
        require_slot_name(name)
        row = self._connection.execute(
            f"CREATE_REPLICATION_SLOT {name} LOGICAL pgoutput (SNAPSHOT 'nothing')"
        ).fetchone()
        return parse_lsn(row[1])

    def start(self, slot: str, publication: str, lsn: int) -> None:
        """Start to receive what was committed after a position; waits while the slot is in use.

        Raises `ContentionError` after 30 seconds.
        """
        require_slot_name(slot)
        name = publication.replace('"', '""').replace("'", "''")
        command = (
            f"START_REPLICATION SLOT {slot} LOGICAL {format_lsn(lsn)} "
            f"(proto_version '1', publication_names '\"{name}\"', messages 'true')"
        )
        holder = ""
        for index in range(_TRIES):
            try:
                self._connection.execute(command)
            except driver().errors.ObjectInUse:
                holder = self._read_holder(slot)
                if self._takes_over:
                    self._end_holder(slot)
                    _LOGGER.warning("ended the other session: %s", Fields(slot=slot, by=holder))
                    continue
                # The server process of a killed reader may live a moment longer.
                if index == 1:
                    fields = Fields(slot=slot, by=holder, wait_s=_TRIES * _PAUSE_SECONDS)
                    _LOGGER.warning("the slot is in use: %s", fields)
                time.sleep(_PAUSE_SECONDS)
            else:
                return
        raise ContentionError(
            f"replication slot '{slot}' is in use by {holder}.",
            hint="stop the other follower; or end its session, by --take-over or "
            "SELECT pg_terminate_backend(pid).",
        )

    def _read_holder(self, slot: str) -> str:
        # Without parameters, which a replication connection does not take.
        row = self._connection.execute(
            "SELECT pid, application_name FROM pg_stat_activity JOIN pg_replication_slots "
            f"ON pid = active_pid WHERE slot_name = '{slot}'"
        ).fetchone()
        return "a session that has just ended" if row is None else f"PID {row[0]}, '{row[1]}'"

    def _end_holder(self, slot: str) -> None:
        try:
            self._connection.execute(
                f"SELECT pg_terminate_backend(active_pid, {int(_PAUSE_SECONDS * 1000)}) "
                f"FROM pg_replication_slots WHERE slot_name = '{slot}' AND active"
            )
        except driver().errors.InsufficientPrivilege as error:
            raise ContentionError(
                f"the session that holds slot '{slot}' is not ended: {str(error).strip()}.",
                hint="use the role of that session, or grant pg_signal_backend.",
            ) from error

    def receive(self) -> bytes | None:
        """Return the next message if there is one; None if none has arrived.

        Raises `StorageError` when the server has ended the stream.
        """
        size, data = self._protocol.get_copy_data(1)
        if size > 0:
            return bytes(data)
        if size == 0:
            return None
        # The reason, such as a shutdown, follows the end of the data.
        result = self._protocol.get_result()
        reason = result.error_message.decode(errors="replace") if result is not None else ""
        raise StorageError(reason.strip() or "the server has closed the connection")

    def wait(self, seconds: float, *others: int, reads: bool = True) -> None:
        """Wait until one of other file descriptors or (if it ``reads``) the server can be read."""
        own = [self._protocol.socket] if reads else []
        readable, _, _ = select.select([*own, *others], [], [], seconds)
        if set(own).intersection(readable):
            try:
                self._protocol.consume_input()
            except driver().OperationalError as error:
                raise StorageError(str(error).strip()) from error

    def confirm(self, lsn: int, *, asks: bool = False) -> None:
        """Tell the server that everything up to a position is durable here.

        ``asks``: the server answers with a keepalive, which has the position it has reached.
        """
        now_us = int(time.time() * 1_000_000) - POSTGRES_EPOCH_US
        try:
            self._protocol.put_copy_data(struct.pack(">cQQQq?", b"r", lsn, lsn, lsn, now_us, asks))
            self._protocol.flush()
        except driver().OperationalError as error:
            raise StorageError(str(error).strip()) from error

    def close(self) -> None:
        """Close the connection."""
        with suppress(Exception):
            self._connection.close()


def is_data(message: bytes) -> bool:
    """Return whether a message has a change; else it is a keepalive."""
    return message[0] == _DATA


def keepalive_lsn(message: bytes) -> int:
    """Return the end of the log that a keepalive reports."""
    return int.from_bytes(message[1:9], "big")


def is_reply_wanted(message: bytes) -> bool:
    """Return whether a keepalive asks for an answer."""
    return message[17] == 1


def require_slot_name(name: str) -> None:
    """Raise `OptionError` for a name that PostgreSQL refuses."""
    if _NAME.fullmatch(name) is None:
        raise OptionError.invalid("slotName", name, "up to 63 of a-z, 0-9 and _")
