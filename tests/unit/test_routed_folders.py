"""Folders of odd values are the same in every store, by a path, and where tables are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.path_template import Template
from spark_upsert.core.schema import TableSchema
from spark_upsert.options.declare import path_below
from spark_upsert.options.inputs import Pattern
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.store.open import PrefixStore
from spark_upsert.streams.inputs.discovered import Discovery
from spark_upsert.table.table import Table
from tests.unit.test_store import STORES

ODD = [
    "orders",
    "a/b",
    "../x",
    "_group",
    ".hidden",
    "100%",
    "größe 1",
    "a?b#c",
    "[a-b]*",
    "x" * 200,
]
SCHEMA = TableSchema.of(pa.schema({"id": pa.int64()}), keys=["id"])


@pytest.mark.parametrize("make", STORES.values(), ids=STORES)
def test_tables_of_odd_values_are_found_by_a_pattern(make: Any, tmp_path: Path) -> None:
    store, template = make(tmp_path), Template.parse("/lake/{topic}/rows")
    for at, value in enumerate(ODD):
        table = Table(PrefixStore(store, template.folder([value])))
        table.ensure(SCHEMA)
        table.upsert(pa.table({"id": [at]}))
    below = Discovery(store, Pattern.parse("*/rows"))
    found = {template.try_values(each): each for each in below.tables(below.folders())}
    assert set(found) == {(value,) for value in ODD}
    for at, value in enumerate(ODD):
        snapshot = Table(PrefixStore(store, found[value,])).at()
        assert [row for batch in snapshot.read() for row in batch.to_pylist()] == [{"id": at}]


@pytest.mark.parametrize("scheme", ["", "file://"], ids=["path", "url"])
def test_a_table_is_opened_by_the_path_of_its_options(scheme: str, tmp_path: Path) -> None:
    options = RoutedOptions.parse({"path": f"{scheme}{tmp_path}/{{{{x}}}} y/{{topic}}"})
    for value in ODD:
        folder = options.template.folder([value])
        path = options.of(value, folder).path
        assert path == path_below(options.template.root, folder)
        Table.create(path, SCHEMA.columns, keys=["id"])
        assert (tmp_path / "{x} y" / folder / "_log").is_dir()
