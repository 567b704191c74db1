"""Tables, offsets and plans that were written once are read, and gone on with, as they were."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.golden.case import DATA, RELEASES, Case
from tests.golden.cases import CASES
from tests.golden.make import make_release

BYTES_MAX = 1_000_000
RELEASE_BYTES_MAX = 300_000


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.sweep(3)
def test_what_was_written_once_is_read_and_gone_on_with(tmp_path: Path, case: Case) -> None:
    expected = case.expected
    seen = case.seen(case.copied(tmp_path), expected["kept"])
    is_same_arrow = expected["arrow"] == pa.__version__
    for part in ("before", "behind"):
        assert_same(expected[part], seen[part], part, has_bytes=is_same_arrow or part == "before")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("archive", sorted(RELEASES.glob("*.zip")), ids=lambda path: path.stem)
@pytest.mark.sweep(3)
def test_what_a_release_wrote_is_read_and_gone_on_with(
    tmp_path: Path, archive: Path, case: Case
) -> None:
    shutil.unpack_archive(archive, tmp_path / "release")
    released = replace(case, home=tmp_path / "release")
    expected = released.expected
    seen = released.seen(released.copied(tmp_path / "copy"), expected["kept"])
    for part in ("before", "behind"):
        assert_same(expected[part], seen[part], part, has_bytes=part == "before", may_gain=True)


def test_a_release_is_made_once(tmp_path: Path) -> None:
    (tmp_path / "9.9.9.zip").touch()
    with pytest.raises(FileExistsError, match=r"is what release 9\.9\.9 wrote"):
        make_release(tmp_path, "9.9.9")


def test_what_differs_is_named_and_only_a_release_may_lack_what_came_later() -> None:
    assert_same({"a": [1]}, {"a": [1], "b": 2}, "at", has_bytes=True, may_gain=True)
    with pytest.raises(AssertionError, match=r"at\.a\[0\]"):
        assert_same({"a": [1]}, {"a": [2], "b": 2}, "at", has_bytes=True, may_gain=True)
    with pytest.raises(AssertionError, match="at"):
        assert_same({"a": [1]}, {"a": [1], "b": 2}, "at", has_bytes=True)


def assert_same(
    expected: Any, seen: Any, place: str, *, has_bytes: bool, may_gain: bool = False
) -> None:
    """Compare all that is seen, and name the place that differs.

    Parameters
    ----------
    has_bytes : bool
        Whether files have the very same bytes: another Arrow may write others.
    may_gain : bool
        Whether fields may be seen that were not known when the data were written.
    """
    how = {"has_bytes": has_bytes, "may_gain": may_gain}
    if isinstance(expected, dict) and isinstance(seen, dict):
        lost, gained = expected.keys() - seen.keys(), seen.keys() - expected.keys()
        assert not lost, f"{place}: {lost}"
        assert may_gain or not gained, f"{place}: {gained}"
        for name in expected:
            if has_bytes or name not in ("bytes", "body_bytes", "tail_crc", "log"):
                assert_same(expected[name], seen[name], f"{place}.{name}", **how)
    elif isinstance(expected, list) and isinstance(seen, list):
        assert len(expected) == len(seen), place
        for i, each in enumerate(expected):
            assert_same(each, seen[i], f"{place}[{i}]", **how)
    else:
        assert seen == expected, place


def test_the_data_are_small() -> None:
    files = [path for path in DATA.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < BYTES_MAX
    assert all(path.stat().st_size < RELEASE_BYTES_MAX for path in RELEASES.iterdir())
    assert {path.name for path in DATA.iterdir()} == {case.name for case in CASES}
