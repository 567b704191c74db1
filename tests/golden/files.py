"""A read of files: they are written anew with the times they had, read again, and gone on with."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

from tests.golden.case import Case, Seen
from tests.golden.streams import Read

OPTIONS = {
    "inputs": "f",
    "input.f.path": "files",
    "input.f.format": "csv",
    "input.f.header": "true",
    "input.f.schema": "id BIGINT, t STRING",
    "maxBytesPerTrigger": "50",
}
MODIFIED_S = 1_700_000_000
"""When the first file was modified; each other one a day behind the one before it."""


def write(number: int) -> None:
    """Write a file; its bytes and its time follow from its number."""
    Path("files").mkdir(exist_ok=True)
    path = Path(f"files/part-{number:03}.csv")
    path.write_text(f"id,t\n{number},x\n-{number},t{number}\n", encoding="utf-8")
    time_s = MODIFIED_S + 86_400 * number
    os.utime(path, (time_s, time_s))


def build() -> Seen:
    """Run a query over files, and keep its offsets alone."""
    for number in range(5):
        write(number)
    query = Read(OPTIONS, [])
    rows = query.run(9)
    query.stop()
    for path in Path("files").iterdir():
        path.unlink()
    return {"offsets": query.noted, "rows": rows}


def see(kept: Seen) -> Seen:
    """Write the files, and return the rows of the batches between the offsets."""
    for number in range(5):
        write(number)
    query = Read(OPTIONS, kept["offsets"])
    rows = [query.rows(start, end) for start, end in pairwise(query.noted)]
    query.stop()
    assert rows == kept["rows"]
    return {"rows": rows}


def go_on(kept: Seen) -> Seen:
    """Write more files, and run on from the last offset until nothing is left."""
    for number in range(5, 8):
        write(number)
    query = Read(OPTIONS, [kept["offsets"][-1]])
    rows = query.run(9)
    query.stop()
    return {"rows": rows, "offsets": query.noted}


CASE = Case("files", build, see, go_on)
