"""Inputs below a root: `Discovery` lists matching folders, `FoundInputs` holds their tables.

A new table is read from its beginning. A removed one is an error, or a warning with
``failOnDataLoss=false``; if all disappear it is always an error (docs/adr/0029).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Protocol, cast

import pyarrow as pa

from spark_upsert.core.durations import Fields
from spark_upsert.core.threads import map_in_order
from spark_upsert.errors import (
    DataLossError,
    OptionError,
    OtherTableError,
    TableNotFoundError,
    UpsertFlowError,
    about,
    setting,
)
from spark_upsert.options.inputs import UNNAMED, Pattern, listed_twice
from spark_upsert.store import Store
from spark_upsert.streams.inputs.inputs import OF_ONE_TABLE, Heads, KnownInputs
from spark_upsert.streams.inputs.protocol import Backlog, Input, Pollable, PollResult, SteppedInput
from spark_upsert.streams.offsets.offset import Json, Position
from spark_upsert.streams.reads.ordered import StreamStep
from spark_upsert.streams.reads.packing import map_inputs
from spark_upsert.table.log.codec import commit_path

_LOGGER = logging.getLogger(__name__)


FOLDERS_MAX = 200_000
"""More folders than this on one level indicate a wrong pattern."""

_WILDCARD = re.compile(r"[*?\[]")
_HIDDEN = ("_", ".")


class Discovery:
    """Finds the tables below a root.

    Each pattern part matches one folder level. Names with a leading ``_`` or ``.`` match only parts
    with the same leading character.

    Parameters
    ----------
    root : Store
    pattern : Pattern
    threads : int, optional
        Concurrent storage requests.
    """

    def __init__(self, root: Store, pattern: Pattern, *, threads: int = 1) -> None:
        self._root = root
        self._pattern = pattern
        self._threads = threads
        self.listings = 0
        """Listings made by the last call to `folders`."""

    def __str__(self) -> str:
        return f"'{self._pattern}' below '{self._root.url}'"

    def folders(self) -> list[str]:
        """Return the matching folders, tables or not, as sorted paths relative to the root."""
        level, self.listings = [""], 0
        for part in self._pattern.parts:
            level = self._bounded(self._next(level, part))
        return sorted(level)

    def tables(self, folders: Iterable[str]) -> list[str]:
        """Return the folders containing a table; costs one request each."""
        candidates = list(folders)
        answers = map_in_order(self.is_table, candidates, min(self._threads, len(candidates)))
        return [folder for folder, is_table in zip(candidates, answers, strict=True) if is_table]

    def is_table(self, folder: str) -> bool:
        """Return whether a folder contains a table (its version 0)."""
        try:
            self._root.read(f"{folder}/{commit_path(0)}")
        except FileNotFoundError:
            return False
        return True

    def _next(self, folders: list[str], part: str) -> Iterator[str]:
        """Yield the folders one level below, matched by a pattern part."""
        if not _WILDCARD.search(part):
            yield from (_below(folder, part) for folder in folders)
            return
        self.listings += len(folders)
        names = map_in_order(
            lambda folder: list(self._root.folders(folder)),
            folders,
            min(self._threads, len(folders)),
        )
        for folder, names_below in zip(folders, names, strict=True):
            yield from (_below(folder, name) for name in names_below if _matches(name, part))

    def _bounded(self, folders: Iterable[str]) -> list[str]:
        bounded: list[str] = []
        for folder in folders:
            bounded.append(folder)
            if len(bounded) > FOLDERS_MAX:
                raise OptionError(
                    f"more than {FOLDERS_MAX} folders match {self}.",
                    hint="narrow 'inputsPattern', or read with several queries.",
                    option="inputsPattern",
                )
        return bounded


def matches(folder: str, pattern: Pattern) -> bool:
    """Return whether a path below a root matches a pattern."""
    names = folder.split("/")
    return len(names) == len(pattern.parts) and all(map(_matches, names, pattern.parts))


def _matches(name: str, part: str) -> bool:
    if name.startswith(_HIDDEN) and not part.startswith(name[0]):
        return False
    return fnmatchcase(name, part)


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


_GONE = 4
"""Maximum requests for detecting a removed table."""

_NAMED_MAX = 5
"""Maximum names in an error; the others are counted."""


class Make(Protocol):
    """A callable creating a table's input."""

    def __call__(self, name: str, *, joins: bool) -> Input:
        """Return the input; ``joins``: it was added while the stream ran."""
        ...


class FoundInputs:
    """The discovered tables, by their paths below the root (`Inputs`).

    Parameters
    ----------
    discovery : Discovery
    make : Make
    is_lenient : bool
        Whether tables may disappear.
    threads : int, optional
        Concurrent head requests.
    """

    def __init__(
        self, discovery: Discovery, make: Make, *, is_lenient: bool, threads: int = 1
    ) -> None:
        self._discovery = discovery
        self._make = make
        self._is_lenient = is_lenient
        self._threads = threads
        self._inputs: dict[str, Input] = {}
        self._joined: set[str] = set()
        self._identities: dict[str, str] = {}
        self._owners: dict[str, str] = {}
        """Input name by table identity."""

    def __getstate__(self) -> dict[str, Any]:
        # A task creates only the inputs it reads, without discovery.
        return {
            **self.__dict__,
            "_discovery": None,
            "_inputs": {},
            "_identities": {},
            "_owners": {},
        }

    def __getitem__(self, name: str, /) -> Input:
        """Return the input for a name in an offset or a split."""
        input_ = self._inputs.get(name)
        return self._add(name) if input_ is None else input_

    is_dynamic = True

    def read_heads(self) -> dict[str, Position]:
        """Discover tables and read each one's head (`Inputs.read_heads`)."""
        present = self.list_names().names
        answers = map_in_order(self._head, present, min(self._threads, len(present)))
        heads = {
            name: head for name, head in zip(present, answers, strict=True) if head is not None
        }
        for name in self._inputs.keys() - heads.keys():
            self._forget(name)
        for name in heads:
            self._require_apart(name, self._inputs[name])
        return heads

    def list_names(self) -> KnownInputs:
        """Discover tables and forget missing ones (`PolledInputs.list_names`)."""
        folders = self._discovery.folders()
        missing_folders = [folder for folder in folders if folder not in self._inputs]
        self._add_all(self._discovery.tables(missing_folders))
        for name in self._inputs.keys() - set(folders):
            self._forget(name)
        names = [folder for folder in folders if folder in self._inputs]
        return KnownInputs(names=names, requests=len(missing_folders) + self._discovery.listings)

    def as_pollable(self) -> FoundInputs:
        """Return self: all inputs are tables (`Inputs.as_pollable`)."""
        return self

    def poll(self, name: str) -> PollResult:
        """Poll an input's head, or detect the removal of its table (`PolledInputs.poll`)."""
        input_ = self._inputs.get(name)
        if input_ is None:
            return PollResult(head=None, requests=0)
        with about("input", name):
            try:
                polled = cast(Pollable, input_).poll()  # All are tables.
            except (OtherTableError, TableNotFoundError):
                if self._discovery.is_table(name):
                    raise
                self._forget(name)
                return PollResult(head=None, requests=_GONE)
            self._require_apart(name, input_)
            return polled

    def update_inputs(self, standing: Heads, heads: Heads) -> None:
        """Record new tables, and raise or warn about missing ones (`Inputs.update_inputs`)."""
        if standing.keys() == heads.keys():
            return  # At once, for there may be very many.
        if standing:
            fresh = heads.keys() - standing.keys() - self._joined
            self._joined |= fresh
            self._add_all(fresh)
        gone = sorted(standing.keys() - heads.keys())
        if gone and not (self._is_lenient and heads):
            raise self._missing_tables_error(gone)
        for name in gone:
            self._joined.discard(name)
            _LOGGER.warning("an input is gone, and read no more: %s", Fields(input=name))

    def _add_all(self, names: Iterable[str]) -> None:
        # To make one may read its columns.
        map_inputs({name: name for name in names}, self._add)

    def _add(self, name: str) -> Input:
        input_ = self._make(name, joins=name in self._joined)
        if self._is_lenient:
            input_ = Forgiving(input_, partial(self._is_there, name), name)
        self._inputs[name] = input_
        return input_

    def _is_there(self, name: str) -> bool:
        return self._discovery.is_table(name)

    def _head(self, name: str) -> Position | None:
        """Return an input's head; None if its table is gone."""
        with about("input", name):
            try:
                return self._inputs[name].head()
            except (OtherTableError, TableNotFoundError):
                if self._is_there(name):
                    raise
                return None

    def _forget(self, name: str) -> None:
        self._inputs.pop(name, None)
        identity = self._identities.pop(name, None)
        if identity is not None and self._owners.get(identity) == name:
            del self._owners[identity]

    def _require_apart(self, name: str, each: Input) -> None:
        """Raise if two inputs have the same table; called right after `Input.head`."""
        if name in self._identities:
            return
        identity = each.identity()
        owner = self._owners.setdefault(identity, name)
        if owner != name:
            one, second = sorted((owner, name))
            raise listed_twice(one, second, "under two names")
        self._identities[name] = identity

    def _missing_tables_error(self, names: Collection[str]) -> UpsertFlowError:
        if UNNAMED in names:
            return OptionError(
                f"{OF_ONE_TABLE}, and the query reads all that is found by {self._discovery}.",
                hint="give the query a new checkpointLocation, or leave 'inputsPattern' out.",
                option="inputsPattern",
            )
        named = ", ".join(f"'{name}'" for name in list(names)[:_NAMED_MAX])
        more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
        return DataLossError(
            f"the query has read the input{'s' * (len(names) > 1)} {named}{more}, but no such "
            f"table is found by {self._discovery} any more.",
            hint="put back what was moved or dropped by mistake, and mount what is not mounted. To "
            f"go on without it, for ever, give {setting('failOnDataLoss', 'false')} for as long as "
            "it takes (not if all tables are gone: then give the query a new checkpointLocation).",
            inputs=tuple(names),
        )


class Forgiving(Input):
    """An input whose table may be missing when a batch is replayed; its rows are then lost."""

    def __init__(self, wrapped: Input, is_there: Callable[[], bool], name: str) -> None:
        self._wrapped = wrapped
        self._is_there = is_there
        self._name = name

    def head(self) -> Position:
        """Return the position after all available data (`Input.head`)."""
        return self._wrapped.head()

    def poll(self) -> PollResult:
        """Poll the head (`Pollable.poll`)."""
        return cast(Pollable, self._wrapped).poll()

    def identity(self) -> str:
        """Return the wrapped input's identity (`Input.identity`)."""
        return self._wrapped.identity()

    def backlog(self, position: Position | None, head: Position | None = None) -> Backlog:
        """Return the unread data (`Input.backlog`)."""
        return self._wrapped.backlog(position, head)

    def splits(self, start: Position | None, end: Position) -> list[Any]:
        """Return a batch's tasks (`Input.splits`); none if the table is gone."""
        try:
            return self._wrapped.splits(start, end)
        except (OtherTableError, TableNotFoundError):
            if self._is_there():
                raise
            _LOGGER.warning("an input is gone before it was read: %s", Fields(input=self._name))
            return []

    def steps(self, start: Position | None, end: Position) -> Iterator[StreamStep]:
        """Yield the steps between two positions (`SteppedInput.steps`).

        A missing table is an error here: an exact order has counted its rows.
        """
        assert isinstance(self._wrapped, SteppedInput)
        return self._wrapped.steps(start, end)

    def row_options(self) -> Mapping[str, Json]:
        """Return the options affecting row counts per step (`Input.row_options`)."""
        return self._wrapped.row_options()

    def start_options(self) -> Mapping[str, Json]:
        """Return the options defining the starting position (`Input.start_options`)."""
        return self._wrapped.start_options()

    def split_bytes(self, split: Any) -> int:
        """Estimate the bytes read by a split (`Input.split_bytes`)."""
        return self._wrapped.split_bytes(split)

    def read(self, split: Any) -> Iterator[pa.RecordBatch]:
        """Yield a split's rows (`Input.read`)."""
        return self._wrapped.read(split)

    def commit(self, position: Position) -> None:
        """Release resources before a position (`Input.commit`)."""
        try:
            self._wrapped.commit(position)
        except (OtherTableError, TableNotFoundError):
            if self._is_there():
                raise
