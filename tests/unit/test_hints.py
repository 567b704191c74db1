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
from tests.hints.texts import hint_texts
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


def test_the_rule_finds_each_hint_and_reads_its_text() -> None:
    hints = hint_texts()
    unread = [place.partition(":")[0] for place, texts in hints.items() if not texts]
    assert sorted(unread) == sorted(PASSED_ON)
    counts = {
        str(path.relative_to(ROOT)): len(HINT.findall(path.read_text(encoding="utf-8")))
        for path in modules().values()
    }
    found = Counter(place.partition(":")[0] for place in hints)
    assert found == Counter({file: count for file, count in counts.items() if count})


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("give onErrors=inline, or onError=inline", "onErrors"),
        ("give onError=inlined", "onError=inlined"),
        ("drop 'mergeSchema' or 'mergeSchemas'", "mergeSchemas"),
        ("give '\0Schema' or '\0Schemata'", "\0Schemata"),
        ("set 'storage.region' or 'storage.regions'", "storage.regions"),
        ("run 'upsertflow expire TABLE --keep 1h' or --retain 1h", "--keep"),
        ("run 'upsertflow remove TABLE'", "upsertflow remove"),
        ("drop the column _change_type or _change", "_change"),
        ("give memory_bytes_max or memory_bytes_most", "memory_bytes_most"),
        ("at_version(number=1)", "at_version(number=...)"),
        ("open it with Table.open, or Table.reopen", "Table.reopen"),
        ("make it InputRows(schema) or Given(schema)", "Given(...)"),
        ("docs/tasks.md, docs/task.md", "docs/task.md"),
        ("pip install 'upsertflow[kafka]' 'upsertflow[avro]'", "upsertflow[avro]"),
        ("read it by spark_upsert.tables.Table", "spark_upsert.tables.Table"),
    ],
)
def test_a_name_that_does_not_exist_is_found(text: str, unknown: str) -> None:
    assert unknown_names(text) == [unknown]


def test_a_value_that_an_option_refuses_is_found() -> None:
    assert accepts("groupRetention", "30 days")
    assert accepts("ties", "last")
    assert accepts("ties", "...")
    assert not accepts("groupRetention", "thirty days")
    assert not accepts("maxBacklogBytes", "many")
    assert not accepts("ties", "newest")
