"""The checked options of a read as a whole, however many inputs it has."""

from __future__ import annotations

import os
from dataclasses import dataclass

from spark_upsert.errors import OptionError
from spark_upsert.options.parse import Options, one_of

MERGE_COLUMNS = ("_input",)
"""What can be asked for about a merge."""


@dataclass(frozen=True, kw_only=True)
class QueryOptions:
    """What is said once for all inputs of a read."""

    rows_max: int | None = None
    """Of one micro-batch, like the other bounds."""
    bytes_max: int | None = None
    epochs_max: int | None = None
    parallelism: int | None = None
    merge_columns: tuple[str, ...] = ()
    """In the order in which they stand (`MERGE_COLUMNS`)."""

    @classmethod
    def parse(cls, options: Options) -> QueryOptions:
        """Check the options; raises `OptionError`."""
        return cls(
            rows_max=options.number("maxRowsPerTrigger", least=1),
            bytes_max=options.number("maxBytesPerTrigger", least=1),
            epochs_max=options.number("maxEpochsPerTrigger", least=1),
            parallelism=options.number("parallelism", least=1),
            merge_columns=_merge_columns(options),
        )

    @property
    def slots(self) -> int:
        """How many tasks run at once, as far as it is known here."""
        return self.parallelism or os.cpu_count() or 1

    def require_batch(self) -> None:
        """Refuse options that only a stream knows."""
        for name, value in (
            ("maxRowsPerTrigger", self.rows_max),
            ("maxBytesPerTrigger", self.bytes_max),
            ("maxEpochsPerTrigger", self.epochs_max),
        ):
            if value is not None:
                raise of_streams_only(name)


def of_streams_only(name: str) -> OptionError:
    """Return the error of an option of streams that a batch read was given."""
    return OptionError(
        f"option '{name}' has no meaning in a batch read.",
        hint="use spark.readStream, or drop the option.",
    )


def _merge_columns(options: Options) -> tuple[str, ...]:
    asked = {one_of("mergeColumns", name, MERGE_COLUMNS) for name in options.names("mergeColumns")}
    return tuple(name for name in MERGE_COLUMNS if name in asked)
