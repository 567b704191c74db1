"""The layouts of keys that `tests.promises.layouts` asks for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.tables import keys_that_begin_alike_lie_together


@pytest.fixture
def layout_in_turn(seed: int) -> Iterator[None]:
    """Give a prefix to the tables of every other seed."""
    with keys_that_begin_alike_lie_together(seed % 2 == 1):
        yield


@pytest.fixture(
    params=[False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["whole keys", "keys that begin alike"],
)
def layout(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test on tables without a prefix, and on tables with one."""
    with keys_that_begin_alike_lie_together(request.param):
        yield
