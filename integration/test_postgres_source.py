"""Spark streams a real PostgreSQL database into tables: each whole batch is a state that it had."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import upsertflow
from integration.environ import from_checkout
from integration.followed import Followed, Rows, Transfers, own_database
from integration.pages import code_of
from integration.postgres_stream import written
from integration.program import Program
from integration.queries import drain, end, forget_last_commit, wait_until
from integration.servers.postgres import Postgres
from spark_upsert.core.lsn import parse_lsn
from spark_upsert.errors import TableNotFoundError
from spark_upsert.routed.group import GroupTable
from spark_upsert.store.open import open_store
from tests.support.s3 import running_s3

LONG = ["a" * 3000, "b" * 3000]

KILLS = int(os.environ.get("UPSERTFLOW_TEST_KILLS", "1"))
"""How often the query is killed, apart from the first time, while it begins."""


@pytest.fixture
def followed(postgres: Postgres, tmp_path: Path) -> Iterator[Followed]:
    with own_database(postgres, tmp_path / "lake") as followed:
        yield followed


def writer(spark: SparkSession, followed: Followed, **options: str) -> DataStreamWriter:
    """Return a query that writes a database's changes below the root."""
    slot = options.pop("slotName", followed.database)
    return written(spark, followed.url, slot, followed.root.parent, **options)


def has_rows(followed: Followed, table: str, rows: Rows) -> bool:
    try:
        return followed.rows(table) == rows
    except TableNotFoundError:
        return False


def test_the_program_of_the_page(spark: SparkSession, followed: Followed) -> None:
    followed.execute("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    [code] = code_of("docs/postgresql.md", "python", runner="integration/test_postgres_source.py")
    for text, own in (
        ("postgresql://repl@db/shop", followed.url),
        ('"lake"', f'"{followed.database}"'),
        ("/lake/", f"{followed.root.parent}/"),
        ("/shop/{", "/lake/{"),
    ):
        code = code.replace(text, own)
    names = {"spark": spark}
    exec(code, names)
    query: Any = names["query"]
    try:
        wait_until(lambda: has_rows(followed, "orders", [(1,)]), "the copy is there")
        followed.execute("INSERT INTO orders VALUES (2)")
        wait_until(lambda: has_rows(followed, "orders", [(1,), (2,)]), "the change is there")
    finally:
        query.stop()
    assert query.exception() is None


def is_slot_active(followed: Followed) -> bool:
    slots = f"pg_replication_slots WHERE slot_name = '{followed.database}'"
    return followed.source_rows(slots, "active") == [(True,)]


def test_no_secret_is_written_and_the_connection_is_closed(
    spark: SparkSession, followed: Followed
) -> None:
    """In a session that has our code from an archive, or so it seems."""
    session = spark.newSession()
    upsertflow.register(session)
    followed.execute("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    folder = followed.root.parent
    url = f"{followed.url} password=hunter2"
    query = written(session, url, followed.database, folder).start()
    try:
        wait_until(lambda: has_rows(followed, "a", [(1,)]), "the copy is there")
        assert is_slot_active(followed)
        assert "hunter2" not in f"{query.lastProgress} {query.status}"
        with redirect_stdout(StringIO()) as plan:
            query.explain(extended=True)
        assert "upsertflow.postgres" in plan.getvalue()
        assert "hunter2" not in plan.getvalue()
    finally:
        query.stop()
    wait_until(lambda: not is_slot_active(followed), "the slot is free")
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any("spool" in path.parts for path in files)
    assert [path for path in files if b"hunter2" in path.read_bytes()] == []


def test_a_crash_of_the_server_does_not_end_the_query(
    spark: SparkSession, followed: Followed
) -> None:
    followed.execute("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    query = writer(spark, followed).start()
    try:
        wait_until(lambda: has_rows(followed, "a", [(1,)]), "the copy is there")
        followed.crash()
        wait_until(lambda: is_inserted(followed, 2), "the server is back")
        wait_until(lambda: has_rows(followed, "a", [(1,), (2,)]), "the change is there")
    finally:
        query.stop()
    assert query.exception() is None


def is_inserted(followed: Followed, number: int) -> bool:
    try:
        followed.execute(f"INSERT INTO a VALUES ({number}) ON CONFLICT DO NOTHING")
    except psycopg.OperationalError:
        return False
    return True


def test_once_reads_everything_in_one_batch(spark: SparkSession, followed: Followed) -> None:
    followed.execute("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (0)")
    drain(writer(spark, followed))
    followed.execute(*(f"INSERT INTO a VALUES ({number})" for number in range(1, 50)))
    before = followed.newest_batch()
    end(writer(spark, followed, maxRowsPerTrigger="2").trigger(once=True).start())
    assert followed.rows("a") == followed.source_rows("a")
    assert followed.newest_batch() == before + 1


def test_a_copy_and_the_changes_after_it(spark: SparkSession, followed: Followed) -> None:
    followed.execute(
        "CREATE TABLE notes (id int PRIMARY KEY, n int, note text)",
        "ALTER TABLE notes ALTER note SET STORAGE EXTERNAL",
        "CREATE TABLE b (id int PRIMARY KEY, v numeric(10,2))",
        *(f"INSERT INTO notes VALUES ({i}, 0, '{LONG[0]}')" for i in range(6)),
        "INSERT INTO b SELECT i, i / 4.0 FROM generate_series(1, 5) i",
    )
    drain(writer(spark, followed))
    assert followed.rows("notes") == followed.source_rows("notes")
    assert followed.rows("b") == followed.source_rows("b")
    followed.execute(
        "UPDATE notes SET n = 1 WHERE id = 0",
        "UPDATE notes SET note = NULL WHERE id = 1",
        "UPDATE notes SET id = 12 WHERE id = 2",
        f"UPDATE notes SET note = '{LONG[1]}' WHERE id = 3",
        "DELETE FROM notes WHERE id = 4",
        "BEGIN; UPDATE notes SET n = 9 WHERE id = 5; UPDATE b SET v = NULL WHERE id = 5; END",
    )
    drain(writer(spark, followed))
    assert followed.rows("notes") == followed.source_rows("notes")
    assert followed.rows("b") == followed.source_rows("b")
    followed.execute("TRUNCATE b", "INSERT INTO b VALUES (7, 7)")
    drain(writer(spark, followed))
    assert followed.rows("b") == followed.source_rows("b")
    assert followed.source_of(followed.newest_batch())[1]


def test_a_copy_that_replaces_rows_by_several_tasks(
    spark: SparkSession, followed: Followed
) -> None:
    followed.execute(
        "CREATE TABLE big (id int PRIMARY KEY, v text)",
        "INSERT INTO big SELECT i, repeat(md5(i::text), 8) FROM generate_series(1, 60000) i",
    )
    drain(writer(spark, followed))
    followed.execute("UPDATE big SET v = 'y' WHERE id < 10")
    drain(writer(spark, followed))
    assert followed.rows("big") == followed.source_rows("big")
    followed.execute(
        "BEGIN; DELETE FROM big WHERE id % 3 = 0; ALTER TABLE big ADD n int DEFAULT 7; END",
        "UPDATE big SET v = 'x' WHERE id = 1",
    )
    drain(writer(spark, followed))
    assert followed.rows("big") == followed.source_rows("big")


def change_notes(followed: Followed, number: int) -> None:
    """Change a table by all kinds of changes, large values left out."""
    followed.execute(
        f"UPDATE notes SET n = {number} WHERE id % 2 = 0",
        "UPDATE notes SET id = id + 100 WHERE id = (SELECT min(id) FROM notes)",
        "DELETE FROM notes WHERE id = (SELECT max(id) FROM notes)",
        f"BEGIN; INSERT INTO notes VALUES ({1000 + number}, 0, repeat('n', 3000)); "
        f"INSERT INTO b VALUES ({number}); END",
    )


def prepare_notes(spark: SparkSession, followed: Followed) -> None:
    followed.execute(
        "CREATE TABLE notes (id int PRIMARY KEY, n int, note text)",
        "ALTER TABLE notes ALTER note SET STORAGE EXTERNAL",
        "CREATE TABLE b (id int PRIMARY KEY)",
        f"INSERT INTO notes SELECT i, 0, '{LONG[0]}' FROM generate_series(1, 9) i",
    )
    drain(writer(spark, followed))
    change_notes(followed, 1)
    drain(writer(spark, followed))


def require_equal(followed: Followed) -> None:
    for table in ("notes", "b"):
        assert followed.rows(table) == followed.source_rows(table)
    assert followed.source_of(followed.newest_batch())[1]


@pytest.mark.parametrize("case", ["kept", "lost", "lost, and the tables have changed"])
def test_a_planned_batch_is_repeated_with_the_same_rows(
    spark: SparkSession, followed: Followed, case: str
) -> None:
    """As if the driver had fallen between planning and commit: no table has the batch."""
    prepare_notes(spark, followed)
    folder = followed.root.parent
    shutil.copytree(followed.root, folder / "before")
    change_notes(followed, 2)
    drain(writer(spark, followed))
    shutil.rmtree(followed.root)
    (folder / "before").rename(followed.root)
    forget_last_commit(folder / "checkpoint")
    if case != "kept":
        shutil.rmtree(folder / "spool")
    if "tables" in case:
        followed.execute("ALTER TABLE b ADD w int DEFAULT 5")
    else:
        change_notes(followed, 3)
    drain(writer(spark, followed))
    require_equal(followed)


def test_a_spool_and_a_slot_that_are_lost_are_an_error_with_both_positions(
    spark: SparkSession, followed: Followed
) -> None:
    prepare_notes(spark, followed)
    [lsn, _] = followed.source_of(followed.newest_batch())
    shutil.rmtree(followed.root.parent / "spool")
    slot = followed.database
    followed.execute(
        f"SELECT pg_drop_replication_slot('{slot}')",
        "UPDATE notes SET n = 5",
        f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')",
    )
    [(confirmed,)] = followed.source_rows(
        f"pg_replication_slots WHERE slot_name = '{slot}'", "confirmed_flush_lsn"
    )
    with pytest.raises(StreamingQueryException) as error:
        drain(writer(spark, followed))
    for text in ("DATA_LOSS", lsn, confirmed, "the spool has lost"):
        assert text in str(error.value)


def test_a_checkpoint_of_another_slot_or_spool_is_refused(
    spark: SparkSession, followed: Followed
) -> None:
    prepare_notes(spark, followed)
    with pytest.raises(StreamingQueryException, match="belongs to the slot"):
        drain(writer(spark, followed, slotName="other"))
    with pytest.raises(StreamingQueryException, match="belongs to another checkpoint"):
        drain(
            writer(spark, followed).option(
                "checkpointLocation", str(followed.root.parent / "another")
            )
        )
    assert not followed.source_rows("pg_replication_slots WHERE slot_name = 'other'")
    change_notes(followed, 4)
    drain(writer(spark, followed))
    require_equal(followed)


def test_a_stream_under_load_ends_at_the_position_asked_first(
    spark: SparkSession, followed: Followed
) -> None:
    transfers = Transfers(followed, ["a", "b", "c"], random.SystemRandom().randrange(10**6))
    transfers.create()
    with transfers:
        wait_until(lambda: transfers.count > 20, "transfers run")
        for _ in range(2):
            with followed.sql() as session:
                [asked] = session.execute("SELECT pg_current_wal_flush_lsn()").fetchone() or [""]
            drain(writer(spark, followed, maxRowsPerTrigger="50"))
            reached, is_whole = followed.source_of(followed.newest_batch())
            assert is_whole
            assert parse_lsn(reached) >= parse_lsn(asked)


def test_a_spool_in_a_bucket(spark: SparkSession, followed: Followed) -> None:
    followed.execute("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    with running_s3() as s3:
        storage = {f"storage.{name}": value for name, value in s3.storage.items()}
        storage["storage.cache_dir"] = str(followed.root.parent / "cache")
        options = {"spool": f"s3://{s3.new_bucket()}/spool", **storage}
        drain(writer(spark, followed, **options))
        followed.execute("INSERT INTO a VALUES (2)", "DELETE FROM a WHERE id = 1")
        drain(writer(spark, followed, **options))
    assert followed.rows("a") == [(2,)]


def test_batches_are_states_of_the_database_through_kills(
    spark: SparkSession, followed: Followed, plain_environ: dict[str, str]
) -> None:
    seed = random.SystemRandom().randrange(10**6)
    choice = random.Random(seed)
    transfers = Transfers(followed, ["a", "b", "c"], seed)
    transfers.create()
    folder = followed.root.parent
    arguments = (followed.url, followed.database, str(folder))
    environ = from_checkout(plain_environ)
    program = Program(folder, "integration.postgres_stream", arguments, environ)
    with transfers:
        program.keep_running()
        wait_until(lambda: (folder / "spool").exists(), "the source is opened")
        threading.Event().wait(choice.uniform(0, 2))  # While the slot or the copies are made.
        program.kill()
        for _ in range(KILLS):
            number = newest_batch(followed) + choice.randrange(2, 6)
            program.keep_running()
            wait_until(lambda n=number: newest_batch(followed) >= n, f"batch {number}, seed {seed}")
            threading.Event().wait(choice.uniform(0, 0.5))  # At any time within a batch.
            program.kill()
    drain(writer(spark, followed))
    first = min(n for n in range(followed.newest_batch()) if followed.source_of(n)[1])
    transfers.require_sums(first)


def newest_batch(followed: Followed) -> int:
    """Return the number of the newest complete batch; -1 without one."""
    batch = GroupTable(open_store(str(followed.root))).at().batch
    return -1 if batch is None or batch.number is None else batch.number
