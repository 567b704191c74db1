"""How a read merges its inputs is told with the reason."""

from __future__ import annotations

import logging

import pytest

from spark_upsert.options.inputs import ReadPlan
from spark_upsert.streams.reads.explain import explain_merge, log_merge

TWO = {"inputs": "a,b", "input.a.path": "/a", "input.b.path": "/b", "parallelism": "4"}


@pytest.mark.parametrize(
    ("given", "tasks", "live"),
    [
        pytest.param({}, "at most 4", "yes: rows come as they are ready", id="26 live"),
        pytest.param({"interleaveSeed": "1"}, "one,", "no: the seed 1 gives it", id="27 a seed"),
        pytest.param({"merge": "concat"}, "one,", "no: its mode is concat", id="28 concat"),
        pytest.param({"merge": "roundrobin"}, "one,", "no: its mode is roundrobin", id="round"),
    ],
)
def test_whether_a_merge_is_live_is_told_with_the_reason(
    given: dict[str, str], tasks: str, live: str
) -> None:
    text = explain_merge(ReadPlan.parse({**TWO, **given}))
    assert f"  tasks     {tasks}" in text
    assert f"  live      {live}" in text


def test_the_log_says_it_in_a_line_and_nothing_of_one_table(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "spark_upsert")
    log_merge(ReadPlan.parse({**TWO, "merge": "concat"}))
    log_merge(ReadPlan.parse({"path": "/a"}))
    [line] = caplog.messages
    assert line.startswith('merge planned: inputs=2 merge=concat live="no: its mode is concat')
    assert explain_merge(ReadPlan.parse({"path": "/a"})) == ""
