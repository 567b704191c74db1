"""The inputs of a stream: those that its options name, or those that are found."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, cast

import pyarrow as pa

from spark_upsert.errors import DataLossError, OptionError, about, setting
from spark_upsert.model.log_fields import Fields
from spark_upsert.model.parallel import in_order
from spark_upsert.options.inputs import UNNAMED
from spark_upsert.streams.inputs.agreement import require_apart
from spark_upsert.streams.inputs.input import Input, Pollable, Polled
from spark_upsert.streams.offsets.position import Position

_LOGGER = logging.getLogger(__name__)

OF_ONE_TABLE = "the checkpoint is that of a query over one table, which 'path' gave"

Heads = Mapping[str, Position]
"""Positions by the names of inputs: behind all there is, or where a stream stands."""


@dataclass(frozen=True, slots=True, eq=False)
class SeenHeads:
    """The heads of all inputs, as they were last seen."""

    heads: Heads
    before: Heads | None = None
    """Heads that were seen before these; None if nothing is known of what has moved since."""
    moved: frozenset[str] = frozenset()
    """Inputs that came, went or have another head since ``before``."""
    has_same_names: bool = False
    """Whether ``before`` was of the same inputs."""


class Inputs(Protocol):
    """The inputs of a stream by the names that a checkpoint remembers."""

    def look(self) -> Heads:
        """Return the position behind all there is in each input that there is."""
        ...

    def polled(self) -> PolledInputs | None:
        """Return the inputs to be looked at one by one; None if one of them cannot be."""
        ...

    def settle(self, standing: Heads, heads: Heads) -> None:
        """Take note of where a stream stands, before anything is asked of the inputs of a look.

        Raises
        ------
        UpsertFlowError
            It stands in an input that there is no more.
        """
        ...

    def __getitem__(self, name: str, /) -> Input:
        """Return the input of a name that a look, an offset or a split has."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownInputs:
    """Which inputs there are."""

    names: Collection[str]
    requests: int
    """Requests that were made to the storage."""


class PolledInputs(Protocol):
    """Inputs that are looked at one by one, by other threads than the one that plans."""

    @property
    def may_come(self) -> bool:
        """Whether inputs may come and go while the query runs."""
        ...

    def find(self) -> KnownInputs:
        """Look which inputs there are; not at what is in them."""
        ...

    def poll(self, name: str) -> Polled:
        """Look at one of them (`Pollable.poll`)."""
        ...


class NamedInputs:
    """The inputs that options name (`Inputs`).

    Parameters
    ----------
    inputs : mapping of str to Input
    threads : int, optional
        How many are looked at at once.
    may_lack : bool, optional
        Whether an offset may have inputs that are not named any more: they are left alone, and what
        they still had is not read.
    """

    def __init__(
        self, inputs: Mapping[str, Input], *, threads: int = 1, may_lack: bool = False
    ) -> None:
        self._inputs = inputs
        self._threads = threads
        self._may_lack = may_lack
        self._are_apart = False

    def look(self) -> Heads:
        """Return the head of each input (`Inputs.look`).

        Raises
        ------
        OptionError
            Two inputs are the same; the first look tells.
        """
        answers = in_order(self._head, self._inputs, min(self._threads, len(self._inputs)))
        heads = dict(zip(self._inputs, answers, strict=True))
        if len(heads) > 1 and not self._are_apart:
            require_apart({name: each.identity() for name, each in self._inputs.items()})
            self._are_apart = True
        return heads

    may_come = False

    def polled(self) -> NamedInputs | None:
        """Return these if all can be polled (`Inputs.polled`)."""
        return self if all(isinstance(each, Pollable) for each in self._inputs.values()) else None

    def find(self) -> KnownInputs:
        """Return the names: they stay (`PolledInputs.find`)."""
        return KnownInputs(names=self._inputs, requests=0)

    def poll(self, name: str) -> Polled:
        """Look at one of them (`PolledInputs.poll`)."""
        # What `polled` has told; to ask each time takes longer than to poll.
        each = cast(Pollable, self._inputs[name])
        with about("input", name):
            return each.poll()

    def settle(self, standing: Heads, heads: Heads) -> None:
        """Raise unless all inputs that a stream stands in are named (`Inputs.settle`)."""
        self._require(standing)

    def __getitem__(self, name: str) -> Input:
        if name not in self._inputs:
            self._require({name: None})
            return Removed(name)
        return self._inputs[name]

    def _require(self, names: Mapping[str, object]) -> None:
        unknown = sorted(names.keys() - self._inputs.keys())
        if unknown and not self._may_lack:
            raise OptionError(
                f"{OF_ONE_TABLE}, and the query names its inputs."
                if unknown == [UNNAMED]
                else f"the checkpoint knows inputs {unknown} that the query does not name.",
                hint=f"name them again; or give {setting('allowInputRemoval', 'true')} to go on "
                "without them and without what they still had, where each input that is new to the "
                "checkpoint begins anew; or give the query a new checkpointLocation.",
            )

    def _head(self, name: str) -> Position:
        with about("input", name):
            return self._inputs[name].head()


class Removed(Input):
    """An input that is not named any more, in a batch that was planned when it was."""

    def __init__(self, name: str) -> None:
        self._name = name

    def splits(self, start: Position | None, end: Position) -> list[Any]:
        """Return nothing, and say so (`Input.splits`)."""
        _LOGGER.warning("an input was removed before it was read: %s", Fields(input=self._name))
        return []

    def steps(self, start: Position | None, end: Position) -> NoReturn:
        """Raise: an exact order has counted the rows (`SteppedInput.steps`)."""
        raise DataLossError(
            "it was removed, but the batch that was under way has rows of it, and an exact order "
            "has counted them.",
            hint="name it again until that batch is done, and remove it then.",
        )

    def commit(self, position: Position) -> None:
        """Do nothing: nothing is held for it any more (`Input.commit`)."""

    def identity(self) -> NoReturn:
        raise AssertionError(f"nobody looks at '{self._name}'")

    def head(self) -> NoReturn:
        raise AssertionError(f"nobody looks at '{self._name}'")

    def backlog(self, position: Position | None, head: Position | None = None) -> NoReturn:
        raise AssertionError(f"nobody looks at '{self._name}'")

    def split_bytes(self, split: Any) -> int:
        """Return none (`Input.split_bytes`)."""
        return 0

    def read(self, split: Any) -> Iterator[pa.RecordBatch]:
        """Yield nothing (`Input.read`)."""
        return iter(())
