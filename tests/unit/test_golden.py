"""Tables, offsets and plans that were written once are read, and gone on with, as they were."""

from __future__ import annotations

import json
import shutil
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.golden.case import DATA, RELEASES, Case
from tests.golden.cases import CASES
from tests.golden.interface import interface, lost
from tests.golden.make import make_release

BYTES_MAX = 1_000_000
RELEASE_BYTES_MAX = 300_000

NOTHING: frozenset[str] = frozenset()
BYTES = frozenset(("bytes", "body_bytes", "tail_crc", "log"))
"""What another Arrow may write otherwise."""
LAYOUT = BYTES | {"manifest"}
"""What later code may write otherwise: how rows are laid out in files. They are the same rows."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.sweep(3)
def test_what_was_written_once_is_read_and_gone_on_with(tmp_path: Path, case: Case) -> None:
    expected = case.expected
    seen = case.seen(case.copied(tmp_path), expected["kept"])
    assert_same(expected["before"], seen["before"], "before")
    left_out = NOTHING if expected["arrow"] == pa.__version__ else BYTES
    assert_same(expected["behind"], seen["behind"], "behind", left_out=left_out)


@pytest.mark.parametrize(
    ("archive", "case"),
    [
        pytest.param(archive, case, id=f"{case.name} of {archive.stem}")
        for archive in sorted(RELEASES.glob("*.zip"))
        for case in CASES
        if f"{case.name}/before.zip" in zipfile.ZipFile(archive).namelist()
    ],
)
@pytest.mark.sweep(3)
def test_what_a_release_wrote_is_read_and_gone_on_with(
    tmp_path: Path, archive: Path, case: Case
) -> None:
    shutil.unpack_archive(archive, tmp_path / "release")
    released = replace(case, home=tmp_path / "release")
    expected = released.expected
    seen = released.seen(released.copied(tmp_path / "copy"), expected["kept"])
    assert_same(expected["before"], seen["before"], "before", may_gain=True)
    assert_same(expected["behind"], seen["behind"], "behind", left_out=LAYOUT, may_gain=True)


@pytest.mark.parametrize("names", sorted(RELEASES.glob("*.json")), ids=lambda path: path.stem)
def test_the_names_of_a_release_and_its_defaults_are_kept(names: Path) -> None:
    assert list(lost(json.loads(names.read_text(encoding="utf-8")), interface())) == []


def test_a_lost_name_and_a_changed_default_are_told() -> None:
    before = {"options": {"ties": "last", "keys": None}, "errors": ["A", "B"]}
    now = {"options": {"ties": "first", "more": None}, "errors": ["B", "C"]}
    assert list(lost(before, now)) == [
        ".options.ties was 'last' and is 'first'",
        ".options.keys is gone",
        ".errors.A is gone",
    ]


def test_a_release_is_made_once(tmp_path: Path) -> None:
    (tmp_path / "9.9.9.zip").touch()
    with pytest.raises(FileExistsError, match=r"is what release 9\.9\.9 wrote"):
        make_release(tmp_path, "9.9.9")


def assert_same(
    expected: Any,
    seen: Any,
    place: str,
    *,
    left_out: frozenset[str] = NOTHING,
    may_gain: bool = False,
) -> None:
    """Compare all fields but some, which later code may gain, and name the place that differs."""
    inner = partial(assert_same, left_out=left_out, may_gain=may_gain)
    if isinstance(expected, dict) and isinstance(seen, dict):
        gained = frozenset[str]() if may_gain else seen.keys() - expected.keys()
        assert (expected.keys() - seen.keys(), gained) == (set(), set()), place
        for name in expected.keys() - left_out:
            inner(expected[name], seen[name], f"{place}.{name}")
    elif isinstance(expected, list) and isinstance(seen, list):
        assert len(expected) == len(seen), place
        for i, each in enumerate(expected):
            inner(each, seen[i], f"{place}[{i}]")
    else:
        assert seen == expected, place


def test_the_data_are_small() -> None:
    files = [path for path in DATA.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < BYTES_MAX
    assert all(path.stat().st_size < RELEASE_BYTES_MAX for path in RELEASES.iterdir())
    assert {path.name for path in DATA.iterdir()} == {case.name for case in CASES}
