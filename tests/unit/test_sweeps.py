"""A sweep over cases: `make check` takes a few of them, and `make test-all` all."""

from __future__ import annotations

import pytest

from tests.conftest import drawn, mark_sweeps


@pytest.mark.parametrize(
    ("count", "of", "expected"),
    [
        pytest.param(1, 9, {0}, id="one"),
        pytest.param(3, 9, {0, 3, 6}, id="some"),
        pytest.param(2, 7, {0, 3}, id="some of an odd number"),
        pytest.param(5, 3, {0, 1, 2}, id="more than there are"),
        pytest.param(4, 1, {0}, id="of one"),
    ],
)
def test_cases_are_drawn_at_even_distances(count: int, of: int, expected: set[int]) -> None:
    assert drawn(count, of) == expected


def test_cases_beyond_those_for_make_check_are_slow(request: pytest.FixtureRequest) -> None:
    names = [f"{test}[{case}]" for test in ("test_a", "test_b") for case in range(6)]
    items = [
        pytest.Function.from_parent(request.node.parent, name=name, callobj=lambda: None)
        for name in names
    ]
    for item in items[:6]:
        item.add_marker(pytest.mark.sweep(2))
    mark_sweeps(items)
    quick = [item.name for item in items if item.get_closest_marker("slow") is None]
    assert quick == ["test_a[0]", "test_a[3]", *names[6:]]
