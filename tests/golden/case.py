"""What a case of golden data is: how it was made, what is seen in it, and how it goes on."""

from __future__ import annotations

import json
import random
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import Field, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch

import pyarrow as pa

from spark_upsert.plan.nodes import Node
from spark_upsert.table.log.log import Log
from tests.support.stores import forget_runs_and_logs

DATA = Path(__file__).parent / "data"

RELEASES = Path(__file__).parent / "releases"
"""For each release an archive with all cases as it wrote them, and its names as JSON."""

Seen: TypeAlias = dict[str, Any]
"""What is seen of a case, as JSON has it."""

NOW_MS = 1_700_000_000_000
"""The time at which all is done, in milliseconds since 1970."""

_TIME = re.compile(r"\b1[789]\d{11}\b|\b20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?(\+00:00)?")
"""Milliseconds since 1970, and commit times as texts: between 2023 and 2033."""

_CHECKSUM = re.compile(r'"crc":"[0-9a-f]{8}"')
"""Of a record, which has the time of its commit."""

GAINED = frozenset(("id", "position", "batch_rows", "memory_bytes_max", "is_clustered"))
"""Fields of plan nodes that views did not have when the data was made."""


@dataclass(frozen=True, slots=True)
class Case:
    """A case; each function is called with a copy of its data as the working folder.

    Paths are relative there, because plans, offsets and kept tables hold the paths of tables.
    """

    name: str
    build: Callable[[], Seen]
    """Writes what is kept in files, and returns what else is: offsets and texts."""
    see: Callable[[Seen], Seen]
    """Returns what is seen in that, given what ``build`` returned."""
    go_on: Callable[[Seen], Seen]
    """Adds to it as code that goes on does, and returns what is seen then."""
    home: Path = DATA
    """The folder that has a folder of each case."""

    @property
    def folder(self) -> Path:
        """Where its data lie."""
        return self.home / self.name

    @property
    def expected(self) -> Seen:
        """What is written of it."""
        found: Seen = json.loads((self.folder / "expected.json").read_text(encoding="utf-8"))
        return found

    def make(self, scratch: Path) -> None:
        """Write its data anew; what is in the folder ``scratch`` is lost."""
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        with chdir(scratch), resting_clock():
            kept = as_json(self.build())
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.make_archive(str(self.folder / "before"), "zip", scratch)
        expected = {"kept": kept, "arrow": pa.__version__, **self.seen(scratch, kept)}
        text = json.dumps(expected, indent=1)
        (self.folder / "expected.json").write_text(text + "\n", encoding="utf-8")

    def seen(self, scratch: Path, kept: Seen) -> Seen:
        """Return what is seen in a copy of its data, and behind what is added to it there."""
        forget_runs_and_logs()  # Of another copy, which had the same relative paths.
        with chdir(scratch), resting_clock():
            before = as_json(self.see(kept))
            with drawn():
                behind = without_times(self.go_on(kept))
        return {"before": before, "behind": behind}

    def copied(self, scratch: Path) -> Path:
        """Return a folder with a copy of its data."""
        shutil.unpack_archive(self.folder / "before.zip", scratch)
        return scratch


@contextmanager
def drawn() -> Iterator[None]:
    """Let names of files and versions be the same ones each time."""
    names = random.Random(24)
    with patch.object(uuid, "uuid4", lambda: uuid.UUID(int=names.getrandbits(128), version=4)):
        yield


@contextmanager
def resting_clock() -> Iterator[None]:
    """Let it be the same time always, by the clocks of all tables.

    It is not later than any of the data. Else what is done depended on their age: an hour behind
    the last commit a log asks the storage for its time, which takes one more name (`drawn`).
    """
    with patch.object(Log, "now_ms", lambda _: NOW_MS):
        yield


def as_json(value: Any) -> Any:
    """Return a value as JSON gives it back; what JSON does not know as its text."""
    return json.loads(json.dumps(value, default=str))


def without_times(value: Any) -> Any:
    """Return what was seen without the times at which it was written."""
    text = _TIME.sub("0", json.dumps(value, default=str))
    return json.loads(text)


def plain(value: Any) -> Any:
    """Return a value as its fields, so that no name of a class is seen: as JSON has them.

    What a node is called in texts is seen as its ``kind``.
    """
    if isinstance(value, pa.Schema):
        return [f"{each.name} {each.type}{'' if each.nullable else '!'}" for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        gained = {each.name for each in fields(value) if _is_gained(value, each)}
        names = [each.name for each in fields(value) if each.name not in gained]
        kind = ["kind"] if hasattr(value, "kind") else []
        return {name: plain(getattr(value, name)) for name in (*kind, *names)}
    if isinstance(value, pa.Table):
        return {"schema": plain(value.schema), "rows": value.to_pylist()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def _is_gained(value: Any, own: Field[Any]) -> bool:
    """Return whether a node gained a field after the data was made, and has its default there."""
    return (
        isinstance(value, Node) and own.name in GAINED and getattr(value, own.name) == own.default
    )


def sorted_rows(batches: Iterable[pa.RecordBatch | pa.Table]) -> list[str]:
    """Return rows as texts, in an order that follows from them."""
    rows = (row for batch in batches for row in batch.to_pylist())
    return sorted(json.dumps(list(row.values()), default=str) for row in rows)


def log_text(path: Path) -> str:
    """Return a record of a log as it stands there, but for its time and checksum."""
    return _TIME.sub("0", _CHECKSUM.sub('"crc":""', path.read_text(encoding="utf-8")))
