"""What holds of appends that share a version.

Plain functions, as those of `test_promises`, and for the same reason.
"""

from __future__ import annotations

import pyarrow as pa

from spark_upsert.core.schema import Scope, TableSchema, Ties
from spark_upsert.errors import DataError
from spark_upsert.table.log.manifest import Commit, Transaction
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.table import Table
from spark_upsert.table.write.form import envelope_of_rows
from spark_upsert.table.write.group_commit import Append, AppendResult, append_together, sealed
from spark_upsert.table.write.stage import Stash
from tests.support.groups import check_round
from tests.support.seeds import seeds
from tests.support.stores import MemoryStore
from tests.support.tables import make_table, rows_at, schema_of


def append(
    table: Table, rows: dict[int, int], *, seq: int = 0, transaction: Transaction | None = None
) -> Append:
    head = table.log.head()
    columns = {"k": list(rows), "v": list(rows.values())}
    if head.schema.order:
        columns["seq"] = [seq] * len(rows)
    batch = pa.RecordBatch.from_pydict(columns)
    with Stash(head.schema) as stash:
        stash.add(envelope_of_rows(head.schema, batch.schema, deletes=None).commands(batch))
        call = sealed(head.schema, stash, transaction, LateRows.FAIL)
    assert call is not None
    return call


def round_of(table: Table, *calls: Append) -> list[AppendResult]:
    return append_together(table.log, table.at(), calls, table.commit, admission=table.admission(0))


def by(writer: str, number: int = 0) -> Transaction:
    return Transaction(writer=writer, number=number)


def new_table(scope: Scope, ties: Ties | None = None) -> Table:
    schema = schema_of(scope)
    return make_table(
        MemoryStore(),
        TableSchema.of(
            schema.columns, keys=["k"], order=schema.order, scope=scope, ties=ties, hash_seed=7
        ),
    )


def test_p1_an_append_that_shared_a_version_is_there_once_however_often_it_comes() -> None:
    table = new_table(Scope.ARRIVAL)
    calls = [append(table, {key: key}, transaction=by(f"w{key}")) for key in range(3)]
    assert all(isinstance(each, Commit) for each in round_of(table, *calls[:2]))
    # One of a later round was in the table before, the others were not.
    done, again, other = round_of(table, calls[1], calls[2], append(table, {7: 7}))
    assert done is None
    assert isinstance(again, Commit)
    assert isinstance(other, Commit)
    assert [round_of(table, call) for call in calls] == [[None]] * 3
    assert rows_at(table) == {0: 0, 1: 1, 2: 2, 7: 7}
    assert sum(commit.counters.get("rows", 0) for commit in table.log.commits(1, 3)) == 4


@seeds(3)
def test_p4_appends_that_share_a_version_are_as_one_after_the_other(seed: int) -> None:
    for number in range(10 * seed, 10 * seed + 10):
        check_round(number)


def test_p5_an_append_that_is_refused_is_told_and_its_company_is_not() -> None:
    table = new_table(Scope.TABLE, Ties.FAIL)
    table.upsert(pa.table({"k": [1], "v": [1], "seq": [5]}))
    good, bad, last = round_of(
        table,
        append(table, {2: 2}, seq=5),
        append(table, {1: 9, 3: 3}, seq=5),
        append(table, {4: 4}, seq=5),
    )
    assert isinstance(bad, DataError)
    assert isinstance(good, Commit)
    assert isinstance(last, Commit)
    assert rows_at(table) == {1: 1, 2: 2, 4: 4}


def test_p5_a_storage_error_is_told_to_each() -> None:
    table = new_table(Scope.ARRIVAL)
    calls = [append(table, {key: key}) for key in range(3)]

    def fail(epoch: object, *, admission: object) -> Commit | None:
        raise OSError("no answer")

    told = append_together(table.log, table.at(), calls, fail, admission=table.admission(0))
    assert [type(each) for each in told] == [OSError] * 3
    assert rows_at(table) == {}
