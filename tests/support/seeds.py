"""Seeds of laws, and ways to play a case: the first for `make check`, all for `make test`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def seeds(count: int, *, quick: int = 1) -> pytest.MarkDecorator:
    """Give a test a parameter ``seed`` from 0 on; those from ``quick`` on are slow."""
    return pytest.mark.parametrize(
        "seed",
        [
            pytest.param(seed, id=f"seed {seed}", marks=pytest.mark.slow if seed >= quick else ())
            for seed in range(count)
        ],
    )


def rest_slow(values: Iterable[Any], *, quick: int = 1) -> list[Any]:
    """Return the values of a parameter; those behind the first ``quick`` ones are slow."""
    return [
        pytest.param(value, marks=pytest.mark.slow if index >= quick else ())
        for index, value in enumerate(values)
    ]
