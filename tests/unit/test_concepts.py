"""The story that the page of concepts tells runs, from row to view."""

from __future__ import annotations

from pathlib import Path

from integration.pages import code_of


def test_the_story_of_the_page_runs_from_row_to_view(tmp_path: Path) -> None:
    blocks = code_of("docs/concepts.md", "python", runner="tests/unit/test_concepts.py")
    assert len(blocks) >= 6
    exec("".join(blocks).replace('"/lake/', f'"{tmp_path}/'), {})
