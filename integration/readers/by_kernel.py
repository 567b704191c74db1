"""Read Delta tables by delta-kernel, as the Rust library that readers of Delta are built upon.

Its package for Python has the newest version of a table, and feeds of any.
"""

from __future__ import annotations

from pathlib import Path

import delta_kernel_rust_sharing_wrapper as kernel
import pyarrow as pa

from integration.readers.answers import Question, answer


def rows(question: Question) -> pa.Table:
    """Return the rows of the newest version."""
    place = Path(question["place"]).as_uri()
    engine = kernel.PythonInterface(place)
    snapshot = kernel.Table(place).snapshot(engine)
    found = snapshot.version()
    if found != question["version"]:
        raise ValueError(f"only version {found} can be read, not {question['version']}")
    return pa.table(kernel.ScanBuilder(snapshot).build().execute(engine).read_all())


def feed(question: Question) -> pa.Table:
    """Return the change feed of versions, both included."""
    place = Path(question["place"]).as_uri()
    engine, table = kernel.PythonInterface(place), kernel.Table(place)
    scan = kernel.TableChangesScanBuilder(table, engine, question["first"], question["last"])
    return pa.table(scan.build().execute(engine).read_all())


if __name__ == "__main__":
    answer({"rows": rows, "feed": feed})
