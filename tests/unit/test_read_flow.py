"""The graph of a planned read: in the log, of all that the tasks read."""

from __future__ import annotations

import logging
import re

import pytest

from spark_upsert.options.inputs import UNNAMED
from spark_upsert.streams.reads.read_flow import planned


def told(caplog: pytest.LogCaptureFixture, *names: str) -> list[str]:
    splits = {name: [f"{name}{number}" for number in range(3)] for name in names}
    with caplog.at_level(logging.DEBUG, "spark_upsert"):
        packs = planned(splits, lambda _, split: 10 if split.endswith("0") else 1, 2)
    read = sorted(each.split for pack in packs for each in pack)
    assert read == sorted(split for own in splits.values() for split in own)
    return caplog.messages


def test_the_log_tells_which_channels_share_a_task(caplog: pytest.LogCaptureFixture) -> None:
    [message] = told(caplog, "clicks", "views")
    head, *graph = message.splitlines()
    assert head == "read planned, as a graph:"
    assert graph[0].endswith("2 PEs")
    assert [line.split()[:2] for line in graph if line.startswith("PE")] == [
        ["PE", "0"],
        ["PE", "1"],
    ]
    assert any(line.startswith("clicks[0..2]") for line in graph)


def spread(word: str) -> list[str]:
    """Return the splits that a word means, as ``clicks[0..2]``."""
    found = re.fullmatch(r"(\w+)\[(\d+)(?:\.\.(\d+))?\]", word)
    assert found, word
    name, first, last = found.groups()
    return [f"{name}[{at}]" for at in range(int(first), int(last or first) + 1)]


@pytest.mark.parametrize("slots", [1, 3, 7, 20])
def test_the_elements_that_are_told_are_the_tasks_that_run(
    slots: int, caplog: pytest.LogCaptureFixture
) -> None:
    splits = {name: [f"{name}[{at}]" for at in range(9)] for name in ("clicks", "views")}
    sizes = {split: 1 + at * at % 7 for own in splits.values() for at, split in enumerate(own)}
    with caplog.at_level(logging.DEBUG, "spark_upsert"):
        packs = planned(splits, lambda _, split: sizes[split], slots)
    [message] = caplog.messages
    told = [line.split()[2:] for line in message.splitlines() if line.startswith("PE ")]
    elements = [[split for word in words for split in spread(word)] for words in told]
    assert elements == [[each.split for each in pack] for pack in packs]
    assert len(elements) == min(slots, 18)
    # Balanced by bytes: the heaviest first is never further from the least than this.
    loads = [sum(sizes[split] for split in element) for element in elements]
    assert max(loads) <= 4 / 3 * max(sum(sizes.values()) / slots, max(sizes.values()))


def test_a_table_without_a_name_has_a_task_for_each_split(
    caplog: pytest.LogCaptureFixture,
) -> None:
    [message] = told(caplog, UNNAMED)
    assert "PE 2  rows[2]" in message


def test_nothing_is_told_where_nothing_is_read(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "spark_upsert"):
        assert planned({}, lambda *_: 1, 2) == []
        assert planned({"clicks": []}, lambda *_: 1, 2) == []
    assert not caplog.messages


def test_nobody_draws_a_graph_for_a_log_that_is_not_asked(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "spark_upsert"):
        planned({"clicks": ["one"]}, lambda *_: 1, 2)
    assert not caplog.messages
