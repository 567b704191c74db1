"""Reading by the workers of a `DataLoader` of torch: the same batches in the same order.

A worker gives each n-th batch, from its own on, and a `DataLoader` takes one of each in turn: what
comes out is the sequence that one process would give. Where the number of workers divides that of
the lanes, no two read the same window but at the borders of their lanes. The position is counted in
the process that trains, where batches are handed out, so that what workers have ready is in no
checkpoint.

Imported only where it is asked for: it needs torch.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any

from spark_upsert.errors import OptionError
from spark_upsert.loader.arrays import as_torch, imported
from spark_upsert.loader.stretch import RankBatches

_data = imported("torch.utils.data")
_IterableDataset: Any = _data.IterableDataset

_OURS = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "in_order", "dataset")
"""Arguments of a `DataLoader` that the loader decides itself."""


class WorkerBatches(_IterableDataset):  # type: ignore[misc]
    """The data set in each worker of a `DataLoader`: its part of a stretch; travels by pickle."""

    def __init__(self, stretch: RankBatches) -> None:
        self._stretch = stretch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = _data.get_worker_info()
        for batch in self._stretch.batches(info.id, info.num_workers):
            yield as_torch(batch)


def read_by_workers(
    stretch: RankBatches, workers: int, options: Mapping[str, Any]
) -> Generator[dict[str, Any]]:
    """Return the batches of a stretch as tensors, read by so many processes.

    Raises
    ------
    OptionError
        An option would change which rows a batch has.
    """
    for name in options:
        if name in _OURS:
            raise OptionError(
                f"'{name}' of a DataLoader is decided by the loader, which makes whole batches in "
                "its own order.",
                hint="give batch_rows, seed and remainder to the loader.",
                option=name,
            )
    if not stretch.splits.is_forkable:
        options = {"multiprocessing_context": "spawn", **options}
        if options["multiprocessing_context"] == "fork":
            raise OptionError.invalid(
                "multiprocessing_context",
                "fork",
                "'spawn' or 'forkserver' where rows lie in a bucket, whose client a fork breaks",
            )
    dataset = WorkerBatches(stretch)
    return _batches(_data.DataLoader(dataset, batch_size=None, num_workers=workers, **options))


def _batches(loader: Any) -> Generator[dict[str, Any]]:
    found = iter(loader)
    try:
        yield from found
    finally:
        # By itself it ends its workers when it is collected, and the traceback of an error that
        # came from one of them keeps it from that. A torch that has no such method is left to it.
        getattr(found, "_shutdown_workers", _nothing)()


def _nothing() -> None:
    """Leave it as it is."""
