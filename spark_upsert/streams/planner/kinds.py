"""The formats of inputs: each says what an input is, and reads it, as a stream or in a batch.

A format that needs Spark lives beside Spark's readers and is handed in with the others; nothing is
registered, so that a process knows the formats that its code names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from spark_upsert.errors import OptionError, about
from spark_upsert.model.names import has_column
from spark_upsert.options.below import Below
from spark_upsert.options.inputs import TABLE, VIEW, InputOptions, ReadPlan
from spark_upsert.options.parse import one_of
from spark_upsert.store.resolve import is_remote, open_store
from spark_upsert.streams.inputs.agreement import Described, agreed, merged, require_apart
from spark_upsert.streams.inputs.awaited import awaited
from spark_upsert.streams.inputs.batch import BatchRead
from spark_upsert.streams.inputs.discovery import Discovery
from spark_upsert.streams.inputs.found import FoundInputs
from spark_upsert.streams.inputs.group import GroupInputs
from spark_upsert.streams.inputs.group_reads import at_batch, pins
from spark_upsert.streams.inputs.input import Input
from spark_upsert.streams.inputs.inputs import Inputs, NamedInputs
from spark_upsert.streams.inputs.table import TableInput, open_table, table_identity
from spark_upsert.streams.inputs.view_kind import ViewKind
from spark_upsert.streams.offsets.bases import FOLDER, Bases
from spark_upsert.streams.offsets.compact import CompactOffsets
from spark_upsert.streams.offsets.offset import Offsets, PlainOffsets
from spark_upsert.streams.planner.heads import InputHeads
from spark_upsert.streams.planner.poll_schedule import PollBounds
from spark_upsert.streams.reads.columns import read_columns
from spark_upsert.streams.reads.merge_columns import (
    merge_fields,
    require_free,
    without_merge_columns,
)
from spark_upsert.streams.reads.packs import ASKED_AT_ONCE, InputReader, of_each


class Bounded(InputReader, Protocol):
    """An input of a batch read."""

    def splits(self) -> Sequence[Any]:
        """Return the work for the tasks."""
        ...

    def identity(self) -> str:
        """Return the same for what is the same, under whatever name."""
        ...

    def explain(self, splits: Sequence[Any]) -> str:
        """Return what reading these splits does, as text."""
        ...


class InputFormat(Protocol):
    """The input that a format makes of its options; checks them, and may read the storage."""

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
        """Return the columns that a read has of a table (`InputFormat.describe`)."""
        own = options.of_table()
        table = awaited(open_table(own), own.table_timeout_ms)
        if not own.change_feed:  # Changes have the newest columns, wherever they end.
            own = at_batch(own, table, options.pin)
        return Described(read_columns(table.log, own), table_identity(table))

    def stream(self, options: InputOptions, columns: pa.Schema) -> Input:
        """Return a table as the input of a stream (`InputFormat.stream`)."""
        own = options.of_table()
        own.require_stream()
        return TableInput(own, columns)

    def batch(self, options: InputOptions, columns: pa.Schema) -> Bounded:
        """Return what a batch reads of a table (`InputFormat.batch`)."""
        own = options.of_table()
        own.require_batch()
        if options.pin is not None:
            own = at_batch(own, open_table(own), options.pin)
        return BatchRead(own, columns)


Kinds = Mapping[str, InputFormat]
"""Formats by name; text after a colon in a format is the kind's own."""

KINDS: Kinds = {
    TABLE: TableKind(),
    VIEW: ViewKind(),
}
"""The formats that need no Spark."""


def kind_of(options: InputOptions, kinds: Kinds) -> InputFormat:
    """Return the kind of an input.

    Raises
    ------
    OptionError
        There is no such format.
    """
    with about("input", options.name):
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
    plan = with_found_inputs(plan)

    described = of_each(
        _by_name(plan), lambda options: _described(kind_of(options, kinds), options, plan)
    )
    if plan.is_unnamed:
        [only] = described.values()
        return only.columns
    query = plan.query
    own = merged(described, query.columns) if query.merge_schema else agreed(described)
    require_free(own, query.merge_columns)
    return pa.schema([*own, *merge_fields(query.merge_columns)])


def stream_inputs(plan: ReadPlan, columns: pa.Schema, kinds: Kinds = KINDS) -> Inputs:
    """Return the inputs of a stream.

    Parameters
    ----------
    columns : pyarrow.Schema
        Those of the read (`plan_columns`).
    """
    own = without_merge_columns(columns, plan.query.merge_columns)
    if plan.below is not None:
        below = plan.below
        make = partial(_make, plan, own, kinds)
        if below.is_consistent:
            _refuse_as_of_batch(below)
            return GroupInputs(below, make)
        lenient = not below.fail_on_data_loss
        return FoundInputs(_discovery(below), make, is_lenient=lenient, threads=ASKED_AT_ONCE)
    found = of_each(_by_name(plan), partial(_stream, plan, own, kinds))
    return NamedInputs(found, threads=ASKED_AT_ONCE, may_lack=plan.query.allow_input_removal)


def batch_inputs(plan: ReadPlan, columns: pa.Schema, kinds: Kinds = KINDS) -> dict[str, Bounded]:
    """Return what a batch reads, by the names of the inputs; parameters as in `stream_inputs`.

    Raises
    ------
    OptionError
        Two inputs are the same.
    """
    plan = with_found_inputs(plan)
    own = without_merge_columns(columns, plan.query.merge_columns)

    def batch(options: InputOptions) -> Bounded:
        kind = kind_of(options, kinds)
        return kind.batch(options, _had_by(kind, options, own, plan))

    found = of_each(_by_name(plan), batch)
    if len(found) > 1:
        require_apart(of_each(found, lambda read: read.identity()))
    return found


def with_found_inputs(plan: ReadPlan) -> ReadPlan:
    """Return a plan that names the inputs that are there to be found, looked for once.

    Raises
    ------
    OptionError
        There is none.
    """
    if plan.below is None or plan.inputs:
        return plan
    if plan.below.is_consistent:
        found = pins(plan.below)
        inputs = (plan.input_below(name, pin=pin) for name, pin in found.items())
        return replace(plan, inputs=tuple(inputs))
    tables = _discovery(plan.below)
    names = tables.tables(tables.folders())
    if not names:
        raise OptionError(
            f"no table is found by {tables}.",
            hint="check 'path' and 'inputsPattern' ('*' finds the tables directly below 'path'); "
            "a folder is a table from its first write on.",
            option="inputsPattern",
        )
    return replace(plan, inputs=tuple(map(plan.input_below, names)))


def stream_offsets(plan: ReadPlan) -> Offsets:
    """Return the form of a stream's offsets: where very many positions may lie decides it."""
    path = plan.query.offsets_path
    if path is None and plan.below is not None:
        path = f"{plan.below.root.rstrip('/')}/{FOLDER}"
    if path is None:
        return PlainOffsets()
    return CompactOffsets(Bases(open_store(path, plan.storage)))


def stream_heads(plan: ReadPlan, inputs: Inputs) -> InputHeads:
    """Return what learns the heads of the inputs of a stream."""
    query = plan.query
    remote = any(map(is_remote, plan.paths))
    bounds = PollBounds.of(
        is_remote=remote,
        most_ms=query.discovery_ms,
        requests_per_s=query.discovery_requests,
    )
    return InputHeads(inputs, bounds=bounds, is_remote=remote)


def _refuse_as_of_batch(below: Below) -> None:
    if below.as_of_batch is not None:
        raise OptionError(
            "option 'asOfBatch' has no meaning in a stream.",
            hint="use spark.read, or consistent=true for a stream that is never ahead of the "
            "newest whole batch.",
            option="asOfBatch",
        )


def _discovery(below: Below) -> Discovery:
    return Discovery(open_store(below.root, below.storage), below.pattern, threads=ASKED_AT_ONCE)


def _make(plan: ReadPlan, columns: pa.Schema, kinds: Kinds, name: str, *, joins: bool) -> Input:
    with about("input", name):
        return _stream(plan, columns, kinds, plan.input_below(name, joins=joins))


def _stream(plan: ReadPlan, columns: pa.Schema, kinds: Kinds, options: InputOptions) -> Input:
    kind = kind_of(options, kinds)
    return kind.stream(options, _had_by(kind, options, columns, plan))


def shared_columns(plan: ReadPlan, columns: pa.Schema) -> pa.Schema | None:
    """Return the columns that each input's batches are brought to; None: one input's stay."""
    return None if plan.is_unnamed else without_merge_columns(columns, plan.query.merge_columns)


def _had_by(kind: InputFormat, options: InputOptions, own: pa.Schema, plan: ReadPlan) -> pa.Schema:
    """Return those of the planned columns that an input has, in its own types."""
    if not plan.query.merge_schema:
        return own
    found = list(_described(kind, options, plan).columns)
    # Of an input that has none of them one column is read, so that its rows are there.
    return pa.schema([field for field in found if has_column(own, field.name)] or found[:1])


def _described(kind: InputFormat, options: InputOptions, plan: ReadPlan) -> Described:
    """Return what an input is; with all its columns if it may lack some that are chosen."""
    return kind.describe(options.with_all_columns() if plan.query.merge_schema else options)


def _by_name(plan: ReadPlan) -> dict[str, InputOptions]:
    return {each.name: each for each in plan.inputs}
