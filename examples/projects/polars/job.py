"""Files of JSON into a table, each exactly once; a Delta table follows it; Polars sums it up.

    python job.py [--landing landing] [--lake lake]

Needs neither Java nor a server. The files are numbered in the order in which they land, as in
`landing/1.json`: the table remembers the last number that it has.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path

import polars as pl
import pyarrow as pa

from spark_upsert.errors import TableExistsError
from upsertflow import Table, Transaction

COLUMNS = pa.schema(
    {"order_id": pa.int64(), "country": pa.string(), "amount": pa.int64(), "at": pa.int64()}
)
FILE = {
    "order_id": pl.Int64,
    "country": pl.String,
    "amount": pl.Int64,
    "at": pl.Int64,
    "gone": pl.Boolean,
}
"""The columns of a file: those of the table, and whether the row is a delete."""


def open_table(lake: Path) -> Table:
    """Return the table of orders; the first call makes it."""
    path = str(lake / "orders")
    with suppress(TableExistsError):
        # Of two rows of an order the one with the newer `at` wins, whichever comes first.
        return Table.create(path, COLUMNS, keys=["order_id"], sequence_by=["at"])
    return Table.open(path)


def load(landing: Path, table: Table) -> int:
    """Apply the files that the table does not have yet; return how many these were."""
    count = 0
    for file in sorted(landing.glob("*.json"), key=lambda file: int(file.stem)):
        rows = pl.read_ndjson(file, schema=FILE).to_arrow()
        transaction = Transaction(writer="landing", number=int(file.stem))
        count += table.upsert(rows, deletes="gone", transaction=transaction) is not None
    return count


def sales(table: Table) -> pl.DataFrame:
    """Return the sum of each country. It reads the columns that it needs, and no others."""
    amounts = table.to_polars().group_by("country").agg(pl.col("amount").sum())
    return amounts.sort("country").collect()


def main() -> None:
    """Load what has landed, let the Delta table follow, and show the sums."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--landing", type=Path, default=Path("landing"))
    parser.add_argument("--lake", type=Path, default=Path("lake"))
    given = parser.parse_args()
    table = open_table(given.lake)
    print(f"{load(given.landing, table)} new files, version {table.log.head().version}")
    print(f"The Delta table is {table.publish().place}")
    print(sales(table))


if __name__ == "__main__":
    main()
