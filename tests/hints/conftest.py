"""The hint of a mistake, for the scenes of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hints.told import Told


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    """Yield an empty hint, and require that some advice was followed."""
    scene = Told(tmp_path)
    yield scene
    assert scene.followed, "no advice was followed"
