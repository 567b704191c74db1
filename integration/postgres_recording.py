"""Messages of a real PostgreSQL for the cases of `tests.support.pgoutput`.

``python -m integration.postgres_recording`` writes them for the tests without a server.
"""

from __future__ import annotations

from integration.servers.postgres import Postgres, running_postgres
from spark_upsert.postgres.connection import ReplicationConnection, is_data
from spark_upsert.postgres.messages import COMMIT, HEADER_BYTES, MESSAGE
from tests.support.pgoutput import CASES, Recorded, save

END = b"end of the case"


def record(postgres: Postgres, case: Recorded) -> list[bytes]:
    """Run a case in a database of its own, and return the messages."""
    with postgres.connect(autocommit=True) as server:
        server.execute("DROP DATABASE IF EXISTS recorded WITH (FORCE)")
        server.execute("CREATE DATABASE recorded")
    with postgres.connect(database="recorded", autocommit=True) as server:
        server.execute(case.tables.encode())
        server.execute("CREATE PUBLICATION recorded FOR ALL TABLES")
        replication = ReplicationConnection(f"{postgres.url} dbname=recorded")
        lsn = replication.create_slot("recorded")
        for statement in case.statements:
            server.execute(statement.encode())
        server.execute("SELECT pg_logical_emit_message(true, 'test', %s::text)", [END.decode()])
        replication.start("recorded", "recorded", lsn)
        messages: list[bytes] = []
        is_ended = False
        while not (is_ended and messages[-1][HEADER_BYTES] == COMMIT):
            message = replication.receive()
            if message is None:
                replication.wait(1)
            elif is_data(message):
                messages.append(message)
                is_ended |= message[HEADER_BYTES] == MESSAGE and message.endswith(END)
        replication.close()
        # The server notices the end of a connection a moment later.
        server.execute("SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots")
        server.execute("SELECT pg_drop_replication_slot('recorded')")
    return messages


def main() -> None:
    """Record all cases."""
    with running_postgres() as postgres:
        save({case.name: record(postgres, case) for case in CASES})


if __name__ == "__main__":
    main()
