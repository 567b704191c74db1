"""Routing of rows to tables (`Router`), and a task's spool of rows per table (`Spool`).

Python looks at distinct values only. The spool returns a table's rows in arrival order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.lru import LruMap
from spark_upsert.core.names import find_column
from spark_upsert.core.path_template import Template
from spark_upsert.errors import DataError, SchemaError, setting
from spark_upsert.store.local import translated
from spark_upsert.store.spill import SpillFolder

ROUTES_KEPT_MAX = 20_000
"""Cached routes per process, some MB; more distinct values suggest a wrong column."""

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Route:
    """Target table for rows with the same values."""

    values: tuple[str | None, ...]
    """One text per template column."""
    folder: str | None
    """Table folder relative to the root; None if the values name no table."""
    name: str
    """Table name for users."""
    problem: DataError | None = None
    """Reason for a missing folder."""


@dataclass(frozen=True, slots=True)
class RoutedBatch:
    """A record batch with a route per row."""

    batch: pa.RecordBatch
    routes: tuple[Route, ...]
    """Distinct routes in code order, each with at least one row."""
    codes: Codes
    """Each row's route index, shape (n,)."""

    def split(self) -> list[tuple[Route, pa.RecordBatch]]:
        """Return each route's rows in arrival order; copies the batch at most once."""
        if len(self.routes) <= 1:
            return [(route, self.batch) for route in self.routes]
        batch, codes = self.batch, self.codes
        if (codes[1:] < codes[:-1]).any():
            order = np.argsort(codes, kind="stable")
            batch, codes = batch.take(pa.array(order)), codes[order]
        ends = np.searchsorted(codes, np.arange(len(self.routes)), side="right").tolist()
        return [
            (route, batch.slice(first, end - first))
            for route, first, end in zip(self.routes, [0, *ends], ends, strict=False)
        ]


class Router:
    """Computes routes for batches with one schema.

    Parameters
    ----------
    template : Template
    schema : pyarrow.Schema
        The incoming rows' schema.
    """

    def __init__(self, template: Template, schema: pa.Schema) -> None:
        self._template = template
        self._paths = [find_nested(column, schema) for column in template.columns]
        self._kept: LruMap[tuple[str | None, ...], Route] = LruMap(ROUTES_KEPT_MAX)

    def route(self, batch: pa.RecordBatch) -> RoutedBatch:
        """Return each row's route."""
        codes, values = _combine_codes([_encode_column(batch, path) for path in self._paths])
        return RoutedBatch(batch, tuple(map(self._route, values)), codes)

    def _route(self, values: tuple[str | None, ...]) -> Route:
        route = self._kept.get(values)
        if route is None:
            route = route_of(self._template, values)
            self._kept.put(values, route)
        return route


def route_of(template: Template, values: Sequence[str | None]) -> Route:
    """Return the route for some values; an invalid value sets its `problem`."""
    texts = ["" if value is None else value for value in values]
    name = template.name(texts)
    try:
        for column, value in zip(template.columns, values, strict=True):
            if value is None or not _is_utf8(value):
                raise DataError(
                    f"{column} is {'null' if value is None else 'no UTF-8'}, and so names no "
                    "table.",
                    hint="give such rows a value, or filter them out before the write. With "
                    f"{setting('onTableError', 'park')} or {setting('onError', 'quarantine')} "
                    "they are kept apart, and counted.",
                    column=column,
                )
        return Route(tuple(values), template.folder(texts), name)
    except DataError as error:
        return Route(tuple(values), None, name, error)


def find_nested(column: str, schema: pa.Schema) -> tuple[str, ...]:
    """Return the path to a template column: a column name, or a chain through structs."""
    role = "column of the path"
    names, fields = column.split("."), schema.names
    if column in fields:
        path: tuple[str, ...] = (column,)
        type_ = schema.field(column).type
    else:
        path, type_ = (), pa.struct(schema)
        for at, name in enumerate(names):
            if not pa.types.is_struct(type_):
                raise SchemaError(
                    f"the {role} '{column}' leads into '{'.'.join(path)}', which is no struct but "
                    f"{type_}.",
                    hint=f"write {{{'.'.join(path)}}}, or name a field of a struct.",
                    column=column,
                )
            available = [field.name for field in type_]
            field_name = find_column(name, available, role=f"{role} '{column}', as" if at else role)
            path, type_ = (*path, field_name), type_.field(field_name).type
    if not _names_tables(type_):
        raise SchemaError(
            f"the {role} '{column}' is {type_}, and a table is named by a text, a whole number, a "
            "truth value or a date.",
            hint=f"cast it: withColumn('{column}', col('{column}').cast('string')).",
            column=column,
        )
    return path


def _names_tables(type_: pa.DataType) -> bool:
    if pa.types.is_dictionary(type_):
        return _names_tables(type_.value_type)
    kinds = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_integer,
        pa.types.is_boolean,
        pa.types.is_date32,
    )
    return any(is_kind(type_) for is_kind in kinds)


def _encode_column(batch: pa.RecordBatch, path: Sequence[str]) -> tuple[Codes, list[str | None]]:
    """Return a code per row and distinct texts by code; a null text comes last."""
    column = reduce(pc.struct_field, path[1:], batch.column(path[0]))
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)  # Its own may have a value twice.
    encoded = column.dictionary_encode()
    texts = _texts(encoded.dictionary)
    codes = encoded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, [*texts, None] if encoded.null_count else texts


def _texts(values: pa.Array) -> list[str | None]:
    """Convert values to texts; invalid UTF-8, which Spark allows, becomes lone surrogates."""
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        raw = values.cast(pa.large_binary()).to_pylist()
        return [raw_text.decode(errors="surrogateescape") for raw_text in raw]
    texts: list[str | None] = values.cast(pa.string()).to_pylist()
    return texts


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _combine_codes(
    columns: Sequence[tuple[Codes, list[str | None]]],
) -> tuple[Codes, list[tuple[str | None, ...]]]:
    """Return a code per row and the values by code; only codes in use."""
    codes, texts = columns[0]
    values: list[tuple[str | None, ...]] = [(text,) for text in texts]
    for codes_next, texts_next in columns[1:]:
        both = pa.array(codes * max(len(texts_next), 1) + codes_next).dictionary_encode()
        codes = both.indices.to_numpy().astype(np.int64)
        pairs = (divmod(code, len(texts_next)) for code in both.dictionary.to_pylist())
        values = [(*values[one], texts_next[second]) for one, second in pairs]
    return codes, values


RoutingValues = tuple[str | None, ...]
"""Template values identifying a table."""

MEMORY_BYTES = 32 << 20
"""Spill threshold. Cutting by table holds the rows twice."""

_FILE = "rows.arrow"


class Spool:
    """Collects rows with one schema and returns them by table.

    A context manager: removes its spill file on exit.

    Parameters
    ----------
    router : Router
        Finds each row's table.
    memory_bytes : int
        Spill threshold.
    """

    def __init__(self, router: Router, *, memory_bytes: int = MEMORY_BYTES) -> None:
        self._router = router
        self._memory_bytes = memory_bytes
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._counts: dict[RoutingValues, int] = {}
        self._routes: dict[RoutingValues, Route] = {}
        self._spilled: dict[RoutingValues, list[int]] = {}
        """Batch indexes in the spill file."""
        self._spilled_count = 0
        self._kept: dict[RoutingValues, list[pa.RecordBatch]] = {}
        self._folder: SpillFolder | None = None
        self._sink: pa.NativeFile | None = None
        self._writer: Any = None
        self._reader: Any = None
        self.bytes = 0
        """Total bytes added."""

    def __repr__(self) -> str:
        rows = sum(self._counts.values())
        return f"Spool(rows={rows:_}, bytes={self.bytes:_}, spilled={self._spilled_count})"

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reader = self._writer = None
        if self._sink is not None:
            self._sink.close()
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows; spills above the memory limit."""
        if not batch.num_rows:
            return
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        self.bytes += batch.nbytes
        if self._waiting_bytes >= self._memory_bytes:
            self._spill()

    def seal(self) -> dict[Route, int]:
        """Return row counts by route, sorted by folder; no rows may be added afterwards.

        Rows without a folder come first.
        """
        if self._writer is not None and self._waiting:
            self._spill()
        for route, rows in self._cut_by_table():
            self._kept.setdefault(route.values, []).append(rows)
        if self._writer is not None:
            self._writer.close()
            assert self._sink is not None
            assert self._folder is not None
            self._sink.close()
            mapped = pa.memory_map(str(self._folder.path / _FILE))
            self._reader = pa.ipc.open_file(mapped)
        ordered = sorted(self._routes.values(), key=lambda route: (route.folder or "", route.name))
        return {route: self._counts[route.values] for route in ordered}

    def rows(self, route: Route) -> Iterator[pa.RecordBatch]:
        """Yield a table's rows in arrival order. Call `seal` first."""
        for index in self._spilled.get(route.values, ()):
            yield self._reader.get_batch(index)
        yield from self._kept.get(route.values, ())

    def _cut_by_table(self) -> Iterator[tuple[Route, pa.RecordBatch]]:
        """Yield buffered rows by table and empty the buffer."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        batches = pa.Table.from_batches(waiting).combine_chunks().to_batches() if waiting else ()
        for batch in batches:
            for route, rows in self._router.route(batch).split():
                self._routes.setdefault(route.values, route)
                self._counts[route.values] = self._counts.get(route.values, 0) + rows.num_rows
                yield route, rows

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = SpillFolder()
        with translated("write to a file in", self._folder.path):
            if self._writer is None:
                self._sink = pa.OSFile(str(self._folder.path / _FILE), "wb")
                self._writer = pa.ipc.new_file(self._sink, self._waiting[0].schema)
            for route, rows in self._cut_by_table():
                self._writer.write_batch(rows)
                self._spilled.setdefault(route.values, []).append(self._spilled_count)
                self._spilled_count += 1
