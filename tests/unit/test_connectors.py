"""The table of Kafka connectors: how one is chosen, and that the page says what the tests run."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from integration.servers.kafka import CONNECTOR
from tools.connectors import (
    ARTIFACT,
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
    ("there", "chosen"),
    [
        pytest.param({(4, 3, 1), (4, 3, 0)}, (4, 3, 1), id="its own"),
        pytest.param({(4, 3, 0), (4, 2, 1)}, (4, 3, 0), id="that of the release before"),
        pytest.param({(4, 2, 0), (4, 1, 3)}, (4, 2, 0), id="the newest of the line before"),
        pytest.param({(4, 1, 0)}, (4, 1, 0), id="of a line far back"),
        pytest.param(set(), None, id="none"),
    ],
)
def test_a_connector_is_the_newest_that_is_not_newer_than_spark(
    there: set[Release], chosen: Release | None
) -> None:
    assert connectors(RELEASES, there.__contains__)[4, 3, 1] == chosen


def test_a_connector_of_a_newer_spark_is_never_chosen() -> None:
    assert connectors(RELEASES, {(4, 3, 1)}.__contains__)[4, 2, 1] is None


def test_releases_that_refused_streams_are_left_out() -> None:
    page = (
        "| `python3 pyspark` | PySpark 4.2.1, Python 3.12 | tried: batch write, stream read |\n"
        "| `python3 sail` | PySpark 4.1.3, x | tried: batch write. Refused: stream read (no) |\n"
        "| `python3 pyspark` | PySpark 4.1.1, Python 3.11 | tried: stream read |\n"
        "Text of PySpark 4.0.5, stream read.\n"
    )
    assert tried_releases(page) == [(4, 2, 1), (4, 1, 1)]


def test_a_table_replaces_the_one_before_it_and_nothing_else() -> None:
    page = f"above\n{BEGIN}\nold\n{END}\nbelow\n"
    made = table({(4, 3, 0): (4, 2, 0), (4, 2, 0): (4, 2, 0), (4, 1, 0): None})
    again = with_table(page, made)
    assert again == f"above\n{BEGIN}\n\n{made}\n\n{END}\nbelow\n"
    assert with_table(again, made) == again
    assert f"| 4.3.0 | `{ARTIFACT}:4.2.0` | it has none of its own" in made
    assert f"| 4.2.0 | `{ARTIFACT}:4.2.0` | its own |" in made


def rows_of_the_page() -> dict[str, str]:
    inside = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    cells = [line.split(" | ") for line in inside.splitlines() if line.startswith("| 4")]
    return {release.removeprefix("| "): connector.strip("`") for release, connector, _ in cells}


def test_the_page_has_each_release_that_was_tried() -> None:
    tried = [text_of(release) for release in tried_releases(TRIED.read_text())]
    assert [*rows_of_the_page()] == tried, "run: make connectors"


def test_the_page_says_what_the_tests_run() -> None:
    assert rows_of_the_page()[version("pyspark")] == CONNECTOR[0]
