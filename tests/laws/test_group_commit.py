"""Appends that share a version do what the same appends do one after the other."""

from __future__ import annotations

import pytest

from tests.support.groups import check_round

STRETCH = 40


@pytest.mark.parametrize("first", range(0, 240, STRETCH), ids="seeds from {}".format)
def test_a_round_is_as_its_appends_one_after_the_other(first: int) -> None:
    saved = sum(check_round(seed) for seed in range(first, first + STRETCH))
    assert saved > 10, "hardly any append shared a version: the law says nothing"
