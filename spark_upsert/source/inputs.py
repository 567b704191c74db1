"""Which inputs a stream has: those that its options name, or those that are found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from spark_upsert.errors import OptionError, about_input
from spark_upsert.parallel import in_order
from spark_upsert.source.input import Input
from spark_upsert.source.position import Position

Heads = Mapping[str, Position]
"""Positions by the names of inputs: behind all there is, or where a stream stands."""


class Inputs(Protocol):
    """The inputs of a stream by the names that a checkpoint remembers."""

    def look(self) -> Heads:
        """Return the position behind all there is in each input that there is."""
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


class NamedInputs:
    """The inputs that options name (`Inputs`).

    Parameters
    ----------
    inputs : mapping of str to Input
    threads : int, optional
        How many are looked at at once.
    """

    def __init__(self, inputs: Mapping[str, Input], *, threads: int = 1) -> None:
        self._inputs = inputs
        self._threads = threads

    def look(self) -> Heads:
        """Return the head of each input (`Inputs.look`)."""
        heads = in_order(self._head, self._inputs, min(self._threads, len(self._inputs)))
        return dict(zip(self._inputs, heads, strict=True))

    def settle(self, standing: Heads, heads: Heads) -> None:
        """Raise unless all inputs that a stream stands in are named (`Inputs.settle`)."""
        self._require(standing)

    def __getitem__(self, name: str) -> Input:
        if name not in self._inputs:
            self._require({name: None})
        return self._inputs[name]

    def _require(self, names: Mapping[str, object]) -> None:
        unknown = sorted(names.keys() - self._inputs.keys())
        if unknown:
            raise OptionError(
                f"the checkpoint knows inputs {unknown} that the query does not name.",
                hint="name them again, or give the query a new checkpointLocation.",
            )

    def _head(self, name: str) -> Position:
        with about_input(name):
            return self._inputs[name].head()
