"""A hint about files that are none."""

from __future__ import annotations

import os

from spark_upsert.store import LocalStore
from tests.hints.hint import Told, follows


@follows("store.local:not_regular")
def _(told: Told) -> None:
    store, file = LocalStore(told.folder), told.folder / "a"
    os.mkfifo(file)
    with told:
        store.read("a")
    told(f"remove '{file}'")
    file.unlink()
    told("put the file that belongs there in its place, from a copy")
    file.write_bytes(b"a copy")
    assert store.read("a") == b"a copy"
