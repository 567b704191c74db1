"""Make golden data anew: all cases, or those that are named (``python -m tests.golden.make``)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.golden.cases import CASES


def main(names: list[str]) -> None:
    """Write the data of cases."""
    for case in CASES:
        if not names or case.name in names:
            with tempfile.TemporaryDirectory() as scratch:
                case.make(Path(scratch) / "case")


if __name__ == "__main__":
    main(sys.argv[1:])
