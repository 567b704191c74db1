"""Learn file sizes from paths, on the files of a git repository.

    python examples/training/train.py --repo /path/to/any/repository --into /tmp/sizes

1. The history of the repository becomes a table: a row for each path.
2. A linear model learns the logarithm of the size from the path, by steps over small batches.
3. Every few steps the model and its position in the table are written, as one file.

Kill it at any moment and start it again: it continues after the last checkpoint, and the losses
are those of an uninterrupted run, to the last bit. It needs neither Spark nor torch.

The order of the rows is a function of the version, the seed and the epoch: the pieces of the
version are permuted, then the rows within each piece. A position is therefore four numbers.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if not __package__:
    # Run as a script: import from the checkout, not from this folder.
    sys.path[0] = str(ROOT)

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.compute as pc  # noqa: E402

from examples.git_history.history import TREE, Repository  # noqa: E402
from upsertflow import Table  # noqa: E402

Floats = npt.NDArray[np.float64]

ENDINGS = (".py", ".md", ".txt", ".json", ".svg", "Makefile")
RATE = 0.02
BATCH_ROWS = 8
PIECES = 4
"""At least: a large table has more. One is in memory at a time; processes would share them out."""
CHECKPOINT_STEPS = 10
CONSUMER = "training"
"""Holds the lease that keeps the version of the checkpoint from expiry."""


@dataclass
class Position:
    """The next batch of a run; with a version and a seed it determines all that follow."""

    version: int
    epoch: int = 0
    piece: int = 0
    """Index in the order of the epoch."""
    batch: int = 0
    """Index within the piece."""


@dataclass
class Model:
    """A linear model, and the losses of its training."""

    weights: Floats = field(default_factory=lambda: np.zeros(len(ENDINGS) + 3))
    losses: list[float] = field(default_factory=list)
    """Of each step."""

    def step(self, batch: pa.Table) -> None:
        """Learn from one batch."""
        inputs, wanted = features(batch), np.log1p(sizes(batch))
        # Sums instead of matrix products, whose last bits may depend on the memory alignment.
        missed = (inputs * self.weights).sum(axis=1) - wanted
        self.losses.append(float(np.mean(missed**2)))
        self.weights -= RATE * (inputs * missed[:, np.newaxis]).mean(axis=0)


def features(batch: pa.Table) -> Floats:
    """Return the features of each path, one row per path."""
    paths = batch["path"]
    columns = [pc.ends_with(paths, ending) for ending in ENDINGS]
    columns += [pc.count_substring(paths, "/"), pc.divide(pc.utf8_length(paths), 32.0)]
    numbers = [column.cast(pa.float64()).to_numpy() for column in columns]
    return np.column_stack([np.ones(len(paths)), *numbers])


def sizes(batch: pa.Table) -> Floats:
    """Return the bytes of each file; a submodule has none."""
    size: Floats = pc.fill_null(batch["bytes"], 0).cast(pa.float64()).to_numpy()
    return size


def make_table(repository: Repository, path: str) -> None:
    """Write the history of a repository as a table of its paths, in one epoch."""
    changes = repository.changes().drop_columns("seq")
    # Rows come in the order of the commits, and the last one of a path counts.
    Table.create(path, TREE, keys=["path"]).upsert(changes, deletes="deleted")


def batches(table: Table, position: Position, *, seed: int) -> Iterator[pa.Table]:
    """Yield the rest of an epoch, and move the position to the batch after each."""
    pieces = table.pieces(PIECES, version=position.version)
    order = np.random.default_rng([seed, position.epoch]).permutation(len(pieces))
    while position.piece < len(order):
        piece = int(order[position.piece])
        # Others may write, compact and expire meanwhile: the lease keeps the version readable.
        table.keep_held(CONSUMER, position.version)
        # Sorted by the key first, because a scan promises no order.
        rows = pieces[piece].scan().read_all().sort_by("path")
        drawn = np.random.default_rng([seed, position.epoch, piece]).permutation(len(rows))
        rows = rows.take(drawn)
        while position.batch * BATCH_ROWS < len(rows):
            position.batch += 1
            yield rows.slice((position.batch - 1) * BATCH_ROWS, BATCH_ROWS)
        position.piece, position.batch = position.piece + 1, 0


def train(path: str, checkpoint: Path, *, epochs: int, seed: int = 1) -> Iterator[Model]:
    """Yield the model after each step, from the last checkpoint on."""
    table, model = Table.open(path), Model()
    if checkpoint.exists():
        with np.load(checkpoint) as saved:
            model = Model(saved["weights"], saved["losses"].tolist())
            position = Position(*saved["position"].tolist())
    else:
        position = Position(table.at().manifest.version)
    while position.epoch < epochs:
        for batch in batches(table, position, seed=seed):
            model.step(batch)
            if len(model.losses) % CHECKPOINT_STEPS == 0:
                save(checkpoint, model, position)
            yield model
        position.epoch, position.piece = position.epoch + 1, 0
    save(checkpoint, model, position)
    table.release(CONSUMER)


def save(checkpoint: Path, model: Model, position: Position) -> None:
    """Write model and position atomically, so that a restart finds a pair that belongs together."""
    new = checkpoint.with_name(f"_{checkpoint.name}.npz")
    numbers = np.array(astuple(position))
    np.savez(new, weights=model.weights, losses=np.array(model.losses), position=numbers)
    os.replace(new, checkpoint)


def main(arguments: list[str]) -> int:
    """Train from the last checkpoint on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repo", type=Path, default=ROOT, help="any git repository")
    parser.add_argument(
        "--into", type=Path, required=True, help="folder of the table and the checkpoint"
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument(
        "--stop-after", type=int, help="end after this many steps, as a crash would"
    )
    options = parser.parse_args(arguments)
    table, checkpoint = options.into / "files", options.into / "model.npz"
    if not (table / "_log").exists():
        make_table(Repository.open(options.repo), str(table))
    model = Model()
    for step, model in enumerate(train(str(table), checkpoint, epochs=options.epochs), 1):
        if step == options.stop_after:
            print(f"ended after step {len(model.losses)}, with loss {model.losses[-1]:.4f}")
            return 1
    if model.losses:
        tenth = max(1, len(model.losses) // 10)
        for first in range(0, len(model.losses), tenth):
            steps = model.losses[first : first + tenth]
            print(f"steps {first + 1:5d} to {first + len(steps):5d}: loss {np.mean(steps):.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
