"""A mirror in a bucket: the same steps by conditional puts, read by the readers of buckets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_upsert.delta.publish import Mirror, check_mirror
from spark_upsert.errors import OptionError, OtherTableError
from spark_upsert.store.open import open_store
from spark_upsert.table.table import Table
from tests.support.delta import DeltaTable
from tests.support.mirrored import canonical
from tests.support.proxy import Fault, proxy_before
from tests.support.s3 import S3, running_s3
from tests.support.stores import forget_runs_and_logs

pytestmark = pytest.mark.slow

COLUMNS = pa.schema({"k": pa.int64(), "v": pa.int64()})


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with running_s3() as server:
        yield server


@pytest.fixture
def storage(s3: S3, tmp_path: Path) -> dict[str, str]:
    return {**s3.storage, "cache_dir": str(tmp_path)}


def rows(first: int, value: int) -> pa.Table:
    return pa.table({"k": range(first, first + 500), "v": [value] * 500}, schema=COLUMNS)


def require_copy(table: Table, place: str, storage: dict[str, str]) -> DeltaTable:
    target = open_store(place, storage)
    assert not list(check_mirror(Mirror(table.log, table.store, target)))
    found = DeltaTable(target)
    assert canonical(found.rows()) == canonical(table.snapshot())
    return found


def test_a_table_in_a_bucket_is_published_behind_each_commit(
    s3: S3, storage: dict[str, str]
) -> None:
    url = f"s3://{s3.new_bucket()}/lake/orders"
    properties = {"publish": "delta", "publishChangeFeed": "true"}
    table = Table.create(url, COLUMNS, keys=["k"], storage_options=storage, properties=properties)
    for number in range(12):
        table.upsert(rows(number * 100, number))
        if number == 6:
            forget_runs_and_logs()
            table = Table.open(url, storage_options=storage)
    table.compact(full=True)
    found = require_copy(table, f"{url}/_delta", storage)
    assert found.version == 12
    assert found.data_changes == {False}
    names = [info.path for info in found.store.list("_delta_log")]
    assert any(name.endswith("9.checkpoint.parquet") for name in names)


def test_delta_rs_reads_a_mirror_in_a_bucket(s3: S3, storage: dict[str, str]) -> None:
    deltalake = pytest.importorskip("deltalake")
    bucket = s3.new_bucket()
    table = Table.create(f"s3://{bucket}/t", COLUMNS, keys=["k"], storage_options=storage)
    place = f"s3://{bucket}/mirrors/t"
    for number in range(3):
        table.upsert(rows(number * 100, number))
        table.publish(place, storage_options=storage)
    require_copy(table, place, storage)
    told = {
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_ACCESS_KEY_ID": storage["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": storage["secret_access_key"],
        "AWS_REGION": storage.get("region", "us-east-1"),
        "AWS_ALLOW_HTTP": "true",
    }
    found = deltalake.DeltaTable(place, storage_options=told)
    query = deltalake.QueryBuilder().register("t", found).execute("select * from t")
    read = pa.table(query.read_all()).cast(COLUMNS)
    assert canonical(read) == canonical(table.snapshot())


def test_a_place_of_another_table_in_a_bucket_is_left_alone(
    s3: S3, storage: dict[str, str]
) -> None:
    bucket = s3.new_bucket()
    one, other = (
        Table.create(f"s3://{bucket}/{name}", COLUMNS, keys=["k"], storage_options=storage)
        for name in ("one", "other")
    )
    one.publish(f"s3://{bucket}/mirror", storage_options=storage)
    with pytest.raises(OtherTableError, match="mirror of another"):
        other.publish(f"s3://{bucket}/mirror", storage_options=storage)
    open_store(f"s3://{bucket}/taken", storage).put("report.csv", b"1")
    with pytest.raises(OtherTableError, match=r"report\.csv"):
        other.publish(f"s3://{bucket}/taken", storage_options=storage)


def test_a_bucket_without_conditional_puts_is_refused_before_a_file_is_written(
    s3: S3, storage: dict[str, str], tmp_path: Path
) -> None:
    """What the question leaves there is in the way of no publication."""
    place = f"s3://{s3.new_bucket()}/mirrors/t"
    table = Table.create(str(tmp_path / "t"), COLUMNS, keys=["k"])
    table.upsert(rows(0, 1))
    with proxy_before(s3.endpoint) as proxy:
        proxied = {**storage, "endpoint": proxy.endpoint}
        proxy.strike(Fault.CONDITION_IGNORED, "PUT", count=99)
        with pytest.raises(OptionError, match="use a storage with conditional puts"):
            table.publish(place, storage_options=proxied)
    target = open_store(place, storage)
    assert [info.path for info in target.list("") if info.path.endswith("parquet")] == []
    table.publish(place, storage_options=storage)
    require_copy(table, place, storage)
