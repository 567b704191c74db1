"""The code of a documentation page, which a test runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def code_of(page: str, language: str) -> list[str]:
    """Return the code blocks of a page in one language, in their order."""
    text = (DOCS / page).read_text()
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert blocks, f"{page} has no {language}"
    return list(blocks)
