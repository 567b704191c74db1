"""Five typical operations enter few modules, so that a reader can follow each (`tools.trips`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.trips import TRIPS, Trip


@pytest.mark.parametrize("trip", TRIPS, ids=lambda trip: trip.name)
def test_an_operation_enters_few_modules(trip: Trip, tmp_path: Path) -> None:
    modules = trip.measure(tmp_path)
    assert len(modules) <= trip.most, "\n".join(sorted(modules))
