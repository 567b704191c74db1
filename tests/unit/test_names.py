"""One name, one meaning: the classes and aliases of all modules."""

from __future__ import annotations

from tools.code_figures import circles, is_bare, type_names
from tools.names import several_meanings


def test_a_name_of_a_type_has_one_meaning() -> None:
    assert not several_meanings(), "rename all but one"


def test_a_type_is_named_by_a_noun() -> None:
    """No name is a bare participle, adverb or preposition."""
    assert [name for name in type_names() if is_bare(name)] == []


def test_no_imports_make_a_circle() -> None:
    """Imports for types count."""
    assert circles() == []
