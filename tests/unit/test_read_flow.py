"""The graph of a planned read: in the log, of all that the tasks read."""

from __future__ import annotations

import logging

import pytest

from spark_upsert.options.inputs import UNNAMED
from spark_upsert.source.read_flow import planned


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
