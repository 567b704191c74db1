"""Source registration for a program in an archive, and compaction as a Spark job.

The archive is on the driver's ``sys.path`` only, so one small class travels by value, finds it and
delegates to `DefaultSource`. All other classes are pickled by reference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from spark_upsert.store.open import open_store
from spark_upsert.table.compaction import Job
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.maintenance import serve as serve_compactions
from spark_upsert.table.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SOURCES = {
    "upsertflow": "pyspark_upsertflow.source",
    "upsertflow.postgres": "pyspark_upsertflow_postgres",
}
"""The modules with the sources, by format."""

_WITHOUT_EXECUTORS = 2
"""Default parallelism in a cluster session without executors."""


def register(spark: SparkSession) -> None:
    """Register the sources of this package for a session, wherever it was loaded from.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Registration belongs to the session; each new one needs it again. Calling twice is harmless.

    Notes
    -----
    Needed with ``--packages`` and ``--py-files``, harmless with a package installed on every node.
    Reads take their ``parallelism`` from the session at this call (`find_parallelism`); a read's own
    option takes precedence.

    Examples
    --------
    >>> import upsertflow
    >>> upsertflow.register(spark)  # doctest: +SKIP
    >>> spark.read.format("upsertflow").option("path", "/lake/orders").load()  # doctest: +SKIP
    """
    parallelism = find_parallelism(spark)
    for format_name, module in SOURCES.items():
        spark.dataSource.register(by_value(archive(), parallelism, format_name, module))


def find_parallelism(spark: SparkSession) -> int | None:
    """Return how many tasks a session runs at once; None if it is unknown.

    The larger count among cores on registered executors and cores requested by the configuration:
    executors register while the program already runs. Spark Connect reports neither.
    """
    context = getattr(spark, "sparkContext", None)
    if context is None:
        return None
    parallelism = int(context.defaultParallelism)
    if context.master.startswith("local"):
        return parallelism
    configured = context.getConf()
    executors = int(configured.get("spark.executor.instances", "0"))
    cores = int(configured.get("spark.executor.cores", "1"))
    planned = executors * cores // int(configured.get("spark.task.cpus", "1"))
    most = max(parallelism, planned)
    return most if most > _WITHOUT_EXECUTORS else None


def archive() -> str | None:
    """Path of the jar or zip from which this package was imported; None if from a plain folder."""
    # Only zipimport's loader knows an archive; asking it beats guessing from `__file__`.
    return getattr(__spec__.loader, "archive", None)


def by_value(
    archive: str | None,
    parallelism: int | None = None,
    format_name: str = "upsertflow",
    module: str = "pyspark_upsertflow.source",
) -> type[DataSource]:
    """Build a source class picklable into a process without this package.

    Notes
    -----
    A class defined inside a function has no importable name, hence cloudpickle sends its body. For
    the same reason it must use no name defined in this module: such a name would be sent as an
    import of this package.
    """

    class Upsertflow(DataSource):
        """Delegates to the ``DefaultSource`` of a module once it is importable."""

        @classmethod
        def name(cls) -> str:
            return format_name

        def real(self) -> DataSource:
            """Import the real source, from the archive if there is one, with the same options."""
            import importlib
            import os
            import sys

            candidates: list[str] = []
            if archive:
                from pyspark import SparkFiles  # A client of Spark Connect does not have it.

                # The session's own copy first; a streaming source is given a root one folder below
                # it, and a path to an archive that is not there. The driver's path helps in local
                # mode, the working folder on YARN and Kubernetes.
                root, name = SparkFiles.getRootDirectory(), os.path.basename(archive)
                folders = (root, os.path.dirname(root), os.path.dirname(archive), os.curdir)
                candidates = [os.path.join(folder, name) for folder in folders]
            path = next(filter(os.path.isfile, candidates), None)
            if path and path not in sys.path:
                # At 1, as Spark does: the worker's own folder stays at 0.
                sys.path.insert(1, path)
            try:
                source: type[DataSource] = importlib.import_module(module).DefaultSource
            except ModuleNotFoundError as error:
                raise ModuleNotFoundError(
                    f"{sys.executable} cannot import {error.name}, which the format "
                    f"'{format_name}' needs; archives looked for: {', '.join(candidates) or 'none'}\n\n"
                    "Hint: run `pip install upsertflow` for this interpreter on every node, or "
                    "start Spark with --packages io.github.upsertflow:upsertflow:VERSION; if it is "
                    "the wrong interpreter, set PYSPARK_PYTHON before the session starts.",
                    name=error.name,
                ) from error
            return source(self.options)

        def for_reads(self) -> DataSource:
            """Return the real source with the session's parallelism, unless the user set one."""
            source = self.real()
            option_names = {name.lower().replace("-", "").replace("_", "") for name in self.options}
            if parallelism is not None and "parallelism" not in option_names:
                source.options = {**self.options, "parallelism": str(parallelism)}
            return source

        def schema(self) -> StructType | str:
            return self.real().schema()

        def reader(self, schema: StructType) -> DataSourceReader:
            return self.for_reads().reader(schema)

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            return self.real().writer(schema, overwrite)

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            source = self.for_reads()
            reader = source.streamReader(schema)
            if not source.options:
                self.options = {}  # They may have a password, and this object goes to the tasks.
            return reader

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            return self.real().streamWriter(schema, overwrite)

    return Upsertflow


_COUNTS = pa.schema([pa.field("compactions", pa.int64())])

_TASKS_PER_SLOT = 4
"""Compaction tasks per slot, so that a slow one does not delay the others' share."""

_TASKS_MAX = 256
"""Maximum compaction tasks if the session's parallelism is unknown."""


def compact(
    spark: SparkSession, path: str, *, full: bool, serve: bool, storage: Mapping[str, str]
) -> int:
    """Compact a table's runs in Spark tasks; return the number of compactions.

    The driver plans; tasks lease ranges and commit (`maintenance.compact_leased`). A task receives
    its number by ``spark.range``, which Spark Connect has, too.
    """
    table = Table.open(path, storage_options=storage)

    def run(base: Manifest, jobs: Sequence[Job]) -> int:
        slots = find_parallelism(spark)
        tasks = min(len(jobs), _TASKS_MAX if slots is None else slots * _TASKS_PER_SLOT)
        work = _worker(
            path, storage, base.without_writers(), [jobs[n::tasks] for n in range(tasks)]
        )
        numbers = spark.range(0, tasks, 1, tasks).mapInArrow(work, "compactions bigint")
        return sum(row.compactions for row in numbers.collect())

    def once() -> int:
        return table.compact(full=full, run=run)

    if not serve:
        return once()
    return sum(serve_compactions(table.log, once, time.sleep))


def _worker(
    path: str, storage: Mapping[str, str], base: Manifest, jobs: Sequence[Sequence[Job]]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for running and committing jobs by their task's number."""
    is_large = bool(base.slice_list.leaves)
    planned = replace(base, slices=()) if is_large else base

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = Table(open_store(path, storage))
        own_base = table.log.at_planned(planned.version_ref, "it") if is_large else planned
        for batch in batches:
            for number in batch.column(0).to_pylist():
                count = table.compact_leased(own_base, jobs[number])
                yield pa.RecordBatch.from_arrays([pa.array([count])], schema=_COUNTS)

    return work
