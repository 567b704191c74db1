"""Spark streams a real PostgreSQL database into tables: each whole batch is a state that it had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from integration.followed import Followed, Rows, own_database
from integration.pages import code_of
from integration.queries import drain, wait_until
from integration.servers.postgres import Postgres
from spark_upsert.errors import TableNotFoundError

LONG = ["a" * 3000, "b" * 3000]


@pytest.fixture
def followed(postgres: Postgres, tmp_path: Path) -> Iterator[Followed]:
    with own_database(postgres, tmp_path / "lake") as followed:
        yield followed


def writer(spark: SparkSession, followed: Followed, **options: str) -> DataStreamWriter:
    """Return a query that writes a database's changes below the root."""
    folder = followed.root.parent
    return (
        spark.readStream.format("upsertflow.postgres")
        .option("url", followed.url)
        .option("slotName", followed.database)
        .option("spool", str(folder / "spool"))
        .options(**options)
        .load()
        .writeStream.format("upsertflow")
        .option("path", followed.path)
        .option("envelope", "postgres")
        .option("checkpointLocation", str(folder / "checkpoint"))
    )


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
