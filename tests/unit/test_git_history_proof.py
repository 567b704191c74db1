"""The proof of the main job can fail: each check, for each kind of lie."""

from __future__ import annotations

import io
from dataclasses import replace

import pyarrow as pa
import pytest

from examples.git_history.history import CHANGES, TREE, Chapter
from examples.git_history.progress import Line, Pace, describe
from examples.git_history.proof import (
    Check,
    check_accounting,
    check_epochs,
    check_fold,
    check_rows,
)
from spark_upsert.table.log.manifest import Commit, Kind, Transaction
from spark_upsert.table.state.counters import Counters

Row = tuple[str, str, str, int | None]

A: Row = ("a", "01", "100644", 1)
B: Row = ("b", "02", "100755", 2)
M: Row = ("m", "03", "160000", None)


def tree(*rows: Row) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(TREE.names, row, strict=True)) for row in rows], schema=TREE
    )


class TestRows:
    def test_their_order_does_not_matter(self) -> None:
        check = check_rows("same", tree(A, B, M), tree(M, A, B))
        assert check == Check(claim="same", evidence="3 rows")
        assert check.is_true

    def test_other_columns_do_not_matter(self) -> None:
        found = tree(A).append_column("seq", pa.array([7]))
        assert check_rows("same", tree(A), found).is_true

    @pytest.mark.parametrize(
        ("found", "problem"),
        [
            pytest.param((A,), "2 missing", id="rows are missing"),
            pytest.param((A, B, M, ("x", "9", "1", 1)), "1 not expected", id="one too many"),
            pytest.param((A, B, M, M), "1 not expected", id="a row twice"),
            pytest.param((A, B, ("m", "03", "160000", 0)), "'160000', None)", id="0 is not null"),
            pytest.param((A, ("b", "02", "100644", 2), M), "100755", id="another mode"),
            pytest.param((), "3 missing", id="nothing"),
        ],
    )
    def test_any_difference_is_a_problem(self, found: tuple[Row, ...], problem: str) -> None:
        check = check_rows("same", tree(A, B, M), tree(*found))
        assert not check.is_true
        assert check.problem is not None
        assert problem in check.problem

    def test_a_problem_is_a_few_examples(self) -> None:
        many = tree(*((f"p{i}", "0", "1", i) for i in range(1000)))
        problem = check_rows("same", many, tree()).problem
        assert problem is not None
        assert len(problem) < 200


class TestFold:
    @pytest.mark.parametrize(
        ("diffs", "holds"), [((1, 1), True), ((1, 2), False), ((1, -1), False)]
    )
    def test_each_row_is_there_once(self, diffs: tuple[int, ...], holds: bool) -> None:
        folded = tree(A, B).append_column("diff", pa.array(diffs, pa.int64()))
        assert check_fold("sum", tree(A, B), folded).is_true is holds

    def test_it_is_the_snapshot(self) -> None:
        folded = tree(A).append_column("diff", pa.array([1], pa.int64()))
        assert not check_fold("sum", tree(A, B), folded).is_true


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
SECOND = epoch(3, 1, Counters(rows=1, updates=1))


class TestEpochs:
    def test_each_is_its_chapter(self) -> None:
        assert check_epochs(CHANGED, CHAPTERS, (FIRST, SECOND)).is_true

    @pytest.mark.parametrize(
        "epochs",
        [
            pytest.param((FIRST,), id="one is lost"),
            pytest.param((FIRST, SECOND, SECOND), id="one is there twice"),
            pytest.param((SECOND, FIRST), id="their order is another"),
            pytest.param((FIRST, epoch(3, 2, Counters(rows=1, updates=1))), id="another batch"),
            pytest.param((FIRST, replace(SECOND, transactions=())), id="by another writer"),
            pytest.param((FIRST, epoch(3, 1, Counters(rows=2, updates=1))), id="a row too many"),
            pytest.param((FIRST, epoch(3, 1, Counters(rows=1, stale=1))), id="a key is left out"),
        ],
    )
    def test_any_other_is_a_problem(self, epochs: tuple[Commit, ...]) -> None:
        assert not check_epochs(CHANGED, CHAPTERS, epochs).is_true


class TestAccounting:
    def test_the_books_balance(self) -> None:
        check = check_accounting((FIRST, SECOND), row_count=4, change_count=4, live_count=2)
        assert check.problem is None
        assert check.evidence == "4 rows = 2 inserts + 1 updates + 1 superseded"

    @pytest.mark.parametrize("name", ["row_count", "change_count", "live_count"])
    @pytest.mark.parametrize("error", [-1, 1])
    def test_a_row_more_or_less_is_a_problem(self, name: str, error: int) -> None:
        counts = {"row_count": 4, "change_count": 4, "live_count": 2}
        counts[name] += error
        assert not check_accounting((FIRST, SECOND), **counts).is_true

    def test_a_row_without_a_reason_is_a_problem(self) -> None:
        lost = epoch(3, 1, Counters(rows=2, updates=1))
        assert not check_accounting(
            (FIRST, lost), row_count=5, change_count=4, live_count=2
        ).is_true

    def test_a_stale_row_is_a_problem(self) -> None:
        stale = epoch(3, 1, Counters(rows=2, updates=1, stale=1))
        assert not check_accounting(
            (FIRST, stale), row_count=5, change_count=4, live_count=2
        ).is_true


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestProgress:
    def test_a_terminal_has_one_line(self) -> None:
        out = Terminal()
        line = Line(out)
        line.show("one")
        line.show("two")
        line.clear()
        assert "\n" not in out.getvalue()
        assert out.getvalue().endswith("two\r\x1b[K")

    def test_a_log_has_few_lines(self) -> None:
        out, seconds = io.StringIO(), iter(range(100))
        line = Line(out, clock=lambda: next(seconds))
        for number in range(60):
            line.show(str(number))
        line.clear()
        assert 2 <= len(out.getvalue().splitlines()) <= 5
        assert "\x1b" not in out.getvalue()

    def test_the_start_does_not_count_for_the_pace(self) -> None:
        pace = Pace(epochs=1, seconds=20.0)
        assert pace.left(1, 11, 25.0) is None
        assert pace.left(6, 11, 30.0) == 10.0

    def test_it_says_how_far_and_how_fast(self) -> None:
        assert describe("writing", 0, 10, 0, 1.0, None) == "writing  0/10 epochs  0 rows"
        assert describe("writing", 5, 10, 5_000, 2.0, 3.4) == (
            "writing  5/10 epochs  5,000 rows  2,500 rows/s  3 s left"
        )
