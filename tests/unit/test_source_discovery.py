"""Which folders below a root are tables, and what finding them asks of the storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_upsert.errors import OptionError
from spark_upsert.options.inputs import Pattern
from spark_upsert.store import LocalStore
from spark_upsert.streams.inputs import discovered
from spark_upsert.streams.inputs.discovered import Discovery
from spark_upsert.table.log.codec import commit_path
from tests.support.stores import FaultyStore, MemoryStore, Steps

TABLES = (
    "orders",
    "users",
    "region=east/orders",
    "region=east/users",
    "region=west/orders",
    "region=west/orders/nested",
    "_private/orders",
    ".hidden",
    "deep/er/still",
)


def lake(*tables: str) -> MemoryStore:
    store = MemoryStore()
    for table in tables:
        store.put(f"{table}/{commit_path(0)}", b"")
        store.put(f"{table}/runs/1.arrow", b"")
    return store


def found(store: MemoryStore | LocalStore, pattern: str) -> list[str]:
    tables = Discovery(store, Pattern.parse(pattern))
    return tables.tables(tables.folders())


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", ["orders", "users"]),
        ("o*", ["orders"]),
        ("?sers", ["users"]),
        ("[a-p]*", ["orders"]),
        ("O*", []),
        ("orders", ["orders"]),
        ("nothing", []),
        ("region=*/orders", ["region=east/orders", "region=west/orders"]),
        ("*/*", ["region=east/orders", "region=east/users", "region=west/orders"]),
        ("region=west/orders/*", ["region=west/orders/nested"]),
        ("deep/*/still", ["deep/er/still"]),
        ("_*/orders", ["_private/orders"]),
        (".*", [".hidden"]),
        ("*/*/*/*", []),
    ],
)
def test_a_pattern_finds_tables(pattern: str, expected: list[str]) -> None:
    for threads in (1, 4):
        tables = Discovery(lake(*TABLES), Pattern.parse(pattern), threads=threads)
        assert tables.tables(tables.folders()) == expected


@pytest.mark.parametrize(
    "text",
    ["", " ", "/", "/orders", "orders/", "a//b", "..", "../lake", "a/../b", "./a", "**", "{a,b}/*"],
)
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="'inputsPattern' expects a glob") as caught:
        Pattern.parse(text)
    assert "region=*/orders" in caught.value.hint


def test_a_folder_without_a_log_is_no_table_until_it_has_one() -> None:
    store = lake("orders")
    store.put("stray/file", b"")
    store.put(f"begun/{commit_path(1)}", b"")
    assert found(store, "*") == ["orders"]
    store.put(f"begun/{commit_path(0)}", b"")
    assert found(store, "*") == ["begun", "orders"]


def test_a_look_lists_a_folder_for_each_wildcard_and_asks_a_table_once() -> None:
    steps = Steps()
    store = FaultyStore(lake(*TABLES), steps)
    tables = Discovery(store, Pattern.parse("region=*/orders"))
    tables.tables(tables.folders())
    assert steps.names == [
        "folders ",
        f"read region=east/orders/{commit_path(0)}",
        f"read region=west/orders/{commit_path(0)}",
    ]


def test_on_a_disk_links_to_tables_are_tables(tmp_path: Path) -> None:
    LocalStore(tmp_path / "elsewhere").put(commit_path(0), b"")
    LocalStore(tmp_path / "lake" / "own").put(commit_path(0), b"")
    (tmp_path / "lake" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "lake" / "broken").symlink_to(tmp_path / "nowhere")
    (tmp_path / "lake" / "file").write_bytes(b"")
    assert found(LocalStore(tmp_path / "lake"), "*") == ["linked", "own"]
    assert found(LocalStore(tmp_path / "nowhere"), "*") == []


def test_a_pattern_that_matches_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovered, "FOLDERS_MAX", 2)
    assert found(lake("a", "b"), "*") == ["a", "b"]
    with pytest.raises(OptionError, match=r"more than 2 folders match '\*' below"):
        found(lake("a", "b", "c"), "*")
