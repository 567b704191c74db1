"""One name, one meaning: the classes and aliases of all modules."""

from __future__ import annotations

from tools.names import several_meanings

SEVERAL = {
    **dict.fromkeys(
        ("Aggregate", "Filter", "Join", "Node", "Project", "Scan", "Unnest"),
        "a node of a plan: tasks and views have an algebra each",
    ),
}
"""Names that may mean several things, and why."""


def test_a_name_of_a_type_has_one_meaning() -> None:
    found = {name: where for name, where in several_meanings().items() if name not in SEVERAL}
    assert not found, "rename all but one, or say in SEVERAL why both must have this name"


def test_no_name_is_excused_that_has_one_meaning() -> None:
    assert SEVERAL.keys() <= several_meanings().keys()
