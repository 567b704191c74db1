"""A mirror is behind its table or equal to it, never beside, at each of its versions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import pytest

from spark_upsert.mirror import dead, plan, publish, twins
from tests.support.delta import DeltaTable
from tests.support.mirrored import KINDS, MirroredTable
from tests.support.tables import hashes_of_few_values

SEEDS = pytest.mark.parametrize("seed", range(3))
LIVES = len(KINDS)
ACTS = 24


@contextmanager
def small_pieces(dice: random.Random) -> Iterator[None]:
    """Let a few rows be many: pieces, what is looked up by key, what stands in the log."""
    with ExitStack() as stack:
        for module, name, values in (
            (plan, "_SETTLED_FROM", [0, 0, 8]),
            (dead, "CHUNK_ROWS", [2, 1 << 17]),
            (twins, "CHUNK_ROWS", [3, 1 << 17]),
            (publish, "INLINE_BYTES_MAX", [0, 40, 200]),
        ):
            stack.enter_context(patch.object(module, name, dice.choice(values)))
        stack.enter_context(hashes_of_few_values(dice.choice([None, None, 3])))
        yield


@SEEDS
def test_p2_a_mirror_shows_the_rows_of_each_version_that_it_showed(seed: int) -> None:
    """Whatever happened to the table, and whatever way the mirror took."""
    for life in range(seed * LIVES, (seed + 1) * LIVES):
        with small_pieces(random.Random(life)):
            lived = MirroredTable(life)
            lived.live(ACTS)
            lived.look()


@SEEDS
def test_p1_a_mirror_shows_each_version_once(seed: int) -> None:
    """The versions that its commits show only grow, and so do their times."""
    for life in range(seed * LIVES, (seed + 1) * LIVES):
        lived = MirroredTable(life)
        lived.live(ACTS)
        found = DeltaTable(lived.target)
        app = f"upsertflow:{lived.table.log.head().table_id}"
        shown = [
            each["txn"]["version"]
            for actions in found.commits
            for each in actions
            if each.get("txn", {}).get("appId") == app
        ]
        assert len(shown) == found.version + 1
        assert shown == sorted(set(shown)), f"life {life}"
        assert lived.table.log.head().version >= shown[-1]
