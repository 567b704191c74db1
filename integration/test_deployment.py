"""A deployment under a write load: PostgreSQL, Debezium, Kafka, a table, and sums of its changes.

The code is that of `docs/kafka.md`. The broker, Debezium and the program of the queries are
killed while rows flow. Now and then the database's table is locked: then the pipeline comes to
rest, and the table and the sums are to be what the database itself answers there.

Own processes: the servers and the program of the queries are killed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from integration.deployment import MODULE, PAGE, RUNNER
from integration.environ import from_checkout
from integration.load import Load, fill
from integration.pages import code_of
from integration.program import Program
from integration.promises import Contents, assert_sound, counters_of, epochs_of, rows_of
from integration.queries import wait_until
from integration.servers.kafka import Broker, running_connect
from integration.servers.postgres import Postgres
from spark_upsert.errors import TableNotFoundError

pytestmark = pytest.mark.spark

LOOK_SECONDS = 0.2
"""Between two looks at a table: often enough, and the cores are for the pipeline."""

ROWS = "SELECT id, customer, amount, due, changed FROM orders"
SUMS = "SELECT customer, count(*), sum(amount) FROM orders GROUP BY customer"


@dataclass
class Deployment:
    """All of it, and what it is compared with."""

    postgres: Postgres
    program: Program
    load: Load

    @contextmanager
    def at_rest(self) -> Iterator[tuple[Contents, Contents]]:
        """Lock the table; gives the database's own answers, its rows and its sums."""
        with self.postgres.connect() as connection:
            # Waits for every writer's commit, and lets none begin.
            connection.execute("LOCK TABLE orders IN SHARE MODE")
            yield (
                {row[:1]: row[1:] for row in connection.execute(ROWS)},
                {row[:1]: row[1:] for row in connection.execute(SUMS)},
            )

    def require_equal(self) -> None:
        """Wait until the pipeline has come to rest at a locked position, with equal answers."""
        with self.at_rest() as (rows, sums):
            for table, answer in (("orders", rows), ("totals", sums)):
                wait_until(
                    lambda table=table, answer=answer: self._found(table) == answer,
                    f"{table} is the database's own answer",
                    every=LOOK_SECONDS,
                )
        self.load.raise_failure()

    def wait_for_epochs(self, count: int) -> None:
        """Wait until the table has taken so many more epochs: rows flow."""
        aim = self._epochs() + count
        wait_until(lambda: self._epochs() >= aim, f"the table has {aim} epochs", every=LOOK_SECONDS)

    def _epochs(self) -> int:
        self.program.keep_running()
        try:
            return len(epochs_of(self.program.folder / "orders"))
        except TableNotFoundError:
            return 0

    def _found(self, table: str) -> Contents:
        self.program.keep_running()
        try:
            return rows_of(self.program.folder / table)
        except TableNotFoundError:
            return {}


def connector(postgres: Postgres) -> dict[str, Any]:
    """Return the page's connector, with this database's address."""
    (text,) = code_of(PAGE, "json", runner=RUNNER)
    given: dict[str, Any] = json.loads(text)
    address = {"database.hostname": postgres.host, "database.port": str(postgres.port)}
    given["config"] |= address | {"database.user": postgres.user}
    return given


def test_sums_of_changes_are_the_database_s_own_answer(
    broker: Broker, postgres: Postgres, plain_environ: dict[str, str], tmp_path: Path
) -> None:
    environ = from_checkout(plain_environ)
    with postgres.connect(autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET deadlock_timeout = '50ms'")
        connection.execute("SELECT pg_reload_conf()")
        for statements in code_of(PAGE, "sql", runner=RUNNER):
            connection.execute(statements.encode())
    fill(postgres)
    program = Program(tmp_path, MODULE, (str(tmp_path), broker.address), environ)
    load = Load(postgres, seed=9)
    deployment = Deployment(postgres, program, load)
    try:
        with (
            load.running(),
            running_connect(tmp_path / "connect", environ, broker, connector(postgres)) as connect,
        ):
            deployment.wait_for_epochs(2)
            broker.restart()
            deployment.wait_for_epochs(2)
            program.kill()
            connect.kill()
            connect.start()
            deployment.wait_for_epochs(1)
            deployment.require_equal()
    finally:
        program.kill()
    assert load.transactions > 100
    assert program.starts >= 2
    counted = counters_of(tmp_path / "orders")
    # The order is total: no two changes of a row share their place in the log.
    assert (counted.tied, counted.quarantined, counted.rejected) == (0, 0, 0)
    assert_sound(tmp_path / "orders")
    assert_sound(tmp_path / "totals")
