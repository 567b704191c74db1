"""The example that trains: it learns, and whoever ends it anywhere sees the same losses."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from examples.git_history.history import Repository
from examples.training.train import CHECKPOINT_STEPS, Model, main, make_table, train
from tests.support.repositories import long_history

EPOCHS = 30


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("training")
    long_history(150).write(folder / "repository")
    make_table(Repository.open(folder / "repository"), str(folder / "files"))
    return str(folder / "files")


@pytest.fixture(scope="module")
def whole(files: str, tmp_path_factory: pytest.TempPathFactory) -> Model:
    *_, model = train(files, tmp_path_factory.mktemp("whole") / "model.npz", epochs=EPOCHS)
    return model


def test_it_learns(whole: Model) -> None:
    tenth = len(whole.losses) // 10
    assert tenth > 3
    assert np.mean(whole.losses[-tenth:]) < 0.5 * np.mean(whole.losses[:tenth])


@pytest.mark.parametrize("steps", [1, 7, CHECKPOINT_STEPS, 23])
@pytest.mark.sweep(1)
def test_the_losses_are_the_same_however_often_it_is_ended(
    files: str, whole: Model, tmp_path: Path, steps: int
) -> None:
    checkpoint, starts, model = tmp_path / "model.npz", 0, Model()
    while True:
        # Each gets at least to one more checkpoint, and most lose some steps behind it.
        taken = list(islice(train(files, checkpoint, epochs=EPOCHS), CHECKPOINT_STEPS + steps))
        if not taken:
            break
        model, starts = taken[-1], starts + 1
    assert starts > 2
    assert model.losses == whole.losses
    assert np.array_equal(model.weights, whole.weights)


def test_it_runs_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    long_history(40).write(tmp_path / "repository")
    given = ["--repo", str(tmp_path / "repository"), "--into", str(tmp_path / "into")]
    assert main([*given, "--epochs", "3", "--stop-after", "2"]) == 1
    assert "ended behind step 2" in capsys.readouterr().out
    assert main([*given, "--epochs", "3"]) == 0
    assert "steps     1 to" in capsys.readouterr().out
