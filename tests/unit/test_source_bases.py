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
from spark_upsert.streams.offsets.delta import Bases, CompactOffsets
from spark_upsert.streams.offsets.offset import Offset, PlainOffsets
from tests.support.notebooks import STREAM, Notebook, few_are_many, offset_of, offsets_over
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


BASE = f"{STREAM}/0000000001-{DIGEST}"


def last(notebook: Notebook) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(notebook.noted[-1])
    return record


def test_an_offset_of_many_inputs_has_this_very_text(
    notebook: Notebook, store: MemoryStore
) -> None:
    """Checkpoints hold it: whoever changes this needs a new version."""
    notebook.note(ABC)
    notebook.note({"a": 1, "b": 7, "d": 0})
    notebook.note({"a": 1, "b": 7})
    assert json.dumps(last(notebook), separators=(",", ":")) == (
        f'{{"bases":["0000000001-{DIGEST}","0000000002-{last(notebook)["bases"][1][11:]}"],'
        '"delta":{"d":null},"number":3,"state":{},'
        f'"stream":"{STREAM}","version":3}}'
    )
    assert zlib.decompress(store.objects[BASE]) == b'{"a":{"n":1},"b":{"n":2},"c":{"n":3}}'
    with pytest.raises(OptionError, match="'offsetsPath' is required"):
        PlainOffsets().read(last(notebook))


def test_a_stream_has_the_plain_form_until_it_has_many_inputs(
    notebook: Notebook, store: MemoryStore
) -> None:
    notebook.note({"a": 1, "b": 2})
    assert last(notebook) == offset_of({"a": 1, "b": 2}).to_json()
    assert store.objects == {}
    names = {"": 1, "é/ü=\n": 2, "\udc80": 3, '"\\': 4}
    notebook.note(names)
    assert last(notebook)["version"] == 3
    notebook.restart()
    assert notebook.read(notebook.noted[-1]) == names


def test_the_state_of_a_rule_is_in_the_offset_and_not_in_the_base(notebook: Notebook) -> None:
    start = json.loads(notebook.noted[-1])
    for state in ({"rule": "a"}, {"rule": "b"}):
        offset = Offset(positions=offset_of(ABC).positions, state=state)
        end = notebook.offsets.write(offset, start)
        assert notebook.offsets.read(end) == offset
        assert end["bases"] == [f"0000000001-{DIGEST}"]


def test_a_base_is_durable_before_its_offset_is_known(store: MemoryStore) -> None:
    Notebook(lambda: offsets_over(store)).plan(ABC)
    steps = Steps()
    notebook = Notebook(lambda: offsets_over(FaultyStore(store, steps)))
    notebook.plan(ABC)
    assert steps.names[-2:] == [f"read {BASE}", f"sync {BASE}"], "a killed process left it"
    del store.objects[BASE], steps.names[:]
    notebook.restart()
    notebook.note(ABC)
    assert steps.names[:2] == [f"prepare {STREAM}", f"put_if_absent {BASE}"]
    notebook.note({**ABC, "a": 2})
    del steps.names[:]
    for number in range(3, 20):
        notebook.note({**ABC, "a": number})
    assert steps.names == [], "a batch that writes no base asks nothing of the storage"


def test_bases_go_and_foreign_objects_stay(store: MemoryStore) -> None:
    queries = [CompactOffsets(Bases(store)) for _ in range(2)]
    first, other = (query.write(offset_of(ABC), Offset().to_json()) for query in queries)
    assert first["stream"] != other["stream"]
    again = queries[0].write(offset_of(ABC), Offset().to_json())
    assert again == first, "a process that is asked twice has drawn twice"
    store.put(f"{first['stream']}/note.txt", b"mine")
    foreign = {path for path in store.objects if not path.startswith(f"{first['stream']}/0")}
    end = first
    for number in range(20):
        query = CompactOffsets(Bases(store))
        start, end = end, query.write(offset_of(dict.fromkeys("abcd", number)), end)
        query.commit(start)
        assert end["stream"] == first["stream"]
        assert foreign < store.objects.keys()
        assert len(store.objects) - len(foreign) <= 5


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(None, "it is missing", id="lost"),
        pytest.param(lambda data: data[: len(data) // 2], "it is damaged", id="cut short"),
        pytest.param(lambda data: b"", "it is damaged", id="empty"),
        pytest.param(lambda data: b"?" + data, "it is damaged", id="not compressed"),
        pytest.param(
            lambda data: zlib.compress(zlib.decompress(data).replace(b"3", b"4")),
            "not the one that its name tells",
            id="altered",
        ),
    ],
)
def test_a_base_that_cannot_be_used_is_named(
    notebook: Notebook, store: MemoryStore, damage: Callable[[bytes], bytes] | None, message: str
) -> None:
    notebook.note(ABC)
    data = store.objects.pop(BASE)
    if damage is not None:
        store.objects[BASE] = damage(data)
    notebook.restart()
    for attempt in (lambda: notebook.read(notebook.noted[-1]), lambda: notebook.note({"a": 2})):
        with pytest.raises(CorruptionError, match=message) as caught:
            attempt()
        assert caught.value.fields["path"] == f"{store.url}/{BASE}"
        assert "restore that file" in caught.value.hint
        assert "offsets_path" in caught.value.hint
    if damage is not None:
        fresh = Notebook(lambda: offsets_over(store))
        with pytest.raises(CorruptionError, match=r"it is damaged|its name tells"):
            fresh.plan(ABC)


@pytest.mark.parametrize(
    "changed",
    [
        {"more": 1},
        {"stream": "../../etc"},
        {"stream": 5},
        {"bases": []},
        {"bases": ["0000000001-../passwd"]},
        {"bases": [7]},
        {"bases": [f"0000000002-{'0' * 32}", f"0000000001-{'0' * 32}"]},
        {"number": 0},
        {"delta": {"a": 5}},
        {"delta": []},
        {"state": {"a": 0.5}},
    ],
    ids=str,
)
def test_what_is_no_offset_is_refused(notebook: Notebook, changed: dict[str, Any]) -> None:
    notebook.note(ABC)
    with pytest.raises(OptionError, match="no offset of this source"):
        notebook.offsets.read({**last(notebook), **changed})


def test_bases_lie_in_a_folder_that_is_made_with_the_first(tmp_path: Path) -> None:
    notebook = Notebook(lambda: offsets_over(LocalStore(tmp_path / "lake" / "_offsets")))
    notebook.note({"a": 1})
    assert not (tmp_path / "lake").exists()
    notebook.note(ABC)
    folder = tmp_path / "lake" / "_offsets" / STREAM
    assert [path.name for path in folder.iterdir()] == [f"0000000001-{DIGEST}"]
