"""The site: built from the pages with strict links, and looked at in a browser that reaches nothing else."""

from __future__ import annotations

import functools
import http.server
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.pages import ROOT
from integration.servers.browser import browser as found_browser
from integration.test_page_of_tables import BROWSER_SECONDS_MAX, browse
from spark_upsert.cli.commands import upsertflow
from spark_upsert.cli.error_codes import ENTRIES
from tools import site_pages

BUILD_SECONDS_MAX = 300

ALONE = "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
"""For a browser: every other machine is not there."""

pytestmark = pytest.mark.slow


def build(root: Path, into: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(into)],
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS_MAX,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("site")
    done = build(ROOT, into)
    assert done.returncode == 0, done.stdout + done.stderr
    return into


@pytest.fixture(scope="module")
def found() -> queue.Queue[str]:
    return queue.Queue()


@pytest.fixture(scope="module")
def address(site: Path, found: queue.Queue[str]) -> Iterator[str]:
    class Served(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing: pytest shows what fails."""

        def do_GET(self) -> None:
            if self.path != "/probe":
                return super().do_GET()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(PROBE)
            return None

        def do_POST(self) -> None:
            found.put(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(204)
            self.end_headers()

    handler = functools.partial(Served, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def chromium() -> Path:
    return found_browser()


@pytest.mark.parametrize(
    ("link", "said"),
    [("lost.md", "'lost.md'"), ("types.md#lost", "does not contain an anchor '#lost'")],
)
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path, link: str, said: str) -> None:
    for folder in ("docs", "tools"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for name in ("mkdocs.yml", *site_pages.TOP):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".servers").symlink_to(site_pages.mermaid().parent.parent)
    with (tmp_path / "docs" / "kafka.md").open("a") as page:
        page.write(f"\nSee [this]({link}).\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert said in done.stdout + done.stderr
    assert "kafka.md" in done.stdout + done.stderr


@pytest.mark.parametrize(("scheme", "shown"), [("1", "default"), ("0", "slate")])
def test_pages_are_light_or_dark_and_have_their_pictures(
    chromium: Path, address: str, tmp_path: Path, scheme: str, shown: str
) -> None:
    netlog = tmp_path / "netlog"
    page = browse(
        chromium,
        f"{address}/concepts",
        tmp_path,
        f"--blink-settings=preferredColorScheme={scheme}",
        f"--log-net-log={netlog}",
        "--dump-dom",
    )
    assert f'data-md-color-scheme="{shown}"' in page
    assert '<pre class="mermaid">' not in page, "the picture is still its text"
    assert '<div class="mermaid"></div>' in page, "the theme draws into a shadow of this element"
    asked = asked_for(netlog)
    assert any("mermaid.min.js" in url for url in asked)
    assert not [url for url in asked if not url.startswith(address)]


def asked_for(netlog: Path) -> set[str]:
    """Return what a page asked for; what the browser asks for itself has no initiator."""
    events = json.loads(netlog.read_text())["events"]
    told = [event["params"] for event in events if "params" in event]
    return {
        each["url"]
        for each in told
        if each.get("url", "").startswith("http") and each.get("initiator", "").startswith("http")
    }


PROBE = b"""<!doctype html><iframe id="site" src="/?q=tombstoneRetention"></iframe><script>
setInterval(() => {
  const found = document.getElementById("site").contentDocument
    .querySelectorAll("a.md-search-result__link");
  if (found.length) fetch("/found", {method: "POST", body: [...found].map(a => a.href).join(" ")});
}, 100);
</script>"""
"""A page around the first one of the site, which tells the server what the search has found."""


def test_search_finds_a_word(
    chromium: Path, address: str, tmp_path: Path, found: queue.Queue[str]
) -> None:
    # A search is a worker of the browser, which no budget of virtual time waits for.
    with subprocess.Popen(
        [
            *(str(chromium), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--remote-debugging-port=0", f"--host-resolver-rules={ALONE}"),
            *(f"--user-data-dir={tmp_path / 'profile'}", f"{address}/probe"),
        ],
        stderr=subprocess.DEVNULL,
    ) as browsing:
        try:
            links = found.get(timeout=BROWSER_SECONDS_MAX).split()
        finally:
            browsing.kill()
    assert any(link.startswith(f"{address}/options/") for link in links), links


def test_what_a_page_loads_lies_on_the_site(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(list((ROOT / "docs").rglob("*.md")))
    loads = re.compile(r'<(?:script|img|link|iframe)\b[^>]*(?:src|href)="(?:https?:)?//[^"]*"')
    assert not [found for page in pages for found in loads.findall(page.read_text())]


def test_every_page_for_people_stands_in_llms_txt(site: Path) -> None:
    told = (site / "llms.txt").read_text()
    links = re.findall(r"^- \[.+?\]\((.+?)\): .+$", told, re.MULTILINE)
    assert all((site / link / "index.html").is_file() for link in links)
    written = {page.stem for page in (ROOT / "docs").glob("*.md")}
    assert written <= {link.rstrip("/") for link in links}
    assert told.startswith("# upsertflow\n\n> A data source for Apache Spark")


def test_commands_and_functions_stand_as_the_code_has_them(site: Path) -> None:
    commands = (site / "commands" / "index.html").read_text()
    assert all(f'id="upsertflow-{name}"' in commands for name in upsertflow.commands)
    functions = (site / "functions" / "index.html").read_text()
    assert 'id="table"' in functions
    assert 'id="tableupsert"' in functions
    assert 'id="register"' in functions


def test_each_code_of_an_error_has_its_page(site: Path) -> None:
    index = (site / "errors" / "index.html").read_text()
    for code in ENTRIES:
        assert f'href="{code}/"' in index, code
        assert (site / "errors" / code / "index.html").is_file(), code
    full = (site / "errors" / "TABLE_FULL" / "index.html").read_text()
    link = '<a href="../../scheduling/">Scheduling and back-pressure</a>'
    assert link in full, "a page that speaks of the code is named"


def test_links_become_those_of_the_site_or_text() -> None:
    told = "[a](../README.md#install), [b](../spark_upsert), [c](adr/README.md), [d](#here)\n"
    code = "```text\n[a](../README.md)\n```\n"
    assert site_pages.relinked(told + code, "kafka.md") == (
        "[a](index.md#install), b, [c](adr/README.md), [d](#here)\n" + code
    )
    assert site_pages.relinked("[a](docs/kafka.md)", "index.md") == "[a](kafka.md)"
    assert site_pages.relinked("[a](../kafka.md)", "adr/0001-x.md") == "[a](../kafka.md)"
