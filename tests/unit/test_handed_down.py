"""What Spark adds to the options of its user is passed over; a typo is not."""

from __future__ import annotations

import pytest

from spark_upsert.errors import OptionError
from spark_upsert.options.read import ReadOptions
from spark_upsert.options.write import WriteOptions

PATH = {"path": "/lake/orders"}

OF_CATALOG = {
    "path": "file:/lake/orders",
    "location": "file:/lake/orders",
    "provider": "upsertflow",
    "owner": "ada",
    "comment": "of the shop",
    "external": "true",
    "columns": "k",
    "option.columns": "k",
    "option.path": "/lake/orders",
}


def test_what_spark_adds_is_passed_over() -> None:
    assert ReadOptions.parse(OF_CATALOG).columns == ("k",)
    written = WriteOptions.parse({**PATH, "queryname": "upserted", "checkpointlocation": "/c"})
    assert written.checkpoint == "/c"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"option.columns": "k"}, "unknown option 'option.columns'"),
        ({"columns": "k", "option.column": "k"}, "unknown option 'option.column'"),
        ({"query_name": "orders"}, "unknown option 'query_name'"),
        ({"owners": "ada"}, "unknown option 'owners'"),
        ({"column": "k"}, "Did you mean 'columns'"),
        ({"keys": "k"}, "option 'keys' belongs to writes only"),
        ({"paths": '["/a", "/b"]'}, "found 2 paths: /a, /b"),
        ({"paths": "/a"}, "found 1 paths: /a"),
    ],
)
def test_what_spark_does_not_add_is_an_error(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ReadOptions.parse({**PATH, **given})


def test_an_option_of_reads_is_told_to_a_writer() -> None:
    with pytest.raises(OptionError, match="option 'versionAsOf' belongs to reads only"):
        WriteOptions.parse({**PATH, "versionasof": "3"})


def test_without_a_path_the_error_names_what_works_in_sql() -> None:
    with pytest.raises(OptionError, match=r"none of a catalog table's options") as caught:
        WriteOptions.parse({"keys": "k"})
    assert "CREATE TEMPORARY VIEW" in caught.value.hint
