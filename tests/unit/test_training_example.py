"""The training example learns, and a run that is ended anywhere continues with the same losses."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from examples.git_history.history import Repository
from examples.training.train import CHECKPOINT_STEPS, Position, batches, main, make_table, train
from spark_upsert import Table
from tests.support.repositories import long_history

EPOCHS = 30


def table_in(folder: Path) -> str:
    long_history(150).write(folder / "repository")
    make_table(Repository.open(folder / "repository"), str(folder / "files"))
    return str(folder / "files")


def replace_and_expire(path: str) -> None:
    """Write, compact and expire as others do during a training: every version that may go goes."""
    table = Table.open(path)
    rows = [{"path": "new.py", "bytes": 1}]
    table.upsert(pa.Table.from_pylist(rows, schema=table.schema.columns))
    table.compact(full=True)
    table.expire(retain_versions=1, retain_ms=0, safety_ms=0, writers_ms=0)
    table.vacuum(grace_ms=0)


def test_the_losses_fall_and_do_not_depend_on_restarts(tmp_path: Path) -> None:
    path = table_in(tmp_path)
    *_, uninterrupted = train(path, tmp_path / "uninterrupted.npz", epochs=EPOCHS)
    tenth = len(uninterrupted.losses) // 10
    assert np.mean(uninterrupted.losses[-tenth:]) < 0.5 * np.mean(uninterrupted.losses[:tenth])

    last_models = []
    for steps in (1, 7, CHECKPOINT_STEPS, 23, *range(2, 100, 3)):
        # Each start reaches at least one more checkpoint, and most lose the steps after it.
        run = train(path, tmp_path / "model.npz", epochs=EPOCHS)
        models = list(islice(run, CHECKPOINT_STEPS + steps))
        if not models:
            break
        last_models.append(models[-1])
        replace_and_expire(path)
    assert len(last_models) > 5
    assert last_models[-1].losses == uninterrupted.losses
    assert np.array_equal(last_models[-1].weights, uninterrupted.weights)
    assert Table.open(path).consumers() == []


def test_an_epoch_has_each_row_once_in_an_order_of_its_own(tmp_path: Path) -> None:
    table = Table.open(table_in(tmp_path))
    orders = [
        [path for batch in batches(table, Position(1, epoch), seed=1) for path in batch["path"]]
        for epoch in range(2)
    ]
    rows = table.snapshot()["path"]
    assert [sorted(map(str, order)) for order in orders] == [sorted(map(str, rows))] * 2
    assert orders[0] != orders[1]


def test_it_runs_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    long_history(40).write(tmp_path / "repository")
    arguments = ["--repo", str(tmp_path / "repository"), "--into", str(tmp_path / "into")]
    assert main([*arguments, "--epochs", "3", "--stop-after", "2"]) == 1
    assert "ended after step 2" in capsys.readouterr().out
    assert main([*arguments, "--epochs", "3"]) == 0
    assert "steps     1 to" in capsys.readouterr().out
