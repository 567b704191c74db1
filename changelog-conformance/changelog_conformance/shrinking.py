"""The smallest history that still goes wrong, of one that was drawn: a person can read three rows.

Steps are left out first, many at once and then fewer, and then rows of batches likewise; a smaller
history is kept if a system still shows something wrong of it. All candidates of a round are asked
at once, because a system on Spark takes longer to start than to answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from changelog_conformance.histories import Batch, History, Step

AreWrong = Callable[[Sequence[History]], Sequence[bool]]
"""Says of each of some histories whether a system shows something wrong of it."""

ROUNDS_MAX = 32


def shrunk(history: History, are_wrong: AreWrong) -> History:
    """Return a history that is wrong, and is not if a step or a row more is left out.

    Parameters
    ----------
    history : History
        One that is wrong.
    are_wrong : callable
        Is asked for as many as there are in a round, at most `ROUNDS_MAX` times.
    """
    for _ in range(ROUNDS_MAX):
        smaller = list(_smaller(history))
        wrong = [
            each for each, is_wrong in zip(smaller, are_wrong(smaller), strict=True) if is_wrong
        ]
        if not wrong:
            break
        history = min(wrong, key=_size)
    return history


def _size(history: History) -> tuple[int, int]:
    return history.row_count, len(history.steps)


def _smaller(history: History) -> Iterator[History]:
    """Yield histories with fewer steps, or with fewer rows in a batch."""
    for begin, end in _spans(len(history.steps)):
        kept = [number for number in range(len(history.steps)) if not begin <= number < end]
        if any(isinstance(history.steps[number], Batch) for number in kept):
            yield replace(history, steps=_chosen(history.steps, kept))
    for number, step in enumerate(history.steps):
        if isinstance(step, Batch) and step.again is None:
            for begin, end in _spans(len(step.rows)):
                rows = (*step.rows[:begin], *step.rows[end:])
                if rows:
                    yield replace(history, steps=_with_rows(history.steps, number, rows))


def _spans(count: int) -> Iterator[tuple[int, int]]:
    """Yield the halves, quarters, ... of a sequence, and at last each of its items."""
    length = count // 2
    while length:
        yield from ((begin, min(begin + length, count)) for begin in range(0, count, length))
        length //= 2


def _chosen(steps: Sequence[Step], kept: Sequence[int]) -> tuple[Step, ...]:
    """Return some steps; a batch that repeats one that is left out is told for the first time."""
    batches = [number for number, step in enumerate(steps) if _is_first(step)]
    found: list[Step] = []
    told: dict[int, int] = {}
    for number in kept:
        step = steps[number]
        if isinstance(step, Batch):
            first = batches.index(number) if step.again is None else step.again
            step = replace(step, again=told.get(first) if step.again is not None else None)
            if step.again is None:
                told[first] = len(told)
        found.append(step)
    return tuple(found)


def _with_rows(
    steps: Sequence[Step], number: int, rows: tuple[dict[str, object], ...]
) -> tuple[Step, ...]:
    """Return steps in which a batch has other rows, and so has each that repeats it."""
    batch = [place for place, step in enumerate(steps) if _is_first(step)].index(number)
    return tuple(
        replace(step, rows=rows)
        if isinstance(step, Batch) and (place == number or step.again == batch)
        else step
        for place, step in enumerate(steps)
    )


def _is_first(step: Step) -> bool:
    return isinstance(step, Batch) and step.again is None
