"""Histories: what writers did to a table, epoch by epoch, and what a model says about it.

A history is small on purpose: few keys, few values, few order keys, so that they meet.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st

from spark_upsert.core import key_hash
from spark_upsert.core.schema import Scope
from spark_upsert.table.compaction import worker
from spark_upsert.table.log.manifest import Commit
from spark_upsert.table.state import snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write import write_set
from spark_upsert.table.write.stage import Stash
from tests.support.model import Change, Command, Model, Tally
from tests.support.stores import MemoryStore
from tests.support.tables import (
    apply_epoch,
    hashes_of_few_values,
    keys_that_begin_alike_lie_together,
    make_table,
    schema_of,
)

Batch = Sequence[Command]
Task = Sequence[Batch]

KEYS = st.integers(0, 3)
COMMANDS = st.builds(
    Command, key=KEYS, value=st.none() | st.integers(0, 2), order=st.integers(0, 6)
)
BATCHES = st.lists(COMMANDS, max_size=4)
TASKS = st.lists(BATCHES, max_size=2)
HASH_COUNTS = st.sampled_from([None, 1, 2, 3])
"""How many values the key hash takes; None is the real hash."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What must not matter: how hashes collide, and into how small pieces work is cut."""

    hash_values: int | None
    """How many values the key hash takes; None is the real hash."""
    are_pieces_tiny: bool
    """Whether reads, seals, merges and the stash take a few rows at a time."""
    has_prefix: bool = False
    """Whether keys that begin alike lie together (`schema_of`)."""


CONDITIONS = st.builds(
    Conditions,
    hash_values=HASH_COUNTS,
    are_pieces_tiny=st.booleans(),
    has_prefix=st.booleans(),
)

_TINY: tuple[tuple[Any, str, int], ...] = (
    (key_hash, "_BLOCK_ROWS", 2),
    (snapshot, "CHUNK_ROWS", 2),
    (write_set, "SEAL_ROWS", 1),
    (worker, "FILE_BYTES", 2_000),
)


@contextmanager
def under(conditions: Conditions) -> Iterator[None]:
    """Let the conditions hold for a while."""
    with ExitStack() as stack:
        stack.enter_context(hashes_of_few_values(conditions.hash_values))
        stack.enter_context(keys_that_begin_alike_lie_together(conditions.has_prefix))
        if conditions.are_pieces_tiny:
            stack.enter_context(tiny_pieces())
        yield


@contextmanager
def tiny_pieces() -> Iterator[None]:
    """Let reads, seals, merges and the stash take a few rows at a time."""
    with ExitStack() as stack:
        for module, name, size in _TINY:
            stack.enter_context(patch.object(module, name, size))
        sizes = {"compact_bytes": 100, "spill_bytes": 300}
        stack.enter_context(patch.object(Stash.__init__, "__kwdefaults__", sizes))
        yield


@dataclass(frozen=True, slots=True)
class WrittenEpoch:
    """One epoch."""

    tasks: Sequence[Task]
    overwrite: bool = False

    @property
    def commands(self) -> list[Command]:
        """All commands in the order of (task, position)."""
        return [
            replace(command, task=index)
            for index, task in enumerate(self.tasks)
            for batch in task
            for command in batch
        ]


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """A merge of all runs; changes no answer."""


Step = WrittenEpoch | CompactionResult

EPOCHS = st.builds(
    WrittenEpoch,
    tasks=st.lists(TASKS, max_size=3),
    overwrite=st.sampled_from([False] * 5 + [True]),
)
HISTORIES = st.lists(EPOCHS | st.builds(CompactionResult), max_size=6)


@dataclass(slots=True)
class Played:
    """A table after a history, and what the model says about each version."""

    table: Table
    model: Model
    rows: list[dict[Any, Any]] = field(default_factory=lambda: [{}])
    """The snapshot at each version."""
    entries: list[dict[Any, Command]] = field(default_factory=lambda: [{}])
    """The command that counts for each key at each version, deletes included."""
    changes: list[Change] = field(default_factory=list)
    """All changes, unchanged pairs included."""
    tallies: dict[int, Tally] = field(default_factory=dict)
    commits: dict[int, Commit] = field(default_factory=dict)

    @property
    def upper(self) -> int:
        """The first version that is not there."""
        return len(self.rows)


def play(scope: Scope, history: Sequence[Step]) -> Played:
    """Do to a fresh table, and to a model, what a history says."""
    played = Played(make_table(MemoryStore(), schema_of(scope)), Model(scope))
    for step in history:
        if isinstance(step, CompactionResult):
            before = played.table.log.head().version
            played.table.compact(full=True)
            merges = played.table.log.head().version - before
            played.model.version += merges
            played.rows += [copy.copy(played.rows[-1]) for _ in range(merges)]
            played.entries += [played.entries[-1] for _ in range(merges)]
            continue
        commit = apply_epoch(played.table, step.tasks, overwrite=step.overwrite)
        changes, tally = played.model.append(step.commands, overwrite=step.overwrite)
        assert commit.version == played.model.version
        played.rows.append(played.model.rows())
        played.entries.append(dict(played.model.entries))
        played.changes += changes
        played.tallies[commit.version] = tally
        played.commits[commit.version] = commit
    return played
