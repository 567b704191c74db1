"""What each kind of version becomes in a mirror: the cases of the specification, one by one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_upsert.core.merge_engines import Engine, MergeEngine
from spark_upsert.core.schema import ErrorPolicy, Scope, TableSchema
from spark_upsert.delta.deletion_vectors import Vector, encode_z85
from spark_upsert.delta.log import open_mirror_store
from spark_upsert.delta.publish import Mirror, check_mirror
from spark_upsert.delta.types import MirrorChangedError, MirroredTypeError
from spark_upsert.errors import CorruptionError, OptionError, OtherTableError
from spark_upsert.store import LocalStore, Store
from spark_upsert.table.observers import PublicationResult
from spark_upsert.table.table import Table
from tests.support.delta import DeltaTable
from tests.support.stores import MemoryStore, forget_runs_and_logs
from tests.support.tables import Ticks

COLUMNS = pa.schema({"id": pa.int64(), "x": pa.string()})
SEQ = (pa.field("seq", pa.int64()),)
FIRST_COMMIT = "_delta_log/00000000000000000000.json"
SECOND_COMMIT = "_delta_log/00000000000000000001.json"


class Case:
    """A table, and its mirror."""

    def __init__(
        self,
        columns: pa.Schema = COLUMNS,
        *,
        keys: Sequence[str] = ("id",),
        order: Sequence[pa.Field] = (),
        store: Store | None = None,
        clock: Ticks | None = None,
        **rules: Any,
    ) -> None:
        self.store: Store = store or MemoryStore()
        self.clock = clock or Ticks()
        rules.setdefault("scope", Scope.TABLE if order else Scope.ARRIVAL)
        self.schema = TableSchema.of(columns, keys=keys, order=order, hash_seed=7, **rules)
        self.table = Table(self.store, clock=self.clock)
        self.table.ensure(self.schema)
        self.target = open_mirror_store(self.store, None)

    def put(self, *rows: tuple[Any, ...], overwrite: bool = False) -> None:
        self._append(rows, [False] * len(rows), overwrite=overwrite)

    def delete(self, *rows: tuple[Any, ...]) -> None:
        self._append(rows, [True] * len(rows))

    def both(self, deleted: Sequence[Any], put: Sequence[Any]) -> None:
        """Delete and put rows in one epoch."""
        self._append([*deleted, *put], [True] * len(deleted) + [False] * len(put))

    def _append(
        self, rows: Sequence[tuple[Any, ...]], gone: list[bool], *, overwrite: bool = False
    ) -> None:
        fields = [*self.table.schema.columns, *self.table.schema.order]
        filled = [(*row, *(None,) * (len(fields) - len(row))) for row in rows]
        columns = {
            field.name: pa.array([row[at] for row in filled], field.type)
            for at, field in enumerate(fields)
        }
        commands = pa.table({**columns, "gone": pa.array(gone, pa.bool_())})
        self.table.upsert(commands, deletes="gone", overwrite=overwrite)

    def publish(self, **how: Any) -> PublicationResult:
        result = self.table.publish(**how)
        assert list(check_mirror(self.mirror())) == []
        return result

    def mirror(self) -> Mirror:
        return Mirror(self.table.log, self.store, self.target)

    def look(self, version: int | None = None) -> DeltaTable:
        """Return the mirror, which must have the rows of the table."""
        mirror = DeltaTable(self.target, version)
        if version is None:
            rows = sorted(map(repr, mirror.rows().to_pylist()))
            assert rows == sorted(map(repr, self.table.snapshot().to_pylist()))
        return mirror

    def files(self) -> dict[int, int]:
        """Return how many rows of each live file are dead, by the version that wrote its run."""
        mirror = DeltaTable(self.target)
        slices = self.table.log.head().slices
        runs = {each.file.path.split("/")[1].split(".")[0]: each.epochs.lower for each in slices}
        return {runs[path[:32]]: len(mirror.dead(add)) for path, add in mirror.adds.items()}


def test_1_a_new_table_is_a_mirror_without_files() -> None:
    case = Case()
    assert case.publish().delta_version == 0
    mirror = case.look()
    actions = [next(iter(each)) for each in mirror.commits[0]]
    assert actions == ["commitInfo", "txn", "txn", "protocol", "metaData"]
    assert mirror.transactions[f"upsertflow:{case.table.log.head().table_id}"] == 0
    assert mirror.protocol == {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors", "inCommitTimestamp", "changeDataFeed", "upsertflow"],
    }


Act = Callable[[Case], Any]


def put(*rows: tuple[Any, ...], overwrite: bool = False) -> Act:
    return lambda case: case.put(*rows, overwrite=overwrite)


def delete(*rows: tuple[Any, ...]) -> Act:
    return lambda case: case.delete(*rows)


def restore(version: int) -> Act:
    return lambda case: case.table.restore(version)


def compact(case: Case) -> None:
    case.table.compact(full=True)


TWO = put((1, "a"), (2, "b"))
CHANGED = put((2, "c"))
LATE = put((1, "late", 4), (3, "c", 1))
ORDERED = {"order": SEQ}
ERRORS = {"on_error": ErrorPolicy.QUARANTINE}
NUMBERS = pa.schema({"id": pa.int64(), "a": pa.int64(), "b": pa.int64()})
PARTIAL = {"columns": NUMBERS, "engine": MergeEngine(Engine.PARTIAL_UPDATE)}
PREFIX = {"columns": NUMBERS, "keys": ("a", "id"), "hash_prefix": 1}

STEPS: dict[str, tuple[dict[str, Any], list[Act], list[Act], dict[int, int]]] = {
    "2: rows that are there": ({}, [], [TWO], {1: 0}),
    "3: an epoch adds its twin and a bit": ({}, [TWO], [put((2, "c"), (3, "d"))], {1: 1, 2: 0}),
    "4: a delete has no twin": ({}, [TWO], [delete((1,))], {1: 1}),
    "7: a twin of superseded rows goes": ({}, [TWO], [TWO], {2: 0}),
    "8: a compaction": ({}, [TWO, CHANGED], [compact], {1: 0}),
    "10: an epoch and a compaction": ({}, [TWO], [CHANGED, compact], {1: 0}),
    "11: epochs become one commit": ({}, [TWO], [CHANGED, CHANGED, delete((1,))], {3: 0}),
    "13: an overwrite": ({}, [TWO], [put((2, "z"), (7, "q"), overwrite=True)], {2: 0}),
    "15: a restore lets vectors shrink": ({}, [TWO, CHANGED], [restore(1)], {1: 0}),
    "19: a late row beside a new one": (ORDERED, [put((1, "a", 5))], [LATE], {1: 0, 2: 1}),
    "21: a compaction of late rows": (ORDERED, [put((1, "a", 9)), LATE], [compact], {1: 0}),
    "22: an error is a dead row": (ERRORS, [TWO], [put((None, "a"), (3, "c"))], {1: 0, 2: 1}),
    "24: a partial update": (PARTIAL, [put((1, 1), (2, 5))], [put((1, None, 2))], {1: 1, 2: 0}),
    "25: a delete that came late": (
        {**PARTIAL, **ORDERED},
        [put((1, 7, None, 9))],
        [delete((1, None, None, 5))],
        {2: 0},
    ),
    "34: a prefix of the hash": (
        PREFIX,
        [put(*((at, at % 2) for at in range(20)))],
        [put((2, 0, 5), (99, 1))],
        {1: 1, 2: 0},
    ),
}
"""A kind of table, what is done before a publication and behind it, and then for each version that
has a twin how many of its rows are dead."""


@pytest.mark.parametrize(("kind", "before", "acts", "dead"), STEPS.values(), ids=STEPS)
def test_a_step_changes_twins_and_bits(
    kind: dict[str, Any], before: list[Act], acts: list[Act], dead: dict[int, int]
) -> None:
    case = Case(**kind)
    for act in before:
        act(case)
    first = case.publish()
    for act in acts:
        act(case)
    result = case.publish()
    head = case.table.log.head().version
    assert (result.delta_version, result.shown) == (first.delta_version + 1, head)
    assert case.files() == dead
    assert case.look().data_changes == {acts != [compact]}


def put_and_restore(case: Case) -> None:
    case.put((1, "c"))
    case.table.restore(1)


def expire_and_alter(case: Case) -> None:
    case.table.expire(retain_versions=0, safety_ms=0)
    case.table.alter(case.table.schema, {"tombstoneRetention": "1 epoch"})


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda case: case.delete((9,)), id="5: a delete of a key that is not there"),
        pytest.param(put_and_restore, id="16: a restore to the version that is shown"),
        pytest.param(expire_and_alter, id="51: versions that show nothing"),
    ],
)
def test_what_changes_no_row_makes_no_commit(act: Act) -> None:
    case = Case()
    case.put((1, "a"), (2, "b"))
    before = case.publish()
    act(case)
    result = case.publish()
    assert (result.delta_version, result.shown) == (before.delta_version, 1)
    assert result.newest == case.table.log.head().version > 1
    assert not result.has_changed
    case.put((3, "c"))
    assert case.publish().shown == result.newest + 1
    case.look()


def test_6_a_deleted_row_is_a_row_of_nulls_in_its_twin() -> None:
    case = Case()
    case.put((1, "a"), (2, "b"))
    case.publish()
    case.both([(1, None)], [(3, "secret")])
    case.publish()
    assert case.files() == {1: 1, 2: 1}
    mirror = case.look()
    _, path = [p for p, add in mirror.adds.items() if json.loads(add["stats"])["numRecords"] == 2]
    twin = pq.read_table(pa.BufferReader(case.target.read(path)))
    dead = next(iter(mirror.dead(mirror.adds[path])))
    assert twin.take([dead]).to_pylist() == [{"id": None, "x": None}]


def test_18_a_late_row_alone_makes_no_commit() -> None:
    case = Case(order=SEQ)
    case.put((1, "new", 5))
    before = case.publish()
    case.put((1, "old", 3))
    assert case.publish().delta_version == before.delta_version
    assert case.files() == {1: 0}
    case.look()


def test_29_and_30_an_added_column_keeps_old_twins_and_a_wider_type_replaces_them() -> None:
    case = Case(pa.schema({"id": pa.int64(), "n": pa.int32()}))
    case.put((1, 5), (2, 6))
    case.publish()
    old = set(case.look().adds)
    added = pa.schema({"id": pa.int64(), "n": pa.int32(), "more": pa.int32()})
    case.table.upsert(pa.table([[3], [7], [8]], schema=added), merge_schema=True)
    case.publish()
    assert case.look().schema.names == ["id", "n", "more"]
    assert old < set(case.look().adds)
    assert case.look(0).schema.names == ["id", "n"]
    wide = pa.schema({"id": pa.int64(), "n": pa.int64()})
    case.table.upsert(pa.table([[4], [1 << 40]], schema=wide), merge_schema=True)
    case.publish()
    mirror = case.look()
    assert not old & set(mirror.adds)
    assert "typeWidening" not in json.dumps(mirror.protocol)
    assert case.look(1).rows().schema.field("n").type == pa.int32()


ALL_TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, False]),
    "byte": (pa.int8(), [-128, 127]),
    "short": (pa.int16(), [-(2**15), 2**15 - 1]),
    "integer": (pa.int32(), [-(2**31), 2**31 - 1]),
    "long": (pa.int64(), [-(2**63), 2**63 - 1]),
    "float": (pa.float32(), [float("nan"), -0.0]),
    "double": (pa.float64(), [float("-inf"), float("nan")]),
    "money": (pa.decimal128(12, 2), [Decimal("-9999999999.99"), Decimal("0.01")]),
    "big": (pa.decimal128(38, 0), [Decimal("-" + "9" * 38), Decimal("9" * 38)]),
    "text": (pa.string(), ["", "ü\0" + "9" * 10_000]),
    "raw": (pa.binary(), [b"", b"\xff\0"]),
    "day": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    "at": (
        pa.timestamp("us", "UTC"),
        [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)],
    ),
    "local": (pa.timestamp("us"), [datetime(1582, 10, 5), datetime(1900, 1, 1)]),
    "list": (pa.list_(pa.int64()), [[], [1, None]]),
    "map": (pa.map_(pa.string(), pa.int64()), [[], [("a", None)]]),
    "struct": (
        pa.struct({"a": pa.int64(), "b": pa.list_(pa.struct({"c": pa.string()}))}),
        [{"a": None, "b": [None, {"c": None}]}, {"a": 1, "b": [{"c": "x"}]}],
    ),
}


def all_types(store: Store | None = None) -> Case:
    columns = pa.schema({"id": pa.int64(), **{n: type_ for n, (type_, _) in ALL_TYPES.items()}})
    case = Case(columns, store=store)
    for at in range(2):
        case.put((at, *(values[at] for _, values in ALL_TYPES.values())))
        case.publish()
    case.put((5,))
    case.delete((0,))
    case.put((0, *(values[0] for _, values in ALL_TYPES.values())))
    case.publish()
    return case


def test_31_all_types_are_equal() -> None:
    case = all_types()
    mirror = case.look()
    assert mirror.protocol["readerFeatures"] == ["deletionVectors", "timestampNtz"]
    for path in mirror.adds:
        footer = pq.read_metadata(pa.BufferReader(case.target.read(path))).metadata
        assert footer[b"org.apache.spark.version"] == b"4.0.0", "Spark asks for it: old times"
        assert footer[b"upsertflow.run"].startswith(b"data/")
        assert b"ARROW:schema" not in footer


@pytest.mark.parametrize(
    ("type_", "cast"),
    [
        (pa.time64("us"), "int64"),
        (pa.duration("us"), "int64"),
        (pa.uint64(), "decimal128"),
        (pa.uint8(), "int64"),
        (pa.float16(), "float32"),
        (pa.list_(pa.uint32()), "int64"),
        (pa.struct({"A": pa.int64(), "a": pa.int64()}), "another name"),
        (pa.map_(pa.string(), pa.time64("us")), "int64"),
    ],
    ids=str,
)
def test_32_what_delta_has_not_is_refused_by_name(type_: pa.DataType, cast: str) -> None:
    case = Case(pa.schema({"id": pa.int64(), "odd": type_}))
    with pytest.raises(MirroredTypeError, match="'odd") as caught:
        case.table.publish()
    assert cast in str(caught.value)
    assert not list(case.target.list(""))
    case.table.upsert(pa.table({"id": [1], "odd": pa.nulls(1, type_)}))


def test_33_names_are_kept_as_they_are() -> None:
    names = ["a b", "c,d;{}()=", "p.q", "日本.x y"]
    case = Case(pa.schema({"id": pa.int64(), **dict.fromkeys(names, pa.string())}))
    case.put((1, *"abcd"), (2, *"efgh"))
    case.put((2, *"wxyz"))
    case.publish()
    mirror = case.look()
    assert "columnMapping" not in json.dumps(mirror.protocol)
    [add] = [add for add in mirror.adds.values() if "deletionVector" in add]
    assert json.loads(add["stats"])["minValues"]["p.q"] == "c"


def test_36_a_put_that_raises_after_its_effect_is_recognised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case()
    case.put((1, "a"))
    put = case.store.put_if_absent

    def failing(path: str, data: bytes) -> bool:
        put(path, data)
        raise OSError("no answer")

    monkeypatch.setattr(case.store, "put_if_absent", failing)
    assert case.table.publish().delta_version == 0
    monkeypatch.undo()
    assert case.publish().delta_version == 0


def test_37_and_38_a_lost_race_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    case.put((1, "a"))
    mirror, other = case.mirror(), case.mirror()
    mirror.publish()
    case.put((1, "b"), (2, "b"))
    put = mirror._delta.put

    def late(*args: Any, **how: Any) -> bool:
        other.publish()
        monkeypatch.undo()
        case.put((3, "c"))
        return put(*args, **how)

    monkeypatch.setattr(mirror._delta, "put", late)
    assert mirror.publish().shown == 2
    assert mirror.publish().shown == 3
    result = other.publish()
    assert (result.shown_before, result.shown, result.delta_version) == (3, 3, 2)
    case.look()


def test_a_first_publication_goes_on_from_that_of_a_faster_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case()
    case.put((1, "a"))
    mirror, other = case.mirror(), case.mirror()
    look = mirror._require_empty

    def look_late() -> None:
        monkeypatch.undo()
        other.publish()
        look()

    monkeypatch.setattr(mirror, "_require_empty", look_late)
    assert mirror.publish().shown == 1
    case.look()


def commit_of_others(case: Case, operation: str, *actions: dict[str, Any]) -> None:
    info = {"commitInfo": {"inCommitTimestamp": 10**15, "operation": operation}}
    case.target.put(SECOND_COMMIT, "\n".join(map(json.dumps, [info, *actions])).encode())


def test_40_and_41_what_others_wrote_is_named_and_rebuilt() -> None:
    case = Case()
    case.put((1, "a"), (2, "b"))
    case.publish()
    add = {"path": "theirs.parquet", "partitionValues": {}, "size": 1, "dataChange": True}
    commit_of_others(case, "WRITE", {"add": add})
    case.put((3, "c"))
    with pytest.raises(MirrorChangedError, match=r"version 1 is 'WRITE'"):
        case.table.publish()
    assert [each.found for each in check_mirror(case.mirror())] == ["WRITE"]
    assert case.publish(rebuild=True).delta_version == 2
    assert case.look().checksums == [0, 2]
    case.put((4, "d"))
    case.publish()
    mirror = case.look()
    assert mirror.version == 3
    assert [next(iter(each)) for each in mirror.commits[3]].count("add") == 1


def test_commits_of_others_that_touch_nothing_are_passed_over() -> None:
    case = Case()
    case.put((1, "a"))
    case.publish()
    commit_of_others(case, "NOTE")
    case.put((1, "b"))
    assert case.publish().delta_version == 2
    assert case.look().times[2] > 10**15


def test_42_another_tables_mirror_is_left_alone(tmp_path: Path) -> None:
    case, other = (Case(store=LocalStore(tmp_path / name)) for name in ("one", "other"))
    case.put((1, "a"))
    other.put((1, "b"))
    place = str(tmp_path / "mirror")
    case.table.publish(place)
    before = DeltaTable(LocalStore(place)).version
    with pytest.raises(OtherTableError, match="mirror of another"):
        other.table.publish(place)
    assert DeltaTable(LocalStore(place)).version == before
    other.table.publish(place, rebuild=True)
    assert DeltaTable(LocalStore(place)).rows().to_pylist() == [{"id": 1, "x": "b"}]
    with pytest.raises(OtherTableError, match="mirror of another"):
        case.table.publish(place)


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("report.csv", b"mine", "report"),
        ("_log/00000000000000000000.json", b"mine", "_log"),
        (
            FIRST_COMMIT,
            b'{"commitInfo":{}}\n{"metaData":{"schemaString":"{}"}}\n',
            "another Delta table",
        ),
    ],
)
def test_42_a_place_with_something_else_is_refused(name: str, data: bytes, expected: str) -> None:
    case = Case()
    case.target.put(name, data)
    with pytest.raises(OtherTableError, match=expected):
        case.table.publish()


def test_43_a_copy_with_other_versions_is_refused_by_the_token() -> None:
    store = MemoryStore()
    case = Case(store=store)
    case.put((1, "a"))
    saved = dict(store.objects)
    case.put((2, "b"))
    case.publish()
    mirror = {path: data for path, data in store.objects.items() if path.startswith("_delta")}
    store.objects = {**saved, **mirror}
    table = Table(case.store, clock=case.clock)
    with pytest.raises(OtherTableError, match="has a version 2"):
        table.publish()
    table.upsert(pa.table({"id": [3], "x": ["c"]}))
    with pytest.raises(OtherTableError, match="another version 2"):
        table.publish()


def test_35_and_44_a_mirror_that_is_half_made_or_was_removed_is_made(tmp_path: Path) -> None:
    case = Case(store=LocalStore(tmp_path))
    case.put((1, "a"))
    case.target.put(f"{'0' * 32}-00000000.parquet", b"orphan")
    case.target.put("deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin", b"orphan")
    case.publish()
    case.put((2, "a"))
    assert case.publish().delta_version == 1
    shutil.rmtree(tmp_path / "_delta")
    assert case.publish().delta_version == 0
    case.look()


@pytest.mark.parametrize(
    "below", ["", "/", "/data", "/_log", "/data/x", "/_index/c", "/_mirror/rows"]
)
def test_a_mirror_lies_outside_of_the_tables_own_files(tmp_path: Path, below: str) -> None:
    case = Case(store=LocalStore(tmp_path / "table"))
    with pytest.raises(OptionError, match="outside"):
        case.table.publish(f"{tmp_path}/table{below}")
    case.table.publish(f"{tmp_path}/table/_mirrored")


def test_the_lease_of_a_mirror_follows_it_at_some_distance() -> None:
    case = Case()
    case.put((1, "a"))
    case.publish()
    [lease] = case.table.consumers()
    assert lease.consumer.startswith("mirror-")
    assert lease.version == 1
    mirror = case.mirror()
    for later, held in ((0, 2), (0, 2), (60, 4)):
        case.clock.now_s += later
        case.put((2, f"{later}"))
        mirror.publish()
        assert case.table.consumers()[0].version == held


def test_a_damaged_vector_is_named() -> None:
    """Small vectors stand in the log, and large ones in one file."""
    case = Case()
    case.put(*((at, "a") for at in range(3_000)))
    case.put(*((at, "b") for at in range(0, 3_000, 3)))
    case.put(*((at, "c") for at in range(0, 3_000, 7)))
    case.publish()
    vectors = [add.get("deletionVector") for add in case.look().adds.values()]
    assert [each["storageType"] for each in vectors if each] == ["u", "u"]
    [name] = [i.path for i in case.target.list("") if i.path.startswith("deletion_vector")]
    case.target.put(name, case.target.read(name)[:-1])
    case.put((1, "c"))
    forget_runs_and_logs()
    for damage in ("deletion vector", name):
        with pytest.raises(CorruptionError, match=damage):
            Table(case.store, clock=case.clock).publish()
        case.target.delete(name)
    case.table = Table(case.store, clock=case.clock)
    case.publish(rebuild=True)
    case.look()


def test_a_damaged_commit_is_named() -> None:
    case = Case()
    case.publish()
    case.target.put(SECOND_COMMIT, b'{"txn":{"appId":3}}\n')
    with pytest.raises(CorruptionError, match="a commit of Delta"):
        case.table.publish()


@pytest.mark.parametrize("damage", ["missing", "cut", "other rows"])
def test_check_finds_a_twin_that_is_not_as_its_run(damage: str) -> None:
    case = Case()
    case.put((1, "a"), (2, "b"))
    case.publish()
    [path] = case.look().adds
    data = case.target.read(path)
    if damage == "missing":
        case.target.delete(path)
    elif damage == "cut":
        case.target.put(path, data[:-1])
    else:
        rows = pq.read_table(pa.BufferReader(data))
        sink = pa.BufferOutputStream()
        pq.write_table(rows.set_column(1, "x", [pa.array(["a", "c"])]), sink)
        case.target.put(path, sink.getvalue().to_pybytes())
    assert list(check_mirror(case.mirror()))


def test_check_finds_a_wrong_bit() -> None:
    case = Case()
    case.put(*((at, "a") for at in range(10)))
    case.put((1, "b"))
    case.publish()
    mirror = case.look()
    [add] = [add for add in mirror.adds.values() if "deletionVector" in add]
    wrong = Vector(10)
    wrong.mark(pa.array([(next(iter(mirror.dead(add))) + 1) % 10]).to_numpy())
    vector, other = add["deletionVector"]["pathOrInlineDv"], encode_z85(wrong.encode())
    data = case.target.read(FIRST_COMMIT)
    case.target.put(FIRST_COMMIT, data.replace(vector.encode(), other.encode()))
    [finding] = check_mirror(case.mirror())
    assert "dead rows" in finding.expected


def stats_of(case: Case) -> list[dict[str, Any]]:
    return [json.loads(add["stats"]) for add in case.look().adds.values()]


def test_floats_and_long_texts_and_old_dates_have_no_bounds() -> None:
    case = Case(
        pa.schema({"id": pa.int64(), "f": pa.float64(), "t": pa.string(), "d": pa.date32()})
    )
    case.put((1, float("nan"), "x" * 33, date(999, 1, 1)), (2, 5.0, "a", date(1000, 1, 1)))
    case.publish()
    case.put((3, 5.0, "a", date(2000, 1, 1)), (4, None, None, None))
    case.publish()
    first, second = stats_of(case)
    assert first["minValues"] == {"id": 1}
    assert second["minValues"] == {"id": 3, "t": "a", "d": "2000-01-01"}
    assert second["nullCount"] == {"id": 0, "t": 1, "d": 1}
    floats = Case(pa.schema({"id": pa.float64(), "f": pa.float32()}))
    floats.put((1.0, float("nan")))
    floats.publish()
    [only] = stats_of(floats)
    assert only["minValues"] == {}
