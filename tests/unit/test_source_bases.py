"""Offsets of very many inputs: one text each, bases that come in time and go in time."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_upsert.errors import CorruptionError, OptionError
from spark_upsert.store import LocalStore
from spark_upsert.streams.offsets.delta import BaseName, Bases, CompactOffsets, still_needed
from spark_upsert.streams.offsets.offset import Offset, PlainOffsets
from tests.support.notebooks import (
    STREAM,
    Notebook,
    few_are_many,
    offset_of,
    offsets_over,
)
from tests.support.stores import FaultyStore, MemoryStore, Steps

ABC = {"a": 1, "b": 2, "c": 3}
DIGEST = "370ee3db58a6c2906209eac297d82fa9"
"""Of the text of `ABC`."""


@pytest.fixture(autouse=True)
def few() -> Iterator[None]:
    with few_are_many():
        yield


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def notebook(store: MemoryStore) -> Notebook:
    return Notebook(lambda: offsets_over(store))


def last(notebook: Notebook) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(notebook.noted[-1])
    return found


# -- the text -----------------------------------------------------------------------------


def test_an_offset_of_many_inputs_has_this_very_text(
    notebook: Notebook, store: MemoryStore
) -> None:
    """Checkpoints hold it: whoever changes this needs a new version."""
    notebook.note(ABC)
    notebook.note({"a": 1, "b": 7, "d": 0})
    notebook.note({"a": 1, "b": 7})
    base = f"0000000001-{DIGEST}"
    assert json.dumps(last(notebook), separators=(",", ":")) == (
        f'{{"bases":["{base}","0000000002-{last(notebook)["bases"][1][11:]}"],'
        '"delta":{"d":null},"number":3,"state":{},'
        f'"stream":"{STREAM}","version":3}}'
    )
    assert zlib.decompress(store.objects[f"{STREAM}/{base}"]) == (
        b'{"a":{"n":1},"b":{"n":2},"c":{"n":3}}'
    )


def test_a_few_inputs_have_the_plain_form(notebook: Notebook, store: MemoryStore) -> None:
    notebook.note({"a": 1, "b": 2})
    assert json.loads(notebook.noted[-1]) == offset_of({"a": 1, "b": 2}).to_json()
    assert store.objects == {}


def test_a_stream_of_few_inputs_that_become_many_goes_on(notebook: Notebook) -> None:
    notebook.note({"a": 1, "b": 2})
    notebook.note(ABC)
    assert last(notebook)["version"] == 3
    assert notebook.read(notebook.noted[-1]) == ABC


def test_a_stream_of_many_inputs_that_become_few_keeps_its_form(notebook: Notebook) -> None:
    notebook.note(ABC)
    notebook.note({"a": 1})
    assert last(notebook)["delta"] == {"b": None, "c": None}
    notebook.note({})
    assert notebook.read(notebook.noted[-1]) == {}


def test_the_state_of_a_rule_is_in_the_offset_and_not_in_the_base(notebook: Notebook) -> None:
    start = json.loads(notebook.noted[-1])
    for state in ({"rule": "a"}, {"rule": "b"}):
        offset = Offset(positions=offset_of(ABC).positions, state=state)
        end = notebook.offsets.write(offset, start)
        assert notebook.offsets.read(end) == offset
        assert end["bases"] == [f"0000000001-{DIGEST}"]


def test_each_stream_has_a_folder_of_its_own_that_its_first_offset_names(
    store: MemoryStore,
) -> None:
    queries = [CompactOffsets(Bases(store)) for _ in range(2)]
    first = [query.write(offset_of(ABC), Offset().to_json()) for query in queries]
    assert first[0]["stream"] != first[1]["stream"]
    again = queries[0].write(offset_of(ABC), Offset().to_json())
    assert again == first[0], "a process that is asked twice draws twice"
    resumed = CompactOffsets(Bases(store)).write(offset_of({**ABC, "d": 4}), first[0])
    assert resumed["stream"] == first[0]["stream"]
    assert {path.partition("/")[0] for path in store.objects} == {each["stream"] for each in first}


# -- when a base is written --------------------------------------------------------------


def test_a_base_is_written_when_more_inputs_differ_than_a_delta_holds(
    notebook: Notebook, store: MemoryStore
) -> None:
    notebook.note(ABC)
    notebook.note({**ABC, "a": 2, "b": 3})
    assert len(store.objects) == 1
    notebook.note({**ABC, "a": 2, "b": 3, "c": 4})
    assert len(store.objects) == 2
    assert last(notebook)["delta"] == {}


def test_a_base_is_in_the_storage_before_its_offset_is_known(store: MemoryStore) -> None:
    steps = Steps()
    notebook = Notebook(lambda: offsets_over(FaultyStore(store, steps)))
    notebook.plan(ABC)
    path = f"{STREAM}/0000000001-{DIGEST}"
    assert steps.names == [f"prepare {STREAM}", f"put_if_absent {path}"]


def test_what_a_killed_process_left_is_looked_at_and_made_durable(store: MemoryStore) -> None:
    Notebook(lambda: offsets_over(store)).plan(ABC)
    steps = Steps()
    Notebook(lambda: offsets_over(FaultyStore(store, steps))).plan(ABC)
    path = f"{STREAM}/0000000001-{DIGEST}"
    assert steps.names[-2:] == [f"read {path}", f"sync {path}"]


def test_a_batch_that_writes_no_base_asks_nothing_of_the_storage(store: MemoryStore) -> None:
    steps = Steps()
    notebook = Notebook(lambda: offsets_over(FaultyStore(store, steps)))
    notebook.note(ABC)
    notebook.note({**ABC, "a": 2})
    del steps.names[:]
    for number in range(3, 20):
        notebook.note({**ABC, "a": number})
    assert steps.names == []


# -- when a base goes --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "number", "kept"),
    [
        pytest.param([1], 1, [1], id="its own"),
        pytest.param([1], 99, [1], id="its own, however old"),
        pytest.param([1, 4], 6, [1, 4], id="batch 3 may be replayed"),
        pytest.param([1, 4], 7, [4], id="no batch before 4 may"),
        pytest.param([1, 2, 3, 4], 4, [1, 2, 3, 4], id="each batch writes one"),
        pytest.param([1, 2, 3, 4, 5], 5, [2, 3, 4, 5], id="each batch writes one, and one goes"),
    ],
)
def test_bases_are_needed_while_batches_that_name_them_may_be_replayed(
    numbers: list[int], number: int, kept: list[int]
) -> None:
    """Kept are 3 batches and the one before them."""
    bases = tuple(BaseName(each, "0" * 32) for each in numbers)
    assert [base.number for base in still_needed(bases, number)] == kept


def test_bases_go_when_no_batch_needs_them(notebook: Notebook, store: MemoryStore) -> None:
    for number in range(20):
        notebook.note(dict.fromkeys("abcd", number))
        for text in notebook.noted[-4:]:
            notebook.restart()
            notebook.read(text)
        assert len(store.objects) <= 5


def test_bases_go_even_if_each_process_lives_for_one_batch(
    notebook: Notebook, store: MemoryStore
) -> None:
    for number in range(20):
        notebook.restart()
        notebook.note(dict.fromkeys("abcd", number))
    assert len(store.objects) <= 5


def test_what_was_written_for_a_batch_that_nobody_noted_goes(
    notebook: Notebook, store: MemoryStore
) -> None:
    notebook.note(ABC)
    notebook.plan(dict.fromkeys("abcd", 77))
    stray = max(store.objects)
    notebook.restart()
    notebook.note({**ABC, "a": 2})
    assert stray in store.objects
    notebook.note({**ABC, "a": 3})
    notebook.restart()
    notebook.note({**ABC, "a": 4})
    assert stray not in store.objects
    assert notebook.read(notebook.noted[-1]) == {**ABC, "a": 4}


def test_what_lies_among_bases_and_is_none_stays(notebook: Notebook, store: MemoryStore) -> None:
    store.put(f"{STREAM}/note.txt", b"mine")
    for number in range(9):
        notebook.note(dict.fromkeys("abcd", number))
    assert f"{STREAM}/note.txt" in store.objects


def test_a_query_removes_nothing_of_another(store: MemoryStore) -> None:
    other = Notebook(lambda: offsets_over(store, stream="6" * 32))
    other.note(ABC)
    notebook = Notebook(lambda: offsets_over(store))
    for number in range(9):
        notebook.note(dict.fromkeys("abcd", number))
    other.restart()
    assert other.read(other.noted[-1]) == ABC


# -- what can be wrong --------------------------------------------------------------------


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def altered(data: bytes) -> bytes:
    return zlib.compress(zlib.decompress(data).replace(b"3", b"4"))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        pytest.param(None, "it is missing", id="lost"),
        pytest.param(cut, "it is damaged", id="cut short"),
        pytest.param(lambda data: b"", "it is damaged", id="empty"),
        pytest.param(lambda data: b"?" + data, "it is damaged", id="not compressed"),
        pytest.param(altered, "not the one that its name tells", id="altered"),
    ],
)
def test_a_base_that_cannot_be_used_is_named(
    notebook: Notebook,
    store: MemoryStore,
    damage: Callable[[bytes], bytes] | None,
    told: str,
) -> None:
    notebook.note(ABC)
    path = f"{STREAM}/0000000001-{DIGEST}"
    if damage is None:
        del store.objects[path]
    else:
        store.objects[path] = damage(store.objects[path])
    notebook.restart()
    for attempt in (lambda: notebook.read(notebook.noted[-1]), lambda: notebook.note({"a": 2})):
        with pytest.raises(CorruptionError, match=told) as caught:
            attempt()
        assert caught.value.fields["path"] == f"{store.url}/{path}"
        assert "restore that file" in caught.value.hint
        assert "offsets_path" in caught.value.hint


def test_a_damaged_base_that_a_killed_process_left_is_not_taken_for_its_own(
    notebook: Notebook, store: MemoryStore
) -> None:
    notebook.plan(ABC)
    [path] = store.objects
    store.objects[path] = cut(store.objects[path])
    notebook.restart()
    with pytest.raises(CorruptionError, match="it is damaged"):
        notebook.plan(ABC)


def test_an_offset_of_many_inputs_asks_for_the_place_of_its_base(notebook: Notebook) -> None:
    notebook.note(ABC)
    with pytest.raises(OptionError, match="'offsetsPath' is required"):
        PlainOffsets().read(last(notebook))


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"more": 1}, id="a field more"),
        pytest.param({"stream": "../../etc"}, id="a stream that leads elsewhere"),
        pytest.param({"stream": 5}, id="a stream that is a number"),
        pytest.param({"bases": []}, id="no base"),
        pytest.param({"bases": ["0000000001-../passwd"]}, id="a base that leads elsewhere"),
        pytest.param({"bases": [7]}, id="a base that is a number"),
        pytest.param(
            {"bases": [f"0000000002-{'0' * 32}", f"0000000001-{'0' * 32}"]}, id="out of order"
        ),
        pytest.param({"number": 0}, id="no batch"),
        pytest.param({"delta": {"a": 5}}, id="a position that is a number"),
        pytest.param({"delta": []}, id="a delta without names"),
        pytest.param({"state": {"a": 0.5}}, id="a fraction"),
    ],
)
def test_what_is_no_offset_is_refused(notebook: Notebook, changed: dict[str, Any]) -> None:
    notebook.note(ABC)
    with pytest.raises(OptionError, match="no offset of this source"):
        notebook.offsets.read({**last(notebook), **changed})


# -- on a disk ----------------------------------------------------------------------------


def test_bases_lie_in_a_folder_that_is_made_with_the_first(tmp_path: Path) -> None:
    notebook = Notebook(lambda: offsets_over(LocalStore(tmp_path / "lake" / "_offsets")))
    notebook.note({"a": 1})
    assert not (tmp_path / "lake").exists()
    notebook.note(ABC)
    folder = tmp_path / "lake" / "_offsets" / STREAM
    assert [path.name for path in folder.iterdir()] == [f"0000000001-{DIGEST}"]


def test_names_of_any_letters_come_back(notebook: Notebook) -> None:
    names = {"": 1, "é/ü=\n": 2, "\udc80": 3, '"\\': 4}
    notebook.note(names)
    notebook.restart()
    assert notebook.read(notebook.noted[-1]) == names
