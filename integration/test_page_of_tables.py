"""The page of tables in a browser, light and dark.

Own processes: a browser; there is no Spark.
"""

from __future__ import annotations

import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.servers.browser import browser as found_browser
from tests.support.shown_tables import served, two_tables, write_parked

BROWSER_SECONDS_MAX = 120


@pytest.fixture(scope="module")
def browser() -> Path:
    return found_browser()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return two_tables(tmp_path / "lake")


@pytest.fixture
def address(root: Path) -> Iterator[str]:
    with served(root) as address:
        yield address


def browse(browser: Path, address: str, folder: Path, *arguments: str) -> str:
    """Return what a headless browser prints that can reach this server and nothing else."""
    done = subprocess.run(
        [
            *(str(browser), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *(
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                "--virtual-time-budget=3000",
            ),
            *(f"--user-data-dir={folder / 'profile'}", "--window-size=900,700", *arguments),
            f"{address}/",
        ],
        capture_output=True,
        text=True,
        timeout=BROWSER_SECONDS_MAX,
        check=True,
    )
    return done.stdout


def test_a_browser_shows_the_tables(
    browser: Path, address: str, root: Path, tmp_path: Path
) -> None:
    shown = browse(browser, address, tmp_path, "--dump-dom")
    assert "2 tables</p>" in shown
    assert f"<h2>{root / 'orders'}</h2>" in shown
    assert shown.count("<rect ") >= 6
    assert "<td>slow</td>" in shown
    assert "version 3: inserts 1" in shown
    # What a table is called is text, and no part of the page.
    assert "<title>upsertflow</title>" in shown
    assert "<img" not in shown


def test_a_browser_shows_lagging_mirrors_and_parked_rows(browser: Path, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    write_parked(root)
    with served(root) as address:
        shown = browse(browser, address, tmp_path, "--dump-dom")
    assert '<dt>mirror behind</dt><dd class="">0 versions</dd>' in shown
    assert '<dt>parked rows</dt><dd class="bad">2</dd>' in shown
    assert '<dt>parked rows</dt><dd class="">0</dd>' in shown
    assert "see 'upsertflow dead-letters' (1 parked rows)" in shown


@pytest.mark.parametrize(("scheme", "color"), [("1", (251, 251, 250)), ("0", (21, 24, 27))])
def test_the_page_is_light_or_dark_as_the_reader_likes_it(
    browser: Path, address: str, tmp_path: Path, scheme: str, color: tuple[int, int, int]
) -> None:
    picture = tmp_path / "page.png"
    setting = f"--blink-settings=preferredColorScheme={scheme}"
    browse(browser, address, tmp_path, setting, f"--screenshot={picture}")
    assert first_pixel(picture.read_bytes()) == color


def first_pixel(png: bytes) -> tuple[int, ...]:
    """Return the color of the upper left pixel, which no filter of PNG changes."""
    start, packed = 8, b""
    while start < len(png):
        size, kind = int.from_bytes(png[start : start + 4]), png[start + 4 : start + 8]
        if kind == b"IDAT":
            packed += png[start + 8 : start + 8 + size]
        start += 12 + size
    return tuple(zlib.decompressobj().decompress(packed, 4)[1:4])
