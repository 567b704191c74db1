"""The duties of a contender, and all of them by name."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from benchmarks.workload import Workload


class Contender(Protocol):
    """A system with one table. It lives in a process of its own, see `host`."""

    def load(self, files: list[Path]) -> None:
        """Make the table and fill it with the initial rows. Not timed."""

    def open(self) -> None:
        """Get ready for batches on the table that is there. Not timed."""

    def apply(self, batch: Path) -> dict[str, float]:
        """Upsert the files of a folder, read the changes that this made, and tell the seconds.

        Returns
        -------
        dict
            ``upsert_s`` and ``changes_s``, the latter absent without a change feed; more of the
            contender's own choice.
        """

    def contents(self) -> dict[str, Any] | None:
        """Return the digest of the table, None if there is none."""

    def changes(self) -> dict[str, Any] | None:
        """Return the digest of all changes since `open`, None without a change feed."""

    def versions(self) -> dict[str, str]:
        """Return the versions of what runs."""

    def close(self) -> None:
        """Give everything back."""


ALL = {
    "upsertflow": "benchmarks.contenders.engine:Engine",
    "upsertflow mirrored": "benchmarks.contenders.mirrored:MirroredEngine",
    "delta-rs": "benchmarks.contenders.delta_rs:DeltaRs",
    "DuckLake": "benchmarks.contenders.duck_lake:DuckLake",
    "pyiceberg": "benchmarks.contenders.py_iceberg:PyIceberg",
    "pypaimon": "benchmarks.contenders.py_paimon:PyPaimon",
    "upsertflow on Spark": "benchmarks.contenders.spark_ours:SparkUpsertflow",
    "upsertflow mirrored on Spark": "benchmarks.contenders.spark_mirrored:SparkMirrored",
    "reader on Spark": "benchmarks.contenders.spark_mirrored:SparkReader",
    "Delta on Spark": "benchmarks.contenders.spark_delta:SparkDelta",
    "Iceberg on Spark": "benchmarks.contenders.spark_iceberg:SparkIceberg",
    "Iceberg changelog on Spark": "benchmarks.contenders.spark_iceberg:SparkIcebergChangelog",
    "Hudi on Spark": "benchmarks.contenders.spark_hudi:SparkHudi",
    "Paimon on Spark": "benchmarks.contenders.spark_paimon:SparkPaimon",
    "floors on Spark": "benchmarks.contenders.floors:SparkFloors",
    "no-op on Spark": "benchmarks.contenders.floors:SparkNothing",
    "inputs on Spark": "benchmarks.contenders.spark_inputs:SparkInputs",
}
"""Name to ``module:class``."""


def make(name: str, folder: Path, workload: Workload, **settings: Any) -> Contender:
    """Return a contender whose table lies in a folder."""
    module, cls = ALL[name].split(":")
    contender: Contender = getattr(import_module(module), cls)(folder, workload, **settings)
    return contender
