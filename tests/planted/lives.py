"""Bugs between two lives of a query, whose options are others."""

from __future__ import annotations

from unittest.mock import patch

from spark_upsert.envelopes import write_plan as plan
from tests.planted.bug import Patch, bug
from tests.promises import test_life_promises as lives


@bug(
    "what the first write has fixed is another thing in the next life",
    lives.test_p4_what_the_first_write_fixed_is_refused_in_later_lives,
)
def _() -> Patch:
    return patch.object(plan, "_check_identity", lambda *_: None)
