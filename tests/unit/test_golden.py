"""Tables, offsets and plans that were written once are read, and gone on with, as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.golden.case import DATA, Case
from tests.golden.cases import CASES

BYTES_MAX = 1_000_000


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.sweep(3)
def test_what_was_written_once_is_read_and_gone_on_with(tmp_path: Path, case: Case) -> None:
    expected = case.expected
    seen = case.seen(case.copied(tmp_path), expected["kept"])
    is_same_arrow = expected["arrow"] == pa.__version__
    for part in ("before", "behind"):
        assert_same(expected[part], seen[part], part, has_bytes=is_same_arrow or part == "before")


def assert_same(expected: Any, seen: Any, place: str, *, has_bytes: bool) -> None:
    """Compare all that is seen, and name the place that differs.

    Parameters
    ----------
    has_bytes : bool
        Whether files have the very same bytes: another Arrow may write others.
    """
    if isinstance(expected, dict) and isinstance(seen, dict):
        assert expected.keys() == seen.keys(), place
        for name in expected:
            if has_bytes or name not in ("bytes", "body_bytes", "tail_crc", "log"):
                assert_same(expected[name], seen[name], f"{place}.{name}", has_bytes=has_bytes)
    elif isinstance(expected, list) and isinstance(seen, list):
        assert len(expected) == len(seen), place
        for i, each in enumerate(expected):
            assert_same(each, seen[i], f"{place}[{i}]", has_bytes=has_bytes)
    else:
        assert seen == expected, place


def test_the_data_are_small() -> None:
    files = [path for path in DATA.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < BYTES_MAX
    assert {path.name for path in DATA.iterdir()} == {case.name for case in CASES}
