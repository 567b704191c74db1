"""Another Python source: its class, found by name, and its stream reader, whatever its kind.

Spark drives such sources by a few private helpers (`pyspark.sql.datasource_internal`), which are
named here and, where releases differ, in `spark_upsert_sink.releases`. A source has one of two kinds of stream
readers, of which the *simple* one reads on the driver, while it is asked for the next offset.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, DataSourceStreamReader
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper, _streamReader
from pyspark.sql.types import StructType

from spark_upsert.conversions import convert
from spark_upsert.errors import OptionError, UpsertFlowError, did_you_mean
from spark_upsert.payloads.ddl import parse_schema
from spark_upsert_sink.releases import ends_at_what_is_there, simple_latest, spark_of

_PREFIX = "pyspark_"
_DISCOVERED = "DefaultSource"

SourceRows = Iterator[Any]
"""Tuples, or Arrow batches."""


@dataclass(frozen=True)
class PythonSource:
    """A Python source with its options; a value that is made into a reader where it is needed.

    Parameters
    ----------
    named : str
        The name that Spark would find it by, or ``module:Class``.
    options : mapping of str to str
        What it is handed.
    """

    named: str
    options: Mapping[str, str] = field(repr=False)

    @cached_property
    def made(self) -> DataSource:
        """The source itself."""
        cls = find_source(self.named)
        with failing(self.named, "its constructor"):
            return cls(CaseInsensitiveDict(dict(self.options)))

    def __getstate__(self) -> dict[str, Any]:
        return {"named": self.named, "options": dict(self.options)}

    @cached_property
    def schema(self) -> StructType:
        """Its columns."""
        with failing(self.named, "schema()"):
            found = self.made.schema()
        if isinstance(found, StructType):
            return found
        return spark_of(parse_schema("schema", found, bare_name="value")[0])

    @property
    def identity(self) -> str:
        """An identity that a source with the same options shares, under whatever name."""
        cls = type(self.made)
        own = sorted((name.lower(), text) for name, text in self.options.items())
        return f"Python source {cls.__module__}.{cls.__qualname__} {own}"

    def stream(self) -> ForeignStream:
        """Return a new stream reader."""
        with failing(self.named, "streamReader()"):
            try:
                reader = _streamReader(self.made, self.schema)
            except PySparkNotImplementedError as error:
                raise OptionError(
                    f"the Python source '{self.named}' has no stream reader.",
                    hint="choose another source, or read it in a batch.",
                    option="format",
                ) from error
        return ForeignStream(self.named, reader)


class ForeignStream:
    """The stream reader of another source, with both kinds alike."""

    def __init__(self, named: str, reader: DataSourceStreamReader) -> None:
        self._named = named
        self._reader = reader

    def initial(self) -> Any:
        """Return the offset before the first batch."""
        with failing(self._named, "initialOffset()"):
            return self._reader.initialOffset()

    def latest(self, start: Any) -> Any:
        """Return where a batch may end that begins at an offset."""
        with failing(self._named, "latestOffset()"):
            latest: Callable[..., Any] = self._reader.latestOffset
            if self._simple is not None:
                return simple_latest(self._simple, start)
            if not inspect.signature(latest).parameters:
                return latest()
            return latest(start, self._reader.getDefaultReadLimit())

    def prepare(self) -> bool:
        """Tell a source to end at what it has now; False if it does not know how."""
        owner: Any = self._reader if self._simple is None else self._simple.simple_reader
        if not ends_at_what_is_there(owner):
            return False
        with failing(self._named, "prepareForTriggerAvailableNow()"):
            owner.prepareForTriggerAvailableNow()
        return True

    def partitions(self, start: Any, end: Any) -> Sequence[Any]:
        """Return the partitions of a batch."""
        with failing(self._named, "partitions()"):
            return self._reader.partitions(start, end)

    def held(self, start: Any, end: Any) -> SourceRows | None:
        """Return the rows of a batch that a simple reader has read already, if it still has them."""
        if self._simple is None:
            return None
        with failing(self._named, "read(), whose rows must be an iterator that can be copied"):
            return self._simple.getCache(start, end)

    def read(self, partition: Any) -> SourceRows:
        """Return the rows of a partition."""
        with failing(self._named, "read()"):
            return iter(self._reader.read(partition))

    def commit(self, end: Any) -> None:
        """Tell the source that a batch is done."""
        with failing(self._named, "commit()"):
            self._reader.commit(end)

    def travelling(self) -> ForeignStream:
        """Return what a task needs of it: Spark hands the reader itself to tasks."""
        if self._simple is None:
            return self
        return ForeignStream(self._named, _SimpleStreamReaderWrapper(self._simple.simple_reader))

    @property
    def _simple(self) -> _SimpleStreamReaderWrapper | None:
        is_simple = isinstance(self._reader, _SimpleStreamReaderWrapper)
        return self._reader if is_simple else None  # type: ignore[return-value]


def find_source(named: str) -> type[DataSource]:
    """Return the class of a source.

    Raises
    ------
    OptionError
        There is none, or it is no Python source.
    """
    module_name, colon, class_name = named.partition(":")
    if not colon:
        return _discovered(named)
    try:
        found = getattr(importlib.import_module(module_name), class_name, None)
    except Exception as error:
        raise OptionError(
            f"the module '{module_name}' of 'python:{named}' cannot be imported: "
            f"{type(error).__name__}: {error}.",
            hint="install its package on the driver and on every executor.",
            option="format",
        ) from error
    if not (isinstance(found, type) and issubclass(found, DataSource)):
        raise OptionError(
            f"'python:{named}' is no class of a Python data source.",
            hint="write python:<module>:<Class>, for example "
            "python:pyspark_datasources:FakeDataSource.",
            option="format",
        )
    return found


def _discovered(name: str) -> type[DataSource]:
    """Return the source that Spark would discover under a name."""
    names: dict[str, type[DataSource]] = {}
    for each in pkgutil.iter_modules():
        if not each.name.startswith(_PREFIX):
            continue
        found = getattr(_imported(each.name), _DISCOVERED, None)
        if isinstance(found, type) and issubclass(found, DataSource):
            names.setdefault(found.name().lower(), found)
    if name.lower() not in names:
        raise OptionError(
            f"no Python source is discovered under the name '{name}': such are the classes "
            f"'{_DISCOVERED}' of top-level modules that begin with '{_PREFIX}'.",
            hint=f"{did_you_mean(name, names)} Or write python:<module>:<Class>; what a session "
            "has registered by hand is not known where inputs are planned.",
            option="format",
        )
    return names[name.lower()]


def _imported(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except Exception:  # noqa: BLE001 - a module that is broken is none that is looked for
        return None


class failing:
    """Say of a source which of its methods failed."""

    def __init__(self, named: str, what: str) -> None:
        self._named = named
        self._what = what

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, UpsertFlowError):
            raise source_failed(self._named, self._what, error) from error


def source_failed(named: str, what: str, error: Exception) -> UpsertFlowError:
    """Return the error of a method of a source that raised one."""
    return UpsertFlowError(
        f"the Python source '{named}' failed in {what}: {type(error).__name__}: {error}",
        hint="the fault is that source's, or that of its options.",
    )


def shrunken(before: Any, after: Any, where: str = "") -> str | None:
    """Return the first numeric field of an offset that has become smaller, with its values."""
    if isinstance(before, dict) and isinstance(after, dict):
        pairs: list[tuple[str, Any, Any]] = [
            (f"{where}.{key}" if where else str(key), value, after[key])
            for key, value in before.items()
            if key in after
        ]
    elif isinstance(before, list) and isinstance(after, list):
        pairs = [
            (f"{where}[{i}]", old, new)
            for i, (old, new) in enumerate(zip(before, after, strict=False))
        ]
    else:
        if not (_is_number(before) and _is_number(after)) or after >= before:
            return None
        return f"{where or 'it'}: {before} became {after}"
    return next((text for p in pairs if (text := shrunken(p[1], p[2], p[0])) is not None), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def projected(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return the columns that are wanted, in their types."""
    found = []
    for wanted in columns:
        column = batch.column(wanted.name)
        found.append(column if column.type == wanted.type else convert(column, wanted.type))
    return pa.RecordBatch.from_arrays(found, schema=columns)
