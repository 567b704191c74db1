"""The picture of the house is what the code says."""

from __future__ import annotations

from tools.house import TARGET, page, reduced
from tools.layers import ROOT, modules


def test_the_picture_is_up_to_date_and_describes_every_folder() -> None:
    text = TARGET.read_text()
    assert text == page(), "run: make pages"
    for folder in {path.parent.relative_to(ROOT) for path in modules().values()}:
        assert f"(../{folder.as_posix()}): " in text, folder


def test_a_line_that_follows_from_others_is_left_out() -> None:
    lines = {"roof": frozenset({"room", "ground"}), "room": frozenset({"ground"})}
    assert reduced({**lines, "ground": frozenset()}) == {
        "roof": {"room"},
        "room": {"ground"},
        "ground": set(),
    }
