"""The hint of a mistake, for the scenes of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hints.followed_hint import FollowedHint


@pytest.fixture
def hint(tmp_path: Path) -> Iterator[FollowedHint]:
    """Yield an empty hint, and require that some advice was followed."""
    scene = FollowedHint(tmp_path)
    yield scene
    assert scene.followed, "no advice was followed"
