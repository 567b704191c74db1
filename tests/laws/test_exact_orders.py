"""The law of exact orders: many small micro-batches are one large one, and a batch read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_upsert.options.inputs import ReadPlan
from spark_upsert.options.read import QueryOptions
from spark_upsert.streams.inputs.inputs import NamedInputs
from spark_upsert.streams.inputs.protocol import Input
from spark_upsert.streams.inputs.table import TableInput
from spark_upsert.streams.planner.formats import MergedRead
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.streams.reads.columns import read_columns
from tests.support.clocked import Now
from tests.support.inputs import ToldRead, told
from tests.support.streams import Lived, Query, options_of

ORDERS = st.one_of(
    st.just({"merge": "concat"}),
    st.just({"merge": "roundrobin"}),
    st.integers(0, 2**64 - 1).map(lambda seed: {"interleaveSeed": str(seed)}),
)
EPOCHS = st.lists(st.integers(0, 4), max_size=4)
INPUTS = st.dictionaries(st.sampled_from("abcd"), EPOCHS, min_size=1)
LIMITS = st.lists(st.none() | st.integers(1, 5), min_size=1, max_size=6)


def over(inputs: Mapping[str, Input], query: QueryOptions) -> Stream:
    """Return a stream over inputs."""
    return Stream(NamedInputs(inputs), query, clock=Now())


def made(make: Any, order: dict[str, str], limit: int | None) -> Stream:
    """Return a stream in an order, under a limit."""
    limits = {} if limit is None else {"maxRowsPerTrigger": str(limit)}
    columns = {"mergeColumns": "_input,_merge_seq"}
    stream: Stream = make(ReadPlan.parse({"inputs": "a", **order, **columns, **limits}).query)
    return stream


def cut(make: Any, order: dict[str, str], limits: list[int | None]) -> list[dict[str, Any]]:
    """Return the rows of a stream whose process is a new one for each step, under each limit."""
    return cut_from(Query(lambda: made(make, order, None)), make, order, limits)


@given(INPUTS, ORDERS, LIMITS)
def test_many_small_batches_are_one_large_one_and_a_batch_read(
    counts: dict[str, list[int]], order: dict[str, str], limits: list[int | None]
) -> None:
    inputs = told(counts)
    once = cut(lambda query: over(inputs, query), order, [None])
    assert cut(lambda query: over(inputs, query), order, limits) == once
    assert [row["_merge_seq"] for row in once] == list(range(sum(map(sum, counts.values()))))
    for name, each in inputs.items():
        own = [row["row"] for row in once if row["_input"] == name]
        assert own == [f"{name}{number + 1}" for number in range(sum(each.epochs))]
    plan = ReadPlan.parse({"inputs": "a", **order, "mergeColumns": "_input,_merge_seq"})
    merged = MergedRead({name: ToldRead(each) for name, each in inputs.items()}, plan.query)
    read = [row for work in merged.splits() for b in merged.read(work) for row in b.to_pylist()]
    assert read == once


@given(INPUTS, INPUTS, ORDERS, LIMITS)
def test_any_batch_repeats_whatever_the_inputs_have_grown_to(
    counts: dict[str, list[int]],
    more: dict[str, list[int]],
    order: dict[str, str],
    limits: list[int | None],
) -> None:
    inputs = told(counts)
    query = Query(lambda: made(lambda options: over(inputs, options), order, limits[0]))
    query.drain()
    for name, epochs in more.items():
        if name in inputs:
            inputs[name].epochs += epochs
    query.drain()
    query.restart()
    assert [query.replayed(number) for number in range(len(query.batches))] == query.batches
    rows = [row["row"] for batch in query.batches for row in batch]
    assert sorted(rows) == sorted(
        f"{name}{n + 1}" for name, each in inputs.items() for n in range(sum(each.epochs))
    )


TABLE_EPOCHS = st.lists(
    st.dictionaries(st.integers(0, 8), st.none() | st.integers(0, 2), max_size=5), max_size=4
)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(TABLE_EPOCHS, TABLE_EPOCHS), min_size=1, max_size=3),
    ORDERS,
    LIMITS,
    st.sampled_from([{}, {"startingVersion": "earliest"}, {"emitUnchanged": "true"}]),
)
def test_tables_too_their_snapshots_included(
    histories: list[Any],
    order: dict[str, str],
    limits: list[int | None],
    begin: dict[str, str],
) -> None:
    tables = [Lived() for _ in histories]
    for table, (first, _) in zip(tables, histories, strict=True):
        table.write(*first)

    def make(query: Any) -> Stream:
        options = options_of(**begin)
        return over(
            {
                name: TableInput(
                    options, read_columns(table.table.log, options), table=table.open()
                )
                for name, table in zip("abc", tables, strict=False)
            },
            query,
        )

    begun = Query(lambda: made(make, order, 1))
    begun.plan()
    for table, (_, later) in zip(tables, histories, strict=True):
        table.write(*later)
    once = cut_from(begun, make, order, [None])
    assert cut_from(begun, make, order, limits) == once
    assert [row["_merge_seq"] for row in once] == list(range(len(once)))


def cut_from(
    begun: Query, make: Any, order: dict[str, str], limits: list[int | None]
) -> list[dict[str, Any]]:
    """Return the rows of a stream that goes on from where another has begun."""
    turn = 0

    def start() -> Stream:
        nonlocal turn
        limit = limits[turn % len(limits)]
        turn += 1
        return made(make, order, limit)

    query = Query(start)
    query.noted = list(begun.noted)
    if query.is_pending:
        query.deliver()
    while query.plan():
        query.restart()
        query.deliver()
        query.restart()
    return [row for batch in query.batches for row in batch]
