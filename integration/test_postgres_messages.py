"""Each case of the decoder on a real server: what was recorded is what a server sends.

Own processes: the server alone.
"""

from __future__ import annotations

import pytest

from integration.postgres_recording import record
from integration.servers.postgres import Postgres
from tests.support.pgoutput import CASES, Recorded, check, read


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_server_sends_what_is_recorded(postgres: Postgres, case: Recorded) -> None:
    check(case, read(record(postgres, case)))
