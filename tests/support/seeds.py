"""Seeds of laws, and ways to play a case: the first for `make check` and `make test`, all for
`make test-all`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def seeds(count: int, *, quick: int | Collection[int] = 1) -> pytest.MarkDecorator:
    """Give a test a parameter ``seed`` from 0 on; those that are not ``quick`` are slow.

    Parameters
    ----------
    quick : int or collection of int
        The first so many seeds, or which.
    """
    quick = range(quick) if isinstance(quick, int) else quick
    return pytest.mark.parametrize(
        "seed",
        [
            pytest.param(seed, id=f"seed {seed}", marks=() if seed in quick else pytest.mark.slow)
            for seed in range(count)
        ],
    )


def rest_slow(values: Iterable[Any], *, quick: int = 1) -> list[Any]:
    """Return the values of a parameter; those behind the first ``quick`` ones are slow."""
    return [
        pytest.param(value, marks=pytest.mark.slow if index >= quick else ())
        for index, value in enumerate(values)
    ]
