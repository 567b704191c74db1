"""Seeds of laws: the first ones for `make check`, all of them for `make test`."""

from __future__ import annotations

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
