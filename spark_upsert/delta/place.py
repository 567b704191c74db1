"""A table's mirror location: below the table, or in a configured folder."""

from __future__ import annotations

from collections.abc import Mapping

from spark_upsert.errors import OptionError
from spark_upsert.store import Store
from spark_upsert.store.open import StoreBelow, open_store
from spark_upsert.table.log.properties import PUBLISH_PATH
from spark_upsert.table.published import DEFAULT_FOLDER

_OWN_FOLDERS = ("data", "_log", "_index", "_consumers", "_mirror")
"""Folders of a table, in which no mirror may lie."""


def place_of(table: Store, path: str | None, storage: Mapping[str, str] | None = None) -> Store:
    """Return the store of a mirror."""
    if path is None:
        return StoreBelow(table, DEFAULT_FOLDER)
    store = open_store(path.rstrip("/") or path, storage)
    taken = [table.url, *(f"{table.url}/{folder}" for folder in _OWN_FOLDERS)]
    if store.url == table.url or any(
        f"{store.url}/".startswith(f"{other_url}/") for other_url in taken[1:]
    ):
        raise OptionError.invalid(
            "publishPath",
            path,
            "a place outside of the table's own files",
            hint=f"publish to '{table.url}/{DEFAULT_FOLDER}', or to a folder of its own.",
        )
    return store


def target_of(table: Store, properties: Mapping[str, str]) -> Store:
    """Return where the mirror of a table lies, by its properties."""
    path = properties.get(PUBLISH_PATH, "").strip()
    name = table.url.rstrip("/").rpartition("/")[2]
    return place_of(table, path.replace("{table}", name) or None)
