"""All inputs of a stream by name (`Inputs`), their heads, and the agreement of their columns."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, cast

import pyarrow as pa

from spark_upsert.core.arrow_types import widens
from spark_upsert.core.durations import Fields
from spark_upsert.core.names import find_columns, has_column
from spark_upsert.core.schema import CHANGELOG_FIELDS
from spark_upsert.core.threads import map_in_order
from spark_upsert.errors import DataLossError, OptionError, SchemaError, about, setting
from spark_upsert.options.inputs import UNNAMED, listed_twice
from spark_upsert.streams.inputs.protocol import Input, Pollable, PollResult
from spark_upsert.streams.offsets.offset import Position

_LOGGER = logging.getLogger(__name__)


_CHANGE_COLUMNS = frozenset(field.name for field in CHANGELOG_FIELDS)


@dataclass(frozen=True, slots=True)
class Described:
    """An input's columns and identity."""

    columns: pa.Schema
    """The columns read from the input."""
    identity: str
    """An id equal for the same data under any name."""


def common_schema(inputs: Mapping[str, Described]) -> pa.Schema:
    """Return the columns required in all inputs; nullable if nullable in any input."""
    require_distinct_tables({name: input_.identity for name, input_ in inputs.items()})
    first, *others = inputs
    expected = inputs[first].columns
    for name in others:
        _require_same(first, expected, name, inputs[name].columns)
    return pa.schema([_loosest_field(inputs, field) for field in expected])


def union_schema(inputs: Mapping[str, Described], names: Sequence[str] = ()) -> pa.Schema:
    """Return the union schema for inputs with missing columns and narrower types."""
    require_distinct_tables({name: merged_input.identity for name, merged_input in inputs.items()})
    merged_names = _merged_names(inputs, names)
    _require_distinct(merged_names, inputs)
    fields: dict[str, pa.Field] = {}
    seen_in: dict[str, str] = {}
    for name, input_ in inputs.items():
        for field in input_.columns:
            if field.name not in merged_names:
                continue
            first_field = fields.setdefault(field.name, field)
            first = seen_in.setdefault(field.name, name)
            if widens(first_field.type, field.type):
                fields[field.name] = first_field.with_type(field.type)
            elif not widens(field.type, first_field.type):
                raise SchemaError(
                    f"the column '{field.name}' is {field.type} in the input '{name}', and "
                    f"{first_field.type} in '{first}': neither holds all values of the other.",
                    hint=f"leave it out by {setting('columns')}, or give one of them another name.",
                    input=name,
                    column=field.name,
                )
    return pa.schema([_loosest_field(inputs, fields[name]) for name in merged_names])


def _merged_names(inputs: Mapping[str, Described], names: Sequence[str]) -> list[str]:
    """Return all inputs' column names, or the chosen ones."""
    all_names = dict.fromkeys(name for input_ in inputs.values() for name in input_.columns.names)
    column_names = [name for name in all_names if name not in _CHANGE_COLUMNS]
    of_changes = [name for name in all_names if name in _CHANGE_COLUMNS]
    if names:
        chosen = (name for name in names if name not in of_changes)
        column_names = list(find_columns(chosen, column_names, role="column"))
    return [*column_names, *of_changes]


def _require_distinct(names: Sequence[str], inputs: Mapping[str, Described]) -> None:
    """Refuse columns differing in case only: Spark cannot distinguish them."""
    folded: dict[str, str] = {}
    for name in names:
        spelling = folded.setdefault(name.lower(), name)
        if spelling != name:
            first, second = (
                next(key for key, input_ in inputs.items() if has_column(input_.columns, column))
                for column in (spelling, name)
            )
            raise SchemaError(
                f"the column '{spelling}' of the input '{first}' and '{name}' of '{second}' "
                "differ in case alone: they are two columns that Spark does not tell apart.",
                hint=f"leave one out by {setting('columns')}, or give it another name in its "
                "table.",
                input=second,
                column=name,
            )


def require_distinct_tables(identities: Mapping[str, str]) -> None:
    """Raise `OptionError` if two inputs are the same."""
    name_by_identity: dict[str, str] = {}
    for name, identity in identities.items():
        first_name = name_by_identity.setdefault(identity, name)
        if first_name != name:
            raise listed_twice(first_name, name, "under two names")


def _require_same(first: str, expected: pa.Schema, name: str, found: pa.Schema) -> None:
    for field in expected:
        if not has_column(found, field.name):
            raise _disagreement(
                f"the input '{name}' lacks the column '{field.name}', which '{first}' has.",
                name,
                field.name,
            )
        type_ = found.field(field.name).type
        if type_ != field.type:
            raise _disagreement(
                f"the column '{field.name}' is {type_} in the input '{name}', and {field.type} in "
                f"'{first}'.",
                name,
                field.name,
            )
    for field in found:
        if not has_column(expected, field.name):
            raise _disagreement(
                f"the input '{name}' has a column '{field.name}', which '{first}' lacks.",
                name,
                field.name,
            )
    if found.names != expected.names:
        raise _disagreement(
            f"the columns of the input '{name}' are in another order ({', '.join(found.names)}) "
            f"than those of '{first}' ({', '.join(expected.names)}).",
            name,
            next(
                one
                for one, expected_name in zip(found.names, expected.names, strict=True)
                if one != expected_name
            ),
        )


def _disagreement(message: str, name: str, column: str) -> SchemaError:
    return SchemaError(
        message,
        hint=f"give {setting('mergeSchema', 'true')} for nulls where an input lacks a column, and "
        f"for the wider type; or choose what all have alike by {setting('columns')}.",
        input=name,
        column=column,
    )


def _loosest_field(inputs: Mapping[str, Described], field: pa.Field) -> pa.Field:
    may_be_null = any(
        not has_column(input_.columns, field.name) or input_.columns.field(field.name).nullable
        for input_ in inputs.values()
    )
    return field.with_nullable(may_be_null).remove_metadata()


OF_ONE_TABLE = "the checkpoint is that of a query over one table, which 'path' gave"

Heads = Mapping[str, Position]
"""Positions by input name: at the inputs' ends, or at a stream's current position."""


@dataclass(frozen=True, slots=True, eq=False)
class SeenHeads:
    """All inputs' heads, as last seen."""

    heads: Heads
    before: Heads | None = None
    """Heads seen before these; None if the changes since then are unknown."""
    moved: frozenset[str] = frozenset()
    """Inputs added, removed or with another head since ``before``."""
    has_same_names: bool = False
    """Whether ``before`` has the same inputs."""


class Inputs(Protocol):
    """A stream's inputs by the names in its checkpoint."""

    def read_heads(self) -> Heads:
        """Return the head position for each existing input."""
        ...

    def as_pollable(self) -> PolledInputs | None:
        """Return the inputs for polling; None if one cannot be polled."""
        ...

    def update_inputs(self, standing: Heads, heads: Heads) -> None:
        """Process the stream's positions and the new heads, before any other call on the inputs."""
        ...

    def __getitem__(self, name: str, /) -> Input:
        """Return the input for a name in heads, an offset or a split."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownInputs:
    """The existing inputs' names."""

    names: Collection[str]
    requests: int
    """Storage requests made."""


class PolledInputs(Protocol):
    """Inputs polled one by one, by background threads."""

    @property
    def is_dynamic(self) -> bool:
        """Whether inputs may come and go while the query runs."""
        ...

    def list_names(self) -> KnownInputs:
        """List the inputs without polling them."""
        ...

    def poll(self, name: str) -> PollResult:
        """Poll one input (`Pollable.poll`)."""
        ...


class NamedInputs:
    """Inputs named in the options (`Inputs`).

    Parameters
    ----------
    inputs : mapping of str to Input
    threads : int, optional
        Concurrent head requests.
    may_lack : bool, optional
        Whether an offset may contain inputs no longer named in the options; their unread data is
        skipped.
    """

    def __init__(
        self, inputs: Mapping[str, Input], *, threads: int = 1, may_lack: bool = False
    ) -> None:
        self._inputs = inputs
        self._threads = threads
        self._may_lack = may_lack
        self._are_apart = False

    def read_heads(self) -> Heads:
        """Return each input's head (`Inputs.read_heads`)."""
        answers = map_in_order(self._head, self._inputs, min(self._threads, len(self._inputs)))
        heads = dict(zip(self._inputs, answers, strict=True))
        if len(heads) > 1 and not self._are_apart:
            require_distinct_tables(
                {name: input_.identity() for name, input_ in self._inputs.items()}
            )
            self._are_apart = True
        return heads

    is_dynamic = False

    def as_pollable(self) -> NamedInputs | None:
        """Return self if all inputs can be polled (`Inputs.as_pollable`)."""
        return (
            self if all(isinstance(input_, Pollable) for input_ in self._inputs.values()) else None
        )

    def list_names(self) -> KnownInputs:
        """Return the fixed names (`PolledInputs.list_names`)."""
        return KnownInputs(names=self._inputs, requests=0)

    def poll(self, name: str) -> PollResult:
        """Poll one input (`PolledInputs.poll`)."""
        # Checked in `as_pollable`; isinstance on a protocol takes longer than a poll.
        input_ = cast(Pollable, self._inputs[name])
        with about("input", name):
            return input_.poll()

    def update_inputs(self, standing: Heads, heads: Heads) -> None:
        """Raise `OptionError` if a stream has an input without a name in the options
        (`Inputs.update_inputs`).
        """
        self._require(standing)

    def __getitem__(self, name: str) -> Input:
        if name not in self._inputs:
            self._require({name: None})
            return RemovedInput(name)
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


class RemovedInput(Input):
    """An input removed from the options while a planned batch still contains it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def splits(self, start: Position | None, end: Position) -> list[Any]:
        """Return no tasks and log a warning (`Input.splits`)."""
        _LOGGER.warning("an input was removed before it was read: %s", Fields(input=self._name))
        return []

    def steps(self, start: Position | None, end: Position) -> NoReturn:
        """Raise `DataLossError`: an exact order has counted the rows (`SteppedInput.steps`)."""
        raise DataLossError(
            "it was removed, but the batch that was under way has rows of it, and an exact order "
            "has counted them.",
            hint="name it again until that batch is done, and remove it then.",
        )

    def commit(self, position: Position) -> None:
        """Do nothing: no lease is held (`Input.commit`)."""

    def identity(self) -> NoReturn:
        raise AssertionError(f"nobody looks at '{self._name}'")

    def head(self) -> NoReturn:
        raise AssertionError(f"nobody looks at '{self._name}'")

    def backlog(self, position: Position | None, head: Position | None = None) -> NoReturn:
        raise AssertionError(f"nobody looks at '{self._name}'")

    def split_bytes(self, split: Any) -> int:
        """Return 0 (`Input.split_bytes`)."""
        return 0

    def read(self, split: Any) -> Iterator[pa.RecordBatch]:
        """Yield no rows (`Input.read`)."""
        return iter(())
