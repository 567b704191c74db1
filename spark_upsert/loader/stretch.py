"""A rank's reading from one batch to the end of its epoch: a value that workers are given, too.

It says nothing of the loader, so that a process that only reads the batches knows none.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from spark_upsert.errors import OptionError
from spark_upsert.loader.order import EpochOrder
from spark_upsert.loader.share import RankShare, Remainder
from spark_upsert.loader.splits import Splits
from spark_upsert.loader.windows import batches
from spark_upsert.model.wyrand import SEED_END


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """The settings that decide which rows a batch has."""

    batch_rows: int
    seed: int | None
    window_rows: int
    world: int
    remainder: Remainder
    lanes: int

    def __post_init__(self) -> None:
        for name, value in (
            ("batch_rows", self.batch_rows),
            ("window_rows", self.window_rows),
            ("world", self.world),
            ("lanes", self.lanes),
        ):
            if value < 1:
                raise OptionError.invalid(name, value, "a number from 1")
        if self.seed is not None and not 0 <= self.seed < SEED_END:
            raise OptionError.invalid("seed", self.seed, "a number from 0 up to 2**64 - 1, or None")

    def to_json(self) -> dict[str, Any]:
        """Return the form that stands in a checkpoint."""
        return {**asdict(self), "remainder": self.remainder.value}

    def share(self, rows: int, rank: int) -> RankShare:
        """Return what a rank gets of an epoch of so many rows."""
        return RankShare.of(
            rows,
            rank=rank,
            world=self.world,
            batch_rows=self.batch_rows,
            remainder=self.remainder,
            lanes=self.lanes,
        )


@dataclass(frozen=True, kw_only=True)
class RankBatches:
    """The batches of one rank from one on to the end of its epoch; travels to other processes."""

    splits: Splits
    settings: LoaderSettings
    rank: int
    epoch: int
    first: int
    """The first batch, from 0."""
    ahead: int

    @cached_property
    def share(self) -> RankShare:
        """The rank's share of the epoch."""
        return self.settings.share(sum(self.splits.counts), self.rank)

    def batches(self, worker: int = 0, workers: int = 1) -> Generator[pa.RecordBatch]:
        """Yield each ``workers``-th batch, from the one of a worker on."""
        settings = self.settings
        order = EpochOrder(
            self.splits.counts,
            seed=settings.seed,
            epoch=self.epoch,
            window_rows=settings.window_rows,
        )
        due = range(self.first + worker, self.share.batches, workers)
        return batches(self.splits, order, self.share, due, ahead=self.ahead)
