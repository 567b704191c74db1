"""The example of the page about exactly once: a batch that comes again changes nothing."""

from __future__ import annotations

from pathlib import Path

from integration.pages import code_of


def test_a_batch_of_the_page_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    [code] = code_of("docs/reliability.md", "python", runner="tests/unit/test_exactly_once_page.py")
    exec(code.replace("/lake/", f"{tmp_path}/lake/"), {})
