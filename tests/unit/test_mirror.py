"""What each kind of version becomes in a mirror: the cases of the specification, one by one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.schema import ErrorPolicy, Scope, TableSchema
from spark_upsert.delta import publish as plan_module
from spark_upsert.delta.check import check_mirror
from spark_upsert.delta.deletion_vectors import Vector, as_text
from spark_upsert.delta.place import place_of
from spark_upsert.delta.publish import Mirror
from spark_upsert.delta.refusals import MirrorChangedError, MirroredTypeError, NotMirroredError
from spark_upsert.errors import CorruptionError, OptionError, OtherTableError
from spark_upsert.store import LocalStore, Store
from spark_upsert.table.observers import PublicationResult
from spark_upsert.table.table import Table
from tests.support.delta import DeltaTable
from tests.support.stores import MemoryStore, forget_runs_and_logs
from tests.support.tables import Ticks

COLUMNS = pa.schema({"id": pa.int64(), "x": pa.string()})


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
        self.target = place_of(self.store, None)

    def put(self, *rows: tuple[Any, ...], overwrite: bool = False) -> None:
        self._append(rows, gone=False, overwrite=overwrite)

    def delete(self, *rows: tuple[Any, ...]) -> None:
        self._append(rows, gone=True, overwrite=False)

    def both(self, deleted: Sequence[Any], put: Sequence[Any]) -> None:
        """Delete and put rows in one epoch."""
        self._append([*deleted, *put], gone=[True] * len(deleted) + [False] * len(put))

    def _append(
        self, rows: Sequence[tuple[Any, ...]], *, gone: Any, overwrite: bool = False
    ) -> None:
        columns = self.table.schema.columns
        fields = [*columns, *self.table.schema.order]
        filled = [(*row, *(None,) * (len(fields) - len(row))) for row in rows]
        given = {
            field.name: pa.array([row[at] for row in filled], field.type)
            for at, field in enumerate(fields)
        }
        gone = gone if isinstance(gone, list) else [gone] * len(rows)
        self.table.upsert(
            pa.table({**given, "gone": pa.array(gone, pa.bool_())}),
            deletes="gone",
            overwrite=overwrite,
        )

    def publish(self, **how: Any) -> PublicationResult:
        done = self.table.publish(**how)
        assert list(check_mirror(Mirror(self.table.log, self.store, self.target))) == []
        return done

    def look(self, version: int | None = None) -> DeltaTable:
        """Return the mirror, which must have the rows of the table."""
        found = DeltaTable(self.target, version)
        if version is None:
            rows = sorted(map(repr, found.rows().to_pylist()))
            assert rows == sorted(map(repr, self.table.snapshot().to_pylist()))
        return found

    def files(self) -> dict[int, int]:
        """Return how many rows of each live file are dead, by the version that wrote its run."""
        found = DeltaTable(self.target)
        at = {slice_.file.path: slice_.epochs.lower for slice_ in self.table.log.head().slices}
        runs = {path.split("/")[1].split(".")[0]: version for path, version in at.items()}
        return {runs[path[:32]]: len(found.dead(add)) for path, add in found.adds.items()}


def test_1_a_new_table_is_a_mirror_without_files() -> None:
    case = Case()
    assert case.publish().delta_version == 0
    found = case.look()
    assert [next(iter(each)) for each in found.commits[0]] == [
        "commitInfo",
        "txn",
        "txn",
        "protocol",
        "metaData",
    ]
    assert found.transactions[f"upsertflow:{case.table.log.head().table_id}"] == 0
    assert found.protocol == {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors", "inCommitTimestamp", "changeDataFeed", "upsertflow"],
    }


def test_2_rows_that_are_there_come_with_the_first_commit() -> None:
    case = Case()
    case.put((1, "a"), (2, "b"))
    done = case.publish()
    assert (done.shown_before, done.shown, done.delta_version) == (None, 1, 0)
    assert case.files() == {1: 0}
    assert case.look().data_changes == {True}


def test_3_an_epoch_adds_its_twin_and_a_bit() -> None:
    case = Case()
    case.put((1, "a"), (2, "b"))
    case.publish()
    case.put((2, "c"), (3, "d"))
    assert case.publish().shown == 2
    assert case.files() == {1: 1, 2: 0}
    assert case.look().data_changes == {True}


def test_4_a_delete_has_no_twin() -> None:
    case = Case()
    case.put((1, "a"), (2, "b"))
    case.publish()
    case.delete((1,))
    case.publish()
    assert case.files() == {1: 1}
    assert not [path for path in case.look().adds if "parquet" not in path]


def test_5_a_delete_of_what_is_not_there_makes_no_commit() -> None:
    case = Case()
    case.put((1, "a"), (2, "b"))
    before = case.publish()
    case.delete((9,))
    done = case.publish()
    assert (done.delta_version, done.shown, done.newest) == (before.delta_version, 1, 2)
    assert not done.has_changed
    case.put((3, "c"))
    assert case.publish().shown == 3
    case.look()


def test_6_a_deleted_row_is_a_row_of_nulls_in_its_twin() -> None:
    case = Case()
    case.put((1, "a"), (2, "b"))
    case.publish()
    case.both([(1, None)], [(3, "secret")])
    case.publish()
    assert case.files() == {1: 1, 2: 1}
    found = case.look()
    [path] = [p for p, add in found.adds.items() if json.loads(add["stats"])["numRecords"] == 2][1:]
    twin = pq.read_table(pa.BufferReader(case.target.read(path)))
    dead = next(iter(found.dead(found.adds[path])))
    assert twin.take([dead]).to_pylist() == [{"id": None, "x": None}]


def test_7_all_that_is_superseded_goes() -> None:
    case = Case()
    case.put((1, "a"), (2, "b"))
    case.publish()
    case.put((1, "a"), (2, "b"))
    case.publish()
    assert case.files() == {2: 0}


def test_8_a_compaction_changes_no_data() -> None:
    case = Case()
    case.put((1, "a"), (2, "b"))
    case.put((2, "c"), (3, "d"))
    case.publish()
    case.table.compact(full=True)
    case.publish()
    assert len(case.files()) == 1
    assert case.look().data_changes == {False}


def test_10_an_epoch_and_a_compaction_in_one_step_change_data() -> None:
    case = Case()
    case.put((1, "a"), (2, "b"))
    case.publish()
    case.put((2, "c"))
    case.table.compact(full=True)
    case.publish()
    assert case.look().data_changes == {True}


def test_11_epochs_that_are_behind_become_one_commit() -> None:
    case = Case()
    case.put((1, "a"))
    before = case.publish()
    for number in range(5):
        case.put((number, f"x{number}"), (1, "again"))
    case.delete((4,))
    done = case.publish()
    assert (done.delta_version, done.shown) == (before.delta_version + 1, 7)
    case.look()


def test_13_an_overwrite_removes_all_old_twins() -> None:
    case = Case()
    case.put((1, "a"), (2, "b"))
    case.publish()
    case.put((2, "z"), (7, "q"), overwrite=True)
    case.publish()
    assert case.files() == {2: 0}
    case.look()


def test_15_a_restore_lets_vectors_shrink() -> None:
    case = Case()
    case.put((1, "a"), (2, "b"))
    case.put((1, "c"))
    case.publish()
    assert case.files() == {1: 1, 2: 0}
    case.table.restore(1)
    case.publish()
    assert case.files() == {1: 0}
    case.look()


def test_16_a_restore_to_what_is_shown_makes_no_commit() -> None:
    case = Case()
    case.put((1, "a"), (2, "b"))
    before = case.publish()
    case.put((1, "c"))
    case.table.restore(1)
    done = case.publish()
    assert done.delta_version == before.delta_version
    case.look()


SEQ = (pa.field("seq", pa.int64()),)


def test_18_a_late_row_is_dead_at_birth() -> None:
    case = Case(order=SEQ)
    case.put((1, "new", 5))
    case.publish()
    case.put((1, "old", 3))
    case.publish()
    assert case.files() == {1: 0}
    case.look()


def test_19_a_late_row_beside_a_new_one() -> None:
    case = Case(order=SEQ)
    case.put((1, "a", 5))
    case.put((2, "b", 1))
    case.publish()
    case.put((1, "late", 4), (3, "c", 1))
    case.publish()
    assert case.files() == {1: 0, 2: 0, 3: 1}
    case.look()


def test_21_a_compaction_of_younger_runs_loses_to_an_older_one() -> None:
    case = Case(order=SEQ)
    case.put((1, "a", 9), (2, "b", 1))
    case.put((1, "late", 4), (3, "c", 1))
    case.put((4, "d", 1))
    case.publish()
    case.table.compact(full=True)
    case.publish()
    assert case.look().data_changes == {False}


def test_22_an_error_is_a_dead_row_of_nulls() -> None:
    case = Case(on_error=ErrorPolicy.QUARANTINE)
    case.put((1, "a"), (2, "b"))
    case.publish()
    case.put((None, "of no key"), (3, "c"))
    case.publish()
    assert case.files() == {1: 0, 2: 1}
    case.look()


def test_24_a_partial_update_carries_the_folded_row() -> None:
    case = Case(
        pa.schema({"id": pa.int64(), "a": pa.int64(), "b": pa.int64()}),
        engine=MergeEngine(Engine.PARTIAL_UPDATE),
    )
    case.put((1, 1, None), (2, 5, 5))
    case.publish()
    case.put((1, None, 2))
    case.publish()
    assert case.files() == {1: 1, 2: 0}
    assert {"id": 1, "a": 1, "b": 2} in case.look().rows().to_pylist()
    case.table.compact(full=True)
    case.publish()
    assert case.look().data_changes == {False}


def test_25_a_row_lives_below_a_delete_that_came_late() -> None:
    case = Case(
        pa.schema({"id": pa.int64(), "a": pa.int64()}),
        order=SEQ,
        engine=MergeEngine(Engine.PARTIAL_UPDATE),
    )
    case.put((1, 7, 9))
    case.publish()
    case.delete((1, None, 5))
    case.publish()
    assert case.files() == {2: 0}
    assert case.look().rows().to_pylist() == [{"id": 1, "a": 7}]


def test_27_an_aggregation_carries_the_sum() -> None:
    case = Case(
        pa.schema({"id": pa.int64(), "n": pa.int64()}),
        engine=MergeEngine(Engine.AGGREGATION, rules={"n": Rule.SUM}),
    )
    for number in (5, 7):
        case.table.upsert(pa.table({"id": [1], "n": [number]}))
        case.publish()
    assert case.files() == {2: 0}
    assert case.look().rows().to_pylist() == [{"id": 1, "n": 12}]


def test_29_an_added_column_is_null_in_old_twins() -> None:
    case = Case()
    case.put((1, "a"))
    case.publish()
    wide = COLUMNS.append(pa.field("more", pa.int32()))
    case.table.upsert(
        pa.table([[2], ["b"], pa.array([5], pa.int32())], schema=wide), merge_schema=True
    )
    case.publish()
    assert len(case.files()) == 2
    assert case.look().schema.names == ["id", "x", "more"]
    assert case.look(0).schema.names == ["id", "x"]


def test_30_a_wider_type_writes_all_twins_anew() -> None:
    case = Case(pa.schema({"id": pa.int64(), "n": pa.int32()}))
    case.put((1, 5), (2, 6))
    case.publish()
    old = set(case.look().adds)
    wide = pa.schema({"id": pa.int64(), "n": pa.int64()})
    case.table.upsert(pa.table([[3], [1 << 40]], schema=wide), merge_schema=True)
    case.publish()
    found = case.look()
    assert not old & set(found.adds)
    assert "typeWidening" not in json.dumps(found.protocol)
    assert case.look(0).rows().schema.field("n").type == pa.int32()


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
    found = all_types().look()
    assert found.protocol["readerFeatures"] == ["deletionVectors", "timestampNtz"]


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
    assert "columnMapping" not in json.dumps(case.look().protocol)
    [stats] = [
        json.loads(add["stats"]) for add in case.look().adds.values() if "deletionVector" in add
    ]
    assert stats["minValues"]["p.q"] == "c"


def test_34_a_table_with_a_prefix() -> None:
    columns = pa.schema({"part": pa.int64(), "id": pa.int64(), "x": pa.string()})
    case = Case(columns, keys=("part", "id"), hash_prefix=1)
    case.put(*((at % 2, at, "a") for at in range(20)))
    case.publish()
    case.put((0, 2, "b"), (1, 99, "c"))
    case.publish()
    assert case.files() == {1: 1, 2: 0}
    case.look()


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


def test_37_the_slower_of_two_publishers_has_nothing_to_do() -> None:
    case = Case()
    case.put((1, "a"))
    other = Mirror(case.table.log, case.store, case.target)
    case.publish()
    case.put((2, "b"))
    assert other.publish().delta_version == 1
    done = case.publish()
    assert (done.shown_before, done.shown, done.delta_version) == (2, 2, 1)


def test_38_a_lost_race_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    case.put((1, "a"))
    mirror = Mirror(case.table.log, case.store, case.target)
    other = Mirror(case.table.log, case.store, case.target)
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
    case.look()


def test_39_a_mirror_that_is_behind_what_is_kept_is_made_from_the_manifest() -> None:
    case = Case()
    case.put((1, "a"), (2, "b"))
    case.publish()
    old = set(case.look().adds)
    case.table.release(case.table.consumers()[0].consumer)
    for number in range(4):
        case.put((number, "again"))
    case.table.expire(retain_versions=0, safety_ms=0)
    case.table.vacuum(grace_ms=0)
    done = case.publish()
    assert (done.shown_before, done.shown) == (1, 5 + 1)
    assert not old & set(case.look().adds)


def test_40_and_41_what_others_wrote_is_named_and_rebuilt() -> None:
    case = Case()
    case.put((1, "a"), (2, "b"))
    case.publish()
    actions = [
        {"commitInfo": {"inCommitTimestamp": 10**15, "operation": "WRITE"}},
        {"add": {"path": "theirs.parquet", "partitionValues": {}, "size": 1, "dataChange": True}},
    ]
    data = "\n".join(map(json.dumps, actions)).encode()
    case.target.put("_delta_log/00000000000000000001.json", data)
    case.put((3, "c"))
    with pytest.raises(MirrorChangedError, match=r"version 1 is 'WRITE'"):
        case.table.publish()
    mirror = Mirror(case.table.log, case.store, case.target)
    assert [each.found for each in check_mirror(mirror)] == ["WRITE"]
    done = case.publish(rebuild=True)
    assert done.delta_version == 2
    assert case.look().checksums == [0, 2]
    case.put((4, "d"))
    case.publish()
    assert case.look().version == 3
    assert [next(iter(each)) for each in case.look().commits[3]].count("add") == 1


def test_commits_that_touch_nothing_are_passed_over() -> None:
    case = Case()
    case.put((1, "a"))
    case.publish()
    data = json.dumps({"commitInfo": {"inCommitTimestamp": 10**15, "operation": "NOTE"}})
    case.target.put("_delta_log/00000000000000000001.json", data.encode())
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


@pytest.mark.parametrize("name", ["report.csv", "_log/00000000000000000000.json"])
def test_42_a_place_with_something_else_is_refused(name: str) -> None:
    case = Case()
    case.target.put(name, b"mine")
    with pytest.raises(OtherTableError, match=name[:4]):
        case.table.publish()


def test_42_a_delta_table_of_others_is_refused() -> None:
    case = Case()
    case.target.put(
        "_delta_log/00000000000000000000.json",
        b'{"commitInfo":{}}\n{"metaData":{"schemaString":"{}"}}\n',
    )
    with pytest.raises(OtherTableError, match="another Delta table"):
        case.table.publish()


def test_43_a_copy_with_other_versions_is_told_by_the_token() -> None:
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


def test_44_a_mirror_that_was_removed_is_made_anew(tmp_path: Path) -> None:
    case = Case(store=LocalStore(tmp_path / "table"))
    case.put((1, "a"))
    case.publish()
    case.put((2, "b"))
    case.publish()
    for path in sorted((tmp_path / "table" / "_delta").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    assert case.publish().delta_version == 0
    case.look()


def test_35_a_half_made_mirror_is_made() -> None:
    case = Case()
    case.put((1, "a"))
    case.target.put(f"{'0' * 32}-00000000.parquet", b"orphan")
    case.target.put("deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin", b"orphan")
    case.publish()
    case.look()


def test_49_times_are_those_of_the_table() -> None:
    case = Case()
    times = []
    for number in range(4):
        case.put((number, "a"))
        case.publish()
        times.append(case.table.log.head().timestamp_ms)
    assert case.look().times == times


def test_51_versions_that_show_nothing_make_no_commit() -> None:
    case = Case()
    case.put((1, "a"))
    case.put((2, "a"))
    before = case.publish()
    case.table.expire(retain_versions=0, safety_ms=0)
    case.table.alter(case.table.schema, {"tombstoneRetention": "1 epoch"})
    assert case.publish().delta_version == before.delta_version


def test_28_contributions_are_not_mirrored() -> None:
    engine = MergeEngine(Engine.AGGREGATION, rules={"rows": Rule.SUM}, multiplicity="rows")
    case = Case(pa.schema({"id": pa.int64(), "rows": pa.int64()}), engine=engine)
    with pytest.raises(NotMirroredError, match="groups"):
        case.table.publish()


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
    mirror = Mirror(case.table.log, case.store, case.target)
    for later, held in ((0, 2), (0, 2), (60, 4)):
        case.clock.now_s += later
        case.put((2, f"{later}"))
        mirror.publish()
        assert case.table.consumers()[0].version == held


def test_small_vectors_stand_in_the_log_and_large_ones_in_one_file() -> None:
    case = Case()
    case.put(*((at, "a") for at in range(3_000)))
    case.put(*((at, "b") for at in range(0, 3_000, 3)))
    case.put(*((at, "c") for at in range(0, 3_000, 7)))
    case.publish()
    kinds = [
        add["deletionVector"]["storageType"]
        for add in case.look().adds.values()
        if "deletionVector" in add
    ]
    assert sorted(kinds) == ["u", "u"]
    assert sum(info.path.startswith("deletion_vector") for info in case.target.list("")) == 1
    case.delete((1,))
    case.publish()
    case.look()


def test_a_damaged_vector_is_named() -> None:
    case = Case()
    case.put(*((at, "a") for at in range(3_000)))
    case.put(*((at, "b") for at in range(0, 3_000, 3)))
    case.publish()
    [name] = [i.path for i in case.target.list("") if i.path.startswith("deletion_vector")]
    case.target.put(name, case.target.read(name)[:-1])
    case.put((1, "c"))
    forget_runs_and_logs()
    with pytest.raises(CorruptionError, match="deletion vector"):
        Table(case.store, clock=case.clock).publish()
    case.target.delete(name)
    with pytest.raises(CorruptionError, match=name):
        Table(case.store, clock=case.clock).publish()
    case.table = Table(case.store, clock=case.clock)
    case.publish(rebuild=True)
    case.look()


def test_a_damaged_commit_is_named() -> None:
    case = Case()
    case.publish()
    case.target.put("_delta_log/00000000000000000001.json", b'{"txn":{"appId":3}}\n')
    with pytest.raises(CorruptionError, match="a commit of Delta"):
        case.table.publish()


@pytest.mark.parametrize("name", ["missing", "cut", "other rows"])
def test_check_finds_a_twin_that_is_not_as_its_run(name: str) -> None:
    case = Case()
    case.put((1, "a"), (2, "b"))
    case.publish()
    [path] = case.look().adds
    data = case.target.read(path)
    if name == "missing":
        case.target.delete(path)
    elif name == "cut":
        case.target.put(path, data[:-1])
    else:
        rows = pq.read_table(pa.BufferReader(data))
        sink = pa.BufferOutputStream()
        pq.write_table(rows.set_column(1, "x", [pa.array(["a", "c"])]), sink)
        case.target.put(path, sink.getvalue().to_pybytes())
    assert list(check_mirror(Mirror(case.table.log, case.store, case.target)))


def test_check_finds_a_wrong_bit() -> None:
    case = Case()
    case.put(*((at, "a") for at in range(10)))
    case.put((1, "b"))
    case.publish()
    path = "_delta_log/00000000000000000000.json"
    data = case.target.read(path).decode()
    add = next(a for a in DeltaTable(case.target).adds.values() if "deletionVector" in a)
    wrong = Vector(10)
    wrong.mark(pa.array([(next(iter(DeltaTable(case.target).dead(add))) + 1) % 10]).to_numpy())
    text = as_text(wrong.encoded())
    case.target.put(path, data.replace(add["deletionVector"]["pathOrInlineDv"], text).encode())
    [finding] = check_mirror(Mirror(case.table.log, case.store, case.target))
    assert "dead rows" in finding.expected


@pytest.mark.parametrize("by_change", [True, False])
def test_both_ways_to_a_vector_agree(monkeypatch: pytest.MonkeyPatch, by_change: bool) -> None:
    monkeypatch.setattr(plan_module, "_SETTLED_FROM", 0 if by_change else 1 << 40)
    case = Case(order=SEQ)
    for number in range(6):
        case.put(*((at, f"{number}", (at * 7 + number * 5) % 11) for at in range(number, 20, 3)))
        case.publish()
    case.look()


def test_old_times_and_dates_carry_the_mark_that_spark_asks_for() -> None:
    case = all_types()
    for path in case.look().adds:
        footer = pq.read_metadata(pa.BufferReader(case.target.read(path))).metadata
        assert footer[b"org.apache.spark.version"] == b"4.0.0"
        assert footer[b"upsertflow.run"].startswith(b"data/")
        assert b"ARROW:schema" not in footer


def test_floats_have_no_bounds() -> None:
    case = Case(
        pa.schema({"id": pa.int64(), "f": pa.float64(), "t": pa.string(), "d": pa.date32()})
    )
    case.put((1, float("nan"), "x" * 33, date(999, 1, 1)), (2, 5.0, "a", date(1000, 1, 1)))
    case.publish()
    case.put((3, 5.0, "a", date(2000, 1, 1)), (4, None, None, None))
    case.publish()
    first, second = (json.loads(add["stats"]) for add in case.look().adds.values())
    assert first["minValues"] == {"id": 1}
    assert second["minValues"] == {"id": 3, "t": "a", "d": "2000-01-01"}
    assert second["nullCount"] == {"id": 0, "t": 1, "d": 1}


def test_a_table_of_floats_alone_has_no_bounds_either() -> None:
    case = Case(pa.schema({"id": pa.float64(), "f": pa.float32()}))
    case.put((1.0, float("nan")))
    case.publish()
    [add] = case.look().adds.values()
    assert json.loads(add["stats"])["minValues"] == {}


def test_an_unguarded_mirror_says_nothing_that_writers_refuse() -> None:
    case = Case()
    case.publish(guard=False)
    assert "upsertflow" not in case.look().protocol["writerFeatures"]
    case.publish(guard=True)
    case.put((1, "a"))
    case.publish(guard=True)
    assert "upsertflow" in case.look().protocol["writerFeatures"]
