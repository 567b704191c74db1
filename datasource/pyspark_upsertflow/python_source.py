"""Other Python sources as inputs (`PythonInput`), by Spark's private helpers for them.

A source returns an end offset only for a start offset. That end is one step, and stays the same
until a batch takes it. A decreasing offset is an error, because Spark would lose rows.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import io
import json
import logging
import pickle
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from types import ModuleType
from typing import Any, NoReturn

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
)
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper, _streamReader
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    MapType,
    StringType,
    StructType,
    VariantType,
)
from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

from spark_upsert.core.casts import convert
from spark_upsert.core.lru import LruMap
from spark_upsert.core.threads import BATCH_BYTES, HAND_OFF_ROWS, split_batch
from spark_upsert.errors import (
    DataLossError,
    OptionError,
    SchemaError,
    UpsertFlowError,
    did_you_mean,
    setting,
)
from spark_upsert.options.declare import Options
from spark_upsert.options.inputs import InputOptions
from spark_upsert.options.read import READ_OPTIONS
from spark_upsert.payloads.ddl import parse_schema
from spark_upsert.streams.inputs.inputs import Described
from spark_upsert.streams.inputs.protocol import Backlog, Input, ReadPiece
from spark_upsert.streams.offsets.offset import Position
from spark_upsert.streams.planner.formats import KINDS as OF_THE_ENGINE
from spark_upsert.streams.planner.formats import Kinds
from spark_upsert.streams.reads.columns import select_fields
from spark_upsert.streams.reads.explain import format_columns, format_count
from spark_upsert.streams.reads.ordered import CountedStep, StreamStep, refuse_gaps
from spark_upsert_sink.types import (
    simple_latest_offset,
    supports_available_now,
    to_arrow_columns,
    to_spark_columns,
)

_LOGGER = logging.getLogger(__name__)


_PREFIX = "pyspark_"
_DISCOVERED = "DefaultSource"

SourceRows = Iterator[Any]
"""Tuples, or Arrow batches."""


@dataclass(frozen=True)
class PythonSource:
    """A Python source with its options, made into a reader on demand.

    Parameters
    ----------
    name : str
        The name by which Spark would find it, or ``module:Class``.
    options : mapping of str to str
        The options for its constructor.
    """

    name: str
    options: Mapping[str, str] = field(repr=False)

    @cached_property
    def instance(self) -> DataSource:
        """The source itself."""
        cls = find_source(self.name)
        with source_errors(self.name, "its constructor"):
            return cls(CaseInsensitiveDict(dict(self.options)))

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "options": dict(self.options)}

    @cached_property
    def schema(self) -> StructType:
        """The source's columns."""
        with source_errors(self.name, "schema()"):
            schema = self.instance.schema()
        if isinstance(schema, StructType):
            return schema
        return to_spark_columns(parse_schema("schema", schema, bare_name="value")[0])

    @property
    def identity(self) -> str:
        """An identity shared by equal sources with equal options, under any name."""
        cls = type(self.instance)
        normalized = sorted((name.lower(), text) for name, text in self.options.items())
        return f"Python source {cls.__module__}.{cls.__qualname__} {normalized}"

    def stream(self) -> ForeignStream:
        """Return a new stream reader."""
        with source_errors(self.name, "streamReader()"):
            try:
                reader = _streamReader(self.instance, self.schema)
            except PySparkNotImplementedError as error:
                raise OptionError(
                    f"the Python source '{self.name}' has no stream reader.",
                    hint="choose another source, or read it in a batch.",
                    option="format",
                ) from error
        return ForeignStream(self.name, reader)


class ForeignStream:
    """Another source's stream reader, with one interface for simple and full readers."""

    def __init__(self, name: str, reader: DataSourceStreamReader) -> None:
        self._name = name
        self._reader = reader

    def initial(self) -> Any:
        """Return the offset before the first batch."""
        with source_errors(self._name, "initialOffset()"):
            return self._reader.initialOffset()

    def latest_offset(self, start: Any) -> Any:
        """Return the end offset for a batch starting at an offset.

        Before Spark 4.2 a source's method is ``latestOffset()``; since then it may be
        ``latestOffset(start, limit)``. The source's own signature decides.
        """
        with source_errors(self._name, "latestOffset()"):
            spark_method: Callable[..., Any] = self._reader.latestOffset
            if self._simple_reader is not None:
                return simple_latest_offset(self._simple_reader, start)
            has_start_and_limit = bool(inspect.signature(spark_method).parameters)
            if not has_start_and_limit:
                return spark_method()
            return spark_method(start, self._reader.getDefaultReadLimit())

    def prepare(self) -> bool:
        """Make a source end at its present data; False if it does not support this."""
        owner: Any = (
            self._reader if self._simple_reader is None else self._simple_reader.simple_reader
        )
        if not supports_available_now(owner):
            return False
        with source_errors(self._name, "prepareForTriggerAvailableNow()"):
            owner.prepareForTriggerAvailableNow()
        return True

    def partitions(self, start: Any, end: Any) -> Sequence[Any]:
        """Return a batch's partitions."""
        with source_errors(self._name, "partitions()"):
            return self._reader.partitions(start, end)

    def cached_rows(self, start: Any, end: Any) -> SourceRows | None:
        """Return a batch's rows if a simple reader still has them cached; otherwise None."""
        if self._simple_reader is None:
            return None
        with source_errors(self._name, "read(), whose rows must be an iterator that can be copied"):
            return self._simple_reader.getCache(start, end)

    def read(self, partition: Any) -> SourceRows:
        """Return a partition's rows."""
        with source_errors(self._name, "read()"):
            return iter(self._reader.read(partition))

    def commit(self, end: Any) -> None:
        """Notify the source about a finished batch."""
        with source_errors(self._name, "commit()"):
            self._reader.commit(end)

    def without_cache(self) -> ForeignStream:
        """Return the reader to pickle for tasks; for a simple reader, without its cache."""
        if self._simple_reader is None:
            return self
        return ForeignStream(
            self._name, _SimpleStreamReaderWrapper(self._simple_reader.simple_reader)
        )

    @property
    def _simple_reader(self) -> _SimpleStreamReaderWrapper | None:
        """Spark's wrapper for a ``SimpleDataSourceStreamReader``; None for a full reader."""
        is_simple = isinstance(self._reader, _SimpleStreamReaderWrapper)
        return self._reader if is_simple else None  # type: ignore[return-value]


def find_source(name: str) -> type[DataSource]:
    """Return a source's class; raises `OptionError`."""
    module_name, colon, class_name = name.partition(":")
    if not colon:
        return _discovered(name)
    try:
        source_class = getattr(importlib.import_module(module_name), class_name, None)
    except Exception as error:
        raise OptionError(
            f"the module '{module_name}' of 'python:{name}' cannot be imported: "
            f"{type(error).__name__}: {error}.",
            hint="install its package on the driver and on every executor.",
            option="format",
        ) from error
    if not (isinstance(source_class, type) and issubclass(source_class, DataSource)):
        raise OptionError(
            f"'python:{name}' is no class of a Python data source.",
            hint="write python:<module>:<Class>, for example "
            "python:pyspark_datasources:FakeDataSource.",
            option="format",
        )
    return source_class


def _discovered(name: str) -> type[DataSource]:
    """Return the source discoverable by Spark under a name."""
    names: dict[str, type[DataSource]] = {}
    for iter_module in pkgutil.iter_modules():
        if not iter_module.name.startswith(_PREFIX):
            continue
        source_name = getattr(_imported(iter_module.name), _DISCOVERED, None)
        if isinstance(source_name, type) and issubclass(source_name, DataSource):
            names.setdefault(source_name.name().lower(), source_name)
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
    except Exception:  # noqa: BLE001 - a broken module is not the requested one
        return None


class source_errors:
    """Name the source and its failed method in errors from the body."""

    def __init__(self, name: str, what: str) -> None:
        self._name = name
        self._what = what

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, UpsertFlowError):
            raise source_error(self._name, self._what, error) from error


def source_error(name: str, what: str, error: Exception) -> UpsertFlowError:
    """Return the error for a source's failed method."""
    return UpsertFlowError(
        f"the Python source '{name}' failed in {what}: {type(error).__name__}: {error}",
        hint="the fault is that source's, or that of its options.",
    )


def find_decrease(before: Any, after: Any, where: str = "") -> str | None:
    """Return an offset's first decreased numeric field, with both values; else None."""
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
    return next(
        (text for p in pairs if (text := find_decrease(p[1], p[2], p[0])) is not None), None
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def project(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return the selected columns, cast to their planned types."""
    selected = []
    for wanted_name in columns:
        column = batch.column(wanted_name.name)
        selected.append(
            column if column.type == wanted_name.type else convert(column, wanted_name.type)
        )
    return pa.RecordBatch.from_arrays(selected, schema=columns)


_READERS_MAX = 16
"""Maximum idle readers cached per process between tasks."""

_SPLIT_BYTES = 1 << 20
"""Assumed bytes for a partition with unknown size."""

_HEAD = Position.of({})
_KEYS = frozenset({"offset", "origin"})


@dataclass(frozen=True, slots=True)
class PythonSplit:
    """Another source's partition, or its already read rows."""

    reader: bytes
    """Pickled, as Spark passes it to tasks."""
    partition: bytes | None
    rows: bytes | None = None
    """An Arrow stream."""


class PythonKind:
    """Python sources as input format: ``python:name``, ``python:module:Class``."""

    def describe(self, options: InputOptions) -> Described:
        """Return the source's columns for a read (`Kind.describe`)."""
        source, of_query = _source(options)
        columns = to_arrow_columns(source.schema)
        return Described(select_fields(columns, of_query.names("columns")), source.identity)

    def stream(self, options: InputOptions, columns: pa.Schema) -> PythonInput:
        """Return the source as a stream input (`Kind.stream`)."""
        source, of_query = _source(options)
        fail = of_query.flag("failOnDataLoss", default=True)
        return PythonInput(source, columns, fail_on_data_loss=fail)

    def batch(self, options: InputOptions, columns: pa.Schema) -> PythonBatch:
        """Return the source as a batch input (`Kind.batch`)."""
        return PythonBatch(_source(options)[0], columns)


def _source(options: InputOptions) -> tuple[PythonSource, Options]:
    name = options.format.partition(":")[2].strip()
    if not name:
        raise OptionError.invalid("format", options.format, "python:name or python:module:Class")
    return PythonSource(name, dict(options.own)), Options(options.shared, READ_OPTIONS)


class PythonInput(Input):
    """A Python stream source's rows.

    Parameters
    ----------
    source : PythonSource
    columns : pyarrow.Schema
        The planned columns.
    fail_on_data_loss : bool
        Whether a decreasing offset is an error.
    """

    def __init__(
        self, source: PythonSource, columns: pa.Schema, *, fail_on_data_loss: bool = True
    ) -> None:
        self._source = source
        self._columns = columns
        self._fail_on_data_loss = fail_on_data_loss
        self._stream: ForeignStream | None = None
        self._answer: tuple[str, Position] | None = None
        self._last: Position | None = None
        self._done: Position | None = None
        self._is_frozen = False

    def __getstate__(self) -> dict[str, Any]:
        # Tasks only read, and the splits contain their readers.
        return {**self.__dict__, "_stream": None, "_answer": None, "_last": None, "_done": None}

    # -- planning --------------------------------------------------------------------

    def head(self) -> Position:
        """Return an empty position: the source returns an end offset only for a start offset."""
        return _HEAD

    def identity(self) -> str:
        """Return the source's identity (`Input.identity`)."""
        return self._source.identity

    def freeze(self) -> None:
        """Make the source end at its present data, or at its next end offset if it cannot."""
        self._is_frozen = not self._opened().prepare()
        self._answer = self._last = None

    def backlog(self, position: Position | None, head: Position | None = None) -> Backlog:
        """Return the source's data after a position (`Input.backlog`)."""
        start = self._initial() if position is None else position
        end = self._end(start)
        piece = ReadPiece(steps=1, epochs=1, after=lambda _: end)
        return Backlog(
            start=start,
            pieces=() if end == start else (piece,),
            reach=lambda: end,
            end=lambda: end,
            is_all=False,
        )

    def _end(self, start: Position) -> Position:
        """Return a batch's end position; it stays the same until a batch takes it."""
        if self._answer is not None and self._answer[0] == start.text:
            return self._answer[1]
        if self._is_frozen and self._last is not None:
            return start
        text, origin = _unpacked(start)
        before = json.loads(text)
        self._report_commit()
        after = self._opened().latest_offset(before)
        end = start if after == before else _packed(json.dumps(after), origin)
        self._require_forward(before, after)
        if end != start:
            self._answer = start.text, end
            self._last = end
        return end

    def splits(self, start: Position | None, end: Position) -> list[PythonSplit]:
        """Return the partitions between two positions (`Input.splits`)."""
        last, origin = _unpacked(end)
        first = origin if start is None else _unpacked(start)[0]
        if first == last:
            return []
        before, after = json.loads(first), json.loads(last)
        stream = self._opened()
        reader = _pickled(self._source, stream.without_cache())
        partitions = stream.partitions(before, after)
        cached = stream.cached_rows(before, after)
        if cached is not None:
            return [PythonSplit(reader, None, self._to_arrow_stream(cached))]
        return [PythonSplit(reader, _pickled(self._source, partition)) for partition in partitions]

    def steps(self, start: Position | None, end: Position) -> Iterator[StreamStep]:
        """Yield the partitions between two positions (`SteppedInput.steps`).

        All of them belong to one batch. Their row counts are unknown until they are read.
        """
        refuse_gaps(fail_on_data_loss=self._fail_on_data_loss)
        for step in _steps(self._source, self.splits(start, end)):
            yield StreamStep(rows=step.rows, split=step.split, after=lambda: end)

    def split_bytes(self, split: PythonSplit) -> int:
        """Estimate a split's bytes (`Input.split_bytes`)."""
        return _SPLIT_BYTES if split.rows is None else len(split.rows)

    def commit(self, position: Position) -> None:
        """Report a finished batch to the source at its next request (`Input.commit`).

        Spark's own report is too early: some sources forget their last end offset at a commit.
        """
        self._done = position

    def _report_commit(self) -> None:
        if self._done is not None:
            self._opened().commit(json.loads(_unpacked(self._done)[0]))
            self._done = None

    def _opened(self) -> ForeignStream:
        if self._stream is None:
            self._stream = self._source.stream()
        return self._stream

    def _initial(self) -> Position:
        text = json.dumps(self._opened().initial())
        return _packed(text, text)

    def _require_forward(self, before: Any, after: Any) -> None:
        message = find_decrease(before, after)
        if message is None:
            return
        error = DataLossError(
            f"the offset of the Python source '{self._source.name}' goes back ({message}): what "
            "comes until it is where it was would be lost, or come twice.",
            hint="such a source cannot go on after a restart: give the query a new "
            f"checkpointLocation. If the number means something else, set "
            f"{setting('failOnDataLoss', 'false')}.",
        )
        if self._fail_on_data_loss:
            raise error
        _LOGGER.warning("an offset goes back: %s", error.message)

    def _to_arrow_stream(self, rows: SourceRows) -> bytes:
        """Return rows as an Arrow stream, to send them to a task."""
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, self._columns) as writer:
            for batch in _batches(self._source, rows, self._columns):
                writer.write_batch(batch)
        return sink.getvalue()

    # -- reading, in the tasks -------------------------------------------------------

    def read(self, split: PythonSplit) -> Iterator[pa.RecordBatch]:
        """Yield a partition's rows (`Input.read`)."""
        if split.rows is not None:
            with pa.ipc.open_stream(split.rows) as reader:
                yield from reader
            return
        assert split.partition is not None
        with source_errors(self._source.name, "unpickling"):
            stream, partition = _READERS.take(split.reader), pickle.loads(split.partition)
        yield from _batches(self._source, stream.read(partition), self._columns)
        _READERS.put_back(split.reader, stream)


class PythonBatch:
    """A Python source's batch."""

    def __init__(self, source: PythonSource, columns: pa.Schema) -> None:
        self._source = source
        self._columns = columns

    def __getstate__(self) -> dict[str, Any]:
        return {"_source": self._source, "_columns": self._columns}

    @cached_property
    def _reader(self) -> DataSourceReader:
        with source_errors(self._source.name, "reader()"):
            return self._source.instance.reader(self._source.schema)

    def splits(self) -> Sequence[PythonSplit]:
        """Return the splits for the tasks."""
        partitions: Sequence[Any] = []
        with source_errors(self._source.name, "partitions()"), suppress(PySparkNotImplementedError):
            partitions = self._reader.partitions()
        reader = _pickled(self._source, self._reader)
        return [
            PythonSplit(reader, _pickled(self._source, partition))
            for partition in partitions or [None]
        ]

    def steps(self) -> list[CountedStep]:
        """Return the partitions in source order; their rows cannot be counted."""
        return _steps(self._source, self.splits())

    def identity(self) -> str:
        """Return the source's identity."""
        return self._source.identity

    def explain(self, splits: Sequence[PythonSplit]) -> str:
        """Describe the read of these splits as text."""
        lines = [
            f"the Python source '{self._source.name}'",
            *format_columns(self._columns.names),
            format_count(len(splits), "split"),
        ]
        return "\n".join(lines)

    def split_bytes(self, split: PythonSplit) -> int:
        """Estimate a split's bytes."""
        return _SPLIT_BYTES

    def read(self, split: PythonSplit) -> Iterator[pa.RecordBatch]:
        """Yield a partition's rows, in a task."""
        assert split.partition is not None
        with source_errors(self._source.name, "read()"):
            reader, partition = pickle.loads(split.reader), pickle.loads(split.partition)
            rows = iter(reader.read(partition))
        yield from _batches(self._source, rows, self._columns)


def _steps(source: PythonSource, splits: Iterable[PythonSplit]) -> list[CountedStep]:
    """Return partitions as steps for an exact order without row counts."""

    def rows() -> NoReturn:
        raise OptionError(
            f"how many rows the Python source '{source.name}' has is known only once they are "
            "read, and this order counts them beforehand.",
            hint="use merge=concat without 'maxRowsPerTrigger' and without '_merge_seq'; or leave "
            "out 'merge' and 'interleaveSeed' to take what is ready first.",
            option="merge",
        )

    def step(split: PythonSplit) -> CountedStep:
        return CountedStep(rows=rows, split=lambda: split)

    return [step(split) for split in splits]


def _pickled(source: PythonSource, value: Any) -> bytes:
    """Pickle a value for tasks; its class may be defined in a script."""
    dumps: Any = cloudpickle.dumps
    with source_errors(source.name, "pickling"):
        pickled: bytes = dumps(value)
    return pickled


def _batches(
    source: PythonSource, rows: SourceRows, columns: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield a source's rows as batches with the planned columns."""
    expected = to_arrow_columns(source.schema)
    with source_errors(source.name, "read()"):
        for batch in _arrow_batches(source, rows):
            # Spark checks only the first one.
            if batch.schema.names != expected.names or batch.schema.types != expected.types:
                raise SchemaError(
                    f"the Python source '{source.name}' returned a batch of "
                    f"{_shown(batch.schema)}, and says that it has {_shown(expected)}.",
                    hint="the fault is that source's.",
                )
            yield project(batch, columns)


def _arrow_batches(source: PythonSource, rows: SourceRows) -> Iterator[pa.RecordBatch]:
    """Yield a source's rows as Arrow batches: its own, or tuples in portions."""
    first = list(islice(rows, 1))
    rows = chain(first, rows)
    if first and isinstance(first[0], pa.RecordBatch):
        yield from records_to_arrow_batches(rows, HAND_OFF_ROWS, source.schema, source.instance)
        return
    for portion in iter_tuple_portions(rows, source.schema):
        batches = records_to_arrow_batches(
            iter(portion), len(portion), source.schema, source.instance
        )
        for batch in batches:  # A text may have more bytes than characters.
            yield from split_batch(batch)


_LOOKED_AT = 64
"""Tuples in the first portion, before their size is known."""

_GROWTH = 8
"""Maximum growth factor from one portion to the next."""


def iter_tuple_portions(
    rows: Iterator[Any],
    schema: StructType,
    *,
    rows_max: int = HAND_OFF_ROWS,
    bytes_max: int = BATCH_BYTES,
) -> Iterator[list[Any]]:
    """Yield rows in lists with at most so many rows and bytes; one row may be larger.

    Each portion's row count follows from the previous portion's size, so few large rows are taken
    at once.
    """
    count = min(rows_max, _LOOKED_AT)
    while taken := list(islice(rows, count)):
        size = _estimate_rows_bytes(taken, schema)
        yield from _split_by_bytes(taken, bytes_max) if size > bytes_max else [taken]
        count = min(rows_max, _GROWTH * count, max(1, bytes_max * len(taken) // size))


def _estimate_rows_bytes(rows: list[Any], schema: StructType) -> int:
    """Estimate rows' Arrow bytes, at least 1; fast for plain columns."""
    size = 8 * len(rows) * len(schema.fields) or 1
    try:
        for at, field in enumerate(schema.fields):
            if isinstance(field.dataType, StringType | BinaryType):
                size += sum(map(len, filter(None, [row[at] for row in rows])))
            elif isinstance(field.dataType, ArrayType | MapType | StructType | VariantType):
                size += sum(_estimate_bytes(row[at]) for row in rows)
    except (IndexError, KeyError, TypeError):  # Not tuples with these columns.
        return max(1, sum(map(_estimate_bytes, rows)))
    return size


def _split_by_bytes(rows: list[Any], bytes_max: int) -> Iterator[list[Any]]:
    """Yield rows in lists with at most so many bytes."""
    portion: list[Any] = []
    size = 0
    for row in rows:
        row_size = _estimate_bytes(row)
        if portion and size + row_size > bytes_max:
            yield portion
            portion, size = [], 0
        portion.append(row)
        size += row_size
    yield portion


def _estimate_bytes(value: Any) -> int:
    """Estimate a value's Arrow bytes."""
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_estimate_bytes(key) + _estimate_bytes(item) for key, item in value.items())
    if isinstance(value, tuple | list):
        return sum(map(_estimate_bytes, value))
    return 8


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _packed(offset: str, origin: str) -> Position:
    return Position.of({"offset": offset, "origin": origin})


def _unpacked(position: Position) -> tuple[str, str]:
    """Return the texts for a position's offset and for the initial offset."""
    record = position.record
    if record.keys() != _KEYS:
        raise OptionError(
            f"the checkpoint of this query stands at {position.text:.200}, which is no position in "
            "a Python source.",
            hint="the input was of another format when the checkpoint was made: give it a new "
            "name, or give the query a new checkpointLocation.",
        )
    return record["offset"], record["origin"]


class _Readers:
    """Idle readers by their pickled form; a running task owns its reader alone."""

    def __init__(self) -> None:
        self._idle: LruMap[str, ForeignStream] = LruMap(_READERS_MAX)

    def take(self, pickled: bytes) -> ForeignStream:
        """Return a reader unused by other threads."""
        reader = self._idle.pop(_key(pickled))
        return pickle.loads(pickled) if reader is None else reader

    def put_back(self, pickled: bytes, reader: ForeignStream) -> None:
        """Cache a reader after its rows were read to their end."""
        self._idle.put(_key(pickled), reader)


def _key(pickled: bytes) -> str:
    return hashlib.sha256(pickled).hexdigest()


_READERS = _Readers()


KINDS: Kinds = {**OF_THE_ENGINE, "python": PythonKind()}
