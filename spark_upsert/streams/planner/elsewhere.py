"""Stand-ins for inputs of formats that need Spark, for a read that is explained without it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from spark_upsert.options.inputs import InputOptions, ReadPlan
from spark_upsert.options.parse import fold
from spark_upsert.streams.inputs.agreement import Described
from spark_upsert.streams.inputs.input import Input
from spark_upsert.streams.planner.kinds import InputFormat, Kinds
from spark_upsert.streams.reads.explain_words import field
from spark_upsert.streams.reads.steps import CountedStep

_FORMATS = ("python",)


def without_elsewhere(plan: ReadPlan, kinds: Kinds) -> ReadPlan:
    """Return the plan without inputs of formats that are not known in this process."""
    return replace(
        plan, inputs=tuple(each for each in plan.inputs if not _is_elsewhere(each, kinds))
    )


def with_elsewhere(kinds: Kinds) -> Kinds:
    """Return the formats, with stand-ins for those that are not known in this process."""
    others: Mapping[str, InputFormat] = {
        name: _Elsewhere() for name in _FORMATS if name not in kinds
    }
    return {**kinds, **others}


def _is_elsewhere(options: InputOptions, kinds: Kinds) -> bool:
    name = fold(options.format.partition(":")[0].strip())
    return name in _FORMATS and name not in kinds


class _Elsewhere:
    """A format of which this process knows no more than an input's name and format."""

    def describe(self, options: InputOptions) -> Described:
        return Described(pa.schema([]), f"{options.name} {options.format}")

    def stream(self, options: InputOptions, columns: pa.Schema) -> Input:
        raise AssertionError("a stream is not explained")

    def batch(self, options: InputOptions, columns: pa.Schema) -> _Unplanned:
        return _Unplanned(options)


class _Unplanned:
    def __init__(self, options: InputOptions) -> None:
        self._options = options

    def splits(self) -> Sequence[Any]:
        return ()

    def steps(self) -> Sequence[CountedStep]:
        return ()

    def split_bytes(self, split: Any) -> int:
        return 0

    def read(self, split: Any) -> Iterator[pa.RecordBatch]:
        return iter(())

    def identity(self) -> str:
        return f"{self._options.name} {self._options.format}"

    def explain(self, splits: Sequence[Any]) -> str:
        """Return the text of an input of which only the name and format are known."""
        named = self._options.format.partition(":")[2].strip()
        lines = [
            f"the Python source '{named}'",
            *field("planned", "nothing: it is known where Spark runs, and its tasks come on top"),
        ]
        return "\n".join(lines)
