"""Tables on an S3 server, with many writers, lost answers and a bounded cache.

Own processes: an S3 server whose answers are lost on purpose; there is no Spark.
"""

from __future__ import annotations

import errno
import itertools
import json
import multiprocessing
import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from spark_upsert.cli.routed import list_tables
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import (
    CorruptionError,
    OptionError,
    StorageError,
    TableExistsError,
    TableNotFoundError,
    UpsertFlowError,
)
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.routed.commit import commit_routed
from spark_upsert.routed.plan import plan_routed, root_of
from spark_upsert.routed.stage import stage_routed
from spark_upsert.store import Store
from spark_upsert.store.cache import LocalCopies
from spark_upsert.store.object_store import RANGE_BYTES
from spark_upsert.store.open import open_store
from spark_upsert.table.log.reader import LOGS
from spark_upsert.table.run.file import RUNS
from spark_upsert.table.table import Table
from tests.support.proxy import Fault, Proxy, proxy_before
from tests.support.s3 import S3, running_s3
from tests.support.workers import (
    append_rows,
    create_objects,
    mapped_bytes,
    memory_of_round_trip,
    worker_processes,
)

COLUMNS = pa.schema({"k": pa.int64(), "v": pa.int64()})
Storage = dict[str, str]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with running_s3() as server:
        yield server


@pytest.fixture(scope="module")
def workers() -> Iterator[ProcessPoolExecutor]:
    with worker_processes(4) as pool:
        yield pool


@pytest.fixture
def url(s3: S3) -> str:
    return f"s3://{s3.new_bucket()}/lake/orders"


@pytest.fixture
def storage(s3: S3, tmp_path: Path) -> Storage:
    return {**s3.storage, "cache_dir": str(tmp_path)}


@pytest.fixture
def proxy(s3: S3) -> Iterator[Proxy]:
    with proxy_before(s3.endpoint) as running:
        yield running


@pytest.fixture
def proxied(storage: Storage, proxy: Proxy) -> Storage:
    return {**storage, "endpoint": proxy.endpoint}


def rows(**values: int) -> pa.Table:
    """Return rows whose keys are the numbers in the names: ``rows(k1=5)``."""
    keys = [int(name.removeprefix("k")) for name in values]
    return pa.table({"k": keys, "v": list(values.values())}, schema=COLUMNS)


def contents(table: Table, version: int | None = None) -> dict[int, int]:
    found = table.snapshot(version).to_pydict()
    return dict(zip(found["k"], found["v"], strict=True))


def folded(table: Table) -> dict[int, int]:
    """Return what the changelog adds up to."""
    result: dict[int, int] = {}
    for change in table.changes().to_pylist():
        if change["_diff"] > 0:
            assert change["k"] not in result
            result[change["k"]] = change["v"]
        else:
            assert result.pop(change["k"]) == change["v"]
    return result


def copies(storage: Storage) -> list[Path]:
    (folder,) = Path(storage["cache_dir"]).iterdir()
    return sorted(folder.iterdir())


def try_condition(url: str, storage: Storage, proxy: Proxy) -> None:
    """Let the process learn that the server knows conditional puts, then count from zero."""
    open_store(url, storage).put_if_absent("_tried", b"")
    proxy.requests.clear()


def close_runs() -> None:
    """Forget which runs are open, as a fresh process."""
    RUNS._runs.clear()


def write(store: Store, path: str, data: bytes) -> None:
    with store.create(path) as sink:
        sink.write(data)


# -- a table, as on disk ---------------------------------------------------------------


def test_a_table_lives_in_a_bucket(url: str, storage: Storage) -> None:
    table = Table.create(url, COLUMNS, keys=["k"], storage_options=storage)
    table.upsert(rows(k1=10, k2=20))
    table.upsert(rows(k2=21, k3=30))
    table.upsert(rows(k9=90), overwrite=True)
    again = Table.open(url, storage_options=storage)
    assert contents(again, 1) == {1: 10, 2: 20}
    assert contents(again, 2) == {1: 10, 2: 21, 3: 30}
    assert contents(again) == folded(again) == {9: 90}
    second = again.changes(2, 3).to_pylist()
    assert sorted((each["k"], each["v"], each["_change_type"]) for each in second) == [
        (2, 20, "update_preimage"),
        (2, 21, "update_postimage"),
        (3, 30, "insert"),
    ]


def test_rows_go_to_the_tables_of_odd_values_in_a_bucket(url: str, storage: Storage) -> None:
    url = f"{url}/a lake~1 & more+"
    values = ["orders", "a/b", "../x", "_group", "100%", "größe 1", "a?b#c", "[a]*"]
    told = {f"storage.{name}": text for name, text in storage.items()}
    options = RoutedOptions.parse({"path": f"{url}/{{topic}}/rows", "keys": "k", **told})
    rows = pa.record_batch({"topic": values, "k": list(range(len(values)))})
    root = root_of(options)
    plan = plan_routed(options, rows.schema, root=root)
    staged = stage_routed(plan, root, [rows], None, 0)
    assert commit_routed(root, options, [staged], None) is not None
    assert {line.name: line.note for line in list_tables(url, storage).lines} == {
        f"{value}/rows": None for value in values
    }
    for key, value in enumerate(values):
        at = options.of(value, options.template.folder([value])).path
        [row] = Table.open(at, storage_options=storage).snapshot().to_pylist()
        assert row == {"topic": value, "k": key}


def test_creating_a_table_twice_is_an_error(url: str, storage: Storage) -> None:
    Table.create(url, COLUMNS, keys=["k"], storage_options=storage).upsert(rows(k1=1))
    with pytest.raises(TableExistsError):
        Table.create(url, COLUMNS, keys=["k"], storage_options=storage)
    assert contents(Table.open(url, storage_options=storage)) == {1: 1}


def test_hadoop_s_scheme_names_the_same_bucket(url: str, storage: Storage) -> None:
    Table.create(url, COLUMNS, keys=["k"], storage_options=storage).upsert(rows(k1=1))
    assert contents(Table.open(url.replace("s3://", "s3a://"), storage_options=storage)) == {1: 1}


def test_a_table_writes_below_its_path_only(s3: S3, url: str, storage: Storage) -> None:
    Table.create(url, COLUMNS, keys=["k"], storage_options=storage).upsert(rows(k1=1))
    keys = s3.keys(url.split("/")[2])
    assert all(key.startswith("lake/orders/") for key in keys)
    assert "lake/orders/_log/00000000000000000001.json" in keys


def test_a_table_that_is_not_there_is_not_found(url: str, storage: Storage) -> None:
    with pytest.raises(TableNotFoundError):
        Table.open(url, storage_options=storage)


# -- single objects --------------------------------------------------------------------


def test_an_absent_object_is_a_file_not_found(url: str, storage: Storage) -> None:
    store = open_store(url, storage)
    with pytest.raises(FileNotFoundError, match=f"there is no object '{url}/data/none'"):
        store.read("data/none")
    with pytest.raises(FileNotFoundError):
        store.map("data/none")
    store.delete("data/none")


def test_a_deletion_is_a_single_request_that_every_server_knows(
    url: str, proxied: Storage, proxy: Proxy
) -> None:
    store = open_store(url, proxied)
    store.put("data/a", b"a")
    store.delete("data/a")
    assert proxy.seen("DELETE", "data/a") == 1
    assert list(store.list("data")) == []


def test_a_listing_of_many_pages_is_sorted_and_whole(s3: S3, url: str, storage: Storage) -> None:
    bucket, client = url.split("/")[2], s3.client()
    names = [f"data/{index:04d}" for index in range(1100)]
    with ThreadPoolExecutor(4) as pool:
        for name in names:
            pool.submit(client.put_object, Bucket=bucket, Key=f"lake/orders/{name}", Body=b"")
    store = open_store(url, storage)
    assert [each.path for each in store.list("data")] == names
    assert [each.path for each in store.list("data", after=names[1050])] == names[1051:]


# -- races -----------------------------------------------------------------------------


def test_of_many_threads_one_creates_each_object(url: str, storage: Storage) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda w: create_objects(url, storage, w, 20), range(8)))
    assert sorted(itertools.chain(*made)) == list(range(20))


def test_of_many_processes_one_creates_each_object(
    url: str, storage: Storage, workers: ProcessPoolExecutor
) -> None:
    running = [workers.submit(create_objects, url, storage, w, 40) for w in range(4)]
    made = [each.result() for each in running]
    assert sorted(itertools.chain(*made)) == list(range(40))
    store = open_store(url, storage)
    for writer, keys in enumerate(made):
        assert all(store.read(f"race/{key}") == b"%d" % writer for key in keys)


def check_race(table: Table, url: str, committed: list[list[int]]) -> None:
    """Check that versions are a chain and that no append was lost or made twice."""
    appends = sum(len(each) for each in committed)
    assert sorted(itertools.chain(*committed)) == list(range(1, appends + 1))
    head = table.log.head()
    assert (head.version, head.live_rows) == (appends, appends)
    commits = list(table.log.commits(0, appends + 1))
    assert [each.version for each in commits] == list(range(appends + 1))
    assert len({each.token for each in commits}) == appends + 1
    assert all(a.timestamp_ms < b.timestamp_ms for a, b in itertools.pairwise(commits))
    expected = {
        1000 * writer + index: writer
        for writer, versions in enumerate(committed)
        for index in range(len(versions))
    }
    assert contents(table) == folded(table) == expected


def test_appends_of_racing_threads_are_a_chain(url: str, storage: Storage) -> None:
    table = Table.create(url, COLUMNS, keys=["k"], storage_options=storage)
    with ThreadPoolExecutor(8) as pool:
        committed = list(pool.map(lambda w: append_rows(url, storage, w, 5), range(8)))
    check_race(table, url, committed)


def test_appends_of_racing_processes_are_a_chain(
    url: str, storage: Storage, workers: ProcessPoolExecutor
) -> None:
    table = Table.create(url, COLUMNS, keys=["k"], storage_options=storage)
    running = [workers.submit(append_rows, url, storage, w, 12) for w in range(4)]
    check_race(table, url, [each.result() for each in running])


def test_of_racing_creators_one_makes_the_table(url: str, storage: Storage) -> None:
    def make(_: int) -> int:
        table = Table(open_store(url, storage))
        return table.ensure(TableSchema.of(COLUMNS, keys=["k"])).schema.hash_seed

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(make, range(8)))) == 1


# -- lost answers ----------------------------------------------------------------------

LASTING = (Fault.SILENCE, Fault.REFUSED, Fault.CONDITION_IGNORED)
PASSING = [fault for fault in Fault if fault not in LASTING]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: fault.value)
def test_who_created_an_object_is_told_so(
    url: str, proxied: Storage, proxy: Proxy, fault: Fault, count: int
) -> None:
    store = open_store(url, proxied)
    proxy.strike(fault, "PUT", "_log/0", count=count)
    assert store.put_if_absent("_log/0", b"ours")
    assert not store.put_if_absent("_log/0", b"another's")


@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: fault.value)
def test_an_append_is_applied_once_whatever_happens_to_its_commit(
    url: str, proxied: Storage, proxy: Proxy, fault: Fault
) -> None:
    table = Table.create(url, COLUMNS, keys=["k"], storage_options=proxied)
    proxy.strike(fault, "PUT", "_log/00000000000000000001.json", count=2)
    commit = table.upsert(rows(k1=10))
    assert commit is not None
    assert commit.version == table.log.head().version == 1
    assert table.log.head().live_rows == 1


@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: fault.value)
def test_a_lost_answer_does_not_turn_the_race_of_another_into_ours(
    url: str, proxied: Storage, proxy: Proxy, fault: Fault
) -> None:
    store = open_store(url, proxied)
    store.put("_log/0", b"another's")
    proxy.strike(fault, "PUT", "_log/0")
    assert not store.put_if_absent("_log/0", b"ours")
    assert store.read("_log/0") == b"another's"


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.ERROR_AFTER_EFFECT])
def test_the_token_settles_an_append_that_is_not_repeated(
    url: str, proxied: Storage, proxy: Proxy, fault: Fault
) -> None:
    table = Table.create(url, COLUMNS, keys=["k"], storage_options={**proxied, "max_retries": "0"})
    proxy.strike(fault, "PUT", "_log/00000000000000000001.json")
    commit = table.upsert(rows(k1=10))
    assert commit is not None
    assert contents(table) == {1: 10}
    assert table.log.head().version == 1


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.UNAVAILABLE, Fault.CONFLICT])
def test_an_append_that_fails_has_no_effect_and_can_be_repeated(
    url: str, proxied: Storage, proxy: Proxy, fault: Fault
) -> None:
    table = Table.create(url, COLUMNS, keys=["k"], storage_options={**proxied, "max_retries": "0"})
    proxy.strike(fault, "PUT", "_log/00000000000000000001.json")
    with pytest.raises(StorageError):
        table.upsert(rows(k1=10))
    assert contents(table) == {}
    table.upsert(rows(k1=11))
    assert contents(table) == {1: 11}


TROUBLES = [
    (fault, method, "_log/0" if fault is Fault.CONFLICT else "")
    for fault in PASSING
    for method in ("PUT", "GET")
    if (fault, method) != (Fault.CONFLICT, "GET")
]


@pytest.mark.parametrize("seed", range(3))
def test_a_bad_line_changes_no_answer(url: str, proxied: Storage, proxy: Proxy, seed: int) -> None:
    dice = random.Random(seed)
    table = Table.create(url, COLUMNS, keys=["k"], storage_options=proxied)
    expected: dict[int, int] = {}
    for index in range(10):
        for _ in range(2):
            proxy.strike(*dice.choice(TROUBLES))
        key = dice.randrange(4)
        table.upsert(rows(**{f"k{key}": index}))
        expected[key] = index
    assert table.log.head().version == 10
    close_runs()
    fresh = Table.open(url, storage_options=proxied)
    assert contents(fresh) == folded(fresh) == expected


# -- what cannot work ------------------------------------------------------------------


def every_verb(store: Store) -> dict[str, Callable[[], object]]:
    return {
        "read": lambda: store.read("a"),
        "put": lambda: store.put("a", b""),
        "put_if_absent": lambda: store.put_if_absent("a", b""),
        "create": lambda: write(store, "a", b"x" * (RANGE_BYTES + 1)),
        "map": lambda: store.map("a"),
        "list": lambda: list(store.list("data")),
        "list behind": lambda: list(store.list("data", after="data/a")),
        "delete": lambda: store.delete("a"),
    }


VERBS = list(every_verb(None))  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "wrong", [{"secret_access_key": "wrong"}, {"access_key_id": "AKIAWRONG"}], ids=str
)
def test_wrong_credentials_are_an_option_error(
    url: str, storage: Storage, verb: str, wrong: Storage
) -> None:
    store = open_store(url, {**storage, **wrong})
    with pytest.raises(OptionError, match=f"'{url}/") as caught:
        every_verb(store)[verb]()
    assert "check the credentials" in caught.value.hint
    assert storage["secret_access_key"] not in str(caught.value)


def test_hints_of_a_storage_are_followed(
    s3: S3, url: str, storage: Storage, proxied: Storage, proxy: Proxy
) -> None:
    def create(path: str = url, **more: str) -> Table:
        return Table.create(path, COLUMNS, keys=["k"], storage_options={**storage, **more})

    with pytest.raises(OptionError, match="check the credentials"):
        create(secret_access_key="wrong")
    with pytest.raises(StorageError, match=r"check 'storage\.endpoint'"):
        create(endpoint="http://127.0.0.1:1", max_retries="1")
    assert create().log.head().version == 0
    absent = "s3://yet-to-be-made/lake/orders"
    with pytest.raises(OptionError, match="make the bucket"):
        create(absent)
    s3.client().create_bucket(Bucket="yet-to-be-made")
    assert create(absent).log.head().version == 0
    other = f"s3://{s3.new_bucket()}/lake/orders"
    proxy.strike(Fault.CONDITION_IGNORED, "PUT", count=99)
    with pytest.raises(OptionError, match="use a storage with conditional puts"):
        create(other, endpoint=proxied["endpoint"])
    assert create(f"{other}_anew").log.head().version == 0


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "delete"])
def test_a_missing_bucket_is_an_option_error(storage: Storage, verb: str) -> None:
    store = open_store("s3://no-such-bucket/table", storage)
    with pytest.raises(OptionError, match="NoSuchBucket") as caught:
        every_verb(store)[verb]()
    assert "make the bucket" in caught.value.hint


@pytest.mark.parametrize("verb", VERBS)
def test_a_server_that_does_not_answer_is_a_storage_error(
    url: str, storage: Storage, verb: str
) -> None:
    absent = {"endpoint": "http://127.0.0.1:1", "max_retries": "1"}
    store = open_store(url, {**storage, **absent})
    with pytest.raises(StorageError) as caught:
        every_verb(store)[verb]()
    assert "storage.endpoint" in caught.value.hint


def test_opening_a_table_with_wrong_credentials_says_so(url: str, storage: Storage) -> None:
    Table.create(url, COLUMNS, keys=["k"], storage_options=storage)
    with pytest.raises(OptionError, match="could not read"):
        Table.open(url, storage_options={**storage, "secret_access_key": "wrong"})


@pytest.mark.parametrize("verb", ["read", "put", "put_if_absent"])
def test_patience_is_bounded_by_a_count(
    url: str, proxied: Storage, proxy: Proxy, verb: str
) -> None:
    try_condition(url, proxied, proxy)
    proxy.strike(Fault.UNAVAILABLE, "GET", count=99)
    proxy.strike(Fault.UNAVAILABLE, "PUT", count=99)
    with pytest.raises(StorageError, match="503"):
        every_verb(open_store(url, {**proxied, "max_retries": "2"}))[verb]()
    assert len(proxy.requests) == 3


@pytest.mark.parametrize("verb", ["read", "put_if_absent"])
def test_patience_is_bounded_by_time(url: str, proxied: Storage, proxy: Proxy, verb: str) -> None:
    try_condition(url, proxied, proxy)
    proxy.strike(Fault.UNAVAILABLE, "GET", count=99)
    proxy.strike(Fault.UNAVAILABLE, "PUT", count=99)
    with pytest.raises(StorageError, match="503"):
        every_verb(open_store(url, {**proxied, "retry_timeout": "0.3s"}))[verb]()
    assert len(proxy.requests) < 9


def test_what_the_server_refuses_is_asked_once(url: str, proxied: Storage, proxy: Proxy) -> None:
    try_condition(url, proxied, proxy)
    proxy.strike(Fault.REFUSED, "PUT")
    with pytest.raises(StorageError, match="InvalidDigest"):
        open_store(url, proxied).put_if_absent("a", b"")
    assert len(proxy.requests) == 1


def test_a_silent_server_is_given_up_after_the_timeout(
    url: str, proxied: Storage, proxy: Proxy
) -> None:
    proxy.strike(Fault.SILENCE, "PUT")
    store = open_store(url, {**proxied, "timeout": "0.5s"})
    store.put("a", b"ours")
    assert proxy.seen("PUT") >= 2, "a busy machine may be too late more often"


def test_a_server_that_ignores_the_condition_is_refused(
    url: str, proxied: Storage, proxy: Proxy
) -> None:
    proxy.strike(Fault.CONDITION_IGNORED, "PUT", count=99)
    with pytest.raises(OptionError, match="If-None-Match") as caught:
        Table.create(url, COLUMNS, keys=["k"], storage_options=proxied)
    assert "conditional puts" in caught.value.hint
    with pytest.raises(TableNotFoundError):
        Table.open(url, storage_options=proxied)


def test_the_condition_is_tried_once_per_bucket(url: str, proxied: Storage, proxy: Proxy) -> None:
    for name in "abc":
        assert open_store(url, proxied).put_if_absent(name, b"")
    assert proxy.seen("PUT", "_conditional_put") == 2
    assert len(proxy.requests) == 5


def test_a_forked_child_is_told_and_does_not_hang(url: str, storage: Storage) -> None:
    store = open_store(url, storage)
    store.put("a", b"a")
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        try:
            store.read("a")
        except UpsertFlowError as error:
            sender.send(error)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    try:
        assert receiver.poll(240)
        assert "does not survive a fork" in str(receiver.recv())
    finally:
        process.kill()
        process.join()


# -- large objects ---------------------------------------------------------------------


def test_a_large_object_goes_up_in_parts_and_comes_back_in_ranges(
    url: str, proxied: Storage, proxy: Proxy
) -> None:
    byte_count = (65 << 20) + 1
    data = random.Random(1).randbytes(byte_count)
    store = open_store(url, proxied)
    write(store, "data/large", data)
    parts = -(-byte_count // RANGE_BYTES)
    assert proxy.seen("PUT", "partNumber") == parts
    assert store.map("data/large").equals(pa.py_buffer(data))
    assert proxy.seen("GET", "data/large") == parts


def test_a_small_object_takes_one_request_each_way_and_none_back_to_who_wrote_it(
    url: str, proxied: Storage, proxy: Proxy
) -> None:
    store = open_store(url, proxied)
    write(store, "data/small", b"small")
    for methods in (["PUT"], ["PUT", "GET"]):
        assert store.map("data/small").to_pybytes() == b"small"
        assert [method for method, _ in proxy.requests] == methods
        store.forget("data/small")


def test_an_object_of_which_no_copy_can_be_made_is_put_all_the_same(
    url: str, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(LocalCopies, "map", full)
        write(open_store(url, storage), "data/small", b"small")
    assert open_store(url, storage).map("data/small").to_pybytes() == b"small"


@pytest.mark.parametrize("is_there", [True, False], ids=["an object", "its absence"])
@pytest.mark.parametrize("fault", [Fault.CUT_BODY, Fault.LOST_ANSWER, Fault.UNAVAILABLE])
def test_a_read_that_fails_is_asked_for_again(
    url: str, proxied: Storage, proxy: Proxy, fault: Fault, is_there: bool
) -> None:
    store = open_store(url, proxied)
    if is_there:
        store.put("_log/a", b"here")
    proxy.strike(fault, "GET", "_log/a", count=2)
    if is_there:
        assert store.read("_log/a") == b"here"
    else:
        with pytest.raises(FileNotFoundError):
            store.read("_log/a")


@pytest.mark.parametrize("fault", [Fault.CUT_BODY, Fault.LOST_ANSWER, Fault.UNAVAILABLE])
def test_a_range_that_fails_is_asked_for_again(
    url: str, proxied: Storage, proxy: Proxy, fault: Fault
) -> None:
    data = random.Random(2).randbytes(3 * RANGE_BYTES)
    store = open_store(url, proxied)
    write(store, "data/large", data)
    proxy.strike(fault, "GET", "data/large", count=2)
    assert store.map("data/large").equals(pa.py_buffer(data))


@pytest.mark.parametrize("fault", [Fault.CUT_BODY, Fault.LOST_ANSWER, Fault.UNAVAILABLE])
def test_ranges_of_an_object_that_stays_there_are_asked_for_again(
    url: str, proxied: Storage, proxy: Proxy, fault: Fault
) -> None:
    data = random.Random(3).randbytes(RANGE_BYTES)
    store = open_store(url, proxied)
    write(store, "data/far", data)
    proxy.strike(fault, "GET", "data/far", count=2)
    ranges = [(0, 5 << 10), (100 << 10, 200 << 10), (RANGE_BYTES - 1024, RANGE_BYTES)]
    found = store.read_ranges("data/far", ranges, len(data))
    assert [bytes(each) for each in found] == [data[low:high] for low, high in ranges]


def test_an_empty_object_is_mapped(url: str, storage: Storage) -> None:
    store = open_store(url, storage)
    write(store, "data/empty", b"")
    assert store.map("data/empty").size == 0


def test_ranges_of_what_is_not_there_or_is_shorter(url: str, storage: Storage) -> None:
    store = open_store(url, storage)
    with pytest.raises(FileNotFoundError):
        store.read_ranges("data/none", [(0, 5)], 5)
    write(store, "data/short", b"x" * 100)
    with pytest.raises(StorageError):
        store.read_ranges("data/short", [(0, 150)], 150)


def test_a_failed_upload_leaves_no_object(s3: S3, url: str, proxied: Storage, proxy: Proxy) -> None:
    bucket = url.split("/")[2]
    store = open_store(url, {**proxied, "max_retries": "0"})
    proxy.strike(Fault.UNAVAILABLE, "PUT", "partNumber=2")
    with pytest.raises(StorageError):
        write(store, "data/large", b"x" * (3 * RANGE_BYTES))
    assert s3.keys(bucket) == []
    # The parts are given back too: no reader lists them, but they are paid for.
    assert "Uploads" not in s3.client().list_multipart_uploads(Bucket=bucket)


def test_a_failed_fetch_leaves_no_copy(url: str, proxied: Storage, proxy: Proxy) -> None:
    store = open_store(url, {**proxied, "max_retries": "0"})
    write(store, "data/large", b"x" * (3 * RANGE_BYTES))
    proxy.strike(Fault.UNAVAILABLE, "GET")
    with pytest.raises(StorageError):
        store.map("data/large")
    assert copies(proxied) == []


def test_memory_does_not_grow_with_the_object(
    url: str, storage: Storage, workers: ProcessPoolExecutor
) -> None:
    grown = workers.submit(memory_of_round_trip, url, storage, "data/large", 100).result()
    assert grown < 80 << 20


# -- local copies ----------------------------------------------------------------------


def test_processes_that_want_the_same_object_fetch_it_once(
    url: str, proxied: Storage, proxy: Proxy, workers: ProcessPoolExecutor
) -> None:
    store = open_store(url, proxied)
    write(store, "data/a", b"x" * 1000)
    store.forget("data/a")
    running = [workers.submit(mapped_bytes, url, proxied, "data/a") for _ in range(8)]
    assert [each.result() for each in running] == [1000] * 8
    assert proxy.seen("GET", "data/a") == 1
    assert len(copies(proxied)) == 1


def test_the_cache_is_bounded_while_runs_are_mapped(url: str, storage: Storage) -> None:
    bounded = {**storage, "cache_bytes": "20k"}
    store = open_store(url, bounded)
    held = []
    for index in range(10):
        write(store, f"data/{index}", b"%d" % index * 4096)
        held.append(store.map(f"data/{index}"))
        assert sum(file.stat().st_size for file in copies(bounded)) <= 20 << 10
    assert [each.to_pybytes() for each in held] == [b"%d" % i * 4096 for i in range(10)]


def test_a_table_larger_than_its_cache_is_read(url: str, storage: Storage) -> None:
    table = Table.create(url, COLUMNS, keys=["k"], storage_options={**storage, "cache_bytes": "1"})
    for index in range(5):
        table.upsert(rows(**{f"k{index}": index}))
    close_runs()
    assert contents(table) == {index: index for index in range(5)}


def test_a_truncated_copy_is_fetched_again(url: str, storage: Storage) -> None:
    Table.create(url, COLUMNS, keys=["k"], storage_options=storage).upsert(rows(k1=10))
    Table.open(url, storage_options=storage).snapshot()
    close_runs()
    for file in copies(storage):
        os.truncate(file, file.stat().st_size // 2)
    assert contents(Table.open(url, storage_options=storage)) == {1: 10}


@pytest.mark.parametrize("damage", ["truncated", "removed"])
def test_a_damaged_object_is_named(s3: S3, url: str, storage: Storage, damage: str) -> None:
    Table.create(url, COLUMNS, keys=["k"], storage_options=storage).upsert(rows(k1=10))
    (run,) = open_store(url, storage).list("data")
    bucket, key = url.split("/")[2], f"lake/orders/{run.path}"
    if damage == "truncated":
        body = s3.client().get_object(Bucket=bucket, Key=key)["Body"].read()
        s3.client().put_object(Bucket=bucket, Key=key, Body=body[:-7])
    else:
        s3.client().delete_object(Bucket=bucket, Key=key)
    close_runs()
    for file in copies(storage):
        file.unlink()
    with pytest.raises(CorruptionError, match=run.path.rsplit("/", 1)[-1]):
        Table.open(url, storage_options=storage).snapshot()


def test_a_lost_version_is_named(url: str, storage: Storage) -> None:
    table = Table.create(url, COLUMNS, keys=["k"], storage_options=storage)
    for number in range(4):
        table.upsert(rows(k1=number))
    open_store(url, storage).delete("_log/00000000000000000002.json")
    LOGS.clear()
    with pytest.raises(CorruptionError, match=r"0002\.json' is missing"):
        Table.open(url, storage_options=storage)


@pytest.mark.parametrize("foreign", ["part-0.parquet", "day=1/part-0.parquet", "_delta_log/0.json"])
@pytest.mark.parametrize("below", ["", "/below"])
def test_a_table_is_not_made_among_objects_of_others(
    s3: S3, url: str, storage: Storage, foreign: str, below: str
) -> None:
    open_store(url, storage).put(foreign, b"x")
    if below and not foreign.startswith("_delta_log"):
        Table.create(url + below, COLUMNS, keys=["k"], storage_options=storage)
        return
    with pytest.raises(OptionError, match="choose an empty folder"):
        Table.create(url + below, COLUMNS, keys=["k"], storage_options=storage)
    assert s3.keys(url.split("/")[2]) == [f"lake/orders/{foreign}"]
    Table.create(
        url + below, COLUMNS, keys=["k"], storage_options=storage, allow_non_empty_path=True
    )


def test_a_fetch_that_was_killed_does_not_block_the_next(
    url: str, proxied: Storage, proxy: Proxy
) -> None:
    store = open_store(url, proxied)
    write(store, "data/a", b"whole")
    store.forget("data/a")
    proxy.strike(Fault.SILENCE, "GET", "data/a")
    process = multiprocessing.get_context("spawn").Process(
        target=mapped_bytes, args=(url, proxied, "data/a")
    )
    process.start()
    while proxy.seen("GET", "data/a") == 0:
        process.join(0.02)
        assert process.is_alive()
    process.kill()
    process.join()
    assert [file.suffix for file in copies(proxied)] == [".part"]
    assert open_store(url, proxied).map("data/a").to_pybytes() == b"whole"
    assert [file.suffix for file in copies(proxied)] == [""]


def test_the_log_is_plain_json(s3: S3, url: str, storage: Storage) -> None:
    Table.create(url, COLUMNS, keys=["k"], storage_options=storage).upsert(rows(k1=10))
    key = "lake/orders/_log/00000000000000000001.json"
    body = s3.client().get_object(Bucket=url.split("/")[2], Key=key)["Body"].read()
    assert json.loads(body)["token"]
