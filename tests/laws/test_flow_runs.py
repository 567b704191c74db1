"""Whatever shares an element, a graph gives the rows of its plan of width 1."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.flow_recipes import check_rows_of_fusions, drawn


@given(dice=st.randoms(use_true_random=False), count=st.integers(0, 20))
@settings(max_examples=max(1, settings().max_examples // 4), deadline=None)
def test_every_fusion_gives_the_rows_of_the_model(dice: Random, count: int) -> None:
    check_rows_of_fusions(drawn(dice), count, dice)
