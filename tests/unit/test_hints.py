"""Each hint of an error names only options, commands, columns and code that exist.

The rule reads the texts of all hints from the sources (`tests.hints.texts`) and looks up each name
in them (`tests.hints.names`). The scenes of `tests/hints` follow the hints whose wrong advice would
lose rows.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.hints.names import accepts, has_option, settings, unknown_names
from tests.hints.texts import hint_texts, sources
from tools.layers import ROOT, modules

HINT = re.compile(r"\bhint=|\.advise\(")
"""How the text of a hint begins; a parameter has a blank before its default."""

PASSED_ON = {
    "spark_upsert/errors.py": "an error is unpickled",
    "spark_upsert/routed/dead_letter.py": "the hint is read from the dead-letter table",
    "spark_upsert/table/log/reader.py": "the caller's hint, or none",
}
"""The files with a hint whose text is written elsewhere, and why."""


def test_a_hint_names_only_what_exists() -> None:
    unknown = {
        place: names
        for place, texts in hint_texts().items()
        if (names := [name for text in texts for name in unknown_names(text)])
    }
    assert unknown == {}


def test_a_setting_in_a_hint_is_an_option_and_the_option_accepts_its_value() -> None:
    wrong = [
        (place, name, value)
        for place, name, value in settings()
        if not has_option(name) or not accepts(name, value)
    ]
    assert wrong == []


def test_the_rule_reads_the_text_of_each_hint() -> None:
    unread = [place.partition(":")[0] for place, texts in hint_texts().items() if not texts]
    assert sorted(unread) == sorted(PASSED_ON)


def test_the_rule_finds_each_hint() -> None:
    """The sources have no other: a hint is a keyword argument, or an argument of `advise`."""
    found = Counter(place.partition(":")[0] for place in hint_texts())
    assert found == Counter(
        {
            str(path.relative_to(ROOT)): count
            for path in modules().values()
            if (count := len(HINT.findall(path.read_text(encoding="utf-8"))))
        }
    )
    assert "_marked_hint" not in "".join(
        path.read_text(encoding="utf-8")
        for name, path in modules().items()
        if name != "spark_upsert.errors"
    )


def test_a_text_is_followed_to_where_it_is_written() -> None:
    """Through a table, a variable, a parameter, a loop, a helper and a reader's property."""
    read = "\n".join(text for texts in hint_texts().values() for text in texts)
    for text in (
        "docs/tasks.md lists what becomes what: cast twice.",
        "columns in braces are for writes.",
        "make room there, then try again",
        "use 'timestampAsOf', or pin one by at_version()",
        "PostgreSQL sends all values with REPLICA IDENTITY FULL",
        "rows apart and goes on",
    ):
        assert text in read, text


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("give onError=inline", []),
        ("give onErrors=inline", ["onErrors"]),
        ("give onError=inlined", ["onError=inlined"]),
        ("drop 'mergeSchema' or 'mergeSchemas'", ["mergeSchemas"]),
        ("give '\0Schema' or '\0Schemata'", ["\0Schemata"]),
        ("drop 'columns' or 'collumns'", ["collumns"]),
        ("set 'storage.region' or 'storage.regions'", ["storage.regions"]),
        ("run 'upsertflow expire TABLE --retain 1h'", []),
        ("run 'upsertflow expire TABLE --keep 1h'", ["--keep"]),
        ("by a longer --retain or --retains", ["--retains"]),
        ("run 'upsertflow remove TABLE'", ["upsertflow remove"]),
        ("make it again: upsertflow idx TABLE", ["upsertflow idx"]),
        ("install a newer upsertflow on the cluster", []),
        ("drop the column _change_type or _change", ["_change"]),
        ("give memory_bytes_max or memory_bytes_most", ["memory_bytes_most"]),
        (
            "repair(filter='x'), at_version(number=1)",
            ["repair(filter=...)", "at_version(number=...)"],
        ),
        ("open it with Table.open, or Table.reopen", ["Table.reopen"]),
        ("make it InputRows(schema) or Given(schema)", ["Given(...)"]),
        ("docs/tasks.md, docs/task.md", ["docs/task.md"]),
        ("pip install 'upsertflow[payloads]' 'upsertflow[avro]'", ["upsertflow[avro]"]),
        ("make it by spark_upsert.Table.create", []),
        ("read it by spark_upsert.tables.Table", ["spark_upsert.tables.Table"]),
    ],
)
def test_a_name_that_does_not_exist_is_found(text: str, unknown: list[str]) -> None:
    assert unknown_names(text) == unknown


@pytest.mark.parametrize(
    ("name", "value", "is_accepted"),
    [
        ("groupRetention", "30 days", True),
        ("groupRetention", "thirty days", False),
        ("failOnDataLoss", "no", False),
        ("maxBacklogBytes", "many", False),
        ("ties", "last", True),
        ("ties", "newest", False),
        ("ties", "...", True),
    ],
)
def test_a_value_that_an_option_refuses_is_found(name: str, value: str, is_accepted: bool) -> None:
    assert accepts(name, value) is is_accepted


def test_there_are_hints() -> None:
    assert len(sources().hints) > 500
