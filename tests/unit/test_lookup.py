"""Where two ascending sequences meet."""

from __future__ import annotations

import numpy as np
import pytest

from spark_upsert.table.entries.lookup import _intersect


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("space", [1, 3, 30, 3000], ids=lambda space: f"of {space} hashes")
def test_an_intersection_is_what_searching_each_probe_finds(seed: int, space: int) -> None:
    dice = np.random.default_rng(seed)
    probes, own = (
        np.sort(dice.integers(0, space, dice.integers(1, 50)).astype(np.uint64)) for _ in range(2)
    )
    expected = [
        (index, own.tolist().index(probe))
        for index, probe in enumerate(probes.tolist())
        if probe in own.tolist()
    ]
    hit, places = _intersect(probes, own)
    assert list(zip(hit.tolist(), places.tolist(), strict=True)) == expected
