"""Laws of offsets of many inputs: they say what was put in, in one text, while it may be replayed.

A history is what the inputs of a query stand at, batch by batch: they move, come, go and come
again, and between any two batches the process may be killed, with a base written and not noted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_upsert.streams.offsets.offset import canonical
from tests.support.notebooks import Notebook, few_are_many, offset_of, offsets_over
from tests.support.stores import MemoryStore

KEPT = 3
DELTA = 2

NUMBERS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2), max_size=6)


@dataclass(frozen=True)
class Batch:
    """What happens until a batch is noted."""

    numbers: dict[str, int]
    lost: dict[str, int] | None
    """What a process planned that was killed before it was noted."""
    is_restarted: bool


HISTORIES = st.lists(st.builds(Batch, NUMBERS, st.none() | NUMBERS, st.booleans()), max_size=12)


def lived(history: list[Batch], store: MemoryStore) -> Notebook:
    """Return the notebook behind a history."""
    notebook = Notebook(lambda: offsets_over(store))
    for batch in history:
        if batch.lost is not None:
            notebook.plan(batch.lost)
            notebook.restart()
        notebook.note(batch.numbers)
        if batch.is_restarted:
            notebook.restart()
    return notebook


@given(HISTORIES)
@settings(deadline=None)
def test_an_offset_says_what_was_put_in_for_as_long_as_it_may_be_replayed(
    history: list[Batch],
) -> None:
    with few_are_many(delta=DELTA, kept=KEPT):
        notebook = lived(history, MemoryStore())
        # Of each batch, its start is needed, too.
        for back in range(1, min(KEPT + 1, len(history)) + 1):
            notebook.restart()
            assert notebook.read(notebook.noted[-back]) == history[-back].numbers


@given(HISTORIES)
@settings(deadline=None)
def test_the_text_follows_from_the_start_and_the_positions(history: list[Batch]) -> None:
    """Not from what the process has seen, was killed in, or found in the storage."""
    with few_are_many(delta=DELTA, kept=KEPT):
        notebook = lived(history, MemoryStore())
        calm = lived([Batch(batch.numbers, None, False) for batch in history], MemoryStore())
        assert notebook.noted == calm.noted
        for text in notebook.noted:
            assert json.dumps(json.loads(text), separators=(",", ":")) == canonical(
                json.loads(text)
            )


@given(HISTORIES)
@settings(deadline=None)
def test_a_delta_holds_exactly_what_differs_from_its_base(history: list[Batch]) -> None:
    with few_are_many(delta=DELTA, kept=KEPT):
        store = MemoryStore()
        notebook = lived(history, store)
        record = json.loads(notebook.noted[-1])
        if "delta" not in record:
            assert len(history[-1].numbers if history else {}) <= 2
            return
        base = notebook.read(json.dumps({**record, "delta": {}}))
        wanted = history[-1].numbers
        differing = {name for name in base.keys() | wanted if base.get(name) != wanted.get(name)}
        assert record["delta"].keys() == differing
        assert len(differing) <= DELTA


@given(HISTORIES)
@settings(deadline=None)
def test_what_no_batch_needs_is_gone(history: list[Batch]) -> None:
    with few_are_many(delta=DELTA, kept=KEPT):
        store = MemoryStore()
        notebook = lived(history, store)
        record = json.loads(notebook.noted[-1])
        if "bases" not in record:
            return
        notebook.restart()
        notebook.offsets.commit(record)
        kept = {path.rpartition("/")[2] for path in store.objects}
        assert kept == set(record["bases"])
        assert len(kept) <= KEPT + 1


@given(NUMBERS, NUMBERS)
def test_equal_positions_make_an_equal_base(one: dict[str, int], other: dict[str, int]) -> None:
    with few_are_many(inputs=-1):
        texts = [
            json.dumps(offsets_over(MemoryStore()).write(offset_of(numbers), {}))
            for numbers in (one, dict(reversed(one.items())), other)
        ]
    assert texts[0] == texts[1]
    assert (texts[0] == texts[2]) == (one == other)
