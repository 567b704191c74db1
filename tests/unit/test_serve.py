"""The page of tables: what the server tells."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pyarrow as pa
import pytest

from spark_upsert.cli.serve import EPOCHS_SHOWN, REST_S, CachedPoll, TableLines
from spark_upsert.table.table import Table
from tests.support.clocked import Now
from tests.support.shown_tables import COLUMNS, HOSTILE, served, two_tables


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return two_tables(tmp_path / "lake")


@pytest.fixture
def address(root: Path) -> Iterator[str]:
    with served(root) as address:
        yield address


def data(address: str) -> dict[str, Any]:
    with urlopen(f"{address}/data.json") as answer:
        content: dict[str, Any] = json.load(answer)
    return content


def test_the_data_has_each_table_with_its_epochs(address: str, root: Path) -> None:
    content = data(address)
    assert content["left_out"] == 0
    [orders] = [each for each in content["tables"] if each["table"] == str(root / "orders")]
    assert (orders["version"], orders["since"], orders["rows"], orders["runs"]) == (3, 0, 3, 3)
    assert [each["version"] for each in orders["history"]] == [1, 2, 3]
    assert [each.get("inserts", 0) for each in orders["history"]] == [1, 1, 1]
    [lag] = orders["lags"]
    assert (lag["consumer"], lag["versions"], lag["epochs"]) == ("slow", 2, 2)


def test_only_the_newest_epochs_are_told(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), COLUMNS, keys=["k"])
    for epoch in range(EPOCHS_SHOWN + 5):
        table.upsert(pa.table({"k": [epoch], "v": [0]}, schema=COLUMNS))
    [line] = json.loads(CachedPoll(TableLines([str(tmp_path / "t")])).data())["tables"]
    assert len(line["history"]) == EPOCHS_SHOWN
    assert line["debt"] > 0


def test_a_table_that_cannot_be_read_does_not_stop_the_rest(root: Path) -> None:
    looks = CachedPoll(TableLines([str(root)]), clock=(now := Now()))
    first = looks.data()
    shutil.rmtree(root / HOSTILE)
    assert looks.data() is first, "many pages are one look"
    now.advance(REST_S)
    problems = {each["table"]: each["problem"] for each in json.loads(looks.data())["tables"]}
    assert problems[str(root / "orders")] is None
    assert "OTHER_TABLE" in problems[str(root / HOSTILE)]


def test_the_page_names_no_other_place_and_other_paths_are_not_there(address: str) -> None:
    with urlopen(f"{address}/") as answer:
        page = answer.read().decode()
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    # The name of SVG's elements is a name, and never fetched.
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}
    for path in ("x", "../pyproject.toml", "serve.py"):
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{address}/{path}")
