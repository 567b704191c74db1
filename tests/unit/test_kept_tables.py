"""What a table of contributions takes, what it refuses, and what its compactions leave."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.core.key_hash import ALL_HASHES
from spark_upsert.core.merge_engines import PART, REGISTERS_VERSION, Engine, MergeEngine, Rule
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import (
    CorruptionError,
    DataError,
    NewerFormatError,
    OtherTableError,
    SchemaError,
)
from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.store.open import open_store
from spark_upsert.store.records import encode, read_record
from spark_upsert.table.compaction import Job, compact_runs
from spark_upsert.table.log.manifest import KeptPosition, TableVersion
from spark_upsert.table.run.file import RUNS
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.table import Table
from spark_upsert.table.write import group_commit
from spark_upsert.table.write.outcomes import NOTHING, Move, Verdict
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import StagedRuns
from spark_upsert.views.grouping import Grouping, contributions, marker_entry
from spark_upsert.views.intervals import Pairs
from spark_upsert.views.materialized import MaterializedView
from tests.support.grouped import batch_of, kept_in_memory
from tests.support.grouped import position_of as at
from tests.support.stores import MemoryStore

ROWS = pa.schema({"g": pa.int64(), "x": pa.int64()})
COUNT = Aggregate(name="n", kind=AggregateKind.COUNT)
GROUPING = Grouping(ROWS, ("g",), (COUNT, Aggregate(name="s", kind=AggregateKind.SUM, column="x")))


def entries(*rows: tuple[int, int, int, int]) -> pa.RecordBatch:
    """Return entries of groups: the group, its n, c_x and s_x."""
    names = ["g", "n", "c_x", "s_x"]
    columns = GROUPING.stored_schema.columns
    empty = dict.fromkeys(columns.names)
    records = [{**empty, **dict(zip(names, row, strict=True)), PART: 0} for row in rows]
    return pa.RecordBatch.from_pylist(records, schema=columns)


def take(kept: MaterializedView, epoch: int, *rows: tuple[int, int, int, int]) -> bool:
    lower = at(o=epoch - 1) if epoch else NOTHING
    return kept.apply(entries(*rows), lower=lower, upper=at(o=epoch))


def raw(table: Table) -> dict[int, tuple[int, ...]]:
    rows = table.snapshot(columns=["g", PART, "n", "c_x", "s_x"]).to_pylist()
    return {r["g"]: (r["n"], r["c_x"], int(r["s_x"])) for r in rows if r[PART] == 0}


def stored(table: Table) -> int:
    """Return how many entries the runs hold, the marker apart."""
    files = {slice_.file.path: slice_.file for slice_ in table.log.head().slices}
    runs = [RUNS.open(table.store, file) for file in files.values()]
    groups = [run.slice(["g"], 0, run.file.rows)[0] for run in runs]
    return sum(len(column) - column.null_count for column in groups)


def merge(table: Table, first: int, end: int) -> None:
    """Compact some runs by their places in the order of their epochs."""
    slices = tuple(table.log.head().slices[first:end])
    job = Job(hash_range=ALL_HASHES, slices=slices, is_oldest=first == 0)
    assert table.commit_compactions([compact_runs(table.store, table.log.head(), job)]) == 1


# -- the rule of steps --------------------------------------------------------------------


def cut(hashes: int) -> str:
    return at(o=0, snapshot=hashes)


def another(text: str, part: str, other: str) -> str:
    assert part in text
    return text.replace(part, other)


ANEW = another(at(o=3), '"o",3', '"p",3')
"""The same input, made anew."""
REWRITTEN = another(at(o=3), "o3", "x3")
"""The same table, set back and gone on with."""
PINNED = KeptPosition(
    at=KeptPosition.read(at(o=3)).at,
    pinned={"c@1": TableVersion(table_id="c", version=1, token="t")},
).text


@pytest.mark.parametrize(
    ("recorded", "lower", "upper", "verdict"),
    [
        (NOTHING, NOTHING, at(o=3), Verdict.APPLY),
        (NOTHING, at(o=2), at(o=3), Verdict.REFUSE),
        (at(o=3), at(o=3), at(o=4), Verdict.APPLY),
        (at(o=3), at(o=2), at(o=3), Verdict.SKIP),
        (at(o=3), NOTHING, at(o=3), Verdict.SKIP),
        (at(o=3), at(o=1), at(o=2), Verdict.SKIP),
        (at(o=3), at(o=2), at(o=4), Verdict.REFUSE),
        (at(o=3), NOTHING, at(o=4), Verdict.REFUSE),
        (at(o=3), at(o=4), at(o=5), Verdict.REFUSE),
        (at(o=3, c=5), at(o=3, c=4), at(o=3, c=5), Verdict.SKIP),
        (at(o=3, c=5), at(o=3, c=4), at(o=4, c=4), Verdict.REFUSE),
        (at(o=3), at(c=2), at(c=3), Verdict.REFUSE),
        (cut(1), cut(1), cut(2), Verdict.APPLY),
        (cut(2), cut(1), cut(2), Verdict.SKIP),
        (cut(2), cut(1), at(o=0), Verdict.REFUSE),
        (at(o=0), cut(1), cut(2), Verdict.SKIP),
        (at(o=1), cut(2), at(o=0), Verdict.SKIP),
        (ANEW, at(o=2), at(o=3), Verdict.REFUSE),
        (at(o=4), at(o=2), ANEW, Verdict.REFUSE),
        (at(o=4), ANEW, at(o=5), Verdict.REFUSE),
        (REWRITTEN, at(o=2), at(o=3), Verdict.REFUSE),
        (REWRITTEN, at(o=3), at(o=4), Verdict.REFUSE),
        (PINNED, at(o=2), at(o=3), Verdict.REFUSE),
        (PINNED, NOTHING, another(PINNED, '"c",1', '"d",1'), Verdict.REFUSE),
    ],
)
def test_a_step_is_applied_skipped_or_refused(
    recorded: str, lower: str, upper: str, verdict: Verdict
) -> None:
    assert Move(lower=lower, upper=upper).compare_with(recorded) is verdict


NO_POSITIONS = [
    *("3", "{}", "x", '{"at":3}', '{"at":{"o":3}}', '{"at":{"o":["id","3","token"]}}'),
    *('{"at":{"o":["id",3]}}', '{"at":{},"pinned":3}'),
    *('{"at":{},"snapshot":true}', '{"at":{},"snapshot":-1}'),
]


@pytest.mark.parametrize("text", NO_POSITIONS)
def test_what_is_no_position_is_an_error(text: str) -> None:
    with pytest.raises(DataError, match="expected a position of a view"):
        Move(lower=text, upper=at(o=9)).compare_with(text.replace("3", "4") + " ")
    with pytest.raises(DataError, match="expected a position of a view"):
        Move(lower=NOTHING, upper=text).compare_with(at(o=1))


def test_a_step_that_comes_again_is_skipped_and_one_that_is_ahead_refused() -> None:
    kept = kept_in_memory(GROUPING)
    assert take(kept, 0, (7, 1, 1, 5))
    assert take(kept, 1, (7, 1, 1, 3))
    assert not take(kept, 1, (7, 1, 1, 3))
    assert not take(kept, 0, (7, 1, 1, 5))
    with pytest.raises(OtherTableError):
        take(kept, 3, (7, 1, 1, 5))
    assert raw(kept.table) == {7: (2, 2, 8)}


def test_a_step_that_another_takes_behind_the_staging_is_skipped() -> None:
    kept = kept_in_memory(GROUPING)
    take(kept, 0, (7, 1, 1, 5))
    other = MaterializedView(Table(kept.table.store), GROUPING)

    def late(*arguments: Any, **how: Any) -> StagedRuns:
        staged = stage(*arguments, **how)
        with patch.object(group_commit, "stage", stage):
            assert take(kept, 1, (7, 1, 1, 3))
        return staged

    with patch.object(group_commit, "stage", late):
        assert not take(other, 1, (7, 1, 1, 3))
    assert raw(kept.table) == {7: (2, 2, 8)}


def test_of_two_ways_from_one_position_the_second_is_refused() -> None:
    """Two queries see the same position and go on differently: both would count what they share."""
    kept = kept_in_memory(GROUPING)
    other = MaterializedView(Table(kept.table.store), GROUPING)
    other.table.log.head()
    assert kept.apply(entries((7, 1, 1, 3)), lower=NOTHING, upper=at(o=1))
    with pytest.raises(OtherTableError, match="goes from nothing to"):
        other.apply(entries((7, 2, 2, 3)), lower=NOTHING, upper=at(o=2))
    assert raw(kept.table) == {7: (1, 1, 3)}


def test_a_restored_table_refuses_the_query_that_was_ahead_of_it() -> None:
    kept = kept_in_memory(GROUPING)
    take(kept, 0, (7, 1, 1, 5))
    version = kept.table.log.head().version
    take(kept, 1, (7, 1, 1, 5))
    kept.table.restore(version)
    assert kept.position() == at(o=0)
    with pytest.raises(OtherTableError, match="Give the query a new checkpoint"):
        take(kept, 2, (7, 1, 1, 5))
    assert take(kept, 1, (7, 1, 1, 4))
    assert raw(kept.table) == {7: (2, 2, 9)}


def test_a_table_of_contributions_is_written_by_steps_alone() -> None:
    kept = kept_in_memory(GROUPING)
    step = pa.Table.from_batches([entries((7, 1, 1, 5))])
    with pytest.raises(DataError, match="brings one marker; found 0"):
        kept.table.upsert(step)
    mark = pa.Table.from_batches([marker_entry(GROUPING, lower=NOTHING, upper=at(o=0))])
    marked = pa.concat_tables([step, mark])
    with pytest.raises(DataError, match="its contents cannot be replaced"):
        kept.table.upsert(marked, overwrite=True)
    assert kept.table.snapshot().num_rows == 0
    assert kept.table.upsert(marked) is not None


def test_who_knows_no_contributions_refuses_their_table() -> None:
    """What was read of an engine before is its kind: one that is unknown is refused."""
    stored = Table(kept_in_memory(GROUPING).table.store).schema.engine.to_json()
    assert stored["kind"] not in {kind.value for kind in Engine}
    assert (stored["version"], MergeEngine().to_json().get("version")) == (2, None)
    assert MergeEngine.from_json(stored) == GROUPING.stored_schema.engine
    with pytest.raises(NewerFormatError, match=f"merge engine has format {REGISTERS_VERSION + 1}"):
        MergeEngine.from_json({**stored, "version": REGISTERS_VERSION + 1, "kind": "unheard of"})


@pytest.mark.parametrize(
    "change",
    [{"version": 0}, {"version": "2"}, {"kind": "unheard of"}, {"multiplicity": None}],
    ids=["version 0", "a text", "another kind", "what counts is not named"],
)
def test_an_engine_that_is_none_is_damage(change: dict[str, Any]) -> None:
    stored = GROUPING.stored_schema.to_json()
    stored["engine"] = {**stored["engine"], **change}
    store = MemoryStore()
    store.objects["x"] = encode({"schema": stored})
    with pytest.raises(CorruptionError, match=r"fields as docs/format\.md tells"):
        read_record(store, "x", lambda record: TableSchema.from_json(record["schema"]))


@pytest.mark.parametrize(
    ("type_", "rules"),
    [(pa.int64(), {}), (pa.int32(), {"n": Rule.SUM}), (pa.int64(), {"n": Rule.MAX})],
    ids=["no rule", "int32", "no sum"],
)
def test_what_counts_rows_is_a_sum_of_int64(type_: pa.DataType, rules: dict[str, Rule]) -> None:
    engine = MergeEngine(Engine.AGGREGATION, rules, multiplicity="n")
    with pytest.raises(SchemaError, match="column 'n' counts rows"):
        TableSchema.of(pa.schema({"k": pa.int64(), "n": type_}), keys=["k"], engine=engine)


def bits_of(value: float | None) -> bytes | None:
    return None if value is None else struct.pack("<d", value)


def test_zeros_of_either_sign_and_all_nans_are_stored_as_one() -> None:
    rows = pa.schema({"g": pa.float64(), "x": pa.float32()})
    least = Aggregate(name="least", kind=AggregateKind.MIN, column="x")
    grouping = Grouping(rows, ("g",), (least,))
    odd = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
    pairs = [(-0.0, -0.0), (0.0, 0.0), (odd, odd), (math.nan, math.nan)]
    stored = contributions(grouping, Pairs.of_inserts(batch_of(pairs, rows)))
    bits = {tuple(map(bits_of, (row["g"], row["_v1"]))) for row in stored.to_pylist()}
    expected = [(0.0, None), (0.0, 0.0), (math.nan, None), (math.nan, math.nan)]
    assert bits == {(bits_of(g), bits_of(v)) for g, v in expected}
    assert stored.num_rows == 4
    assert stored.column("n").to_pylist() == [2] * 4


# -- what a merge leaves ------------------------------------------------------------------


def test_an_entry_of_zeros_goes_from_any_runs_and_a_count_of_zero_beside_sums_stays() -> None:
    kept = kept_in_memory(GROUPING)
    take(kept, 0, (1, 1, 1, 5), (2, 1, 1, 5))
    take(kept, 1, (1, 1, 1, 3), (2, 1, 1, 9), (3, 1, 0, 0))
    take(kept, 2, (1, -1, -1, -3), (2, -1, -1, -5), (3, -1, 0, 0))
    before = raw(kept.table)
    assert before == {1: (1, 1, 5), 2: (1, 1, 9)}
    merge(kept.table, 1, 3)
    assert stored(kept.table) == 2 + 1
    assert raw(kept.table) == before
    merge(kept.table, 0, 2)
    assert raw(kept.table) == before
    assert kept.position() == at(o=2)
    assert kept.table.check().is_sound


def test_the_marker_stays_when_nothing_else_does() -> None:
    kept = kept_in_memory(GROUPING)
    take(kept, 0, (1, 1, 1, 5))
    take(kept, 1, (1, -1, -1, -5))
    assert kept.table.log.head().live_rows == 1
    counted = Counters.from_json(kept.table.log.commit(2).counters)
    assert (counted.updates, counted.deletes, counted.stale) == (1, 1, 0)
    merge(kept.table, 0, 2)
    assert stored(kept.table) == 0
    assert kept.table.snapshot().num_rows == 1
    assert kept.position() == at(o=1)


@pytest.mark.parametrize(
    "entry", [(1, -1, 0, 0), (1, 0, 0, 4), (1, 0, 1, 0)], ids=["below zero", "a sum", "a count"]
)
def test_a_check_finds_an_entry_of_no_rows(
    entry: tuple[int, int, int, int], tmp_path: Path
) -> None:
    kept = MaterializedView(Table(open_store(str(tmp_path))), GROUPING)
    kept.table.ensure(GROUPING.stored_schema)
    take(kept, 0, (2, 1, 1, 5))
    assert kept.table.check().is_sound
    take(kept, 1, entry)
    findings = kept.table.check().findings
    assert len(findings) == 1, findings
    finding = findings[0]
    assert finding.place == "version 2"
    assert finding.expected == "contributions of one row or more in each entry"
    named = f"1 entries of none or fewer (the first: g=1, _part=0, n={entry[1]},"
    assert finding.found.startswith(named)
    take(kept, 2, (2, 1, 1, 5))
    merge(kept.table, 1, 3)  # A run below may complete it.
    for refused in (lambda: merge(kept.table, 0, 2), kept.rows):
        with pytest.raises(CorruptionError, match="each of its entries must be of one row or more"):
            refused()
