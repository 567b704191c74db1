"""The data source ``upsertflow``, as Spark discovers it.

Spark imports every top-level module named ``pyspark_*`` in one process to find sources. So this one
must not raise, and imports the engine, pyarrow and numpy only for a reader or writer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_upsertflow.source import DefaultSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from os import PathLike

    from pyspark.sql import DataFrame, SparkSession

    from pyspark_upsertflow.metrics import Watch
    from pyspark_upsertflow.views import SparkView

__all__ = ["DefaultSource", "by_hash", "compact", "register", "view", "watch"]

_CORES_UNKNOWN = 8
"""Assumed cores of a session that does not report them (Spark Connect)."""


def register(spark: SparkSession) -> None:
    """Register ``format("upsertflow")`` for a session whose code is in an archive.

    See `pyspark_upsertflow.registration`. Not needed after ``pip install``.
    """
    from pyspark_upsertflow.registration import register as register_source

    register_source(spark)


def by_hash(
    df: DataFrame,
    path: str | PathLike[str],
    parts: int | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    **options: str,
) -> DataFrame:
    """Divide rows among the tasks of a write by the hash of the table's key.

    Each task then has a hash range of its own. It reads only this part of the table, the commit
    reads no staged file, and a first load needs no compaction. Spark shuffles the rows once.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        Rows with the table's key columns, in batch or as a stream; classic or Connect.
    path : str
        The table's path or URL. The table is created if it does not exist.
    parts : int, optional
        The number of tasks. By default the least power of two that uses all cores.
    storage_options : mapping of str to str, optional
        Object store settings: the ``storage.*`` options without their prefix.
    **options : str
        The options of the write, used if the table does not exist: ``keys``, ``sequenceBy``, ...

    Returns
    -------
    pyspark.sql.DataFrame
        The same rows and columns, with ``parts`` partitions.

    Raises
    ------
    SchemaError
        The rows lack a key column: decode records before.
    OptionError
        An option is invalid, or the path names columns (a write into many tables).

    Examples
    --------
    >>> from upsertflow import by_hash
    >>> write = {"keys": "id", "sequenceBy": "at"}
    >>> rows = by_hash(orders, "/lake/orders", **write)  # doctest: +SKIP
    >>> rows.write.format("upsertflow").options(**write).mode("append").save(
    ...     "/lake/orders"
    ... )  # doctest: +SKIP
    """
    from pyspark_upsertflow.registration import find_parallelism
    from pyspark_upsertflow.writers import by_hash as divide_by_hash
    from spark_upsert.store.open import checked_storage, path_text

    storage = {f"storage.{name}": text for name, text in checked_storage(storage_options).items()}
    if parts is None:
        cores = find_parallelism(df.sparkSession) or _CORES_UNKNOWN
        parts = 1 << (cores - 1).bit_length()
    return divide_by_hash(df, parts, {**options, **storage, "path": path_text(path)})


def compact(
    spark: SparkSession,
    path: str | PathLike[str],
    *,
    full: bool = False,
    serve: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> int:
    """Compact a table's runs by Spark tasks, which share hash ranges by leases.

    Each task commits its compactions, so an interrupted job can be run again, also next to another.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Classic or Connect.
    path : str
        The table's path or URL.
    full : bool
        Whether to leave one run everywhere, whatever the sizes.
    serve : bool
        Whether to compact after each new version, until interrupted.
    storage_options : mapping of str to str, optional
        Object store settings: the ``storage.*`` options without their prefix.

    Returns
    -------
    int
        The number of compactions, which change no query result.

    Examples
    --------
    >>> import upsertflow
    >>> settings = {"region": "eu-west-1"}
    >>> upsertflow.compact(spark, "s3://lake/orders", storage_options=settings)  # doctest: +SKIP
    7
    """
    from pyspark_upsertflow.registration import compact as compact_table
    from spark_upsert.store.open import checked_storage, path_text

    return compact_table(
        spark, path_text(path), full=full, serve=serve, storage=checked_storage(storage_options)
    )


def view(
    path: str | PathLike[str], *, storage_options: Mapping[str, str] | None = None
) -> SparkView:
    """Return a plan over a table, the start for a view.

    Parameters
    ----------
    path : str
        The table's path or URL.
    storage_options : mapping of str to str, optional
        Object store settings: the ``storage.*`` options without their prefix.

    Returns
    -------
    SparkView
        All rows in the table; its `stream` method returns their changes.

    Examples
    --------
    >>> from upsertflow import view
    >>> big = view("/lake/orders").filter("amount > 100")  # doctest: +SKIP
    >>> big.stream(spark).writeStream.start()  # doctest: +SKIP
    """
    from pyspark_upsertflow.views import SparkView

    return SparkView.of_table(path, storage_options)


def watch(
    spark: SparkSession,
    *paths: str | PathLike[str],
    tell: Callable[[Mapping[str, object]], object] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Watch:
    """Report each micro-batch in a session's streaming queries reading or writing a table.

    Each batch becomes a log line in ``spark_upsert.metrics`` (and a warning if a number indicates
    trouble), a dict, and a part of the metrics.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Classic or Connect.
    *paths : str
        Tables, or table templates, written by queries. A classic session finds them in its queries;
        a Connect session reads only the tables named here.
    tell : callable, optional
        Called with each batch as a dict, in a separate thread.
    storage_options : mapping of str to str, optional
        Object store settings for the paths: the ``storage.*`` options without their prefix.

    Returns
    -------
    Watch
        ``batches``, ``totals``, ``prometheus()`` and ``stop()``.

    Examples
    --------
    >>> import upsertflow
    >>> watching = upsertflow.watch(spark)  # doctest: +SKIP
    >>> watching.batches[-1]["inserts"]  # doctest: +SKIP
    1000
    """
    from pyspark_upsertflow.metrics import Watch
    from spark_upsert.metrics import SinkTarget
    from spark_upsert.store.open import checked_storage, path_text

    storage = checked_storage(storage_options)
    return Watch(spark, [SinkTarget.of(path_text(path), storage) for path in paths], tell=tell)
