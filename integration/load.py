"""A write load on the table `orders` of `docs/kafka.md`: all that a transaction can do to rows.

Inserts, updates of values and of the group, deletes, changes of the key, several changes of one
row, savepoints and whole transactions that are rolled back, and many rows in one transaction.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import psycopg

from integration.servers.postgres import Postgres

KEYS = 200
"""Few enough that writers meet at rows, and that a key is deleted and made again and again."""

CUSTOMERS = 12
WRITERS = 3
CHANGES_MAX = 4
PAUSE_SECONDS = 0.1
"""Between the transactions of a writer: a load and not a flood, on any machine."""

Cursor = psycopg.Cursor[Any]
Change = Callable[[Cursor, random.Random], None]


def _key(dice: random.Random) -> int:
    return dice.randrange(KEYS)


def _customer(dice: random.Random) -> str:
    # Some are rare, so that a group loses its last order.
    return f"customer {min(dice.randrange(CUSTOMERS), dice.randrange(CUSTOMERS))}"


def _amount(dice: random.Random) -> Decimal:
    return Decimal(dice.randrange(-99_999, 10_000_000)).scaleb(-2)


def insert(cursor: Cursor, dice: random.Random) -> None:
    cursor.execute(
        "INSERT INTO orders VALUES (%s, %s, %s, DATE '2026-01-01' + %s::INT)"
        " ON CONFLICT (id) DO UPDATE SET amount = EXCLUDED.amount, changed = clock_timestamp()",
        (_key(dice), _customer(dice), _amount(dice), dice.choice([None, 0, 1, 40])),
    )


def update(cursor: Cursor, dice: random.Random) -> None:
    change = "UPDATE orders SET amount = amount + 1, changed = clock_timestamp() WHERE id = %s"
    cursor.execute(change, (_key(dice),))


def move(cursor: Cursor, dice: random.Random) -> None:
    """Change the customer of some orders at once."""
    change = "UPDATE orders SET customer = %s WHERE id BETWEEN %s AND %s"
    first = _key(dice)
    cursor.execute(change, (_customer(dice), first, first + 3))


def delete(cursor: Cursor, dice: random.Random) -> None:
    cursor.execute("DELETE FROM orders WHERE id = %s", (_key(dice),))


def change_key(cursor: Cursor, dice: random.Random) -> None:
    new, old = _key(dice), _key(dice)
    free = "NOT EXISTS (SELECT FROM orders WHERE id = %s)"
    cursor.execute(f"UPDATE orders SET id = %s WHERE id = %s AND {free}", (new, old, new))


def make_again(cursor: Cursor, dice: random.Random) -> None:
    """Delete a row and make another one of its key, in one transaction."""
    row = _key(dice), _customer(dice), _amount(dice)
    cursor.execute("DELETE FROM orders WHERE id = %s", row[:1])
    cursor.execute("INSERT INTO orders (id, customer, amount) VALUES (%s, %s, %s)", row)


def roll_back(cursor: Cursor, dice: random.Random) -> None:
    """Change something behind a savepoint, and think better of it."""
    cursor.execute("SAVEPOINT before")
    dice.choice([insert, update, move, delete, change_key, make_again])(cursor, dice)
    cursor.execute("ROLLBACK TO SAVEPOINT before")


CHANGES: tuple[Change, ...] = (
    *(insert, insert, update, update, update),
    *(move, delete, change_key, make_again, roll_back),
)


def fill(postgres: Postgres) -> None:
    """Make the rows that are there before anybody reads the log."""
    dice = random.Random(0)
    with postgres.connect() as connection, connection.cursor() as cursor:
        for _ in range(KEYS):
            insert(cursor, dice)


class Load:
    """Writers that go on until they are told to stop."""

    def __init__(self, postgres: Postgres, seed: int, changes: Sequence[Change] = CHANGES) -> None:
        self._postgres = postgres
        self._seed = seed
        self._changes = changes
        self.committed = 0
        """Transactions so far, about."""
        self._stopping = threading.Event()
        self._writers: list[Future[int]] = []

    @contextmanager
    def running(self) -> Iterator[Load]:
        """Write as long as the block lasts; what a writer fails with is raised."""
        with ThreadPoolExecutor(WRITERS) as pool:
            try:
                self._writers = [pool.submit(self._write, number) for number in range(WRITERS)]
                yield self
            finally:
                self._stopping.set()
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise what a writer has failed with."""
        for writer in self._writers:
            if writer.done():
                writer.result()

    @property
    def transactions(self) -> int:
        """How many transactions were committed, once it has ended."""
        return sum(writer.result() for writer in self._writers)

    def _write(self, number: int) -> int:
        dice = random.Random(f"{self._seed}/{number}")
        committed = 0
        with self._postgres.connect(autocommit=True) as connection:
            while not self._stopping.wait(PAUSE_SECONDS):
                committed += self._transaction(connection, dice)
                self.committed += 1
        return committed

    def _transaction(self, connection: psycopg.Connection[Any], dice: random.Random) -> int:
        changes = dice.choices(self._changes, k=dice.randint(1, CHANGES_MAX))
        try:
            whole = connection.transaction(force_rollback=dice.random() < 0.1)
            with whole as transaction, connection.cursor() as cursor:
                for change in changes:
                    change(cursor, dice)
        # Writers meet, as they do anywhere: one of two is rolled back.
        except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
            return 0
        return 0 if transaction.force_rollback else 1
