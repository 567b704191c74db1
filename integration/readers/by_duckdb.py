"""Read Delta tables by DuckDB, whose extension comes as a package, signed by DuckDB."""

from __future__ import annotations

from pathlib import Path

import duckdb
import duckdb_extension_delta
import pyarrow as pa

from integration.readers.answers import Question, answer


def _connection() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    [folder] = duckdb_extension_delta.__path__
    [extension] = Path(folder).rglob("delta.duckdb_extension")
    connection.load_extension(str(extension))
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def statement(question: Question) -> pa.Table:
    """Run a statement of SQL."""
    return pa.table(_connection().sql(question["sql"]).to_arrow_table())


def rows(question: Question) -> pa.Table:
    """Return the rows of a version, or the newest, that a condition keeps."""
    connection = _connection()
    source = f"delta_scan('{question['place']}')"
    if "version" in question:
        options = f"TYPE delta, VERSION {question['version']}"
        connection.execute(f"ATTACH '{question['place']}' AS mirror ({options})")
        source = "mirror"
    return pa.table(
        connection.sql(
            f"SELECT * FROM {source} WHERE {question.get('where', 'true')}"
        ).to_arrow_table()
    )


if __name__ == "__main__":
    answer({"rows": rows, "statement": statement})
