"""The picture of the house is what the code says."""

from __future__ import annotations

from tools.house import TARGET, graph, page, reachable, reduced
from tools.layers import ROOT, modules


def test_the_picture_and_the_map_are_up_to_date() -> None:
    assert TARGET.read_text() == page(), "run: make pages"


def test_every_folder_is_a_room_that_is_described() -> None:
    lines = TARGET.read_text().splitlines()
    for folder in {path.parent.relative_to(ROOT) for path in modules().values()}:
        assert any(f"(../{folder.as_posix()}): " in line for line in lines), folder


def test_a_line_that_follows_from_others_is_left_out() -> None:
    whole = {
        "roof": frozenset({"room", "cellar", "ground"}),
        "room": frozenset({"cellar"}),
        "cellar": frozenset({"ground"}),
        "ground": frozenset[str](),
    }
    assert reduced(whole) == {
        "roof": {"room"},
        "room": {"cellar"},
        "cellar": {"ground"},
        "ground": set(),
    }


def test_the_lines_that_are_left_lead_everywhere() -> None:
    whole = graph(modules())
    drawn = reduced(whole)
    assert sum(map(len, drawn.values())) < sum(map(len, whole.values())) / 2
    for unit in whole:
        assert reachable(drawn, unit) == reachable(whole, unit)
