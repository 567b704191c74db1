"""The cases of groups: what they contribute, and what a kept table shows, commit by commit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.model.kept import FROM, PART, TO, value_column
from spark_upsert.views.groups.contributions import contributions
from spark_upsert.views.groups.grouping import Aggregate, Grouping, Kind
from spark_upsert.views.pairs import Pairs
from tests.support.grouped import kept_in_memory, pairs_of, position
from tests.support.view_cases import TABLES, Case, Changed, Contribution, Epoch, Row, between, same

Tables = dict[str, dict[Row, Row]]


def joined_left(tables: Tables) -> dict[Any, Row]:
    customers = {key[0]: row for key, row in tables["C"].items()}
    return {key: (*row, customers.get(row[1], (0, None))[1]) for key, row in tables["O"].items()}


BASES: Mapping[str, tuple[pa.Schema, Callable[[Tables], dict[Any, Row]]]] = {
    "O": (TABLES["O"].columns, lambda tables: tables["O"]),
    "F": (TABLES["F"].columns, lambda tables: tables["F"]),
    'O.project("c")': (
        pa.schema({"c": pa.int64()}),
        lambda tables: {key: row[1:2] for key, row in tables["O"].items()},
    ),
    'O.join(C,"c=id","left")': (
        TABLES["O"].columns.append(pa.field("n", pa.string())),
        joined_left,
    ),
}
"""The bases of the cases with groups: their columns, and their rows by key."""


def grouping_of(plan: str) -> tuple[str, Grouping]:
    base, words = re.fullmatch(r"(.+)\.group\((.+)\)", plan).groups()  # type: ignore[union-attr]
    key, *wanted = re.findall(r'"([^"]+)"', words)
    aggregates = tuple(aggregate_of(index, text) for index, text in enumerate(wanted))
    return base, Grouping(BASES[base][0], (key,), aggregates)


def aggregate_of(index: int, text: str) -> Aggregate:
    kind, *rest = text.split()
    name = f"a{index}"
    if kind == "n":
        return Aggregate(name=name, kind=Kind.COUNT)
    if kind == "fsum":
        return Aggregate(name=name, kind=Kind.SUM, column=rest[0], scale=int(rest[1]))
    return Aggregate(name=name, kind=Kind(kind), column=rest[0])


def applied(tables: Tables, epoch: Epoch) -> None:
    width = len(TABLES[epoch.table].key)
    content = {} if epoch.overwrite else dict(tables[epoch.table])
    content |= {row[:width]: row for row in epoch.puts}
    tables[epoch.table] = {key: row for key, row in content.items() if key not in epoch.deletes}


def steps(case: Case) -> list[list[Pairs]]:
    """Return the pairs of the base for each epoch of each micro-batch."""
    base, grouping = grouping_of(case.plan)
    tables: Tables = {name: {} for name in TABLES}
    batches = []
    for epochs in case.batches:
        found = []
        for epoch in epochs:
            before = BASES[base][1](tables)
            applied(tables, epoch)
            found.append(pairs_of(before, BASES[base][1](tables), grouping.rows))
        batches.append(found)
    return batches


@pytest.mark.parametrize("case", between(29, 41), ids=lambda case: case.id)
def test_a_case_of_groups(case: Case) -> None:
    _, grouping = grouping_of(case.plan)
    kept, at = kept_in_memory(grouping), -1
    for batch, given in zip(steps(case), case.given, strict=True):
        added = [contributions(grouping, pairs) for pairs in batch]
        if len(given) < len(batch):  # The table is kept per micro-batch.
            added = [pa.concat_batches(added)]
        assert len(added) == len(given)
        for entries, wanted in zip(added, given, strict=True):
            if case.mode == "raw":
                require_same(raw(grouping, entries), [told(each) for each in wanted])
            version = kept.table.log.head().version
            assert kept.take(entries, lower=position(at), upper=position(at + 1))
            at += 1
            if case.mode != "raw":
                [(_, pairs)] = kept.changes(version + 1, version + 2)
                require_same(changes(pairs), [told(each) for each in wanted])


def raw(grouping: Grouping, entries: pa.RecordBatch) -> list[Any]:
    """Return contributions as the cases write them, without sums that get nothing."""
    found = []
    for row in entries.to_pylist():
        part = row[PART]
        group = tuple(row[key] for key in grouping.keys)
        value = row[value_column(part)] if part else None
        rest = {n: v for n, v in row.items() if n in grouping.kept.engine.rules and v}
        found.append((group, part, value, tuple((n, int(v)) for n, v in rest.items())))
        assert row[FROM] is row[TO] is None
    return found


def told(each: object) -> Any:
    if isinstance(each, Changed):
        return each.old, each.new
    assert isinstance(each, Contribution)
    return each.group, each.part, each.value, each.sums


def changes(pairs: Pairs) -> list[tuple[Row | None, Row | None]]:
    sides = zip(pairs.old.to_pylist(), pairs.new.to_pylist(), strict=True)
    return [
        (tuple(old.values()) if has_old else None, tuple(new.values()) if has_new else None)
        for (old, new), has_old, has_new in zip(sides, pairs.has_old, pairs.has_new, strict=True)
    ]


def require_same(found: list[Any], wanted: list[Any]) -> None:
    assert len(found) == len(wanted), found
    assert all(any(same(one, other) for one in found) for other in wanted), found


def test_the_changes_of_a_group_are_those_of_the_case() -> None:
    """The comparison above tells rows that differ."""
    with pytest.raises(AssertionError):
        require_same([((1, 2), None)], [Changed(None, (1, 2))])
