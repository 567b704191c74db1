"""The run of many topics can fail: its messages make the tables of its model, and no others."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from integration.topics import Topic
from spark_upsert.errors import SchemaError
from tests.support.envelopes import records, rows_of, write_found
from tests.support.own_schemas import INLINE

pytestmark = pytest.mark.slow


def send(path: Path, topic: Topic, dice: random.Random, count: int) -> None:
    """Write so many messages of a topic into its table."""
    first = len(topic.sent)
    pairs = [topic.message(dice, number) for number in range(first, first + count)]
    rows = records(pairs, offsets=range(first, first + count))
    write_found(path, rows, **INLINE, mergeSchema=True)


def table_of(path: Path) -> dict[int, dict[str, object]]:
    rows = [{name: v for name, v in row.items() if v is not None} for row in rows_of(path)]
    return {row["id"]: row for row in rows}


@pytest.mark.parametrize("number", [0, 1, 2, 5], ids=["plain", "flag", "amounts", "grows"])
def test_a_table_is_its_model(tmp_path: Path, number: int) -> None:
    path, topic, dice = tmp_path / "t", Topic(number), random.Random(number)
    send(path, topic, dice, 60)
    topic.is_later = True
    send(path, topic, dice, 60)
    assert table_of(path) == topic.table_after(120)
    assert table_of(path) != topic.table_after(119)
    assert ("extra" in {n for row in table_of(path).values() for n in row}) == (number % 5 == 0)


def test_a_poisoned_topic_does_not_fit_its_table(tmp_path: Path) -> None:
    path, topic, dice = tmp_path / "t", Topic(0), random.Random(0)
    send(path, topic, dice, 50)
    topic.is_poisoned = True
    with pytest.raises(SchemaError, match="column 'n' is int64 in the table, but string"):
        send(path, topic, dice, 50)
    assert table_of(path) == topic.table_after(50)
