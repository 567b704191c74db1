"""The page of tables: what the server tells, and what a browser makes of it, light and dark."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pyarrow as pa
import pytest

from spark_upsert.cli.serve import EPOCHS_SHOWN, REST_S, Looks, server_of
from spark_upsert.cli.top import Top
from spark_upsert.table.table import Table
from tests.support.clocked import Now

COLUMNS = pa.schema({"k": pa.int64(), "v": pa.int64()})
HOSTILE = "<img src=x onerror=document.title='taken'>"

KNOWN = ("chromium", "chromium-browser", "google-chrome")

BROWSERS = [found for found in map(shutil.which, KNOWN) if found][:1]
"""The browser of this machine; without one, pytest says that its tests had nothing to run in."""

BROWSER_SECONDS_MAX = 120


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("orders", HOSTILE):
        table = Table.create(str(tmp_path / "lake" / name), COLUMNS, keys=["k"])
        for epoch in range(3):
            table.append(pa.table({"k": [0, epoch], "v": [epoch, epoch]}, schema=COLUMNS))
        table.hold("slow", 1)
    return tmp_path / "lake"


@pytest.fixture
def address(root: Path) -> Iterator[str]:
    with server_of(Looks(Top([str(root)])), "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def data(address: str) -> dict[str, Any]:
    with urlopen(f"{address}/data.json") as answer:
        told: dict[str, Any] = json.load(answer)
    return told


def test_the_data_has_each_table_with_its_epochs(address: str, root: Path) -> None:
    told = data(address)
    assert told["left_out"] == 0
    [orders] = [each for each in told["tables"] if each["table"] == str(root / "orders")]
    assert (orders["version"], orders["since"], orders["rows"], orders["runs"]) == (3, 0, 3, 3)
    assert [each["version"] for each in orders["history"]] == [1, 2, 3]
    assert [each.get("inserts", 0) for each in orders["history"]] == [1, 1, 1]
    [lag] = orders["lags"]
    assert (lag["consumer"], lag["versions"], lag["epochs"]) == ("slow", 2, 2)


def test_only_the_newest_epochs_are_told(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), COLUMNS, keys=["k"])
    for epoch in range(EPOCHS_SHOWN + 5):
        table.append(pa.table({"k": [epoch], "v": [0]}, schema=COLUMNS))
    [told] = json.loads(Looks(Top([str(tmp_path / "t")])).data())["tables"]
    assert len(told["history"]) == EPOCHS_SHOWN
    assert told["debt"] > 0


def test_a_table_that_cannot_be_read_does_not_stop_the_rest(root: Path) -> None:
    looks = Looks(Top([str(root)]), clock=(now := Now()))
    looks.data()
    shutil.rmtree(root / HOSTILE)
    now.advance(REST_S)
    told = {each["table"]: each["problem"] for each in json.loads(looks.data())["tables"]}
    assert told[str(root / "orders")] is None
    assert "OTHER_TABLE" in told[str(root / HOSTILE)]


def test_many_pages_are_one_look(root: Path) -> None:
    looks = Looks(Top([str(root)]), clock=(now := Now()))
    first = looks.data()
    Table.open(str(root / "orders")).append(pa.table({"k": [9], "v": [9]}, schema=COLUMNS))
    assert looks.data() is first
    now.advance(REST_S)
    assert looks.data() != first


def test_other_paths_are_not_there(address: str) -> None:
    for path in ("x", "../pyproject.toml", "serve.py"):
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{address}/{path}")


def test_the_page_names_no_other_place(address: str) -> None:
    with urlopen(f"{address}/") as answer:
        page = answer.read().decode()
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    # The name of SVG's elements is a name, and never fetched.
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}


# -- in a browser -----------------------------------------------------------------------------


def browse(browser: str, address: str, folder: Path, *arguments: str) -> str:
    """Return what a headless browser prints that can reach this server and nothing else."""
    done = subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
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


@pytest.mark.parametrize("browser", BROWSERS)
def test_a_browser_shows_the_tables(browser: str, address: str, root: Path, tmp_path: Path) -> None:
    shown = browse(browser, address, tmp_path, "--dump-dom")
    assert "2 tables</p>" in shown
    assert f"<h2>{root / 'orders'}</h2>" in shown
    assert shown.count("<rect ") >= 6
    assert "<td>slow</td>" in shown
    assert "version 3: inserts 1" in shown
    # What a table is called is text, and no part of the page.
    assert "<title>upsertflow</title>" in shown
    assert "<img" not in shown


@pytest.mark.parametrize("browser", BROWSERS)
@pytest.mark.parametrize(("scheme", "color"), [("1", (251, 251, 250)), ("0", (21, 24, 27))])
def test_the_page_is_light_or_dark_as_the_reader_likes_it(
    browser: str, address: str, tmp_path: Path, scheme: str, color: tuple[int, int, int]
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
