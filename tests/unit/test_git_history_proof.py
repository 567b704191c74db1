"""The proof of the main job can fail: each check, for each kind of lie."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from examples.git_history.history import CHANGES, TREE, Chapter
from examples.git_history.proof import check_accounting, check_epochs, check_fold, check_rows
from spark_upsert.table.log.manifest import Commit, Kind, Transaction
from spark_upsert.table.state.reduce import Counters

Row = tuple[str, str, str, int | None]

A: Row = ("a", "01", "100644", 1)
B: Row = ("b", "02", "100755", 2)
M: Row = ("m", "03", "160000", None)


def tree(*rows: Row) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(TREE.names, row, strict=True)) for row in rows], schema=TREE
    )


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        pytest.param((M, A, B), None, id="another order"),
        pytest.param((A,), "2 missing", id="rows are missing"),
        pytest.param((A, B, M, ("x", "9", "1", 1)), "1 not expected", id="one too many"),
        pytest.param((A, B, M, M), "1 not expected", id="a row twice"),
        pytest.param((A, B, ("m", "03", "160000", 0)), "'160000', None)", id="0 is not null"),
        pytest.param((A, ("b", "02", "100644", 2), M), "100755", id="another mode"),
        pytest.param((), "3 missing", id="nothing"),
    ],
)
def test_any_difference_of_rows_is_a_problem(rows: tuple[Row, ...], problem: str | None) -> None:
    more = tree(*rows).append_column("seq", pa.array([7] * len(rows)))
    check = check_rows("same", tree(A, B, M), more)
    assert check.is_true is (problem is None)
    assert (problem or "") in (check.problem or "")


def test_a_problem_is_a_few_examples() -> None:
    many = tree(*((f"p{i}", "0", "1", i) for i in range(1000)))
    assert len(check_rows("same", many, tree()).problem or "") in range(1, 200)


@pytest.mark.parametrize(
    ("rows", "diffs", "holds"),
    [
        ((A, B), (1, 1), True),
        ((A, B), (1, 2), False),
        ((A, B), (1, -1), False),
        ((A,), (1,), False),
    ],
)
def test_a_fold_is_the_snapshot_with_each_row_once(
    rows: tuple[Row, ...], diffs: tuple[int, ...], holds: bool
) -> None:
    folded = tree(*rows).append_column("diff", pa.array(diffs, pa.int64()))
    assert check_fold("sum", tree(A, B), folded).is_true is holds


# Two chapters: (a, b, a) and (b).
CHANGED = pa.Table.from_pylist(
    [
        {"path": path, "blob": "0", "mode": "1", "bytes": 1, "seq": seq, "deleted": False}
        for path, seq in (("a", 1), ("b", 1), ("a", 2), ("b", 3))
    ],
    schema=CHANGES,
)
CHAPTERS = (
    Chapter(commit_lower=0, commit_upper=2, row_lower=0, row_upper=3),
    Chapter(commit_lower=2, commit_upper=3, row_lower=3, row_upper=4),
)


def epoch(version: int, batch: int, counters: Counters) -> Commit:
    return Commit(
        version=version,
        kind=Kind.APPEND,
        timestamp_ms=0,
        token="",
        transactions=(Transaction(writer="query", number=batch),),
        counters=counters.to_json(),
    )


FIRST = epoch(1, 0, Counters(rows=3, inserts=2, superseded=1))
UPDATED = Counters(rows=1, updates=1)
MORE = Counters(rows=2, updates=1)
SECOND = epoch(3, 1, UPDATED)


@pytest.mark.parametrize(
    ("epochs", "holds"),
    [
        pytest.param((FIRST, SECOND), True, id="each is its chapter"),
        pytest.param((FIRST,), False, id="one is lost"),
        pytest.param((FIRST, SECOND, SECOND), False, id="one is there twice"),
        pytest.param((SECOND, FIRST), False, id="their order is another"),
        pytest.param((FIRST, epoch(3, 2, UPDATED)), False, id="another batch"),
        pytest.param((FIRST, replace(SECOND, transactions=())), False, id="by another writer"),
        pytest.param((FIRST, epoch(3, 1, MORE)), False, id="a row too many"),
        pytest.param((FIRST, epoch(3, 1, Counters(rows=1, stale=1))), False, id="a key left out"),
    ],
)
def test_epochs_are_the_chapters(epochs: tuple[Commit, ...], holds: bool) -> None:
    assert check_epochs(CHANGED, CHAPTERS, epochs).is_true is holds


COUNTS = {"row_count": 4, "change_count": 4, "live_count": 2}


def test_the_books_balance() -> None:
    check = check_accounting((FIRST, SECOND), **COUNTS)
    assert check.problem is None
    assert check.evidence == "4 rows = 2 inserts + 1 updates + 1 superseded"


STALE = Counters(rows=2, updates=1, stale=1)


@pytest.mark.parametrize(
    ("second", "error"),
    [
        *((SECOND, {name: count + by}) for name, count in COUNTS.items() for by in (-1, 1)),
        pytest.param(epoch(3, 1, MORE), {"row_count": 5}, id="a row without a reason"),
        pytest.param(epoch(3, 1, STALE), {"row_count": 5}, id="a stale row"),
    ],
)
def test_books_that_do_not_balance_are_a_problem(second: Commit, error: dict[str, int]) -> None:
    assert not check_accounting((FIRST, second), **{**COUNTS, **error}).is_true
