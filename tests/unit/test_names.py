"""One name, one meaning: the classes and aliases of all modules."""

from __future__ import annotations

from tools.code_figures import circles
from tools.names import several_meanings


def test_a_name_of_a_type_has_one_meaning() -> None:
    assert not several_meanings(), "rename all but one"


def test_no_imports_make_a_circle_not_even_those_for_types() -> None:
    assert circles() == []
