"""The plan of a batch read, as text: how inputs are merged, what is read of each, and the tasks.

The text describes the splits that the tasks would get. Making it reads no rows: in an exact order,
rows that the log does not count stay uncounted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from textwrap import indent
from typing import Any

from spark_upsert.errors import OptionError
from spark_upsert.options.inputs import UNNAMED, InputOptions, ReadPlan
from spark_upsert.options.parse import fold
from spark_upsert.options.read import Metadata
from spark_upsert.streams.planner.kinds import (
    KINDS,
    Bounded,
    Kinds,
    batch_inputs,
    plan_columns,
    with_found_inputs,
)
from spark_upsert.streams.reads.explain import SHOWN, counted, explain_merge, field, more
from spark_upsert.streams.reads.packs import InputSplit, Pack, explain_packs, of_each, planned
from spark_upsert.streams.reads.passage import splits_in_order, steps_of

_PYTHON = "python"
"""The format that only a process with Spark knows."""

_Splits = Mapping[str, Sequence[Any]]
"""The splits of each input, by its name."""


def explain_read(plan: ReadPlan, kinds: Kinds = KINDS) -> str:
    """Return what a batch read will do.

    Raises
    ------
    UpsertFlowError
        It cannot be planned: the error is that of the read.
    """
    plan.query.require_batch()
    _refuse_of_the_log(plan)
    plan = with_found_inputs(plan)
    known = replace(plan, inputs=tuple(e for e in plan.inputs if not _needs_spark(e, kinds)))
    inputs: dict[str, Bounded] = {}
    if known.inputs:
        inputs = batch_inputs(known, plan_columns(known, kinds), kinds)
    splits = _planned(inputs, plan)
    if plan.is_unnamed:
        return inputs[UNNAMED].explain(splits[UNNAMED])
    tasks = _packs(inputs, splits, plan)
    how = "packed by bytes" if plan.query.order is None else "in an exact order"
    lines = [explain_merge(plan), *_inputs(plan, inputs, splits)]
    lines += [f"{counted(len(tasks), 'task')}, {how}"]
    lines += explain_packs(splits, tasks, lambda name, split: inputs[name].split_bytes(split))
    return "\n".join(lines)


def _needs_spark(options: InputOptions, kinds: Kinds) -> bool:
    return fold(options.format.partition(":")[0].strip()) == _PYTHON and _PYTHON not in kinds


def _refuse_of_the_log(plan: ReadPlan) -> None:
    if not plan.is_of_table:
        return
    metadata = plan.inputs[0].of_table().metadata
    if metadata not in (None, Metadata.QUARANTINE, Metadata.GROUP):
        raise OptionError(
            f"metadata={metadata.value} is told by the log alone: there is nothing to explain.",
            hint="drop 'metadata' to explain a read of rows.",
            option="metadata",
        )


def _planned(inputs: Mapping[str, Bounded], plan: ReadPlan) -> _Splits:
    """Return the splits of inputs; those of an exact order without a count of their rows."""
    if plan.query.order is None:
        return of_each(inputs, lambda read: read.splits())
    named = {name: (name, read) for name, read in inputs.items()}
    return of_each(named, lambda of: splits_in_order(steps_of(*of)))


def _inputs(plan: ReadPlan, inputs: Mapping[str, Bounded], splits: _Splits) -> Iterator[str]:
    for each in islice(plan.inputs, SHOWN):
        name = each.name
        text = inputs[name].explain(splits[name]) if name in inputs else _unplanned(each)
        yield f"input '{name}'\n{indent(text, '  ')}"
    yield from more(len(plan.inputs), " inputs")


def _unplanned(options: InputOptions) -> str:
    why = "nothing: it is known where Spark runs, and its tasks come on top"
    source = options.format.partition(":")[2].strip()
    return "\n".join([f"the Python source '{source}'", *field("planned", why)])


def _packs(inputs: Mapping[str, Bounded], splits: _Splits, plan: ReadPlan) -> list[Pack]:
    """Return what each task reads."""
    if plan.query.order is None:
        return planned(
            splits, lambda name, split: inputs[name].split_bytes(split), plan.query.slots
        )
    return [tuple(InputSplit(name, split) for name, own in splits.items() for split in own)]
