"""Contributions are exact: what any history of rows adds up to is what its last rows make.

Few groups and few values, so that they collide; floats that cancel badly, NaN, infinities and zeros
of either sign; decimals near 38 digits. The model looks at all rows at once.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_upsert.errors import CorruptionError, DataError, PlanError
from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.views.group_rows import compute_results
from spark_upsert.views.grouping import Grouping, contributions, fold_entries
from tests.support.grouped import Row, expected, pairs_of, shown

ROWS = pa.schema(
    {
        "g": pa.float64(),
        "h": pa.string(),
        "small": pa.int32(),
        "long": pa.int64(),
        "money": pa.decimal128(38, 2),
        "real": pa.float64(),
    }
)

NINES = Decimal("9" * 36 + ".99")

FLOATS = st.sampled_from([0.0, -0.0, 1e16, 0.1, -1e16, 2.5, math.nan, math.inf, -math.inf])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "g": st.sampled_from([0.0, -0.0, math.nan, 1.0]),
    "h": st.sampled_from(["a", ""]),
    "small": st.sampled_from([-(2**31), 2**31 - 1, 0, 3]),
    "long": st.sampled_from([-(2**61), 2**61, 0, 1]),
    "money": st.sampled_from([Decimal("9" * 32 + ".99"), Decimal("-0.01"), Decimal("7.00"), NINES]),
    "real": FLOATS,
}
CONTENTS = st.dictionaries(
    st.integers(0, 4), st.tuples(*(st.none() | values for values in VALUES.values())), max_size=4
)


def wanted(*columns: str) -> tuple[Aggregate, ...]:
    found = [Aggregate(name="rows", kind=AggregateKind.COUNT)]
    for column in columns:
        for kind in AggregateKind:
            scale = (
                1 if column == "real" and kind in (AggregateKind.SUM, AggregateKind.AVG) else None
            )
            name = f"{kind.value}_{column}"
            found.append(Aggregate(name=name, kind=kind, column=column, scale=scale))
    return tuple(found)


GROUPINGS = {
    "by two columns": Grouping(ROWS, ("g", "h"), wanted("small", "real")),
    "by one column, values of which are wanted": Grouping(ROWS, ("h",), wanted("long", "money")),
    "of all rows": Grouping(ROWS, (), wanted("real", "long")),
    "with nothing but a count": Grouping(ROWS, ("g",), wanted()),
}


FEW = settings(max_examples=max(1, settings().max_examples // 3))


@pytest.mark.parametrize("name", GROUPINGS)
@FEW
@given(history=st.lists(CONTENTS, min_size=1, max_size=4), data=st.data())
def test_steps_add_up_to_the_groups_of_the_last_rows(
    name: str, history: list[dict[int, Row]], data: st.DataObject
) -> None:
    grouping = GROUPINGS[name]
    before: dict[int, Row] = {}
    steps = []
    for after in history:
        steps.append(contributions(grouping, pairs_of(before, after, ROWS)))
        before = after
    # In any order, cut in any place: some are added up before the others come.
    steps = data.draw(st.permutations(steps))
    cut = data.draw(st.integers(0, len(steps)))
    parts = [
        fold_entries(grouping, pa.concat_batches(part))
        for part in (steps[:cut], steps[cut:])
        if part
    ]
    entries = fold_entries(grouping, pa.concat_batches(parts))
    found = shown(grouping, compute_results(grouping, entries, url="memory"))
    assert found == expected(grouping, history[-1].values())
    assert bool(entries.num_rows) == bool(history[-1])


@FEW
@given(before=CONTENTS, after=CONTENTS)
def test_a_step_contributes_nothing_but_what_it_changes(
    before: dict[int, Row], after: dict[int, Row]
) -> None:
    grouping = GROUPINGS["by two columns"]
    there = contributions(grouping, pairs_of(before, after, ROWS))
    back = contributions(grouping, pairs_of(after, before, ROWS))
    assert there.num_rows == back.num_rows
    assert fold_entries(grouping, pa.concat_batches([there, back])).num_rows == 0
    assert contributions(grouping, pairs_of(before, before, ROWS)).num_rows == 0


def made_of(column: str, values: list[Any]) -> pa.RecordBatch:
    grouping = Grouping(ROWS, (), (Aggregate(name="s", kind=AggregateKind.SUM, column=column),))
    rows = {i: tuple(v if n == column else None for n in ROWS.names) for i, v in enumerate(values)}
    return compute_results(
        grouping, contributions(grouping, pairs_of({}, rows, ROWS)), url="memory"
    )


def test_an_average_that_does_not_fit_is_null() -> None:
    mean = Aggregate(name="m", kind=AggregateKind.AVG, column="money")
    grouping = Grouping(ROWS, (), (mean,))
    row = tuple(NINES if name == "money" else None for name in ROWS.names)
    steps = contributions(grouping, pairs_of({}, {0: row}, ROWS))
    assert compute_results(grouping, steps, url="memory").to_pylist() == [{"m": None}]


def test_a_sum_that_does_not_fit_is_null_and_never_wraps() -> None:
    assert made_of("long", [2**63 - 1, 1]).to_pylist() == [{"s": None}]


def test_a_sum_beyond_38_digits_is_null_until_it_fits_again() -> None:
    assert made_of("money", [NINES, Decimal("0.01")]).to_pylist() == [{"s": None}]
    assert made_of("money", [NINES] * 3 + [NINES.copy_negate()] * 2).to_pylist() == [{"s": NINES}]


def test_an_average_of_a_sum_beyond_38_digits_is_exact() -> None:
    mean = Aggregate(name="m", kind=AggregateKind.AVG, column="money")
    grouping = Grouping(ROWS, (), (mean,))
    most = Decimal("9" * 32 + ".99")
    row = tuple(most if name == "money" else None for name in ROWS.names)
    steps = contributions(grouping, pairs_of({}, dict.fromkeys(range(20_000), row), ROWS))
    assert compute_results(grouping, steps, url="memory").to_pylist() == [{"m": most}]


@pytest.mark.parametrize("text", ["v", '"v":3', '"v":1'])
def test_a_text_of_other_sums_is_no_grouping(text: str) -> None:
    grouping = Grouping(ROWS, (), wanted("money"))
    assert Grouping.from_json(grouping.to_json()) == Grouping(
        grouping.from_json(grouping.to_json()).rows, (), wanted("money")
    )
    with pytest.raises(PlanError, match="expected the text of a grouping"):
        Grouping.from_json(grouping.to_json().replace('"v":2', text))


def test_a_bound_that_no_state_passes_may_be_passed_between() -> None:
    """Three rows of 2**62 and one that takes them back are never three at a time in the table."""
    grouping = Grouping(ROWS, (), (Aggregate(name="s", kind=AggregateKind.SUM, column="long"),))

    def row(value: int) -> Row:
        return tuple(value if name == "long" else None for name in ROWS.names)

    contents = [{0: row(-(2**63))}, {0: row(2**62)}, {0: row(2**62), 1: row(2**61)}]
    steps = [
        contributions(grouping, pairs_of(old, new, ROWS))
        for old, new in zip([{}, *contents], contents, strict=False)
    ]
    rest = fold_entries(grouping, pa.concat_batches(steps[1:]))
    assert rest.column("s_long").to_pylist() == [Decimal(2**62 + 2**61 + 2**63)]
    entries = fold_entries(grouping, pa.concat_batches([steps[0], rest]))
    assert compute_results(grouping, entries, url="memory").to_pylist() == [{"s": 2**62 + 2**61}]


@pytest.mark.parametrize(
    "taken_back", [{0: (1.0, "a", 1, 1, None, None)}, {}], ids=["another row", "one row too many"]
)
def test_what_was_never_added_cannot_be_taken_back(taken_back: dict[int, Row]) -> None:
    grouping = GROUPINGS["by two columns"]
    row = {0: (1.0, "a", 2, 1, None, None)}
    added = contributions(grouping, pairs_of({}, taken_back, ROWS))
    gone = contributions(grouping, pairs_of(row, {}, ROWS))
    entries = fold_entries(grouping, pa.concat_batches([added, gone]))
    with pytest.raises(CorruptionError, match="each of its entries must be of one row or more"):
        compute_results(grouping, entries, url="memory")


@pytest.mark.parametrize("value", [1e37, -math.nextafter(1e37, math.inf)])
def test_a_float_that_has_too_many_digits_is_refused(value: float) -> None:
    grouping = Grouping(
        ROWS, (), (Aggregate(name="s", kind=AggregateKind.SUM, column="real", scale=1),)
    )
    rows = {0: (None, None, None, None, None, value)}
    with pytest.raises(DataError, match="more than 37 digits before the point"):
        contributions(grouping, pairs_of({}, rows, ROWS))
