"""Each option says what becomes of it when it is another one in the next life of a query."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_upsert.core.schema import ErrorPolicy
from spark_upsert.errors import UpsertFlowError
from spark_upsert.options.declare import Change
from spark_upsert.options.inputs import INPUT_OPTIONS
from spark_upsert.options.read import READ_OPTIONS
from spark_upsert.options.routed import ROUTED_OPTIONS
from spark_upsert.options.write import WRITE_OPTIONS
from spark_upsert.routed.plan import table_below
from spark_upsert.store.open import open_store
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan
from tests.support import routed_worlds as routed
from tests.support.queries import Query
from tests.support.stores import MemoryStore
from tests.support.written import write
from tests.unit import (
    test_deferred,
    test_failing_rows,
    test_first_write,
    test_keeping,
    test_python_input,
    test_routed_write,
)
from tests.unit.test_lives_of_payloads import TRIED as OF_PAYLOADS

InputRows = Mapping[str, str]
Changed = tuple[InputRows, InputRows]
"""The options of one life and of the next; an empty text takes one back."""

FEED = {"readChangeFeed": "true"}

OF_READS: dict[str, Changed] = {
    "path": ({"input.a.path": "{0}/a"}, {"input.a.path": "{0}/other"}),
    "readChangeFeed": (FEED, {"readChangeFeed": "false"}),
    "columns": ({}, {"columns": "id"}),
    "ignoreDeletes": ({"readChangeFeed": ""}, {"readChangeFeed": "", "ignoreDeletes": "true"}),
    "startingVersion": ({}, {"startingVersion": "latest"}),
    "startingTimestamp": ({}, {"startingVersion": "", "startingTimestamp": "2001-01-01"}),
    "startingBoundInclusive": ({}, {"startingVersion": "1", "startingBoundInclusive": "false"}),
    "deduplicationMode": ({}, {"deduplicationMode": "none"}),
    "emitUnchanged": ({"emitUnchanged": "true"}, {"emitUnchanged": "false"}),
    "computeUpdates": ({}, {"computeUpdates": "false"}),
    "maxRowsPerTrigger": ({}, {"maxRowsPerTrigger": "7"}),
    "maxBytesPerTrigger": ({}, {"maxBytesPerTrigger": "1"}),
    "maxEpochsPerTrigger": ({"maxRowsPerTrigger": ""}, {"maxEpochsPerTrigger": "1"}),
    "minRowsPerTrigger": ({}, {"maxRowsPerTrigger": "9", "minRowsPerTrigger": "1"}),
    "maxTriggerDelay": (
        {"minRowsPerTrigger": "1"},
        {"minRowsPerTrigger": "1", "maxTriggerDelay": "1 second"},
    ),
    "latencyTarget": ({}, {"latencyTarget": "1 second"}),
    "splits": ({}, {"splits": "3"}),
    "parallelism": ({}, {"parallelism": "3"}),
    "failOnDataLoss": ({}, {"failOnDataLoss": "false"}),
    "consumerId": ({"consumerId": "x"}, {"consumerId": "y"}),
    "consumerTtl": ({"consumerId": "x"}, {"consumerId": "x", "consumerTtl": "1 hour"}),
    "tableTimeout": ({}, {"tableTimeout": "1 second"}),
    "raw": ({}, {"raw": "true"}),
    "inputs": ({}, {"inputs": "a", "input.b.path": ""}),
    "input.<name>.<option>": ({}, {"input.b.computeUpdates": "false"}),
    "input.<name>.priority": ({}, {"input.b.priority": "1000"}),
    "autoPriority": ({}, {"autoPriority": "true"}),
    "merge": ({}, {"merge": "roundrobin"}),
    "interleaveSeed": ({}, {"interleaveSeed": "5"}),
    "mergeSchema": ({}, {"mergeSchema": "true"}),
    "allowInputRemoval": ({}, {"allowInputRemoval": "true"}),
    "mergeColumns": ({}, {"mergeColumns": "_input"}),
    "discoveryInterval": ({}, {"discoveryInterval": "1 second"}),
    "discoveryRequests": ({}, {"discoveryRequests": "7"}),
    "offsetsPath": ({}, {"offsetsPath": "{0}/_offsets"}),
}
"""Named inputs over two tables; what they are told beside."""

ELSEWHERE = {
    "input.<name>.format": test_python_input.test_the_checkpoint_of_another_format_is_refused,
    "startingPosition": test_keeping.test_a_new_checkpoint_begins_where_the_table_is,
    "deferred": test_deferred.test_an_offset_that_was_begun_with_rows_is_gone_on_with,
    "onError": test_failing_rows.test_what_was_null_is_taken_back_by_a_query_that_stops_again,
}
"""Options that need more than two tables, by the test of two lives of it."""

OF_STREAMS = {**READ_OPTIONS, **INPUT_OPTIONS}
HERE = ("plan", "inputsPattern", "consistent")
"""Each has a test of its own below."""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with three tables of four epochs."""
    folder = tmp_path_factory.mktemp("tables") / "lake"
    for name in ("a", "b", "other"):
        for value in (1, 1, 2, 3):
            write(folder, {"id": [1, 2, 3], "v": [value, 1, value]}, name)
    return folder


@pytest.fixture
def base(lake: Path, tmp_path: Path) -> dict[str, str]:
    """Return the options of a query over two tables; the folder has a third one."""
    shutil.copytree(lake, tmp_path, dirs_exist_ok=True)
    own = {f"input.{name}.path": f"{tmp_path}/{name}" for name in "ab"}
    return {"inputs": "a,b", "startingVersion": "earliest", "maxRowsPerTrigger": "1", **FEED, **own}


def lives_of(folder: Path, base: InputRows, name: str) -> list[dict[str, str]]:
    """Return all options of the two lives, without those that are taken back."""
    lives = [{**base, **{n: t.format(folder) for n, t in more.items()}} for more in OF_READS[name]]
    return [{option: text for option, text in life.items() if text} for life in lives]


def lived(folder: Path, before: InputRows, then: InputRows) -> list[list[dict[str, Any]]]:
    """Return the rows of two lives."""
    query = Query()
    return [query.run(before, batches_max=3), query.run(then, batches_max=99)]


def alike(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


def cases(change: Change) -> list[str]:
    return [name for name in OF_READS if OF_STREAMS[name].life.change is change]


def test_each_option_of_a_stream_is_tried() -> None:
    known = {name for name, option in OF_STREAMS.items() if option.life.change is not Change.BATCH}
    assert known - {*OF_READS, *ELSEWHERE, *HERE} == set()


def test_another_view_is_refused_and_the_same_one_goes_on(tmp_path: Path) -> None:
    """However the plan is written: its fingerprint stands in the checkpoint."""
    assert READ_OPTIONS["plan"].life.change is Change.REFUSED
    write(tmp_path, {"id": [1, 2], "v": [1, 2]}, "a")
    path, query = str(tmp_path / "a"), Query()
    node = Plan.of_table(path).filter("v > 1")
    assert [row["id"] for row in query.run({"plan": node.to_json()})] == [2]
    for other in (Plan.of_table(path).filter("v > 2"), Plan.of_table(path)):
        with pytest.raises(UpsertFlowError, match="the checkpoint is of another plan"):
            query.run({"plan": other.to_json()})
    write(tmp_path, {"id": [9], "v": [9]}, "a")
    turned = json.dumps(json.loads(node.to_json()), indent=2, sort_keys=True)
    assert [row["id"] for row in query.run({"plan": turned})] == [9]


def test_a_pattern_that_finds_a_table_no_more_is_refused_and_a_wider_one_finds_more(
    tmp_path: Path,
) -> None:
    assert INPUT_OPTIONS["inputsPattern"].life.change is Change.REFUSED
    for name in ("a", "ab", "b"):
        write(tmp_path / "lake", {"id": [1], "v": [1]}, name)
    query, given = Query(), {"path": str(tmp_path / "lake")}
    assert len(query.run({**given, "inputsPattern": "a*"})) == 2
    with pytest.raises(UpsertFlowError, match="checkpoint"):
        query.run({**given, "inputsPattern": "ab"})
    assert len(query.run({**given, "inputsPattern": "*"})) == 1


def test_whole_batches_are_read_from_the_next_batch_on(tmp_path: Path) -> None:
    assert INPUT_OPTIONS["consistent"].life.change is Change.NEXT
    root, rng = open_store(str(tmp_path / "lake"), {}), random.Random(3)
    options = routed.routed_options(path=f"{tmp_path}/lake/{{topic}}")

    def fill(number: int) -> None:
        routed.write(root, options, [routed.rows_of(rng, ("last",))], routed.transaction(number))

    fill(0)
    given = {"path": str(tmp_path / "lake"), "inputsPattern": "*", **FEED}
    lives = {life: Query() for life in (("false", "true"), ("true", "false"), ("false", "false"))}
    rows = {life: query.run({**given, "consistent": life[0]}) for life, query in lives.items()}
    fill(1)
    whole = [
        alike(rows[life] + query.run({**given, "consistent": life[1]}))
        for life, query in lives.items()
    ]
    assert whole[0] == whole[1] == whole[2]
    assert len(whole[0]) > len(rows["false", "true"]) > 0


@pytest.mark.parametrize("name", [*cases(Change.FREE), *cases(Change.BEGINNING)])
@pytest.mark.sweep(5)
def test_what_is_free_changes_no_row(tmp_path: Path, base: dict[str, str], name: str) -> None:
    before, then = lives_of(tmp_path, base, name)
    first, second = lived(tmp_path, before, then)
    assert alike([*first, *second]) == alike(Query().run(before, batches_max=99))


@pytest.mark.parametrize("name", cases(Change.REFUSED))
def test_what_is_refused_says_what_to_do(tmp_path: Path, base: dict[str, str], name: str) -> None:
    before, then = lives_of(tmp_path, base, name)
    with pytest.raises(UpsertFlowError, match="checkpoint"):
        lived(tmp_path, before, then)


@pytest.mark.parametrize("name", cases(Change.NEXT))
@pytest.mark.sweep(2)
def test_what_takes_effect_later_leaves_no_epoch_out_and_none_twice(
    tmp_path: Path, base: dict[str, str], name: str
) -> None:
    before, then = lives_of(tmp_path, base, name)
    first, second = lived(tmp_path, before, then)
    assert first
    left = alike(Query().run(then, batches_max=99))
    # The rows of the second life are those that the new options make of the rest.
    for row in alike(second):
        left.remove(row)
    if len(first) == len(Query().run(then, batches_max=3)):
        assert len(left) == len(first)


@pytest.mark.parametrize(
    "name", [name for name in OF_READS if name in READ_OPTIONS and READ_OPTIONS[name].life.exact]
)
def test_an_exact_order_refuses_what_decides_its_rows(
    tmp_path: Path, base: dict[str, str], name: str
) -> None:
    before, then = lives_of(tmp_path, {**base, "merge": "roundrobin"}, name)
    with pytest.raises(UpsertFlowError, match=r"was .* when the rows of this exact order"):
        lived(tmp_path, before, then)


@pytest.mark.parametrize(
    "name", [name for name in cases(Change.FREE) if name not in ("autoPriority", "failOnDataLoss")]
)
@pytest.mark.sweep(2)
def test_what_is_free_changes_no_row_of_an_exact_order(
    tmp_path: Path, base: dict[str, str], name: str
) -> None:
    before, then = lives_of(tmp_path, {**base, "interleaveSeed": "9"}, name)
    try:
        whole = Query().run(before, batches_max=99)
        first, second = lived(tmp_path, before, then)
    except UpsertFlowError as error:
        if "has no meaning in an exact order" not in error.message:
            raise
    else:
        assert [*first, *second] == whole


SUMS = {"mergeEngine": "aggregation", "aggregate.n": "sum"}
PARTIAL = {"mergeEngine": "partial-update", "sequenceBy": "n"}
INLINE = {"onError": "inline"}

OF_WRITES: dict[str, Changed] = {
    "keys": ({}, {"keys": "v"}),
    "hashPrefix": ({"keys": "id,v"}, {"keys": "id,v", "hashPrefix": "1"}),
    "sequenceBy": ({"sequenceBy": "n"}, {"sequenceBy": "v"}),
    "sequenceBy.<column>": ({**PARTIAL, "sequenceBy.v": "n"}, {**PARTIAL, "sequenceBy.v": "id"}),
    "sequenceScope": ({"sequenceBy": "n"}, {"sequenceBy": "n", "sequenceScope": "epoch"}),
    "operation": ({}, {"operation": "delete"}),
    "onError": (INLINE, {"onError": "quarantine"}),
    "onUnknown": ({"onUnknown": "null"}, {"onUnknown": "quarantine"}),
    "errorColumn": ({**INLINE, "errorColumn": "e"}, {**INLINE, "errorColumn": "f"}),
    "mergeEngine": ({}, {"mergeEngine": "first-row"}),
    "aggregate.<column>": (SUMS, {**SUMS, "aggregate.n": "max"}),
    "ties": ({"sequenceBy": "n"}, {"sequenceBy": "n", "ties": "first"}),
    "nullsAsDeletes": ({}, {"nullsAsDeletes": "true"}),
    "ignoreNullUpdates": ({}, {"ignoreNullUpdates": "true"}),
    "ignoreNullUpdatesColumnList": ({}, {"ignoreNullUpdatesColumnList": "n"}),
    "ignoreNullUpdatesExceptColumnList": ({}, {"ignoreNullUpdatesExceptColumnList": "n"}),
    "columnsToUpdate": ({}, {"columnsToUpdate": "to"}),
    "applyAsDeletes": ({}, {"applyAsDeletes": "gone"}),
    "columnList": ({}, {"columnList": "id,n"}),
    "exceptColumnList": ({}, {"exceptColumnList": "v"}),
    "mergeSchema": ({}, {"mergeSchema": "true"}),
    "allowNonEmptyPath": ({}, {"allowNonEmptyPath": "true"}),
    "tombstoneRetention": ({}, {"tombstoneRetention": "1 epoch"}),
    "maxBacklogEpochs": ({}, {"maxBacklogEpochs": "9"}),
    "maxBacklogBytes": ({}, {"maxBacklogBytes": "999999"}),
    "onFull": ({}, {"onFull": "reject"}),
    "onFullTimeout": ({}, {"onFullTimeout": "1 second"}),
    "backpressure": ({}, {"backpressure": "true"}),
    "disableBackpressure": ({}, {"disableBackpressure": "true"}),
    "indexBy": ({}, {"indexBy": "n"}),
    "publish": ({}, {"publish": "delta"}),
    "publishPath": ({}, {"publishPath": "/tmp/{table}"}),
    "publishInterval": ({}, {"publishInterval": "1 minute"}),
    "publishChangeFeed": ({}, {"publishChangeFeed": "true"}),
    "publishRetention": ({}, {"publishRetention": "2 days"}),
    "publishGuard": ({}, {"publishGuard": "false"}),
    "rowTtl": ({}, {"rowTtl": "none"}),
    "rowTtlBy": ({}, {"rowTtlBy": "n"}),
    "priority": ({}, {"priority": "7"}),
    "binlogNames": ({}, {"binlogNames": "mysql-bin,binlog"}),
    "lateRows": ({}, {"lateRows": "apply"}),
    "allowUnordered": ({}, {"allowUnordered": "true"}),
}
"""Batches of plain rows into one table; other options of writes say how bytes are read."""

OF_QUERIES = {
    "path": test_first_write.test_a_query_that_began_elsewhere_does_not_make_a_table,
    "allowMissingBatches": test_first_write.test_a_query_goes_on_where_that_is_allowed,
    "checkpointLocation": test_first_write.test_a_query_goes_on_with_its_next_batch,
    "deferred": test_deferred.test_an_offset_that_was_begun_with_rows_is_gone_on_with,
}
"""Of the query that writes, by the test of two lives of it."""


def test_each_option_of_a_write_is_tried() -> None:
    known = {n for n, option in WRITE_OPTIONS.items() if option.life.change is not Change.BATCH}
    assert known == {*OF_WRITES, *OF_PAYLOADS, *OF_QUERIES}


def batch(number: int) -> dict[str, list[Any]]:
    return {"id": [1, number], "n": [number, number], "v": [7, 8]}


def rows_in(folder: Path) -> list[dict[str, Any]]:
    table = Table.open(str(folder / "table"))
    return sorted((row for each in table.scan() for row in each.to_pylist()), key=repr)


@pytest.mark.parametrize("name", OF_WRITES)
@pytest.mark.sweep(8)
def test_options_of_writes_keep_to_what_they_say(tmp_path: Path, name: str) -> None:
    life = WRITE_OPTIONS[name].life
    before, then = OF_WRITES[name]
    columns: dict[str, dict[str, list[Any]]] = {
        "applyAsDeletes": {"gone": [False] * 2},
        "columnsToUpdate": {"to": [["n", "v"]] * 2},
    }
    more = columns.get(name, {})
    write(tmp_path, batch(2), **before)
    if life.change is Change.REFUSED:
        with pytest.raises(UpsertFlowError):
            write(tmp_path, batch(3), **then)
        write(tmp_path, batch(3), **before)
        return
    assert write(tmp_path, {**batch(3), **more}, **then) is not None
    # Left out, it takes nothing away.
    assert write(tmp_path, batch(4), **before) is not None
    if life.change is Change.FREE:
        found = rows_in(tmp_path)
        shutil.rmtree(tmp_path / "table")
        for number in (2, 3, 4):
            write(tmp_path, batch(number), **before)
        assert found == rows_in(tmp_path)


def test_errors_are_kept_from_the_first_write_that_says_so(tmp_path: Path) -> None:
    for policy in (ErrorPolicy.FAIL, ErrorPolicy.QUARANTINE):
        write(tmp_path, batch(2), onError=policy.value)
        assert Table.open(str(tmp_path / "table")).schema.on_error is policy


@pytest.mark.parametrize("name", ["tombstoneRetention", "maxBacklogEpochs", "onFull", "priority"])
def test_a_property_that_is_left_out_stays(tmp_path: Path, name: str) -> None:
    _, then = OF_WRITES[name]
    write(tmp_path, batch(2), **then)
    known = Table.open(str(tmp_path / "table")).log.head().properties
    write(tmp_path, batch(3))
    assert Table.open(str(tmp_path / "table")).log.head().properties == known
    assert then[name] in known.values()


def test_another_template_is_refused() -> None:
    assert ROUTED_OPTIONS["path"].life.change is Change.REFUSED
    _, (first, second) = refusals({}, {"path": "/lake/x-{topic}"})
    assert first is None
    assert "topic" in str(second)


def refusals(*given: Mapping[str, str]) -> tuple[MemoryStore, list[str | None]]:
    """Write a batch in each life, of one more table in the last; return why each was refused."""
    root = MemoryStore()
    why: list[str | None] = []
    for number, more in enumerate(given):
        topics, rng = ("last", "sum", "part")[: number + 2], random.Random(number)
        rows = routed.rows_of(rng, topics) + [routed.row(rng, topic) for topic in topics]
        try:
            routed.write(root, routed.routed_options(**more), [rows], routed.transaction(number))
            why.append(None)
        except UpsertFlowError as error:
            why.append(error.message)
    return root, why


OF_ROUTED: dict[str, tuple[Mapping[str, str], str | None]] = {
    "createTables": ({"createTables": "false"}, "none may be made"),
    "tablesMax": ({"tablesMax": "2"}, "no more than 2 may be"),
    "takeOver": ({"takeOver": "true"}, None),
    "groupRetention": ({"groupRetention": "1 day"}, None),
    "onTableError": ({"onTableError": "park", "table.part.keys": "nothing"}, None),
    "table.<pattern>.<option>": ({"table.part.keys": "nothing"}, "nothing"),
}
"""What the next life is told, and why its batch is refused, if it is."""


def test_each_option_of_a_routed_write_is_tried() -> None:
    elsewhere = test_routed_write.test_tables_side_by_side_are_as_one_after_the_other
    assert ROUTED_OPTIONS["commitThreads"].life.change is Change.FREE, elsewhere
    assert ROUTED_OPTIONS.keys() - {*OF_ROUTED, "path", "commitThreads"} == set()


@pytest.mark.parametrize("name", OF_ROUTED)
def test_options_of_routed_writes_take_effect_with_the_next_batch(name: str) -> None:
    assert ROUTED_OPTIONS[name].life.change is Change.NEXT
    more, refused = OF_ROUTED[name]
    root, (first, second) = refusals({}, more)
    assert first is None
    assert (second is None) == (refused is None)
    assert refused is None or refused in str(second)
    is_made = table_below(root, "part").log.try_head() is not None
    assert is_made == (refused is None and name != "onTableError")
