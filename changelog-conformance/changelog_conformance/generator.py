"""Histories that are drawn from a seed: the same seed gives the same history, everywhere."""

from __future__ import annotations

from random import Random
from typing import Any

from changelog_conformance.histories import GONE, Batch, History, Restart, Row, Step

KEYS = 3
"""Few, so that commands meet."""

COLUMNS = {"id": "int64", "value": "string", "seq": "int64"}


def draw(seed: int, *, batches: int = 6, rows_max: int = 4) -> History:
    """Return a history of that seed: each command has an order of its own, so that none are ties."""
    random = Random(seed)
    orders = list(range(1, batches * rows_max + 1))
    # Shuffled within a window: late rows are common, and none is late by the whole history.
    orders.sort(key=lambda order: order + random.uniform(0, 3 * rows_max))
    steps: list[Step] = []
    told: list[Batch] = []
    for _ in range(batches):
        if told and random.random() < 0.2:
            again = random.randrange(len(told))
            steps += [Restart()] if random.random() < 0.5 else []
            steps.append(Batch(rows=told[again].rows, again=again))
            continue
        rows = [_command(random, orders.pop(0)) for _ in range(random.randint(1, rows_max))]
        told.append(Batch(rows=tuple(rows)))
        steps.append(told[-1])
    return History(
        name=f"drawn_{seed}",
        says=f"What seed {seed} draws: late rows, deletes and batches that come again.",
        shows="drawn",
        columns=COLUMNS,
        keys=("id",),
        order="seq",
        steps=tuple(steps),
    )


def _command(random: Random, order: int) -> Row:
    row: dict[str, Any] = {"id": random.randint(1, KEYS)}
    if random.random() < 0.4:
        return {**row, "seq": order, GONE: True}
    value = random.choice(["a", "b", None])
    return {**row, "value": value, "seq": order} if value else {**row, "seq": order}
