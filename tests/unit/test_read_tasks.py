"""The tasks of a read of several inputs: in the log, what each of them reads."""

from __future__ import annotations

import logging
import re

import pytest

from spark_upsert.options.inputs import UNNAMED
from spark_upsert.streams.reads.packing import explain_packs, plan_packs


@pytest.mark.parametrize("slots", [1, 3, 7, 20])
def test_the_tasks_that_are_told_are_those_that_run(
    slots: int, caplog: pytest.LogCaptureFixture
) -> None:
    splits = {name: [f"{name} {at}" for at in range(9)] for name in ("clicks", "views")}
    sizes = {split: 1 + at * at % 7 for own in splits.values() for at, split in enumerate(own)}
    with caplog.at_level(logging.DEBUG, "spark_upsert"):
        packs = plan_packs(splits, lambda _, split: sizes[split], slots)
    [message] = caplog.messages
    head, *lines = message.splitlines()
    assert head == f"read planned, {len(packs)} task{'s' * (len(packs) > 1)}:"
    for line, pack in zip(lines, packs, strict=True):
        read, _, size = line.removesuffix(" bytes").rpartition(": ")
        counts = {name: int(count) for name, count in re.findall(r"(\w+) (\d+) split", read)}
        assert int(size) == sum(sizes[each.split] for each in pack)
        for name, count in counts.items():
            assert count == sum(each.name == name for each in pack)
        assert sum(counts.values()) == len(pack)
    assert len(packs) == min(slots, 18)
    # Balanced by bytes: the heaviest first is never further from the least than this.
    loads = [sum(sizes[each.split] for each in pack) for pack in packs]
    assert max(loads) <= 4 / 3 * max(sum(sizes.values()) / slots, max(sizes.values()))


def test_an_explanation_says_which_splits_share_a_task() -> None:
    splits = {"clicks": [object() for _ in range(12)], "views": [object(), object()]}
    packs = plan_packs(splits, lambda *_: 10, 1)
    assert [*explain_packs(splits, packs, lambda *_: 10)] == [
        "  clicks 12 splits [0..11], views 2 splits [0..1]: 140 bytes"
    ]
    odd = tuple(each for at, each in enumerate(packs[0]) if at % 2 == 0 or at == 1)
    assert [*explain_packs(splits, [odd], lambda *_: 10)] == [
        "  clicks 7 splits [0..2, 4, 6, 8, ...], views 1 split [0]: 80 bytes"
    ]


def test_of_many_tasks_the_first_are_told() -> None:
    splits = {"clicks": [object() for _ in range(30)]}
    packs = plan_packs(splits, lambda *_: 1, 30)
    lines = [*explain_packs(splits, packs, lambda *_: 1)]
    assert lines[:2] == ["  clicks 1 split [0]: 1 bytes", "  clicks 1 split [1]: 1 bytes"]
    assert (len(lines), lines[-1]) == (21, "  and 10 more")


def test_a_table_without_a_name_has_a_task_for_each_split_and_no_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, "spark_upsert"):
        packs = plan_packs({UNNAMED: ["a", "b", "c"]}, lambda *_: 1, 2)
        assert plan_packs({}, lambda *_: 1, 2) == []
        assert plan_packs({"clicks": []}, lambda *_: 1, 2) == []
    with caplog.at_level(logging.INFO, "spark_upsert"):
        plan_packs({"clicks": ["one"]}, lambda *_: 1, 2)
    assert [[each.split for each in pack] for pack in packs] == [["a"], ["b"], ["c"]]
    assert not caplog.messages, "its input tells the splits"
