"""Estimates of an operator before it runs: how many rows, of what size, at what cost."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from spark_upsert.flow.work import ArrowSource, Work

VARIABLE_BYTES = 16
"""The estimated bytes of a string or a list, with its offset."""

SOURCE_ROWS = 1_000_000
"""The estimated rows of an unknown source: enough that tasks are worth while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The costs of an operator as automatic fusion assumes them, with plain defaults.

    Measured figures do as well as guessed ones: each is a ratio or a time that a run can show.
    """

    rows: float | None = None
    """Rows that a source gives, all its replicas together; other operators ignore it. None: as
    many as are given with the graph (`ArrowSource`), else `SOURCE_ROWS`."""
    selectivity: float = 1.0
    """Rows that it gives for each row that it takes."""
    row_s: float = 1e-7
    """Processor time for each row that it takes; a source: that it gives."""
    row_bytes: float | None = None
    """Bytes of a row that it gives; None: by its columns."""
    skew: float = 1.0
    """Rows of its busiest channel over those of the mean one, where rows come by their hash."""

    def rows_of(self, work: Work) -> float:
        """Return how many rows a source gives, by what it is if nothing is said."""
        if self.rows is not None:
            return self.rows
        return work.rows.num_rows if isinstance(work, ArrowSource) else SOURCE_ROWS

    def bytes_of(self, schema: pa.Schema | None) -> float:
        """Return the bytes of a row, by the columns if nothing is given."""
        if self.row_bytes is not None:
            return self.row_bytes
        if schema is None:
            return VARIABLE_BYTES
        return sum(_width(field.type) for field in schema) or 1.0


def _width(type_: pa.DataType) -> float:
    try:
        return type_.bit_width / 8
    except ValueError:
        return VARIABLE_BYTES
