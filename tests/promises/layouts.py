"""How keys lie in the tables of a promise: by their whole hash, or those that begin alike together.

No promise depends on it. A test of seeds has both in turn, one of a single case is run on both.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.seeds import seeds

ON_BOTH_LAYOUTS = pytest.mark.usefixtures("layout")


def OF_SEEDS(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test on seeds, and with each other layout of the keys in turn."""
    return seeds(8)(pytest.mark.usefixtures("layout_in_turn")(test))
