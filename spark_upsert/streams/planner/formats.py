"""Formats of inputs, and batch reads of several: columns, splits, explanation (`InputFormat`).

Formats requiring Spark are passed in by the caller; there is no registry. It also refuses
forbidden option changes between restarts of a stream.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from textwrap import indent
from typing import Any, Protocol

import pyarrow as pa

from spark_upsert.core.names import has_column
from spark_upsert.errors import OptionError, about
from spark_upsert.options.declare import fold, one_of
from spark_upsert.options.inputs import (
    TABLE,
    UNNAMED,
    VIEW,
    DiscoveryOptions,
    InputOptions,
    ReadPlan,
)
from spark_upsert.options.read import READ_OPTIONS, Metadata, QueryOptions
from spark_upsert.plan.expressions import Pins
from spark_upsert.store.open import is_remote, open_store
from spark_upsert.store.records import MALFORMED, whole
from spark_upsert.streams.inputs.batch import BatchRead
from spark_upsert.streams.inputs.discovered import Discovery, FoundInputs
from spark_upsert.streams.inputs.group import GroupInputs, at_batch, pins
from spark_upsert.streams.inputs.inputs import (
    Described,
    Inputs,
    NamedInputs,
    common_schema,
    require_distinct_tables,
    union_schema,
)
from spark_upsert.streams.inputs.protocol import Input, Pushable
from spark_upsert.streams.inputs.table import TableInput, open_table, table_identity, wait_for_table
from spark_upsert.streams.inputs.view import ViewKind
from spark_upsert.streams.offsets.delta import FOLDER, Bases, CompactOffsets
from spark_upsert.streams.offsets.offset import Json, Offsets, PlainOffsets, canonical, without
from spark_upsert.streams.planner.poller import InputHeads, PollBounds
from spark_upsert.streams.reads.columns import (
    merge_fields,
    read_columns,
    require_unused_names,
    without_merge_columns,
)
from spark_upsert.streams.reads.explain import (
    SHOWN,
    explain_merge,
    format_count,
    format_field,
    format_omitted,
)
from spark_upsert.streams.reads.ordered import splits_in_order, steps_of, whole_passage
from spark_upsert.streams.reads.packing import (
    CONCURRENT_REQUESTS,
    InputReader,
    InputSplit,
    Pack,
    explain_packs,
    map_inputs,
    plan_packs,
)
from spark_upsert.streams.reads.read_split import TaskRead, read_work


class BatchInputReader(InputReader, Protocol):
    """An input for batch reads."""

    def splits(self) -> Sequence[Any]:
        """Return the tasks' splits."""
        ...

    def identity(self) -> str:
        """Return an id equal for the same data under any name."""
        ...

    def explain(self, splits: Sequence[Any]) -> str:
        """Describe the read of these splits as text."""
        ...


class InputFormat(Protocol):
    """Creates inputs from options; validates them, and may read the storage."""

    def describe(self, options: InputOptions) -> Described:
        """Return an input's read columns and identity."""
        ...

    def stream(self, options: InputOptions, columns: pa.Schema) -> Input:
        """Return a stream input."""
        ...

    def batch(self, options: InputOptions, columns: pa.Schema) -> BatchInputReader:
        """Return a batch reader."""
        ...


class TableKind:
    """The table format (`TableInput`, `BatchRead`)."""

    def describe(self, options: InputOptions) -> Described:
        """Return a table's read columns and identity (`InputFormat.describe`)."""
        table_options = options.of_table()
        table = wait_for_table(open_table(table_options), table_options.table_timeout_ms)
        if not table_options.change_feed:  # Changes have the newest columns, wherever they end.
            table_options = at_batch(table_options, table, options.pin)
        return Described(read_columns(table.log, table_options), table_identity(table))

    def stream(self, options: InputOptions, columns: pa.Schema) -> Input:
        """Return a table as a stream input (`InputFormat.stream`)."""
        table_options = options.of_table()
        table_options.require_stream()
        return TableInput(table_options, columns)

    def batch(self, options: InputOptions, columns: pa.Schema) -> BatchInputReader:
        """Return a table's batch reader (`InputFormat.batch`)."""
        table_options = options.of_table()
        table_options.require_batch()
        if options.pin is not None:
            table_options = at_batch(table_options, open_table(table_options), options.pin)
        return BatchRead(table_options, columns)


Kinds = Mapping[str, InputFormat]
"""Formats by name; text after a colon in a format option belongs to the format."""

KINDS: Kinds = {
    TABLE: TableKind(),
    VIEW: ViewKind(),
}
"""Formats usable without Spark."""


def kind_of(options: InputOptions, kinds: Kinds) -> InputFormat:
    """Return an input's format; raises `OptionError` for an unknown one."""
    with about("input", options.name):
        return kinds[one_of("format", options.format.partition(":")[0], list(kinds))]


def plan_columns(plan: ReadPlan, kinds: Kinds = KINDS) -> pa.Schema:
    """Return a read's columns, merge columns last."""
    plan = with_discovered_inputs(plan)

    described = map_inputs(
        _by_name(plan), lambda options: _describe(kind_of(options, kinds), options, plan)
    )
    if plan.is_unnamed:
        [description] = described.values()
        return description.columns
    query = plan.query
    schema = (
        union_schema(described, query.columns) if query.merge_schema else common_schema(described)
    )
    require_unused_names(schema, query.merge_columns)
    return pa.schema([*schema, *merge_fields(query.merge_columns)])


def stream_inputs(plan: ReadPlan, columns: pa.Schema, kinds: Kinds = KINDS) -> Inputs:
    """Return a stream's inputs."""
    own_columns = without_merge_columns(columns, plan.query.merge_columns)
    if plan.discovery is not None:
        discovery = plan.discovery
        make = partial(_make, plan, own_columns, kinds)
        if discovery.is_consistent:
            _refuse_as_of(discovery)
            return GroupInputs(discovery, make)
        lenient = not discovery.fail_on_data_loss
        return FoundInputs(
            _discovery(discovery), make, is_lenient=lenient, threads=CONCURRENT_REQUESTS
        )
    inputs = map_inputs(_by_name(plan), partial(_stream, plan, own_columns, kinds))
    return NamedInputs(inputs, threads=CONCURRENT_REQUESTS, may_lack=plan.query.allow_input_removal)


def batch_inputs(
    plan: ReadPlan, columns: pa.Schema, kinds: Kinds = KINDS
) -> dict[str, BatchInputReader]:
    """Return batch readers by input name."""
    plan = with_discovered_inputs(plan)
    own_columns = without_merge_columns(columns, plan.query.merge_columns)

    def batch(options: InputOptions) -> BatchInputReader:
        kind = kind_of(options, kinds)
        return kind.batch(options, _input_columns(kind, options, own_columns, plan))

    inputs = map_inputs(_by_name(plan), batch)
    if len(inputs) > 1:
        require_distinct_tables(map_inputs(inputs, lambda read: read.identity()))
    return inputs


def with_discovered_inputs(plan: ReadPlan) -> ReadPlan:
    """Return a plan with all discovered inputs; raises `OptionError` if there are none."""
    if plan.discovery is None or plan.inputs:
        return plan
    if plan.discovery.is_consistent:
        pinned = pins(plan.discovery)
        inputs = (plan.input_below(name, pin=pin) for name, pin in pinned.items())
        return replace(plan, inputs=tuple(inputs))
    tables = _discovery(plan.discovery)
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
    """Return a stream's offset form: compact if the options define a folder for bases, else plain."""
    path = plan.query.offsets_path
    if path is None and plan.discovery is not None:
        path = f"{plan.discovery.root.rstrip('/')}/{FOLDER}"
    if path is None:
        return PlainOffsets()
    return CompactOffsets(Bases(open_store(path, plan.storage)))


def stream_heads(plan: ReadPlan, inputs: Inputs) -> InputHeads:
    """Return the reader for a stream's input heads."""
    query = plan.query
    remote = any(map(is_remote, plan.paths))
    bounds = PollBounds.of(
        is_remote=remote,
        most_ms=query.discovery_ms,
        requests_per_s=query.discovery_requests,
    )
    return InputHeads(inputs, bounds=bounds, is_remote=remote)


def _refuse_as_of(below: DiscoveryOptions) -> None:
    if below.as_of is not None:
        raise OptionError(
            f"option '{below.as_of}' has no meaning in a stream.",
            hint="use spark.read, or consistent=true for a stream that is never ahead of the "
            "newest whole batch.",
            option=below.as_of,
        )


def _discovery(below: DiscoveryOptions) -> Discovery:
    return Discovery(
        open_store(below.root, below.storage), below.pattern, threads=CONCURRENT_REQUESTS
    )


def _make(plan: ReadPlan, columns: pa.Schema, kinds: Kinds, name: str, *, joins: bool) -> Input:
    with about("input", name):
        return _stream(plan, columns, kinds, plan.input_below(name, joins=joins))


def _stream(plan: ReadPlan, columns: pa.Schema, kinds: Kinds, options: InputOptions) -> Input:
    kind = kind_of(options, kinds)
    return kind.stream(options, _input_columns(kind, options, columns, plan))


def shared_columns(plan: ReadPlan, columns: pa.Schema) -> pa.Schema | None:
    """Return the conversion schema for each input's batches; None for a single unnamed input."""
    return None if plan.is_unnamed else without_merge_columns(columns, plan.query.merge_columns)


def _input_columns(
    kind: InputFormat, options: InputOptions, own: pa.Schema, plan: ReadPlan
) -> pa.Schema:
    """Return the planned columns present in an input, in its own types."""
    if not plan.query.merge_schema:
        return own
    names = list(_describe(kind, options, plan).columns)
    # Of an input that has none of them one column is read, so that its rows are there.
    return pa.schema([field for field in names if has_column(own, field.name)] or names[:1])


def _describe(kind: InputFormat, options: InputOptions, plan: ReadPlan) -> Described:
    """Describe an input; with all its columns if chosen ones may be missing."""
    return kind.describe(options.with_all_columns() if plan.query.merge_schema else options)


def _by_name(plan: ReadPlan) -> dict[str, InputOptions]:
    return {input_.name: input_ for input_ in plan.inputs}


_PYTHON = "python"
"""A format supported only in a process with Spark."""

_Splits = Mapping[str, Sequence[Any]]
"""Splits by input name."""


def explain_read(plan: ReadPlan, kinds: Kinds = KINDS) -> str:
    """Return a batch read's plan as text, from its splits; reads no rows."""
    plan.query.require_batch()
    _refuse_log_metadata(plan)
    plan = with_discovered_inputs(plan)
    readable = replace(plan, inputs=tuple(e for e in plan.inputs if not _needs_spark(e, kinds)))
    inputs: dict[str, BatchInputReader] = {}
    if readable.inputs:
        inputs = batch_inputs(readable, plan_columns(readable, kinds), kinds)
    splits = _input_splits(inputs, plan)
    if plan.is_unnamed:
        return inputs[UNNAMED].explain(splits[UNNAMED])
    tasks = _task_packs(inputs, splits, plan)
    how = "packed by bytes" if plan.query.order is None else "in an exact order"
    lines = [explain_merge(plan), *_inputs(plan, inputs, splits)]
    lines += [f"{format_count(len(tasks), 'task')}, {how}"]
    lines += explain_packs(splits, tasks, lambda name, split: inputs[name].split_bytes(split))
    return "\n".join(lines)


def _needs_spark(options: InputOptions, kinds: Kinds) -> bool:
    return fold(options.format.partition(":")[0].strip()) == _PYTHON and _PYTHON not in kinds


def _refuse_log_metadata(plan: ReadPlan) -> None:
    if not plan.is_of_table:
        return
    metadata = plan.inputs[0].of_table().metadata
    if metadata not in (None, Metadata.QUARANTINE, Metadata.GROUP):
        raise OptionError(
            f"metadata={metadata.value} is told by the log alone: there is nothing to explain.",
            hint="drop 'metadata' to explain a read of rows.",
            option="metadata",
        )


def _input_splits(inputs: Mapping[str, BatchInputReader], plan: ReadPlan) -> _Splits:
    """Return the inputs' splits; in an exact order without counting rows."""
    if plan.query.order is None:
        return map_inputs(inputs, lambda read: read.splits())
    named = {name: (name, read) for name, read in inputs.items()}
    return map_inputs(named, lambda of: splits_in_order(steps_of(*of)))


def _inputs(
    plan: ReadPlan, inputs: Mapping[str, BatchInputReader], splits: _Splits
) -> Iterator[str]:
    for input_ in islice(plan.inputs, SHOWN):
        name = input_.name
        text = inputs[name].explain(splits[name]) if name in inputs else _unplanned(input_)
        yield f"input '{name}'\n{indent(text, '  ')}"
    yield from format_omitted(len(plan.inputs), " inputs")


def _unplanned(options: InputOptions) -> str:
    why = "nothing: it is known where Spark runs, and its tasks come on top"
    source = options.format.partition(":")[2].strip()
    return "\n".join([f"the Python source '{source}'", *format_field("planned", why)])


def _task_packs(
    inputs: Mapping[str, BatchInputReader], splits: _Splits, plan: ReadPlan
) -> list[Pack]:
    """Return the splits per task."""
    if plan.query.order is None:
        return plan_packs(
            splits, lambda name, split: inputs[name].split_bytes(split), plan.query.slots
        )
    return [
        tuple(
            InputSplit(name, split)
            for name, input_splits in splits.items()
            for split in input_splits
        )
    ]


BEGAN = "began"
"""State key in an offset for the starting options of its new inputs."""

ANY = ""
"""Key for all inputs without their own entry; a single unnamed input has the same name."""

_DEFAULTS = {name: declared.default for name, declared in READ_OPTIONS.items()}
"""Default values for options missing in offsets: the writing releases had no others."""

Reads = Mapping[str, Mapping[str, Json]]
"""Options affecting the rows per step, by input name."""


def with_start_options(state: Mapping[str, Json], fresh: Mapping[str, Input]) -> dict[str, Json]:
    """Return the offset state for a batch, the first one for some inputs.

    It records whether each input began with a snapshot (`Input.start_options`), which positions do not
    contain.
    """
    remaining = without(state, BEGAN)
    begins = {name: start for name, input_ in fresh.items() if (start := input_.start_options())}
    return {**remaining, BEGAN: row_options_to_json(begins)} if begins else remaining


def require_same_start_options(state: Mapping[str, Json], fresh: Mapping[str, Input]) -> None:
    """Refuse to replay inputs' first batch with changed starting options; raises `OptionError`."""
    if (record := state.get(BEGAN)) is None:
        return
    try:
        recorded = row_options_from_json(record, None)
    except MALFORMED as error:
        raise OptionError(
            f"the checkpoint holds {record!r:.500}, which does not say how inputs began.",
            hint="the checkpoint was altered; give the query a new checkpointLocation.",
        ) from error
    now = {name: start for name, input_ in fresh.items() if (start := input_.start_options())}
    for name, option, was, is_ in _iter_differences(recorded, now):
        raise OptionError(
            f"the first batch{_input_suffix(name)} was planned and not delivered, with '{option}' {was}, and "
            f"is to be delivered with '{option}' {is_}.",
            hint=f"give '{option}' as it was, at least until that batch is delivered; or give the "
            "query a new checkpointLocation.",
            option=option,
            input=name,
        )


def collect_row_options(inputs: Mapping[str, Input]) -> dict[str, Mapping[str, Json]]:
    """Return each input's row-affecting options (`Input.row_options`), without empty ones."""
    return {
        name: decisions for name, input_ in inputs.items() if (decisions := input_.row_options())
    }


def row_options_to_json(reads: Reads) -> dict[str, Json]:
    """Return the stored form: each distinct value once, the first one as the default.

    ``{"kinds": [values], "of": {input: index of its value, if not 0}}``
    """
    texts = {name: canonical(dict(answer)) for name, answer in reads.items()}
    kinds = list(dict.fromkeys(texts.values()))
    index_by_text = {text: index for index, text in enumerate(kinds)}
    decisions = {text: dict(reads[name]) for name, text in texts.items()}
    return {
        "kinds": [decisions[text] for text in kinds],
        "of": {name: index_by_text[text] for name, text in texts.items() if index_by_text[text]},
    }


def row_options_from_json(
    record: Any, names: Sequence[str] | None
) -> dict[str, Mapping[str, Json]]:
    """Parse the stored form; raises `AttributeError`, `LookupError`, `TypeError` or `ValueError`."""
    kinds = [json.loads(canonical(dict(kind))) for kind in record["kinds"]]
    of = {str(name): whole(index, most=len(kinds) - 1) for name, index in record["of"].items()}
    if names is None:
        return {ANY: kinds[0], **{name: kinds[index] for name, index in of.items()}}
    if not of.keys() <= set(names):
        raise ValueError("an input is meant that is not named")
    return {name: kinds[of.get(name, 0)] for name in names} if kinds else {}


def require_same_row_options(before: Reads, now: Reads) -> None:
    """Refuse changed options affecting an exact order's row counts; raises `OptionError`."""
    for name, option, was, is_ in _iter_differences(before, now):
        raise OptionError(
            f"'{option}' was {was} when the rows of this exact order were counted, and is {is_} "
            f"now{_input_suffix(name)}.",
            hint=f"give '{option}' as it was, or give the query a new checkpointLocation.",
            option=option,
            input=name,
        )


def _iter_differences(before: Reads, now: Reads) -> Iterator[tuple[str, str, str, str]]:
    """Yield input, option, recorded value and current value where they differ."""
    for name, answer in now.items():
        recorded = before.get(name, before.get(ANY, answer))
        for option in sorted({*recorded, *answer}):
            was, is_ = (
                decisions.get(option, _DEFAULTS.get(option)) for decisions in (recorded, answer)
            )
            if was != is_:
                yield name, option, _option_text(was), _option_text(is_)


def _input_suffix(name: str) -> str:
    return f" of the input '{name}'" if name else ""


def _option_text(value: Json) -> str:
    return "not given" if value is None else canonical(value)


class MergedRead:
    """One batch read over all inputs; pickled into the tasks.

    Parameters
    ----------
    inputs : mapping of str to BatchInputReader
        In their declared order.
    query : QueryOptions
        Options for all inputs.
    columns : pyarrow.Schema, optional
        Schema to which all inputs' batches are converted; by default they stay unchanged.
    """

    def __init__(
        self,
        inputs: Mapping[str, BatchInputReader],
        query: QueryOptions,
        *,
        columns: pa.Schema | None = None,
    ) -> None:
        query.require_batch()
        self._inputs = inputs
        self._query = query
        self._columns = columns

    def push(self, pins: Pins) -> None:
        """Let inputs skip rows whose values differ from the pins, where that saves reading.

        The caller must filter the rows itself: an input may return all rows.
        """
        if self._query.order is None:
            for input_ in self._inputs.values():
                if isinstance(input_, Pushable):
                    input_.push(pins)

    def splits(self) -> list[TaskRead]:
        """Return the splits per task."""
        if self._query.order is not None:
            return [whole_passage(self._inputs, self._query.order)]
        splits = map_inputs(self._inputs, lambda each: each.splits())
        return [*plan_packs(splits, self._split_bytes, self._query.slots)]

    def _split_bytes(self, name: str, split: Any) -> int:
        return self._inputs[name].split_bytes(split)

    def read(self, work: TaskRead) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows."""
        yield from read_work(self._inputs, work, self._query, self._columns)
