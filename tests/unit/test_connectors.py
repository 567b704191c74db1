"""The table of Kafka connectors: how one is chosen, and that the page says what the tests run."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from integration.servers.kafka import CONNECTOR
from tools.connectors import (
    BEGIN,
    END,
    PAGE,
    TRIED,
    Release,
    connectors,
    table,
    text_of,
    tried_releases,
    with_table,
)

RELEASES: list[Release] = [(4, 3, 1), (4, 2, 1), (4, 1, 3)]


@pytest.mark.parametrize(
    ("published", "chosen"),
    [
        ({(4, 3, 1), (4, 3, 0)}, (4, 3, 1)),
        ({(4, 3, 0), (4, 2, 1)}, (4, 3, 0)),
        ({(4, 2, 0), (4, 1, 3)}, (4, 2, 0)),
        (set(), None),
    ],
)
def test_a_connector_is_the_newest_that_is_not_newer_than_spark(
    published: set[Release], chosen: Release | None
) -> None:
    assert connectors(RELEASES, published.__contains__)[4, 3, 1] == chosen
    assert connectors(RELEASES, {(4, 3, 1)}.__contains__)[4, 2, 1] is None


def test_releases_that_refused_streams_are_left_out() -> None:
    page = (
        "| `python3 pyspark` | PySpark 4.2.1, Python 3.12 | tried: batch write, stream read |\n"
        "| `python3 sail` | PySpark 4.1.3, x | tried: batch write. Refused: stream read (no) |\n"
        "Text of PySpark 4.0.5, stream read.\n"
    )
    assert tried_releases(page) == [(4, 2, 1)]


def test_a_table_replaces_the_one_before_it_and_nothing_else() -> None:
    rows = table({(4, 3, 0): (4, 2, 0), (4, 1, 0): None})
    page = with_table(f"above\n{BEGIN}\nold\n{END}\nbelow\n", rows)
    assert page == f"above\n{BEGIN}\n\n{rows}\n\n{END}\nbelow\n"


def test_the_page_has_each_release_that_was_tried_and_the_connector_of_the_tests() -> None:
    inside = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    cells = [line.split(" | ") for line in inside.splitlines() if line.startswith("| 4")]
    rows = {release.removeprefix("| "): connector.strip("`") for release, connector, _ in cells}
    tried = [text_of(release) for release in tried_releases(TRIED.read_text())]
    assert [*rows] == tried, "run: make connectors"
    assert rows[version("pyspark")] == CONNECTOR[0]
