"""The formats of inputs: each says what an input is, and reads it, as a stream or in a batch.

A format that needs Spark lives beside Spark's readers and is handed in with the others; nothing is
registered, so that a process knows the formats that its code names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from spark_upsert.errors import about_input
from spark_upsert.options.inputs import TABLE, InputOptions, ReadPlan
from spark_upsert.options.parse import one_of
from spark_upsert.parallel import in_order
from spark_upsert.source.agreement import Described, agreed
from spark_upsert.source.batch import BatchRead
from spark_upsert.source.columns import read_columns
from spark_upsert.source.input import Input
from spark_upsert.source.inputs import Inputs, NamedInputs
from spark_upsert.source.merge_columns import (
    merge_fields,
    require_free,
    without_merge_columns,
)
from spark_upsert.source.packs import Reader
from spark_upsert.source.table_input import TableInput, open_table

_LOOKS = 16
"""So many inputs are looked at at once."""


class Bounded(Reader, Protocol):
    """What a batch read has of an input."""

    def splits(self) -> Sequence[Any]:
        """Return the work for the tasks."""
        ...


class Kind(Protocol):
    """What a format makes of the options of an input; checks them, and may read the storage."""

    def describe(self, options: InputOptions) -> Described:
        """Return the columns that a read has of the input, and what it is."""
        ...

    def stream(self, options: InputOptions, columns: pa.Schema) -> Input:
        """Return the input of a stream.

        Parameters
        ----------
        columns : pyarrow.Schema
            Those that were planned, without the columns about the merge.
        """
        ...

    def batch(self, options: InputOptions, columns: pa.Schema) -> Bounded:
        """Return what a batch reads of the input."""
        ...


class TableKind:
    """Tables (`TableInput`, `BatchRead`)."""

    def describe(self, options: InputOptions) -> Described:
        """Return the columns that a read has of a table (`Kind.describe`)."""
        own = options.of_table()
        table = open_table(own)
        return Described(read_columns(table, own), f"table {table.log.head().place.table_id}")

    def stream(self, options: InputOptions, columns: pa.Schema) -> Input:
        """Return a table as the input of a stream (`Kind.stream`)."""
        own = options.of_table()
        own.require_stream()
        return TableInput(own, columns)

    def batch(self, options: InputOptions, columns: pa.Schema) -> Bounded:
        """Return what a batch reads of a table (`Kind.batch`)."""
        own = options.of_table()
        own.require_batch()
        return BatchRead(own, columns)


Kinds = Mapping[str, Kind]
"""By the names of formats; what stands behind a colon in a format is the kind's own."""

KINDS: Kinds = {TABLE: TableKind()}
"""The formats that need no Spark."""


def kind_of(options: InputOptions, kinds: Kinds) -> Kind:
    """Return the kind of an input.

    Raises
    ------
    OptionError
        There is no such format.
    """
    with about_input(options.name):
        return kinds[one_of("format", options.format.partition(":")[0], list(kinds))]


def plan_columns(plan: ReadPlan, kinds: Kinds = KINDS) -> pa.Schema:
    """Return the columns of a read, those about the merge behind the others.

    Raises
    ------
    SchemaError
        The inputs do not agree.
    OptionError
        What is said of an input is wrong, or two are the same.
    """

    def describe(options: InputOptions) -> Described:
        with about_input(options.name):
            return kind_of(options, kinds).describe(options)

    threads = min(_LOOKS, len(plan.inputs))
    described = dict(
        zip(_names(plan.inputs), in_order(describe, plan.inputs, threads), strict=True)
    )
    if plan.is_unnamed:
        [only] = described.values()
        return only.columns
    own = agreed(described)
    require_free(own, plan.query.merge_columns)
    return pa.schema([*own, *merge_fields(plan.query.merge_columns)])


def stream_inputs(plan: ReadPlan, columns: pa.Schema, kinds: Kinds = KINDS) -> Inputs:
    """Return the inputs of a stream.

    Parameters
    ----------
    columns : pyarrow.Schema
        Those of the read (`plan_columns`).
    """
    own = without_merge_columns(columns, plan.query.merge_columns)
    found: dict[str, Input] = {}
    for each in plan.inputs:
        with about_input(each.name):
            found[each.name] = kind_of(each, kinds).stream(each, own)
    return NamedInputs(found, threads=_LOOKS)


def batch_inputs(plan: ReadPlan, columns: pa.Schema, kinds: Kinds = KINDS) -> dict[str, Bounded]:
    """Return what a batch reads, by the names of the inputs; parameters as in `stream_inputs`."""
    own = without_merge_columns(columns, plan.query.merge_columns)
    found: dict[str, Bounded] = {}
    for each in plan.inputs:
        with about_input(each.name):
            found[each.name] = kind_of(each, kinds).batch(each, own)
    return found


def _names(inputs: Iterable[InputOptions]) -> list[str]:
    return [each.name for each in inputs]
