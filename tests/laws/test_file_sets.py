"""Laws of sets of files: each file once or an error, however the way is cut, over restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_upsert.errors import DataLossError
from spark_upsert.options.query import QueryOptions
from spark_upsert.store.folder import FileStatus
from spark_upsert.streams.inputs.files import position as file_position
from spark_upsert.streams.inputs.files.position import Day, FilePosition
from tests.support.folders import DAY_US, MemoryFolder, csv, file_query, values

BOUNDS = st.none() | st.integers(1, 9)
LIMITS = st.builds(QueryOptions, bytes_max=BOUNDS, epochs_max=BOUNDS)
TIMES = st.integers(0, 5).map(lambda at: at * DAY_US // 2)
FILES = st.dictionaries(st.sampled_from("abcdefgh"), TIMES, max_size=8)
INTEGERS = st.integers(-(2**62), 2**62)
HASHES = st.integers(0, 2**64 - 1)
STATES = st.builds(FileStatus, st.text(max_size=4), st.integers(0, 2**50), INTEGERS)
POSITIONS = st.builds(
    FilePosition,
    batch=st.lists(STATES, max_size=3).map(tuple),
    count=st.integers(0, 2**50),
    days=st.lists(st.builds(Day, INTEGERS, st.integers(0, 2**50), HASHES), max_size=3).map(tuple),
    recent=st.lists(st.tuples(INTEGERS, HASHES, INTEGERS), max_size=3).map(tuple),
    upto=st.none() | st.tuples(INTEGERS, HASHES),
)


@given(POSITIONS)
def test_a_position_comes_back_as_it_was(position: FilePosition) -> None:
    assert FilePosition.unpacked(position.packed()) == position


@given(FILES, LIMITS, st.lists(st.booleans(), max_size=9))
def test_the_order_of_rows_does_not_depend_on_limits_and_restarts(
    files: dict[str, int], limits: QueryOptions, restarts: list[bool]
) -> None:
    folder = MemoryFolder()
    for name, at in files.items():
        folder.put(name, csv(name), at)
    query = file_query(folder, limits=limits, schema="v STRING")
    with patch.object(file_position, "WINDOW", 2), patch.object(file_position, "DAYS", 2):
        for restart in restarts:
            if restart:
                query.restart()
            if query.plan():
                query.deliver()
        query.drain()
    assert values(query) == sorted(files, key=lambda name: (files[name], name))


# -- histories ------------------------------------------------------------------------------

NAMES = st.sampled_from("abcdef")
STEPS = st.one_of(
    st.tuples(st.just("put"), NAMES, st.integers(0, 9)),
    st.tuples(st.just("remove"), NAMES, st.just(0)),
    st.tuples(st.sampled_from(["plan", "deliver", "restart"]), st.just(""), st.just(0)),
)


class World:
    """A folder, a query over it, and a dictionary of what it should have delivered.

    A file is what a name holds at a time; the text in it says which it is.
    """

    def __init__(self, *, is_loss_allowed: bool) -> None:
        self.folder = MemoryFolder()
        self.query = file_query(
            self.folder,
            schema="v STRING",
            limits=QueryOptions(epochs_max=2),
            failOnDataLoss=str(not is_loss_allowed).lower(),
        )
        self.written: list[str] = []
        self.states: set[tuple[str, int, int]] = set()
        self.disturbed: set[str] = set()
        """Files that were replaced, removed or late, so that they need not be delivered."""

    def put(self, name: str, at: int) -> None:
        text = f"{name}{len(self.written)}"
        if name in self.folder.content:
            self.disturb(name)
            self.disturbed.add(text)
        self.folder.put(name, csv(text), at * DAY_US // 2)
        self.written.append(text)
        state = name, len(text), at
        if state in self.states:
            self.disturbed.add(text)  # Nobody can tell it from the one that was there before.
        self.states.add(state)

    def remove(self, name: str, _: int) -> None:
        if name in self.folder.content:
            self.disturb(name)
            self.folder.remove(name)

    def disturb(self, name: str) -> None:
        self.disturbed.add(self.text_of(name))

    def text_of(self, name: str) -> str:
        return self.folder.content[name].decode().split()[1]

    def plan(self, *_: object) -> None:
        if not self.query.is_pending:
            self.query.plan()

    def deliver(self, *_: object) -> None:
        if self.query.is_pending:
            self.query.deliver()

    def restart(self, *_: object) -> None:
        self.query.restart()

    def run(self, step: tuple[str, str, int]) -> None:
        act: Callable[..., None] = getattr(self, step[0])
        act(*step[1:])


@pytest.mark.parametrize("is_loss_allowed", [False, True], ids=["strict", "lenient"])
@settings(max_examples=120)
@given(steps=st.lists(STEPS, max_size=25))
@example(steps=[("put", "a", 1), ("plan", "", 0), ("put", "a", 2), ("deliver", "", 0)])
def test_no_file_is_read_twice_and_none_is_lost_in_silence(
    *, is_loss_allowed: bool, steps: list[tuple[str, str, int]]
) -> None:
    world = World(is_loss_allowed=is_loss_allowed)
    is_refused = False
    with patch.object(file_position, "WINDOW", 2), patch.object(file_position, "DAYS", 2):
        for step in [*steps, ("deliver", "", 0)]:
            try:
                world.run(step)
            except DataLossError:
                is_refused = True
                break
        if not is_refused:
            try:
                world.query.drain()
            except DataLossError:
                is_refused = True
    found = Counter(values(world.query))
    assert max(found.values(), default=1) == 1
    assert found.keys() <= set(world.written)
    if is_loss_allowed:
        assert not is_refused
    elif not is_refused:
        assert found.keys() >= set(world.written) - world.disturbed


@settings(max_examples=120)
@given(steps=st.lists(STEPS.filter(lambda step: step[0] != "restart"), max_size=25))
def test_a_running_query_delivers_all_files_however_late(
    steps: list[tuple[str, str, int]],
) -> None:
    world = World(is_loss_allowed=False)
    with patch.object(file_position, "WINDOW", 2), patch.object(file_position, "DAYS", 2):
        for step in steps:
            if step[0] == "remove" or (step[0] == "put" and step[1] in world.folder.content):
                continue
            world.run(step)
        world.query.drain()
    assert sorted(values(world.query)) == sorted(world.written)


@settings(max_examples=100)
@given(acts=st.lists(st.sampled_from(["put", "plan", "deliver", "restart"]), max_size=40))
def test_files_that_come_in_time_are_never_refused(acts: list[str]) -> None:
    world = World(is_loss_allowed=False)
    with patch.object(file_position, "WINDOW", 2), patch.object(file_position, "DAYS", 2):
        for at, act in enumerate(acts):
            world.run((act, f"f{at}", at))
        world.query.drain()
    assert values(world.query) == world.written
