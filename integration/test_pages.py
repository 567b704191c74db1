"""Every code block of the documentation runs, except those that say why they cannot.

A block runs by itself and finds what its page takes for granted (`GRANTED`). Only paths, addresses
and secrets are not those of the page: folders lie below one of the test, the bucket is on a server
of the test.
"""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from integration.pages import HERE, ROOT, Block, blocks
from spark_upsert.table.table import Table
from tests.support.group_worlds import RoutedBatch
from tests.support.s3 import S3, running_s3

pytestmark = [pytest.mark.spark, pytest.mark.slow]

OURS = [block for block in blocks() if block.runner == HERE]
COMMAND_SECONDS_MAX = 120

BUCKET = "lake"
ORDERS = pa.schema({"order_id": pa.int64(), "offset": pa.int64(), "amount": pa.int64()})
VERSIONS = 42
"""Of the table `/lake/orders`: pages name its version 41."""

Names = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a block runs."""

    spark: SparkSession
    folder: Path
    orders: Path
    """A table to copy: its versions take longer than the copy."""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with running_s3() as server:
        yield server


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lake") / "orders"
    make_orders(str(path), versions=VERSIONS)
    return path


@pytest.fixture
def place(
    tmp_path: Path, spark: SparkSession, orders: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """Where a block runs; Spark forgets what it was told about it."""
    monkeypatch.chdir(tmp_path)
    # The first screen of README names a folder of where Spark was started: all tests.
    shutil.rmtree(ROOT / "people", ignore_errors=True)
    with logging_as_before():
        yield Place(spark, tmp_path, orders)
    shutil.rmtree(ROOT / "people", ignore_errors=True)
    for query in spark.streams.active:
        query.stop()
    for view in ("orders", "orders_then"):
        spark.catalog.dropTempView(view)


@contextmanager
def logging_as_before() -> Iterator[None]:
    """Let a page say what the program's log tells, and forget it afterwards."""
    loggers = {name: logging.getLogger(name) for name in ("", "spark_upsert")}
    levels = {name: logger.level for name, logger in loggers.items()}
    handlers = list(loggers[""].handlers)
    yield
    for name, logger in loggers.items():
        logger.setLevel(levels[name])
    loggers[""].handlers[:] = handlers


@pytest.mark.parametrize("block", OURS, ids=map(str, OURS))
def test_the_code_of_a_page_runs(block: Block, place: Place, s3: S3) -> None:
    granted = GRANTED.get(block.page, some_orders)(place)
    if "s3://" in block.code:
        empty_bucket(s3)
        if granted.get("path"):
            make_orders(f"s3://{BUCKET}/orders", versions=3, storage=s3.storage)
    code = localized(block.code, place.folder, s3)
    match block.language:
        case "python":
            names = {"spark": place.spark, **granted}
            run_python(code, names)
            for sign, claim in CLAIMS.items():
                assert sign not in block.code or claim(names)
        case "sh":
            run_shell(code)
        case "sql":
            for statement in statements(code):
                consume(place.spark.sql(statement))
        case _:
            json.loads(code)


CLAIMS: dict[str, Callable[[Names], bool]] = {
    "people.show()": lambda names: (
        [tuple(row) for row in names["people"].collect()] == [(2, "Eve", 3)]
        and {(r["name"], r["_diff"]) for r in names["changes"].collect()}
        == {("Ada", -1), ("Bob", -1), ("Eve", 1)}
    ),
    "table.snapshot()  # 1 Ada, 2 Eve": lambda names: (
        sorted(names["table"].snapshot().to_pydict()["name"]) == ["Ada", "Eve"]
    ),
    "table.changes(2)  # 2 Bob retracted, 2 Eve inserted": lambda names: (
        sorted(names["table"].changes(2).select(["name", "_diff"]).to_pylist(), key=str)
        == [{"name": "Bob", "_diff": -1}, {"name": "Eve", "_diff": 1}]
    ),
    "both = (": lambda names: (
        {(r["_input"], r["amount"] is None) for r in names["both"].collect()}
        == {("east", False), ("north", True)}
    ),
    "orders = spark.read.": lambda names: (
        [(r["id"], r["amount"]) for r in names["orders"].collect()] == [(1, 30)]
    ),
    "everything = spark.read": lambda names: (
        {(r["tenant"], r["order_id"], r["amount"]) for r in names["everything"].collect()}
        == {(f"{tenant}/orders", number, number) for tenant in "ab" for number in range(3)}
    ),
}
"""What code that holds these words says of itself."""


@pytest.mark.parametrize("words", CLAIMS)
def test_what_is_claimed_stands_in_a_page(words: str) -> None:
    assert any(words in block.code for block in OURS)


# -- languages -----------------------------------------------------------------------


def run_python(code: str, names: Names) -> None:
    """Run code and consume what it makes: a frame that is not read proves nothing."""
    for node in ast.parse(code).body:
        if isinstance(node, ast.Expr):
            consume(eval(compile(ast.Expression(node.value), "<page>", "eval"), names))
        else:
            exec(compile(ast.Module([node], []), "<page>", "exec"), names)
        for query in names["spark"].streams.active:
            query.processAllAvailable()
            query.stop()
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            consume(names[node.targets[0].id])


def consume(shown: object) -> None:
    """Read a frame to its end."""
    if not isinstance(shown, DataFrame):
        return
    if not shown.isStreaming:
        shown.collect()
        return
    query = shown.writeStream.format("noop").trigger(availableNow=True).start()
    query.processAllAvailable()
    query.stop()


def run_shell(code: str) -> None:
    """Run commands as a reader does, with this environment's programs before the system's."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euc", code],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def statements(code: str) -> list[str]:
    text = "\n".join(line.split("--")[0] for line in code.splitlines())
    return [each.strip() for each in text.split(";") if each.strip()]


# -- places --------------------------------------------------------------------------


def localized(code: str, folder: Path, s3: S3) -> str:
    """Return code with the paths, addresses and secrets of this test."""
    code = re.sub(r"""(["' =])/(lake|checkpoints)/""", rf"\1{folder}/\2/", code)
    # A page that names a region of Amazon's names this server.
    spark_options = {f"storage.{name}": value for name, value in s3.storage.items()}
    code = re.sub(r'\.option\("storage\.region", "[^"]+"\)', f".options(**{spark_options})", code)
    code = re.sub(r'\{"region": "[^"]+"\}', repr(s3.storage), code)
    code = re.sub(r'\bregion="[^"]+"', f"**{s3.storage}", code)
    flags = " ".join(f"-o {name}={value}" for name, value in s3.storage.items())
    code = re.sub(r"-o region=\S+", flags, code)
    code = code.replace("http://localhost:9000", s3.endpoint)
    for name in ("access_key_id", "secret_access_key"):
        code = code.replace(f'"{name}": "..."', f'"{name}": "{s3.storage[name]}"')
    return code


def empty_bucket(s3: S3) -> None:
    client = s3.client()
    if BUCKET not in [found["Name"] for found in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket=BUCKET)
    for key in s3.keys(BUCKET):
        client.delete_object(Bucket=BUCKET, Key=key)


# -- what a page takes for granted ---------------------------------------------------


def some_orders(place: Place) -> Names:
    """Give a table of orders, and rows that are to be written to it."""
    path = place.folder / "lake" / "orders"
    shutil.copytree(place.orders, path)
    return {"path": str(path), **some_rows(place)}


def make_orders(path: str, *, versions: int, storage: dict[str, str] | None = None) -> None:
    table = Table.create(
        path, ORDERS, keys=["order_id"], sequence_by=["offset"], storage_options=storage or {}
    )
    for number in range(versions):
        rows = {"order_id": [number % 7], "offset": [number], "amount": [number]}
        table.upsert(pa.table(rows, schema=ORDERS))


def some_rows(place: Place) -> Names:
    """Give rows of orders, as a stream and at once, and what names them in the pages."""
    commands = pa.table(
        {
            "order_id": [1, 2, 2, 100],
            "offset": [101, 102, 103, 104],
            "amount": [1, 2, 3, 4],
            "is_deleted": [False, False, True, False],
        }
    )
    at = place.folder / "commands"
    at.mkdir()
    pq.write_table(commands, at / "commands.parquet")
    columns = "order_id BIGINT, offset BIGINT, amount BIGINT, is_deleted BOOLEAN"
    return {
        "orders": place.spark.readStream.schema(columns).parquet(str(at)),
        "history": place.spark.read.parquet(str(at)).drop("is_deleted"),
        "schema": ORDERS,
        "checkpoint": str(place.folder / "checkpoint"),
    }


def regions(place: Place) -> Names:
    """Make tables of orders, one of which lacks a column, of tenants, and of a group."""
    for name in ("east", "west", "tenants/a/orders", "tenants/b/orders"):
        make_orders(str(place.folder / "lake" / name), versions=3)
    fewer = pa.schema([ORDERS.field("order_id"), ORDERS.field("offset")])
    north = Table.create(str(place.folder / "lake" / "north"), fewer, keys=["order_id"])
    north.upsert(pa.table({"order_id": [1], "offset": [1]}, schema=fewer))
    RoutedBatch(place.folder / "lake" / "shop").batch(orders={1: 1}, users={2: 2})
    return {}


def rows_of_tables(place: Place) -> Names:
    """Give rows that say which table they are of, at once and as a stream, and a group of tables."""
    rows = pa.table(
        {
            "db": ["shop", "shop", "crm"],
            "table": ["orders", "users", "leads"],
            "id": [1, 1, 7],
            "amount": [30, 50, 70],
        }
    )
    at = place.folder / "rows"
    at.mkdir()
    pq.write_table(rows, at / "rows.parquet")
    read = place.spark.read.parquet(str(at))
    RoutedBatch(place.folder / "lake" / "shop").batch(orders={1: 1}, users={2: 2})
    return {
        "rows": read,
        "changes": place.spark.readStream.schema(read.schema).parquet(str(at)),
        "checkpoint": str(place.folder / "checkpoint"),
    }


def regions_and_orders(place: Place) -> Names:
    """Give the tables of regions, and the table of orders."""
    return {**some_orders(place), **regions(place)}


def a_shop(place: Place) -> Names:
    """Make a table of orders, found by their customers, and one of customers."""
    orders = pa.schema({"order_id": pa.int64(), "customer_id": pa.int64(), "amount": pa.int64()})
    at = place.folder / "lake"
    made = Table.create(
        str(at / "orders"), orders, keys=["order_id"], properties={"indexBy": "customer_id"}
    )
    rows = {"order_id": [1, 2, 3], "customer_id": [7, 8, 9], "amount": [200, 50, 300]}
    made.upsert(pa.table(rows, schema=orders))
    customers = pa.schema({"id": pa.int64(), "country": pa.string()})
    made = Table.create(str(at / "customers"), customers, keys=["id"])
    made.upsert(pa.table({"id": [7, 8], "country": ["NL", "DE"]}, schema=customers))
    return {}


GRANTED: dict[str, Callable[[Place], Names]] = {
    "docs/object-stores.md": some_rows,
    "docs/many-tables.md": regions,
    "docs/routed.md": rows_of_tables,
    "docs/scheduling.md": regions_and_orders,
    "docs/views.md": a_shop,
}
"""By page; for all others, `some_orders`."""
