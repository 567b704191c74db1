"""Views among the formats of inputs: ``option("plan", ...)``, as a stream or in a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from spark_upsert.errors import OptionError, PlanError
from spark_upsert.model.schema import CHANGELOG_FIELDS
from spark_upsert.options.inputs import InputOptions
from spark_upsert.options.view import ViewOptions
from spark_upsert.streams.inputs.agreement import Described
from spark_upsert.streams.inputs.input import Input
from spark_upsert.streams.inputs.view import ViewInput
from spark_upsert.streams.inputs.view_bounds import end_of, position_of, require_bounds, start_of
from spark_upsert.streams.reads.explain import explain_view
from spark_upsert.streams.reads.view_reads import open_view, read_view
from spark_upsert.streams.reads.view_splits import (
    ViewSplit,
    snapshot_splits,
    step_splits,
)


class ViewKind:
    """Views (`ViewInput`, `ViewRead`)."""

    def describe(self, options: InputOptions) -> Described:
        """Return the columns that a read has of a view (`Kind.describe`)."""
        if options.name:
            raise OptionError(
                f"the input '{options.name}' is a view, which is read alone.",
                hint="keep it as a table, and name that; or join within one plan.",
                option="plan",
            )
        own = ViewOptions.parse(options.own)
        view = open_view(own)
        require_bounds(view, own)
        if view.grouping is not None:
            kept = view.grouping.kept.columns
            return Described(kept, f"view {view.plan.fingerprint()}")
        columns = view.relation.schema
        shown = pa.schema([*columns, *CHANGELOG_FIELDS]) if own.change_feed else columns
        return Described(shown, f"view {view.plan.fingerprint()}")

    def stream(self, options: InputOptions, columns: pa.Schema) -> Input:
        """Return a view as the input of a stream (`Kind.stream`)."""
        own = ViewOptions.parse(options.own)
        own.require_stream()
        return ViewInput(own)

    def batch(self, options: InputOptions, columns: pa.Schema) -> ViewRead:
        """Return what a batch reads of a view (`Kind.batch`)."""
        own = ViewOptions.parse(options.own)
        own.require_batch()
        if open_view(own).grouping is not None:
            raise PlanError(
                "a group gives what its rows contribute, step by step, and no rows.",
                hint="keep it first, .keep(path), and read that table.",
            )
        return ViewRead(own)


class ViewRead:
    """The work of one batch read of a view; pickled into the tasks."""

    def __init__(self, options: ViewOptions) -> None:
        self._options = options

    def splits(self) -> Sequence[ViewSplit]:
        """Return the work for the tasks."""
        view, options = open_view(self._options), self._options
        if not options.change_feed:
            return snapshot_splits(view, options, position_of(view, options))
        newest = view.newest()
        start = start_of(view, options, newest)
        assert start is not None, "of a batch it is required"
        rows = snapshot_splits(view, options, start.at) if start.has_rows else []
        return [
            *rows,
            *step_splits(view, options, start.at, end_of(view, options, newest, start.at)),
        ]

    def identity(self) -> str:
        """Return which view it is."""
        return f"view {open_view(self._options).plan.fingerprint()}"

    def split_bytes(self, split: ViewSplit) -> int:
        """Estimate the bytes that a split reads."""
        return split.bytes

    def explain(self, splits: Sequence[ViewSplit]) -> str:
        """Return what reading these splits does, as text."""
        return explain_view(open_view(self._options), splits)

    def read(self, split: ViewSplit) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split; called in a task."""
        yield from read_view(split, self._options)
