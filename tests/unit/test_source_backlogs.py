"""Which inputs are asked for what lies ahead: only those in which something may lie."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from spark_upsert.errors import OptionError
from spark_upsert.options.read import QueryOptions
from spark_upsert.streams.inputs.inputs import NamedInputs, SeenHeads
from spark_upsert.streams.inputs.protocol import Backlog
from spark_upsert.streams.offsets.offset import Position
from spark_upsert.streams.planner.poller import Backlogs
from spark_upsert.streams.planner.stream import Stream
from tests.support.clocked import Now
from tests.support.inputs import Told, at


class PublicationSettings(Told):
    """An input that notes when it is asked, and whose head is one object while nothing comes."""

    def __init__(self, name: str, epochs: list[int], asked: list[str]) -> None:
        super().__init__(name, epochs)
        self._asked = asked
        self.committed: list[Position] = []
        self._heads: dict[int, Position] = {}

    def head(self) -> Position:
        return self._heads.setdefault(len(self.epochs), at(len(self.epochs)))

    def backlog(self, position: Position | None, head: Position | None = None) -> Backlog:
        self._asked.append(self.name)
        found = super().backlog(position, head)
        return replace(found, is_at_rest=position is not None and not list(found.pieces))

    def commit(self, position: Position) -> None:
        self.committed.append(position)


class World:
    """Two inputs, and a stream over them without Spark."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.now = Now(0.0)
        self.of = {name: PublicationSettings(name, [1], self.asked) for name in ("a", "b")}
        self.stream = Stream(
            NamedInputs(self.of), QueryOptions(parallelism=1, epochs_max=1), clock=self.now
        )
        self.offset = self.stream.initial()

    def plan(self) -> list[str]:
        """Plan a batch after the next look; return who was asked."""
        del self.asked[:]
        self.now.advance(60)
        self.offset = json.loads(json.dumps(self.stream.latest(self.offset)))
        return self.asked


def test_an_input_that_has_nothing_is_not_asked_again_before_something_comes() -> None:
    world = World()
    beginning = world.offset
    assert world.plan() == ["a", "b"], "the first batch takes the only epoch of a"
    assert world.plan() == ["a", "b"], "the second that of b"
    assert world.plan() == ["b"]
    assert world.plan() == []
    world.of["a"].epochs.append(1)
    assert world.plan() == ["a"]
    world.of["b"].epochs.append(1)
    assert world.plan() == ["a", "b"]
    world.offset = beginning
    assert world.plan() == ["a", "b"], "all are asked where the stream stands elsewhere"


@pytest.mark.parametrize(
    ("other", "asked"),
    [
        pytest.param(False, False, id="the same head"),
        pytest.param(True, True, id="an equal head of another table at the same place"),
    ],
)
def test_heads_are_told_apart_as_objects(other: bool, asked: bool) -> None:
    noted: list[str] = []
    inputs = {"a": PublicationSettings("a", [1, 1], noted)}
    backlogs = Backlogs(NamedInputs(inputs))
    standing, head = {"a": at(2)}, at(2)
    assert backlogs.read(standing, SeenHeads({"a": head}))["a"].is_at_rest
    again = backlogs.read(standing, SeenHeads({"a": at(2) if other else head}))
    assert bool(again) == asked
    assert len(noted) == 1 + asked


def test_an_error_names_the_input() -> None:
    class Broken(Told):
        def backlog(self, position: Position | None, head: Position | None = None) -> Backlog:
            raise OptionError("no backlog.", hint="none.")

    backlogs = Backlogs(NamedInputs({"a": Broken("a", [])}))
    with pytest.raises(OptionError, match="input 'a'"):
        backlogs.read({}, SeenHeads({"a": at(0)}))


def test_only_who_has_moved_is_told_of_a_commit() -> None:
    world = World()
    for _ in range(3):
        world.plan()
    world.stream.commit(world.offset)
    assert [each.committed for each in world.of.values()] == [[at(1)], [at(1)]]
    world.of["b"].epochs.append(1)
    world.plan()
    world.stream.commit(world.offset)
    assert [each.committed for each in world.of.values()] == [[at(1)], [at(1), at(2)]]
