"""Runs that stay far away: a look-up finds what it finds in a copy, and fetches little."""

from __future__ import annotations

from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import CorruptionError, StorageError
from spark_upsert.store.protocol import OBJECT_BYTES_MAX
from spark_upsert.table.run import remote
from spark_upsert.table.run.remote import RemoteHashSearch
from spark_upsert.table.table import Table
from tests.support.stores import FarStore, MemoryStore

SEEDS = range(40)
MOST = 2**64 - 1


class AskedStore(FarStore):
    """A far store that notes what is asked for."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__(objects)
        self.asked: list[tuple[str, int]] = []
        """The object and the bytes of each request."""

    def read_ranges(self, path: str, ranges: Any, size: int) -> Any:
        self.asked.append((path, sum(high - low for low, high in ranges)))
        return super().read_ranges(path, ranges, size)


def stay_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every run stay where it is, however small, and fetch no more than is wanted."""
    monkeypatch.setattr(remote, "HEAD_BYTES", 1)
    monkeypatch.setattr(remote, "_JOINED_BLOCKS", 1)
    monkeypatch.setattr(remote.REMOTE_RUNS, "bytes_min", 0)
    monkeypatch.setattr(remote.REMOTE_RUNS, "copy_share", 0.0)


@pytest.fixture
def _always_far(monkeypatch: pytest.MonkeyPatch) -> None:
    stay_far(monkeypatch)


# -- the search ------------------------------------------------------------------------------


def drawn_hashes(dice: np.random.Generator, kind: str) -> np.ndarray:
    count = int(dice.integers(1, 20_000))
    if kind == "uniform":
        found = dice.integers(0, MOST, count, dtype=np.uint64)
    elif kind == "few":
        found = dice.integers(0, MOST, int(dice.integers(1, 5)), dtype=np.uint64)
    elif kind == "crowded":
        centre = dice.integers(0, MOST - (1 << 20), dtype=np.uint64)
        crowd = centre + dice.integers(0, 1 << 20, count, dtype=np.uint64)
        found = np.append(crowd, np.array([0, MOST], dtype=np.uint64))
    else:
        found = np.full(count, dice.integers(0, MOST, dtype=np.uint64))
    return np.sort(found.astype(np.uint64))


@pytest.mark.parametrize("kind", ["uniform", "few", "crowded", "equal"])
def test_a_search_finds_what_numpy_finds(kind: str) -> None:
    for seed in SEEDS:
        dice = np.random.default_rng(seed)
        hashes = drawn_hashes(dice, kind)
        seen = np.zeros_like(hashes)
        looks = 0

        def verify(low: np.ndarray, high: np.ndarray) -> None:
            nonlocal looks
            looks += 1
            assert bool((low < high).all())
            for begin, end in zip(low, high, strict=True):
                seen[begin:end] = hashes[begin:end]  # noqa: B023 - called before the next turn

        others = dice.integers(0, MOST, 50, dtype=np.uint64)
        probes = np.sort(np.concatenate([dice.choice(hashes, 50), others, hashes[[0, -1]]]))
        search = RemoteHashSearch(seen, int(hashes[0]), int(hashes[-1]), verify)
        found = search.insertion_points(probes)
        assert found.tolist() == np.searchsorted(hashes, probes).tolist(), (kind, seed)
        assert looks <= (1 if kind == "few" else 2 if kind == "uniform" else 12), (kind, seed)


def test_hashes_out_of_order_end_the_search() -> None:
    hashes = np.random.default_rng(1).integers(0, MOST, 5_000, dtype=np.uint64)
    search = RemoteHashSearch(hashes, 0, MOST, lambda low, high: None)
    assert len(search.insertion_points(np.sort(hashes[:100]))) == 100


# -- look-ups --------------------------------------------------------------------------------

COLUMNS = pa.schema(
    {
        "k": pa.int64(),
        "name": pa.string(),
        "seq": pa.int64(),
        "price": pa.decimal128(12, 2),
        "place": pa.struct({"street": pa.string(), "at": pa.struct({"x": pa.int32()})}),
        "tags": pa.list_(pa.string()),
    }
)
READ_BY_ROWS = ["k", "name", "seq", "price", "place"]
"""All but the list, of which everything is examined, and which is read from a copy."""


def a_place(dice: Random) -> dict[str, Any] | None:
    at = dice.choice([None, {"x": None}, {"x": dice.randrange(1000)}])
    return dice.choice([None, {"street": dice.choice([None, "", "Long Lane"]), "at": at}])


KEYS = {"a number": ["k"], "a text": ["name"], "both": ["name", "k"]}


def lived(dice: Random, keys: list[str], prefix: int = 0) -> MemoryStore:
    store = MemoryStore()
    table = Table(store)
    order = [COLUMNS.field("seq")] if dice.random() < 0.7 else []
    table.ensure(TableSchema.of(COLUMNS, keys=keys, order=order, hash_prefix=prefix))
    for number in range(dice.randint(1, 6)):
        count = dice.randint(1, 400)
        ids = [dice.randrange(300) for _ in range(count)]
        rows = pa.table(
            {
                "k": ids,
                "name": [f"n{each}" for each in ids],
                "seq": [number * 400 + dice.randrange(800) for _ in ids],
                "price": pa.array([Decimal(each) for each in ids], pa.decimal128(12, 2)),
                "place": pa.array([a_place(dice) for _ in ids], COLUMNS.field("place").type),
                "tags": [None if each % 3 else [str(each)] * (each % 4) for each in ids],
                "gone": [dice.random() < 0.2 for _ in ids],
            }
        )
        if not order:
            rows = rows.slice(0, 1)
        table.upsert(rows, deletes="gone")
        if dice.random() < 0.2:
            table.compact(full=dice.random() < 0.5)
    return store


@pytest.mark.usefixtures("_always_far")
@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_rows_by_key_are_those_of_a_copy(keys: list[str]) -> None:
    looked = 0
    for seed in SEEDS:
        dice = Random(f"{seed} {keys}")
        near = lived(dice, keys)
        distant = AskedStore(near.objects)
        here, there = Table(near), Table(distant)
        for _ in range(6):
            ids = [dice.randrange(320) for _ in range(dice.choice([1, 1, 2, 30]))]
            drawn = {"k": ids, "name": [f"n{each}" for each in ids]}
            wanted = pa.table({name: drawn[name] for name in keys})
            columns = dice.choice(
                [["name", "seq"], ["price"], ["k", "name"], ["tags", "seq"], ["place", "k"]]
            )
            version = dice.choice([None, dice.randint(0, here.log.head().version)])
            found = there.get(wanted, columns=columns, version=version)
            assert found == here.get(wanted, columns=columns, version=version), (seed, keys)
            if dice.random() < 0.3:
                late = pa.table({"k": [1], "name": ["n1"], "seq": [10_000 + seed]})
                here.upsert(late, merge_schema=True)
        looked += len(distant.asked)
    assert looked > 2 * len(SEEDS), "runs did stay far away"


def sorted_rows(table: pa.Table) -> list[str]:
    """Return the rows in a fixed order, without the time of their commit."""
    names = [name for name in table.column_names if name != "_commit_timestamp"]
    return sorted(map(str, table.select(names).to_pylist()))


@pytest.mark.usefixtures("_always_far")
@pytest.mark.parametrize("prefix", [0, 1])
def test_reads_writes_and_merges_are_those_of_a_copy(prefix: int) -> None:
    """Each step reads ranges of columns and rows, and what it gives is that of a local table."""
    for seed in SEEDS:
        dice = Random(f"steps {seed}")
        near = lived(dice, ["name", "k"], prefix)
        distant = AskedStore(dict(near.objects))
        here, there = Table(near), Table(distant)
        for step in range(8):
            head = here.log.head().version
            columns = dice.choice([None, ["name"], ["seq", "price"], ["tags"], ["place"], []])
            where = dice.choice(["k < 40", "name = 'n7'", "k = 3 AND name = 'n3'", None])
            first = dice.randint(0, head)
            last = dice.randint(first, head) + 1
            match dice.choice(["read", "read", "upsert", "delete", "compact"]):
                case "upsert":
                    ids = [dice.randrange(320) for _ in range(dice.choice([1, 60]))]
                    names = [f"n{each}" for each in ids]
                    orders = [20_000 + 100 * step + n for n in range(len(ids))]
                    rows = pa.table({"k": ids, "name": names, "seq": orders})
                    commits = [table.upsert(rows, merge_schema=True) for table in (here, there)]
                    counts = [commit and commit.counters for commit in commits]
                    assert counts[0] == counts[1], (seed, step)
                case "delete":
                    wanted = dice.randrange(100)
                    for table in (here, there):
                        table.delete([(f"n{wanted}", wanted)])
                case "compact":
                    full = dice.random() < 0.5
                    for table in (here, there):
                        table.compact(full=full)
                case _:
                    found = [
                        (
                            sorted_rows(table.snapshot(columns=columns, filter=where)),
                            sorted_rows(table.changes(first, last)),
                        )
                        for table in (here, there)
                    ]
                    assert found[0] == found[1], (seed, step)
        assert sorted_rows(there.snapshot()) == sorted_rows(here.snapshot()), seed
        assert there.check().is_sound


class Failing(AskedStore):
    """A store behind a network that fails now and then, before it answers."""

    def __init__(self, objects: dict[str, bytes], dice: Random) -> None:
        super().__init__(objects)
        self._dice = dice
        self.failures = 0

    def _may_fail(self) -> None:
        if self._dice.random() < 0.1:
            self.failures += 1
            raise StorageError("no answer", hint="try again.")

    def read(self, path: str, *, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        self._may_fail()
        return super().read(path, bytes_max=bytes_max)

    def read_ranges(self, path: str, ranges: Any, size: int) -> Any:
        self._may_fail()
        return super().read_ranges(path, ranges, size)


@pytest.mark.usefixtures("_always_far")
@pytest.mark.parametrize("part", range(4))
def test_a_reader_far_away_sees_what_others_do_through_faults_and_restarts(part: int) -> None:
    failures = looks = removed = 0
    for seed in range(part, 2 * len(SEEDS), 4):
        dice = Random(f"lives {seed}")
        near = lived(dice, ["k"])
        writers = [Table(near), Table(near)]
        distant = Failing(near.objects, dice)
        reader: Table | None = None
        for step in range(12):
            writer = dice.choice(writers)
            match dice.choice(["append", "delete", "compact", "retain", "restart", "nothing"]):
                case "append":
                    ids = [dice.randrange(300) for _ in range(dice.choice([1, 50]))]
                    rows = {"k": ids, "name": [f"m{step}"] * len(ids)}
                    orders = [20_000 + 100 * step + n for n in range(len(ids))]
                    writer.upsert(pa.table({**rows, "seq": orders}), merge_schema=True)
                case "delete":
                    writer.delete([dice.randrange(300) for _ in range(5)])
                case "compact":
                    writer.compact(full=dice.random() < 0.3)
                case "retain":
                    writer.expire(retain_versions=dice.randint(0, 2), safety_ms=0, writers_ms=0)
                    gone = writer.vacuum(grace_ms=0)
                    removed += len(gone.expired) + len(gone.log)
                case "restart":
                    reader = None
                    distant = Failing(near.objects, dice)
            wanted = [dice.randrange(320) for _ in range(dice.choice([1, 3, 40]))]
            for _ in range(100):
                try:
                    reader = reader or Table(distant)
                    found = reader.get(wanted, columns=READ_BY_ROWS)
                except StorageError:
                    failures += 1
                    continue
                break
            assert found == Table(near).get(wanted, columns=READ_BY_ROWS), (seed, step)
            looks += 1
    assert looks == 12 * len(SEEDS) // 2
    assert failures > looks // 4
    assert removed


def test_of_a_large_run_little_is_fetched_by_few_requests() -> None:
    near = MemoryStore()
    rows = 600_000
    ids = np.random.default_rng(3).permutation(rows)
    table = Table(near)
    table.ensure(TableSchema.of(pa.schema({"k": pa.int64(), "n": pa.int64()}), keys=["k"]))
    table.upsert(pa.table({"k": ids, "n": ids * 2}))
    [slice_] = table.log.head().slices
    distant = AskedStore(near.objects)
    there = Table(distant)
    there.log.head()
    for key in (7, 599_999, rows + 5):
        del distant.asked[:]
        found = there.get(key).column("n").to_pylist()
        assert found == ([key * 2] if key < rows else [])
        assert sum(size for _, size in distant.asked) * 20 < slice_.file.bytes
        assert len(distant.asked) <= 3, "the tail, once; the hashes; the row"
    del distant.asked[:]
    assert there.get(7).num_rows == 1
    assert not distant.asked, "what was fetched is remembered"
    many = there.get(list(range(3_000)))
    assert many.num_rows == 3_000
    assert not distant.asked, "for so many keys the run is copied"


@pytest.mark.usefixtures("_always_far")
def test_damage_far_away_is_found_and_told_and_not_remembered() -> None:
    near = lived(Random(5), ["k"])
    distant = AskedStore(dict(near.objects))
    path = Table(near).log.head().slices[0].file.path
    expected = Table(near).get(list(range(300)), columns=READ_BY_ROWS)
    whole = distant.objects[path]
    told: list[str] = []
    for at in range(0, len(whole), 1024):
        distant.objects[path] = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        reader = AskedStore(distant.objects)
        try:
            found = Table(reader).get(list(range(300)), columns=READ_BY_ROWS)
        except CorruptionError as error:
            told.append(str(error))
            reader.objects[path] = whole
            found = Table(reader).get(list(range(300)), columns=READ_BY_ROWS)
        assert found == expected
        distant.objects[path] = whole
    assert len(told) > 3
    assert all(path in each for each in told)
    del distant.objects[path]
    with pytest.raises(CorruptionError, match=path):
        Table(AskedStore(distant.objects)).get(7, columns=READ_BY_ROWS)


def test_a_run_that_is_forgotten_and_comes_back_for_ever_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote.REMOTE_RUNS._runs, "count_max", 1)
    monkeypatch.setattr(remote.REMOTE_RUNS, "bytes_min", 0)
    near = MemoryStore()
    table = Table(near)
    table.ensure(TableSchema.of(pa.schema({"k": pa.int64(), "n": pa.int64()}), keys=["k"]))
    for low in (0, 300_000):
        ids = np.arange(low, low + 300_000)
        table.upsert(pa.table({"k": ids, "n": ids}))
    assert len(table.log.head().slices) == 2
    distant = AskedStore(near.objects)
    there = Table(distant)
    asked = []
    for key in range(200):
        del distant.asked[:]
        assert there.get(key).num_rows == 1
        asked.append(len(distant.asked))
    assert asked[1], "of two runs one is forgotten each time"
    assert not any(asked[-50:]), "both are copied by now"


@pytest.mark.usefixtures("_always_far")
def test_what_stays_far_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote.REMOTE_RUNS._runs, "count_max", 2)
    near = lived(Random(5), ["k"])
    for _ in range(3):
        Table(AskedStore(near.objects)).get(7, columns=READ_BY_ROWS)
    assert len(remote.REMOTE_RUNS) == 2


def test_rows_by_key_and_by_prefix_fetch_all_hashes_where_these_have_prefixes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote.REMOTE_RUNS, "bytes_min", 0)
    near = MemoryStore()
    table = Table(near)
    table.ensure(TableSchema.of(COLUMNS, keys=["name", "k"], hash_prefix=1))
    rows = pa.table({"k": range(20_000), "name": [f"n{n % 50}" for n in range(20_000)]})
    table.upsert(rows.append_column("seq", rows["k"]), merge_schema=True)
    size = table.log.head().slices[0].file.bytes
    distant = AskedStore(near.objects)
    there = Table(distant)
    wanted = pa.table({"name": ["n7"]})
    assert there.get(("n7", 1007), columns=["seq"])["seq"].to_pylist() == [1007]
    found = there.having_prefix(wanted, columns=["k"])
    assert sorted(found["k"].to_pylist()) == list(range(7, 20_000, 50))
    assert 20_000 * 8 < sum(asked for _, asked in distant.asked) < size * 0.7
