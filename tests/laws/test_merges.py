"""The laws of merges, whatever the mode, the batches and the bounds; and of documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from spark_upsert.merge.merged import DocumentClose, DocumentOpen, Documents, concat, live, merge
from spark_upsert.merge.readers import MergeConfig, MergeCounters, Mode
from spark_upsert.merge.spill import MemoryPressure
from tests.support.merging import Row, batches_of, rows_in

Sizes = list[int]
"""Of the batches of an input."""

INPUTS: st.SearchStrategy[list[Sizes]] = st.lists(
    st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=4
) | st.lists(st.lists(st.integers(0, 900), max_size=5), min_size=1, max_size=5)
SEEDS = st.integers(0, 3) | st.integers(0, 2**64 - 1)
LIVE = MergeConfig(mode=Mode.INTERLEAVE)
CONFIGS: st.SearchStrategy[tuple[MergeConfig, bool]] = st.one_of(
    st.just((MergeConfig(), True)),
    st.sampled_from([(LIVE, True), (LIVE, False)]),
    st.tuples(st.builds(MergeConfig, mode=st.just(Mode.INTERLEAVE), seed=SEEDS), st.just(True)),
)
PRESSURES = st.none() | st.builds(MemoryPressure, limit_bytes=st.integers(1, 20_000))


def named(inputs: Sequence[Sizes]) -> dict[str, Sizes]:
    return {f"i{index}": sizes for index, sizes in enumerate(inputs)}


def merged(
    inputs: dict[str, Sizes],
    config: MergeConfig,
    *,
    is_live: bool = True,
    width: int = 3,
    rows: int = 100,
    pressure: MemoryPressure | None = None,
) -> list[Row]:
    opened = {name: partial(batches_of, name, sizes) for name, sizes in inputs.items()}
    out = merge(opened, config, is_live=is_live, width=width, rows=rows, pressure=pressure)
    return rows_in(list(out))


def rows_of(name: str, sizes: Sizes) -> list[Row]:
    return [(name, row) for row in range(1, sum(sizes) + 1)]


@given(
    inputs=INPUTS.map(named),
    mode=CONFIGS,
    width=st.integers(1, 6),
    rows=st.integers(1, 300),
    pressure=PRESSURES,
)
def test_all_rows_come_out_once_and_those_of_one_input_in_its_order(
    inputs: dict[str, Sizes],
    mode: tuple[MergeConfig, bool],
    width: int,
    rows: int,
    pressure: MemoryPressure | None,
) -> None:
    config, is_live = mode
    out = merged(inputs, config, is_live=is_live, width=width, rows=rows, pressure=pressure)
    assert len(out) == sum(sum(sizes) for sizes in inputs.values())
    for name, sizes in inputs.items():
        assert [row for row in out if row[0] == name] == rows_of(name, sizes)


@given(inputs=INPUTS.map(named), width=st.integers(1, 6))
def test_concat_is_one_input_after_the_other(inputs: dict[str, Sizes], width: int) -> None:
    expected = [row for name, sizes in inputs.items() for row in rows_of(name, sizes)]
    assert merged(inputs, MergeConfig(), width=width) == expected


@given(inputs=INPUTS.map(named), seed=SEEDS, pressure=PRESSURES, data=st.data())
def test_a_seeded_order_is_a_function_of_lengths_seed_and_declaration(
    inputs: dict[str, Sizes], seed: int, pressure: MemoryPressure | None, data: st.DataObject
) -> None:
    """Cut into other batches, named otherwise, read by other threads: the same picks."""
    config = MergeConfig(mode=Mode.INTERLEAVE, seed=seed)
    others = {}
    for name, sizes in inputs.items():
        cut = data.draw(st.integers(0, sum(sizes)))
        others[f"other-{name}"] = [cut, sum(sizes) - cut]
    width = data.draw(st.integers(1, 5))
    one = merged(inputs, config)
    other = merged(others, config, width=width, rows=7, pressure=pressure)
    assert [(f"other-{name}", row) for name, row in one] == other


@given(
    inputs=INPUTS.map(named),
    capacity=st.integers(1, 50),
    batch=st.integers(1, 60),
    width=st.integers(1, 5),
    is_live=st.booleans(),
)
def test_a_channel_never_holds_more_than_its_capacity(
    inputs: dict[str, Sizes], capacity: int, batch: int, width: int, is_live: bool
) -> None:
    counters = MergeCounters()
    opened = {name: partial(batches_of, name, sizes) for name, sizes in inputs.items()}
    run = live if is_live else concat
    for _ in run(opened, capacity=capacity, batch_rows=batch, width=width, counters=counters):
        pass
    for name, found in counters.snapshot().items():
        largest = max(inputs[name], default=0)
        assert found.queued_peak <= capacity
        assert found.in_flight_peak <= capacity + largest
        assert (found.handed, found.queued, found.in_flight) == (sum(inputs[name]), 0, 0)
        assert found.is_finished


@given(inputs=INPUTS.map(named), seed=SEEDS)
def test_the_order_of_declaration_changes_exact_orders_only_and_never_the_rows(
    inputs: dict[str, Sizes], seed: int
) -> None:
    turned = dict(reversed(inputs.items()))
    for config in (MergeConfig(), LIVE, MergeConfig(mode=Mode.INTERLEAVE, seed=seed)):
        assert Counter(merged(inputs, config)) == Counter(merged(turned, config))
    expected = [row for name, sizes in turned.items() for row in rows_of(name, sizes)]
    assert merged(turned, MergeConfig()) == expected


# -- documents ----------------------------------------------------------------------------------

Mark = DocumentOpen | DocumentClose
MARKS: st.SearchStrategy[list[tuple[str, Mark]]] = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.builds(DocumentOpen, st.sampled_from("DE"))
        | st.builds(DocumentClose, st.sampled_from("DE")),
    ),
    max_size=14,
)
"""Any history, also those that cannot be: each mark with the input that it came from."""


def model(marks: list[tuple[str, Mark]]) -> tuple[list[str], list[str]]:
    """Return which documents are opened and closed, in that order, as the rule is told."""
    opens, closes = Counter[str](), Counter[str]()
    for _, mark in marks:
        opens[mark.document] += isinstance(mark, DocumentOpen)
    opened, closed = [], []
    for _, mark in marks:
        document = mark.document
        if isinstance(mark, DocumentOpen):
            if document not in opened:
                opened.append(document)
        else:
            closes[document] += 1
            if closes[document] == opens[document]:
                closed.append(document)
    return opened, closed


@given(marks=MARKS)
def test_documents_are_opened_and_closed_as_the_model_says(marks: list[tuple[str, Mark]]) -> None:
    documents: Documents[tuple[str, Mark]] = Documents()
    opened = [pair for pair in marks if documents.is_forwarded(pair[1], pair)]
    closed = list(documents.closings())
    found = ([m.document for _, m in opened], [m.document for _, m in closed])
    assert found == model(marks)
    assert all(isinstance(mark, DocumentOpen) for _, mark in opened)
    assert all(isinstance(mark, DocumentClose) for _, mark in closed)
    assert set(found[1]) <= set(found[0])
