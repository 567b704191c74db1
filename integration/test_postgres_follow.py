"""A real PostgreSQL followed into tables: every consistent batch is a state that it had.

Own processes: the follower needs no Spark, and is killed.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from integration.followed import Followed, Transfers, own_database
from integration.pages import code_of
from integration.servers.postgres import Postgres
from spark_upsert.core.lsn import format_lsn, parse_lsn
from spark_upsert.errors import (
    ContentionError,
    DataLossError,
    OptionError,
    OtherTableError,
    SchemaError,
    StorageError,
)
from spark_upsert.postgres import connection
from spark_upsert.postgres.connection import Address
from spark_upsert.replication import follower, target
from spark_upsert.replication.follower import FollowedBatch
from spark_upsert.replication.waiting import wait_for_lsn

LOG_END = "SELECT pg_current_wal_insert_lsn()"

KILLS = int(os.environ.get("UPSERTFLOW_TEST_KILLS", "5"))
"""How often the follower is killed."""


@pytest.fixture
def followed(postgres: Postgres, tmp_path: Path) -> Iterator[Followed]:
    with own_database(postgres, tmp_path / "lake") as followed:
        yield followed


def test_a_copy_and_what_changes_after_it(followed: Followed) -> None:
    followed.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text)",
        "CREATE TABLE empty (id int PRIMARY KEY, v text)",
        "INSERT INTO a SELECT i, 'v' || i FROM generate_series(1, 100) i",
    )
    [copy] = followed.follow()
    assert (copy.rows, copy.is_consistent) == (100, True)
    assert followed.rows("a") == followed.source_rows("a")
    assert followed.rows("empty") == []
    followed.execute(
        "UPDATE a SET v = 'other' WHERE id < 10",
        "DELETE FROM a WHERE id > 90",
        "UPDATE a SET id = id + 1000 WHERE id < 5",
        "INSERT INTO empty VALUES (1, NULL)",
    )
    [batch] = followed.follow()
    assert (batch.transaction_count, batch.is_consistent) == (4, True)
    for table in ("a", "empty"):
        assert followed.rows(table) == followed.source_rows(table)
    assert followed.follow() == []


def test_batches_have_whole_transactions_whatever_their_size(followed: Followed) -> None:
    followed.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    followed.follow()
    for number in range(5):
        with followed.sql() as session, session.transaction():
            for table in "ab":
                rows = f"SELECT {100 * number} + i FROM generate_series(0, 49) i"
                session.execute(f"INSERT INTO {table} {rows}".encode())
    batches = followed.follow(rows_max=10)
    assert [batch.transaction_count for batch in batches] == [1] * 5
    for batch in batches:
        versions = followed.versions(batch.number)
        assert followed.rows("a", versions["a"]) == followed.rows("b", versions["b"])
    assert followed.rows("a") == followed.source_rows("a")


PEAK = """
import atexit, re, sys
# Of this program alone: what getrusage has begins with the memory of the process that started it.
status = lambda: open("/proc/self/status").read()
atexit.register(lambda: print(re.search(r"VmHWM:\\s+(\\d+) kB", status())[1], file=sys.stderr))
"""
"""Prints the program's peak memory in KiB at its end."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_large_transaction_is_one_batch(followed: Followed) -> None:
    count = 1_000_000 if KILLS > 50 else 150_000
    followed.execute("CREATE TABLE a (id int PRIMARY KEY, v text, n numeric(10, 2))")
    followed.follow()
    followed.execute(
        f"INSERT INTO a SELECT i, repeat('x', 100), i FROM generate_series(1, {count}) i"
    )
    with followed.start(followed.line("--json", "--once", "--max-rows", "1000"), PEAK) as process:
        output, peak_kib = process.communicate()
    assert process.returncode == 0
    [batch] = map(json.loads, output.splitlines())
    assert (batch["rows"], batch["transactions"]) == (count, 1)
    assert int(peak_kib.split()[-1]) < 400 << 10
    assert len(followed.rows("a")) == count


def test_transfers_keep_their_sum_in_every_batch_through_kills(followed: Followed) -> None:
    seed = random.SystemRandom().randrange(10**6)
    choice = random.Random(seed)
    tables = ["a", "b", "c", "d"]
    transfers = Transfers(followed, tables, seed)
    transfers.create()
    options = ("--max-delay", "20 ms", "--max-rows", "40")
    lines: list[str] = []
    with transfers:
        for _ in range(KILLS):
            process = followed.start(followed.line("--json", *options))
            assert process.stdout is not None
            # Some batches, then at any time within the next one.
            lines += [process.stdout.readline() for _ in range(choice.randrange(1, 6))]
            with suppress(subprocess.TimeoutExpired):
                process.wait(choice.uniform(0, 0.2))
            process.kill()
            lines += process.communicate()[0].splitlines()
    followed.follow()
    newest, first = transfers.require_sums(first_consistent(lines))
    assert newest - first > 2 * KILLS, f"seed {seed}"
    assert transfers.count > 20 * KILLS


def first_consistent(lines: list[str]) -> int:
    """Return the number of the first consistent batch that a follower has printed."""
    batches = [json.loads(line) for line in lines if line.endswith(("}", "}\n"))]
    return min(batch["batch"] for batch in batches if batch["consistent"])


def test_lost_connections_and_a_crash_of_the_server(followed: Followed) -> None:
    transfers = Transfers(followed, ["a", "b", "c"], random.SystemRandom().randrange(10**6))
    transfers.create()
    process = followed.start(followed.line("--json", "--max-delay", "50 ms"))
    assert process.stdout is not None
    lines: list[str] = []

    def receive(count: int) -> None:
        assert process.stdout is not None
        lines.extend(process.stdout.readline() for _ in range(count))

    with transfers:
        receive(3)
        followed.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
            f"WHERE slot_name = '{followed.database}'"
        )
        receive(5)
        followed.execute(  # Also the one for SQL.
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            f"WHERE application_name = 'upsertflow' AND datname = '{followed.database}'"
        )
        receive(5)
        followed.crash()
        receive(5)
    process.terminate()
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert err.count("connecting again") >= 3
    followed.follow()
    transfers.require_sums(first_consistent(lines + out.splitlines()))


def test_log_that_the_server_has_removed_is_copied_again(followed: Followed) -> None:
    followed.execute("CREATE TABLE a (id int PRIMARY KEY, v text)", "INSERT INTO a VALUES (1, 'x')")
    followed.follow()
    followed.execute(
        "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'",
        "SELECT pg_reload_conf()",
        "UPDATE a SET v = 'y'",
        *("SELECT pg_switch_wal()", "UPDATE a SET v = v || 'y'") * 4,
        "CHECKPOINT",
    )
    try:
        with pytest.raises(DataLossError, match="needs log that the server has removed"):
            followed.follow()
    finally:
        followed.execute("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
    assert followed.rows("a") == [(1, "x")]  # Still readable.
    followed.follower().forget_copies()
    assert followed.follow()[-1].is_consistent
    assert followed.rows("a") == followed.source_rows("a")


def test_tables_copied_at_different_times_join_without_a_gap(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "COPY_PAGES", 0)  # Each table in a batch of its own.
    tables = ["a", "b", "c"]
    transfers = Transfers(followed, tables, 7)
    transfers.create()
    followed.execute("ANALYZE")
    with transfers:
        batches = followed.follow(rows_max=20, delay_s=0.01)
    batches += followed.follow(rows_max=20)
    assert [batch.copied for batch in batches[:3]] == [("public.a",), ("public.b",), ("public.c",)]
    states = [batch.is_consistent for batch in batches]
    assert states == sorted(states)  # Once consistent, always.
    assert [followed.source_of(batch.number) for batch in batches] == [
        (format_lsn(batch.upper), batch.is_consistent) for batch in batches
    ]
    for batch in batches:
        if batch.is_consistent:
            versions = followed.versions(batch.number)
            total = sum(row[1] for t in tables for row in followed.rows(t, versions[t]))
            assert total == transfers.total
    for table in tables:
        assert followed.rows(table) == followed.source_rows(table)


def test_values_that_an_update_did_not_send(followed: Followed) -> None:
    long = [letter * 3000 for letter in "abcdef"]
    followed.execute(
        "CREATE TABLE notes (id int PRIMARY KEY, n int, note text, other text)",
        "ALTER TABLE notes ALTER note SET STORAGE EXTERNAL, ALTER other SET STORAGE EXTERNAL",
        *(f"INSERT INTO notes VALUES ({i}, 0, '{long[i]}', '{long[i]}')" for i in range(5)),
    )
    followed.follow()
    followed.execute(
        "UPDATE notes SET n = 1 WHERE id = 0",  # Left unchanged.
        "UPDATE notes SET note = NULL WHERE id = 1",
        "UPDATE notes SET id = 12 WHERE id = 2",  # From the table before.
        "UPDATE notes SET n = 2 WHERE id = 12",
        f"UPDATE notes SET note = '{long[5]}' WHERE id = 3",
        "UPDATE notes SET id = 13 WHERE id = 3",  # From the batch and from the table.
        "UPDATE notes SET id = 23 WHERE id = 13",
        f"INSERT INTO notes VALUES (30, 0, '{long[5]}', NULL)",
        "UPDATE notes SET id = 31 WHERE id = 30",  # From the batch.
        "UPDATE notes SET id = -4 WHERE id = 4",
        "UPDATE notes SET id = 4 WHERE id = 0",
        "UPDATE notes SET id = 0 WHERE id = -4",  # Two rows in each other's place.
    )
    followed.follow()
    assert followed.rows("notes") == followed.source_rows("notes")
    followed.execute("UPDATE notes SET n = 3", "UPDATE notes SET id = id + 100")
    followed.follow(rows_max=1)
    assert followed.rows("notes") == followed.source_rows("notes")


def test_truncates_and_partitions(followed: Followed) -> None:
    followed.execute(
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
        "CREATE TABLE a (id int PRIMARY KEY)",
        "INSERT INTO p SELECT i, 'x' FROM generate_series(0, 19) i",
        "INSERT INTO a VALUES (1)",
    )
    followed.follow()
    followed.execute(
        "UPDATE p SET id = 15 - 6 WHERE id = 15 AND false", "DELETE FROM p WHERE id = 3"
    )
    followed.execute("UPDATE p SET id = 3 WHERE id = 12", "TRUNCATE a")
    followed.follow()
    assert followed.rows("p") == followed.source_rows("p")
    assert followed.rows("a") == []
    followed.execute("TRUNCATE p2", "INSERT INTO p VALUES (11, 'new')", "INSERT INTO a VALUES (2)")
    batches = followed.follow()
    assert any("public.p2" in batch.copied for batch in batches)
    assert batches[-1].is_consistent
    assert followed.rows("p") == followed.source_rows("p")
    assert followed.rows("a") == [(2,)]


def test_changes_of_a_table_that_the_log_does_not_show(followed: Followed) -> None:
    followed.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text)", "INSERT INTO a VALUES (1, 'x'), (2, 'y')"
    )
    followed.follow()
    followed.execute("ALTER TABLE a ADD w int", "INSERT INTO a VALUES (3, 'z', 3)")
    assert not any(batch.copied for batch in followed.follow())
    followed.execute("ALTER TABLE a ADD n int DEFAULT 7", "UPDATE a SET v = 'q' WHERE id = 1")
    assert any(batch.copied for batch in followed.follow())
    assert followed.rows("a") == followed.source_rows("a")
    # A copy after a truncate, which has a later place in the log than the slot's start.
    followed.execute("TRUNCATE a", "INSERT INTO a VALUES (4, 'n', 4)")
    followed.follow()
    followed.execute("ALTER TABLE a ADD m int DEFAULT 8", "DELETE FROM a WHERE id = 5")
    followed.execute("INSERT INTO a VALUES (5, 'late', 5)")
    assert any(batch.copied for batch in followed.follow())
    assert followed.rows("a") == followed.source_rows("a")
    # Without a row that changes; and a value in another column than before.
    followed.execute("ALTER TABLE a ADD k text DEFAULT 'k'")
    assert any(batch.copied for batch in followed.follow())
    assert followed.rows("a") == followed.source_rows("a")
    followed.execute("ALTER TABLE a RENAME k TO l")
    assert followed.follow()[-1].is_consistent
    columns = ("id", "v", "w", "n", "m", "l")
    assert followed.rows("a", columns=columns) == followed.source_rows("a", ", ".join(columns))
    # In the publication from now on, with rows of before.
    followed.execute(
        "CREATE TABLE b (id int PRIMARY KEY)",
        "INSERT INTO b VALUES (1)",
        "ALTER PUBLICATION upsertflow ADD TABLE b",
        "INSERT INTO b VALUES (2)",
    )
    assert [batch.copied for batch in followed.follow() if batch.copied] == [("public.b",)]
    assert followed.rows("b") == [(1,), (2,)]


def test_types_and_names_that_change_between_changes(followed: Followed) -> None:
    followed.execute(
        *(f"CREATE TABLE {t} (id int PRIMARY KEY, v int)" for t in "abc"),
        *(f"INSERT INTO {t} VALUES (1, {n})" for n, t in enumerate("abc")),
    )
    followed.follow()
    followed.execute(
        "INSERT INTO a VALUES (2, 2)",
        "ALTER TABLE a ALTER v TYPE bigint",
        "INSERT INTO a VALUES (3, 3)",
        "INSERT INTO b VALUES (2, 2)",
        "INSERT INTO c VALUES (3, 3)",
        # Two tables in each other's place, with changes before and after.
        "ALTER TABLE b RENAME TO d",
        "ALTER TABLE c RENAME TO b",
        "ALTER TABLE d RENAME TO c",
        "INSERT INTO b VALUES (4, 4)",
        "DELETE FROM c WHERE id = 2",
    )
    batches = followed.follow()
    assert {name for batch in batches for name in batch.copied} == {
        "public.a",
        "public.b",
        "public.c",
    }
    for table in "abc":
        assert followed.rows(table) == followed.source_rows(table)


def test_a_run_that_ends_after_a_copy_loses_no_transaction(followed: Followed) -> None:
    followed.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    followed.follow()
    followed.execute("INSERT INTO a VALUES (1)")

    def end(batch: FollowedBatch) -> None:
        if batch.copied:
            raise KeyboardInterrupt
        followed.execute("BEGIN; INSERT INTO a VALUES (2); ALTER TABLE b ADD n int DEFAULT 7; END")

    with pytest.raises(KeyboardInterrupt):
        followed.follower().run(end)
    followed.follow()
    assert followed.rows("a") == [(1,), (2,)]


def test_names_with_quotes_dots_and_capitals(followed: Followed) -> None:
    followed.execute(
        'CREATE SCHEMA "a.b"',
        'CREATE TABLE "a.b"."C ""d""" ("Id" int PRIMARY KEY, "select" text)',
        'INSERT INTO "a.b"."C ""d""" VALUES (1, \'x\')',
    )
    [copy] = followed.follow()
    followed.execute('UPDATE "a.b"."C ""d""" SET "select" = \'y\'')
    [batch] = followed.follow()
    assert (copy.rows, batch.rows) == (1, 1)


def test_a_slot_that_was_made_again_is_no_silence(followed: Followed) -> None:
    followed.execute("CREATE TABLE a (id int PRIMARY KEY)")
    followed.follow()
    slot = followed.database
    followed.execute(
        f"SELECT pg_drop_replication_slot('{slot}')",
        "INSERT INTO a VALUES (1)",
    )
    with pytest.raises(DataLossError, match="is gone"):
        followed.follow()
    followed.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    with pytest.raises(DataLossError, match="created again"):
        followed.follow()
    followed.follower().forget_copies()
    followed.follow()
    assert followed.rows("a") == [(1,)]


def test_an_idle_follower_lets_the_server_remove_its_log(followed: Followed) -> None:
    followed.execute("CREATE TABLE a (id int PRIMARY KEY)")
    followed.follow()
    followed.execute(
        "CREATE TABLE other (id int)", "INSERT INTO other SELECT generate_series(1, 999)"
    )
    with followed.sql() as session:
        [before] = session.execute("SELECT pg_current_wal_flush_lsn()").fetchone() or [""]
    followed.follow()
    [(confirmed,)] = followed.source_rows(
        f"pg_replication_slots WHERE slot_name = '{followed.database}'", "confirmed_flush_lsn"
    )
    assert parse_lsn(confirmed) >= parse_lsn(before)
    followed.execute("INSERT INTO a VALUES (1)")
    followed.follow()
    assert followed.rows("a") == [(1,)]


def test_the_commands_of_the_page(followed: Followed) -> None:
    followed.execute("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    page, _ = code_of("docs/postgresql.md", "sh", runner="integration/test_postgres_follow.py")
    plan, once, forever = map(followed.on_page, page.splitlines())
    shown = subprocess.run(followed.command(plan), capture_output=True, text=True, check=True)
    assert "would be published" in shown.stdout
    assert not followed.source_rows("pg_publication")
    subprocess.run(followed.command(once), check=True)
    assert followed.rows("orders") == [(1,)]
    process = followed.start(forever)
    followed.execute("INSERT INTO orders VALUES (2)")
    assert process.stdout is not None
    assert "1 transactions, 1 rows" in process.stdout.readline()
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert followed.rows("orders") == [(1,), (2,)]


def test_a_second_follower_takes_over(followed: Followed) -> None:
    transfers = Transfers(followed, ["a", "b", "c"], random.SystemRandom().randrange(10**6))
    transfers.create()
    options = ("--json", "--max-delay", "20 ms", "--max-rows", "40", "--take-over")
    processes: list[subprocess.Popen[str]] = []
    lines: list[str] = []
    errors: list[str] = []

    def take_over(line_count: int) -> None:
        process = followed.start(followed.line(*options))
        assert process.stdout is not None
        lines.extend(process.stdout.readline() for _ in range(line_count))
        for before in processes[-1:]:
            before.send_signal(signal.SIGCONT)  # It wakes in the middle of its work.
            end(before, code=1)
            assert "[CONTENTION] another follower" in errors[-1]
        processes.append(process)

    def end(process: subprocess.Popen[str], code: int) -> None:
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, err
        lines.extend(out.splitlines())
        errors.append(err)

    with transfers:
        for is_stopped in (False, True, False, True):
            take_over(4)
            if is_stopped:
                processes[-1].send_signal(signal.SIGSTOP)
        take_over(4)
    processes[-1].terminate()
    end(processes[-1], code=0)
    assert sum("ended the other session" in err for err in errors) >= 2
    followed.follow()
    transfers.require_sums(first_consistent(lines))


@pytest.mark.parametrize("take_over", [False, True])
def test_copies_that_another_follower_may_complete_are_made_again(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, take_over: bool
) -> None:
    followed.execute("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    with monkeypatch.context() as patch:
        patch.setattr(target, "commit_routed", Mock(side_effect=StorageError("full")))
        with pytest.raises(StorageError, match="full"):
            followed.follow()
    followed.execute("INSERT INTO a VALUES (2)")
    batches = followed.follow(take_over=take_over)
    copies = [(batch.number, batch.is_consistent) for batch in batches if batch.copied]
    assert copies == ([(0, False), (1, False)] if take_over else [(0, False)])
    assert followed.rows("a") == [(1,), (2,)]
    assert followed.follow(take_over=take_over) == []


@contextmanager
def token_role(followed: Followed, token: str) -> Iterator[str]:
    """Make a role that needs a password."""
    role = f"role_{followed.database}"
    [(path, rules)] = followed.source_rows("current_setting('hba_file') f", "f, pg_read_file(f)")

    def set_rules(text: str) -> None:
        with followed.sql() as connection:
            make = "SELECT lo_from_bytea(0, convert_to(%s, 'UTF8'))"
            [object_id] = connection.execute(make, [text]).fetchone() or [0]
            connection.execute("SELECT lo_export(%s, %s)", [object_id, path])
            connection.execute("SELECT lo_unlink(%s), pg_reload_conf()", [object_id])

    followed.execute(f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD '{token}'")
    set_rules(f"host all {role} all scram-sha-256\n{rules}")
    try:
        yield role
    finally:
        set_rules(rules)
        followed.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_token_that_changes_is_in_no_file_and_no_log(
    followed: Followed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    first, second = "HUSH-first", "HUSH-second"
    token = tmp_path / "token"
    token.write_text(f"{first}\n")
    followed.execute("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    with token_role(followed, first) as role:
        tokens = replace(followed, postgres=replace(followed.postgres, user=role))
        with pytest.raises(StorageError, match="password authentication failed") as caught:
            tokens.follow(url=Address(tokens.url, "echo HUSH-wrong"))
        with pytest.raises(StorageError, match="exit code 1 and"):
            tokens.follow(url=Address(tokens.url, "false"))
        tokens.follow(url=Address(tokens.url, f"cat {token}"))
        _, page = code_of("docs/postgresql.md", "sh", runner="integration/test_postgres_follow.py")
        process = tokens.start(tokens.on_page(page).replace("/run/token", str(token)) + " --json")
        assert process.stdout is not None
        followed.execute("INSERT INTO a VALUES (2)")
        lines = [process.stdout.readline()]
        token.write_text(second)
        followed.execute(
            f"ALTER ROLE {role} PASSWORD '{second}'",
            f"SELECT pg_terminate_backend(pid, 9999) FROM pg_stat_activity WHERE usename = '{role}'",
            "INSERT INTO a VALUES (3)",
        )
        lines.append(process.stdout.readline())
        process.terminate()
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "connecting again" in err
    assert followed.rows("a") == [(1,), (2,), (3,)]
    seen = f"{caplog.text}{''.join(lines)}{out}{err}{caught.value}"
    assert "HUSH" not in seen
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != token]
    assert len(files) > 5
    assert not any(b"HUSH" in path.read_bytes() for path in files)


def test_an_application_reads_its_own_write(followed: Followed) -> None:
    followed.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, v int)", "CREATE TABLE other (i int)"
    )
    process = followed.start(followed.line("--max-delay", "10ms"))
    positions: list[tuple[int, str]] = []
    try:
        with followed.sql() as application:
            for number in range(20):
                application.execute("INSERT INTO orders VALUES (%s, 0)", [number])
                [lsn] = application.execute(LOG_END).fetchone() or [""]
                batch = wait_for_lsn(followed.root, lsn)
                at_batch = followed.rows("orders", followed.versions(batch)["orders"])
                assert (number, 0) in at_batch
                positions.append((batch, followed.source_of(batch)[0]))
            # Log after the commit that brings no batch.
            application.execute("UPDATE orders SET v = 1 WHERE id = 7")
            application.execute("INSERT INTO other VALUES (1)")
            [lsn] = application.execute(LOG_END).fetchone() or [""]
            wait = f"upsertflow wait {followed.root} --lsn"
            subprocess.run(followed.command(f"{wait} {lsn}", slot=False), check=True)
            assert (7, 1) in followed.rows("orders")
    finally:
        process.terminate()
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    for batch, lsn in positions:
        at_batch = followed.rows("orders", followed.versions(batch)["orders"])
        assert followed.read(asOfLsn=lsn) == followed.read(asOfBatch=str(batch)) == at_batch
    followed.execute("INSERT INTO orders VALUES (99, 0)")
    [(lsn,)] = followed.source_rows("pg_current_wal_insert_lsn()")
    late = subprocess.run(
        followed.command(f"{wait} {lsn} --timeout 10ms", slot=False), capture_output=True, text=True
    )
    assert (late.returncode, "have not reached" in late.stderr) == (1, True)


def test_the_read_of_the_page_after_an_own_write(followed: Followed) -> None:
    followed.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    [page] = code_of("docs/postgresql.md", "python", runner="integration/test_postgres_follow.py")
    process = followed.start(followed.line())
    try:
        code = page.replace("postgresql://app@db/shop", followed.url)
        exec(code.replace("/lake/shop", str(followed.root)), {})
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_refusals_before_anything_is_made(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(OptionError, match="no table with a primary key"):
        followed.follow()
    followed.execute("CREATE TABLE keyless (v text)", "CREATE TABLE a (id int PRIMARY KEY)")
    followed.follow()
    assert followed.source_rows("pg_publication_tables", "tablename") == [("a",)]
    with pytest.raises(OtherTableError, match="slot 'other'"):
        followed.follow(slot="other")
    followed.execute(
        "CREATE DOMAIN citext AS text",  # By its name: the server of the tests lacks the extension.
        "CREATE TABLE names (name citext PRIMARY KEY)",
        "ALTER PUBLICATION upsertflow ADD TABLE names",
    )
    with pytest.raises(SchemaError, match="texts of the key 'name' that differ in case"):
        followed.follow()
    followed.execute("ALTER PUBLICATION upsertflow DROP TABLE names")
    monkeypatch.setattr(connection, "_TRIES", 3)
    monkeypatch.setattr(connection, "_PAUSE_SECONDS", 0.01)
    process = followed.start(followed.line("--json"))
    try:
        followed.execute("INSERT INTO a VALUES (1)")
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["rows"] == 1
        with pytest.raises(ContentionError, match=r"is in use by PID \d+, 'upsertflow'"):
            followed.follow()
        [waits] = [text for text in caplog.messages if "the slot is in use" in text]
        assert 'by="PID ' in waits
    finally:
        process.terminate()
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
