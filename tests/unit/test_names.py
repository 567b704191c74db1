"""One name, one meaning: the classes and aliases of all modules."""

from __future__ import annotations

from tools.names import several_meanings


def test_a_name_of_a_type_has_one_meaning() -> None:
    assert not several_meanings(), "rename all but one"
