"""A release is built twice to the same bytes, with what it says and what later ones must read."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tools import release
from tools.release import ReleaseError

CHANGELOG = "# Changelog\n\n## 0.2.0 (2027-01-01)\n\nNewer.\n\n## 0.1.0 (2026-11-26)\n\nOlder.\n"


@pytest.mark.slow
def test_two_builds_are_equal_and_all_of_it_has_a_checksum(tmp_path: Path) -> None:
    target = tmp_path / "dist"
    target.mkdir()
    (target / "of-another-version.whl").touch()
    version = release.release(target)
    names = {path.name for path in target.rglob("*") if path.is_file()}
    assert {
        f"upsertflow-{version}-py3-none-any.whl",
        f"upsertflow-{version}.tar.gz",
        f"upsertflow-{version}.jar",
        f"upsertflow-{version}.pom",
        "maven-metadata.xml",
    } <= names
    assert "of-another-version.whl" not in names
    sums = dict(line.split("  ")[::-1] for line in (target / release.SUMS).read_text().splitlines())
    found = release.digests(target)
    del found[release.SUMS]
    assert sums == found
    assert (target / release.NOTES).read_text().startswith(f"## {version}")


def test_a_build_that_differs_is_told_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    first = release.digests(tmp_path)
    assert first == {"a": hashlib.sha256(b"1").hexdigest()}
    (tmp_path / "a").write_text("2")
    (tmp_path / "b").write_text("2")
    with pytest.raises(ReleaseError, match=r"differences in a, b$"):
        release.require_equal(first, release.digests(tmp_path))


def test_the_notes_are_the_section_of_the_version() -> None:
    assert release.notes_of(CHANGELOG, "0.2.0") == "## 0.2.0 (2027-01-01)\n\nNewer.\n"
    assert release.notes_of(CHANGELOG, "0.1.0") == "## 0.1.0 (2026-11-26)\n\nOlder.\n"
    with pytest.raises(ReleaseError, match=r"'## 0.1' .* found those of \['0.2.0', '0.1.0'\]"):
        release.notes_of(CHANGELOG, "0.1")


def test_a_release_without_golden_data_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=r"tests/golden/releases/7\.0\.0\.zip, found none"):
        release.require_golden(tmp_path, "7.0.0")
    release.require_golden(release.ROOT, release.version_of(release.ROOT))
