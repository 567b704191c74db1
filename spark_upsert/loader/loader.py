"""Rows for a training loop: exact batches in a drawn order, and a place to go on from.

>>> import pyarrow as pa, tempfile
>>> from spark_upsert.loader import Loader, TableRows
>>> from spark_upsert.table.table import Table
>>> path = tempfile.mkdtemp() + "/points"
>>> points = Table.create(path, pa.schema({"id": pa.int64(), "x": pa.float32()}), keys=["id"])
>>> _ = points.append(pa.table({"id": range(10), "x": range(10)}))
>>> loader = Loader(TableRows(path=path), batch_rows=4, seed=7)
>>> batches = iter(loader)
>>> next(batches).num_rows
4
>>> state = loader.state_dict()
>>> again = Loader(TableRows(path=path), batch_rows=4, seed=7)
>>> again.load_state_dict(state)
>>> list(again) == list(batches)  # The other two, here as there.
True
>>> (again.epoch, again.batch)
(1, 0)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import numpy.typing as npt
import pyarrow as pa

from spark_upsert.errors import OptionError
from spark_upsert.loader.arrays import as_numpy, as_torch
from spark_upsert.loader.checkpoint import Checkpoint, understood
from spark_upsert.loader.share import RankShare, Remainder
from spark_upsert.loader.splits import RowSource, Splits
from spark_upsert.loader.stretch import LoaderSettings, RankBatches

In = TypeVar("In")
Out = TypeVar("Out")

WINDOW_ROWS = 1 << 17
"""Rows that are permuted together, unless it is said: two splits of a table, from anywhere."""

EPOCH_END = 1 << 63
"""Epochs are below."""


class Loader:
    """The rows of a source, epoch after epoch, in batches.

    It is a position in a sequence that follows from the source and the settings alone: the same on
    every machine, in every process and with every version of numpy and pyarrow. Iterating goes on
    from the position to the end of its epoch, and then the next epoch begins. Nothing is read
    before it is needed.

    Parameters
    ----------
    source : Source
        `TableRows` or `FileRows`.
    batch_rows : int
        Rows of a batch: exactly so many, but for the last one of an epoch with ``keep``.
    seed : int, optional
        Shuffles: which splits come first, and which rows of a window (`loader.order`). None for
        the order of the source.
    window_rows : int
        Least number of rows that are permuted together. About three windows are in memory, each as
        large as its last split makes it.
    rank, world : int
        Which of how many processes this one is; each gets other rows.
    remainder : Remainder or str
        What becomes of rows that cannot be dealt out evenly: ``keep``, ``drop`` or ``repeat``.
    lanes : int
        How many processes may share the work of this rank without reading what others read: the
        number of workers of a `DataLoader`, or a multiple (`loader.share`).
    ahead : int
        Windows of each lane that a thread reads before they are needed; 0 for no thread.

    Raises
    ------
    OptionError
        A setting is out of its range.

    Notes
    -----
    Not for several threads at once. It has one pass over an epoch at a time: a second one ends the
    first. It travels by pickle with its position, and without what it has read.
    """

    def __init__(
        self,
        source: RowSource,
        *,
        batch_rows: int,
        seed: int | None = None,
        window_rows: int = WINDOW_ROWS,
        rank: int = 0,
        world: int = 1,
        remainder: Remainder | str = Remainder.KEEP,
        lanes: int = 1,
        ahead: int = 1,
    ) -> None:
        if not isinstance(remainder, Remainder):
            choices = [each.value for each in Remainder]
            if remainder not in choices:
                raise OptionError.not_one_of("remainder", remainder, choices)
            remainder = Remainder(remainder)
        self._settings = LoaderSettings(
            batch_rows=batch_rows,
            seed=seed,
            window_rows=window_rows,
            world=world,
            remainder=remainder,
            lanes=lanes,
        )
        if not 0 <= rank < world:
            raise OptionError.invalid("rank", rank, f"a number from 0 up to {world - 1}")
        if ahead < 0:
            raise OptionError.invalid("ahead", ahead, "a number from 0")
        self._source = source
        self._rank = rank
        self._ahead = ahead
        self._splits: Splits | None = None
        self._epoch = self._batch = 0
        self._pass: weakref.ref[EpochBatches[Any, Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pass": None}

    def __repr__(self) -> str:
        what = self._source if self._splits is None else self._splits
        return f"Loader({what}, epoch={self._epoch}, batch={self._batch})"

    # -- what there is ---------------------------------------------------------------

    def plan(self) -> Splits:
        """Return the splits; found once, by the first call that needs them.

        Raises
        ------
        OptionError
            A rank would have no rows.
        UpsertFlowError
            The source is not there, or cannot be read.
        """
        if self._splits is None:
            self._splits = self._fit(self._source.plan())
        return self._splits

    def _fit(self, splits: Splits) -> Splits:
        """Check that these splits can be dealt out."""
        if not splits.schema.names:
            raise OptionError.invalid("columns", (), "at least one column")
        rows, settings = sum(splits.counts), self._settings
        # The last rank has the fewest. None at all are a table that is yet to be written.
        if rows and not settings.share(rows, settings.world - 1).rows:
            whole = settings.remainder is Remainder.DROP
            raise OptionError(
                f"{rows} rows are too few for {settings.world} ranks"
                f"{f' with whole batches of {settings.batch_rows}' if whole else ''}: some would "
                "have none, and the others wait for them.",
                hint="use fewer ranks or smaller batches, or give remainder='repeat'.",
                option="world",
            )
        return splits

    @property
    def schema(self) -> pa.Schema:
        """The columns of the batches."""
        return self.plan().schema

    @property
    def rows(self) -> int:
        """How many rows this rank gets in an epoch."""
        return self._share(self._rank).rows

    def __len__(self) -> int:
        """Return how many batches this rank gets in an epoch, those handed out included."""
        return self._share(self._rank).batches

    def lengths(self) -> tuple[int, ...]:
        """Return how many batches each rank gets in an epoch; with ``keep`` they may differ."""
        return tuple(self._share(rank).batches for rank in range(self._settings.world))

    def _share(self, rank: int) -> RankShare:
        return self._settings.share(sum(self.plan().counts), rank)

    # -- where it stands -------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch that the next batch is of, unless all of its batches were handed out."""
        return self._epoch

    @property
    def batch(self) -> int:
        """How many batches of the epoch were handed out."""
        return self._batch

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, unless this is the one it stands in.

        So a loop may say which epoch it is in, also the one within which it goes on.
        """
        if epoch != self._epoch:
            self.seek(epoch)

    def seek(self, epoch: int, batch: int = 0) -> None:
        """Go to a batch of an epoch; a pass that is under way ends.

        Raises
        ------
        OptionError
            There is none.
        """
        if not 0 <= epoch < EPOCH_END:
            raise OptionError.invalid("epoch", epoch, "a number from 0")
        if batch and not 0 <= batch <= len(self):
            raise OptionError.invalid("batch", batch, f"a number from 0 up to {len(self)}")
        self.close()
        self._epoch, self._batch = epoch, batch

    def state_dict(self) -> dict[str, Any]:
        """Return a checkpoint: which batch comes next, and of what.

        JSON, of a size that follows the number of splits: some bytes for each, and some hundred.
        What was read ahead and not handed out is not counted.
        """
        splits = self.plan()
        return Checkpoint(
            kind=self._source.kind,
            splits=splits.record(),
            order=self._settings.to_json(),
            epoch=self._epoch,
            batch=self._batch,
        ).to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was made, of any rank that has handed out equally many batches.

        The splits are those of the checkpoint, whatever has come since. Nothing is read, and what
        lies before the next batch's window never is.

        Raises
        ------
        OptionError
            It is of other settings, or no checkpoint.
        OtherTableError, DataLossError
            It is of another table, or its rows are gone, or its files were changed.
        """
        found = Checkpoint.from_json(state)
        if found.kind != self._source.kind:
            raise OptionError(
                f"the loader reads a source of the kind '{self._source.kind}', its checkpoint is "
                f"of '{found.kind}'.",
                hint="give the source that the checkpoint is of, or begin without it.",
                option="state",
            )
        own = self._settings.to_json()
        for name, value in own.items():
            if found.order.get(name, value) != value or name not in found.order:
                raise OptionError(
                    f"the loader has {name}={value!r}, and its checkpoint is of "
                    f"{name}={found.order.get(name)!r}: other rows would come next.",
                    hint=f"give {name}={found.order.get(name)!r}, or begin without the checkpoint.",
                    option=name,
                )
        with understood():
            splits = self._fit(self._source.plan_again(found.splits))
        self.close()
        self._splits = splits
        self._epoch = found.epoch
        # The position may be another rank's, with a last batch that this one lacks.
        self._batch = min(found.batch, len(self))

    # -- rows ------------------------------------------------------------------------

    def __iter__(self) -> EpochBatches[pa.RecordBatch, pa.RecordBatch]:
        """Return the batches from here to the end of the epoch, as Arrow."""
        return self._begin(lambda stretch: stretch.batches(), lambda batch: batch)

    def numpy(self) -> EpochBatches[pa.RecordBatch, dict[str, npt.NDArray[Any]]]:
        """Return the same as arrays of numpy, by column (`loader.arrays.as_numpy`)."""
        return self._begin(lambda stretch: stretch.batches(), as_numpy)

    def torch(self, *, workers: int = 0, **options: Any) -> EpochBatches[Any, dict[str, Any]]:
        """Return the same as tensors of torch, by column (`loader.arrays.as_torch`).

        Parameters
        ----------
        workers : int
            Processes of a `torch.utils.data.DataLoader` that read; 0 for none. Batches are the
            same ones in the same order, whatever their number.
        **options
            For the `DataLoader`, for example ``multiprocessing_context`` or ``pin_memory``.

        Raises
        ------
        OptionError
            There is no torch, or ``options`` without workers.
        """
        if workers < 0 or (options and not workers):
            raise OptionError.invalid("workers", workers, "a number from 1, as there are options")
        if not workers:
            return self._begin(lambda stretch: stretch.batches(), as_torch)
        from spark_upsert.loader.torch_data import read_by_workers

        return self._begin(
            lambda stretch: read_by_workers(stretch, workers, options), lambda tensors: tensors
        )

    def _begin(
        self, read: Callable[[RankBatches], Generator[In]], convert: Callable[[In], Out]
    ) -> EpochBatches[In, Out]:
        self.close()
        stretch = RankBatches(
            splits=self.plan(),
            settings=self._settings,
            rank=self._rank,
            epoch=self._epoch,
            first=self._batch,
            ahead=self._ahead,
        )
        begun = EpochBatches(self, read(stretch), convert)
        self._pass = weakref.ref(begun)
        return begun

    def _handed_out(self) -> None:
        self._batch += 1

    def _ended(self) -> None:
        self._epoch, self._batch = self._epoch + 1, 0

    # -- the end ---------------------------------------------------------------------

    def close(self) -> None:
        """End the pass that is under way, and its thread; the loader may be used again."""
        current = None if self._pass is None else self._pass()
        if current is not None:
            current.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class EpochBatches(Iterator[Out], Generic[In, Out]):
    """The batches of a loader up to the end of an epoch.

    The thread that reads ahead ends with it: at its end, when it is closed or collected, and by
    any error. Whatever raised, the loader stands behind the last batch that was handed out.
    """

    def __init__(self, loader: Loader, found: Generator[In], convert: Callable[[In], Out]) -> None:
        self._loader = loader
        self._found: Generator[In] | None = found
        self._convert = convert
        self._is_over = False

    def __next__(self) -> Out:
        if self._is_over:
            raise StopIteration
        if self._found is None:
            raise ValueError(
                "this pass over the epoch was ended before its last batch, by an error, by close() "
                "or by another pass: iterate over the loader again to go on."
            )
        try:
            found = self._convert(next(self._found))
        except StopIteration:
            self._is_over = True
            self._loader._ended()
            raise
        except BaseException:
            # A generator that has raised looks as if it had come to its end.
            self.close()
            raise
        self._loader._handed_out()
        return found

    def close(self) -> None:
        """End it, and wait for its thread."""
        found, self._found = self._found, None
        if found is not None:
            found.close()
