"""Learn how large a file is from its path, on the files of a git repository.

    python examples/training/train.py --repo /path/to/any/repository --into /tmp/sizes

1. The history of the repository becomes a table: a row for each path.
2. A linear model learns the logarithm of the size from the path, by steps over small batches.
3. Every few steps the model and the place of the loader are written, as one file.

End it at any moment and start it again: it goes on behind the last checkpoint, and the losses are
those of a run that nobody ended, to the last bit. It needs neither Spark nor torch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
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
from spark_upsert import Table  # noqa: E402
from spark_upsert.loader import Loader, TableRows  # noqa: E402

Floats = npt.NDArray[np.float64]

ENDINGS = (".py", ".md", ".txt", ".json", ".svg", "Makefile")
RATE = 0.02
BATCH_ROWS = 16
CHECKPOINT_STEPS = 10


@dataclass
class Model:
    """A linear model, and how it came to be."""

    weights: Floats = field(default_factory=lambda: np.zeros(len(ENDINGS) + 3))
    losses: list[float] = field(default_factory=list)
    """Of each step."""

    def step(self, batch: pa.RecordBatch) -> None:
        """Learn from one batch."""
        inputs, wanted = features(batch), np.log1p(sizes(batch))
        # Sums and no products of matrices, whose last bits may depend on where an array lies.
        missed = (inputs * self.weights).sum(axis=1) - wanted
        self.losses.append(float(np.mean(missed**2)))
        self.weights -= RATE * (inputs * missed[:, np.newaxis]).mean(axis=0)


def features(batch: pa.RecordBatch) -> Floats:
    """Return what a path tells, a row for each."""
    paths = batch["path"]
    told = [pc.ends_with(paths, ending) for ending in ENDINGS]
    told += [pc.count_substring(paths, "/"), pc.divide(pc.utf8_length(paths), 32.0)]
    columns = [np.ones(len(paths)), *(column.cast(pa.float64()).to_numpy() for column in told)]
    return np.column_stack(columns)


def sizes(batch: pa.RecordBatch) -> Floats:
    """Return the bytes of each file; a submodule has none."""
    found: Floats = pc.fill_null(batch["bytes"], 0).cast(pa.float64()).to_numpy()
    return found


def make_table(repository: Repository, path: str) -> None:
    """Write the history of a repository as a table of its paths, in one epoch."""
    changes = repository.changes().drop_columns("seq")
    # Rows come in the order of the commits, and the last one of a path counts.
    Table.create(path, TREE, keys=["path"]).append(changes, deletes="deleted")


def train(table: str, checkpoint: Path, *, epochs: int, seed: int = 1) -> Iterator[Model]:
    """Yield the model behind each step, from the last checkpoint on."""
    loader = Loader(TableRows(path=table), batch_rows=BATCH_ROWS, seed=seed)
    model = Model()
    if checkpoint.exists():
        with np.load(checkpoint) as kept:
            model = Model(kept["weights"], kept["losses"].tolist())
            loader.load_state_dict(json.loads(str(kept["loader"])))
    for epoch in range(loader.epoch, epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            model.step(batch)
            if len(model.losses) % CHECKPOINT_STEPS == 0:
                save(checkpoint, model, loader)
            yield model
    save(checkpoint, model, loader)


def save(checkpoint: Path, model: Model, loader: Loader) -> None:
    """Write model and place as one: whoever goes on finds both, or both as they were before."""
    made = checkpoint.with_name(f"_{checkpoint.name}.npz")
    place = json.dumps(loader.state_dict())
    np.savez(made, weights=model.weights, losses=np.array(model.losses), loader=np.array(place))
    os.replace(made, checkpoint)


def main(given: list[str]) -> int:
    """Train, or go on to train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repo", type=Path, default=ROOT, help="any git repository")
    parser.add_argument("--into", type=Path, required=True, help="table and checkpoint go here")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--stop-after", type=int, help="end after so many steps, as a crash would")
    options = parser.parse_args(given)
    table, checkpoint = options.into / "files", options.into / "model.npz"
    if not (table / "_log").exists():
        make_table(Repository.open(options.repo), str(table))
    model = Model()
    for step, model in enumerate(train(str(table), checkpoint, epochs=options.epochs), 1):
        if step == options.stop_after:
            print(f"ended behind step {len(model.losses)}, with loss {model.losses[-1]:.4f}")
            return 1
    if model.losses:
        tenth = max(1, len(model.losses) // 10)
        for first in range(0, len(model.losses), tenth):
            steps = model.losses[first : first + tenth]
            print(f"steps {first + 1:5d} to {first + len(steps):5d}: loss {np.mean(steps):.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
