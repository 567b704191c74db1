"""How many cases a fuzz draws: few in the quick form, as many as one likes in the long one."""

from __future__ import annotations

import os

FUZZ_TIMES = int(os.environ.get("FUZZ_TIMES", "1"))
"""How many times as many cases are drawn as in the quick form."""
