"""What must be true when the replay is done. Each check can fail, and says then what it saw.

Git is the judge of the rows, the history's own counts are the judge of the table's counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from examples.git_history.history import Chapter
from spark_upsert.table.log.manifest import Commit
from spark_upsert.table.state.reduce import EMPTY, Counters

_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One claim and how it stands."""

    claim: str
    evidence: str = ""
    problem: str | None = None
    """None if the claim is true."""

    @property
    def is_true(self) -> bool:
        """Whether the claim holds."""
        return self.problem is None


def check_rows(claim: str, expected: pa.Table, found: pa.Table) -> Check:
    """Check that two tables hold the same rows, in whatever order.

    Parameters
    ----------
    claim : str
    expected : pyarrow.Table
        One row per ``path``; its columns are those that are compared.
    found : pyarrow.Table
    """
    found = found.select(expected.column_names).cast(expected.schema)
    evidence = f"{expected.num_rows:,} rows"
    if expected.sort_by("path").equals(found.sort_by("path")):
        return Check(claim=claim, evidence=evidence)
    wanted, seen = _rows(expected), _rows(found)
    sides = [
        _examples("missing", wanted - seen),
        _examples("not expected", seen - wanted),
    ]
    return Check(claim=claim, evidence=evidence, problem="; ".join(filter(None, sides)))


def check_fold(claim: str, snapshot: pa.Table, folded: pa.Table) -> Check:
    """Check that a folded changelog is the snapshot, and each of its rows is there once."""
    once = pa.array([1] * snapshot.num_rows, pa.int64())
    return check_rows(claim, snapshot.append_column("diff", once), folded)


def check_epochs(changes: pa.Table, chapters: Sequence[Chapter], epochs: Sequence[Commit]) -> Check:
    """Check that epoch after epoch is chapter after chapter: none lost, none twice, none mixed.

    Parameters
    ----------
    changes : pyarrow.Table
        What was replayed.
    chapters : sequence of Chapter
    epochs : sequence of Commit
        The table's own record, oldest first.
    """
    claim = "each epoch is its commits"
    evidence = f"{len(epochs):,} epochs"
    if len(epochs) != len(chapters):
        return Check(
            claim=claim, problem=f"{len(epochs)} epochs, but {len(chapters)} were replayed"
        )
    for number, (chapter, epoch) in enumerate(zip(chapters, epochs, strict=True)):
        paths = changes["path"].slice(chapter.row_lower, chapter.row_count)
        expected = ([number], chapter.row_count, pc.count_distinct(paths).as_py())
        counters = Counters.from_json(epoch.counters)
        batches = [each.number for each in epoch.transactions]
        found = (batches, counters.rows, counters.eligible)
        if found != expected:
            return Check(
                claim=claim,
                problem=f"version {epoch.version} has (batch, rows, keys) {found}, not {expected}",
            )
    return Check(claim=claim, evidence=evidence)


def check_accounting(
    epochs: Sequence[Commit], *, row_count: int, change_count: int, live_count: int
) -> Check:
    """Check that every row that went in is counted once, and every row that came out.

    Parameters
    ----------
    epochs : sequence of Commit
    row_count : int
        Rows that were replayed.
    change_count : int
        Rows of the changelog.
    live_count : int
        Rows of the last snapshot.
    """
    total = sum((Counters.from_json(epoch.counters) for epoch in epochs), EMPTY)
    parts = {name: n for name, n in total.to_json().items() if name != "rows" and n}
    evidence = f"{total.rows:,} rows = " + " + ".join(f"{n:,} {name}" for name, n in parts.items())
    wrong = [
        f"{what}: counted {counted:,}, found {found:,}"
        for what, counted, found in (
            ("rows in", total.rows, row_count),
            ("rows accounted for", sum(parts.values()), total.rows),
            ("rows of the changelog", total.output_count, change_count),
            ("rows of the table", total.live_delta, live_count),
            ("late, equal or refused rows", total.stale + total.duplicates + total.rejected, 0),
        )
        if counted != found
    ]
    return Check(
        claim="every row is accounted for",
        evidence=evidence,
        problem="; ".join(wrong) or None,
    )


def _rows(table: pa.Table) -> Counter[tuple[object, ...]]:
    """Count equal rows; Python objects, so only for a table that failed."""
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _examples(what: str, rows: Counter[tuple[object, ...]]) -> str:
    if not rows:
        return ""
    some = ", ".join(str(row) for row in sorted(rows, key=str)[:_SHOWN])
    return f"{rows.total():,} {what}, such as {some}"
